"""Advice that is derived from a run's state: after a failure, for a pending request, marks in curves, and
active alerts.
"""

import time
from dataclasses import asdict
from pathlib import Path

import pytest

from nbtrain.base.files import write_json
from nbtrain.base.run_directory.checkpoint_files import ResumeStart
from nbtrain.base.run_directory.records import AttemptRecord, ControlRequest, JobRecord, Preemption, Rollback
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load, to_yaml
from nbtrain.monitor.job.conditions import alerts_part
from nbtrain.monitor.run import advice as module
from nbtrain.monitor.run.advice import advice, marks, nan_words, remedies, waiting
from nbtrain.monitor.run.run_view import RunView
from nbtrain.monitor.runs.watched_runs import row_of
from nbtrain.monitor.status.run_status import RunStatus
from nbtrain.monitor.status.status_records import asked_of, read_status
from tests.lab.widgets.fake_run import FakeJob


@pytest.mark.parametrize(
    ("state", "end", "saved", "words"),
    [
        ("SUCCEEDED", {}, 7, ""),
        ("CANCELLED", {"reason": ""}, 7, ""),
        ("LOST", {}, 7, "A resume continues from the checkpoint of step 7."),
        (
            "FAILED",
            {"reason": "disk"},
            4,
            "Fix the cause first. The logs show the last traceback, if there is one. A resume "
            "continues from the checkpoint of step 4 and trains 3 steps again.",
        ),
        (
            "FAILED",
            {
                "reason": "killed",
                "cause": "killed by SIGKILL, not by nbtrain: by hand, or out of host memory",
            },
            None,
            "The logs show the last traceback, if there is one. No checkpoint was saved, so "
            "Resume starts again at step 0.",
        ),
        (
            "FAILED",
            {"reason": "killed", "given_up": "backend.max_restarts = 3 is used up"},
            7,
            "Fix the cause first. The logs show the last traceback, if there is one. A resume "
            "continues from the checkpoint of step 7.",
        ),
        (
            "FAILED",
            None,
            7,
            "The logs show the last traceback, if there is one. A resume continues from the checkpoint of "
            "step 7.",
        ),
    ],
)
def test_advice_names_the_checkpoint_that_is_there(state, end, saved, words, monkeypatch):
    """A cause is to be removed first if it comes again with the same settings, or if the job gave up."""
    monkeypatch.setattr(module, "resume_start", lambda run: ResumeStart(saved, ()))
    attempt = None if end is None else AttemptRecord(0, 1.0, 1, 1, **end)
    assert advice(RunDir("gpt"), state, attempt, 7) == words


def test_torn_checkpoints_are_not_called_no_checkpoint(tmp_path: Path) -> None:
    """A resume is refused while no checkpoint is complete: the advice says so, and no button offers it."""
    run = RunDir(tmp_path / "gpt")
    for step in (4, 8):
        run.checkpoint(step).mkdir(parents=True)
    said = advice(run, "LOST", None, 8)
    assert said.startswith("No checkpoint is complete (global_step8, global_step4), so Resume is refused.")
    assert remedies(run, "FAILED", [BAD]) == []
    write_json(run.checkpoint_manifest(4), {"schema_version": 2, "files": {}})
    assert advice(run, "LOST", None, 8).startswith(
        "A resume continues from the checkpoint of step 4 and trains 4 steps again."
    )
    assert len(remedies(run, "FAILED", [BAD])) == 1


def test_a_policy_that_a_rule_refuses_has_no_button(tmp_path: Path) -> None:
    """NaN weights need a rollback, and a run whose only checkpoint is its last step has none to return to."""
    run = RunDir(tmp_path / "gpt")
    run.path.mkdir()
    weights = {**BAD, "bad": "weights"}
    for interval, buttons in ((50, 1), (100, 0)):
        config = load("gpt-tiny", {"batch.max_steps": 100, "checkpoint.save_interval_steps": interval})
        run.config_yaml.write_text(to_yaml(config))
        assert len(remedies(run, "FAILED", [weights])) == buttons
        assert len(remedies(run, "FAILED", [BAD])) == 1


