"""The verdict on an attempt, derived from the exit records of its ranks."""

import re
from dataclasses import replace

import pytest

from nbtrain.base.run_directory.records import ExitRecord
from nbtrain.config.load import load
from nbtrain.jobs.attempt.verdict import Circumstances, judge, lost_a_peer, user_error
from nbtrain.jobs.machine.host_memory import HostMemory
from nbtrain.jobs.supervisor.recovery import overdue

# Its settings leave room for every fix of memory and disk.
ROOMY = load("gpt-tiny", ["batch.micro_batch_size=2", "data.num_workers=1"])
DEADLINE_OF_5 = load("gpt-tiny", ["backend.deadline_seconds=5"])
TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1\n'


def record(rank, outcome, time=0.0, code=0, signal=None, step=7, message="words", detail="", error=""):
    return ExitRecord(rank, 0, time, code, signal, outcome, step, message, detail, error=error)


def judged(*records, **circumstances):
    # A checkpoint of the step that the ranks report, unless a test sets another.
    around = Circumstances(**{"world_size": len(records), "config": ROOMY, "saved_step": 7, **circumstances})
    return judge({entry.rank: entry for entry in records}, around)


def test_all_finished_is_success():
    """If every rank has finished, the state is SUCCEEDED, even if a stop was requested at the same moment."""
    verdict = judged(record(0, "finished"), record(1, "finished"), stop_requested=True)
    assert (verdict.state, verdict.retry) == ("SUCCEEDED", False)


def test_success_needs_every_rank():
    """If one exit record is missing, the state is not SUCCEEDED, whatever the other ranks report."""
    verdict = judged(record(0, "finished"), world_size=2)
    assert verdict.state == "FAILED"
    assert verdict.retry
    assert verdict.cause.startswith("rank 1's wrapper process was killed, and rank 1 with it, not by nbtrain")


def test_a_killed_wrapper_is_the_cause_and_not_its_peers_words():
    """The cause is the killed wrapper, not the closed connections that the peers of its rank report.

    A rank without a record has caused these errors, or the supervisor has ended it.
    """
    others = (record(0, "failed", message=GLOO), record(1, "killed", signal=9, code=None, time=9.0))
    verdict = judged(*others, world_size=3, stuck="rank 2 stopped 60 s ago", killed_at=5.0, gone=(2,))
    assert verdict.cause.startswith("rank 2's wrapper process was killed, and rank 2 with it, not by nbtrain")
    assert (verdict.retry, verdict.step, verdict.kind) == (True, 7, "no record")
    assert "pair.cc" not in verdict.cause and "stopped" not in verdict.cause
    assert verdict.rank == 2
    # Wrappers that ended later, with the launcher, are not named.
    assert "rank 1's" in judged(record(0, "failed", message=GLOO), world_size=4, gone=(1,)).cause
    # Ranks of which none left a record, and their agents neither: the end of the agents is the cause.
    left = "scancel ended step 12.0: nodes n0, n1 did not respond to the order to end their ranks"
    all_gone = judged(world_size=2, gone=(0, 1), node_left=left, killed_at=5.0)
    assert (all_gone.cause, all_gone.retry) == (f"{left}; no exit record from ranks 0, 1", True)
    assert all_gone.rank == 0
    both = judged(record(0, "failed", message=GLOO), world_size=3, gone=(1, 2)).cause
    assert both.startswith(
        "the wrapper processes of ranks 1, 2 were killed, and the ranks with them, not by nbtrain"
    )
    alone = judged(world_size=1, gone=(0,), launcher_message="exit code 1")
    assert alone.cause.startswith("rank 0's wrapper process was killed")
    counted = HostMemory(oom_kills=1, limit_bytes=3 << 30, peak_bytes=3 << 30)
    starved = judged(record(0, "failed", message=GLOO), world_size=2, gone=(1,), memory=counted)
    assert (
        ": out of host memory (the job's cgroup counts an out-of-memory kill; at most 3.00 of 3.00 GiB were "
        "used). Lower" in starved.cause
    )
    # A rank's own error is still the cause.
    assert "boom" in judged(record(0, "failed", message="RuntimeError: boom"), world_size=2).cause


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        (True, "stopped on request at step 7; saved"),
        (False, "a signal that nbtrain did not send stopped the ranks at step 7; saved"),
    ],
)
def test_stopped_is_cancelled(asked, cause):
    """If the ranks have saved and exited after a request, the state is CANCELLED, and the cause names the
    request.
    """
    verdict = judged(record(0, "stopped"), record(1, "stopped"), stop_requested=asked)
    assert (verdict.state, verdict.cause) == ("CANCELLED", cause)


