"""A request from checkpoint to text: what is answered beside the text."""

from types import SimpleNamespace

import pytest

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.rundir import RunDir
from nbtrain.inference import generate as generation

REQUEST = {
    "prompt": "a",
    "max_new_tokens": 1,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "seed": 1,
    "step": None,
}


def test_torn_checkpoints_are_named_and_another_tokenizer_is_refused(tmp_path, monkeypatch):
    """A checkpoint is passed over with its reason; ids of another vocabulary are not decoded."""
    run = RunDir(tmp_path / "run")
    run.checkpoint(10).mkdir(parents=True)
    files.write_json(run.checkpoint_manifest(10), {"tokenizer_sha256": "a" * 64})
    tokenizer = SimpleNamespace(directory=tmp_path / "tokenizer", sha256="b" * 64)
    config = SimpleNamespace(tokenizer=SimpleNamespace(name="x"), padded_vocab_size=128)
    monkeypatch.setattr(generation, "load_resolved", lambda path: config)
    monkeypatch.setattr(generation.Tokenizer, "load", lambda folder: tokenizer)
    monkeypatch.setattr(generation, "whole_step", lambda run, step: (10, [(20, "it is torn")]))
    monkeypatch.setattr(generation, "load_model_weights", lambda path, step, **more: {})
    answers = generation.answers({"run_dir": str(run.path), **REQUEST})
    assert next(answers) == {"kind": "note", "message": "checkpoint global_step20 is not used: it is torn"}
    with pytest.raises(
        DataError, match=r"is bbbbbbbbbbbb..., but this run was trained with aaaaaaaaaaaa...: ids would"
    ):
        next(answers)
