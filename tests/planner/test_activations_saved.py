"""Activations against what autograd really keeps of nbtrain's own model: within 5 %, by saved-tensor hooks.

The bytes are those of the storages behind the saved tensors, each storage once, without parameters. Small
models run for real; large shapes are fake tensors, which have sizes and no memory. On a CPU a dropout mask is
kept as numbers; bytes on a GPU differ in masks only.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nbtrain.config.arithmetic.shape import Shape
from nbtrain.model.gpt import GPT
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.parallel import cross_entropy
from nbtrain.planner.memory import activations, buffers
from nbtrain.planner.memory.stage import stage_of
from nbtrain.planner.setup import Setup

# 448 tokens: no tensor of tokens has the shape of a matrix.
SMALL = Shape(3, 128, 4, 512, 512, 112, 4, 32, learned_positions=112)
LARGE = {
    "125M": (Shape(12, 768, 12, 3072, 52096, 2048, 12, 64, learned_positions=2048), 16),
    "1.3B": (Shape(24, 2048, 16, 8192, 52096, 2048, 16, 128, learned_positions=2048), 4),
}
RECOMPUTE = {
    "none": {},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
    "every2": {"recompute": "full", "recompute_interval": 2},
}


def planned(setup: Setup) -> float:
    stage = stage_of(setup, 0)
    return activations.kept(setup, stage).total + buffers.loss_gradients(setup, stage)


def saved(setup: Setup) -> int:
    """Bytes that autograd keeps at the end of a forward pass."""
    model, shape = _model(setup), setup.shape
    tokens = torch.zeros(setup.micro_batch_size, shape.seq_length, dtype=torch.int64)
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    # Autocast's copies of matrices count as weights.
    matrices = {parameter.shape for parameter in model.parameters() if parameter.dim() == 2}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        is_cast = setup.autocast and {tensor.shape, tensor.T.shape if tensor.dim() == 2 else None} & matrices
        is_gradient = tensor.dtype == torch.float32 and tensor.shape == model.word_embeddings.weight.shape
        if storage._cdata not in own and (not is_cast or is_gradient):
            # Held, so that no later storage can have its place.
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(tokens, tokens)
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


def _model(setup: Setup) -> GPT:
    shape, full = setup.shape, setup.recompute == "full"
    config = GPTConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_attention_heads,
        ffn_hidden_size=shape.ffn_hidden_size,
        padded_vocab_size=shape.padded_vocab_size,
        max_position_embeddings=shape.learned_positions,
        hidden_dropout=shape.hidden_dropout,
        attention_dropout=shape.attention_dropout,
        attention_backend="math" if setup.keeps_scores else "auto",
        cross_entropy_chunk_tokens=setup.logits_chunk_tokens,
        autocast=setup.autocast,
        checkpoint_interval_layers=setup.recompute_interval if full else 0,
        selective_recompute=setup.recompute == "selective",
    )
    model = GPT(config).train()
    if setup.dtype == "bf16" and not setup.autocast:
        # Module.to() cannot change the parameters of fake tensors.
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                assert parameter is not None
                setattr(module, name, torch.nn.Parameter(parameter.detach().bfloat16()))
    return model


def small(shape: Shape = SMALL, micro_batch_size: int = 4, **changed) -> Setup:
    options = {"dtype": "fp32", "logits_chunk_tokens": 64, **changed}
    size = micro_batch_size
    return Setup(shape, on_gpu=False, micro_batch_size=size, global_batch_size=size, **options)


PRECISIONS = {"fp32": {}, "bf16": {"dtype": "bf16"}, "autocast": {"dtype": "bf16", "autocast": True}}


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_autograd_keeps(precision, recompute):
    """Every format with every kind of recomputation; scores kept or not; with dropout and without."""
    for dropout, scores in ((0.0, False), (0.0, True), (0.1, False), (0.1, True)):
        # On a CPU only the math kernel has dropout.
        changed = {"hidden_dropout": dropout, "attention_dropout": dropout if scores else 0.0}
        shape = Shape(**{name: getattr(SMALL, name) for name in SMALL.__slots__} | changed)
        setup = small(shape, keeps_scores=scores, **PRECISIONS[precision], **RECOMPUTE[recompute])
        assert planned(setup) == pytest.approx(saved(setup), rel=0.02), (dropout, scores)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "full", "every2"])
@pytest.mark.parametrize("size", LARGE)
def test_what_autograd_keeps_of_large_shapes(size, recompute, monkeypatch):
    """In bf16. Selective recomputation tells tensors apart by their memory: fake tensors have none."""
    # Whole chunks at one time, as on a GPU: otherwise it is the fake tensors of blocks that take long.
    monkeypatch.setattr(cross_entropy, "CPU_SOFTMAX_ROWS", 2**20)
    shape, micro_batch_size = LARGE[size]
    setup = small(shape, micro_batch_size, dtype="bf16", logits_chunk_tokens=0, **RECOMPUTE[recompute])
    with FakeTensorMode():
        found = saved(setup)
    assert planned(setup) == pytest.approx(found, rel=0.02)
