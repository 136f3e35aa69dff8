"""Connects to a running Dask cluster, or starts a cluster on this machine or on Slurm for `prepare`.

Dask's only authentication is TLS: any user who can reach a scheduler without TLS can run code as its owner. A
cluster that nbtrain starts always uses TLS with a new certificate. A cluster that is already running must
also use TLS, or listen only on this machine.
"""

import contextlib
import logging
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

from nbtrain.base.errors import DataError
from nbtrain.base.hardware.cgroup import usable_cores
from nbtrain.base.workspace import data_home, display, resolve
from nbtrain.config.rules.data import is_loopback
from nbtrain.config.sections.backend_section import without_slurm_conf
from nbtrain.config.sections.workers_section import WorkersConfig
from nbtrain.corpus.optional import optional
from nbtrain.corpus.workers.ordered_map import ATTEMPTS

CONNECT_SECONDS = 30
# A worker that does not respond for this long counts as lost. A part takes only seconds, and another thread
# of the worker responds meanwhile.
SILENT_WORKER = "15 minutes"
# Workers leave this many seconds before their job ends.
LEAVE_SECONDS = 120
SETTINGS = {
    "distributed.scheduler.allowed-failures": ATTEMPTS - 1,
    "distributed.scheduler.worker-ttl": SILENT_WORKER,
    # Serve no dashboard pages, because they are not protected by a password.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.nanny.http.routes": [],
    # Log level for workers on this machine.
    "distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED": "critical",
    # Ctrl-C reaches the whole process group. Workers ignore it and end with their cluster, so that they do
    # not each print a traceback.
    "distributed.worker.preload": ["import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"],
}
# If a worker on this machine dies, its nanny starts it again. By default, Dask gives up on the worker without
# a replacement if that takes more than 15 s, as it may on a busy machine.
LOCAL_SETTINGS = {**SETTINGS, "distributed.deploy.lost-worker-timeout": SILENT_WORKER}
# Libraries whose loggers have their own handlers.
NOISY = ("distributed", "tornado")
LOGS = "slurm-workers"
ROLES = ("client", "scheduler", "worker")


