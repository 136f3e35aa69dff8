"""Makes each fault happen to a run of 2 x 2 ranks on a real Slurm, and writes the tables of docs/jobs.md.

    python -m tests.jobs.backends.slurm.faults_table [NAME ...]     only these faults; the other rows stay

`make soak` runs it as the part `slurm`. Each fault says how the job must end; one that ends otherwise is
reported as failed, and its rows stay as they were. Slurm's time limits tick in minutes, and a job that was
put back into its queue waits two minutes, so all of them take about ten minutes, three at a time.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.events import read_events
from nbtrain.base.jobstate import (
    ACTIVE,
    CANCELLED,
    FAILED,
    LOST,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
)
from nbtrain.base.node_records import EngineWord, NodeExit
from nbtrain.base.records import ExitRecord, Heartbeat, JobRecord
from nbtrain.base.rundir import JobDir, RunDir
from nbtrain.config.load import load
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.jobs.backends.base import status_of
from nbtrain.jobs.backends.slurm.engine import read_scontrol
from nbtrain.jobs.submit import resume, submit
from tests.clusters.slurm import SlurmCluster, missing
from tests.jobs.conftest import FAKE_RANK, TINY

REPOSITORY = Path(__file__).parents[4]
DOCUMENT = REPOSITORY / "docs" / "jobs.md"
FAULTS_BEGIN = "<!-- measured: python -m tests.jobs.backends.slurm.faults_table -->"
CODES_BEGIN = "<!-- exit codes: python -m tests.jobs.backends.slurm.faults_table -->"
END = "<!-- end -->"
PATIENCE_SECONDS = 900.0
STEP_SECONDS = 0.2
# A rank that is asked to save between two steps saves there; else at most so many steps are made again.
SAVE_EVERY = 5
AT_ONCE = 3
WRITING = threading.Lock()


@dataclass
class Scene:
    """A job that runs on a cluster, and what happens to it."""

    cluster: SlurmCluster
    settings: dict[str, Any] = field(default_factory=dict)
    seen: list[tuple[str, str]] = field(default_factory=list)
    """Every state with its cause, as `nbtrain status` would have said them."""
    fault_at: float | None = None

    def submit(self, steps: int = 60, fake: bool = True, **settings: Any) -> JobDir:
        """Submit the run; with the fake rank, or with the real trainer."""
        env = {"FAKE_STEPS": str(steps), "FAKE_STEP_SECONDS": str(STEP_SECONDS), "OMP_NUM_THREADS": "1"}
        env |= {"FAKE_FAULTS": "[]", "FAKE_SAVE_EVERY": str(SAVE_EVERY), "NBTRAIN_TRACE": "1"}
        given = {
            "resources.nodes": 2,
            "resources.cpus_per_node": 2,
            "parallel.data_parallel_size": 4,
            "batch.train_tokens": steps * 8 * 16,
            "backend.kind": "slurm",
            "backend.slurm.time_limit_seconds": 1200,
            "backend.node_timeout_seconds": 20,
            "backend.env": {**env, **settings.pop("env", {})},
            **settings,
        }
        config = load(Path(os.environ["NBTRAIN_WORKSPACE"]) / "tiny.yaml", given)
        self.job = submit(config, command=(FAKE_RANK,)) if fake else submit(config)
        return self.job

    @property
    def number(self) -> str:
        """Slurm's number of the newest allocation."""
        return files.read_json(self.job.handle_json)["numbers"][-1]

    @property
    def record(self) -> JobRecord:
        record = JobRecord.read(self.job.job_json)
        assert record is not None
        return record

    @property
    def step(self) -> int:
        """Of rank 0."""
        beat = Heartbeat.read(self.job.heartbeat(0))
        return beat.step if beat and beat.attempt == self.record.attempt else 0

    def status(self) -> tuple[str, str]:
        """What a user reads; every change is kept."""
        state, cause = status_of(self.job)
        if not self.seen or self.seen[-1][0] != state:
            self.seen.append((state, cause or ""))
        return state, cause or ""

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """The first true value; the state is looked at meanwhile."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            self.status()
            if value := condition():
                return value
            time.sleep(0.2)
        raise AssertionError(f"{what}: not within {PATIENCE_SECONDS:g} s; states {self.seen}")

    def until_step(self, step: int) -> None:
        self.until(lambda: self.step >= step, f"step {step}")

    def until_state(self, *states: str) -> str:
        """The cause."""
        self.until(lambda: self.status()[0] in states, " or ".join(states))
        return self.status()[1]

    def end(self) -> tuple[str, str]:
        """Wait for the end of the job."""
        self.until(lambda: self.status()[0] not in ACTIVE, "the end")
        return self.status()

    def fault(self) -> None:
        """Now."""
        self.fault_at = time.time()

    def start_now(self) -> None:
        """Have Slurm not wait two minutes before it starts a job that it has put back."""
        waits = "JobState=PENDING"
        self.until(lambda: waits in self.cluster.call("scontrol", "show", "job", self.number), waits)
        self.cluster.call("scontrol", "update", f"JobId={self.number}", "StartTime=now")

    @property
    def states(self) -> list[str]:
        return [state for state, _ in self.seen]

    def seconds(self) -> str:
        """From the fault until ranks train again."""
        again = [one.running_at for one in self.record.attempts if one.running_at]
        later = [at for at in again if self.fault_at and at > self.fault_at]
        return f"{later[0] - self.fault_at:.0f}" if later and self.fault_at else ""


@dataclass
class Row:
    """What a fault's test has found."""

    reads: str
    """The words that a user reads first."""
    seconds: str
    """From the fault until ranks train again; "" if they do not by themselves."""
    after: str
    """What happened then."""


