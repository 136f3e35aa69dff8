"""Weights with NaN or Inf are never written, and NaN logits never count as equal."""

import types

import pytest
import torch

from nbtrain.base.errors import CheckpointError
from nbtrain.checkpoint.pretrained.compare import compare
from nbtrain.checkpoint.pretrained.full_parameters import FullParameters
from nbtrain.checkpoint.pretrained.plain import PlainModel
from nbtrain.checkpoint.weights.folder_weights import FolderWeights
from nbtrain.config.load import load
from nbtrain.pretrained.model import open_model
from tests.pretrained import made

NAME = "final_layernorm.weight"


@pytest.mark.parametrize(
    "number, dtype, said",
    [
        (float("nan"), torch.float32, "holds NaN or Inf, so the model is unusable. Use another step."),
        (float("-inf"), torch.bfloat16, "holds NaN or Inf, so the model is unusable. Use another step."),
        (
            70_000.0,
            torch.float16,
            "holds NaN or Inf in fp16, whose largest number is 65,504. Use another format, or another step.",
        ),
        (70_000.0, torch.bfloat16, None),
    ],
)
def test_weights_that_are_no_numbers(number, dtype, said, tmp_path, monkeypatch):
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    values = torch.tensor([1.0, number])
    source = types.SimpleNamespace(
        dtype=torch.float32,
        vocab_size=5,
        folder=tmp_path / "global_step7",
        parameters={NAME: types.SimpleNamespace(shape=(2,))},
        read=lambda name, state: values,
    )
    weights = FullParameters(source, dtype)
    if said is None:
        assert torch.equal(weights.full(NAME), values.to(dtype))
        return
    with pytest.raises(CheckpointError) as refused:
        weights.full(NAME)
    assert str(refused.value) == f"global_step7: {NAME} {said}"


@pytest.mark.slow
def test_logits_that_are_no_numbers_do_not_agree(tmp_path, monkeypatch):
    """Logits that are NaN in only a part of the vocabulary count as different."""
    pytest.importorskip("transformers")
    made.write_model(tmp_path / "m", "llama")
    model = open_model(tmp_path / "m")
    fields = {f"model.{key}": value for key, value in model.described.fields.items()}
    rows = {"tokenizer.vocab_size": model.described.vocab_size, "model.seq_length": 32}
    config = load("gpt-tiny", {**fields, **rows}, check=False)
    weights = FullParameters(FolderWeights(model, model.described.vocab_size), torch.float32)
    assert list(compare(PlainModel(tmp_path / "m"), weights, config))[-1] < 1e-5
    plain = PlainModel(tmp_path / "m")
    monkeypatch.setattr(plain, "logits", lambda *one: PlainModel.logits(plain, *one) * torch.nan)
    with pytest.raises(
        CheckpointError, match=r"the logits of the written model differ .* they diverge at the output"
    ):
        list(compare(plain, weights, config))
    plain = PlainModel(tmp_path / "m")
    monkeypatch.setattr(plain, "layer", lambda *one: PlainModel.layer(plain, *one) * torch.nan)
    with pytest.raises(
        CheckpointError, match=r"the logits of the written model differ .* they diverge at layer 0"
    ):
        list(compare(plain, weights, config))
