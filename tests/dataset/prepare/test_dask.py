"""Processing parts on a Dask cluster writes the same bytes as the local pool, even if a process dies."""

import contextlib
import importlib.util
import json
import os
import pickle
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
from functools import partial
from types import SimpleNamespace

import psutil
import pytest

from nbtrain.base.errors import DataError
from nbtrain.base.extras import install_command
from nbtrain.base.workspace import dataset_dir
from nbtrain.config.sections.workers_section import SlurmWorkersConfig, WorkersConfig
from nbtrain.corpus.workers import dask_pool, dask_worker, lease, ordered_map
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.prepare.prepare import prepare
from tests.conftest import skip_or_fail
from tests.dataset.conftest import content
from tests.waiting import wait_until


def needs_dask():
    for package in ("distributed", "dask_jobqueue", "cryptography"):
        if importlib.util.find_spec(package) is None:
            skip_or_fail("NBTRAIN_REQUIRE_DASK", f"{package} is not installed (pip install 'nbtrain[dask]')")


@pytest.fixture(scope="module")
def scheduler():
    """Start a scheduler with 2 workers on this machine, and return its address."""
    needs_dask()
    import dask
    from distributed import LocalCluster

    from nbtrain.corpus.workers.dask_cluster import LOCAL_SETTINGS, _collected_warnings

    with (
        dask.config.set(LOCAL_SETTINGS),
        _collected_warnings(),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
    ):
        yield cluster.scheduler_address


@pytest.fixture
def cluster(scheduler):
    from nbtrain.corpus.workers.dask_cluster import DaskCluster

    connected = DaskCluster(WorkersConfig(kind="dask", address=scheduler), "run.yaml:3: data.workers")
    yield connected
    connected.close()


