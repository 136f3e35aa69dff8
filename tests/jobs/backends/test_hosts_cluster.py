"""Runs on two hosts that are reached by ssh: finished, one of two cancelled, or rejected before the start.

Faults that take longer are in hosts_faults_table.py, which is a part of `make soak`.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.errors import SubmitError
from nbtrain.base.run_directory import records
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.jobstate import CANCELLED, RUNNING, SUCCEEDED
from nbtrain.base.run_directory.node_records import NodeRecord
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat, JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.jobs.attempt.backend import backend_of, status_of
from nbtrain.jobs.backends.hosts import end_job
from nbtrain.jobs.control.control import cancel, request_save, wait
from nbtrain.jobs.submission.submit import submit
from tests.clusters import hosts
from tests.jobs.conftest import FAKE_RANK
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
END_SECONDS = 600.0
# Prefix of a host's problem: where the run names the host.
NAMED_BY = "  override backend.hosts.hosts=[hosta, hostb]: backend.hosts.hosts"


@pytest.fixture
def on_hosts(pair: hosts.HostPair, fake: Callable[..., Any]) -> Iterator[Callable[..., JobDir]]:
    """Return a function that submits the fake run on both hosts. Each test must leave no process there."""
    started: list[JobDir] = []

    def start(name: str = "tiny", ranks: int = 4, command: Any = (FAKE_RANK,), **more: Any) -> JobDir:
        places = {"hosts.hosts": list(hosts.NAMES), "hosts.ssh_config": str(pair.ssh_config)}
        config = fake(ranks=ranks, backend={"kind": "hosts", **places, **more.pop("backend", {})}, **more)
        resources = config.resources.model_copy(update={"nodes": 2})
        started.append(
            submit(config.model_copy(update={"name": name, "resources": resources}), command=command)
        )
        return started[-1]

    yield start
    for job in started:
        cancel(job, now=True)
        backend_of("hosts").finish(job, now=False)
        assert end_job.marked(job.job_id) == {}, f"processes of {job.run.name} were left behind"


def test_two_hosts_train_to_the_end(on_hosts: Callable[..., JobDir]) -> None:
    """Two ranks on each host train to the end, and the agent on each host reports its address."""
    job = on_hosts(steps=20)
    assert wait(job, END_SECONDS) == (SUCCEEDED, "all steps are trained and saved: 20 steps")
    ends = [ExitRecord.read(job.exit_record(rank, 0)) for rank in range(4)]
    assert [end.outcome for end in ends] == ["finished"] * 4
    assert [NodeRecord.read(job.node(node)).host for node in range(2)] == list(hosts.NAMES)
    assert (job.path / "hostfile").read_text() == "hosta slots=1\nhostb slots=1\n"


@pytest.mark.soak
def test_one_of_two_jobs_is_cancelled_and_the_other_goes_on(
    on_hosts: Callable[..., JobDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one of two jobs is cancelled, the other one continues; DeepSpeed's own launcher would end both.

    The ranks of the cancelled job save first. The other job is saved and cancelled from a machine that only
    sees its folder.
    """
    first, second = (on_hosts(name, steps=100_000) for name in ("first", "second"))
    for job in (first, second):
        wait_until(lambda job=job: status_of(job)[0] == RUNNING, "RUNNING", END_SECONDS)
    state, cause = cancel(first)
    assert (state, cause.split(" at ")[0]) == (CANCELLED, "stopped on request"), cause
    backend_of("hosts").finish(first, now=False)
    assert end_job.marked(first.job_id) == {}
    step = Heartbeat.read(second.heartbeat(3)).step
    wait_until(lambda: Heartbeat.read(second.heartbeat(3)).step > step + 5, "steps of the other job")
    assert (status_of(second)[0], JobRecord.read(second.job_json).restarts) == (RUNNING, 0)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(records, "host_name", lambda: "elsewhere")
        elsewhere.setattr(ProcessIdentity, "alive", lambda self: False)
        assert request_save(second, END_SECONDS) > step
        state, cause = cancel(second)
    assert (state, cause.split(" at ")[0]) == (CANCELLED, "stopped on request"), cause


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"key": "stranger"},
            "hosta does not accept any ssh key of this user. Put your public key there (`ssh-copy-id "
            "-F CONFIG hosta`)"
            "; a job cannot enter a password.",
        ),
        (
            {"known": "unknown"},
            "hosta has a host key that is not known on this machine. Log in once by hand (`ssh -F CONFIG "
            "hosta`) and verify the key, or add it with ssh-keyscan.",
        ),
        (
            {"known": "changed"},
            "hosta has a different host key than the one that is known on this machine. If the host was "
            "reinstalled, remove the old key (`ssh-keygen -R hosta`) and log in once by hand. Otherwise, "
            "another machine may be "
            "intercepting the connection.",
        ),
    ],
)
def test_a_wrong_key_is_named_for_each_host(
    pair: hosts.HostPair, on_hosts: Callable[..., JobDir], changes: dict[str, str], words: str
) -> None:
    """A wrong ssh key is reported for each host before anything is started, and nothing is written."""
    config = str(pair.config_with(**changes))
    words = words.replace("CONFIG", config)
    with pytest.raises(SubmitError) as caught:
        on_hosts(backend={"hosts.ssh_config": config})
    problems = str(caught.value).splitlines()[1:-1]
    assert problems == [f"{NAMED_BY}: {words}", f"{NAMED_BY}: {words.replace('hosta', 'hostb')}"]
    assert not RunDir.named("tiny").exists()