def test_a_limit_of_the_run_is_the_cause():
    """A limit of the run is the cause if one rank reports it, because each rank reads its own clock.

    A user's request takes precedence.
    """
    records = (
        record(0, "stopped", detail="batch.exit_duration_minutes = 5 is reached"),
        record(1, "stopped"),
    )
    verdict = judged(*records)
    assert (verdict.state, verdict.retry) == ("CANCELLED", False)
    assert (
        verdict.cause
        == "batch.exit_duration_minutes = 5 is reached at step 7; saved; `nbtrain resume` continues the run"
    )
    assert judged(*records, stop_requested=True).cause == "stopped on request at step 7; saved"


def test_mode_perf_saves_nothing_and_says_so():
    assert (
        judged(record(0, "finished"), mode="perf").cause
        == "all steps are measured, and no checkpoint is saved"
    )
    stopped = judged(record(0, "stopped"), mode="perf", stop_requested=True)
    assert stopped.cause == "stopped on request at step 7; mode: perf saves no checkpoint"
    limited = judged(record(0, "stopped", detail="batch.exit_interval_steps = 7 is reached"), mode="perf")
    assert (
        limited.cause == "batch.exit_interval_steps = 7 is reached at step 7; mode: perf saves no checkpoint"
    )


def test_a_killed_launcher_is_tried_again():
    """If the launcher is killed, the ranks save and exit, and the attempt is repeated unless a stop was
    requested.
    """
    verdict = judged(record(0, "stopped"), record(1, "stopped"), launcher_signal=9)
    assert (verdict.state, verdict.retry) == ("FAILED", True)
    assert (
        verdict.cause
        == "the launcher of the ranks was killed by SIGKILL, not by nbtrain, so its ranks stopped at step 7; "
        "saved"
    )
    lost = judged(record(0, "failed", message=GLOO), world_size=2, launcher_signal=9)
    assert (lost.cause, lost.retry) == (
        "the launcher of the ranks was killed by SIGKILL, not by nbtrain; its ranks ended at step 7",
        True,
    )
    unheard = judged(world_size=2, launcher_signal=9, launcher_message="exit code -9")
    assert unheard.cause == "the launcher of the ranks was killed by SIGKILL, not by nbtrain; its ranks ended"
    # A rank that failed by itself comes first.
    assert "boom" in judged(record(0, "failed", message="RuntimeError: boom"), launcher_signal=9).cause
    verdict = judged(record(0, "stopped"), record(1, "stopped"), launcher_signal=9, stop_requested=True)
    assert (verdict.state, verdict.retry) == ("CANCELLED", False)


def test_a_stop_that_did_not_save_says_so():
    """If a rank fails or is killed during a stop, the state is CANCELLED, and the cause says what was not
    saved.
    """
    asked = {"stop_requested": True, "saved_step": None}
    killed = judged(record(0, "killed", signal=9, code=None), killed_at=8.0, **asked)
    assert (killed.state, killed.cause) == (
        "CANCELLED",
        "stopped on request; its ranks were killed before they had saved step 7; no checkpoint was saved",
    )
    failed = judged(record(0, "failed", code=1, message="no room"), **asked)
    assert (
        failed.cause
        == "stopped on request at step 7 before it could save (rank 0: no room); no checkpoint was saved"
    )


KILLED_AFTER_ITS_WORD = record(
    0,
    "killed",
    signal=9,
    code=None,
    time=9.0,
    message="killed by SIGKILL after it reported 'stopped': stopped",
)


