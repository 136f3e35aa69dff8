"""The public names: what a notebook calls, each one line over a package of the notebook side.

config = nb.load("gpt-tiny")
nb.prepare(config)
nb.plan(config)
run = nb.submit(config)      # a Run: shown in a cell it is the live panel
run.wait()
nb.generate(run, "def ")
"""

import logging
import numbers
import os
import reprlib
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, overload

from nbtrain import amounts, jobstate
from nbtrain.config.load import Overrides
from nbtrain.config.load import load as load_config
from nbtrain.config.schema import RunConfig
from nbtrain.errors import ConfigError, JobError, JobFailed, SubmitError
from nbtrain.rundir import JobDir, ResumeCertificate, RunDir
from nbtrain.widgets.watched import is_watched
from nbtrain.workspace import display, output_root, resolve

if TYPE_CHECKING:
    from nbtrain.data.card import BlendCard, DataCard
    from nbtrain.data.prepare import PrepareReport
    from nbtrain.jobs.registry import RunSummary
    from nbtrain.jobs.twin_report import TwinReport
    from nbtrain.monitor.profiles import Profiles
    from nbtrain.monitor.run_view import RunView
    from nbtrain.planner.plan import Plan
    from nbtrain.widgets.launcher import Launcher
    from nbtrain.widgets.tensorboard import TensorBoardPanel

RunLike = Union[str, Path, RunConfig, "Run"]

LOG_TAIL_LINES = 30
WAIT_POLL_SECONDS = 0.5
WAIT_LINE_SECONDS = 10.0

logger = logging.getLogger(__name__)