# --- the faults: each makes its job, the fault, checks what must hold, and returns its row -----------------


def rank_killed(scene: Scene) -> Row:
    """Restarted in the same allocation."""
    order = [{"rank": 3, "attempt": 0, "step": 12, "do": "kill", "signal": 9}]
    job = scene.submit(40, env={"FAKE_FAULTS": json.dumps(order)})
    number = scene.number
    assert scene.end()[0] == SUCCEEDED, scene.seen
    record = scene.record
    ends = ExitRecord.read(job.exit_record(3, 0))
    scene.fault_at = ends.time if ends else None
    assert record.restarts == 1 and scene.number == number
    assert record.attempts[1].resumed_from_step == 10, record.attempts
    return Row(
        record.attempts[0].cause or "", scene.seconds(), "the supervisor restarts the ranks in the allocation"
    )


def time_limit(scene: Scene) -> Row:
    """USR1 -> saved -> the next allocation -> the end, with the bits of an uninterrupted run."""
    steps = 60
    slow = {"checkpoint.save_interval_steps": 1000, "evaluation.eval_interval_steps": 1000}
    straight = scene.submit(steps, fake=False, name="straight", **slow)
    assert scene.end()[0] == SUCCEEDED, scene.seen
    scene.seen = []
    limits = {
        "backend.slurm.time_limit_seconds": 120,
        "backend.slurm.signal_before_seconds": 30,
        "backend.slurm.resubmissions": 3,
    }
    job = scene.submit(steps, fake=False, name="cut", **{**slow, **limits})
    stop = threading.Event()
    slowdown = threading.Thread(target=_hold_back, args=(scene, job, stop), daemon=True)
    slowdown.start()
    scene.until(lambda: _events(job, QUEUED) > 1, "handed over")
    scene.fault()
    stop.set()
    assert scene.end()[0] == SUCCEEDED, scene.seen
    numbers = files.read_json(job.handle_json)["numbers"]
    assert len(numbers) >= 2, numbers
    assert trace(job.run) == trace(straight.run), "the losses differ from those of an uninterrupted run"
    assert {len(values) for values in trace(job.run).values()} == {1}
    return Row(
        re.sub(r"Slurm job \d+", "Slurm job 12", _handed_over(job)),
        scene.seconds(),
        "goes on in the next allocation; bit for bit the losses of an uninterrupted run",
    )


def _hold_back(scene: Scene, job: JobDir, stop: threading.Event) -> None:
    """Stop rank 1 for most of each second, so that a tiny run lasts until its time limit."""
    while not stop.is_set():
        beat = Heartbeat.read(job.heartbeat(1))
        held = beat is not None and beat.phase == "train" and beat.process.alive()
        if held and beat:
            with contextlib.suppress(ProcessLookupError):
                os.kill(beat.process.pid, signal.SIGSTOP)
                stop.wait(2.0)
                os.kill(beat.process.pid, signal.SIGCONT)
        time.sleep(0.03)


