"""`nbtrain twin`: a small run of the same shape goes the whole way on this machine's CPU, before a cluster is taken.

    data       made-up documents -> tokenizer -> .bin/.idx -> indices, by `prepare`
    train      the twin, straight                                          output/<run>-twin/
    resume     the same, stopped in the middle and resumed by new processes: equal bit for bit
    layout     the same in fp32 without dropout, against one process: equal to the rounding of sums
    precision  the same in the run's number format, against that process
    reshape    a checkpoint of the fp32 run goes on in one process: the curve goes on
    export     the checkpoint's weights in one file give one process the run's validation loss

Ranks are forked from one process that has torch loaded (fork_server.py), so that all of it takes about a minute; with
`submit` the straight run goes the ordinary way instead: preflight, supervisor, torchrun, wrappers. What comes out is
output/<run>-twin/twin.json. The twin's folder is made anew every time.
"""

import json
import os
import random
import shutil
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from nbtrain import files
from nbtrain.config.load import to_yaml
from nbtrain.config.schema import RunConfig
from nbtrain.config.twin import (
    NUM_DOCUMENTS,
    SAVE_INTERVAL_STEPS,
    STEPS,
    STOP_STEP,
    Abilities,
    Twin,
    make_twin,
)
from nbtrain.data.prepare import prepare
from nbtrain.errors import SubmitError
from nbtrain.jobs.environment import package_version, rank_variables, usable_cores
from nbtrain.jobs.fork_server import Ended, ForkServer, Launch
from nbtrain.jobs.submit import active_job, refuse_foreign, submit
from nbtrain.jobs.twin_report import (
    Check,
    Curve,
    TwinReport,
    check_bitwise,
    check_close,
    check_export,
    check_trained,
)
from nbtrain.jobstate import ACTIVE, FAILED, RUNNING, SUCCEEDED, read_state
from nbtrain.rundir import SCHEMA_VERSION, JobDir, JobRecord, ProcessIdentity, RunDir, new_job_id, new_run_id
from nbtrain.workspace import data_home, display

TRAINER = "nbtrain.train.__main__:main"
EXPORT = "nbtrain.train.twin_export:main"
# A key of run.json that says: this folder may be made anew.
TWIN_OF = "twin_of"
# Below the twin's run directory: the runs that it is compared with.
PROOF = "proof"
HARMLESS_ENTRIES = frozenset({"notebooks"})
EXPORT_LOG = "export.log"
EXPORT_ANSWER = "export.json"
PROMPTS = 2
LAUNCH_SECONDS = 300.0
POLL_SECONDS = 0.2


def run_twin(config: RunConfig, submitted: bool = False, server: ForkServer | None = None) -> TwinReport:
    """Make the twin of a run, train it, and say what was proven; the report is in its run directory too.

    `submitted` sends the straight run the ordinary way. `server` is used where one is given, else one is started. Raises
    ConfigError where no twin can be made, SubmitError where its folder is something else or in use, DataError where its
    data cannot be made. What goes wrong while training is in the report.
    """
    if server is not None:
        return _Proof(config, server).report(submitted)
    with ForkServer() as own:
        return _Proof(config, own).report(submitted)