class DaskCluster:
    """A connection to a scheduler, and the cluster if nbtrain started it.

    `where` identifies the section data.workers in messages.
    """

    def __init__(self, config: WorkersConfig, where: str):
        self.config, self.where = config, where
        needed_by = f"{where}: kind: dask"
        optional("distributed", needed_by, "set kind: local", extra="dask")
        self._stack = contextlib.ExitStack()
        self._heard = _WarningCollector()
        self._heard.listen()
        self.address = config.address or f"the Dask cluster ({config.cluster})"
        self._in_order = True
        self.refused = ""
        """Sentence on why sbatch rejected a worker job, which Dask does not submit again; else ""."""
        self._jobs: list[str] = []
        try:
            if config.cluster is not None:
                optional("cryptography", needed_by, "set kind: local", extra="dask")
                self._cluster = self._start_local() if config.cluster == "local" else self._start_slurm()
                self._stack.callback(self._cluster.close)
                self.client = self._connect(self._cluster, self._cluster.security)
            else:
                self.client = self._connect(config.address, self._security())
                self._check_listens_here_alone()
        except BaseException:
            self._in_order = False
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, and the cluster if nbtrain started it."""
        # If the client does not end cleanly, nothing is lost, because results are on disk. Its threads then
        # log more messages when Python exits, which do not help the user.
        with contextlib.suppress(OSError, TimeoutError):
            self._stack.close()
            if self._in_order:
                self._heard.stop()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Convert errors that Dask raises for a lost scheduler to DataError while the context is open."""
        try:
            yield
        except (OSError, CancelledError) as error:
            raise self.lost_error() from error

    def lost_error(self) -> DataError:
        """Return the error for a scheduler that no longer responds."""
        return DataError(
            f"{self.where}: {self.address} no longer responds. Finished work is kept: run the command again "
            "when the scheduler is back, or with kind: local."
        )

    def last_word(self, address: str) -> str:
        """Return a clause on why a worker died, from the log of its nanny (parent process); "" if unknown."""
        lines = list(self._heard.lines)
        with contextlib.suppress(Exception):
            for logged in self.client.get_worker_logs(n=100, nanny=True).values():
                lines += [line for _, line in logged]
        about = [line for line in lines if address in line and "memory" in line]
        return "it exceeded its memory limit" if about else ""

    def queue_words(self) -> str:
        """Return a sentence with squeue's output on the worker jobs; "" if the cluster is not on Slurm.

        The sentence begins with a space, so that it can be appended to a message.
        """
        if self.config.cluster != "slurm":
            return ""
        command = ("squeue", "-h", "-j", ",".join(self._jobs), "-o", "%i %T (%r)")
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=CONNECT_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f" squeue failed: {error}."
        said = ", ".join(answer.stdout.splitlines()) or " ".join(answer.stderr.split()) or "no such job"
        return f" squeue reports for the worker jobs: {said}."

    def _connect(self, target: Any, security: Any) -> Any:
        from distributed import Client

        try:
            client = Client(target, security=security, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{self.where}: no Dask scheduler responds at {self.address} "
                f"({str(error) or type(error).__name__}). Start the scheduler, or check the address and the "
                "certificates (data.workers.tls_*)."
            ) from error
        self._stack.callback(client.close)
        return client

    def _security(self) -> Any:
        from distributed import Security

        config = self.config
        if not (config.address or "").startswith("tls://"):
            return None
        names = {"tls_ca_file": "ca", "tls_cert_file": "cert", "tls_key_file": "key"}
        paths = {}
        for name in names:
            value = getattr(config, name)
            if value is None:
                continue
            paths[name] = resolve(value)
            if not paths[name].is_file():
                raise DataError(
                    f"{self.where}.{name}: {display(paths[name])} does not exist or is not a file. Correct "
                    "the path."
                )
        given = {
            "tls_ca_file": paths.get("tls_ca_file"),
            "tls_client_cert": paths.get("tls_cert_file"),
            "tls_client_key": paths.get("tls_key_file"),
        }
        # Dask's own configuration may provide what is not set here.
        # Typed as Any, because the attributes are created dynamically.
        security: Any = Security(
            require_encryption=True, **{name: str(path) for name, path in given.items() if path is not None}
        )
        if security.tls_ca_file is None or security.tls_client_cert is None:
            raise DataError(
                f"{self.where}: a tls:// address needs tls_ca_file and tls_cert_file, and also tls_key_file "
                "if the key is in a separate file. Set the missing settings."
            )
        return security

    def _check_listens_here_alone(self) -> None:
        """Raise DataError for a cluster without TLS if its scheduler or a worker is not only on loopback.

        Checking the configured address is not enough: a loopback address may be the end of a tunnel, or one
        of several addresses.
        """
        if str(self.config.address).startswith("tls://"):
            return
        with self.answering():
            # nthreads() lists all workers. In distributed from 2025.4 to mid-2026,
            # scheduler_info()["workers"] lists only the first five.
            scheduler, workers = self.client.scheduler_info()["address"], self.client.nthreads()
        for what, address in [("the scheduler", scheduler), *(("a worker", one) for one in workers)]:
            if not is_loopback(address):
                raise DataError(
                    f"{self.where}.address = {self.config.address}: {what} listens at {address} without TLS, "
                    "so anyone who can reach that port can run code as you. Start the scheduler and the "
                    "workers with --host 127.0.0.1, or with --protocol tls and certificates."
                )

    def _settings(self, settings: dict[str, Any]) -> None:
        import dask

        self._stack.enter_context(_environment_kept())
        self._stack.enter_context(dask.config.set(settings))

    def _start_local(self) -> Any:
        from distributed import LocalCluster, Security
        from distributed.deploy.spec import SpecCluster

        self._settings(LOCAL_SETTINGS)
        self._stack.enter_context(_no_main_module())
        known = set(SpecCluster._instances)
        try:
            return LocalCluster(
                n_workers=self.config.num_workers or usable_cores(),
                threads_per_worker=1,
                host="127.0.0.1",
                protocol="tls://",
                security=Security.temporary(),
                memory_limit=self.config.memory_bytes,
                dashboard_address="127.0.0.1:0",
            )
        except BaseException:
            # The start was interrupted. Workers are child processes that end with this process, but Dask's
            # own exit handler fails if they are only partly started, so turn it off.
            for started in set(SpecCluster._instances) - known:
                started.shutdown_on_close = False
            raise

    def _start_slurm(self) -> Any:
        jobqueue = optional(
            "dask_jobqueue", f"{self.where}: cluster: slurm", "set cluster: local", extra="dask"
        )
        if shutil.which("sbatch") is None:
            raise DataError(
                f"{self.where}: cluster is slurm, but sbatch is not on this machine's PATH. Run the command "
                "on a login node, or set cluster: local."
            )
        folder = data_home() / LOGS
        for path in (str(folder), sys.executable):
            if shlex.quote(path) != path:
                raise DataError(
                    f"{self.where}: the path {path} contains characters that a job script cannot contain. "
                    "Use only letters, digits and ./_- in paths: set NBTRAIN_DATA to another folder, or "
                    "install Python in another folder."
                )
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._settings(SETTINGS)
        security = self._stack.enter_context(_certificates(folder))
        job = self._job_class(jobqueue.slurm.SLURMJob)
        options = slurm_options(self.config, folder)
        cluster = jobqueue.SLURMCluster(**options, security=security, job_cls=job)
        jobs = math.ceil(self.config.num_workers / self.config.slurm.workers_per_job)
        # adapt() is used instead of scale(), because it starts another job when one has ended.
        cluster.adapt(minimum_jobs=jobs, maximum_jobs=jobs)
        return cluster

    def _why_refused(self, error: str) -> str:
        said = " ".join(error.partition("stderr:")[2].split()) or error
        if away := without_slurm_conf("sbatch", said):
            return f"cluster is slurm, but {away}. Run the command on a login node, or set cluster: local."
        return (
            f"Slurm rejected a worker job: {said}. Change data.workers.slurm or "
            "data.workers.memory_bytes, then run the command again. Finished work is kept."
        )

    def _job_class(self, plain: Any) -> Any:
        """Return a job class that records sbatch's error, for which dask-jobqueue would only keep waiting."""
        from distributed.core import Status

        cluster = self

        class Job(plain):
            async def _submit_job(self, script: str) -> str:
                try:
                    said = await super()._submit_job(script)
                    cluster._jobs.append(self._job_id_from_submit_output(said))
                except (RuntimeError, ValueError, OSError) as error:
                    self.status = Status.failed
                    cluster.refused = cluster._why_refused(str(error))
                    raise
                return said

        return Job