def _handed_over(job: JobDir) -> str:
    said = [event["message"] for event in read_events(job) if event.get("state") == QUEUED]
    return next(one for one in said if "saved at" in one).partition("QUEUED: ")[2]


def array_chain(scene: Scene) -> Row:
    """Each task of the array goes on where the one before it ended."""
    limits = {"backend.slurm.time_limit_seconds": 120, "backend.slurm.signal_before_seconds": 30}
    job = scene.submit(900, **limits, **{"backend.slurm.array": "1-3%1"})
    scene.until(lambda: _events(job, QUEUED) > 1, "handed over")
    scene.fault()
    assert scene.end()[0] == SUCCEEDED, scene.seen
    tasks = {event["message"] for event in read_events(job) if "a new allocation" in event["message"]}
    assert 1 <= len(tasks) <= 2, tasks
    assert scene.record.restarts == 0
    assert not _bad_states(scene), scene.seen
    return Row(_handed_over(job), scene.seconds(), "the next task of the array goes on")


def _events(job: JobDir, state: str) -> int:
    return sum(event.get("state") == state for event in read_events(job))


def _bad_states(scene: Scene) -> set[str]:
    return {LOST, FAILED, CANCELLED} & set(scene.states)


def node_lost(scene: Scene) -> Row:
    """slurmd of the second node is killed with -9; Slurm ends the job there and puts it back."""
    scene.submit(300)
    scene.until_step(20)
    scene.fault()
    scene.cluster.kill("n1")
    cause = scene.until_state(QUEUED)
    scene.cluster.start_node("n1")
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert not _bad_states(scene), scene.seen
    assert scene.record.attempts[-1].resumed_from_step, scene.record.attempts
    return Row(cause, scene.seconds(), "Slurm puts the job back; it goes on from its newest checkpoint")


def first_node_lost(scene: Scene) -> Row:
    """slurmd of the node with the supervisor."""
    scene.submit(300)
    scene.until_step(20)
    scene.fault()
    scene.cluster.kill("n0")
    scene.until(lambda: "PENDING" in scene.cluster.call("scontrol", "show", "job", scene.number), "PENDING")
    scene.cluster.start_node("n0")
    cause = scene.until_state(QUEUED, SUCCEEDED)
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert not _bad_states(scene), scene.seen
    return Row(
        cause, scene.seconds(), "the same; the supervisor was lost with its node, and Slurm starts a new one"
    )


def controller_killed(scene: Scene) -> Row:
    """slurmctld is killed with -9 and comes back: the job has not noticed."""
    job = scene.submit(250)
    scene.until_step(10)
    scene.fault()
    scene.cluster.kill("slurmctld")
    scene.until(lambda: not _word(job).seen, "the flag")
    state, _ = scene.status()
    assert state == RUNNING and _word(job).state == RUNNING, (state, _word(job))
    words = _status_text(job)
    assert "not seen" in words, words
    scene.cluster.start_controller()
    scene.until(lambda: _word(job).seen, "Slurm again")
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert scene.record.restarts == 0 and len(scene.record.attempts) == 1
    assert not _bad_states(scene), scene.seen
    flag = next(line for line in words.splitlines() if "not seen now" in line).strip()
    return Row(f"RUNNING, and beside it: {flag}", "0, the job continues", "the job goes on; nothing was lost")


def controller_forgets(scene: Scene) -> Row:
    """slurmctld is killed and has lost its state: the job's number is not known any more."""
    job = scene.submit(250)
    scene.until_step(10)
    scene.fault()
    scene.cluster.kill("slurmctld")
    for path in (scene.cluster.folder / "state").glob("job_state*"):
        path.unlink()
    scene.cluster.start_controller()
    scene.until(lambda: _word(job).seen and _word(job).state is None, "an unknown number")
    known = scene.status()
    state, cause = scene.end()
    assert known[0] in (RUNNING, state), (known, state)
    after = "the job's own records decide"
    if state != SUCCEEDED:
        scene.job = resume(job.run, command=(FAKE_RANK,))
        assert scene.end()[0] == SUCCEEDED, scene.seen
        after = f"the job is {state}; `nbtrain resume` goes on"
    return Row(f"{state}: {cause}" if state != SUCCEEDED else f"{known[0]}", scene.seconds(), after)