def has_compiler() -> bool:
    """Whether torch.compile finds a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++"))


class _Proof:
    """One twin on its way: its runs by name, how they ended, and what was found."""

    def __init__(self, config: RunConfig, server: ForkServer):
        self.started = time.monotonic()
        self.server = server
        self.checks: list[Check] = []
        self.runs: dict[str, RunDir] = {}
        self.errors: dict[str, str] = {}
        """By run: how it ended badly, and where to look."""
        self.seconds: dict[str, float] = {}
        folder = data_home() / "twin"
        plain = make_twin(config, folder=display(folder))
        self.run = RunDir.named(plain.config.name)
        renew(self.run, config.name)
        write_prompts(folder)
        # The server's imports go on meanwhile: the data does not depend on what it can train.
        self._prepare(plain)
        fp16 = config.precision.dtype == "fp16" and server.abilities["fp16"]
        self.twin = make_twin(config, Abilities(fp16, has_compiler()), display(folder))

    def report(self, submitted: bool) -> TwinReport:
        """Train everything, compare, write twin.json."""
        twin = self.twin
        self._train(submitted)
        curves = {name: Curve.of(run) for name, run in self.runs.items()}
        self._compare(curves)
        made = TwinReport(
            run=twin.run,
            twin=twin.config.name,
            ranks=twin.config.world_size,
            layout=layout_of(twin.config),
            folded=twin.folded,
            number_format=format_of(twin.config),
            checks=self.checks,
            not_proven=[vars(entry) for entry in twin.not_proven],
            curves={name: curve.points for name, curve in curves.items()},
            seconds=time.monotonic() - self.started,
            created_at=time.time(),
            versions={name: package_version(name) for name in ("nbtrain", "torch", "deepspeed")},
            cores=usable_cores(),
        )
        made.write(self.run)
        return made

    # --- making -------------------------------------------------------------------------------------------------

    def _prepare(self, twin: Twin) -> None:
        started = time.monotonic()
        done = [prepare(config) for config in (*twin.datasets, twin.config)][-1]
        steps = ", ".join(f"{step.name} {step.action}" for step in done.steps)
        self.checks.append(
            Check(
                "data",
                "passed",
                f"dataset {twin.config.data.name}: {steps}",
                {"seconds": time.monotonic() - started},
            )
        )

    def _train(self, submitted: bool) -> None:
        """All runs, those that need nothing of another first."""
        twin = self.twin
        job = submit(twin.config) if submitted else None
        wanted = {
            "straight": twin.config,
            "resumed": twin.resumed,
            "exact": twin.exact,
            "rounded": twin.rounded,
            "reference": twin.reference,
        }
        different: dict[str, RunConfig] = {}
        for name, config in wanted.items():
            # One run serves for all that ask for the same.
            same = next((other for other, known in different.items() if known == config), None)
            if same is None:
                different[name] = config
                self.runs[name] = self.run if name == "straight" else self._proof(name)
            else:
                self.runs[name] = self.runs[same]
        if job is not None:
            del different["straight"]
        self._launch(different)
        if job is not None:
            self._wait(job)

        again = {}
        if "resumed" not in self.errors:
            again["resumed"] = twin.resumed
        if self._take_checkpoint():
            again["reshaped"] = twin.reshaped
        self._launch(again)
        self._export({self.runs[name].name: self.runs[name] for name in ("straight", "exact")})

    def _proof(self, name: str) -> RunDir:
        return RunDir(self.run.path / PROOF / name)

    def _take_checkpoint(self) -> bool:
        """Give the run that goes on in one process a checkpoint of the middle."""
        source, self.runs["reshaped"] = (
            self.runs["exact"].checkpoint(SAVE_INTERVAL_STEPS),
            self._proof("reshaped"),
        )
        if not source.is_dir():
            self.errors["reshaped"] = f"{display(source)} is not there"
            return False
        shutil.copytree(source, self.runs["reshaped"].checkpoint(SAVE_INTERVAL_STEPS))
        return True

    def _launch(self, wanted: dict[str, RunConfig]) -> None:
        """A job of each run; several at one time where their ranks are together no more than the largest run's."""
        waiting, running = deque(wanted.items()), deque[tuple[str, int, JobDir, Launch]]()
        room = max((config.world_size for config in wanted.values()), default=0)
        while waiting or running:
            free = room - sum(ranks for _, ranks, _, _ in running)
            if waiting and waiting[0][1].world_size <= free:
                name, config = waiting.popleft()
                job = new_job(self.runs[name], config, self.twin.run)
                launch = self.server.start(
                    config.world_size,
                    TRAINER,
                    [str(job.run.path)],
                    log=job.path / "logs" / "{rank}.0.log",
                    environment=rank_variables(config, job, 0, usable_cores()),
                    timeout_seconds=LAUNCH_SECONDS,
                )
                running.append((name, config.world_size, job, launch))
            else:
                name, _, job, launch = running.popleft()
                self._note(name, job, self.server.wait(launch))

    def _note(self, name: str, job: JobDir, ended: Ended) -> None:
        """How one launch ended: in its job.json, and here where it was bad."""
        self.seconds[name] = self.seconds.get(name, 0.0) + ended.seconds
        cause = None if ended.succeeded else _cause(ended)
        end_job(job, cause)
        if cause is not None:
            log = display(job.log(0, 0).parent)
            self.errors[name] = f"{cause}; logs: {log}"

    def _wait(self, job: JobDir) -> None:
        """For the end of the run that went the ordinary way."""
        started = time.monotonic()
        while (state := read_state(job, time.time()))[0] in ACTIVE:
            time.sleep(POLL_SECONDS)
        self.seconds["straight"] = time.monotonic() - started
        if state[0] != SUCCEEDED:
            self.errors["straight"] = f"{state[0]}: {state[1]}; logs: {display(job.log(0, 0).parent)}"

    def _export(self, runs: dict[str, RunDir]) -> None:
        """Each run's newest weights through one file into one process, which has `reference`'s configuration."""
        reference = self.runs["reference"]
        for run in runs.values():
            name = _export_of(run)
            log = run.path / EXPORT_LOG
            ended = self.server.run(1, EXPORT, [str(run.path), str(reference.path)], log=log)
            if not ended.succeeded:
                self.errors[name] = f"{_cause(ended)}; log: {display(log)}"

    # --- comparing ----------------------------------------------------------------------------------------------

    def _compare(self, curves: dict[str, Curve]) -> None:
        number_format = format_of(self.twin.config)
        straight, exact, reference = curves["straight"], curves["exact"], curves["reference"]
        ranks = "1 rank" if self.twin.config.world_size == 1 else f"{self.twin.config.world_size} ranks"

        def add(name: str, needs: tuple[str, ...], check: Callable[[], Check]) -> None:
            own, *others = needs
            if error := self.errors.get(own):
                self.checks.append(Check(name, "failed", error))
            elif missing := [other for other in others if other in self.errors]:
                self.checks.append(Check(name, "skipped", f"the run `{missing[0]}` did not end well"))
            else:
                made = check()
                made.values.setdefault("seconds", self.seconds.get(own, 0.0))
                self.checks.append(made)

        add("train", ("straight",), lambda: check_trained(straight, STEPS))
        add(
            "resume",
            ("resumed", "straight"),
            lambda: check_bitwise("resume", straight, curves["resumed"], STOP_STEP),
        )
        add(
            "layout",
            ("exact", "reference"),
            lambda: check_close("layout", exact, reference, "fp32", f"fp32, {ranks} against one process"),
        )
        if number_format != "fp32":
            add(
                "precision",
                ("rounded", "reference"),
                lambda: check_close(
                    "precision", curves["rounded"], reference, number_format, f"{number_format}, against fp32"
                ),
            )
        add(
            "reshape",
            ("reshaped", "exact"),
            lambda: check_close(
                "reshape",
                curves["reshaped"],
                exact,
                "fp32",
                f"step {SAVE_INTERVAL_STEPS} of {ranks}, on in one process",
            ),
        )
        add(
            "export",
            (_export_of(self.run), "straight", "reference"),
            lambda: self._exported(self.run, straight, number_format),
        )
        if (exact_run := self.runs["exact"]) is not self.run:
            needs = (_export_of(exact_run), "exact", "reference")
            add("export fp32", needs, lambda: self._exported(exact_run, exact, "fp32"))

    def _exported(self, run: RunDir, curve: Curve, number_format: str) -> Check:
        answer = files.read_json(run.export / EXPORT_ANSWER)
        assert answer is not None
        name = "export" if run is self.run else "export fp32"
        return check_export(name, answer, curve, number_format)


