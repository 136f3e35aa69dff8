"""`nbtrain twin`: a scaled-down trial run of the same layout that passes every stage on this machine's CPU.

    data       made-up documents -> tokenizer -> .bin/.idx -> indices, created by `prepare`
    train      the twin trains without interruption                        output/<run>-twin/
    resume     the twin stops halfway and new processes resume it; the numbers must be bit-exact
    layout     the twin in fp32 without dropout must match one process, except for the rounding of sums
    precision  the twin in the run's number format must match that process within the format's tolerance
    reshape    one process resumes from a checkpoint of the fp32 run; the loss curve must continue
    export     one process loads the exported weights; it must reach the run's validation loss

Ranks are forked from one process that has already loaded torch (fork_server.py), so a twin takes about a
minute.
"""

import shutil
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from nbtrain.base import files
from nbtrain.base.hardware.cgroup import usable_cores
from nbtrain.base.run_directory.jobstate import SUCCEEDED
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.workspace import data_home, display, suffixed_name
from nbtrain.config.arithmetic.layout_words import layout_words
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.jobs.control.control import wait
from nbtrain.jobs.machine.build_tools import has_compiler
from nbtrain.jobs.machine.environment import package_version, rank_variables
from nbtrain.jobs.submission.submit import submit
from nbtrain.proof.folder import TWIN_OF, abandon, alone, end_job, new_job, renew, write_prompts
from nbtrain.proof.fork_client import Ended, ForkServer, Launch
from nbtrain.proof.report import (
    Check,
    Curve,
    TwinReport,
    check_bitwise,
    check_close,
    check_export,
    check_trained,
)
from nbtrain.proof.shape import Twin, make_twin
from nbtrain.proof.small_sections import SAVE_INTERVAL_STEPS, STEPS, STOP_STEP, Abilities

TRAINER = "nbtrain.train.__main__:main"
EXPORT = "nbtrain.train.twin.export:main"
# Folder in the twin's run directory that contains the compared runs.
PROOF = "proof"
EXPORT_LOG = "export.log"
EXPORT_ANSWER = "export.json"
LAUNCH_SECONDS = 900.0


def run_twin(config: RunConfig, submitted: bool = False, server: ForkServer | None = None) -> TwinReport:
    """Create and train a run's twin, and return the report, which is also written to the twin's directory.

    With `submitted`, the uninterrupted run is submitted as an ordinary job. Without `server`, a fork server
    is started. Raises ConfigError if the run cannot have a twin, SubmitError if the twin's folder belongs to
    another run or is in use, and DataError if the data cannot be created. A failure during training is not
    raised but reported as a failed check.
    """
    with alone(RunDir.named(suffixed_name(config.name, "twin"))):
        if server is not None:
            return _Proof(config, server).report(submitted)
        with ForkServer() as own:
            return _Proof(config, own).report(submitted)


