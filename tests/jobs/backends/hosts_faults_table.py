"""Cause each fault in a run with 2 x 2 ranks on two ssh hosts, and write docs/evidence/faults-hosts.md.

    python -m tests.jobs.backends.hosts_faults_table [NAME ...]     run only these faults; keep the other rows

`make soak` runs it as the part `hosts`. Each fault has a separate pair of hosts.
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
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from nbtrain.base import files
from nbtrain.base.errors import SubmitError
from nbtrain.base.hardware.cgroup import cgroup_file
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.jobstate import CANCELLED, LOST, QUEUED, RUNNING, SUCCEEDED
from nbtrain.base.run_directory.node_records import NodeRecord
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load_resolved
from nbtrain.jobs.backends.hosts import end_job
from nbtrain.jobs.control.control import cancel
from nbtrain.jobs.submission.submit import resume
from tests.clusters.hosts import NAMES, HostPair, missing
from tests.jobs.backends import fault_tables
from tests.jobs.backends.fault_tables import Fault, Impossible, Row, Tables, plain_times
from tests.jobs.conftest import FAKE_RANK, trace
from tests.waiting import wait_until

# Heartbeat limit for a stopped rank, long enough for the trainer on a busy machine.
HANG_SECONDS = 40
# In faults of the real trainer on two hosts, this rank is on the second host.
FAR_RANK = 3
FOREIGN = """\
import os, sys, time
while True:
    with open(f"{sys.argv[-1]}/alive-{os.environ['RANK']}", "w") as stream:
        stream.write(str(time.time()))
    time.sleep(0.2)