class Run:
    """One run on disk, seen from any kernel. Shown in a cell, it is the live panel.

    Everything it tells is read from output/<run>/ at the moment of asking; holding it holds nothing.
    """

    def __init__(self, directory: RunDir):
        self.directory = directory

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.state})"

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def config(self) -> RunConfig:
        from nbtrain.config.load import load_resolved

        return load_resolved(self.directory.config_yaml)

    @property
    def job(self) -> JobDir:
        """The newest job. Raises JobError where nothing was ever submitted."""
        job = self.directory.newest_job()
        if job is None:
            raise JobError(f"{display(self.directory.path)} holds no job yet; nb.submit starts one.")
        return job

    @property
    def state(self) -> str:
        """QUEUED, STARTING, RUNNING, RESTARTING, SUCCEEDED, FAILED, CANCELLED or LOST."""
        return jobstate.read_state(self.job, time.time())[0]

    @property
    def cause(self) -> str | None:
        """One sentence: why the newest job is in its state."""
        return jobstate.read_state(self.job, time.time())[1]

    @property
    def unfinished(self) -> str | None:
        """Where the newest job ended before the run's last step: that, and how it goes on; else None."""
        from nbtrain.jobs.registry import summary_of

        job = self.directory.newest_job()
        state = jobstate.read_state(job, time.time())[0] if job else None
        if state in (None, jobstate.SUCCEEDED, *jobstate.ACTIVE):
            return None
        line = summary_of(self.directory, time.time())
        made = f"{line.step or 0:,} of {amounts.counted(line.total_steps or self.config.train_steps, 'step')}"
        return (
            f"{self.name} is {state} after {made}: figures and texts are those of an unfinished run. "
            f"`nbtrain resume {self.name}` goes on."
        )

    @property
    def view(self) -> "RunView":
        """Progress, events, scalars and logs."""
        from nbtrain.monitor.run_view import RunView

        return RunView(self.directory)

    def wait(self, timeout_seconds: float | None = None) -> "Run":
        """Wait for the newest job's end, with a line of progress every 10 s, and one of what a resume kept.

        Raises JobFailed, with the cause and the end of the log, where it ended in FAILED or LOST, and
        JobError where `timeout_seconds` passed first (the job goes on).
        """
        if timeout_seconds is not None:
            timeout_seconds = _number("timeout_seconds", timeout_seconds)
        started = time.monotonic()
        next_line = started
        told: ResumeCertificate | None = None
        waited = self.state in jobstate.ACTIVE
        while self.state in jobstate.ACTIVE:
            told = self._tell_resume(told)
            now = time.monotonic()
            if timeout_seconds is not None and now - started > timeout_seconds:
                raise JobError(f"{self.name} is still {self.state} after {timeout_seconds:g} s; it goes on.")
            if now >= next_line:
                print(self.progress_line(), flush=True)
                next_line = now + WAIT_LINE_SECONDS
            time.sleep(WAIT_POLL_SECONDS)
        self._tell_resume(told)
        print(self.progress_line(), flush=True)
        if self.state in (jobstate.FAILED, jobstate.LOST):
            raise JobFailed(self.failure())
        if waited and self.unfinished:
            print(self.unfinished, flush=True)
        return self

    def _tell_resume(self, told: ResumeCertificate | None) -> ResumeCertificate | None:
        """Print the newest attempt's certificate where it is another than `told`; returns it."""
        from nbtrain.monitor.run_view import resume_lines

        made = ResumeCertificate.read(self.job.resume_json)
        if made is not None and made != told:
            print("\n".join(resume_lines(self.directory)), flush=True)
        return made

    def wait_if(self, wait: str) -> None:
        """wait() for "yes"; for "auto" only where nobody watches (papermill); nothing for "no"."""
        if wait_wanted(wait):
            self.wait()

    def report(self) -> Any:
        """The state as a static picture that stays in a saved notebook."""
        from IPython.display import HTML

        from nbtrain.widgets.static import run_html

        return HTML(run_html(self.view.snapshot()))

    def failure(self) -> str:
        """The cause of the newest job's end and the last lines of its log.

        Of a full disk the cause says all: the log ends in whatever else of the rank could not write either.
        """
        from nbtrain.jobs.verdict import DISK_IS_FULL

        said = f"{self.name} is {self.state}: {self.cause or 'no cause was recorded'}"
        if DISK_IS_FULL in (self.cause or ""):
            return f"{said}\nIts logs: {display(self.job.supervisor_log.parent)}"
        tail = "\n".join(f"  {line}" for line in self.log(LOG_TAIL_LINES))
        return f"{said}\nEnd of its log:\n{tail}"

    def progress_line(self) -> str:
        """State, step, loss, rate and ETA in one line."""
        from nbtrain.monitor.run_view import progress_line

        return progress_line(self.directory)

    def log(self, lines: int = LOG_TAIL_LINES, rank: int = 0) -> list[str]:
        """The last lines of one rank's log."""
        return self.view.log_tail(lines=_whole("lines", lines), rank=_whole("rank", rank))

    def stop(self, now: bool = False) -> None:
        """Ask the newest job to save and leave; `now` kills it without saving."""
        from nbtrain.jobs.control import cancel

        cancel(self.job, now=now)

    def resume(self, overrides: Overrides = None) -> "Run":
        """Go on from the newest whole checkpoint as a new job, e.g. {"batch.train_tokens": 5e6}."""
        from nbtrain.jobs.submit import resume

        return Run(resume(self.directory, overrides).run)

    def clone(self, name: str, overrides: Overrides = None) -> RunConfig:
        """The configuration of this run under a new name, to be submitted as a run of its own."""
        from nbtrain.jobs.submit import clone

        return clone(self.directory, name, overrides)

    def curves(self) -> Any:
        """Matplotlib figure: loss, validation perplexity, learning rate, throughput."""
        from nbtrain.monitor.pictures import training_curves

        return training_curves(self.view)

    def timing(self) -> Any:
        """Matplotlib figure: where each step's time goes, and the ranks side by side."""
        from nbtrain.monitor.pictures import timing

        return timing(self.view)

    def profile(self) -> "Profiles":
        """What the profiler saw: pictures in a cell, pages when printed. Raises DataError where it did not run."""
        from nbtrain.monitor.profiles import profiles

        return profiles(self.directory)

    def summary(self) -> dict[str, Any]:
        """summary.json of the last end; empty before one."""
        from nbtrain import files

        return files.read_json(self.directory.summary_json) or {}

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from nbtrain.widgets.panel import mimebundle

        return mimebundle(self.view)

    def _ipython_display_(self) -> None:
        from nbtrain.widgets.panel import display_run

        display_run(self.view)