def slurm_options(config: WorkersConfig, folder: Path) -> dict[str, Any]:
    """Return the arguments for dask-jobqueue's SLURMCluster, which writes its logs to `folder`."""
    slurm = config.slurm
    seconds = round(60 * slurm.time_minutes)
    lifetime = max(seconds - LEAVE_SECONDS, seconds // 2)
    hours, rest = divmod(seconds, 3600)
    return {
        "queue": slurm.partition,
        "account": slurm.account,
        "cores": slurm.workers_per_job,
        "processes": slurm.workers_per_job,
        "memory": f"{config.memory_bytes * slurm.workers_per_job}B",
        "walltime": f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}",
        "interface": slurm.interface,
        "job_extra_directives": slurm.sbatch_options,
        "job_script_prologue": slurm.setup_lines,
        "job_name": "nbtrain-data",
        "python": sys.executable,
        "protocol": "tls://",
        "worker_extra_args": ["--lifetime", f"{lifetime}s", "--no-dashboard"],
        "log_directory": str(folder),
        "scheduler_options": {"dashboard_address": "127.0.0.1:0"},
    }


@contextlib.contextmanager
def _certificates(folder: Path) -> Iterator[Any]:
    """Create a certificate for all processes of a cluster, kept below `folder` while the context is open."""
    from distributed import Security

    made = Security.temporary().get_tls_config_for_role("worker")
    with tempfile.TemporaryDirectory(prefix="certificates-", dir=folder) as own:
        paths = {name: Path(own) / f"{name}.pem" for name in ("ca_file", "cert", "key")}
        for name, path in paths.items():
            path.touch(mode=0o600)
            path.write_text(made[name])
        pairs = {f"tls_{role}_{name}": str(paths[name]) for role in ROLES for name in ("cert", "key")}
        yield Security(require_encryption=True, tls_ca_file=str(paths["ca_file"]), **pairs)


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep worker processes from running the caller's main module, which may have no main guard."""
    main = sys.modules["__main__"]
    before = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    try:
        main.__spec__ = None
        if "__file__" in before:
            del main.__file__
        yield
    finally:
        vars(main).update(before)


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """Restore the environment variables afterwards.

    Dask sets OMP_NUM_THREADS and other variables, which later jobs must not inherit.
    """
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


class _WarningCollector(logging.Filter):
    """Collects Dask's warnings instead of printing them; nbtrain's messages include the relevant ones.

    This is a logging filter, because Dask resets the levels of its handlers when it starts a cluster.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=200)
        """The latest warnings from Dask's processes on this machine."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be printed, which is True only for records that are not from Dask."""
        if record.name == "asyncio":
            raised = record.exc_info[1] if record.exc_info else None
            told = [record.getMessage(), *(traceback.format_exception(raised) if raised else ())]
            if not any("distributed" in line for line in told):
                return True
        if record.levelno >= logging.WARNING:
            self.lines.append(record.getMessage())
        return False

    def listen(self) -> None:
        """Start collecting warnings."""
        import distributed  # noqa: F401  (it sets its own handlers when it is imported)

        for one in self._printing():
            one.addFilter(self)

    def stop(self) -> None:
        """Stop collecting warnings and let Dask print again."""
        for one in self._printing():
            one.removeFilter(self)

    def _printing(self) -> list[logging.Filterer]:
        names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in NOISY]
        handlers = [handler for name in names for handler in logging.getLogger(name).handlers]
        # asyncio's logger has no handler; the root handler prints errors that Dask's event loop has dropped.
        return [*handlers, logging.getLogger("asyncio")]


@contextlib.contextmanager
def _collected_warnings() -> Iterator[deque[str]]:
    """Collect warnings from Dask's processes while the context is open."""
    heard = _WarningCollector()
    heard.listen()
    try:
        yield heard.lines
    finally:
        heard.stop()
