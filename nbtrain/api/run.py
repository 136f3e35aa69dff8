"""The class Run: a run in a notebook, with its state, logs, curves and actions, and waiting for its end."""

import functools
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from nbtrain.api.arguments import misused, number, wait_wanted, whole_number, whole_or_none
from nbtrain.api.arguments import text as text_of
from nbtrain.base.errors import ConfigError, JobError, JobFailed
from nbtrain.base.printing.notebook import is_watched
from nbtrain.base.run_directory import jobstate
from nbtrain.base.run_directory.records import ResumeCertificate
from nbtrain.base.run_directory.rundir import JobDir, RunDir, runs_like
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display, output_root, resolve, the_workspace
from nbtrain.lab.widgets.watched import note_unfinished

if TYPE_CHECKING:
    from nbtrain.config.load import Overrides
    from nbtrain.config.schema import RunConfig
    from nbtrain.jobs.queue.listing import QueueList
    from nbtrain.monitor.job.job_description import JobDescription
    from nbtrain.monitor.logs.log_search import Hit
    from nbtrain.monitor.run.certificate import RunCertificate
    from nbtrain.monitor.run.pictures import ScalarsTable
    from nbtrain.monitor.run.profiles import Profiles
    from nbtrain.monitor.run.run_view import RunView
    from nbtrain.proof.reproduce import Reproduction


RunLike = Union[str, Path, "RunConfig", "Run"]

LOG_TAIL_LINES = 30
WAIT_POLL_SECONDS = 0.5
WAIT_LINE_SECONDS = 10.0


def _status(job: JobDir) -> tuple[str, str | None]:
    """Return a job's (state, cause). Queries the scheduler if its last response is old."""
    from nbtrain.jobs.attempt.backend import status_of

    return status_of(job)