def record(job_id: str, *attempts: AttemptRecord) -> JobRecord:
    return JobRecord(job_id, "r", "gpt", "RUNNING", 10.0, 1, attempts=list(attempts))


def test_marks_are_where_curves_begin_anew(tmp_path: Path) -> None:
    """Curves have a mark at each resume, at each restart with its cause, and at a rollback, but not at the
    start. An attempt after a preemption resumes.
    """
    run = RunDir(tmp_path / "gpt")
    run.path.mkdir()
    write_json(run.rollbacks_json, [asdict(Rollback("b", 1, 8.0, 14, 12, 96, 112, "the loss is nan"))])
    first = record(
        "a",
        AttemptRecord(0, 1.0, 1, 1, cause="rank 0 was killed"),
        AttemptRecord(1, 2.0, 1, 1, first_step=4, resumed_from_step=4),
    )
    second = record(
        "b",
        *(AttemptRecord(0, 5.0, 1, 1, first_step=8), AttemptRecord(1, 6.0, 1, 1, first_step=12)),
        AttemptRecord(2, 9.0, 1, 1, first_step=12),
    )
    assert [(mark["step"], mark["time"], mark["kind"]) for mark in marks(run, [first, second])] == [
        (4, 2.0, "restart"),
        (8, 5.0, "resume"),
        (12, 6.0, "restart"),
        (12, 9.0, "rollback"),
    ]
    assert marks(run, [first])[0]["words"] == "restart at step 4: attempt 1: rank 0 was killed"
    first.preemptions = [Preemption(0, "Slurm preempted job 12", 1.5, 0, 0)]
    first.attempts[0].cause = "Slurm preempted job 12"
    assert marks(run, [first])[0]["words"] == "resume at step 4: attempt 1: Slurm preempted job 12"


def test_an_alert_holds_until_its_figure_is_back_or_a_new_attempt_begins() -> None:
    events = [
        {"kind": "alert", "time": 1.0, "writer": "rank0", "message": "step 20: MFU", "alert": "min_mfu"},
        {"kind": "alert", "time": 2.0, "writer": "rank0", "message": "memory", "alert": "max_memory"},
        {"kind": "alert_over", "time": 3.0, "writer": "rank0", "message": "step 136", "alert": "min_mfu"},
    ]
    assert [alert["raised"] for alert in alerts_part(events)] == [False, True]
    restart = {"kind": "state", "time": 4.0, "state": "RESTARTING"}
    assert [alert["raised"] for alert in alerts_part([*events, restart])] == [False, False]


def test_a_stale_alert_is_in_the_list_and_not_in_the_head(tmp_path: Path) -> None:
    job = FakeJob(RunDir(tmp_path / "gpt"), steps=40)
    job.one_step()
    job.events.write("alert", "step 20: MFU 12 % is under 50 %", alert="min_mfu")
    assert RunView(job.run).describe().texts["note"] == "Alert: step 20: MFU 12 % is under 50 %"
    job.events.write("alert_over", "step 136: clear", alert="min_mfu")
    shown = RunView(job.run).describe().texts
    assert (shown["note"], shown["tone"], shown["alerts"]) == ("", "", "Events (1 alert)")


def test_stopping_is_said_from_the_request_to_the_end(tmp_path: Path) -> None:
    """A run is shown as stopping from the request to its end, in every browser, because the request is stored
    in a file.
    """
    job = FakeJob(RunDir(tmp_path / "gpt"), steps=40)
    job.one_step()
    ControlRequest(1, "save", "a checkpoint", 1.0).write(job.job.control_request)
    assert RunView(job.run).describe().to_dict()["asked"] is None
    ControlRequest(2, "stop", "stop", 2.0).write(job.job.control_request)
    snapshot = RunView(job.run).describe().to_dict()
    assert (snapshot["asked"], snapshot["shown"]["pill"]) == ("stop", ["Stopping...", "wait"])
    row = row_of(read_status(job.run, time.time()))
    assert (row["asked"], row["pill"], row["state"]) == ("stop", ["Stopping...", "wait"], "RUNNING")
    job.finish("CANCELLED", "stopped on request at step 1; saved")
    snapshot = RunView(job.run).describe().to_dict()
    assert (snapshot["asked"], snapshot["shown"]["pill"]) == (None, ["CANCELLED", "calm"])
    write_json(job.job.control_pause, {"pause": True})
    assert asked_of(job.job) == "pause"
    pausing, paused = (
        RunStatus("", state, None, 1, 0.0, asked="pause") for state in ("RUNNING", "SUSPENDED")
    )
    assert pausing.pill == ("Pausing...", "wait") and paused.pill == ("SUSPENDED", "calm")


