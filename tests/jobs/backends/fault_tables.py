"""Shared code of the backends' fault tables: a scene in which a run suffers a fault, the rows of the table,
and the runner.

    tables = Tables("faults-hosts.md", "tests.jobs...", FAULTS, ...); sys.exit(tables.main(sys.argv[1:]))

Each fault runs in a separate process. Several run at the same time, because they are idle most of the time. A
fault defines how its job must end; if the job ends differently, the fault is reported as failed, and its rows
in the page are not changed.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.run_directory.jobstate import ACTIVE, CANCELLED, FAILED, LOST, SUCCEEDED
from nbtrain.base.run_directory.node_records import NodeExit
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat, JobRecord
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.config.load import load
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.jobs.attempt.backend import status_of
from nbtrain.jobs.submission.submit import submit
from tests.jobs.conftest import FAKE_RANK, TINY
from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[3]
EVIDENCE = REPOSITORY / "docs" / "evidence"
END = "<!-- end -->"
STEP_SECONDS = 0.2
# A rank that is asked to save between two steps saves there; otherwise at most this many steps are repeated.
SAVE_EVERY = 5
RANKS = 4
WRITING = threading.Lock()


class Impossible(Exception):
    """The fault cannot be produced on this machine; its rows in the page are not changed."""


@dataclass
class Scene:
    """A job with 2 x 2 ranks and the fault that happens to it."""

    defaults: dict[str, Any] = field(default_factory=dict)
    """Settings of every run, such as the backend it is submitted to."""
    seen: list[tuple[str, str]] = field(default_factory=list)
    """Every state of the job with its cause, as `nbtrain status` would have printed it."""
    fault_at: float | None = None
    job: JobDir | None = None
    """The submitted job; None if nothing was started."""

    def submit(self, steps: int = 60, fake: bool = True, **settings: Any) -> JobDir:
        """Submit the run with the fake rank or with the real trainer."""
        env = {"FAKE_STEPS": str(steps), "FAKE_STEP_SECONDS": str(STEP_SECONDS), "OMP_NUM_THREADS": "1"}
        env |= {"FAKE_FAULTS": "[]", "FAKE_SAVE_EVERY": str(SAVE_EVERY), "NBTRAIN_TRACE": "1"}
        given = {
            "resources.nodes": 2,
            "resources.cpus_per_node": 2,
            "parallel.data_parallel_size": RANKS,
            "batch.train_tokens": steps * 8 * 16,
            "backend.node_timeout_seconds": 20,
            **self.defaults,
            "backend.env": {**env, **settings.pop("env", {})},
            **settings,
        }
        config = load(Path(os.environ["NBTRAIN_WORKSPACE"]) / "tiny.yaml", given)
        self.job = submit(config, command=(FAKE_RANK,)) if fake else submit(config)
        return self.job

    @property
    def record(self) -> JobRecord:
        assert self.job is not None
        record = JobRecord.read(self.job.job_json)
        assert record is not None
        return record

    @property
    def step(self) -> int:
        """Return the step of rank 0 in the current attempt; 0 before its first heartbeat."""
        assert self.job is not None
        beat = Heartbeat.read(self.job.heartbeat(0))
        return beat.step if beat and beat.attempt == self.record.attempt else 0

    def status(self) -> tuple[str, str]:
        """Return the state and the cause that the user sees, and record every change of state."""
        assert self.job is not None
        state, cause = status_of(self.job)
        if not self.seen or self.seen[-1][0] != state:
            self.seen.append((state, cause or ""))
        return state, cause or ""

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until `condition` returns a true value, and return it. The states of the job are recorded
        meanwhile.
        """

        def look() -> Any:
            self.status()
            return condition()

        return wait_until(look, lambda: f"{what}; states {self.seen}", pause_seconds=0.2)

    def until_step(self, step: int) -> None:
        self.until(lambda: self.step >= step, f"step {step}")

    def until_state(self, *states: str) -> str:
        """Wait until the job is in one of the states and return its cause."""
        self.until(lambda: self.status()[0] in states, " or ".join(states))
        return self.status()[1]

    def end(self) -> tuple[str, str]:
        """Wait until the job ends and return its state and cause."""
        self.until(lambda: self.status()[0] not in ACTIVE, "the end")
        return self.status()

    def fault(self) -> None:
        """Record the current time as the time of the fault."""
        self.fault_at = time.time()

    def rank_failed(self, rank: int) -> None:
        """Use the time at which this rank ended in the first attempt as the time of the fault."""
        assert self.job is not None
        end = ExitRecord.read(self.job.exit_record(rank, 0))
        self.fault_at = end.time if end else None

    @property
    def states(self) -> list[str]:
        return [state for state, _ in self.seen]

    @property
    def bad_states(self) -> set[str]:
        """Return the states seen so far from which a job does not recover by itself."""
        return {LOST, FAILED, CANCELLED} & set(self.states)

    def seconds(self) -> str:
        """Return the seconds between the fault and the time when ranks train again, or "" if they never
        do.
        """
        again = [attempt.running_at for attempt in self.record.attempts if attempt.running_at]
        later = [at for at in again if self.fault_at and at > self.fault_at]
        return f"{later[0] - self.fault_at:.0f}" if later and self.fault_at else ""