def suspended(scene: Scene) -> Row:
    """scontrol suspend for longer than node_timeout_seconds, then resume."""
    scene.submit(200, **{"backend.node_timeout_seconds": 8, "backend.heartbeat_timeout_seconds": 15})
    scene.until_step(20)
    scene.fault()
    scene.cluster.call("scontrol", "suspend", scene.number)
    cause = scene.until_state(SUSPENDED)
    end = time.monotonic() + 45
    while time.monotonic() < end:
        assert scene.status()[0] == SUSPENDED, scene.seen
        time.sleep(1)
    step = scene.step
    scene.cluster.call("scontrol", "resume", scene.number)
    scene.until(lambda: scene.step > step + 5, "steps after the resume")
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert (scene.record.restarts, len(scene.record.attempts)) == (0, 1), scene.record.attempts
    assert not _bad_states(scene), scene.seen
    return Row(f"SUSPENDED: {cause}", "0 after `scontrol resume`", "no restart, nothing lost")


def cancelled_outside(scene: Scene) -> Row:
    """scancel by hand."""
    scene.submit(100_000)
    scene.until_step(20)
    scene.fault()
    scene.cluster.call("scancel", scene.number)
    state, cause = scene.end()
    assert state == CANCELLED, scene.seen
    assert "saved at step" in cause, cause
    return Row(f"CANCELLED: {cause}", "", "`nbtrain resume` goes on")


def cancelled_while_suspended(scene: Scene) -> Row:
    """nbtrain cancel of a job that scontrol has suspended: its supervisor reads no request."""
    from nbtrain.jobs.control import cancel

    job = scene.submit(100_000)
    scene.until_step(20)
    scene.cluster.call("scontrol", "suspend", scene.number)
    scene.until_state(SUSPENDED)
    state, cause = cancel(job)
    assert state == CANCELLED, (state, cause, scene.seen)
    assert scene.cluster.call("squeue", "-h") == ""
    return Row(f"CANCELLED: {cause}", "", "`nbtrain resume` goes on")


def requeued(scene: Scene) -> Row:
    """scontrol requeue, as a preemption does it."""
    scene.submit(150)
    scene.until_step(20)
    scene.fault()
    scene.cluster.call("scontrol", "requeue", scene.number)
    cause = scene.until_state(QUEUED)
    number = scene.number
    cause = scene.until(lambda: "BeginTime" in scene.status()[1] and scene.status()[1], "its wait")
    scene.start_now()
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert scene.number == number and not _bad_states(scene), scene.seen
    assert scene.record.attempts[-1].resumed_from_step, scene.record.attempts
    return Row(f"QUEUED: {cause}", "120, Slurm's wait", "goes on from the checkpoint it was asked to save")


def supervisor_killed(scene: Scene) -> Row:
    """kill -9 of the supervisor in its allocation: the batch step has failed, so Slurm ends the job."""
    job = scene.submit(100_000)
    scene.until_step(20)
    supervisor = scene.record.supervisor
    assert supervisor is not None
    scene.fault()
    os.kill(supervisor.pid, signal.SIGKILL)
    state, cause = scene.end()
    assert state == LOST, scene.seen
    assert scene.cluster.call("squeue", "-h", "-t", "R") == ""
    scene.job = resume(job.run, {"backend.env": {**_env(job), "FAKE_STEPS": "300"}}, command=(FAKE_RANK,))
    assert scene.end()[0] == SUCCEEDED, scene.seen
    return Row(f"LOST: {cause}", scene.seconds(), "Slurm kills the ranks too; `nbtrain resume` goes on")


def _env(job: JobDir) -> dict[str, str]:
    from nbtrain.config.load import load_resolved

    return dict(load_resolved(job.run.config_yaml).backend.env)


def second_shell(scene: Scene) -> Row:
    """The same run submitted by two other shells while the first one's job waits or runs: one job."""
    job = scene.submit(60)
    script = (
        "import sys\nfrom nbtrain.config.load import load_resolved\nfrom nbtrain.jobs.submit import submit\n"
        "print(submit(load_resolved(sys.argv[1]), command=(sys.argv[2],)).job_id)\n"
    )
    others = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(job.run.config_yaml), FAKE_RANK],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ids = {other.communicate()[0].strip() for other in others}
    assert ids == {job.job_id}, ids
    assert len(job.run.job_ids()) == 1
    assert len(scene.cluster.call("squeue", "-h").splitlines()) == 1
    assert scene.end()[0] == SUCCEEDED, scene.seen
    return Row("the job that is there", "0, the job continues", "one job; settings that differ are listed")


