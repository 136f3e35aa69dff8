"""The command `nbtrain calibrate`: requests to the GPU side, stored results, and the speed of the disk."""

import collections
import json

import pytest

from nbtrain.base.errors import ConfigError, JobError
from nbtrain.base.workspace import output_root
from nbtrain.cli.__main__ import main
from nbtrain.jobs.calibration import calibrate as module
from nbtrain.jobs.calibration.calibrate import calibrate, disk_rates
from nbtrain.jobs.machine import machine
from nbtrain.planner.calibration.calibration import calibration_path, read_calibration

ANSWERS = [
    {"kind": "plan", "figures": 2},
    {"kind": "figure", "ranks": 1, "what": "memory", "bytes_per_second": 2e10, "spread": 0.1},
    {
        "kind": "figure",
        "ranks": 2,
        "what": "collective",
        "collective": "broadcast",
        "bytes": 4,
        "seconds": 2.0,
        "spread": 0.2,
    },
    {"kind": "end", "seconds": 3.0},
]


@pytest.fixture
def asked(workspace, monkeypatch):
    """Record the requests to a GPU side that answers with ANSWERS; the disk has 8 MiB."""
    requests = []

    def stream(name, request):
        requests.append((name, request))
        yield from ANSWERS

    monkeypatch.setattr(module, "stream", stream)
    monkeypatch.setattr(module, "visible_gpus", lambda chosen: ())
    monkeypatch.setattr(module, "usable_cores", lambda: 4)
    monkeypatch.setattr(module, "lacking_cores", lambda: 0.0)
    monkeypatch.setattr(disk_rates, "__defaults__", (8 << 20,))
    return requests


def test_the_figures_are_filed_for_plans(asked):
    """The measured values are stored where plans look for them. On a machine without GPUs, all CPU cores are
    measured.
    """
    made = calibrate(60)
    [(name, request)] = asked
    assert name == "nbtrain.train.calibration"
    assert 0 < request.pop("seconds") <= 58  # bandwidths that the disk still delivers to them
    assert request == {"device": "cpu", "cores": 4, "clock": "wall"}
    found, why = read_calibration()
    assert why == "" and found == made.calibration
    assert found.memory_bytes_per_second() == 2e10 and found.of("collective")[0]["collective"] == "broadcast"
    assert set(found.disk) == {"write_bytes_per_second", "read_bytes_per_second"}
    assert str(made).endswith("Written to data/calibration.json; plans use it.")


def test_a_busy_machine_is_in_doubt_and_replaces_nothing_better(asked, monkeypatch):
    """Values that were measured on a busy machine are used for some days as doubtful, and never replace
    better ones.
    """
    monkeypatch.setattr(module, "lacking_cores", lambda: 1.5)
    doubtful = calibrate(60)
    found, _ = read_calibration()
    assert found.doubts == ["other programs used 1.5 of 4 cores when the calibration started"]
    assert "but doubtful: other programs used 1.5 of 4 cores" in found.source
    assert "Plans use it for 7 days and mark it as doubtful" in str(doubtful)
    assert doubtful.to_dict()["doubts"] == found.doubts
    monkeypatch.setattr(module, "lacking_cores", lambda: 0.4)
    calibrate(60)
    quiet = read_calibration()[0]
    assert quiet.doubts == []
    monkeypatch.setattr(module, "lacking_cores", lambda: 1.5)
    again = calibrate(60)
    assert read_calibration()[0] == quiet and again.path is None
    assert "Not written: data/calibration.json keeps its earlier, more reliable values" in str(again)


def test_time_that_does_not_suffice_is_an_error(asked, monkeypatch):
    """If a measurement does not finish in time, nothing is stored, and the message states the load and
    suggests a longer time.
    """
    monkeypatch.setattr(module, "lacking_cores", lambda: 4.0)
    monkeypatch.setitem(ANSWERS[-1], "kind", "late")
    with pytest.raises(
        JobError,
        match=r"^only 2 of 2 values could be measured in 60 s, so nothing was written: at the start, "
        r"other programs used 4\.0 of 4 cores\. .*`nbtrain calibrate --seconds 240`\.$",
    ):
        calibrate(60)
    # More than the most is not proposed.
    with pytest.raises(JobError, match=r"Calibrate while the machine is idle\.$"):
        calibrate(module.MOST_SECONDS)
    assert not calibration_path().exists()


def test_a_trial_by_cpu_time_is_not_filed(asked):
    made = calibrate(60, clock="cpu")
    assert made.path is None and str(made).endswith("\n\nNothing was written.")
    assert not calibration_path().exists()


def test_seconds_have_bounds(asked):
    with pytest.raises(
        ConfigError, match=r"^seconds = 5 must be from 60 to 3600, because every value is the median of"
    ):
        calibrate(5)
    assert asked == []


def test_the_disk_is_written_and_read_and_left_as_it_was(workspace):
    rates = disk_rates(output_root(), 8 << 20)
    assert all(rate > 0 for rate in rates.values()) and list(output_root().iterdir()) == []


@pytest.mark.slow
def test_the_verb_prints_the_table_or_json(asked, capsys, tmp_path):
    assert main(["calibrate", "--seconds", "60"]) == 0
    assert "broadcast  2,000,000 us" in capsys.readouterr().out
    assert main(["calibrate", "--json", "--picture", str(tmp_path / "rates.svg")]) == 0
    printed = json.loads(capsys.readouterr().out.partition("\n}")[0] + "\n}")
    assert [figure["what"] for figure in printed["figures"]] == ["memory", "collective"]
    assert "<svg" in (tmp_path / "rates.svg").read_text()


@pytest.mark.parametrize(("quota", "lacking"), [(3, 1.25), (2, 0.25), (1, 0.0)])
def test_cores_that_others_use(monkeypatch, quota, lacking):
    """Cores that other programs use are subtracted from the allowed cores; the result is limited by the CPU
    quota.
    """
    core = collections.namedtuple("core", "user nice idle iowait steal guest")
    looks = [
        [core(0, 0, 0, 0, 0, 0)] * 4,
        # Idle; a quarter used by a guest, which also counts as user time; taken by the host; not allowed.
        [core(0, 0, 3, 1, 0, 0), core(1, 0, 3, 0, 0, 1), core(0, 0, 0, 0, 4, 0), core(4, 0, 0, 0, 0, 0)],
    ]
    monkeypatch.setattr(machine.psutil, "cpu_times", lambda percpu: looks.pop(0))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0, 1, 2})
    monkeypatch.setattr(machine, "usable_cores", lambda: quota)
    assert machine.lacking_cores(0.0) == lacking