def test_a_wrong_hostfile_is_refused_before_anything_starts(
    on_hosts: Callable[..., JobDir], workspace: Path
) -> None:
    """A hostfile with an invalid line, a name that cannot be resolved, or too few machines is rejected before
    the start.
    """
    hostfile = workspace / "machines"
    use = {"hosts.hosts": [], "hosts.hostfile": "machines"}
    for text, words in (
        (
            "hosta slots=2\nhostb slot=2\n",
            f"{hostfile}:2: 'hostb slot=2' does not describe a machine. Write `name slots=8`: a host name "
            "or an IPv4 address, and the largest number of ranks there.",
        ),
        (
            "hosta slots=2\n",
            "machines names 1 machine, but resources.nodes = 2. Add machines, or lower resources.nodes.",
        ),
        (
            "hosta slots=2\nhostb slots=1\n",
            "machines lists hostb with slots=1, but the run needs 2 slots on each machine. Raise slots if "
            "the machine has the devices, or use fewer ranks per machine.",
        ),
        (
            "hosta slots=2\nhostc slots=2\n",
            "hostc is a name that this machine cannot resolve. Correct the name, or add it to /etc/hosts "
            "or to "
            "ssh's configuration.",
        ),
    ):
        hostfile.write_text(text)
        with pytest.raises(SubmitError) as caught:
            on_hosts(backend=use)
        _, problem, _ = str(caught.value).splitlines()
        assert problem.endswith(words)
    assert not RunDir.named("tiny").exists()


@pytest.mark.soak
def test_checkpoints_of_two_hosts_outlive_a_rank_and_the_loss_of_a_host(
    pair: hosts.HostPair, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    """Checkpoints on the hosts' own disks are used after a rank is killed, but not if one of the hosts is
    lost.
    """
    places = {"backend.kind": "hosts", "backend.hosts.hosts": list(hosts.NAMES), "resources.nodes": 2}
    faults = [{"attempt": attempt, "step": 11 + 6 * attempt, "do": "kill", "rank": 1} for attempt in (0, 1)]
    config = tiny(
        **places,
        **{
            "name": "local",
            "backend.hosts.ssh_config": str(pair.ssh_config),
            "backend.restart_backoff_seconds": 6,
            "backend.env": {"NBTRAIN_TRACE": "1", "NBTRAIN_FAULTS": json.dumps(faults)},
            "parallel.data_parallel_size": 2,
            "batch.train_tokens": 24 * 8 * 16,
            "checkpoint.save_interval_steps": 6,
            "checkpoint.local_dir": f"{tmp_path}/{{host}}",
            "checkpoint.local_save_interval_steps": 2,
        },
    )
    job = submit(config)
    try:

        def attempts() -> list[records.AttemptRecord]:
            return JobRecord.read(job.job_json).attempts

        wait_until(lambda: len(attempts()) > 1 and attempts()[1].ended_at, "the second kill")
        shutil.rmtree(tmp_path / "hostb")
        state, cause = wait(job, END_SECONDS)
        assert (state, cause) == (SUCCEEDED, "all steps are trained and saved: 24 steps")
    finally:
        cancel(job, now=True)
        backend_of("hosts").finish(job, now=False)
    assert attempts()[1].resumed_from_step == 10
    assert attempts()[2].resumed_from_step < 16
    said = [event["message"] for event in read_events(job)]
    assert (
        "continues from step 10 on the disks of 2 nodes (hosta, hostb), newer than step 6 in the run "
        in " ".join(said)
    )
    reason = "step 16 of the nodes' own disks is not used: the files of rank 1 are not on any node"
    assert reason in said
    steps: dict[int, set[str]] = {}
    for event in read_events(job):
        if event["kind"] == "trace":
            steps.setdefault(event["step"], set()).add(event["loss"])
    # Repeated after a restart, each step had the same loss, bit for bit.
    assert sorted(steps) == list(range(1, 25)) and {len(losses) for losses in steps.values()} == {1}