@dataclass
class Row:
    """The results of one fault, as shown on the page."""

    reads: str
    """Message that the user reads first."""
    seconds: str
    """Seconds from the fault until ranks train again; "" if they do not recover by themselves."""
    after: str
    """Consequence of the fault, in one sentence."""


@dataclass(frozen=True)
class Fault:
    """A row of the table, and the function that submits its job, causes the fault and checks the outcome."""

    title: str
    make: Callable[[Any], Row]


@dataclass(frozen=True)
class Tables:
    """The two tables of a page in docs/evidence, and the faults in their rows."""

    page: str
    """File name of the page in docs/evidence."""
    module: str
    """Module that defines the faults, as in `python -m`."""
    faults: Mapping[str, Fault]
    scene: Callable[[], contextlib.AbstractContextManager[Scene]]
    """Context manager that sets up the hosts or the cluster to which a run is submitted."""
    missing: Callable[[], str]
    """Function that returns the reason why no scene can be set up here; "" if one can."""
    engine_head: str = ""
    """Heading of the column with the scheduler's exit code; "" if there is no scheduler."""
    engine_code: Callable[[Any, JobDir], str] = lambda scene, job: ""
    plain: Callable[[str], str] = str
    """Function that removes from a row everything that changes whenever the table is made."""
    at_once: int = 3

    @property
    def faults_begin(self) -> str:
        return f"<!-- measured: python -m {self.module} -->"

    @property
    def codes_begin(self) -> str:
        return f"<!-- exit codes: python -m {self.module} -->"

    def main(self, arguments: list[str]) -> int:
        """Run the named faults, or all of them, and return an exit code."""
        if arguments[:1] == ["--one"]:
            return self.suffer(arguments[1], Path(arguments[2]))
        if why := self.missing():
            print(f"not possible here: {why}")
            return 1
        names = arguments or list(self.faults)
        with tempfile.TemporaryDirectory(prefix="faults-data-") as data:
            (Path(data) / "tiny.yaml").write_text(TINY)
            os.environ["NBTRAIN_DATA"] = data
            prepare(load(Path(data) / "tiny.yaml"))
            with ThreadPoolExecutor(self.at_once) as pool:
                ends = list(pool.map(lambda name: (name, self._apart(name, data)), names))
        failed = [name for name, code in ends if code == 1]
        impossible = [name for name, code in ends if code not in (0, 1)]
        said = f"{len(names)} faults, {len(failed)} otherwise than they must be"
        said += f": {', '.join(failed)}" if failed else ""
        print(said + (f"; not possible here: {', '.join(impossible)}" if impossible else ""))
        return min(len(failed), 1)

    def _apart(self, name: str, data: str) -> int:
        """Run one fault in a separate process and write its rows to the page."""
        command = [sys.executable, "-m", self.module, "--one", name, data]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        print(answer.stdout, flush=True)
        if answer.returncode == 0:
            with WRITING:
                for begin, row in json.loads(answer.stdout.splitlines()[-1]).items():
                    self.write(begin, {name: row})
        return answer.returncode

    def suffer(self, name: str, data: Path) -> int:
        """Run one fault and print its rows. Return 0 for success, 1 for failure, and 2 if the fault is
        impossible here.
        """
        fault, began = self.faults[name], time.monotonic()
        with self.scene() as scene, _place(name, data) as workspace:
            try:
                row = fault.make(scene)
            except Impossible as error:
                print(f"{name}: not possible here: {error}")
                return 2
            except Exception:
                print(traceback.format_exc())
                print(f"{name}: FAILED after {time.monotonic() - began:.0f} s; {scene.seen}; {workspace}")
                return 1
            codes = self._codes(fault, scene)
        # Now that the scene is closed, no agent on a lost machine writes its last samples any more.
        shutil.rmtree(workspace)
        print(f"{name}: {time.monotonic() - began:.0f} s, {' '.join(scene.states)}")
        words = row.reads.replace(f"{workspace}/", "").replace("|", "\\|")
        told = f"| {fault.title} | {words} | {row.seconds or 'not by itself'} | {row.after} |"
        rows = {self.faults_begin: told, self.codes_begin: codes}
        print(json.dumps({begin: self.plain(text).replace("\n", " ") for begin, text in rows.items()}))
        return 0

    def _codes(self, fault: Fault, scene: Scene) -> str:
        """Return how the first attempt ended, for each layer that has an exit code."""
        if scene.job is None:
            cells = ["not started", "not started", "none", "nothing was written, 6"]
        else:
            job = JobDir(scene.job.run, scene.job.run.job_ids()[0])
            ranks: dict[str, list[int]] = {}
            for rank in range(RANKS):
                end = ExitRecord.read(job.exit_record(rank, 0))
                code = "no record" if end is None else f"{end.outcome}, {_code(end.exit_code, end.signal)}"
                ranks.setdefault(code, []).append(rank)
            nodes = [NodeExit.read(job.node_exit(node, 0)) for node in range(2)]
            ended = status_of(job)[0]
            cells = [
                "; ".join(f"{_span(who)}: {code}" for code, who in ranks.items()),
                ", ".join("no record" if node is None else str(node.exit_code) for node in nodes),
                self.engine_code(scene, job),
                f"{ended}, {0 if ended == SUCCEEDED else 7}",
            ]
        if not self.engine_head:
            del cells[2]
        return f"| {' | '.join([fault.title, *cells])} |"

    def write(self, begin: str, rows: dict[str, str]) -> None:
        """Replace these rows of the page, and keep all others."""
        heads = ["fault", "what the user reads", "seconds to running again", "after it"]
        if begin == self.codes_begin:
            engine = [self.engine_head] if self.engine_head else []
            heads = ["fault", "ranks of the first attempt", "launcher of node 0, 1", *engine]
            heads.append("state, exit code of `submit --wait`")
        document = EVIDENCE / self.page
        text = document.read_text()
        head, _, rest = text.partition(begin)
        table, _, tail = rest.partition(END)
        known = {line.split(" | ")[0]: line for line in table.splitlines() if line.startswith("| ")}
        lines = [rows.get(name) or known.get(f"| {one.title}", "") for name, one in self.faults.items()]
        body = "\n".join(line for line in lines if line)
        rule = " --- |" * len(heads)
        files.write_text(document, f"{head}{begin}\n| {' | '.join(heads)} |\n|{rule}\n{body}\n{END}{tail}")


def _code(code: int | None, number: int | None) -> str:
    return f"exit code {code}" if number is None else f"signal {number}"


def _span(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


@contextlib.contextmanager
def _place(name: str, data: Path) -> Iterator[Path]:
    """Create a workspace that has a space in its name."""
    folder = Path(tempfile.mkdtemp(prefix=f"fault {name} "))
    (folder / "tiny.yaml").write_text(TINY)
    with environment({"NBTRAIN_WORKSPACE": str(folder), "NBTRAIN_DATA": str(data)}):
        yield folder


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables within the context; the output directory is inside the workspace."""
    before = {key: os.environ.get(key) for key in (*variables, "NBTRAIN_OUTPUT")}
    os.environ.update(variables)
    os.environ.pop("NBTRAIN_OUTPUT", None)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value


def plain_times(text: str) -> str:
    """Replace every date and time by the same fixed one."""
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-01-01 12:00:00", text)