class _Proof:
    """A twin that is being created: its runs by name, how they ended, and the checks so far."""

    def __init__(self, config: RunConfig, server: ForkServer):
        self.started = time.monotonic()
        self.server = server
        self.checks: list[Check] = []
        self.runs: dict[str, RunDir] = {}
        self.serving: dict[str, str] = {}
        """{name of a run: name of the run trained for it}; runs with equal configurations share a run."""
        self.errors: dict[str, str] = {}
        """{name of a failed run: what failed and where its logs are}."""
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}
        """CPU seconds by run, summed over ranks; unlike `seconds`, independent of other load."""
        folder = data_home() / "twin"
        plain = make_twin(config, folder=display(folder))
        self.run = RunDir.named(plain.config.name)
        renew(self.run, TWIN_OF, config.name)
        write_prompts(folder)
        # Prepare the data while the server imports its modules; the data does not depend on its abilities.
        self._prepare(plain)
        fp16 = config.precision.dtype == "fp16" and server.abilities["fp16"]
        self.twin = make_twin(config, Abilities(fp16, has_compiler("CXX", "g++", "clang++")), display(folder))

    def report(self, submitted: bool) -> TwinReport:
        """Train all runs, compare them, write twin.json, and return its content."""
        twin = self.twin
        self._train(submitted)
        self.curves = {name: Curve.of(run) for name, run in self.runs.items()}
        self._compare()
        made = TwinReport(
            run=twin.run,
            twin=twin.config.name,
            ranks=twin.config.world_size,
            layout=layout_of(twin.config),
            folded=twin.folded,
            number_format=format_of(twin.config),
            checks=self.checks,
            not_proven=[vars(entry) for entry in twin.not_proven],
            curves={name: curve.points for name, curve in self.curves.items()},
            seconds=time.monotonic() - self.started,
            created_at=time.time(),
            versions={name: package_version(name) for name in ("nbtrain", "torch", "deepspeed")},
            cores=usable_cores(),
        )
        made.write(self.run)
        return made

    def _prepare(self, twin: Twin) -> None:
        started = time.monotonic()
        done = [prepare(config) for config in (*twin.datasets, twin.config)][-1]
        steps = ", ".join(f"{step.name} {step.action}" for step in done.steps)
        values = {"seconds": time.monotonic() - started}
        self.checks.append(Check("data", "passed", f"dataset {twin.config.data.name}: {steps}", values))

    def _train(self, submitted: bool) -> None:
        """Train all runs, those that need no other run first.

        If the twin itself fails, train no other run.
        """
        twin = self.twin
        job = submit(twin.config) if submitted else None
        different = self._different()
        straight = {"straight": different.pop("straight")}
        if job is None:
            self._launch(straight)
            if "straight" in self.errors:
                return
        self._launch(different)
        if job is not None:
            started = time.monotonic()
            state, cause = wait(job)
            self.seconds["straight"] = time.monotonic() - started
            if state != SUCCEEDED:
                self.errors["straight"] = f"{state}: {cause}; logs: {display(job.log(0, 0).parent)}"

        again = {}
        if "resumed" not in self.errors:
            again["resumed"] = twin.resumed
        if not self._error("exact") and self._take_checkpoint():
            again["reshaped"] = twin.reshaped
        self._launch(again)
        for name in dict.fromkeys(("straight", self.serving["exact"])):
            if name not in self.errors and "reference" not in self.errors:
                self._export(name)

    def _different(self) -> dict[str, RunConfig]:
        """Return the distinct configurations to train, by name; runs with equal configurations share one."""
        twin, different = self.twin, dict[str, RunConfig]()
        wanted = {name: getattr(twin, name) for name in ("resumed", "exact", "rounded", "reference")}
        for name, config in {"straight": twin.config, **wanted}.items():
            same = next((other for other, known in different.items() if known == config), name)
            self.serving[name] = same
            different.setdefault(same, config)
            self.runs[name] = self.run if same == "straight" else RunDir(self.run.path / PROOF / same)
        return different

    def _error(self, name: str) -> str | None:
        """Return how the run or export `name` failed; None if it did not fail."""
        return self.errors.get(self.serving.get(name, name))

    def _take_checkpoint(self) -> bool:
        """Copy a checkpoint from the middle of the run `exact` to the run `reshaped`.

        Return whether the checkpoint exists.
        """
        source = self.runs["exact"].checkpoint(SAVE_INTERVAL_STEPS)
        self.runs["reshaped"] = target = RunDir(self.run.path / PROOF / "reshaped")
        if not source.is_dir():
            self.errors["reshaped"] = f"the run `exact` did not save a checkpoint to {display(source)}"
            return False
        shutil.copytree(source, target.checkpoint(SAVE_INTERVAL_STEPS))
        return True

    def _launch(self, wanted: dict[str, RunConfig]) -> None:
        """Train each of the runs in a new job. Every job's end is recorded, even after an interrupt."""
        try:
            self._launch_all(wanted)
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            cause = "interrupted" if interrupted else f"{type(error).__name__}: {error}".splitlines()[0]
            for name in wanted:
                abandon(self.runs[name], cause)
            raise

    def _launch_all(self, wanted: dict[str, RunConfig]) -> None:
        """Train runs in parallel, with at most as many ranks at the same time as the largest run has."""
        waiting, running = deque(wanted.items()), deque[tuple[str, int, JobDir, Launch]]()
        room = max((config.world_size for config in wanted.values()), default=0)
        while waiting or running:
            free = room - sum(ranks for _, ranks, _, _ in running)
            if waiting and waiting[0][1].world_size <= free:
                name, config = waiting.popleft()
                job = new_job(self.runs[name], config, self.twin.run, self.server.pid)
                launch = self.server.start(
                    config.world_size,
                    TRAINER,
                    [str(job.run.path)],
                    log=job.logs / "{rank}.0.log",
                    environment=rank_variables(config, job, 0, usable_cores()),
                    timeout_seconds=LAUNCH_SECONDS,
                )
                running.append((name, config.world_size, job, launch))
            else:
                name, _, job, launch = running.popleft()
                place = f"logs: {display(job.log(0, 0).parent)}"
                end_job(job, self._note(name, self.server.wait(launch), place))

    def _note(self, name: str, ended: Ended, place: str) -> str | None:
        """Record the time of a launch. If it failed, record the cause with `place`, and return the cause."""
        self.seconds[name] = self.seconds.get(name, 0.0) + ended.seconds
        self.cpu_seconds[name] = self.cpu_seconds.get(name, 0.0) + ended.cpu_seconds
        cause = None if ended.succeeded else cause_of(ended)
        if cause is not None:
            self.errors[name] = f"{cause}; {place}"
        return cause

    def _export(self, name: str) -> None:
        """Export a run's newest weights to one file, and evaluate them with the settings of `reference`."""
        run = self.runs[name]
        log = run.path / EXPORT_LOG
        ended = self.server.run(1, EXPORT, [str(run.path), str(self.runs["reference"].path)], log=log)
        self._note(f"export of {name}", ended, f"log: {display(log)}")

    def _compare(self) -> None:
        number_format, world_size = format_of(self.twin.config), self.twin.config.world_size
        ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
        curves = self.curves
        self._add("train", ["straight"], lambda: check_trained(curves["straight"], STEPS))
        twice = ["resumed", "straight"]
        bitwise = partial(check_bitwise, "resume", stopped_at=STOP_STEP)
        self._add("resume", twice, lambda: bitwise(straight=curves["straight"], resumed=curves["resumed"]))
        self._add_close("layout", "exact", "reference", "fp32", f"fp32, {ranks} compared with one process")
        if number_format != "fp32":
            words = f"{number_format}, compared with fp32"
            self._add_close("precision", "rounded", "reference", number_format, words)
        onward = f"checkpoint of step {SAVE_INTERVAL_STEPS}, saved by {ranks} and resumed in one process"
        self._add_close("reshape", "reshaped", "exact", "fp32", onward)
        self._add_export("export", "straight", number_format)
        if (exact := self.serving.get("exact", "exact")) != "straight":
            self._add_export("export fp32", exact, "fp32")

    def _add_close(self, name: str, ours: str, theirs: str, number_format: str, words: str) -> None:
        def check() -> Check:
            return check_close(name, self.curves[ours], self.curves[theirs], number_format, words)

        self._add(name, [ours, theirs], check)

    def _add_export(self, name: str, run: str, number_format: str) -> None:
        def check() -> Check:
            answer = files.read_json(self.runs[run].export / EXPORT_ANSWER)
            return check_export(name, answer, self.curves[run], number_format)

        self._add(name, [f"export of {run}", run, "reference"], check)

    def _add(self, name: str, needs: list[str], check: Callable[[], Check]) -> None:
        """Add a check that needs the runs `needs` and checks the first of them.

        The check fails if the first run failed, and is skipped if another needed run failed.
        """
        own, *others = needs
        made = self.seconds.get(self.serving.get(own, own))
        if error := self._error(own):
            found = Check(name, "failed", error)
        elif missing := [other for other in others if self._error(other)]:
            found = Check(name, "skipped", f"needs the run `{missing[0]}`, which failed")
        elif made is None:
            found = Check(name, "skipped", f"needs the run `{own}`, which was not trained")
        else:
            found = check()
        self.checks.append(found)
        found.values.setdefault("seconds", made or 0.0)
        found.values["cpu_seconds"] = self.cpu_seconds.get(self.serving.get(own, own), 0.0)


