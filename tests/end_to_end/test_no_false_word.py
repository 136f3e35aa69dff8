"""However a job ends, the sentence in the browser agrees with the checkpoint on disk.

Real runs of two ranks end in every way. After each, the notebook's panel, the run's tab and the list show the
same cause. Their claims are compared with the files (claims.py), and Resume continues from exactly the
promised step.
"""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.jobstate import FINAL
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.records import Heartbeat, JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.jobs.control import control
from nbtrain.jobs.machine import processes
from nbtrain.jobs.submission.submit import submit
from nbtrain.monitor.runs.runs import shorter
from tests.disks import mounted_disk
from tests.end_to_end.claims import check_claims, newest_whole
from tests.end_to_end.jupyterlab import (
    Lab,
    open_notebook,
    run_cell,
    screenshot,
    stop_at_once,
    write_notebook,
)
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.soak]

STOP_SECONDS = 4
SETTINGS = {
    "model.num_layers": 2,
    "model.hidden_size": 128,
    "model.seq_length": 32,
    "tokenizer.name": "mock",
    "tokenizer.vocab_size": 512,
    "data.name": "mock",
    "data.sources": [{"kind": "mock"}],
    "batch.micro_batch_size": 2,
    "batch.global_batch_size": 4,
    "batch.train_tokens": 500_000 * 4 * 32,
    "parallel.data_parallel_size": 2,
    "evaluation.eval_iters": 0,
    "checkpoint.save_interval_steps": 20,
    "backend.max_restarts": 0,
    "backend.share_devices": True,
    "backend.disk_wait_seconds": 0,
}


@pytest.fixture(scope="module")
def home(lab: Lab) -> Iterator[Lab]:
    """Prepare the data and make this process use the JupyterLab's folders."""
    names = ("NBTRAIN_OUTPUT", "NBTRAIN_DATA", "NBTRAIN_WORKSPACE")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setenv(name, lab.environment[name])
        prepare(load("gpt-tiny", SETTINGS))
        yield lab


@dataclass
class Ending:
    """A way in which a job ends, and what the pages must show."""

    act: Callable[["Watched"], Any]
    """Function that ends the job."""
    state: str
    says: str
    """Part of the cause that is shown."""
    settings: dict[str, Any] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    from_step: int | None = 47
    """Step to wait for before the job is ended; None ends it while it starts."""
    resumes: bool = True


@dataclass
class Watched:
    """A job and the pages that show it."""

    job: JobDir
    notebook: Any
    tab: Any

    @property
    def run(self) -> RunDir:
        return self.job.run

    @property
    def panel(self) -> Any:
        """Return the run's panel in the notebook."""
        return self.notebook.locator(f".nbtrain-panel[data-run='{self.run.name}']")

    @property
    def supervisor(self) -> int:
        record = JobRecord.read(self.job.job_json)
        assert record is not None and record.supervisor is not None
        return record.supervisor.pid

    def rank(self, rank: int) -> int:
        beat = Heartbeat.read(self.job.heartbeat(rank))
        assert beat is not None
        return beat.process.pid

    def stop(self) -> None:
        stop_at_once(self.panel)

    def whole(self) -> set[int]:
        return {step for step in self.run.checkpoint_steps() if self.run.checkpoint_manifest(step).exists()}

    def torn(self) -> bool:
        return bool(set(self.run.checkpoint_steps()) - self.whole())

    def when(self, condition: Callable[[], bool], number: int, rank: int = 0) -> threading.Thread:
        """Send a signal to a rank as soon as `condition` holds, fast enough to hit the middle of a save."""
        pid = self.rank(rank)

        def look() -> None:
            wait_until(condition, "the moment of the signal", pause_seconds=0.0)
            os.kill(pid, number)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        return thread


def stop_and_freeze(watched: Watched) -> None:
    """Stop the job while a rank hangs before it saves, so that the supervisor kills
    it after its time limit.
    """
    os.kill(watched.rank(1), signal.SIGSTOP)
    watched.stop()


def stop_and_freeze_in_save(watched: Watched) -> None:
    thread = watched.when(watched.torn, signal.SIGSTOP)
    watched.stop()
    thread.join(PATIENCE_SECONDS)
    assert watched.torn(), "the save was over before the rank was stopped"


def stop_and_freeze_after_save(watched: Watched) -> None:
    """Make a rank hang right after a save; the checkpoint counts, because its manifest is written."""
    thread = watched.when(lambda: bool(watched.whole()), signal.SIGSTOP)
    watched.stop()
    thread.join(PATIENCE_SECONDS)


