"""How long the server asks pages to wait before they poll again."""

import pytest

from nbtrain.lab.server.pace import REQUEST_SECONDS, Pace


def after(pace, looks_a_second, cpu_seconds, seconds=60.0):
    """Return the interval that the server gives a page after this many requests."""
    for number in range(1, int(looks_a_second * seconds) + 1):
        pace.spent(cpu_seconds - REQUEST_SECONDS, 1000.0 + number / looks_a_second)
    return pace.seconds


def test_a_few_pages_look_each_second():
    """A few pages may poll every second, because together they use less than the allowed share of a core."""
    assert after(Pace(0.03), 3, 0.009) == 1.0


def test_many_pages_wait_until_all_cost_the_share():
    """With ten pages that take 10 ms each, the interval grows until together they use 3 % of a core; when
    some are closed, it shrinks.
    """
    pace, now = Pace(0.03), 1000.0
    for pages, wanted in ((10, 3.3), (4, 1.3), (1, 1.0)):
        for _ in range(200):
            for _ in range(pages):
                pace.spent(0.010 - REQUEST_SECONDS, now)
            now += pace.seconds
        assert pace.seconds == pytest.approx(wanted, rel=0.15)


def test_bounds_and_pauses():
    """The interval is at most ten seconds, and the first request after a pause does not count."""
    pace = Pace(0.03)
    assert after(pace, 10, 1.0) == 10.0
    assert pace.spent(5.0, 5000.0) == 10.0
    assert Pace(0.03).spent(100.0, 0.0) == 1.0
