"""Optuna proposes settings of runs and takes their results, by the program of docs/sweeps.md."""

import re

import pytest

import nbtrain as nb
from tests.docs.pages import REPOSITORY, blocks, markdown

pytestmark = pytest.mark.soak
TRIALS = 3


def program() -> str:
    """Return the page's program, with a tiny run, few steps and few trials."""
    page = REPOSITORY / "docs" / "sweeps.md"
    [text] = [block.text for block in blocks(markdown(page)) if "import optuna" in block.text]
    for written, instead in (
        (r"range\(10\)", f"range({TRIALS})"),
        (r'"gpt-tiny"', '"tiny.yaml"'),
        (r'"batch\.max_steps": 200', '"batch.max_steps": 8'),
    ):
        text, number = re.subn(written, instead, text)
        assert number == 1, written
    return text


def test_optuna_asks_and_is_told(tiny, workspace, monkeypatch):
    """Each trial is a run with the proposed learning rate, and its value is that run's validation loss. A
    second call continues the study.
    """
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed: pip install optuna")
    tiny()
    monkeypatch.chdir(workspace)
    for _ in range(2):
        exec(compile(program(), "docs/sweeps.md", "exec"), {})
    study = optuna.load_study(study_name="lr", storage="sqlite:///study.db")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2 * TRIALS
    for trial in study.trials:
        run = nb.open_run(f"optuna-{trial.number}")
        assert run.state == "SUCCEEDED"
        assert run.config.lr_schedule.lr == trial.params["lr"]
        assert trial.value == run.summary()["last_validation_loss"]
    values = [trial.value for trial in study.trials]
    assert study.best_value == min(values) and len(set(values)) == len(values)
