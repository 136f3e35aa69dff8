"""Cost of a run: paid time, goodput, and what each fault cost, from records and events written by hand."""

import json
from dataclasses import asdict, replace

import pytest

from nbtrain.base.run_directory.checkpoint_files import LocalSave, LocalSaves
from nbtrain.base.run_directory.records import AttemptRecord, DevicePrice, JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.status.spending import (
    Fault,
    Spending,
    fault_words,
    run_spending,
    total,
)

DAY = 20260101


def state(time, name):
    return {"time": time, "kind": "state", "state": name, "message": name}


def phase(time, name, seconds):
    return {"time": time, "kind": "phase", "phase": name, "seconds": seconds, "message": name}


def written(run: RunDir, number: int, attempts, events, ended_at, state_word="SUCCEEDED") -> JobRecord:
    """Write a job of a run with its events; return its record."""
    job = run.job(f"{DAY}-{number:06d}-aaaa")
    job.make_folders()
    record = JobRecord(
        job.job_id, "r", run.name, state_word, events[0]["time"] - 10, 2, "done", ended_at=ended_at
    )
    record.attempts = attempts
    record.write(job.job_json)
    job.events.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (job.events / "supervisor.jsonl").write_text(lines)
    return record


def priced(run: RunDir, world_size=2, paid_devices=2):
    """Give all jobs the price of a plan: 3 USD and 0.5 kWh for each device hour."""
    plan = {
        "world_size": world_size,
        "duration": {"seconds": 3600.0},
        "cost": {
            "device_hours": float(paid_devices),
            "energy_kwh": 0.5 * paid_devices,
            "price": {"usual": 3.0, "currency": "USD"},
        },
    }
    for job_id in run.job_ids():
        record = JobRecord.read(run.job(job_id).job_json)
        record.price = DevicePrice.of_plan(plan)
        record.write(run.job(job_id).job_json)


@pytest.fixture
def run(workspace):
    run = RunDir.named("paid")
    run.path.mkdir(parents=True)
    return run


def test_a_run_without_faults(run):
    """The queue is not paid, and starting, validating and saving are paid and are no goodput."""
    events = [
        state(1010, "STARTING"),
        phase(1030, "build", 10.0),
        state(1040, "RUNNING"),
        phase(1080, "evaluate", 8.0),
        phase(1090, "save", 2.0),
    ]
    attempts = [AttemptRecord(0, 1010, 2, 1, running_at=1040, ended_at=1110, reached_step=50)]
    written(run, 1, attempts, events, 1110)
    priced(run)
    found = run_spending(run, now=9999)
    assert found.seconds["waiting"] == pytest.approx(10) and found.paid_seconds == pytest.approx(100)
    assert found.goodput == pytest.approx((70 - 10) / 100)
    assert found.device_hours == pytest.approx(2 * 100 / 3600)
    assert found.money == pytest.approx(3 * 200 / 3600) and found.energy_kwh == pytest.approx(
        0.5 * 200 / 3600
    )
    assert found.faults == [] and found.words("GPU").startswith("0.0556 GPU hours, 0.167 USD")
    json.dumps(found.to_dict())


def test_each_fault_has_its_price(run):
    """A killed attempt costs the steps since its checkpoint and the restart; a preempted one its wait too."""
    events = [
        state(1010, "STARTING"),
        state(1020, "RUNNING"),
        state(1120, "RESTARTING"),
        state(1125, "STARTING"),
        state(1140, "RUNNING"),
        state(1240, "QUEUED"),
        state(1300, "STARTING"),
        state(1310, "RUNNING"),
    ]
    attempts = [
        AttemptRecord(0, 1010, 2, 1, running_at=1020, ended_at=1120, reached_step=50, cause="killed"),
        AttemptRecord(
            1, 1125, 2, 1, first_step=40, running_at=1140, resumed_from_step=40, ended_at=1240,
            reached_step=90, cause="PREEMPTED",
        ),
        AttemptRecord(
            2, 1300, 2, 1, first_step=90, running_at=1310, resumed_from_step=90, ended_at=1360,
            reached_step=115,
        ),
    ]  # fmt: skip
    written(run, 1, attempts, events, 1360)
    priced(run, paid_devices=4)  # a machine of four devices, of which the run uses two
    found = run_spending(run, now=9999)
    killed, preempted = found.faults
    assert (killed.lost_steps, killed.repeated_seconds, killed.down_seconds) == (10, 20.0, 20.0)
    assert (preempted.lost_steps, preempted.down_seconds, preempted.waited_seconds) == (0, 10.0, 60.0)
    assert killed.device_hours == pytest.approx(4 * 40 / 3600)
    assert killed.money == pytest.approx(3 * 4 * 40 / 3600)
    assert fault_words(killed) == "10 steps trained again (20 s), 20 s to restart"
    assert fault_words(preempted) == "10 s to restart, 1 min 0 s without devices"
    # 250 s of training in 280 s that were paid, of which 20 s are trained again.
    assert found.seconds["repeated"] == 20.0
    assert found.goodput == pytest.approx((100 - 20 + 100 + 50) / (350 - 60))


