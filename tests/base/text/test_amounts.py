"""Counts, bytes and times in human-readable form."""

import re
import time
from pathlib import Path

import pytest

from nbtrain.base.text import amounts


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2.5e9, "2.5B"),
        (126_638_592, "126.6M"),
        (26e9, "26B"),
        (3_487_232, "3.49M"),
        (12, "12"),
        (999, "999"),
        (86_800, "86.8k"),
        (524_288_000, "524.3M"),
        (1.52e12, "1.52T"),
    ],
)
def test_counts_are_short(value, words):
    """A count has at most four digits and a unit."""
    assert amounts.count(value) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(4, "4 s"), (200, "3.3 min"), (28_800, "8.0 h"), (4_700_000, "54 d"), (1.5e8, "4.8 years")],
)
def test_times_are_short(seconds, words):
    """An estimated time is shown with no more digits than its precision."""
    assert amounts.duration(seconds) == words


def test_sizes_are_short():
    """Sizes are shown in units of powers of 1024 bytes."""
    assert [amounts.size(value) for value in (0, 1023, 2**20, 40 * 2**30)] == [
        "0 B",
        "1023 B",
        "1.0 MiB",
        "40.0 GiB",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (7260, "2 h 1 min"),
        (90000, "1 d 1 h"),
        (-1, "0 s"),
    ],
)
def test_measured_times_have_two_units(seconds, words):
    """A measured time is shown in two units, such as minutes and seconds; a negative time is 0 s."""
    assert amounts.elapsed(seconds) == words


def test_one_of_a_thing_has_no_s():
    assert [amounts.counted(number, "step") for number in (0, 1, 2, 1024)] == [
        "0 steps", "1 step", "2 steps", "1,024 steps"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.01951, "0.0195 s"), (98.74, "98.7 s"), (999.4, "999 s"), (1401.3, "1,401 s")]
)
def test_a_steps_time_has_no_powers_of_ten(seconds, text):
    assert amounts.step(seconds) == text


def test_a_part_has_the_unit_of_its_whole():
    """A part is shown in the unit of its total: 0.95M of 8.44M, not 950k."""
    count_of = amounts.count_of
    assert count_of(7.99e6, 8.44e6) == "7.99/8.44M"
    assert count_of(950e3, 8.44e6) == "0.95/8.44M"
    assert count_of(500, 4000) == "0.5/4k" and count_of(3, 10) == "3/10" and count_of(0, 2e9) == "0/2B"


def test_times_are_utc_and_say_so(monkeypatch):
    """Times are in UTC and labelled UTC, whatever the machine's time zone."""
    try:
        with monkeypatch.context() as patch:
            patch.setenv("TZ", "Asia/Kathmandu")
            time.tzset()
            assert amounts.moment(1_795_891_446) == "2026-11-28 18:44:06 UTC"
            assert amounts.utc(1_795_891_446, "%H:%M") == "18:44"
    finally:
        time.tzset()


def test_no_other_module_writes_times():
    """Only base/text/amounts.py formats times, except for formats that another program prescribes."""
    package = Path(amounts.__file__).parents[2]
    writers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"strftime\(|localtime|ctime\(|asctime", path.read_text())
    }
    assert writers == {
        "base/text/amounts.py",
        "base/run_directory/rundir.py",
        "jobs/backends/kubernetes/trainer_status.py",
        "exchange/model_card.py",
        "serving/chat.py",
        "train/__main__.py",
    }