def work(folder, task):
    """Return the task's name; the task "once" kills its process the first time, and "always" every time."""
    mark = folder / f"{task}.mark"
    if task == "always" or (task == "once" and not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "bad":
        raise DataError("part 7 is bad")
    return task


def test_every_worker_of_a_plain_scheduler_is_looked_at():
    """All workers of an existing scheduler are checked, not only the five that scheduler_info lists."""
    from nbtrain.corpus.workers.dask_cluster import DaskCluster

    here = [f"tcp://127.0.0.1:{port}" for port in range(1000, 1005)]
    client = SimpleNamespace(
        scheduler_info=lambda: {"address": "tcp://127.0.0.1:8786", "workers": dict.fromkeys(here)},
        nthreads=lambda: dict.fromkeys([*here, "tcp://10.0.0.1:1000"], 1),
    )
    config = WorkersConfig(kind="dask", address="tcp://127.0.0.1:8786")
    cluster = SimpleNamespace(
        config=config, where="run.yaml:3: data.workers", client=client, answering=contextlib.nullcontext
    )
    with pytest.raises(DataError) as caught:
        DaskCluster._check_listens_here_alone(cluster)
    assert str(caught.value) == (
        "run.yaml:3: data.workers.address = tcp://127.0.0.1:8786: a worker listens at tcp://10.0.0.1:1000 "
        "without TLS, so anyone who can reach that port can run code as you. Start the scheduler and the "
        "workers with --host 127.0.0.1, or with --protocol tls and certificates."
    )


def make(folder):
    return partial(work, folder)


@pytest.mark.slow
def test_the_bytes_of_the_local_pool(make_config, small_parts, parallel, scheduler):
    """The same dataset is written by an existing scheduler, a new cluster with 1
    worker, and 2 local processes.
    """
    prepare(make_config(data={"num_prepare_workers": 2}))
    expected, manifest = content(dataset_dir("small")), DatasetFiles.named("small").manifest()
    assert len(expected) == 2
    for given in ({"address": scheduler}, {"cluster": "local", "num_workers": 1}):
        shutil.rmtree(dataset_dir("small"))
        prepare(make_config(data={"workers": {"kind": "dask", **given}}))
        assert content(dataset_dir("small")) == expected
        assert DatasetFiles.named("small").manifest() == manifest
        assert not [path for path in dataset_dir("small").iterdir() if path.name.startswith(".")]


# Dask would give the only worker up before it has started again.
NOISE = """
import dask, sys
from functools import partial
from pathlib import Path
from nbtrain.config.sections.workers_section import WorkersConfig
from nbtrain.corpus.workers import ordered_map
from nbtrain.corpus.workers.dask_cluster import DaskCluster
from nbtrain.corpus.workers.dask_pool import DaskPool
from tests.dataset.prepare.test_dask import make

dask.config.set({"distributed.deploy.lost-worker-timeout": "1ms"})
folder = Path(sys.argv[1])
cluster = DaskCluster(WorkersConfig(kind="dask", cluster="local", num_workers=1), "data.workers")
pool = partial(DaskPool, cluster, folder)
print(list(ordered_map.ordered_map(partial(make, folder), iter([0, "once", 2]), pool)))
cluster.close()
"""


@pytest.mark.slow
def test_a_lost_worker_makes_no_noise(workspace):
    """When a worker is lost, only nbtrain's message is printed, and nothing of Dask's
    nanny, scheduler or client. The worker starts again, however long that takes.
    """
    needs_dask()
    done = subprocess.run(
        [sys.executable, "-c", NOISE, workspace], capture_output=True, text=True, timeout=600
    )
    assert done.stdout == "[0, 'once', 2]\n", done.stderr
    assert re.fullmatch(r"Dask worker tls://\S+ was lost. Its work is repeated.\n", done.stderr)


@pytest.mark.slow
def test_a_worker_killed_in_the_middle(cluster, workspace, caplog):
    """After kill -9 of a worker, its tasks run on other workers, results stay in
    order, and a message reports it.
    """
    tasks = [0, 1, "once", *range(3, 12), b"x" * (2 << 20), 13]
    results = list(
        ordered_map.ordered_map(
            partial(make, workspace), iter(tasks), partial(dask_pool.DaskPool, cluster, workspace)
        )
    )
    assert results == tasks
    assert re.search(r"Dask worker tcp://127\S+ was lost. Its work is repeated.", caplog.text)
    assert [path.name for path in workspace.iterdir()] == ["once.mark"], "leases and large tasks are gone"


@pytest.mark.slow
def test_a_result_that_dies_with_its_worker(monkeypatch):
    """A result that was lost with its worker is recomputed, and the scheduler is not taken for dead."""
    needs_dask()
    monkeypatch.setattr(dask_pool, "LOST_SECONDS", 0)
    pool = object.__new__(dask_pool.DaskPool)
    pool._look = lambda: None
    future = SimpleNamespace(status="lost", release=lambda: None, result=lambda timeout: pickle.dumps(3))
    done = threading.Event()
    done.set()
    with pytest.raises(ordered_map.NotYet):
        pool.result((future, done, None), 0)
    future.status = "finished"
    assert pool.result((future, done, None), 0) == 3


@pytest.mark.slow
def test_a_part_that_kills_each_worker(cluster, workspace):
    """A part that has killed three workers ends the map with an error and a fix."""
    with pytest.raises(DataError) as caught:
        list(
            ordered_map.ordered_map(
                partial(make, workspace), iter(["always"]), partial(dask_pool.DaskPool, cluster, workspace)
            )
        )
    text = str(caught.value)
    assert text.startswith(
        "run.yaml:3: data.workers: 3 workers died while processing the same part, most recently tcp://127."
    )
    assert text.endswith(
        "Often the memory of a worker is too small: raise data.workers.memory_bytes, or the --memory-limit "
        "of `dask worker`. Finished work is kept: run the command again."
    )


@pytest.mark.slow
def test_an_error_in_a_part(cluster, workspace):
    """An error while a part is processed is raised unchanged in this process."""
    with pytest.raises(DataError, match=r"^part 7 is bad$"):
        list(
            ordered_map.ordered_map(
                partial(make, workspace), iter([1, "bad"]), partial(dask_pool.DaskPool, cluster, workspace)
            )
        )


def written_address(process, file):
    """Wait for the address in the scheduler's file, which Dask creates empty."""

    def address():
        assert process.poll() is None
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            return json.loads(file.read_text())["address"]

    return wait_until(address, f"no address in {file}")


@pytest.mark.slow
def test_a_scheduler_that_vanishes(workspace):
    """After kill -9 of the scheduler, an error with the fix is raised instead of waiting indefinitely."""
    needs_dask()
    from nbtrain.corpus.workers.dask_cluster import DaskCluster

    file = workspace / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    with contextlib.ExitStack() as ended:
        process = ended.enter_context(
            subprocess.Popen(
                [*command, "--no-dashboard", "--scheduler-file", str(file)], stderr=subprocess.DEVNULL
            )
        )
        ended.callback(process.kill)
        address = written_address(process, file)
        cluster = DaskCluster(WorkersConfig(kind="dask", address=address), "run.yaml:3: data.workers")
        results = ordered_map.ordered_map(
            partial(make, workspace),
            iter(range(9)),
            partial(dask_pool.DaskPool, cluster, workspace),
            process.kill,
        )
        with pytest.raises(DataError) as caught:
            next(results)
        assert str(caught.value) == (
            f"run.yaml:3: data.workers: {address} no longer responds. Finished work is kept: run the command "
            "again when the scheduler is back, or with kind: local."
        )
        cluster.close()


SBATCH = """#!/bin/sh
echo "$@" >> "$0.log"
cp "$1" "$0.script"
setsid sh "$0.script" > "$0.out" 2>&1 &
echo $! >> "$0.pids"
echo "Submitted batch job 41"
"""


@pytest.mark.slow
def test_jobs_of_slurm(make_config, small_parts, tmp_path, monkeypatch):
    """sbatch receives a job script whose worker connects by TLS and processes the parts."""
    needs_dask()
    home = tmp_path / "data"
    make_config()
    monkeypatch.setenv("NBTRAIN_DATA", str(home))
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", "#!/bin/sh\n")):
        (commands / name).write_text(text)
        (commands / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    slurm = {"partition": "cpu", "account": "nlp", "time_minutes": 90, "interface": "lo"}
    slurm |= {"sbatch_options": ["--qos=long"], "setup_lines": ["export GREETING=hello"]}
    given = {"kind": "dask", "cluster": "slurm", "num_workers": 1, "memory_bytes": 2_000_000_000}
    config = make_config(data={"workers": {**given, "slurm": slurm}})
    try:
        assert prepare(config).manifest.counts["documents"] == 120
    finally:
        for pid in map(int, (commands / "sbatch.pids").read_text().split()):
            if psutil.pid_exists(pid):
                os.killpg(pid, signal.SIGKILL)
    script = (commands / "sbatch.script").read_text().splitlines()
    assert [line for line in script if line.startswith("#SBATCH")] == [
        "#SBATCH -J nbtrain-data",
        f"#SBATCH -e {home}/slurm-workers/nbtrain-data-%J.err",
        f"#SBATCH -o {home}/slurm-workers/nbtrain-data-%J.out",
        "#SBATCH -p cpu",
        "#SBATCH -A nlp",
        "#SBATCH -n 1",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --mem=2G",
        "#SBATCH -t 01:30:00",
        "#SBATCH --qos=long",
    ]
    assert "export GREETING=hello" in script
    assert "--lifetime 5280s" in script[-1] and " tls://127.0.0.1:" in script[-1]
    assert list((home / "slurm-workers").iterdir()) == [], "the certificates are gone"


def test_slurm_without_sbatch(monkeypatch):
    """A missing sbatch is reported; dask-jobqueue alone would wait without a message."""
    needs_dask()
    from nbtrain.corpus.workers.dask_cluster import DaskCluster

    monkeypatch.setenv("PATH", "/nowhere")
    config = WorkersConfig(kind="dask", cluster="slurm", num_workers=2, slurm=SlurmWorkersConfig())
    with pytest.raises(DataError) as caught:
        DaskCluster(config, "run.yaml:3: data.workers")
    assert str(caught.value) == (
        "run.yaml:3: data.workers: cluster is slurm, but sbatch is not on this machine's PATH. Run "
        "the command on a login node, or set cluster: local."
    )


@pytest.mark.slow
def test_slurm_without_a_slurm_conf(make_config, tmp_path, monkeypatch):
    """If Slurm is installed but not configured, one sentence replaces sbatch's four lines, as for submit."""
    needs_dask()
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(
        "#!/bin/sh\n"
        'echo "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host" >&2\n'
        'echo "sbatch: fatal: Could not establish a configuration source" >&2\nexit 1\n'
    )
    sbatch.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    given = {"kind": "dask", "cluster": "slurm", "num_workers": 1, "memory_bytes": 2_000_000_000}
    config = make_config(data={"workers": {**given, "slurm": {"interface": "lo"}}})
    monkeypatch.setenv("NBTRAIN_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError) as caught:
        prepare(config)
    assert str(caught.value) == (
        "data.workers: cluster is slurm, but sbatch finds no cluster: there is no slurm.conf at "
        "$SLURM_CONF or in /etc/slurm. Run the command on a login node, or set cluster: local."
    )


def test_without_the_extra(make_config, monkeypatch):
    """The error names the missing extra and the alternative, and leaves no dataset folder."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(DataError) as caught:
        prepare(make_config(data={"workers": {"kind": "dask", "cluster": "local"}}))
    assert str(caught.value) == (
        "data.workers: kind: dask needs the package distributed, which is not installed. Install it with "
        f"`{install_command('dask')}`, or set kind: local."
    )


def order(folder, **changes):
    """Return a lease and a worker's pickled order to call a function that adds 1."""
    held = lease.Lease(folder)
    fields = {
        "key": held.token,
        "software": dask_worker.software(),
        "environment": {},
        "lease": str(held.path),
        "token": held.token,
        "make": pickle.dumps(partial(make, folder)),
    }
    return held, pickle.dumps(tuple(dask_worker.Order(**{**fields, **changes})))


def test_a_worker_of_another_version(tmp_path):
    """A worker with other package versions does not start, and the message names the differences."""
    there = {**dask_worker.software(), "nbtrain": "0.0.9 (0123)"}
    _, given = order(tmp_path, software=there)
    with pytest.raises(DataError) as caught:
        dask_worker.run(given, pickle.dumps(1))
    here = dask_worker.software()["nbtrain"]
    assert str(caught.value).partition("): ")[2] == (
        f"nbtrain {here} on the worker, 0.0.9 (0123) in this process. Workers must have the same software as "
        "this process, otherwise shards may differ. Restart the workers in the same Python environment."
    )


def test_a_worker_of_another_file_system(tmp_path, monkeypatch):
    """A worker that cannot see the folder reports that; a worker that starts after the end does nothing."""
    monkeypatch.setattr(lease, "_held", None)
    held = lease.Lease(tmp_path)
    with pytest.raises(
        DataError, match=r"^Dask worker x: cannot see the files in .* on a shared file system"
    ):
        lease.hold(tmp_path / "other.tmp", held.token, "Dask worker x", wait_seconds=0)
    lease.hold(held.path, held.token, "Dask worker x")
    monkeypatch.setattr(lease, "_looked", -1e9)
    lease.stop_if_ended()
    held.end(is_abandoned=True)
    monkeypatch.setattr(lease, "_looked", -1e9)
    with pytest.raises(lease.Ended):
        lease.stop_if_ended()
    with pytest.raises(lease.Ended):
        lease.hold(held.path, held.token, "Dask worker x", wait_seconds=0)