def test_a_job_that_follows_a_failed_one(run):
    """Steps that a failed job reached after its checkpoint are trained again by the job that resumes it."""
    first = [state(1010, "STARTING"), state(1020, "RUNNING")]
    failed = AttemptRecord(
        0, 1010, 1, 1, running_at=1020, ended_at=1120, reached_step=100, cause="out of memory"
    )
    written(run, 1, [failed], first, 1120, "FAILED")
    second = [state(5010, "STARTING"), state(5030, "RUNNING")]
    resumed = AttemptRecord(
        0, 5010, 2, 1, 60, running_at=5030, resumed_from_step=60, ended_at=5070, reached_step=100
    )
    assert run_spending(run, now=2000).faults[0].lost_steps == 100, "no checkpoint was saved"
    written(run, 2, [resumed], second, 5070)
    found = run_spending(run, now=9999)
    (fault,) = found.faults
    assert (fault.lost_steps, fault.repeated_seconds, fault.down_seconds, fault.waited_seconds) == (
        40,
        40,
        20,
        10,
    )
    assert found.goodput == pytest.approx((100 - 40 + 40) / (110 + 60))
    # The steps were trained on one device and the restart held two.
    assert fault.device_hours == pytest.approx((40 + 2 * 20) / 3600)
    assert found.money is None and found.energy_kwh is None


def test_a_lost_job_says_so(run):
    """An attempt whose end was never recorded is a fault, also if it has lost no step."""
    lost = AttemptRecord(0, 1010, 2, 1, running_at=1020, reached_step=50)
    written(run, 1, [lost], [state(1010, "STARTING"), state(1020, "RUNNING")], 1120, "FAILED")
    resumed = AttemptRecord(0, 2010, 2, 1, 50, running_at=2030, resumed_from_step=50, ended_at=2070)
    written(run, 2, [resumed], [state(2010, "STARTING"), state(2030, "RUNNING")], 2070)
    (fault,) = run_spending(run, now=9999).faults
    assert (fault.cause, fault.lost_steps, fault.down_seconds) == ("its supervisor was gone", 0, 20)


def test_a_checkpoint_on_the_nodes_disks_is_kept_work(run):
    """Only the steps after the newest checkpoint are lost, also if that one is only on the nodes' disks."""
    failed = AttemptRecord(0, 1010, 1, 1, running_at=1020, ended_at=1120, reached_step=50, cause="killed")
    events = [state(1010, "STARTING"), state(1020, "RUNNING")]
    record = written(run, 1, [failed], events, 1120, "FAILED")
    LocalSaves([LocalSave(40, "id", ["a", "b"], record.job_id, 0, 1100.0)]).keep(run)
    (fault,) = run_spending(run, now=9999).faults
    assert (fault.lost_steps, fault.repeated_seconds) == (10, 20.0)


def test_a_running_job_is_counted_until_now(run):
    """A job that has not ended has paid until now, and its newest attempt is no fault."""
    events = [state(1010, "STARTING"), state(1020, "RUNNING")]
    record = written(run, 1, [AttemptRecord(0, 1010, 2, 1, running_at=1020)], events, None, "RUNNING")
    found = run_spending(run, now=1060, current=(record.job_id, record, "RUNNING"))
    assert found.paid_seconds == pytest.approx(50) and found.goodput == pytest.approx(40 / 50)
    assert found.faults == []


def test_the_autotuner_is_paid(run):
    """Trials of DeepSpeed's autotuner hold the job's devices, with or without a supervisor after them."""

    def trial(time, ended):
        return {"time": time, "kind": "trial", "ended": ended, "message": ""}

    trials = [trial(1040, False), trial(1060, True), trial(1065, False), trial(1100, True)]
    written(run, 1, [], [{**trials[0], "time": 1010, "kind": "config"}, *trials], 1100)
    priced(run)
    found = run_spending(run, now=9999)
    assert found.hours == {"tuning": pytest.approx(2 * 60 / 3600)} and found.goodput == 0.0
    assert found.money == pytest.approx(3 * 2 * 60 / 3600) and found.seconds["waiting"] == 40
    attempt = AttemptRecord(0, 2110, 2, 1, running_at=2120, ended_at=2220, reached_step=50)
    after = [{**event, "time": event["time"] + 1000} for event in trials]
    states = [state(2110, "STARTING"), state(2120, "RUNNING")]
    written(run, 2, [attempt], [*after, *states], 2220)
    found = run_spending(run, now=9999)
    assert found.seconds["tuning"] == 60 + 70, "until the supervisor starts"
    assert found.goodput == pytest.approx(100 / (60 + 70 + 10 + 100))


