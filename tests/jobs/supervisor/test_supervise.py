"""A job from submission to end with real processes: supervisor, launcher, wrappers and fake ranks."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nbtrain.base import files
from nbtrain.base.errors import JobError, SubmitError
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.node_records import Ask
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat, JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.jobs.backends import supervised_here
from nbtrain.jobs.control import control
from nbtrain.jobs.machine import processes
from nbtrain.jobs.submission.submit import resume
from nbtrain.jobs.supervisor.predecessors import wait_for_predecessors
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def temporaries(run):
    return [path for path in run.path.rglob(".*.tmp")]


def test_a_job_goes_to_its_end(fake, start, states_of, workspace):
    """A job of two ranks ends as SUCCEEDED, with states and their durations in order, a log per rank, a
    summary, and no process left.

    The notification is sent at the end.
    """
    copy = [sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"]
    config = fake(ranks=2, steps=10)
    notify = config.notify.model_copy(update={"command": [*copy, str(workspace / "notified")]})
    job = start(config.model_copy(update={"notify": notify}))
    seen = []
    state, cause = control.wait(job, 800, on_change=lambda state, cause: seen.append(state))
    assert (state, cause) == ("SUCCEEDED", "all steps are trained and saved: 10 steps")
    assert seen[-1] == "SUCCEEDED"
    assert states_of(job) == ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
    assert [event["message"] for event in read_events(job) if event["kind"] in ("warning", "error")] == []
    changes = [event for event in read_events(job) if "previous_state" in event]
    assert [event["previous_state"] for event in changes] == ["QUEUED", "STARTING", "RUNNING"]
    assert all(event["seconds"] >= 0 for event in changes)
    # Threads are cores over ranks, whatever the submitting process had set for itself.
    cores = len(os.sched_getaffinity(0))
    for rank in (0, 1):
        assert f"rank {rank} of 2, attempt 0, threads {max(1, cores // 2)}" in job.log(rank, 0).read_text()
        record = ExitRecord.read(job.exit_record(rank, 0))
        assert (record.outcome, record.exit_code, record.signal, record.step) == ("finished", 0, None, 10)
    summary = files.read_json(job.run.summary_json)
    assert summary["state"] == "SUCCEEDED"
    assert summary["steps"] == summary["total_steps"] == 10
    assert summary["samples_per_second"] == 40.0
    assert (summary["last_validation_loss"], summary["best_validation_loss"]) == (4.5, 4.25)
    assert summary["best_validation_perplexity"] == pytest.approx(70.105, abs=0.001)
    assert summary["test_loss"] == 4.6
    assert (summary["num_parameters"], summary["seq_length"]) == (12_345, 16)
    record = JobRecord.read(job.job_json)
    # By the monotonic clock; the wall clock may be set meanwhile.
    assert summary["end_to_end_seconds"] == round(record.seconds_between("created_at", "ended_at"), 3) > 0
    assert temporaries(job.run) == []
    kinds = wait_until(
        lambda: [event for event in read_events(job) if event["kind"] == "notification"], "it is notified"
    )
    assert [event["message"] for event in kinds] == ["notify.command has run"]
    assert files.read_json(workspace / "notified") == summary
    with job.run.locked(blocking=False) as taken:
        assert taken


def test_a_dead_rank_is_restarted_from_the_checkpoint(fake, start, states_of):
    """After rank 1 is killed at step 7, between writing and renaming a file, the job restarts from step 5 and
    reports the steps that were lost. No temporary file and no damaged checkpoint is left.
    """
    faults = [{"rank": 1, "attempt": 0, "step": 7, "do": "torn"}]
    job = start(fake(faults, ranks=2, steps=10))
    assert control.wait(job, 800)[0] == "SUCCEEDED"
    assert states_of(job) == [
        "QUEUED",
        "STARTING",
        "RUNNING",
        "RESTARTING",
        "STARTING",
        "RUNNING",
        "SUCCEEDED",
    ]
    record = JobRecord.read(job.job_json)
    assert (record.attempt, record.restarts, record.cause) == (
        1,
        1,
        "all steps are trained and saved: 10 steps",
    )
    events = read_events(job)
    restart = next(event for event in events if event["kind"] == "restart")
    assert "rank 1 was killed by SIGKILL, not by nbtrain" in restart["cause"]
    assert restart["reason"] == "killed"
    lost = next(event for event in events if "lost_tokens" in event)
    assert lost["checkpoint_step"] == 5
    # 8 sequences of 16 tokens in a step.
    assert lost["lost_tokens"] == (lost["step"] - 5) * 128 > 0
    assert ExitRecord.read(job.exit_record(1, 0)).signal == 9
    assert record.resumed_from_step == 5
    first, second = record.attempts
    assert (first.reason, second.reason, second.given_up) == ("killed", None, "")
    assert (first.failed_rank, second.failed_rank) == (1, None)
    assert (first.attempt, first.cause, first.lost_tokens) == (0, restart["cause"], lost["lost_tokens"])
    assert (first.world_size, first.resumed_from_step, second.resumed_from_step) == (2, None, 5)
    assert (second.cause, second.lost_tokens) == (None, None)
    assert (first.first_step, second.first_step, second.first_tokens) == (None, 5, 5 * 128)
    assert first.started_at < first.running_at < first.ended_at < second.started_at < second.running_at
    assert files.read_json(job.run.summary_json)["lost_tokens"] == first.lost_tokens
    assert temporaries(job.run) == []
    # A first checkpoint that is incomplete would make every further attempt fail.
    assert job.run.checkpoint_steps() == [5, 10]
    said = [event["message"] for event in events if event["message"].startswith("removed ")]
    assert "removed model/global_step7, left half-written by attempt 0" in said
    # The wrapper's reserve file for its record is removed silently.
    assert said and not any("reserve" in line for line in said)


def test_a_killed_wrapper_and_a_killed_launcher_are_named_as_such(fake, start):
    """If a wrapper is killed with -9, it is named, and the rank is restarted.

    If the launcher is killed, that is named too, and its ranks have as much time to save as after a stop.
    """
    job = start(fake(ranks=2, steps=1000, step_seconds=5, backend={"max_restarts": 1}))

    def training(attempt):
        beats = [Heartbeat.read(job.heartbeat(rank)) for rank in (0, 1)]
        there = all(beat and beat.attempt == attempt and beat.phase == "train" for beat in beats)
        return beats[1].process.pid if there else None

    def parent(pid):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    wrapper = parent(wait_until(lambda: training(0), "both ranks train"))
    os.kill(wrapper, signal.SIGKILL)
    launcher = parent(parent(wait_until(lambda: training(1), "both train again")))
    os.kill(launcher, signal.SIGKILL)
    state, cause = control.wait(job, 800)
    first, second = JobRecord.read(job.job_json).attempts
    assert (first.reason, second.given_up) == ("no record", "backend.max_restarts = 1 is used up")
    assert first.failed_rank == 1
    assert first.cause.startswith("rank 1's wrapper process was killed, and rank 1 with it, not by nbtrain")
    assert state == "FAILED"
    assert re.fullmatch(
        r"the launcher of the ranks was killed by SIGKILL, not by nbtrain, so its ranks stopped at step \d+; "
        r"saved; not tried again: backend.max_restarts = 1 is used up",
        cause,
    )


def test_a_hanging_rank_is_named_killed_and_restarted(fake, start):
    """A rank that hangs for longer than heartbeat_timeout_seconds is named and killed, and the job is
    restarted.
    """
    faults = [
        {"rank": 1, "attempt": 0, "step": 6, "do": "stop"},
        {"rank": 0, "attempt": 0, "step": 6, "do": "hang"},
    ]
    # No save: a disk that stands still for so long would be named instead.
    config = fake(faults, ranks=2, steps=10, save_every=100, backend={"heartbeat_timeout_seconds": 8})
    job = start(config)
    assert control.wait(job, 800)[0] == "SUCCEEDED"
    cause = next(event for event in read_events(job) if event["kind"] == "restart")["cause"]
    assert re.fullmatch(
        r"no progress for 8 s: rank 1 stopped: last reported at step 6, \d+ s ago, while training; its "
        r"process is stopped by a "
        r"signal; rank 0 is training after step 6",
        cause,
    )


def test_cancel_saves_and_leaves_nothing(fake, start):
    """Cancel saves and leaves no process, lock or temporary file; a resume continues from that checkpoint."""
    job = start(fake(ranks=2, steps=1000))
    wait_until(lambda: (beat := Heartbeat.read(job.heartbeat(0))) and beat.step >= 3, "step 3")
    asked = control.request_save(job, wait_seconds=600)
    assert asked in job.run.checkpoint_steps()
    state, cause = control.cancel(job)
    step = max(job.run.checkpoint_steps())
    assert state == "CANCELLED"
    assert re.fullmatch(r"stopped on request at step [\d,]+; saved", cause)
    assert processes.marked_pids([job.job_id]) == []
    assert temporaries(job.run) == []
    with job.run.locked(blocking=False) as taken:
        assert taken
    # Cancelling again changes nothing.
    assert control.cancel(job) == (state, cause)

    more = {
        "backend.env": {"FAKE_STEPS": str(step + 4), "FAKE_FAULTS": "[]"},
        "batch.train_tokens": (step + 4) * 128,
    }
    second = resume(job.run, more, command=tuple(JobRecord.read(job.job_json).command))
    assert second.job_id > job.job_id
    assert control.wait(second, 800)[0] == "SUCCEEDED"
    assert JobRecord.read(second.job_json).resumed_from_step == step
    assert any("changed on resume: backend.env" in event["message"] for event in read_events(second))


def test_ranks_that_do_not_leave_are_killed(fake, start):
    """A rank that ignores the stop and a rank that was stopped by a signal are killed within the time
    limits.
    """
    faults = [{"rank": 0, "step": 5, "do": "ignore-stop"}, {"rank": 1, "step": 5, "do": "stop"}]
    seldom = {"ranks": 2, "steps": 100_000, "save_every": 100_000}
    job = start(fake(faults, backend={"shutdown_timeout_seconds": 1.0}, **seldom))
    wait_until(lambda: (beat := Heartbeat.read(job.heartbeat(0))) and beat.step >= 6, "step 6")
    state, cause = control.cancel(job)
    assert state == "CANCELLED"
    late = r"killed \d+ s after the request \(limit: backend.shutdown_timeout_seconds = 1\)"
    assert re.search(rf"{late} .*; no checkpoint was saved$", cause), cause
    assert processes.marked_pids([job.job_id]) == []
    assert ExitRecord.read(job.exit_record(1, 0)).signal == signal.SIGKILL


def test_cancel_now_and_cancel_while_starting(fake, start, monkeypatch):
    """`cancel --now` kills a job without saving, and a job that is starting can be cancelled too.

    The first job is submitted by a thread that blocks all signals, in a process that ignores some of them; no
    process of the job inherits these settings.
    """
    ignored = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        job = start(fake(steps=100_000, save_every=100_000))
    finally:
        for number, handler in ignored.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    wait_until(lambda: read_state(job, time.time())[0] == "RUNNING", "RUNNING")
    stops = 1 << signal.SIGQUIT - 1 | 1 << signal.SIGTERM - 1
    pids = processes.marked_pids([job.job_id])
    assert len(pids) >= 3  # supervisor or launcher, wrapper, rank
    for pid in (*pids, JobRecord.read(job.job_json).supervisor.pid):
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert int(status["SigBlk"], 16) == 0 and int(status["SigIgn"], 16) & stops == 0, status["Name"]
    assert control.cancel(job, now=True)[0] == "CANCELLED"
    assert Ask.read(job.control_ask).action == "stop_now"  # in the file, besides the signal
    assert job.run.checkpoint_steps() == []
    # Nothing is said about a queue, in which this job never has a place.
    monkeypatch.setattr(supervised_here, "FIRST_WORD_SECONDS", 600.0)
    second = start(fake(steps=100_000, backend={"share_devices": True}))
    assert JobRecord.read(second.job_json).state in ("STARTING", "RUNNING")
    state, cause = control.cancel(second)
    assert state == "CANCELLED"
    assert cause.startswith("stopped on request") and "killed" not in cause


def test_a_dead_supervisor_is_seen_and_its_ranks_leave(fake, start):
    """After kill -9 of the supervisor, the job is LOST, with a cause.

    Its ranks save and exit, and the next job waits until they have.
    """
    job = start(fake(ranks=2, steps=1000, step_seconds=0.5))
    wait_until(lambda: (beat := Heartbeat.read(job.heartbeat(0))) and beat.step >= 1, "step 1")
    wait_until(lambda: read_state(job, time.time())[0] == "RUNNING", "RUNNING")
    pid = JobRecord.read(job.job_json).supervisor.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: ProcessIdentity.of(pid) is None, "the supervisor's end")
    state, cause = read_state(job, time.time())
    assert state == "LOST"
    assert cause.startswith(f"its supervisor (pid {pid}) died without a message while the job was RUNNING")
    # Submitted at once, while the lost job's ranks are still at their last step.
    second = start(fake(ranks=2, steps=30))
    assert second.job_id != job.job_id
    assert control.wait(second, 800)[0] == "SUCCEEDED"
    assert processes.marked_pids([job.job_id]) == []
    left = ExitRecord.read(job.exit_record(0, 0))
    assert left.outcome == "stopped"
    starting = next(event for event in read_events(second) if event.get("state") == "STARTING")
    assert left.time < starting["time"]
    assert JobRecord.read(second.job_json).resumed_from_step == left.step > 0


def test_ranks_that_outlive_their_supervisor_are_asked_to_save(workspace, tmp_path):
    """The next job sends TERM to ranks that have outlived their supervisor, so that they save before they
    exit.
    """
    run = RunDir.named("tiny")
    for job_id in ("20260101-000000-aaaa", "20260101-000001-bbbb"):
        run.job(job_id).make_folders()
    lost, job_id = run.job_ids()
    script = (
        "import signal, sys, time\n"
        "def save(*_):\n    open(sys.argv[1], 'w').write('saved')\n    sys.exit()\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    marked = {**os.environ, processes.JOB_MARKER: lost}
    command = [sys.executable, "-c", script, tmp_path / "saved"]
    with subprocess.Popen(command, env=marked, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout.readline() == "ready\n"
        said = []
        journal = SimpleNamespace(
            job=run.job(job_id),
            reserve=None,
            lost_attempt=None,
            event=lambda kind, words: said.append(words),
        )
        wait_for_predecessors(journal, 300.0)
        assert rank.wait() == 0
    assert (tmp_path / "saved").read_text() == "saved"
    assert said == [
        "1 process of a lost job is asked to save and exit; waiting up to 300 s",
        "the process of the lost job has exited by itself",
    ]


def test_cancel_of_a_lost_job_ends_what_is_left(fake, start):
    """Cancelling a lost job finds a rank that ignores TERM by its marker, and kills it."""
    job = start(fake([{"step": 2, "do": "ignore-stop"}], steps=100_000))
    wait_until(lambda: (beat := Heartbeat.read(job.heartbeat(0))) and beat.step >= 3, "step 3")
    os.kill(JobRecord.read(job.job_json).supervisor.pid, signal.SIGKILL)
    wait_until(lambda: read_state(job, time.time())[0] == "LOST", "LOST")
    assert processes.marked_pids([job.job_id]) != []
    assert control.cancel(job, now=True)[0] == "LOST"
    assert processes.marked_pids([job.job_id]) == []


SECOND = """
import contextlib, sys
from nbtrain.base.run_directory.rundir import RunDir
RunDir.locked = lambda self, blocking=True: contextlib.nullcontext(True)
from nbtrain.jobs.supervisor.supervise import main
sys.exit(main(sys.argv[1], sys.argv[2]))
"""


def test_of_two_supervisors_the_older_one_leaves(fake, start):
    """If there are two supervisors, on a disk without working locks, the older one kills its ranks and writes
    nothing.
    """
    job = start(fake(steps=100_000, backend={"share_devices": True}))
    beat = wait_until(lambda: (beat := Heartbeat.read(job.heartbeat(0))) and beat.step > 2 and beat, "steps")
    saved = control.request_save(job, wait_seconds=600)
    first = JobRecord.read(job.job_json).supervisor
    with job.supervisor_log.open("ab") as log:
        arguments = [sys.executable, "-c", SECOND, str(job.run.path), job.job_id]
        subprocess.run(arguments, stdout=log, stderr=log, check=True)
    wait_until(lambda: not first.alive(), "the first one leaves")
    assert not beat.process.alive()
    assert "another supervisor has taken over: job.json names process " in job.supervisor_log.read_text()
    wait_until(lambda: JobRecord.read(job.job_json).state == "RUNNING", "the second one continues")
    assert control.request_save(job, wait_seconds=600) > saved
    assert control.cancel(job)[0] == "CANCELLED"
    record = JobRecord.read(job.job_json)
    assert record.supervisor != first
    assert (len(record.attempts), record.restarts) == (2, 0)
    assert record.attempts[0].cause == "the job's allocation was lost"
    assert record.attempts[0].reason == "allocation"
    # No process was left to record how the older one's rank ended.
    assert ExitRecord.read(job.exit_record(0, 0)) is None
    assert ExitRecord.read(job.exit_record(0, 1)).outcome == "stopped"


def test_a_job_goes_on_after_a_notice_and_after_a_pause(fake, start, states_of, workspace):
    """While the program of preemption_notice gives notice, the job has saved and is QUEUED. A paused job has
    saved and is SUSPENDED. After both it is the same job, and no restart is counted.
    """
    notice = workspace / "notice"
    backend = {"max_restarts": 0, "preemption_notice": ["test", "-e", str(notice)]}
    job = start(fake(steps=1_000_000, backend={**backend, "preemption_notice_interval_seconds": 1}))
    wait_until(lambda: (beat := Heartbeat.read(job.heartbeat(0))) and beat.step > 2, "it trains")
    notice.touch()
    wait_until(lambda: read_state(job, time.time())[0] == "QUEUED", "it waits")
    assert re.fullmatch(
        r"preempted, waiting in the queue since .* UTC, lost 0 steps; "
        r"backend\.preemption_notice \(test\) gave notice",
        read_state(job, time.time())[1],
    )
    notice.unlink()
    wait_until(lambda: read_state(job, time.time())[0] == "RUNNING", "it trains again")
    state, cause = control.pause(job)
    assert state == "SUSPENDED"
    assert re.fullmatch(
        r"paused on request at step ([\d,]+); saved; `nbtrain resume tiny` continues it", cause
    )
    supervisor = JobRecord.read(job.job_json).supervisor
    assert supervisor.alive() and processes.marked_pids([job.job_id]) == []
    with pytest.raises(JobError, match="is paused and has already saved"):
        control.request_save(job)
    with pytest.raises(SubmitError, match="and these cannot change on resume"):
        resume(job.run, {"model.seed": 7})
    assert resume(job.run).job_id == job.job_id
    wait_until(lambda: JobRecord.read(job.job_json).state == "RUNNING", "it continues")
    # Other settings need another job; the paused one is ended for it.
    control.pause(job)
    second = resume(job.run, {"logging.log_interval_steps": 7, "backend.max_restarts": 9})
    assert read_state(job, time.time())[0] == "CANCELLED"
    assert [
        event["message"] for event in read_events(job) if "while it was paused: " in event["message"]
    ] == [
        "resumed with other settings while it was paused: logging.log_interval_steps: 10 -> 7; "
        "backend.max_restarts: 0 -> 9. This job ends, and a new job continues the run"
    ]
    control.cancel(second)
    record = JobRecord.read(job.job_json)
    assert (record.restarts, record.attempt, len(record.preemptions)) == (0, 2, 1)
    assert record.attempts[1].resumed_from_step == record.attempts[0].reached_step
    # batch.exit_duration_minutes excludes the wait, and from the third attempt on the pause too.
    paused = [attempt.paused_seconds for attempt in record.attempts]
    assert paused[0] < paused[1] <= record.preemptions[0].waited_seconds and paused[1] < paused[2]
    assert [state for state in states_of(job) if state != "STARTING"] == [
        *("QUEUED", "RUNNING", "QUEUED", "RUNNING", "SUSPENDED", "RUNNING", "SUSPENDED", "CANCELLED"),
    ]
    with pytest.raises(JobError, match="is CANCELLED; only an active job can be paused"):
        control.pause(job)