def _export_of(run: RunDir) -> str:
    return f"export of {run.name}"


# --- the folder -------------------------------------------------------------------------------------------------


def renew(run: RunDir, twin_of: str) -> None:
    """An empty folder for a twin, with its run.json. Raises SubmitError where there is something else, or a job runs."""
    refuse_foreign(run)
    record = run.record()
    if record is not None and TWIN_OF not in record:
        raise SubmitError(
            f"{display(run.path)} is a run of its own, not a twin: it has been submitted. Rename that run's folder, or "
            f"give {twin_of} another name."
        )
    run.path.mkdir(parents=True, exist_ok=True)
    with run.locked(blocking=False) as taken:
        if not taken or active_job(run):
            raise SubmitError(
                f"{display(run.path)}: a job of this twin is active. Wait for it, or end it: `nbtrain cancel {run.name} --now`."
            )
        for entry in run.path.iterdir():
            if entry.name in HARMLESS_ENTRIES:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        write_identity(run, twin_of)


def write_identity(run: RunDir, twin_of: str) -> None:
    """run.json of a twin, or of a run that it is compared with."""
    identity = {
        "schema_version": SCHEMA_VERSION,
        "run_id": new_run_id(),
        "name": run.name,
        "parent": None,
        "created_at": time.time(),
        TWIN_OF: twin_of,
    }
    files.write_json(run.run_json, identity)