def layout_of(config: RunConfig) -> str:
    """Describe the layout in one line, such as "8 ranks: data 2 x pipeline 4, ZeRO 1"."""
    parallel = config.parallel
    parts = [f"ZeRO {parallel.zero_stage}"]
    if parallel.sequence_parallel:
        parts.append("sequence parallel")
    if parallel.activation_checkpointing.granularity != "none":
        parts.append(f"{parallel.activation_checkpointing.granularity} recomputation")
    ranks = f"{config.world_size} ranks: " if config.world_size > 1 else ""
    return f"{ranks}{layout_words(dict(parallel))}, {', '.join(parts)}"


def format_of(config: RunConfig) -> str:
    """Return the run's number format: fp32, bf16, fp16 or autocast."""
    return "autocast" if config.precision.autocast else config.precision.dtype


def cause_of(ended: Ended) -> str:
    """Describe a failed launch in one line: the exit codes and the last line of the first failed rank."""
    if ended.timed_out:
        return f"the ranks did not finish within {LAUNCH_SECONDS:g} s"
    codes = {rank: code for rank, code in enumerate(ended.exit_codes) if code}
    said = ended.last_output(1)
    if len(codes) > 1 and len(codes) == len(ended.exit_codes) and len(set(codes.values())) == 1:
        how = f"all {len(codes)} ranks ended with code {codes[0]}"
    else:
        how = ", ".join(f"rank {rank} ended with code {code}" for rank, code in codes.items())
    return f"{how}: {said}" if said else how