"""


class Scene(fault_tables.Scene):
    """A job on two hosts and the fault that happens to it."""

    def __init__(self, pair: HostPair):
        settings = {"hosts": list(NAMES), "ssh_config": str(pair.ssh_config)}
        limits = {"restart_backoff_seconds": 3, "max_restarts": 20, "shutdown_timeout_seconds": 15}
        super().__init__(
            {
                "backend.kind": "hosts",
                **{f"backend.hosts.{key}": value for key, value in settings.items()},
                **{f"backend.{key}": value for key, value in limits.items()},
            }
        )
        self.pair = pair

    def fails(self, **settings: Any) -> str:
        """Submit a run that must be rejected; check that nothing was written, and return the first
        problem.
        """
        try:
            self.submit(**settings)
        except SubmitError as error:
            problem = str(error).splitlines()[1].strip()
        else:
            raise AssertionError("the run was started")
        assert not RunDir.named("tiny").exists()
        return problem

    def causes(self) -> list[str]:
        """Return the causes of the ends of all attempts."""
        return [attempt.cause or "" for attempt in self.record.attempts]


def ordered(do: str, step: int = 12, **more: Any) -> dict[str, str]:
    """Return the environment that makes the real trainer cause a fault in a rank on the second host."""
    order = {"rank": FAR_RANK, "attempt": 0, "step": step, "do": do, **more}
    return {"NBTRAIN_FAULTS": json.dumps([order])}


# --- the faults -------------------------------------------------------------------------------------------


def rank_killed(scene: Scene) -> Row:
    """Kill a rank; the same agents restart it."""
    order = [{"rank": FAR_RANK, "attempt": 0, "step": 12, "do": "kill", "signal": 9}]
    job = scene.submit(40, env={"FAKE_FAULTS": json.dumps(order)})
    scene.until_step(5)
    agents = [NodeRecord.read(job.node(node)).agent for node in range(2)]
    assert scene.end()[0] == SUCCEEDED, scene.seen
    scene.rank_failed(FAR_RANK)
    assert scene.record.restarts == 1 and not scene.bad_states
    assert scene.record.attempts[1].resumed_from_step == 10, scene.record.attempts
    assert [NodeRecord.read(job.node(node)).agent for node in range(2)] == agents
    return Row(scene.causes()[0], scene.seconds(), "the same agents start all ranks again")


def rank_hangs(scene: Scene) -> Row:
    """Stop a rank that the others wait for; the message names it and the line of code where it stopped."""
    job = scene.submit(
        24, fake=False, env=ordered("sleep"), **{"backend.heartbeat_timeout_seconds": HANG_SECONDS}
    )
    scene.until(lambda: scene.record.restarts, "the end of the hang")
    scene.fault_at = scene.record.attempts[0].ended_at - HANG_SECONDS
    assert scene.end()[0] == SUCCEEDED, scene.seen
    cause = scene.causes()[0]
    assert f"rank {FAR_RANK} stopped" in cause, cause
    [stack] = [event for event in read_events(job) if event["kind"] == "hang"]
    assert stack["rank"] == FAR_RANK and "faults.py" in stack["message"], stack
    assert set(trace(job.run)) == set(range(1, 25))
    return Row(cause, scene.seconds(), "all ranks start again; the stacks are in logs/")


def loss_is_nan(scene: Scene) -> Row:
    """Make the loss NaN, so that a rank on the second host requests a rollback."""
    job = scene.submit(24, fake=False, env=ordered("nan"), **{"stability.on_nan": "rollback"})
    assert scene.end()[0] == SUCCEEDED, scene.seen
    [rollback] = files.read_json(job.run.rollbacks_json)
    assert scene.record.restarts == 0 and (rollback["step"], rollback["checkpoint_step"]) == (12, 8), rollback
    certificate = files.read_json(job.path / "resume.json")
    assert certificate is not None
    scene.fault_at = scene.record.attempts[0].ended_at
    return Row(scene.causes()[0], scene.seconds(), "goes back to the newest checkpoint and skips the samples")


def disk_full(scene: Scene) -> Row:
    """Raise the error of a full disk in a rank on the second host."""
    scene.submit(24, fake=False, env=ordered("full"))
    assert scene.end()[0] == SUCCEEDED, scene.seen
    scene.rank_failed(FAR_RANK)
    restart = next(event for event in read_events(scene.job) if event["kind"] == "restart")
    assert restart["reason"] == "disk", restart
    return Row(scene.causes()[0], scene.seconds(), "waits for room, then all ranks start again")


def out_of_memory(scene: Scene) -> Row:
    """Make the kernel of the second host kill a rank for lack of memory; its agent reads this from a control
    group.
    """
    with little_memory(scene):
        scene.submit(24, fake=False, env=ordered("memory"))
        assert scene.end()[0] == SUCCEEDED, scene.seen
    scene.rank_failed(FAR_RANK)
    cause = scene.causes()[0]
    assert f"rank {FAR_RANK} was killed" in cause and "out of host memory: the kernel killed it" in cause, (
        cause
    )
    said = re.sub(r"at most [\d.]+ of", "at most 3.00 of", cause)
    return Row(said, scene.seconds(), "all ranks start again; not twice at the same step")


@contextlib.contextmanager
def little_memory(scene: Scene) -> Iterator[None]:
    """Limit the second host to 3 GiB of memory. Raises Impossible if no memory control group can be used."""
    own = cgroup_file("memory", "memory.max", "memory.limit_in_bytes")
    if own is None:
        raise Impossible("no control group for memory is visible here")
    group, seen = own.parent / f"nbtrain-hosts-{os.getpid()}", scene.pair.folder / "cgroup"
    try:
        group.mkdir()
        (group / own.name).write_text(str(3 << 30))
    except OSError as error:
        raise Impossible(f"control groups cannot be made here: {error}") from error
    root = Path("/sys/fs/cgroup")
    seen.mkdir()
    # A network namespace has a separate /sys, without control groups.
    subprocess.run(["mount", "--rbind", str(root), str(seen)], check=True)
    try:
        scene.pair.kill_host("hostb")
        scene.pair.start_host("hostb", {str(root): str(seen)}, str(seen / group.relative_to(root)))
        scene.pair.wait_for("hostb")
        yield
    finally:
        scene.pair.kill_host("hostb")
        subprocess.run(["umount", "-l", str(seen)], check=True)
        wait_until(lambda: not (group / "cgroup.procs").read_text().strip(), "an empty cgroup")
        group.rmdir()


def host_killed(scene: Scene) -> Row:
    """Switch a host off for a while: until it is back, each attempt fails with a cause that names it."""
    scene.submit(300)
    scene.until_step(20)
    scene.fault()
    scene.pair.kill_host("hostb")
    scene.until(lambda: len(scene.record.attempts) > 2, "two further attempts")
    scene.pair.start_host("hostb")
    scene.pair.wait_for("hostb")
    assert scene.end()[0] == SUCCEEDED, scene.seen
    causes = scene.causes()
    assert causes[0].startswith("node hostb is gone: its agent has not reported for 2"), causes
    assert "2 of 2 agents (nodes 0, 1) did not report: hostb is reachable" in causes[1]
    assert not scene.bad_states and scene.record.attempts[-1].resumed_from_step
    waits = causes[1].partition("did not report: ")[2].partition(";")[0]
    after = f"the job is restarted until the host is back; an attempt before that ends with: {waits}"
    return Row(causes[0], scene.seconds(), after)


def host_lost(scene: Scene) -> Row:
    """Switch a host off during real training; half of the ranks then repeat the same steps with the same
    losses.
    """
    steps = 24
    # A different number of ranks draws different dropout masks.
    plain = {"model.hidden_dropout": 0.0}
    straight = scene.submit(steps, fake=False, name="straight", **plain)
    assert scene.end()[0] == SUCCEEDED, scene.seen
    scene.seen = []
    job = scene.submit(steps, fake=False, env=ordered("sleep"), **plain, **{"backend.elastic": True})
    scene.until_step(11)
    scene.fault()
    scene.pair.kill_host("hostb")
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert not scene.bad_states
    # The ranks here lose their peers before the agent is missed; then the order to end gets no answer.
    assert scene.causes()[0].startswith("node hostb is gone: its agent has not reported for ")
    first, last = scene.record.attempts[0], scene.record.attempts[-1]
    assert (first.world_size, first.nodes, last.world_size, last.nodes) == (4, 2, 2, 1)
    differs(trace(job.run), trace(straight.run))
    warnings = [event["message"] for event in read_events(job) if event["kind"] == "warning"]
    [fewer] = [said for said in warnings if "devices are usable" in said]
    return Row(scene.causes()[0], scene.seconds(), f"continues without it: {fewer}")


def differs(found: dict[int, set[tuple[str, str]]], expected: dict[int, set[tuple[str, str]]]) -> None:
    """Assert that both have the same steps, with losses that differ only by the order of additions."""
    assert found.keys() == expected.keys()
    for step, values in expected.items():
        [(loss, _)] = values
        for other, _ in found[step]:
            away = abs(float.fromhex(other) - float.fromhex(loss))
            assert away < 1e-4 * abs(float.fromhex(loss)), (step, other, loss)


def first_host_lost(scene: Scene) -> Row:
    """Switch off the host of rank 0; the first restart after it is back uses it again."""
    job = scene.submit(400, **{"backend.elastic": True})
    scene.until_step(20)
    scene.fault()
    scene.pair.kill_host("hosta")
    scene.until(lambda: scene.record.world_size == 2 and scene.status()[0] == RUNNING, "half of the ranks")
    assert NodeRecord.read(job.node(0)).host == "hostb"
    cause, seconds = scene.causes()[0], scene.seconds()
    scene.pair.start_host("hosta")
    scene.pair.wait_for("hosta")
    reached = scene.step
    scene.until_step(reached + 5)
    # A run is never stopped to make it larger; the next restart uses the host.
    os.kill(rank_process("hostb", job.job_id), signal.SIGKILL)
    scene.until(lambda: scene.record.world_size == 4 and scene.status()[0] == RUNNING, "all ranks")
    assert [NodeRecord.read(job.node(node)).host for node in range(2)] == ["hosta", "hostb"]
    assert scene.end()[0] == SUCCEEDED and not scene.bad_states, scene.seen
    return Row(
        cause,
        seconds,
        "continues without it, on the second host; the first restart after its return uses it again",
    )


def rank_process(host: str, job_id: str) -> int:
    """Return the process on this machine that is a rank of the job on that host."""
    for pid, (variables, command) in end_job.marked(job_id).items():
        if FAKE_RANK.encode() in command and b"rank_wrapper" not in command and b"RANK=0" in variables:
            return pid
    raise AssertionError(f"no rank of {job_id} on {host}")


def link_down(scene: Scene) -> Row:
    """Cut the network link during real training, when ranks wait for each other."""
    limits = {
        "backend.heartbeat_timeout_seconds": HANG_SECONDS,
        "backend.hosts.server_alive_interval_seconds": 3,
    }
    job = scene.submit(3000, fake=False, **limits, **{"checkpoint.save_interval_steps": 50})
    scene.until(lambda: newest_checkpoint_step(job.run), "a checkpoint")
    scene.fault()
    scene.pair.link("hostb", up=False)
    try:
        scene.until(lambda: scene.record.restarts > 1, "two attempts' ends")
    finally:
        scene.pair.link("hostb", up=True)
    scene.until(lambda: scene.record.attempts[-1].running_at and scene.record.restarts > 1, "training")
    assert scene.record.attempts[-1].resumed_from_step > 0 and not scene.bad_states
    causes, seconds = scene.causes(), scene.seconds()
    assert causes[0].startswith(f"no progress for {HANG_SECONDS} s: all ranks have waited "), causes
    # All ranks in one call, or in two calls if one rank's call had ended.
    assert "the network between hosta and hostb may be down" in causes[0], causes
    cancel(job, now=True)
    return Row(
        causes[0],
        seconds,
        "ends by itself, and continues from the newest checkpoint once the link is up; here the disk stays "
        f"visible, so that an attempt meanwhile ends with: {causes[1]}",
    )


def supervisor_killed(scene: Scene) -> Row:
    """Kill the supervisor and resume; the ranks of the old job end before the next job starts its ranks."""
    job = scene.submit(100_000)
    scene.until_step(20)
    os.kill(scene.record.supervisor.pid, signal.SIGKILL)
    scene.fault()
    state, cause = scene.end()
    assert state == LOST, scene.seen
    scene.job = resume(job.run, {"backend.env": {**_env(job), "FAKE_STEPS": "200"}}, command=(FAKE_RANK,))
    scene.until(lambda: scene.job.control_launch.exists(), "the order to start ranks")
    assert end_job.marked(job.job_id) == {}, "ranks of two jobs at once"
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert scene.record.attempts[0].resumed_from_step >= 20
    return Row(
        f"LOST: {cause}", scene.seconds(), "`nbtrain resume` has its ranks save and exit, and continues"
    )


def _env(job: Any) -> dict[str, str]:
    return dict(load_resolved(job.run.config_yaml).backend.env)


def cancelled_beside_another(scene: Scene) -> Row:
    """Cancel a job while a job of DeepSpeed's own launcher, which nbtrain does not know, runs on the same
    hosts.
    """
    with foreign_job(scene) as alive:
        scene.submit(100_000)
        scene.until_step(10)
        state, cause = cancel(scene.job)
        assert state == CANCELLED, (state, cause)
        assert end_job.marked(scene.job.job_id) == {}
        at = time.time()
        scene.until(lambda: all(when > at + 2 for when in alive()), "the other job's ranks")
    words = re.sub(r"step [\d,]+", "step 12", cause)
    return Row(
        f"CANCELLED: {words}", "", "the other job's ranks continue on both hosts; `nbtrain resume` continues"
    )


@contextlib.contextmanager
def foreign_job(scene: Scene) -> Iterator[Callable[[], list[float]]]:
    """Start a job without nbtrain, and yield a function that returns when its ranks were last alive."""
    folder = scene.pair.folder / "foreign"
    folder.mkdir()
    (folder / "hostfile").write_text("".join(f"{name} slots=1\n" for name in NAMES))
    (folder / "train.py").write_text(FOREIGN)
    command = [
        *(sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", str(folder / "hostfile")),
        *("--launcher", "pdsh", "--force_multi", "--no_ssh_check"),
        *("--master_addr", scene.pair.address("hosta"), str(folder / "train.py"), str(folder)),
    ]
    ssh = f"-F {scene.pair.ssh_config}"
    with (folder / "log").open("wb") as log:
        runner = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, "PDSH_SSH_ARGS_APPEND": ssh, "DS_ACCELERATOR": "cpu"},
            start_new_session=True,
        )

    def alive() -> list[float]:
        texts = [path.read_text() for path in sorted(folder.glob("alive-*"))]
        return [float(text or 0) for text in texts] if len(texts) == 2 else [0.0]

    try:
        wait_until(lambda: alive() != [0.0] or runner.poll() is not None, (folder / "log").read_text)
        assert runner.poll() is None, (folder / "log").read_text()
        yield alive
    finally:
        # Its ranks end with their hosts.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(runner.pid, signal.SIGKILL)
        runner.wait()


def by_mpirun(scene: Scene) -> Row:
    """Use the OpenMPI launcher: kill a rank, which is restarted, and then cancel the job."""
    if shutil.which("mpirun") is None:
        raise Impossible("mpirun is not installed (Debian: openmpi-bin)")
    order = [{"rank": FAR_RANK, "attempt": 0, "step": 12, "do": "kill", "signal": 9}]
    settings = {"backend.hosts.launcher": "openmpi", "backend.hosts.network_interface": "eth0"}
    job = scene.submit(100_000, env={"FAKE_FAULTS": json.dumps(order)}, **settings)
    scene.until(lambda: scene.record.restarts == 1 and scene.status()[0] == RUNNING, "a restart")
    scene.rank_failed(FAR_RANK)
    seconds = scene.seconds()
    assert [NodeRecord.read(job.node(node)).host for node in range(2)] == list(NAMES)
    scene.until_step(15)
    state, cause = cancel(job)
    assert state == CANCELLED and "saved" in cause, (state, cause)
    assert end_job.marked(job.job_id) == {}
    return Row(
        scene.causes()[0],
        seconds,
        "the same agents start all ranks again; `nbtrain cancel` saves and ends all",
    )


def wrong_hostfile(scene: Scene) -> Row:
    """Submit with a line in the hostfile that does not name a machine."""
    (Path(os.environ["NBTRAIN_WORKSPACE"]) / "machines").write_text("hosta slots=2\nhostb slot=2\n")
    words = scene.fails(**{"backend.hosts.hosts": [], "backend.hosts.hostfile": "machines"})
    return refused(words, "machines:2: 'hostb slot=2'")


def unknown_name(scene: Scene) -> Row:
    """Submit to hostc, which is not defined anywhere."""
    words = scene.fails(**{"backend.hosts.hosts": ["hosta", "hostc"]})
    return refused(words, "hostc is a name that this machine cannot resolve")


def wrong_key(said: str, **changes: str) -> Callable[[Scene], Row]:
    """Submit with an ssh user key or host key that does not match."""

    def make(scene: Scene) -> Row:
        config = scene.pair.config_with(**changes)
        return refused(scene.fails(**{"backend.hosts.ssh_config": str(config)}), f"hosta {said}")

    return make


def host_is_off(scene: Scene) -> Row:
    """Switch off a host and its network before the run is submitted."""
    scene.pair.kill_host("hostb")
    scene.pair.link("hostb", up=False)
    return refused(scene.fails(), "hostb did not respond")


def other_version(scene: Scene) -> Row:
    """Make hostb report another torch version, with a folder that hides the metadata of the installed
    package.
    """
    metadata = next(Path(torch.__file__).parent.parent.glob("torch-*.dist-info"))
    other = scene.pair.folder / "other"
    shutil.copytree(metadata, other)
    text = (other / "METADATA").read_text()
    (other / "METADATA").write_text(
        text.replace(f"\nVersion: {torch.__version__}\n", "\nVersion: 1.0.0\n", 1)
    )
    scene.pair.kill_host("hostb")
    scene.pair.start_host("hostb", over={str(metadata): str(other)})
    scene.pair.wait_for("hostb")
    return refused(scene.fails(), "hostb has torch 1.0.0")


def noticed(scene: Scene) -> Row:
    """Give notice on the second host by the command of the YAML, and withdraw it; the run may not restart."""
    notice = scene.pair.folder / "notice"
    script = f'test -e {notice} && test "$(hostname)" = hostb'
    fast = {
        "backend.preemption_notice": ["sh", "-c", script],
        "backend.preemption_notice_interval_seconds": 1,
    }
    job = scene.submit(120, **{"backend.max_restarts": 0, **fast})
    scene.until_step(20)
    scene.fault()
    notice.touch()
    cause = scene.until_state(QUEUED)
    notice.unlink()
    assert scene.end()[0] == SUCCEEDED, scene.seen
    record, summary = scene.record, files.read_json(job.run.summary_json)
    (preemption,) = record.preemptions
    assert (record.restarts, summary["restarts"], summary["preemptions"]) == (0, 0, 1)
    assert preemption.notice == "hostb: backend.preemption_notice (sh) gave notice", preemption
    assert preemption.lost_steps == 0 and not scene.bad_states, scene.seen
    return Row(f"QUEUED: {cause}", scene.seconds(), "continues when the command no longer gives notice")


def refused(words: str, expected: str) -> Row:
    """Return the row for a run that is rejected before anything is started."""
    assert expected in words, words
    # Only the fix matters next to the message; the place where the run names its hosts differs each time.
    said = re.sub(r"^.*?(?=machines:2|host[abc] )", "", words)
    return Row(said, "not started", "no machine was asked to start anything, and nothing was written")


FAULTS = {
    "rank-killed": Fault("kill -9 of a rank on the second host", rank_killed),
    "rank-hangs": Fault("a rank on the second host sleeps before a collective", rank_hangs),
    "nan": Fault("loss is nan on the second host, `on_nan: rollback`", loss_is_nan),
    "disk-full": Fault("no space left on device, in a rank on the second host", disk_full),
    "host-memory": Fault("out of host memory on the second host (a control group of 3 GiB)", out_of_memory),
    "host-killed": Fault("the second host is switched off, and comes back", host_killed),
    "host-lost": Fault("the second host is lost for good, `elastic: true`", host_lost),
    "first-host-lost": Fault("the first host is lost, `elastic: true`", first_host_lost),
    "link-down": Fault("the cable of the second host is pulled, and plugged in again", link_down),
    "notice": Fault("the command of `preemption_notice` exits with 0 on the second host", noticed),
    "supervisor": Fault("kill -9 of the supervisor; `nbtrain resume`", supervisor_killed),
    "cancel": Fault(
        "`nbtrain cancel` next to another DeepSpeed job on the same hosts", cancelled_beside_another
    ),
    "openmpi": Fault("`launcher: openmpi`: kill -9 of a rank, then `nbtrain cancel`", by_mpirun),
    "hostfile": Fault("a hostfile with an invalid line", wrong_hostfile),
    "unknown-name": Fault("a host name that cannot be resolved", unknown_name),
    "user-key": Fault(
        "a key of the user that the hosts do not accept", wrong_key("does not", key="stranger")
    ),
    "unknown-key": Fault("a host key that is not known", wrong_key("has a host key", known="unknown")),
    "changed-key": Fault(
        "a host key that has changed", wrong_key("has a different host key", known="changed")
    ),
    "host-off": Fault("a host that is switched off", host_is_off),
    "version": Fault("a host with another torch", other_version),
}


# --- the tables -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def on_two_hosts() -> Iterator[Scene]:
    """Provide a separate pair of hosts for each fault."""
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    pair = HostPair(folder)
    with contextlib.ExitStack() as stack:
        stack.callback(pair.stop)
        scene = Scene(pair.start())
        stack.callback(end_supervisor, scene)
        yield scene
    shutil.rmtree(folder)


def end_supervisor(scene: Scene) -> None:
    """End the supervisor of a failed test; it would otherwise keep trying to reach hosts that are gone."""
    record = JobRecord.read(scene.job.job_json) if scene.job else None
    if record and record.supervisor and record.supervisor.alive():
        os.kill(record.supervisor.pid, signal.SIGKILL)


def plain(text: str) -> str:
    """Remove process ids from the text."""
    text = re.sub(r"/[^ `]*/ssh_config-", "ssh_config-", text)
    return plain_times(re.sub(r"\(pid \d+\)", "(pid 1234)", text))


TABLES = Tables(
    "faults-hosts.md", "tests.jobs.backends.hosts_faults_table", FAULTS, on_two_hosts, missing, plain=plain
)

if __name__ == "__main__":
    sys.exit(TABLES.main(sys.argv[1:]))
