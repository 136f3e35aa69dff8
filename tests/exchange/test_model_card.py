"""The model card: README.md of an exported model."""

from nbtrain.base.files import write_json
from nbtrain.base.printing.report import Table
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import flatten, load
from nbtrain.exchange.model_card import _loss, _source, _training_rows


def test_a_source_is_one_row():
    """A data source takes one row of the table, even if its license contains line breaks or the cell
    separator.
    """
    source = {"name": "wiki|en", "documents": 1200, "tokens": None, "licence": "CC BY\n4.0 | GFDL\n"}
    sources = [source, {"kind": "jsonl"}]
    assert Table(("", "", "", ""), list(map(_source, sources))).markdown()[-2:] == [
        "| wiki\\|en | 1,200 |  | CC BY 4.0 \\| GFDL |",
        "| jsonl |  |  | not stated |",
    ]


def test_a_loss_over_tokens_has_a_perplexity():
    """The perplexity is next to the validation loss, unless the loss is over pairs of answers (dpo) or its
    exponential is too large for a float.
    """
    saved = {"step": 20, "evaluated_step": 20, "validation_loss": 2.0}
    tokens, pairs = load("gpt-tiny"), load("gpt-tiny", {"dpo": {"beta": 0.2}}, check=False)
    assert _loss(tokens, saved) == ["2.0000 (perplexity 7.39)"]
    assert _loss(tokens, saved | {"evaluated_step": 10}) == ["2.0000 (perplexity 7.39), measured at step 10"]
    assert _loss(pairs, saved) == ["2.0000"]
    assert _loss(tokens, saved | {"validation_loss": 800.0}) == ["800.0000"]


def test_the_settings_are_those_of_the_checkpoint(tmp_path):
    """A job after the checkpoint may have had another learning rate, layout or device, and more to train."""
    trained = load("gpt-tiny", {"parallel.tensor_parallel_size": 2}, check=False)
    now = load("gpt-tiny", {"lr_schedule.lr": 0.5, "optimizer.weight_decay": 0.25, "batch.max_steps": 7})
    run = RunDir(tmp_path)
    # The record of a submission before the first step, which started from other weights.
    write_json(run.init_from_json, {"family": "Llama", "sha256": "0" * 64})
    saved = {
        "step": 4,
        "consumed_tokens": 1024,
        "validation_loss": None,
        "settings": dict(flatten(trained.model_dump(mode="json"))),
        "device": {"kind": "gpu", "name": "NVIDIA H100"},
    }
    rows = dict(_training_rows(run, now, 4, saved))
    assert rows["learning rate"].startswith(f"{trained.lr_schedule.lr:g}, ")
    assert "0.25" not in rows["optimizer"] and rows["steps"] == f"4 of {trained.train_steps:,}"
    assert rows["layout"].startswith("2 ranks: tensor 2,")
    assert rows["devices"] == "2 x NVIDIA H100"
    assert "started from" not in rows
    rows = dict(_training_rows(run, now, 0, {}))
    assert rows["learning rate"].startswith("0.5, ") and rows["devices"] == "CPU" and "steps" not in rows