def kill_in_save(watched: Watched) -> None:
    watched.when(watched.torn, signal.SIGKILL).join(PATIENCE_SECONDS)


def kill_all(watched: Watched) -> None:
    """Kill all processes, as a machine failure does; none can write a final message."""
    os.kill(watched.supervisor, signal.SIGKILL)
    for pid in processes.marked_pids([watched.job.job_id]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_supervisor(watched: Watched) -> None:
    os.kill(watched.supervisor, signal.SIGKILL)
    wait_until(lambda: not processes.marked_pids([watched.job.job_id]), "ranks are left")


def fill_disk(watched: Watched) -> None:
    with contextlib.suppress(OSError), (watched.run.path / "ballast").open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(1 << 20))


def nothing(_: Watched) -> None:
    """Do nothing, because the job ends by itself."""


ENDINGS = {
    "stopped-in-time": Ending(Watched.stop, "CANCELLED", "; saved"),
    "stopped-while-it-starts": Ending(Watched.stop, "CANCELLED", "stopped on request while", from_step=None),
    "stopped-late": Ending(stop_and_freeze, "CANCELLED", "ranks were killed "),
    "stopped-late-in-the-save": Ending(stop_and_freeze_in_save, "CANCELLED", "ranks were killed "),
    "stopped-late-after-the-save": Ending(
        stop_and_freeze_after_save,
        "CANCELLED",
        "saved",
        {"checkpoint.save_interval_steps": 100_000},
    ),
    "stopped-late-and-nothing-saved": Ending(
        stop_and_freeze, "CANCELLED", "ranks were killed ", {"checkpoint.save_interval_steps": 100_000}
    ),
    "rank-killed": Ending(lambda it: os.kill(it.rank(1), signal.SIGKILL), "FAILED", "killed by SIGKILL"),
    "rank-killed-in-the-save": Ending(kill_in_save, "FAILED", "killed by SIGKILL"),
    "rank-killed-in-a-background-save": Ending(
        kill_in_save, "FAILED", "killed by SIGKILL", {"checkpoint.async_save": True}
    ),
    "supervisor-killed": Ending(kill_supervisor, "LOST", "died without a message"),
    "all-killed": Ending(kill_all, "LOST", "died without a message"),
    "exception": Ending(
        nothing,
        "FAILED",
        "RuntimeError: boom",
        faults=[{"step": 53, "do": "raise", "rank": 1, "message": "boom"}],
    ),
    "exception-and-nothing-saved": Ending(
        nothing,
        "FAILED",
        "RuntimeError: boom",
        faults=[{"step": 7, "do": "raise", "rank": 1, "message": "boom"}],
        from_step=None,
    ),
    "disk-full": Ending(fill_disk, "FAILED", "the disk is full"),
    "limit": Ending(
        nothing, "CANCELLED", "is reached at step", {"batch.exit_interval_steps": 33}, from_step=None
    ),
    "all-steps": Ending(
        nothing,
        "SUCCEEDED",
        "all steps are trained and saved",
        {"batch.train_tokens": 50 * 4 * 32, "lr_schedule.lr_warmup_tokens": 640},
        from_step=None,
        resumes=False,
    ),
}


@pytest.fixture(scope="module")
def pages(home: Lab, browser: Any) -> Iterator[tuple[Any, Any]]:
    """Open a notebook with a cell for each run, and JupyterLab in a second browser with its own login."""
    cells = [f'nb.open_run("{name}")' for name in ENDINGS]
    write_notebook(home, "truth.ipynb", "import nbtrain as nb", *cells)
    contexts = [browser.new_context(viewport={"width": 1400, "height": 1000}) for _ in range(2)]
    notebook, tab = (context.new_page() for context in contexts)
    for page in (notebook, tab):
        page.set_default_timeout(1000 * PATIENCE_SECONDS)
    open_notebook(notebook, home, "truth.ipynb")
    run_cell(notebook, 0)
    tab.goto(home.url("lab/workspaces/second?reset"))
    tab.locator(".jp-Launcher").wait_for()
    yield notebook, tab
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", ENDINGS)
def test_what_the_browser_says_is_what_is_saved(home: Lab, pages: tuple[Any, Any], name: str) -> None:
    ending, run = ENDINGS[name], RunDir.named(name)
    with mounted_disk(run.path, "400m") if name == "disk-full" else contextlib.nullcontext():
        environment = {
            "NBTRAIN_TRACE": "1",
            "OMP_NUM_THREADS": "1",
            "NBTRAIN_FAULTS": json.dumps(ending.faults),
        }
        settings = {**SETTINGS, "name": name, "backend.env": environment, **ending.settings}
        settings["backend.shutdown_timeout_seconds"] = STOP_SECONDS if "late" in name else 300
        job = submit(load("gpt-tiny", settings))
        try:
            end_and_compare(Watched(job, *pages), ending)
        finally:
            with contextlib.suppress(Exception):
                control.cancel(run.newest_job(), now=True)


