"""The file of a sweep: its runs and their names, and mistakes with their places."""

from pathlib import Path

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.jobs.sweep.sweep_file import read_sweep, run_name, write_sweep

SEEDS = list(range(30))


def written(folder: Path, text: str) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(text)
    return path


def test_the_runs_of_a_grid_and_further_settings(tiny, workspace):
    """Every combination of the grid is a run, then each further mapping; a run's path is the file's own."""
    tiny()
    sweep = read_sweep(
        written(
            workspace,
            "sweep: lr\nrun: tiny.yaml\noverrides: {batch.max_steps: 4}\n"
            "grid: {lr_schedule.lr: [1.0e-3, 3.0e-3], model.seed: [1, 2]}\n"
            "settings: [{optimizer.weight_decay: 0.5}]\n",
        )
    )
    names = ["lr-lr-0-001-seed-1", "lr-lr-0-001-seed-2", "lr-lr-0-003-seed-1", "lr-lr-0-003-seed-2"]
    assert [run.name for run in sweep.runs] == [*names, "lr-weight-decay-0-5"]
    first = sweep.runs[1].config
    assert (first.lr_schedule.lr, first.model.seed, first.batch.max_steps) == (0.001, 2, 4)
    assert first.name == names[1] and first.all_labels["sweep"] == "lr"
    assert sweep.varied == ["lr_schedule.lr", "model.seed", "optimizer.weight_decay"]


def test_a_name_stays_and_is_a_folders():
    """A run's name depends on its own settings alone. One that is too long becomes a hash of the settings."""
    assert run_name("a", {"model.seed": 1, "data.seed": 2}) == "a-model-seed-1-data-seed-2"
    long = {f"model.key{number}": "x" * 9 for number in range(9)}
    name = run_name("a-sweep-with-a-name-of-forty-characters-", long)
    assert len(name) <= 53 and name == run_name("a-sweep-with-a-name-of-forty-characters-", long)
    assert name != run_name("a-sweep-with-a-name-of-forty-characters-", {**long, "model.key0": "y"})


def test_different_values_have_different_names():
    """A value that a name cannot show exactly is hashed."""
    values = [1, -1, 1e10, 1e-10, 0.00123456, 0.001234561]
    assert len({run_name("a", {"lr_schedule.lr": value}) for value in values}) == len(values)


def test_texts_in_a_mapping_are_values_as_on_the_command_line(tiny, workspace):
    """The notebook splits its parameter into words."""
    tiny()
    words = {"lr_schedule.lr": ["0.001", "2e-3"], "model.seed": ["1"]}
    runs = read_sweep(write_sweep({"sweep": "a", "run": "tiny.yaml", "grid": words})).runs
    assert [run.config.lr_schedule.lr for run in runs] == [0.001, 0.002]
    assert {run.config.model.seed for run in runs} == {1}


@pytest.mark.parametrize(
    "contents", [{"sweep": "a", 1: 2}, {"sweep": "a", "run": "gpt-tiny", "grid": {"model.seed": {1, 2}.copy}}]
)
def test_contents_that_are_not_yaml_are_refused(workspace, contents):
    with pytest.raises(ConfigError, match=r"must be a string|cannot be written as YAML"):
        write_sweep(contents)
    assert not (workspace / "sweeps").exists()


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("sweep: a\nrun: tiny.yaml\n", ["sweep.yaml: the sweep has no runs."]),
        (
            "sweep: A\nrun: tiny.yaml\ngrids: {}\nat_once: 0\n",
            [
                "sweep.yaml:3: a sweep has no key `grids`",
                "sweep.yaml:1: sweep = A",
                "sweep.yaml:4: at_once = 0",
            ],
        ),
        (
            "sweep: a\nrun: tiny.yaml\ngrid: {lr_schedule.lrr: [1]}\n",
            ["the run a-lrr-1", "Nearest: lr_schedule.lr"],
        ),
        (
            "sweep: a\nrun: tiny.yaml\ngrid: {name: [x, y]}\n",
            ["sweep.yaml:3: name is set by the sweep itself"],
        ),
        (
            "sweep: a\nrun: tiny.yaml\noverrides: {model.seed: 1}\ngrid:\n  model.seed: [1]\n",
            ["sweep.yaml:5: model.seed is both in grid and in overrides"],
        ),
        (
            "sweep: a\nrun: tiny.yaml\ngrid: {model.seed: [1, 1]}\n",
            ["more than one run has the settings of a-seed-1"],
        ),
        (
            "sweep: a\nrun: tiny.yaml\ngrid: {model.seed: [1]}\nstop: {rule: bound, after_tokens: 100}\n",
            ["sweep.yaml:4: `rule: bound` requires `bound`"],
        ),
        (
            f"sweep: a\nrun: tiny.yaml\ngrid: {{model.seed: {SEEDS}, data.seed: {SEEDS}}}\n",
            ["the sweep has 900 runs, but at most 500 are allowed"],
        ),
        ("- a\n", ["sweep.yaml"]),
    ],
)
def test_mistakes_are_named_with_their_places(tiny, workspace, text, problems):
    tiny()
    with pytest.raises(ConfigError) as caught:
        read_sweep(written(workspace, text))
    for problem in problems:
        assert problem in str(caught.value)
