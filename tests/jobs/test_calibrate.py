"""`nbtrain calibrate`: what is asked of the GPU side, what is filed, and the disk."""

import json

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.base.workspace import output_root
from nbtrain.cli.__main__ import main
from nbtrain.jobs import calibrate as module
from nbtrain.jobs.calibrate import calibrate, disk_rates
from nbtrain.planner.calibration import calibration_path, read_calibration

ANSWERS = [
    {"kind": "plan", "figures": 2},
    {"kind": "figure", "ranks": 1, "what": "memory", "bytes_per_second": 2e10},
    {
        "kind": "figure",
        "ranks": 2,
        "what": "collective",
        "collective": "broadcast",
        "bytes": 4,
        "seconds": 2.0,
    },
    {"kind": "end", "seconds": 3.0},
]


@pytest.fixture
def asked(workspace, monkeypatch):
    """Requests to a GPU side that answers with ANSWERS; a disk of 8 MiB."""
    requests = []

    def stream(name, request):
        requests.append((name, request))
        yield from ANSWERS

    monkeypatch.setattr(module, "stream", stream)
    monkeypatch.setattr(module, "visible_gpus", lambda: ())
    monkeypatch.setattr(module, "usable_cores", lambda: 4)
    monkeypatch.setattr(disk_rates, "__defaults__", (8 << 20,))
    return requests


def test_the_figures_are_filed_for_plans(asked):
    """Without GPUs the CPU is measured, with all cores; plans on this machine find the figures."""
    made = calibrate(60)
    request = {"device": "cpu", "cores": 4, "seconds": 60, "clock": "wall"}
    assert asked == [("nbtrain.train.calibration", request)]
    found, why = read_calibration()
    assert why == "" and found == made.calibration
    assert found.memory_bytes_per_second() == 2e10 and found.of("collective")[0]["collective"] == "broadcast"
    assert set(found.disk) == {"write_bytes_per_second", "read_bytes_per_second"}
    assert str(made).endswith("Written to data/calibration.json; plans use it.")


def test_a_trial_by_cpu_time_is_not_filed(asked):
    made = calibrate(60, clock="cpu")
    assert made.path is None and str(made).endswith("\n\nNothing was written.")
    assert not calibration_path().exists()


def test_seconds_have_bounds(asked):
    with pytest.raises(
        ConfigError, match=r"^seconds = 5 must be from 20 to 3600: every figure is the median of"
    ):
        calibrate(5)
    assert asked == []


def test_the_disk_is_written_and_read_and_left_as_it_was(workspace):
    rates = disk_rates(output_root(), 8 << 20)
    assert all(rate > 0 for rate in rates.values()) and list(output_root().iterdir()) == []


@pytest.mark.slow
def test_the_verb_prints_the_table_or_json(asked, capsys, tmp_path):
    assert main(["calibrate", "--seconds", "30"]) == 0
    assert "broadcast       2,000,000 us" in capsys.readouterr().out
    assert main(["calibrate", "--json", "--picture", str(tmp_path / "rates.svg")]) == 0
    printed = json.loads(capsys.readouterr().out.partition("\n}")[0] + "\n}")
    assert [figure["what"] for figure in printed["figures"]] == ["memory", "collective"]
    assert "<svg" in (tmp_path / "rates.svg").read_text()
