"""calibration.json: which device it belongs to, when it is used, and the message when it is not."""

import datetime
import json
from dataclasses import replace

import pytest

from nbtrain.base.printing.report import Report
from nbtrain.planner.calibration import calibration
from nbtrain.planner.calibration.calibration import (
    Calibration,
    calibration_path,
    read_calibration,
    write_calibration,
)
from nbtrain.planner.calibration.calibration_doubts import doubts
from nbtrain.planner.calibration_view import bandwidths, blocks, picture

TODAY = datetime.date(2026, 11, 22)
FIGURES = [
    {"what": "memory", "ranks": 1, "bytes_per_second": 20e9},
    {"what": "product", "ranks": 1, "dtype": "fp32", "m": 512, "n": 512, "k": 128, "flops": 50e9},
    {"what": "product", "ranks": 1, "dtype": "fp32", "m": 2048, "n": 512, "k": 128, "flops": 80e9},
    {"what": "collective", "ranks": 2, "collective": "all_reduce", "bytes": 4096, "seconds": 1e-4},
    {"what": "collective", "ranks": 2, "collective": "all_reduce", "bytes": 1 << 20, "seconds": 1e-3},
    {"what": "collective", "ranks": 4, "collective": "all_gather", "bytes": 1 << 20, "seconds": 2e-3},
]
DISK = {"write_bytes_per_second": 1e9, "read_bytes_per_second": 2e9}


@pytest.fixture
def machine(workspace, monkeypatch):
    """Pretend that this machine is called X, with an empty data directory."""
    monkeypatch.setattr(calibration, "machine_key", lambda: "X")


def made(machine="X", date="2026-11-20"):
    return Calibration(machine, date, 90.0, FIGURES, DISK)


def test_a_calibration_is_read_back_on_its_machine(machine):
    """On the machine that wrote it, a calibration is read unchanged, and plans mention its date."""
    assert read_calibration(TODAY) == (
        None,
        "this machine is not calibrated; run `nbtrain calibrate` to measure it",
    )
    path = write_calibration(made())
    found, why = read_calibration(TODAY)
    assert found == made() and found.figures == FIGURES and why == ""
    assert found.source == "calibrated on 2026-11-20"
    assert found.matmul_flops() == {"fp32": 80e9} and found.memory_bytes_per_second() == 20e9
    assert found.memory_bytes_per_second(ranks=2) is None
    assert path == calibration_path() and path.name == "calibration.json"


@pytest.mark.parametrize("damage", [{"date": "yesterday"}, {"date": None}, None])
def test_a_damaged_entry_is_named_and_not_used(machine, damage):
    """A calibration with a wrong or missing field is reported and not used; the next calibration replaces
    it.
    """
    content = json.loads(write_calibration(made()).read_text())
    entry = content["machines"]["X"]
    content["machines"]["X"] = {"date": entry["date"]} if damage is None else {**entry, **damage}
    calibration_path().write_text(json.dumps(content))
    found, why = read_calibration(TODAY)
    assert (
        found is None
        and "data/calibration.json is not used, because the entry of this machine is damaged" in why
    )
    write_calibration(replace(made(), device="gpu"))
    assert read_calibration(TODAY)[0].device == "gpu"


def test_the_calibration_of_another_machine_is_named_and_not_used(machine):
    write_calibration(made("Y with 8 cores"))
    assert read_calibration(TODAY) == (
        None,
        "data/calibration.json is not used, because it has entries only for other machines: Y with "
        "8 cores (2026-11-20). Run `nbtrain calibrate` to measure this machine.",
    )
    write_calibration(made())
    assert read_calibration(TODAY)[0] == made()
    assert sorted(json.loads(calibration_path().read_text())["machines"]) == ["X", "Y with 8 cores"]


def test_an_old_calibration_is_named_and_not_used(machine):
    write_calibration(made(date="2026-05-26"))
    assert read_calibration(TODAY)[0] is not None
    write_calibration(made(date="2026-05-25"))
    assert read_calibration(TODAY) == (
        None,
        "data/calibration.json is not used, because it is 181 days old (2026-05-25), and a calibration is "
        "trusted for 180 days. Run `nbtrain calibrate` to measure this machine again.",
    )