def _word(job: JobDir) -> EngineWord:
    word = EngineWord.read(job.engine_json)
    assert word is not None
    return word


def _status_text(job: JobDir) -> str:
    from nbtrain.monitor.lines import status_text
    from nbtrain.monitor.run_view import RunView

    return status_text(RunView(job.run))


@dataclass(frozen=True)
class Fault:
    """A row of the table and what makes it."""

    title: str
    make: Callable[[Scene], Row]


FAULTS = {
    "rank-killed": Fault("kill -9 of a rank on the second node", rank_killed),
    "time-limit": Fault("the time limit of the allocation (`resubmissions: 3`)", time_limit),
    "array": Fault("the same with `array: 1-3%1`", array_chain),
    "node-lost": Fault("kill -9 of slurmd on the second node", node_lost),
    "first-node-lost": Fault("kill -9 of slurmd on the first node", first_node_lost),
    "controller": Fault("kill -9 of slurmctld, which comes back", controller_killed),
    "controller-forgets": Fault("slurmctld comes back without its state", controller_forgets),
    "suspended": Fault("`scontrol suspend`, then `resume`", suspended),
    "scancel": Fault("`scancel` by hand", cancelled_outside),
    "cancel-suspended": Fault("`nbtrain cancel` of a suspended job", cancelled_while_suspended),
    "requeued": Fault("`scontrol requeue`, as a preemption does", requeued),
    "supervisor": Fault("kill -9 of the supervisor", supervisor_killed),
    "second-shell": Fault("two more shells submit the same run", second_shell),
}


def trace(run: RunDir) -> dict[int, set[tuple[str, str]]]:
    """{step: every (loss, grad norm) that any job of the run has written}."""
    steps: dict[int, set[tuple[str, str]]] = {}
    for job_id in run.job_ids():
        for event in read_events(run.job(job_id)):
            if event["kind"] == "trace":
                steps.setdefault(event["step"], set()).add((event["loss"], event["grad_norm"]))
    return steps


# --- the tables --------------------------------------------------------------------------------------------


def fault_row(fault: Fault, row: Row) -> str:
    words = re.sub(r"Slurm job \d+", "Slurm job 12", row.reads).replace("|", "\\|")
    words = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-01-01 12:00:00", words)
    return f"| {fault.title} | {words} | {row.seconds or 'not by itself'} | {row.after} |".replace("\n", " ")


def codes_row(fault: Fault, scene: Scene) -> str:
    """How the first attempt ended, for each layer that has a code of its own."""
    job = JobDir(scene.job.run, scene.job.run.job_ids()[0])
    ranks: dict[str, list[int]] = {}
    for rank in range(4):
        end = ExitRecord.read(job.exit_record(rank, 0))
        code = "no record" if end is None else f"{end.outcome}, {_code(end.exit_code, end.signal)}"
        ranks.setdefault(code, []).append(rank)
    said = "; ".join(f"{_span(who)}: {code}" for code, who in ranks.items())
    nodes = [NodeExit.read(job.node_exit(node, 0)) for node in range(2)]
    launched = ", ".join("no record" if one is None else str(one.exit_code) for one in nodes)
    number = files.read_json(job.handle_json)["numbers"][0]
    engine = _engine_code(scene.cluster, number, job.job_id)
    states = {SUCCEEDED: 0}
    ended = status_of(job)[0]
    return f"| {fault.title} | {said} | {launched} | {engine} | {ended}, {states.get(ended, 7)} |"


def _engine_code(cluster: SlurmCluster, number: str, job_id: str) -> str:
    """Slurm's last word about an allocation, once its nodes are free again."""
    deadline = time.monotonic() + 60
    while True:
        found = read_scontrol(cluster.call("scontrol", "show", "job", "-o", number))
        if found is None or not found.comment.endswith(job_id):
            return "not known"
        if found.state not in ("COMPLETING", "RUNNING") or time.monotonic() > deadline:
            return f"{found.state} {found.exit_code}"
        time.sleep(0.5)


