"""A single run of the real trainer that suffers several faults, one after the other, and still finishes.

    attempt 0   the loss of step 6 is nan      back to step 4, its samples skipped
    attempt 1   rank 1 sleeps before step 10   named with its collective and its stack, killed
    attempt 2   one device is left: one rank with twice the micro batches, the same steps

faults_table.py causes every other fault in a separate run, and writes docs/evidence/faults-local.md. That a
restart repeats its steps bit for bit is shown by tests/parity/test_resuming.py.
"""

import re

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import Rollback
from nbtrain.jobs.control import control
from tests.jobs import faults_table
from tests.jobs.faults_table import BEGIN, DOCUMENT, END, FAULTS, Fault, at, suffer
from tests.waiting import wait_until

# A quarter of the table's limit, and still a hundred times longer than a step takes on a busy machine.
HANG_SECONDS = 15


def leave_one_device(suffered, note):
    """Lower the number of devices during attempt 1, so that it applies to the next attempt."""
    wait_until(lambda: suffered.record.attempt == 1 or suffered.record.ended_at, "the second attempt")
    control.ask_devices(suffered.job, 1)


EVERYTHING = Fault(
    "everything, one after the other",
    [at(6, "nan", rank=1, attempt=0), at(10, "sleep", rank=1, attempt=1)],
    {
        "stability.on_nan": "rollback",
        "backend.elastic": True,
        "backend.heartbeat_timeout_seconds": HANG_SECONDS,
        # Time that the peers of the sleeping rank have to write their records.
        "backend.shutdown_timeout_seconds": 5,
        "backend.restart_backoff_seconds": 0.2,
    },
    act=leave_one_device,
)


@pytest.fixture(scope="module")
def suffered(tmp_path_factory, tiny_data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAULTS, "everything", EVERYTHING)
        return suffer("everything", tmp_path_factory.mktemp("everything"), tiny_data)


@pytest.mark.slow
def test_it_comes_to_its_end(suffered):
    """The run finishes in three attempts, two of which were interrupted, without the samples of the bad
    steps.
    """
    assert (suffered.state, suffered.cause) == ("SUCCEEDED", "all steps are trained and saved: 20 steps"), (
        suffered.log
    )
    record = suffered.record
    assert [attempt.resumed_from_step for attempt in record.attempts] == [None, 4, 8]
    assert [attempt.data_parallel_size for attempt in record.attempts] == [2, 2, 1]
    assert [attempt.reason for attempt in record.attempts] == ["rollback", "hang", None]
    # A rollback is not a restart and has a separate limit.
    assert record.restarts == 1
    tokens = [attempt.lost_tokens for attempt in record.attempts]
    step = faults_table.BATCH * faults_table.SEQ_LENGTH
    assert tokens == [2 * step, step, None]
    assert files.read_json(suffered.job.run.summary_json)["lost_tokens"] == 3 * step


@pytest.mark.slow
def test_the_rank_that_sleeps_is_named(suffered):
    """The message about the sleeping rank contains its step, phase and stack, and the collective in which the
    others wait.
    """
    restart = next(event for event in suffered.events if event["kind"] == "restart")
    assert re.fullmatch(
        rf"no progress for {HANG_SECONDS} s: rank 1 stopped: last reported at step 9, \d+ s "
        r"ago, while training, outside "
        r"any collective \(last: \w+ no. \d+ of ranks 0, 1\); rank 0 waits in \w+ no. \d+ of ranks 0, 1",
        restart["cause"],
    )
    (stack,) = [event for event in suffered.events if event["kind"] == "hang"]
    assert stack["rank"] == 1
    assert "faults.py" in stack["stack"][0]
    assert "in _suffer" in suffered.job.log(1, 1).read_text()


@pytest.mark.slow
def test_the_bad_steps_samples_are_passed_over(suffered):
    """The samples between the checkpoint of step 4 and the end of step 6 are skipped: two steps of 8
    samples.
    """
    (entry,) = Rollback.read_all(suffered.job.run.rollbacks_json)
    assert (entry.step, entry.checkpoint_step, entry.first, entry.last) == (6, 4, 32, 48)
    rollback = next(
        event for event in suffered.events if event["kind"] == "rollback" and event["writer"] == "supervisor"
    )
    assert re.fullmatch(
        r"step 6: the (loss is nan on rank 1 of 2|gradient is not finite)[^;]*; samples 40 to 47 of the "
        r"training order; the run returns "
        r"to step 4 and skips samples 32 to 47; 2 steps \(256 tokens\) since the checkpoint of step 4 "
        r"are lost",
        rollback["message"],
    )
    manifest = files.read_json(suffered.job.run.checkpoint_manifest(20))
    assert manifest["data_state"]["skipped_sample_ranges"] == [[32, 48]]
    assert manifest["data_state"]["consumed_samples"] == 20 * faults_table.BATCH


@pytest.mark.slow
def test_one_device_takes_over_the_whole_batch(suffered):
    """One device continues with the same global batch of 8: data_parallel_size changes from 2 to 1.

    The repeated steps are the same up to rounding.
    """
    (fewer,) = [event for event in suffered.events if event.get("data_parallel_size") == 1]
    assert fewer["message"] == (
        "1 device is usable: data_parallel_size 2 -> 1, 1 rank; the global batch size remains 8"
    )
    losses: dict[int, list[float]] = {}
    for event in read_events(suffered.job):
        if event["kind"] == "trace" and event["step"] > 8:
            losses.setdefault(event["step"], []).append(float.fromhex(event["loss"]))
    assert sorted(losses) == list(range(9, 21))
    # Step 9 was made by two ranks and by one; dropout differs, so only the magnitude can be compared.
    first, second = losses[9]
    assert first == pytest.approx(second, rel=0.05)


def test_the_document_has_a_row_for_every_fault():
    """docs/evidence/faults-local.md has a row for every fault, and no row for a fault that no longer
    exists.
    """
    table = DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")]
    assert rows[2:] == [fault.title for fault in FAULTS.values()]