def test_a_stop_that_saved_says_so_whatever_became_of_its_processes():
    """If the checkpoint of a stop is complete, it counts as saved, even if a rank was killed afterwards."""
    stop = {"stop_requested": True, "saved_step": 7}
    killed = judged(KILLED_AFTER_ITS_WORD, killed_at=8.0, **stop)
    assert (killed.state, killed.cause, killed.retry) == (
        "CANCELLED",
        "stopped on request at step 7; saved (its processes had to be killed later)",
        False,
    )
    half = judged(record(0, "stopped"), world_size=2, killed_at=8.0, **stop)
    assert half.cause == killed.cause
    failed = judged(record(0, "failed", code=1, message="exit code 1 after it reported 'stopped'"), **stop)
    assert failed.state == "CANCELLED"
    assert failed.cause == (
        "stopped on request at step 7; saved (rank 0: exit code 1 after it reported 'stopped')"
    )
    measured = judged(KILLED_AFTER_ITS_WORD, killed_at=8.0, mode="eval", **stop)
    assert "mode: eval saves no checkpoint" in measured.cause


@pytest.mark.parametrize("number", [6, 9, 15])
def test_a_rank_that_failed_and_was_then_ended_by_a_signal_is_the_cause(number):
    """The cause is the rank that raised an error of its own, here a full disk, even if a lost connection made
    its peer fail earlier and a signal then ended it.
    """
    full = record(
        1, "failed", signal=number, code=None, time=9.0, message="OSError: [Errno 28] No space left"
    )
    verdict = judged(record(0, "failed", message=GLOO, time=1.0), full)
    assert verdict.kind == "disk"
    assert verdict.cause.startswith("rank 1 failed at step 7: the disk is full: OSError")
    peer = record(1, "failed", signal=number, code=None, time=9.0, message=GLOO)
    assert judged(record(0, "failed", code=1, message="boom"), peer).cause == "rank 0 failed at step 7: boom"


@pytest.mark.parametrize(
    ("message", "detail"),
    [
        (
            "RuntimeError: Caught RuntimeError in DataLoader worker process 0.",
            "Original Traceback ...\nRuntimeError: unable to allocate shared memory(shm) for file "
            "</torch_1>: No space left on device (28)\n",
        ),
        (
            "OSError: [Errno 28] No space left on device",
            "    sl = self._semlock = _multiprocessing.SemLock(\nOSError: [Errno 28] No space left on device",
        ),
        (
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory.",
            "",
        ),
        (
            "DistBackendError: NCCL error: Error while creating shared memory segment /dev/shm/nccl-x",
            "",
        ),
    ],
)
def test_full_shared_memory_is_no_full_disk(message, detail):
    """A full /dev/shm is not treated like a full disk, because waiting or another attempt would not help."""
    verdict = judged(record(1, "failed", message=message, detail=detail))
    last = (detail or message).strip().splitlines()[-1]
    assert verdict.cause.startswith(f"rank 1 failed at step 7: /dev/shm is full: {last.rstrip('.')}. ")
    assert "Set data.num_workers=0" in verdict.cause and "--shm-size" in verdict.cause
    assert (verdict.kind, verdict.retry) == ("shared memory", False)


@pytest.mark.parametrize(("number", "code"), [(9, None), (6, None), (None, 1)])
def test_ranks_that_said_they_had_left_are_a_clean_stop(number, code):
    """A rank that is killed while it exits, after it has reported its end, does not count as killed.

    Its checkpoint must exist, because the report alone proves nothing.
    """
    ended = replace(KILLED_AFTER_ITS_WORD, signal=number, exit_code=code, said="stopped")
    other = replace(record(1, "stopped"), said="stopped")
    stop = {"stop_requested": True, "killed_at": 8.0 if number == 9 else None}
    assert judged(ended, other, **stop).cause == "stopped on request at step 7; saved"
    assert "killed" in judged(ended, replace(other, said=""), **stop, saved_step=6).cause
    lost = judged(ended, other, saved_step=4, **stop).cause
    assert "the newest checkpoint is from step 4" in lost
    done = judged(replace(ended, said="finished"), replace(other, said="finished"), **stop)
    assert done.state == "SUCCEEDED"