def end_and_compare(watched: Watched, ending: Ending) -> None:
    job, run, page, tab = watched.job, watched.run, watched.notebook, watched.tab
    run_cell(page, 1 + list(ENDINGS).index(run.name))
    into_view(watched.panel)
    tab.evaluate("(name) => void window.nbtrainHost.openRun(name)", run.name)
    if ending.from_step is not None:
        wait_until(
            lambda: step_of(job) >= ending.from_step,
            lambda: f"{step_of(job)}: {read_state(job, time.time())}",
        )
    ending.act(watched)
    state, cause = wait_until(lambda: ended(job), lambda: f"at step {step_of(job)}")
    assert state == ending.state and cause is not None and ending.says in cause, (state, cause)

    # The same text in the notebook, in the run's tab and in the list, and none that the disk contradicts.
    head = tab.locator(f".nbtrain-RunView [data-run='{run.name}']")
    into_view(watched.panel)
    said = [said_in(view, state, cause) for view in (watched.panel, head)]
    screenshot(page, f"false-word-{run.name}")
    tab.evaluate("() => void window.nbtrainHost.openRuns()")
    row = tab.locator(f".nbtrain-RunsView tr[data-run='{run.name}']")
    row.locator(".nbt-pill", has_text=state).wait_for()
    listed = row.locator("[data-column=about]").inner_text()
    assert cause in listed or shorter(cause) in listed
    print(f"{run.name}: {state}: {cause}")
    for text in said:
        print("   ", check_claims(text, run))
    if not ending.resumes:
        # The button keeps its place, with the reason why it is off.
        assert watched.panel.locator(".nbt-resume").get_attribute("title")
        assert watched.panel.locator(".nbt-resume").is_disabled()
        return

    # The promised step is the one that follows.
    saved = newest_whole(run)
    (run.path / "ballast").unlink(missing_ok=True)
    tab.evaluate("(name) => void window.nbtrainHost.openRun(name)", run.name)
    head.locator(".nbt-head .nbt-resume").click()
    again = wait_until(lambda: other_job(run, job), head.inner_text)
    first = wait_until(lambda: first_step(again), lambda: str(read_state(again, time.time())))
    assert first == (saved or 0) + 1
    # Its supervisor records it a moment later.
    record = wait_until(lambda: resumed(again), lambda: again.job_json.read_text())
    assert (record.resumed_from_step or 0) == (saved or 0)


def into_view(view: Any) -> None:
    """Scroll to `view`, repeatedly if JupyterLab replaces its cell meanwhile."""
    from playwright.sync_api import Error

    for attempt in range(5):
        try:
            return view.scroll_into_view_if_needed()
        except Error as error:
            if attempt == 4 or "not attached" not in error.message:
                raise


def said_in(view: Any, state: str, cause: str) -> str:
    """Wait until a page shows that its run ended; return the text of its head and of its Resume button."""
    words = [" ".join(cause.split()), state]

    def text() -> str:
        return " ".join(view.locator(".nbt-top").inner_text().split())

    wait_until(lambda: all(word in text() for word in words), lambda: f"{text()}, not {words}")
    promise = view.locator(".nbt-head .nbt-resume")
    return f"{text()} {promise.get_attribute('title') if promise.count() else ''}"


def step_of(job: JobDir) -> int:
    beat = Heartbeat.read(job.heartbeat(0))
    return (beat.step or 0) if beat else 0


def ended(job: JobDir) -> tuple[str, str | None] | None:
    state, cause = read_state(job, time.time())
    return (state, cause) if state in FINAL or state == "LOST" else None


def resumed(job: JobDir) -> JobRecord | None:
    record = JobRecord.read(job.job_json)
    return record if record is not None and record.state == "RUNNING" else None


def other_job(run: RunDir, job: JobDir) -> JobDir | None:
    newest = run.newest_job()
    return newest if newest is not None and newest.job_id != job.job_id else None


def first_step(job: JobDir) -> int | None:
    """Return the first step that the job trained."""
    state, cause = read_state(job, time.time())
    assert state not in FINAL, cause
    return next((event["step"] for event in read_events(job) if event["kind"] == "trace"), None)