def test_each_job_is_paid_at_its_own_price(run):
    """A job whose plan had no price has no money, whatever the plan of a later job says."""
    attempt = AttemptRecord(0, 1010, 2, 1, running_at=1020, ended_at=1120, reached_step=50)
    events = [state(1010, "STARTING"), state(1020, "RUNNING")]
    first = written(run, 1, [attempt], events, 1120)
    first.price = DevicePrice(2.0, "USD", 0.25)
    first.write(run.job(first.job_id).job_json)
    assert JobRecord.read(run.job(first.job_id).job_json).price == first.price
    hours = 2 * 110 / 3600
    found = run_spending(run, now=9999)
    assert (found.money, found.energy_kwh) == (pytest.approx(2 * hours), pytest.approx(0.25 * hours))
    second = written(run, 2, [replace(attempt, attempt=0)], events, 1120)
    found = run_spending(run, now=9999)
    assert (found.money, found.device_hours) == (None, pytest.approx(2 * hours))
    second.price = DevicePrice(3.0, "USD", 0.25)
    second.write(run.job(second.job_id).job_json)
    assert run_spending(run, now=9999).money == pytest.approx((2 + 3) * hours)
    first.price = DevicePrice(2.0, "EUR", 0.25)
    first.write(run.job(first.job_id).job_json)
    assert run_spending(run, now=9999).money is None, "two currencies have no sum"
    killed = Fault("j", 0, 1.0, "killed", 1, 1.0, 1.0, 0.0, 1.0, money=2.0)
    paid = Spending(1.0, 1.0, {}, [killed], 3.0, "USD")
    assert [fault.money for fault in total([paid]).faults] == [2.0]
    assert [fault.money for fault in total([paid, replace(paid, currency="EUR")]).faults] == [None, None]


def test_hours_by_purpose_and_several_runs_together(run):
    """The hours of a run are its device hours by purpose, and total() adds runs up."""
    events = [
        state(1010, "STARTING"),
        state(1020, "RUNNING"),
        phase(1100, "save", 5.0),
        state(1120, "RESTARTING"),
        state(1140, "RUNNING"),
    ]
    attempts = [
        AttemptRecord(0, 1010, 2, 1, running_at=1020, ended_at=1120, reached_step=50, cause="killed"),
        AttemptRecord(
            1, 1125, 2, 1, first_step=40, running_at=1140, resumed_from_step=40, ended_at=1240,
            reached_step=100,
        ),
    ]  # fmt: skip
    written(run, 1, attempts, events, 1240)
    priced(run)
    found = run_spending(run, now=9999)
    assert sum(found.hours.values()) == pytest.approx(found.device_hours)
    assert found.hours["repeated"] == pytest.approx(2 * 95 / 5 / 3600)
    assert found.hours["restart"] == pytest.approx(2 * 20 / 3600)
    assert found.hours["first start"] == pytest.approx(2 * 10 / 3600)
    assert Spending.of_dict(json.loads(json.dumps(found.to_dict()))) == found
    free = replace(found, money=None, currency="")
    both = total([found, found, Spending(0.0, None, {"waiting": 5.0})])
    assert both.goodput == pytest.approx(found.goodput) and both.money == pytest.approx(2 * found.money)
    assert len(both.faults) == 2 and both.hours["saving"] == pytest.approx(2 * found.hours["saving"])
    assert both.seconds["waiting"] == 2 * found.seconds["waiting"] + 5
    assert total([found, free]).money is None and total([]).goodput is None


def test_a_damaged_heartbeat_hides_no_cost(run):
    """A heartbeat of an earlier job that cannot be read hides its steps, and not the cost of the run."""
    events = [state(1010, "STARTING"), state(1020, "RUNNING")]
    attempt = AttemptRecord(0, 1010, 2, 1, running_at=1020, ended_at=1110, cause="killed")
    record = written(run, 1, [attempt], events, 1110, "FAILED")
    beat = run.job(record.job_id).heartbeat(0)
    beat.parent.mkdir(parents=True, exist_ok=True)
    beat.write_text("{")
    assert run_spending(run, now=9999).paid_seconds == pytest.approx(100)


def test_without_events_attempts_are_counted(run):
    """A job whose events were deleted is counted by its attempts; a run without a job has paid nothing."""
    assert run_spending(run, now=1.0).goodput is None
    attempts = [AttemptRecord(0, 1010, 2, 1, running_at=1040, ended_at=1110, reached_step=50)]
    record = written(run, 1, attempts, [state(1010, "STARTING")], 1110)
    for path in run.job(record.job_id).events.glob("*"):
        path.unlink()
    found = run_spending(run, now=9999)
    assert found.goodput == pytest.approx(70 / 100) and asdict(found)["device_hours"] == pytest.approx(
        200 / 3600
    )