def test_a_stop_before_the_first_new_step_has_lost_nothing():
    """A stop while the checkpoint is being loaded loses nothing, because the heartbeat is at the checkpoint's
    step.
    """
    killed = judged(
        replace(KILLED_AFTER_ITS_WORD, step=None), stop_requested=True, killed_at=8.0, reached_step=7
    )
    assert killed.cause == "stopped on request at step 7; saved (its processes had to be killed later)"


@pytest.mark.parametrize(
    ("step", "saved_step", "cause"),
    [
        (
            7,
            None,
            "its ranks were killed before they had saved step 7; no checkpoint was saved",
        ),
        (
            7,
            4,
            "its ranks were killed before they had saved step 7; the newest checkpoint is from step 4",
        ),
        (
            None,
            None,
            "its ranks were killed before they had saved; no checkpoint was saved",
        ),
        (
            None,
            4,
            "stopped on request; its ranks were killed before they reported a save; the newest checkpoint is "
            "from step 4",
        ),
    ],
)
def test_a_checkpoint_of_an_earlier_step_is_not_the_save_of_the_stop(step, saved_step, cause):
    """Steps after the newest complete checkpoint are lost; if no rank reported its step, their number is
    unknown.
    """
    killed = replace(KILLED_AFTER_ITS_WORD, step=step)
    verdict = judged(killed, stop_requested=True, killed_at=8.0, saved_step=saved_step)
    assert verdict.state == "CANCELLED" and verdict.cause.endswith(cause)


@pytest.mark.parametrize(
    ("records", "saved_step", "cause"),
    [
        ([], None, "before step 1: nothing to save"),
        ([], 4, "before step 5: nothing to save; a resume continues from the checkpoint of step 4"),
        ([record(0, "killed", signal=15, code=None, step=None)], None, "before step 1: nothing to save"),
        (
            [record(0, "failed", code=1, step=None, message="DataError: no such file")],
            None,
            "before step 1: nothing to save (rank 0: DataError: no such file)",
        ),
    ],
)
def test_a_stop_before_the_first_step_has_nothing_to_save(records, saved_step, cause):
    """A stop before the first step loses nothing, and the cause says where a resume starts."""
    around = {"world_size": 2, "stop_requested": True, "killed_at": 8.0, "trained": False}
    verdict = judged(*records, saved_step=saved_step, **around)
    assert verdict.state == "CANCELLED"
    assert verdict.cause == f"stopped on request while its ranks were starting, {cause}"
    assert overdue(verdict, DEADLINE_OF_5).cause == (
        "deadline: backend.deadline_seconds = 5 has passed; stopped while its ranks were starting, " + cause
    )


BOTH_STOPPED = (record(0, "stopped"), record(1, "stopped"))
LATE = (KILLED_AFTER_ITS_WORD, record(1, "stopped"))
ENDINGS = {
    "finished": (record(0, "finished"), record(1, "finished"), {}),
    "stopped in time": (*BOTH_STOPPED, {"stop_requested": True}),
    "stopped late": (*LATE, {"stop_requested": True, "killed_at": 8.0}),
    "killed while stopping": (
        *(record(0, "killed", signal=9, code=None), record(1, "killed", signal=9, code=None)),
        {"stop_requested": True, "killed_at": 8.0},
    ),
    "failed while stopping": (record(0, "failed", code=1), record(1, "stopped"), {"stop_requested": True}),
    "its node is gone": (*BOTH_STOPPED, {"node_left": "node 1 is gone"}),
    "its launcher was killed": (*BOTH_STOPPED, {"launcher_signal": 9}),
    "its time is over": (record(0, "stopped", detail="batch.exit_duration_minutes"), BOTH_STOPPED[1], {}),
    "a signal from outside": (*BOTH_STOPPED, {}),
    "killed": (record(0, "killed", signal=9, code=None), record(1, "failed", message="reset"), {}),
    "failed": (record(0, "failed", message="RuntimeError: boom"), record(1, "stopped"), {}),
    "the disk is full": (record(0, "failed", message="[Errno 28] No space left on device"), LATE[1], {}),
}
"""Every way in which an attempt that has trained 7 steps can end."""


