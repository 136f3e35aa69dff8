"""Limits of a run and of its workspace: which one holds, its figure, and limits that cannot be compared."""

import dataclasses
import os
from pathlib import Path

import pytest

from nbtrain.base.errors import ConfigError, SubmitError
from nbtrain.base.workspace import workspace as the_workspace
from nbtrain.config.load import load
from nbtrain.jobs.checks.limits import refuse_over_limits, refuse_run_over_limits
from nbtrain.planner.budget.limits import amount_of, limits_of
from nbtrain.planner.plan import plan

pytestmark = pytest.mark.usefixtures("workspace")

RUN = "gpt-13b-4xdp-4xpp"


def team(text):
    (the_workspace() / "limits.yaml").write_text(text)


def held(config, key):
    """Return (the limit that holds, whether the workspace sets it, its place) of a run."""
    found = next(limit for limit in plan(config).limits if limit.key == key)
    return found.most, found.by_workspace, found.place


def figure(planned, key):
    return {
        "gpu_hours": planned.cost.device_hours,
        "money": planned.cost.money,
        "energy_kwh": planned.cost.energy_kwh,
        "days": planned.duration.seconds / 86_400,
        "disk_bytes": planned.disk.total_bytes,
        "epochs": planned.epochs,
    }[key]


@pytest.mark.parametrize("key", ["gpu_hours", "money", "energy_kwh", "days", "disk_bytes"])
@pytest.mark.parametrize("by_team", [False, True])
def test_each_limit_refuses_by_its_figure(key, by_team):
    """A limit just above the plan's figure passes; one just below refuses, and names both numbers."""
    planned = figure(plan(load(RUN)), key)

    def with_limit(value):
        value = int(value) if key == "disk_bytes" else value
        if by_team:
            team(f"{key}: {value}\n")
            return load(RUN)
        return load(RUN, {f"limits.{key}": value})

    refuse_run_over_limits(with_limit(1.01 * planned))
    with pytest.raises(SubmitError, match=f"{key} is exceeded: .* but the limit is ") as refused:
        refuse_run_over_limits(with_limit(0.99 * planned))
    place = "limits.yaml:1" if by_team else f"override limits.{key}="
    assert refused.value.findings[0].place.startswith(place)
    assert refused.value.findings[0].cost.fatal


def test_epochs_refuse_by_their_figure():
    """Epochs are compared once the tokens of the data are known; before, the limit warns."""
    unprepared = {"data.sources": [{"kind": "mock"}], "limits.epochs": 2}
    planned = plan(load(RUN, unprepared))
    found = [finding for finding in planned.findings if finding.rule == "limits_hold"]
    assert [(finding.level, finding.key) for finding in found] == [("warning", "limits.epochs")]
    assert "not known before the data are prepared" in found[0].message
    refuse_over_limits(planned)
    config = planned.config
    limits = [
        limits_of(config, planned.cost, planned.duration, planned.disk, epochs)[0] for epochs in (1.99, 2.01)
    ]
    assert [limit.exceeded for limit in limits] == [False, True]


def test_a_trial_and_an_evaluation_make_fewer_epochs():
    """A run that stops early makes a part of the epochs, and one that only evaluates makes none."""

    def epochs(overrides):
        planned = plan(load(RUN, {**overrides, "limits.epochs": 4}))
        return limits_of(planned.config, planned.cost, planned.duration, planned.disk, None, 52.0)[0]

    whole, trial, eval_only = epochs({}), epochs({"batch.max_steps": 10}), epochs({"mode": "eval"})
    assert (whole.planned, whole.refuses) == (52, True)
    config = load(RUN, {"batch.max_steps": 10})
    assert 0 < 52 * config.target_tokens / config.train_tokens < 4
    assert (trial.planned, trial.refuses) == (None, False), "a lower bound lets no run pass as compared"
    assert (eval_only.planned, eval_only.refuses) == (0, False)


def test_the_smaller_limit_holds():
    """A run tightens the workspace's limit; a looser one has no effect, and is reported."""
    team("# of the team\ngpu_hours: 1e6\ndays: 500\n")
    assert held(load(RUN), "gpu_hours") == (1e6, True, "limits.yaml:2")
    tight = load(RUN, ["limits.gpu_hours=1000"])
    assert held(tight, "gpu_hours") == (1000, False, "override limits.gpu_hours=1000")
    loose = load(RUN, ["limits.days=5000"])
    assert held(loose, "days") == (500, True, "limits.yaml:3")
    reported = [finding for finding in plan(loose).findings if finding.rule == "limits_tighten"]
    assert (
        "limits.days (5,000 days) has no effect, because the workspace has a stricter limit: 500 days"
        in reported[0].message
    )
    assert plan(loose).sections()["Limits"]["days"] == "129 days, limit 500 days (limits.yaml:3)"