class NotLaunched:
    """A run that this machine is too small for: nothing was submitted. Shown in a cell it says why.

    `shortages` are the missing resources in numbers; `command` starts the run on a machine that has them.
    """

    def __init__(self, config: RunConfig, shortages: list[str], command: str):
        self.config = config
        self.shortages = shortages
        self.command = command

    def __str__(self) -> str:
        lines = "\n".join(f"  - {line}" for line in self.shortages)
        return (
            f"{self.config.name} was not launched: this machine does not suffice.\n{lines}\n"
            f"On a machine that has it:\n  {self.command}"
        )

    __repr__ = __str__

    def wait_if(self, wait: str) -> None:
        """Nothing to wait for."""
        wait_wanted(wait)

    def report(self) -> "Plan":
        """The plan of what was not launched."""
        return plan(self.config)


class TwinRun:
    """What a twin has shown of a run's layout. Printed or shown in a cell it is the table of its checks."""

    def __init__(self, report: "TwinReport"):
        self._report = report

    def __str__(self) -> str:
        return str(self._report)

    __repr__ = __str__

    @property
    def passed(self) -> bool:
        """Every check passed."""
        return self._report.passed

    @property
    def run(self) -> Run:
        """The twin itself, a run as any other."""
        return open_run(self._report.twin)

    def wait_if(self, wait: str) -> None:
        """Nothing to wait for. Raises JobFailed where a check failed, so that a notebook's batch job sees it."""
        wait_wanted(wait)
        if not self.passed:
            raise JobFailed(str(self))

    def report(self) -> Any:
        """Matplotlib figure: the curves, and how far they are from one process."""
        from nbtrain.monitor.twin_picture import draw

        return draw(self._report.to_dict())


def wait_wanted(wait: str) -> bool:
    """Whether a notebook's `wait` parameter means waiting here. Raises ConfigError for another word."""
    if wait not in ("yes", "no", "auto"):
        raise ConfigError(f'wait = {wait!r} must be "yes", "no" or "auto".')
    return wait == "yes" or (wait == "auto" and not is_watched())


def load(run: RunLike, overrides: Overrides = None) -> RunConfig:
    """The checked configuration of a run: a YAML's path, the name of an example, or a Run's own."""
    return load_config(run.config if isinstance(run, Run) else run, overrides)


def prepare(run: RunLike, overrides: Overrides = None, force: bool = False) -> "PrepareReport":
    """Corpus, tokenizer, .bin/.idx and indices of a run: does what is missing and says why."""
    from nbtrain.data.prepare import prepare as prepare_data

    return prepare_data(load(run, overrides), force=force)


def plan(run: RunLike, overrides: Overrides = None) -> "Plan":
    """Parameters, tokens, memory by part, time and disk of a run, before anything starts."""
    from nbtrain.planner.plan import plan as make_plan

    return make_plan(load(run, overrides))


def twin(run: RunLike, overrides: Overrides = None, submitted: bool = False) -> TwinRun:
    """Train a small run of the same shape on this machine's CPU: data, steps, checkpoint, resume, export.

    With `submitted` its straight run goes the ordinary way, through supervisor and torchrun. What fails is in what
    comes back; its wait_if raises.
    """
    from nbtrain.jobs.twin import run_twin

    return TwinRun(run_twin(load(run, overrides), submitted))


@overload
def submit(
    run: RunLike,
    overrides: Overrides = None,
    finished: str = "refuse",
    too_small: Literal["refuse"] = "refuse",
    prepared: bool = True,
) -> Run: ...