@pytest.mark.parametrize("saved_step", [None, 4, 7])
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_sentence_names_the_checkpoint_that_is_there(ending, saved_step):
    """The cause says "saved" only if a checkpoint of the ranks' step exists, whatever the ranks reported."""
    *records, around = ENDINGS[ending]
    cause = judged(*records, **around, saved_step=saved_step).cause
    named = re.search(r"newest checkpoint is from step (\d+)", cause)
    if named:
        assert int(named[1]) == saved_step
    says_none = re.search(r"no checkpoint was saved|before (?:they had|it could) save", cause)
    assert not says_none or saved_step != 7, cause
    says_saved = re.search(r"; saved|trained and saved", cause)
    assert not says_saved or saved_step == 7, cause
    if ending not in ("killed", "failed", "the disk is full"):
        assert bool(says_saved) == (saved_step == 7), cause
        assert saved_step != 4 or named, cause


def test_the_first_failure_is_the_cause():
    """The rank that failed first is the cause, not the one with the lowest number, because its peers fail as
    a consequence.
    """
    verdict = judged(
        record(0, "failed", time=5.0, code=1, message="connection closed"),
        record(
            1,
            "failed",
            time=4.0,
            code=1,
            message="RuntimeError: boom",
            detail=f"{TRACEBACK}RuntimeError: boom",
        ),
    )
    assert verdict.cause == "rank 1 failed at step 7: RuntimeError: boom"
    assert verdict.retry
    assert verdict.signature == (7, "RuntimeError: boom")
    # The peer that lost it reported a second earlier.
    victim = record(0, "failed", time=3.0, code=1, message="connection closed")
    culprit = record(1, "failed", time=4.0, code=1, message="boom")
    assert judged(victim, culprit).rank == verdict.rank == 1


GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (
            HostMemory(1, 1, 8 * GIB, 8 * GIB),
            "rank 1 was killed: out of host memory: the kernel killed it (SIGKILL; the job's cgroup counts "
            "an out-of-memory kill; at most 8.00 of 8.00 GiB were used). Lower data.num_workers or "
            "batch.micro_batch_size, or give the job more memory",
        ),
        (
            HostMemory(None, 2, killed=frozenset({(7, 41), (9, 43)})),
            "the kernel killed it (SIGKILL; the kernel's log names process 43). Lower ",
        ),
        (
            HostMemory(1, 2, killed=frozenset({(7, 41), (8, 42)})),
            "rank 1 was killed by SIGKILL, not by nbtrain but by a user, another program or possibly the "
            "kernel's out-of-memory killer: it killed 2 processes on the machine",
        ),
        (
            HostMemory(0, 1),
            ": it killed 1 process on the machine during the attempt, but none in the job's cgroup",
        ),
        (
            HostMemory(0, 0, 8 * GIB, 2 * GIB),
            "rank 1 was killed by SIGKILL, not by nbtrain but by a user, another program or the kernel's "
            "out-of-memory killer (the kernel counts no such kill; at most 2.00 of 8.00 GiB were used)",
        ),
        (HostMemory(), "out-of-memory killer (the kernel's counters are not readable)"),
    ],
)
def test_signal_9_tells_memory_from_a_person(memory, words):
    """A rank that was killed by signal 9 ran out of memory if the count of its cgroup increased or the kernel
    log names its process.

    The count of the whole machine is not used, because another program may be the reason.
    """
    entry = record(1, "killed", code=None, signal=9, step=None, message="killed by SIGKILL")
    verdict = judged(record(0, "failed", time=1.0, code=1), entry, memory=memory, pids={0: 42, 1: 43})
    assert verdict.cause.startswith("rank 1 was killed") and "killed: killed" not in verdict.cause
    assert words in verdict.cause
    assert verdict.retry
    # Only a certain cause counts as the same failure again, which is not tried a third time.
    sure = "the kernel killed it" in words
    assert (verdict.kind, verdict.signature) == (
        ("host memory", ("host memory", 7)) if sure else ("killed", None)
    )