def event(kind: str, **data: object) -> dict[str, object]:
    return {"kind": kind, "time": 100.0, "message": "step 121: the loss is nan", **data}


BAD = event("error", step=121, positions=[7680, 7744], bad="nan", ranks=[3])


def test_a_bad_step_can_be_skipped_by_a_resume(monkeypatch):
    """The advice differs for a NaN loss, NaN weights and a loss spike; a fixed loss scale gets none."""
    run = RunDir("gpt")
    monkeypatch.setattr(module, "resume_start", lambda run: ResumeStart(100, ()))
    (cure,) = remedies(run, "FAILED", [BAD])
    assert (cure["words"], cure["overrides"]) == (
        "Resume from step 100 and skip step 121",
        {"stability.on_nan": "skip"},
    )
    (cure,) = remedies(run, "FAILED", [BAD, {**BAD, "bad": "weights"}])
    assert cure["overrides"] == {"stability.on_nan": "rollback"}
    assert cure["title"] == (
        "Resume with stability.on_nan = rollback: the job returns to the newest checkpoint and skips the "
        "samples from there to the bad step."
    )
    (cure,) = remedies(run, "FAILED", [{**BAD, "bad": "spike"}])
    assert cure["overrides"] == {"stability.on_loss_spike": "skip"}
    assert remedies(run, "FAILED", [{**BAD, "message": "precision.fp16.loss_scale = 8 is fixed"}]) == []
    assert remedies(run, "FAILED", [{**BAD, "kind": "skip"}]) == remedies(run, "CANCELLED", [BAD]) == []


@pytest.mark.parametrize(
    ("steps", "bad", "events", "words"),
    [
        ([1, 2], None, [], ""),
        ([1, 2], None, [event("state")], ""),
        ([1, 120], None, [BAD], "NaN since step 121 (samples 7,680 to 7,743, rank 3)"),
        ([1, 140], [[121, 140]], [BAD], "NaN since step 121 (samples 7,680 to 7,743, rank 3)"),
        ([1, 140], [[121, 130]], [BAD], ""),
        ([1, 1300], [[7, 9], [1210, 1300]], [], "NaN since step 1,210"),
        ([], None, [], ""),
    ],
)
def test_since_when_a_loss_is_nan(steps, bad, events, words):
    assert nan_words({"steps": steps, "bad": bad}, events) == words


def test_what_a_job_between_two_attempts_waits_for(tmp_path):
    """Between two attempts, a job waits for the restart delay or for disk space; the message states the time,
    or the bytes that are needed and free.
    """
    run = RunDir(tmp_path)
    running, restart = event("state", state="RUNNING"), event("restart", wait_seconds=40.0)
    full = event("warning", needed_bytes=1 << 60, wait_seconds=600.0)
    assert waiting(run, "RUNNING", [restart], 100.0) == ""
    assert (
        waiting(run, "RESTARTING", [running, restart], 110.0)
        == "The next attempt starts automatically in 30 s."
    )
    words = waiting(run, "RESTARTING", [running, restart, full], 148.0)
    assert words.startswith("Waiting for disk space: 1048576.0 TiB is needed, ")
    assert words.endswith("once there is enough space. Otherwise the job fails in 9 min 12 s.")
    there = waiting(run, "RESTARTING", [restart, {**full, "needed_bytes": 1}], 148.0)
    assert there == "There is enough disk space again, so the next attempt starts automatically."
    assert waiting(run, "RESTARTING", [full, running], 148.0) == "The next attempt starts automatically."