@overload
def submit(
    run: RunLike,
    overrides: Overrides = None,
    finished: str = "refuse",
    *,
    too_small: str,
    prepared: bool = True,
) -> Run | NotLaunched: ...


def submit(
    run: RunLike,
    overrides: Overrides = None,
    finished: str = "refuse",
    too_small: str = "refuse",
    prepared: bool = True,
) -> Run | NotLaunched:
    """Start a run as a detached job, join it if it is active, resume it if it ended early.

    A run that has succeeded is refused; with finished="open" it is opened instead, which is what a
    notebook wants that is run a second time. A machine that does not suffice is refused with SubmitError;
    with too_small="explain" nothing is raised and a NotLaunched comes back. With prepared=False, data that
    is missing is prepared first instead of being refused.
    """
    from nbtrain.jobs.submit import submit as submit_job

    if finished not in ("refuse", "open"):
        raise SubmitError(f'finished = {finished!r} must be "refuse" or "open".')
    if too_small not in ("refuse", "explain"):
        raise SubmitError(f'too_small = {too_small!r} must be "refuse" or "explain".')
    config = load(run, overrides)
    directory = RunDir.named(config.name)
    if directory.exists() and directory.newest_job():
        existing = Run(directory)
        if finished == "open" and existing.state == jobstate.SUCCEEDED:
            return existing
        if existing.state in jobstate.ACTIVE:
            # An active job has passed these checks, and holds the memory that they would look for.
            return Run(submit_job(config).run)
    if too_small == "explain" and (missing := _shortages(config)):
        return NotLaunched(config, missing, f"nbtrain submit {shlex.join(config.as_arguments)}")
    if not prepared:
        prepare(config)
    return Run(submit_job(config).run)


def launch(run: RunLike, mode: str = "full") -> Run | NotLaunched | TwinRun:
    """What notebook 03 does: submit a run, joined or opened where it is there and explained where the machine is too
    small; or with mode "twin" train its twin, the straight run of it by the same way.
    """
    if mode not in ("full", "twin"):
        raise ConfigError(
            f'mode = {mode!r} must be "full" or "twin". What a run itself does (mode: perf, mode: eval) is an override.'
        )
    if mode == "twin":
        return twin(run, submitted=True)
    return submit(run, finished="open", too_small="explain", prepared=False)


def _shortages(config: RunConfig) -> list[str]:
    """Everything in the way of a run, if a part of it is this machine; else nothing."""
    from nbtrain.jobs.preflight import preflight

    problems = preflight(config)
    if not any(problem.kind == "resource" for problem in problems):
        return []
    return [str(problem) for problem in problems]


def runs() -> "list[RunSummary]":
    """Every run under the output root with its state, newest first."""
    from nbtrain.jobs.registry import list_runs

    return list_runs()


def open_run(run: RunLike) -> Run:
    """A run by its name, its YAML or its folder, from any kernel."""
    if isinstance(run, Run):
        return run
    if isinstance(run, RunConfig):
        directory = RunDir.named(run.name)
    elif not isinstance(run, str | Path) or not str(run).strip():
        raise _misused("run", run, "the name of a run, the path of its folder or YAML, a RunConfig or a Run")
    else:
        directory = _directory_of(str(run))
    if not directory.exists():
        raise JobError(
            f"{display(directory.path)} is no run directory: it has no run.json. `nbtrain runs` lists the runs"
            f" under {display(output_root())}; nb.submit makes one."
        )
    return Run(directory)


def _directory_of(run: str) -> RunDir:
    for folder in (output_root() / run, resolve(run), Path(run)):
        if (folder / "run.json").is_file():
            return RunDir(folder)
    try:
        return RunDir.named(load_config(run, check=False).name)
    except ConfigError:
        return RunDir(output_root() / run)