def _code(code: int | None, number: int | None) -> str:
    return f"exit code {code}" if number is None else f"signal {number}"


def _span(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


HEADS = {
    FAULTS_BEGIN: ("fault", "what the user reads", "seconds to running again", "after it"),
    CODES_BEGIN: (
        "fault",
        "ranks of the first attempt",
        "torchrun of node 0, 1",
        "Slurm's state and code",
        "state, exit code of `submit --wait`",
    ),
}


def write_table(begin: str, rows: dict[str, str]) -> None:
    """Replace these rows; the others stay."""
    text = DOCUMENT.read_text()
    head, _, rest = text.partition(begin)
    table, _, tail = rest.partition(END)
    known = {line.split(" | ")[0]: line for line in table.splitlines() if line.startswith("| ")}
    lines = [rows.get(name) or known.get(f"| {fault.title}", "") for name, fault in FAULTS.items()]
    body = "\n".join(line for line in lines if line)
    titles, rule = " | ".join(HEADS[begin]), " --- |" * len(HEADS[begin])
    files.write_text(DOCUMENT, f"{head}{begin}\n| {titles} |\n|{rule}\n{body}\n{END}{tail}")


@contextlib.contextmanager
def place(name: str, data: Path, cluster: SlurmCluster) -> Iterator[Path]:
    """A workspace with a blank in its name, on the cluster."""
    folder = Path(tempfile.mkdtemp(prefix=f"slurm {name} "))
    (folder / "tiny.yaml").write_text(TINY)
    variables = {"NBTRAIN_WORKSPACE": str(folder), "NBTRAIN_DATA": str(data), **cluster.environment}
    before = {key: os.environ.get(key) for key in (*variables, "NBTRAIN_OUTPUT")}
    os.environ.update(variables)
    os.environ.pop("NBTRAIN_OUTPUT", None)
    try:
        yield folder
    finally:
        for key, value in before.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value


def main(names: list[str]) -> int:
    """Several faults at once, each in a process and on a cluster of its own: most of the time they wait."""
    if why := missing():
        print(f"no Slurm here: {why}")
        return 1
    with tempfile.TemporaryDirectory(prefix="slurm-data-") as data:
        (Path(data) / "tiny.yaml").write_text(TINY)
        os.environ["NBTRAIN_DATA"] = data
        prepare(load(Path(data) / "tiny.yaml"))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            failed = [
                name for name, went_well in pool.map(lambda name: _apart(name, data), names) if not went_well
            ]
    names_failed = f": {', '.join(failed)}" if failed else ""
    print(f"{len(names)} faults, {len(failed)} otherwise than they must be{names_failed}")
    return min(len(failed), 1)


def _apart(name: str, data: str) -> tuple[str, bool]:
    """One fault in a process of its own; its rows are written here."""
    command = [sys.executable, "-m", "tests.jobs.backends.slurm.faults_table", "--one", name, data]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    print(answer.stdout, flush=True)
    if answer.returncode:
        return name, False
    rows = json.loads(answer.stdout.splitlines()[-1])
    with WRITING:
        for begin, row in rows.items():
            write_table(begin, {name: row})
    return name, True


def suffer(name: str, data: Path) -> int:
    """Make one fault happen; 0 if all went as it must, and the rows are printed."""
    fault, began = FAULTS[name], time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    cluster = SlurmCluster(folder).start()
    scene = Scene(cluster)
    try:
        with place(name, data, cluster) as workspace:
            try:
                row = fault.make(scene)
            except Exception:
                print(traceback.format_exc())
                print(f"{name}: FAILED after {time.monotonic() - began:.0f} s; {scene.seen}; {workspace}")
                return 1
            codes = codes_row(fault, scene)
            shutil.rmtree(workspace)
    finally:
        cluster.stop()
    shutil.rmtree(folder)
    print(f"{name}: {time.monotonic() - began:.0f} s, {' '.join(scene.states)}")
    print(json.dumps({FAULTS_BEGIN: fault_row(fault, row), CODES_BEGIN: codes}))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        sys.exit(suffer(sys.argv[2], Path(sys.argv[3])))
    sys.exit(main(sys.argv[1:] or list(FAULTS)))