def test_exit_code_137_is_a_sigkill_behind_a_shell():
    entry = record(0, "failed", code=137, message="exit code 137 without a report; see the end of its log")
    assert judged(entry, memory=HostMemory(1)).cause == (
        "rank 0 was killed at step 7: out of host memory: the kernel killed it (exit code 137; the "
        "job's cgroup counts an out-of-memory kill). Lower data.num_workers or batch.micro_batch_size, or "
        "give the job more memory"
    )
    assert "exit code 137, which stands for SIGKILL, not by nbtrain" in judged(entry).cause


def test_a_full_disk_is_reported_and_waited_for():
    """A full disk, whether a write failed or a checkpoint would not fit, is reported, and the job waits for
    free space.
    """
    said = "OSError: [Errno 28] No space left on device"
    verdict = judged(record(0, "failed", code=1, message=said, detail=f"{TRACEBACK}{said}"))
    assert verdict.cause.startswith(f"rank 0 failed at step 7: the disk is full: {said}. Free up space there")
    assert (verdict.retry, verdict.kind) == (True, "disk")
    # A checkpoint that does not fit has its own fix.
    said = "model: a checkpoint needs 2.00 GB, but only 0.50 GB is free. Lower checkpoint.keep_last."
    refused = judged(replace(record(0, "failed", code=1, message=said, detail=said), error="DiskFullError"))
    assert refused.cause == f"rank 0 failed at step 7: the disk is full: {said.removesuffix('.')}"
    assert (refused.retry, refused.kind) == (True, "disk")


CUDA = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def test_out_of_gpu_memory_is_tried_again_only_after_good_steps():
    """Running out of GPU memory in the first steps is an error of the configuration, with advice on how to
    reduce memory.

    After that, it may be caused by fragmentation, and the attempt is repeated.
    """
    roomy = load("gpt-125m-4xdp", ["batch.micro_batch_size=2"])
    early = judged(
        record(0, "failed", code=1, step=3, message=CUDA, detail=f"{TRACEBACK}torch.{CUDA}"),
        first_step=2,
        config=roomy,
    )
    assert early.cause == (
        "rank 0 failed at step 3: out of GPU memory: CUDA out of memory. Tried to allocate 2.00 GiB. Lower "
        "batch.micro_batch_size (the global batch size stays the same), set "
        "parallel.activation_checkpointing.granularity: full, or raise parallel.zero_stage"
    )
    assert (early.retry, early.kind) == (False, "device memory")
    # Only what this run can still change is named: stage 2 is the highest of a compiled model.
    tight = {
        "batch.micro_batch_size": 1,
        "parallel.activation_checkpointing.granularity": "full",
        "model.compile": True,
    }
    for changes, fix in (
        ({"parallel.zero_stage": 1}, "Raise parallel.zero_stage"),
        ({"parallel.zero_stage": 2}, "Shard each copy of the model across more GPUs, or use larger GPUs"),
        ({"batch.micro_batch_size": 2, "parallel.zero_stage": 2}, "Lower batch.micro_batch_size (the global"),
    ):
        config = load("gpt-125m-4xdp", {**tight, **changes})
        failed = record(0, "failed", code=1, step=3, message=CUDA, detail=f"{TRACEBACK}torch.{CUDA}")
        assert f"2.00 GiB. {fix}" in judged(failed, first_step=2, config=config).cause
    late = judged(record(0, "failed", code=1, step=90, message=CUDA, detail=TRACEBACK), first_step=50)
    assert late.cause == (
        "rank 0 failed at step 90: out of GPU memory: CUDA out of memory. Tried to allocate 2.00 GiB. (after "
        "40 good steps)"
    )
    assert late.retry and late.signature == ("device memory", 90)
    for good_steps, retry in ((19, False), (20, True)):
        failed = record(0, "failed", code=1, step=50 + good_steps, message=CUDA, detail=TRACEBACK)
        assert judged(failed, first_step=50).retry is retry