def new_job(run: RunDir, config: RunConfig, twin_of: str) -> JobDir:
    """One more job of a run whose ranks are forked; this process stands in job.json for the supervisor."""
    run.path.mkdir(parents=True, exist_ok=True)
    if not run.exists():
        write_identity(run, twin_of)
    files.write_text(run.config_yaml, to_yaml(config))
    moment = time.time()
    newest = max((job_id[:15] for job_id in run.job_ids()), default="")
    while (job_id := new_job_id(moment))[:15] <= newest:
        moment += 1
    job = run.job(job_id)
    job.make_folders()
    identity = run.record()
    assert identity is not None
    now = time.time()
    record = JobRecord(job_id, identity["run_id"], run.name, RUNNING, now, config.world_size, started_at=now)
    record.supervisor = ProcessIdentity.of(os.getpid())
    record.write(job.job_json)
    return job


def end_job(job: JobDir, cause: str | None) -> None:
    """Write down how the ranks of new_job ended; `cause` where it was bad."""
    record = JobRecord.read(job.job_json)
    assert record is not None
    record.state = SUCCEEDED if cause is None else FAILED
    record.cause = cause or "a launch of a twin: its ranks ended in order"
    record.ended_at = time.time()
    record.write(job.job_json)


def write_prompts(folder: Path) -> None:
    """Examples with prompts and completions, the same every time, for the twins of fine-tuning runs."""
    for number in range(PROMPTS):
        path = folder / f"prompts-{number}.jsonl"
        if path.is_file():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        generator = random.Random(number)
        lines = []
        for _ in range(NUM_DOCUMENTS):
            one, other = generator.randint(0, 99), generator.randint(0, 99)
            lines.append(json.dumps({"prompt": f"{one} and {other} are ", "completion": f"{one + other}."}))
        files.write_text(path, "\n".join(lines) + "\n")


# --- words ------------------------------------------------------------------------------------------------------


def layout_of(config: RunConfig) -> str:
    """The kinds of parallelism that are there, e.g. "8 ranks: 2 data x 4 pipeline, ZeRO 1"."""
    parallel = config.parallel
    sizes = {
        "data": parallel.data_parallel_size,
        "pipeline": parallel.pipeline_parallel_size,
        "tensor": parallel.tensor_parallel_size,
        "Ulysses": parallel.ds_sequence_parallel_size,
    }
    axes = " x ".join(f"{size} {name}" for name, size in sizes.items() if size > 1) or "one process"
    parts = [f"ZeRO {parallel.zero_stage}"]
    if parallel.sequence_parallel:
        parts.append("sequence parallel")
    if parallel.activation_checkpointing.granularity != "none":
        parts.append(f"{parallel.activation_checkpointing.granularity} recomputation")
    ranks = f"{config.world_size} ranks: " if config.world_size > 1 else ""
    return f"{ranks}{axes}, {', '.join(parts)}"


def format_of(config: RunConfig) -> str:
    """fp32, bf16, fp16 or autocast."""
    return "autocast" if config.precision.autocast else config.precision.dtype


def _cause(ended: Ended) -> str:
    if ended.timed_out:
        return f"not done after {LAUNCH_SECONDS:g} s"
    codes = ", ".join(f"rank {rank}: {code}" for rank, code in enumerate(ended.exit_codes) if code)
    last = ended.last_words(1)
    return f"exit codes {codes}" + (f"; {last}" if last else "")