class Run:
    """A run on disk, usable from any kernel. A notebook cell shows it as the live panel.

    Every property reads the files in output/<run>/ again; a Run object keeps no file open.
    """

    is_launched = True  # It is False in NotLaunched, which nb.launch returns for a run that it cannot start.

    def __init__(self, directory: RunDir):
        self.directory, self._stopped = directory, ""

    def __repr__(self) -> str:
        job = self.directory.newest_job()
        return f"Run({self.name!r}, {'no job' if job is None else _status(job)[0]})"

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def config(self) -> "RunConfig":
        from nbtrain.config.load import load_resolved

        return load_resolved(self.directory.config_yaml)

    @property
    def job(self) -> JobDir:
        """The newest job. Raises JobError if no job was ever submitted."""
        job = self.directory.newest_job()
        if job is None:
            raise JobError(f"{display(self.directory.path)} has no job yet: start one with nb.submit.")
        return job

    @property
    def state(self) -> str:
        """State of the newest job, such as QUEUED, RUNNING, SUSPENDED, SUCCEEDED, FAILED or LOST."""
        return _status(self.job)[0]

    @property
    def cause(self) -> str | None:
        """The reason for the newest job's state, in one sentence."""
        return _status(self.job)[1]

    @property
    def unfinished(self) -> str | None:
        """A message that says how to continue, if the newest job ended before the run's last step or only
        evaluated an earlier step; otherwise None.
        """
        from nbtrain.monitor.status.status_records import read_status
        from nbtrain.monitor.status.steps_left import has_steps_left

        job = self.directory.newest_job()
        state = _status(job)[0] if job else None
        if state is None or state in jobstate.ACTIVE:
            return None
        has_succeeded = state == jobstate.SUCCEEDED
        if has_succeeded and not has_steps_left(self.directory, state):
            return None
        status = read_status(self.directory, time.time())
        steps = amounts.counted(status.total_steps or self.config.train_steps, "step")
        ended = "was evaluated" if has_succeeded else f"is {state}"
        made = f"{status.step or 0:,} of {steps}"
        return (
            f"{self.name} {ended} after {made}: plots and generated texts are from an unfinished run. "
            f"`nbtrain resume {self.name}` continues the run."
        )

    @property
    def view(self) -> "RunView":
        """The run's progress, events, scalars and logs."""
        from nbtrain.monitor.run.run_view import RunView

        return RunView(self.directory)

    def wait(self, timeout_seconds: float | None = None, say: Callable[[str], None] | None = None) -> "Run":
        """Wait for the newest job's end, and print progress when it changes, at most every 10 s.

        After a resume, the first line says what was restored. `say` replaces print. Raises JobFailed, with
        the cause and the end of the log, if the job ended as FAILED or LOST, and JobError if it has not ended
        after `timeout_seconds` (the job continues).
        """
        from nbtrain.lab.engine_watch import look_after

        if timeout_seconds is not None:
            timeout_seconds = number("timeout_seconds", timeout_seconds)
        say = say or functools.partial(print, flush=True)
        started = next_line = time.monotonic()
        last_line = ""
        kept: ResumeCertificate | None = None
        waited = self.state in jobstate.ACTIVE
        while self.state in jobstate.ACTIVE:
            look_after(self.job)
            kept = self._say_resume(kept, say)
            now = time.monotonic()
            if timeout_seconds is not None and now - started > timeout_seconds:
                raise JobError(
                    f"{self.name} is still {self.state} after {timeout_seconds:g} s; its job continues."
                )
            if now >= next_line:
                if (line := self.progress_line()) != last_line:
                    say(line)
                last_line, next_line = line, now + WAIT_LINE_SECONDS
            time.sleep(WAIT_POLL_SECONDS)
        self._say_resume(kept, say)
        if (line := self.progress_line()) != last_line:
            say(line)
        if (panel := sys.modules.get("nbtrain.lab.widgets.panel")) is not None:
            panel.finish_pictures(self.view)
        if self.state in jobstate.FAILURES:
            raise JobFailed(self.failure())
        # An evaluation of an earlier step has succeeded, although the run has steps left.
        self._stopped = "" if self.state == jobstate.SUCCEEDED else self.unfinished or ""
        if waited and self._stopped:
            say(self._stopped)
        return self

    def _say_resume(
        self, said: ResumeCertificate | None, say: Callable[[str], None]
    ) -> ResumeCertificate | None:
        """Print what the newest attempt restored from its checkpoint; return its resume report.

        Prints nothing if the report equals `said`, the report that was printed last. Returns None if the
        attempt restored nothing.
        """
        from nbtrain.base.printing.report import Report
        from nbtrain.monitor.run.status_text import resume_report

        made = ResumeCertificate.read(self.job.resume_json)
        if made is not None and made != said:
            say(str(Report("", resume_report(self.directory))))
        return made

    def wait_if(self, wait: str) -> None:
        """Wait for the newest job with "yes"; with "auto", only under papermill; with "no", return at once.

        If the run is stopped before its end, the following cells still run, and `nbtrain notebook` exits with
        7.
        """
        if wait_wanted(wait):
            self.wait()
            if self._stopped:
                note_unfinished(self._stopped)

    def must_finish(self) -> None:
        """Raise JobFailed if the run was stopped before its end and papermill executes the notebook.

        Call it in the last cell of a notebook.
        """
        if self._stopped and not is_watched():
            raise JobFailed(self._stopped)

    def report(self) -> Any:
        """Return the run's state as HTML with static pictures, which a saved notebook keeps."""
        from IPython.display import HTML

        from nbtrain.lab.widgets.panel import report_html

        return HTML(report_html(self.view))

    def failure(self) -> str:
        """Return the cause of the newest job's end, with the end of a log unless the cause is a full disk.

        The log of the failed rank is shown. If the rank left a traceback, the traceback comes first.
        """
        from nbtrain.base.run_directory.end_kinds import DISK
        from nbtrain.monitor.logs.tracebacks import whose
        from nbtrain.monitor.status.status_records import job_with_end

        said = f"{self.name} is {self.state}: {self.cause or 'no cause was recorded'}"
        record = job_with_end(self.job, time.time())[0]
        if record and record.newest_attempt and record.newest_attempt.reason == DISK:
            return f"{said}\nIts logs: {display(self.job.logs)}"
        rank = self.failed_rank
        tail = "\n".join(f"  {line}" for line in self.log(LOG_TAIL_LINES, rank))
        traceback = textwrap.indent(self.traceback() or "", "  ")
        if traceback and traceback not in tail:
            said += f"\nThe last traceback of {whose(rank)}:\n{traceback}"
        which = f" ({whose(rank)})" if rank else ""
        return f"{said}\nEnd of its log{which}:\n{tail}" if tail else said

    @property
    def failed_rank(self) -> int | str:
        """Rank that failed first in the newest job; 0 if it is not known, "supervisor" if no rank started."""
        from nbtrain.monitor.logs.tracebacks import failed_rank

        return failed_rank(self.job)

    def traceback(self, rank: int | str | None = None, job_id: str | None = None) -> str | None:
        """Return the last traceback in a rank's log, by default the failed rank's; None if there is none."""
        from nbtrain.monitor.logs.tracebacks import failed_rank, last_traceback

        job = self.directory.existing_job(job_id)
        return last_traceback(job, failed_rank(job) if rank is None else self._whose(rank))

    def search(
        self, text: str, rank: int | None = None, ignore_case: bool = False, job_id: str | None = None
    ) -> "Iterator[Hit]":
        """Yield lines that contain `text` from the logs, newest job first.

        `job_id` and `rank` restrict the search. Each result has .job, .log, .line_number and .text. Lines are
        yielded as they are found, and logs may have any size.
        """
        from nbtrain.monitor.logs.log_search import search
        from nbtrain.monitor.logs.logs import checked_rank

        if not text_of("text", text):
            raise ConfigError("the text to search for is empty.")
        ids = [self.directory.existing_job(job_id).job_id] if job_id else reversed(self.directory.job_ids())
        jobs = [self.directory.job(job_id) for job_id in ids]
        rank = whole_or_none("rank", rank, "all ranks")
        if rank:
            checked_rank(self.name, rank, self.config.world_size)
        return search(jobs, text, rank, bool(ignore_case))

    def progress_line(self) -> str:
        """Return state, step, loss, throughput and time left in one line."""
        from nbtrain.monitor.run.status_text import progress_line

        return progress_line(self.directory)

    def log(
        self,
        lines: int = LOG_TAIL_LINES,
        rank: int | str = 0,
        job_id: str | None = None,
        attempt: int | None = None,
    ) -> list[str]:
        """Return the last lines of the log of a rank, of "supervisor" or of a machine such as "node0".

        `job_id` selects a job, by default the newest. `attempt` selects an earlier attempt of a rank, counted
        from 0.
        """
        from nbtrain.jobs.attempt.backend import reader_of_job
        from nbtrain.monitor.logs.logs import log_of_attempt, tail_lines

        lines, rank = whole_number("lines", lines), self._whose(rank)
        if lines < 0:
            raise ConfigError(f"lines = {lines} must be at least 0.")
        job = self.directory.existing_job(job_id) if job_id else self.directory.newest_job()
        if job is None:
            return []
        if attempt is None:
            return reader_of_job(job).logs(job, rank, lines)
        if isinstance(rank, str):
            raise ConfigError(
                f"attempt = {attempt}: only ranks have a log per attempt; {rank} has a single log. Omit "
                "attempt."
            )
        return tail_lines(log_of_attempt(job, rank, whole_number("attempt", attempt)), lines)

    def follow(self, rank: int | str = 0) -> Iterator[str]:
        """Yield the lines that are added to a log of the newest job from now on until the job ends."""
        from nbtrain.jobs.attempt.backend import reader_of_job

        return reader_of_job(self.job).follow(self.job, self._whose(rank))

    def _whose(self, rank: int | str) -> int | str:
        from nbtrain.monitor.logs.logs import NODE, SUPERVISOR, checked_rank

        if isinstance(rank, str) and (rank == SUPERVISOR or NODE.fullmatch(rank)):
            return rank
        number = whole_number("rank", rank)
        # Every run has rank 0, even one whose config.yaml is damaged.
        return checked_rank(self.name, number, self.config.world_size) if number else 0

    @property
    def events(self) -> list[dict[str, Any]]:
        """The newest job's events, oldest first: {"time", "writer", "kind", "message", ...}."""
        from nbtrain.jobs.attempt.backend import reader_of_job

        return reader_of_job(self.job).events(self.job)

    def cancel(self, now: bool = False) -> None:
        """Ask the newest job to save and exit; with `now`, kill it without saving."""
        from nbtrain.jobs.control.control import cancel

        cancel(self.job, now=now)

    stop = cancel

    def save(self, wait_seconds: float | None = None) -> int | None:
        """Make the newest job save a checkpoint. With `wait_seconds`, wait for it and return its step.

        Without `wait_seconds`, returns None at once. The job continues. Raises JobError if the job is not
        active, cannot save, or has not saved in that time.
        """
        from nbtrain.jobs.control.control import request_save

        return request_save(self.job, None if wait_seconds is None else number("wait_seconds", wait_seconds))

    def clean(self, yes: bool = False) -> list[str]:
        """List leftovers of killed jobs: processes, temporary files and incomplete checkpoints.

        With `yes`, they are removed. Raises JobError while a job is active.
        """
        from nbtrain.jobs.control.control import clean

        return clean(self.directory, dry_run=not yes)

    @property
    def labels(self) -> dict[str, str]:
        """Labels from the newest job's submission, with later changes applied."""
        from nbtrain.monitor.status.notes import labels_of

        return labels_of(self.directory)

    def label(self, changes: dict[str, str | None]) -> dict[str, str]:
        """Change labels, e.g. {"team": "nlp", "stage": None}, where None removes a label. Return all labels.

        Raises ConfigError for a label that a submission would refuse.
        """
        from nbtrain.monitor.status.notes import change_notes

        change_notes(self.directory, labels=changes)
        return self.labels

    @property
    def notes(self) -> str:
        """The user's notes about the run."""
        from nbtrain.monitor.status.notes import notes_of

        return notes_of(self.directory).notes

    def note(self, text: str) -> None:
        """Replace the notes, which have at most 10,000 characters; "" removes them."""
        from nbtrain.monitor.status.notes import change_notes

        change_notes(self.directory, notes=text_of("text", text))

    def archive(self, archived: bool = True) -> None:
        """Hide the run from `nbtrain runs` and nb.runs(), or list it again with archived=False.

        The run's files are kept.
        """
        from nbtrain.monitor.status.notes import change_notes

        change_notes(self.directory, archived=archived)

    def pause(self) -> None:
        """Make the newest job save and release its devices; resume() continues the same job."""
        from nbtrain.jobs.control.control import pause

        pause(self.job)

    def resume(self, overrides: "Overrides" = None, try_code: bool = True) -> "Run":
        """Resume from the newest complete checkpoint as a new job, e.g. with {"batch.train_tokens": 5e6}.

        A paused job continues as the same job, unless `overrides` change a setting. `try_code` is
        explained in nb.submit.
        """
        from nbtrain.jobs.submission.submit import resume

        return Run(resume(self.directory, overrides, tries_code=try_code).run)

    def queue(self, priority: int | None = None, now: bool = False) -> "QueueList":
        """Change the waiting job's priority, or with `now` start it alongside the running jobs.

        Returns the queue. Raises JobError if the job is not waiting in this machine's queue, and ConfigError
        if the priority is out of bounds.
        """
        from nbtrain.jobs.queue.listing import list_queue, move

        if priority is not None or now:
            move(self.job, priority, now)
        return list_queue()

    def clone(self, name: str, overrides: "Overrides" = None) -> "RunConfig":
        """Copy this run's configuration to a new run with another name, ready to be submitted."""
        from nbtrain.jobs.submission.clone import clone

        return clone(self.directory, name, overrides)

    def certificate(self) -> "RunCertificate":
        """Return the certificate: hashes of what the run depends on, its losses and its gradient norms."""
        from nbtrain.monitor.run.certificate import make_certificate

        return make_certificate(self.directory)

    def reproduce(
        self, steps: tuple[int, int] | None = None, overrides: "Overrides" = None
    ) -> "Reproduction":
        """Train some steps again, as the run NAME-reproduced, and compare them with the run bit for bit.

        `steps` is (A, B) for the steps after A up to B; the default is the steps after the second-to-last
        checkpoint. A difference raises no error; the result reports it. Raises ConfigError, CheckpointError,
        DataError and JobFailed.
        """
        from nbtrain.proof.reproduce import reproduce

        if steps is not None:
            if not isinstance(steps, Sequence) or len(steps) != 2:
                raise misused("steps", steps, "two whole numbers, e.g. (100, 120)")
            steps = whole_number("steps", steps[0]), whole_number("steps", steps[1])
        return reproduce(self.directory, steps, overrides)

    def delete(self, yes: bool = False, force: bool = False) -> str:
        """Delete the run with all its files. Without `yes`, only return a list of what would be deleted.

        Raises JobError while a job is active, or if other run YAMLs use files of the run, unless `force` is
        set.
        """
        from nbtrain.jobs.control.delete import delete, survey

        if not yes:
            return f"{survey(self.directory, force)}\nNothing was deleted. Pass yes=True to delete the run."
        return f"{delete(self.directory, force)}\nDeleted."

    def curves(self) -> Any:
        """Plot loss, validation perplexity, learning rate and throughput as a Matplotlib figure."""
        from nbtrain.monitor.run.pictures import training_curves

        return training_curves(self.view)

    def scalars(self) -> "ScalarsTable":
        """Return the newest value of every scalar, with its unit, step and meaning."""
        from nbtrain.monitor.run.pictures import scalars_table

        return scalars_table(self.view)

    def timing(self) -> Any:
        """Plot the parts of each step's time, and the ranks' times, as a Matplotlib figure."""
        from nbtrain.monitor.run.pictures import timing

        return timing(self.view)

    def job_page(self, job_id: str | None = None) -> "JobDescription":
        """Return basic facts, conditions, events, replicas and resources of a job, by default the newest.

        The result prints like the output of `nbtrain job`; its to_dict() returns JSON with the curves.
        """
        from nbtrain.monitor.job.job_records import describe_job

        return describe_job(self.directory, job_id)

    def resources(self, job_id: str | None = None) -> Any:
        """Plot a job's use of CPU, memory, GPUs, network and disks over time, with its limits."""
        from nbtrain.monitor.run.usage_picture import usage_figure

        return usage_figure(self.job_page(job_id))

    def profile(self) -> "Profiles":
        """Return the profiler's results; a cell shows pictures. Raises DataError if no step was profiled."""
        from nbtrain.monitor.run.profiles import profiles

        return profiles(self.directory)

    def summary(self) -> dict[str, Any]:
        """Return the content of summary.json, which a job writes at its end; {} before the first job ends."""
        from nbtrain.base import files

        return files.read_json(self.directory.summary_json) or {}

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from nbtrain.lab.widgets.panel import mimebundle

        return mimebundle(self.view)

    def _ipython_display_(self) -> None:
        from nbtrain.lab.widgets.panel import display_run

        display_run(self.view)


def open_run(run: RunLike) -> Run:
    """Open a run by its name, its YAML or its folder, from any kernel."""
    if isinstance(run, Run):
        return run
    if isinstance(run, str | Path) and str(run).strip():
        directory = _directory_of(str(run))
    else:
        # Import the schema only here: it takes longer to load than the rest of `nbtrain status`.
        from nbtrain.config.schema import RunConfig

        if not isinstance(run, RunConfig):
            expected = "the name of a run, the path of its folder or YAML, a RunConfig or a Run"
            raise misused("run", run, expected)
        directory = RunDir.named(run.name)
    if not directory.exists():
        raise JobError(
            f"{display(directory.path)} is not a run: it has no run.json. {the_workspace()} "
            f"{runs_like(directory.name)} `nbtrain submit` starts a run."
        )
    return Run(directory)


def _directory_of(run: str) -> RunDir:
    for folder in (output_root() / run, resolve(run), Path(run)):
        if (folder / "run.json").is_file():
            return RunDir(folder)
    from nbtrain.config.load import load

    try:
        return RunDir.named(load(run, check=False).name)
    except ConfigError:
        return RunDir(output_root() / run)