def test_an_allocation_that_the_host_refuses_is_host_memory():
    said = "RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"
    verdict = judged(record(0, "failed", code=1, step=1, message=said, detail=TRACEBACK + said))
    assert verdict.cause.startswith(
        "rank 0 failed at step 1: out of host memory: RuntimeError: [enforce fail"
    )
    assert (verdict.retry, verdict.kind) == (False, "host memory")


def test_a_lost_gpu_is_reported():
    said = "AcceleratorError: CUDA error: uncorrectable ECC error encountered"
    verdict = judged(record(3, "failed", code=1, message=said, detail=TRACEBACK + said), world_size=1)
    assert verdict.cause == f"rank 3 failed at step 7: its GPU is lost: {said}"
    assert (verdict.retry, verdict.kind) == (True, "device")


GLOO = "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:31234"
NCCL = (
    "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, remote process exited or there was a network "
    "error"
)


@pytest.mark.parametrize("said", [GLOO, NCCL])
def test_a_rank_that_lost_its_peer_is_no_cause(said):
    """A rank's own error or death is the cause, even if the record of a peer that lost it is earlier."""
    follower = record(0, "failed", time=1.0, code=1, message=said, detail=TRACEBACK + said)
    boom = record(1, "failed", time=2.0, code=1, message="ValueError: boom", detail=TRACEBACK)
    assert judged(follower, boom).cause == "rank 1 failed at step 7: ValueError: boom"
    dead = record(1, "killed", time=2.0, code=None, signal=11, message="killed by SIGSEGV")
    assert judged(follower, dead).cause == "rank 1 was killed at step 7 by SIGSEGV"


def test_what_follows_from_the_end_of_others_is_no_cause():
    """An abort by the watchdog, a TERM from the launcher, and ranks that the supervisor killed are never the
    cause.
    """
    lost = record(0, "failed", time=1.0, code=1, message=GLOO, detail=TRACEBACK + GLOO)
    abort = record(1, "killed", time=0.5, code=None, signal=6, message="killed by SIGABRT")
    ours = record(2, "killed", time=9.0, code=None, signal=9, message="killed by SIGKILL")
    verdict = judged(lost, abort, ours, killed_at=8.0)
    assert (
        verdict.cause
        == "ranks lost contact with each other, and none of them reported another error; the first report is "
        f"from rank 0 at step 7: {GLOO}"
    )
    assert verdict.retry and verdict.kind == "lost peer"
    assert judged(replace(lost, message="Watchdog caught collective operation timeout")).kind == "timeout"
    ours = record(1, "killed", time=9.0, code=None, signal=9, message="killed by SIGKILL")
    stuck = judged(lost, ours, killed_at=8.0, stuck="rank 1 stopped 60 s ago")
    assert stuck.cause == f"rank 1 stopped 60 s ago; rank 0 gave up waiting at step 7: {GLOO}"
    assert (stuck.kind, stuck.rank, verdict.rank) == ("hang", 0, 0)
    known = judged(lost, ours, killed_at=8.0, stuck="rank 1 stopped 60 s ago", awaited=1)
    assert (known.cause, known.rank) == (stuck.cause, 1)
    assert lost_a_peer({0: lost}) and not lost_a_peer({0: lost, 1: abort}) and not lost_a_peer({})


def test_a_rollback_carries_what_is_passed_over():
    """A rollback restarts the job without the samples of the bad step, if every rank exited in an orderly
    way.

    If a stop was requested, the job stops, and the next job still skips these samples.
    """
    order = '{"step": 12, "first": 88, "last": 96}'
    ranks = [record(rank, "rollback", message="step 12: the loss is nan", detail=order) for rank in (0, 1)]
    verdict = judged(*ranks)
    assert (verdict.state, verdict.cause, verdict.retry) == ("FAILED", "step 12: the loss is nan", True)
    assert (verdict.kind, verdict.step, verdict.bad_samples) == ("rollback", 12, (88, 96))
    assert verdict.rank is None
    stopped = judged(*ranks, stop_requested=True)
    assert (stopped.state, stopped.retry, stopped.bad_samples) == ("CANCELLED", False, (88, 96))
    assert stopped.cause == "step 12: the loss is nan; stopped on request before the rollback"