def test_a_broken_file_is_named_and_written_anew(machine):
    calibration_path().parent.mkdir(parents=True, exist_ok=True)
    calibration_path().write_text("{")
    found, why = read_calibration(TODAY)
    assert found is None and "calibration.json:1: not JSON" in why and "the calibration is not used" in why
    write_calibration(made())
    assert read_calibration(TODAY)[0] is not None
    calibration_path().write_text('{"schema_version": 99}')
    assert read_calibration(TODAY) == (
        None,
        "data/calibration.json is not used, because its schema_version is not 1. Run `nbtrain calibrate` to "
        "measure this machine.",
    )


def test_the_name_of_this_machine_says_what_its_rates_depend_on():
    """The machine's name in a calibration contains everything that affects its rates: CPU, number of cores,
    and torch version.
    """
    assert " cores, " in calibration.machine_key() and "torch " in calibration.machine_key()


def test_bandwidth_is_counted_as_nccl_tests_counts_it():
    """Bus bandwidth is computed as in nccl-tests: algbw times 2 (n - 1) / n for an all-reduce, (n - 1) / n
    for an all-gather, and 1 for a broadcast.
    """
    figure = {"bytes": 1000, "seconds": 0.5, "ranks": 4}
    assert bandwidths({**figure, "collective": "all_reduce"}) == (2000, 3000)
    assert bandwidths({**figure, "collective": "all_gather"}) == (2000, 1500)
    assert bandwidths({**figure, "collective": "broadcast"}) == (2000, 2000)
    assert bandwidths({**figure, "collective": "send_recv"}) == (2000, 2000)


def test_the_table_and_the_picture_show_every_kind():
    text = str(Report("", blocks(made())))
    assert "fp32 products  80 GFLOP/s" in text and "memory         20.0 GB/s, read and written" in text
    assert "Disk of the output directory\n  writes         1.00 GB/s\n  reads          2.00 GB/s\n" in text
    assert "Collectives of 2 ranks: latency, and bus bandwidth by array size" in text
    assert "  all_reduce   100 us  0.04 GB/s  1.05 GB/s" in text
    left, right = picture(made()).axes
    assert [line.get_label() for line in left.lines] == ["all_reduce, 2 ranks", "all_gather, 4 ranks"]
    assert list(right.lines[0].get_ydata()) == [50.0, 80.0]


def test_a_calibration_in_doubt_is_used_for_a_week(machine):
    """A doubtful calibration is used for a week; after that it is too old."""
    doubtful = replace(made(date="2026-11-15"), doubts=["other programs used 2.0 of 2 cores"])
    write_calibration(doubtful)
    assert read_calibration(TODAY)[0] == doubtful
    found, why = read_calibration(TODAY + datetime.timedelta(days=1))
    assert (
        found is None
        and "it is 8 days old (2026-11-15), and a doubtful calibration is trusted for 7 days" in why
    )
    assert str(Report("", blocks(doubtful))).endswith(
        "Reasons to doubt these measurements:\n  - other programs used 2.0 of 2 cores"
    )


def test_what_is_in_doubt():
    """A calibration is doubtful if other programs were running, if repeated calls differ too much, or if one
    rank is slower than two.
    """

    def product(flops, ranks, spread=0.1):
        return {"what": "product", "dtype": "fp32", "ranks": ranks, "flops": flops, "spread": spread}

    def block(seconds, ranks):
        return {
            "what": "block",
            "dtype": "fp32",
            "ranks": ranks,
            "forward": seconds,
            "backward": 0.0,
            "spread": 0.0,
        }

    steady = [product(80e9, 1), product(100e9, 2), block(1.25, 1), block(1.0, 2)]
    assert doubts(steady, 0.2, 2) == []
    [load] = doubts(steady, 0.21, 2)
    assert load == "other programs used 0.2 of 2 cores when the calibration started"
    [slower] = doubts([product(79e9, 1), product(100e9, 2)], 0.0, 2)
    assert slower.startswith("one rank with all cores takes 1.27 times as long for products in fp32")
    [slower] = doubts([block(1.3, 1), block(1.0, 2)], 0.0, 2)
    assert slower.startswith("one rank with all cores takes 1.30 times as long for blocks in fp32")
    one_of_ten = [product(1e9, 1)] * 9 + [product(1e9, 1, spread=0.51)]
    assert doubts(one_of_ten, 0.0, 2) == []
    [spread] = doubts([*one_of_ten, product(1e9, 1, spread=None)], 0.0, 2)
    assert spread.startswith("2 of 11 measurements are unsteady (calls vary by more than 50%, ")