def launcher(run: str | None = None, overrides: Overrides = None) -> "Launcher":
    """The launch form: pick a YAML, edit it, see checks, plan and diff, submit. It opens with `overrides` made."""
    from nbtrain.widgets.launcher import Launcher

    return Launcher(run or "gpt-tiny", overrides)


def tensorboard(run: RunLike | None = None) -> "TensorBoardPanel":
    """The live TensorBoard panel of a run, or of every run under the output root."""
    from nbtrain.widgets.tensorboard import TensorBoardPanel

    return TensorBoardPanel(open_run(run).view if run is not None else None)


def generate(
    run: RunLike,
    prompt: str,
    max_new_tokens: int = 100,
    temperature: float = 0.8,
    top_k: int = 40,
    top_p: float = 1.0,
    seed: int | None = 1234,
    step: int | None = None,
) -> str:
    """`prompt` and what the newest checkpoint (or that of `step`) makes of it.

    temperature 0 is greedy; top_k 0 and top_p 1 do not cut. The same seed gives the same text.
    """
    pieces = generate_stream(run, prompt, max_new_tokens, temperature, top_k, top_p, seed, step)
    return prompt + "".join(pieces)


def generate_stream(
    run: RunLike,
    prompt: str,
    max_new_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int | None,
    step: int | None,
) -> Iterator[str]:
    """The new text of `generate`, piece by piece as it is made."""
    from nbtrain.jobs.gpu_side import stream

    if not isinstance(prompt, str):
        raise _misused("prompt", prompt, "text")
    max_new_tokens = _whole("max_new_tokens", max_new_tokens)
    if max_new_tokens < 0:
        raise ConfigError(f"max_new_tokens = {max_new_tokens} must be at least 0.")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the prompt is not Unicode text: character {error.start} is half of one."
        ) from None
    request = {
        "run_dir": str(open_run(run).directory.path),
        "prompt": prompt,
        "max_new_tokens": max_new_tokens,
        "temperature": _number("temperature", temperature),
        "top_k": _whole("top_k", top_k),
        "top_p": _number("top_p", top_p),
        "seed": None
        if seed is None
        else _whole("seed", seed, "a whole number, or None for another text each time"),
        "step": None
        if step is None
        else _whole("step", step, "a whole number, or None for the newest checkpoint"),
    }
    for answer in stream("generation", request):
        if answer["kind"] == "text":
            yield answer["text"]
        elif answer["kind"] == "note":
            logger.warning("%s", answer["message"])


def data_card(data: "str | RunConfig | Run", tokenizer: str | None = None) -> "DataCard | BlendCard":
    """What is in a dataset: a run's, a dataset's name, or the prefix of any .bin/.idx.

    In a live notebook its documents can be leafed through. `tokenizer` is the name or path of one that decodes them;
    None takes that of the dataset's manifest.
    """
    from nbtrain.data.card import data_card as make_card

    if isinstance(data, Run):
        data = data.config
    if not isinstance(data, str | os.PathLike | RunConfig):
        raise _misused("data", data, "a Run, a RunConfig, the name of a dataset or the prefix of a .bin/.idx")
    if tokenizer is not None and not isinstance(tokenizer, str | os.PathLike):
        raise _misused("tokenizer", tokenizer, "the name or path of a tokenizer, or None")
    card = make_card(data, tokenizer)
    if not is_watched():
        return card
    from nbtrain.widgets.data_browser import live

    return live(card)


# --- arguments of the wrong kind ------------------------------------------------------------------------------


def _misused(name: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"{name} = {reprlib.repr(value)} ({type(value).__name__}) must be {expected}.")


def _whole(name: str, value: object, expected: str = "a whole number") -> int:
    """NumPy's whole numbers too, which JSON does not know. Raises ConfigError for anything else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _misused(name, value, expected)
    return int(value)


def _number(name: str, value: object) -> float:
    """As _whole, for any real number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _misused(name, value, "a number")
    return int(value) if isinstance(value, numbers.Integral) else float(value)
