"""Tables of a spending: what was paid for, the time without devices, and the faults by their kind."""

import pytest

from nbtrain.monitor.status.spending import SUPERVISOR_GONE, Fault, Spending
from nbtrain.monitor.status.spending_tables import fault_kind_rows, fault_sums, purpose_rows


def fault(cause, preempted=False, money=6.0):
    return Fault(
        "job", 0, 1.0, cause, 10, 60.0, 30.0, 120.0 if preempted else 0.0, 2.0, 1.5, money, preempted
    )


FAULTS = [fault("killed at step 5"), fault("out of memory"), fault("PREEMPTED", True), fault(SUPERVISOR_GONE)]
SECONDS = {"training": 3600.0, "starting": 300.0, "repeated": 240.0, "waiting": 720.0, "paused": 60.0}
HOURS = {"training": 7.0, "repeated": 1.0, "restart": 1.5, "first start": 0.5}


def test_what_was_paid_for_and_what_was_not():
    """Each purpose has its time, device hours, share and money; waiting and pauses have only their time."""
    spending = Spending(10.0, 0.7, SECONDS, FAULTS, 30.0, "USD", hours=HOURS)
    assert purpose_rows(spending) == [
        ("training, without repeated steps", "1 h 0 min", "7", "70.0%", "21 USD"),
        ("first starts", "3 min 0 s", "0.5", "5.0%", "1.5 USD"),
        ("repeated steps", "4 min 0 s", "1", "10.0%", "3 USD"),
        ("restarts", "2 min 0 s", "1.5", "15.0%", "4.5 USD"),
        ("waiting in the queue", "12 min 0 s", "", "", ""),
        ("paused", "1 min 0 s", "", "", ""),
    ]
    assert purpose_rows(Spending(0.0, None, {})) == []


def test_the_cost_of_faults_by_their_kind():
    """Faults are summed by kind; a fault without a price hides the money of its kind."""
    sums = fault_sums([*FAULTS, fault("killed", money=None)])
    assert {kind: value.times for kind, value in sums.items()} == {"preemption": 1, "lost": 1, "failure": 3}
    assert sums["failure"].lost_steps == 30 and sums["failure"].money is None
    assert sums["preemption"].waited_seconds == 120 and sums["preemption"].money == pytest.approx(6.0)
    assert fault_kind_rows(Spending(10.0, 0.7, SECONDS, FAULTS, 30.0, "USD"))[0] == (
        *("preemptions", "1", "10", "1 min 30 s", "2 min 0 s", "2", "6 USD"),
    )