def test_a_workspace_inside_the_teams_has_its_limits(monkeypatch):
    """A workspace in the team's folder cannot loosen a limit, and can tighten it."""
    team("gpu_hours: 20000\ndays: 100\n")
    folder = the_workspace()
    inside = folder / "people" / "mine"
    for place in (folder, inside):
        (place / "notebooks").mkdir(parents=True)
        (place / "examples" / "megatron-gpt").mkdir(parents=True)
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(inside))
    (inside / "limits.yaml").write_text("gpu_hours: 1e9\ndays: 5\n")
    assert held(load(RUN), "gpu_hours") == (20000, True, f"{folder / 'limits.yaml'}:1")
    assert held(load(RUN), "days") == (5, True, "limits.yaml:2")
    with pytest.raises(SubmitError, match="the limit is 20,000 GPU hours"):
        refuse_run_over_limits(load(RUN))


def test_the_output_directory_of_a_team_has_its_limits(monkeypatch, tmp_path):
    """Another workspace that writes to the team's output directory has the limits next to it."""
    team("gpu_hours: 20000\n")
    output, other = the_workspace() / "output", tmp_path / "other"
    monkeypatch.setenv("NBTRAIN_OUTPUT", str(output))
    other.mkdir()
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(other))
    with pytest.raises(SubmitError, match="the limit is 20,000 GPU hours"):
        refuse_run_over_limits(load(RUN))
    # A link to another disk is still the team's output directory.
    (tmp_path / "disk" / "output").mkdir(parents=True)
    output.symlink_to(tmp_path / "disk" / "output")
    with pytest.raises(SubmitError, match="the limit is 20,000 GPU hours"):
        refuse_run_over_limits(load(RUN))


def test_a_file_with_the_other_ending_closes_the_gate():
    """limits.yml is not read, so that a team would believe in limits that nothing compares."""
    (the_workspace() / "limits.yml").write_text("gpu_hours: 20000\n")
    with pytest.raises(
        ConfigError, match=r"^limits\.yml: .* must be in limits\.yaml\. Rename the file to limits\.yaml\.$"
    ):
        refuse_run_over_limits(load(RUN))


def test_a_limit_without_a_figure():
    """Without a figure, a limit refuses the run if the user can supply it (GPU, price), else it warns."""
    nameless = load("gpt-125m", {"resources.gpu_type": None, "limits.gpu_hours": 10})
    with pytest.raises(SubmitError, match=r"the GPU type is not known\. Set resources\.gpu_type"):
        refuse_run_over_limits(nameless)
    unpriced = load("gpt-125m", {"resources.gpu_type": "NVIDIA H20", "limits.money": 10})
    with pytest.raises(
        SubmitError, match=r"there is no price for H20\. Set per_device_hour\.H20 in data/prices\.yaml"
    ):
        refuse_run_over_limits(unpriced)
    prices = the_workspace() / "data" / "prices.yaml"
    prices.parent.mkdir()
    prices.write_text("per_kwh: 0.0001\n")
    with pytest.raises(SubmitError, match=r"there is no price for H20\."):
        refuse_run_over_limits(unpriced)
    spot = load("gpt-125m", {"resources.capacity": "spot", "limits.money": 10})
    words = r"no price for spot machines with A100-40GB\. Set per_device_hour\.A100-40GB\.spot in data/"
    with pytest.raises(SubmitError, match=words):
        refuse_run_over_limits(spot)
    cpu = plan(load("gpt-tiny", {"limits": {"energy_kwh": 1, "money": 1, "gpu_hours": 1}}))
    refuse_over_limits(cpu)
    warned = [finding.key for finding in cpu.findings if finding.rule == "limits_hold"]
    assert warned == ["limits.energy_kwh"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu_hour: 5\n", r"limits.yaml:1: limits.yaml sets the unknown limit `gpu_hour`.*gpu_hours"),
        ("days: soon\n", r"limits.yaml:1: days = soon: must be"),
        ("days: -1\n", r"limits.yaml:1: days = -1.*more than 0"),
        ("days: [1\n", r"limits.yaml"),
        ("# none\n", r"limits.yaml: the file is empty; it must be a mapping of limits"),
    ],
)
def test_a_damaged_file_closes_the_gate(text, words):
    team(text)
    with pytest.raises(ConfigError, match=words):
        refuse_run_over_limits(load(RUN))


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("gone.yaml")])
def test_what_is_not_a_file_closes_the_gate(make):
    """A folder, a pipe and a link without its target stand where limits were, so no run is submitted."""
    make(the_workspace() / "limits.yaml")
    with pytest.raises(ConfigError, match=r"^limits\.yaml is not a readable file"):
        refuse_run_over_limits(load(RUN))


def test_a_figure_that_looks_like_its_limit():
    """Numbers that are rounded to the same text are not shown as equal."""
    planned = plan(load(RUN)).cost.device_hours
    with pytest.raises(SubmitError, match=r"need slightly more than (\S+ GPU hours), but the limit is \1\."):
        refuse_run_over_limits(load(RUN, {"limits.gpu_hours": planned * (1 - 1e-9)}))
    assert [amount_of("days", value) for value in (0.5, 1, 2)] == ["0.5 days", "1 day", "2 days"]


def test_the_record_of_the_plan():
    record = plan(load(RUN, ["limits.days=200"])).to_dict()["limits"]
    assert record[0]["key"] == "days" and record[0]["most"] == 200
    assert record[0]["planned"] == pytest.approx(129, rel=0.05)
    assert dataclasses.asdict(plan(load(RUN, ["limits.days=200"])).limits[0]) == record[0]