def test_a_step_that_stops_the_run_is_not_tried_again():
    """A StabilityError is not retried, because the same data would cause the same error again."""
    said = "step 12: the loss is nan on rank 1 of 2; a.yaml:3: stability.on_nan = stop ends the job."
    ended = record(0, "failed", code=8, message=said, detail=said, error="StabilityError")
    verdict = judged(ended)
    assert verdict.kind == "unstable"
    assert judged(replace(ended, error="LossScaleError")).kind == "smallest loss scale"
    assert judged(replace(ended, error="DataError")).kind == "user error"
    # The message states the step; the step of the heartbeat would be a second, different number.
    assert (verdict.cause, verdict.retry) == (f"rank 0 failed: {said}", False)


def test_a_hang_is_the_cause_whatever_the_kill_left():
    """A hang is the cause, and the ranks that were killed because of it do not count as unexplained
    deaths.
    """
    verdict = judged(
        record(0, "killed", code=None, signal=9),
        hang="no heartbeat for 5 s: rank 0",
        awaited=0,
        killed_at=8.0,
    )
    assert verdict.rank == 0
    assert (verdict.state, verdict.cause, verdict.retry) == ("FAILED", "no heartbeat for 5 s: rank 0", True)


def test_the_first_rank_of_a_node_that_is_gone_has_failed_first():
    """If ranks are killed because a node is gone, the first rank of that node counts as the one that failed,
    unless no rank has left a record.
    """
    killed = {rank: record(rank, "killed", code=None, signal=9) for rank in (0, 1)}
    around = Circumstances(6, ROOMY, hang="node b is gone", killed_at=0.0)
    assert (judge(killed, around).rank, judge({}, around).rank) == (2, None)
    everyone = {rank: record(rank, "killed", code=None, signal=9) for rank in range(6)}
    assert judge(everyone, around).rank is None


def test_a_launcher_that_never_started_a_rank():
    """If a launcher never started a rank, there is no exit record, so the cause comes from the last lines of
    its log.
    """
    verdict = judge({}, Circumstances(2, ROOMY, launcher_message="exit code 1; see logs/supervisor.log"))
    assert verdict.cause == (
        "the launcher ended before any rank wrote an exit record: exit code 1; see logs/supervisor.log"
    )
    assert verdict.retry


@pytest.mark.parametrize(
    ("message", "detail", "expected"),
    [
        ("data/x.bin: truncated", "data/x.bin: truncated: 3 bytes", True),
        ("boom", f"{TRACEBACK}nbtrain.base.errors.CheckpointError: it does not fit", True),
        ("ConfigError: a.yaml:3", "", True),
        ("RuntimeError: boom", f"{TRACEBACK}RuntimeError: a DataError in the text", False),
        ("exit code 7 without a report", "", False),
    ],
)
def test_errors_of_the_user_are_known(message, detail, expected):
    """Only an nbtrain error, as the message or at the end of a traceback, counts as a user's error."""
    assert user_error(record(0, "failed", code=1, message=message, detail=detail)) is expected


def test_ranks_that_stop_because_a_node_is_taken_go_on():
    """If ranks stop because the scheduler takes a node away, they are restarted, because the run was not
    cancelled.
    """
    left = "node 1: was asked to leave (SIGTERM)"
    verdict = judged(record(0, "stopped"), record(1, "stopped"), node_left=left)
    assert (verdict.state, verdict.retry) == ("FAILED", True)
    assert verdict.cause == f"{left}, so its ranks stopped at step 7; saved"
    asked = judged(record(0, "stopped"), record(1, "stopped"), node_left=left, stop_requested=True)
    assert asked.state == "CANCELLED"


def test_the_rollback_of_a_single_rank():
    """If a single rank requests a rollback, the request contains the samples that the next attempt skips."""
    order = '{"step": 12, "first": 88, "last": 96}'
    verdict = judged(record(0, "rollback", message="nan", detail=order))
    assert (verdict.kind, verdict.retry, verdict.bad_samples) == ("rollback", True, (88, 96))
