"""Reading parameters from a model folder: any range of any sharded part, and a vocabulary of another size."""

import dataclasses
import random

import pytest
import torch

from nbtrain.base.errors import CheckpointError
from nbtrain.checkpoint.weights.folder_weights import FolderWeights
from nbtrain.checkpoint.weights.store import MASTER, TensorPart
from nbtrain.config.load import load
from nbtrain.model.gpt import build_model
from nbtrain.pretrained.model import open_model
from nbtrain.pretrained.tensors import Sizes, gpt2_tensors, llama_tensors, parameter_shapes
from tests.fuzzing import num_cases
from tests.parity.cases import MODELS
from tests.pretrained.small import write_small_folder
from tests.train import launch

SIZES = Sizes(
    num_layers=2, hidden_size=12, num_attention_heads=6, num_query_groups=3, head_size=2, ffn_hidden_size=20,
    vocab_size=11, positions=0, is_gated=True, has_bias=False, has_qkv_bias=True, has_norm_bias=False,
    has_qk_norm=True, is_tied=False,
)  # fmt: skip


@pytest.fixture
def weights(tmp_path):
    write_small_folder(tmp_path / "m")
    model = open_model(tmp_path / "m")
    return FolderWeights(model, model.described.vocab_size)


@pytest.mark.parametrize("kind", MODELS)
def test_shapes_are_those_of_the_model(kind, tmp_path):
    """The names and shapes that are computed without torch equal the model's, in the model's order."""
    source = tmp_path / "tiny.yaml"
    source.write_text(launch.TINY)
    config = load(
        str(source), {"model.attention_dropout": 0.0, **MODELS[kind], "model.make_vocab_size_divisible_by": 1}
    )
    model = build_model(config)
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    found = parameter_shapes(Sizes.of(config.model, config.padded_vocab_size))
    assert list(found.items()) == list(expected.items())


@pytest.mark.parametrize("family", [llama_tensors, gpt2_tensors])
def test_pieces_cover_every_row_of_parameters_and_tensors_once(family):
    """The chunks cover every row of parameters and tensors once, also for packed
    query, key and value rows.
    """
    sizes = SIZES
    if family is gpt2_tensors:
        plain = {
            "is_gated": False,
            "has_bias": True,
            "has_norm_bias": True,
            "has_qk_norm": False,
            "positions": 9,
        }
        sizes = dataclasses.replace(SIZES, **plain)
    known = family(sizes)
    covered = {name: [0] * shape[0] for name, shape in known.shapes.items()}
    used = {
        name: [0] * (shape[-1] if any(piece.transposed for _, piece in known.users[name]) else shape[0])
        for name, shape in known.tensors.items()
    }
    for name, pieces in known.pieces.items():
        for piece in pieces:
            for row in range(piece.count):
                covered[name][piece.first + row] += 1
                used[piece.tensor][piece.there + row] += 1
    for rows in (*covered.values(), *used.values()):
        assert set(rows) == {1}


def test_a_group_is_its_queries_its_key_and_its_value():
    """A query group has (n/g + 2) d rows: its queries, its key and its value, in Megatron's order."""
    pieces = llama_tensors(SIZES).pieces["layers.0.attention.query_key_value.weight"]
    rows = [(piece.first, piece.count, piece.tensor.split(".")[-2], piece.there) for piece in pieces]
    assert rows[:3] == [(0, 4, "q_proj", 0), (4, 2, "k_proj", 0), (6, 2, "v_proj", 0)]
    assert rows[3:6] == [(8, 4, "q_proj", 4), (12, 2, "k_proj", 2), (14, 2, "v_proj", 2)]


def test_any_part_of_any_cut_is_read(weights):
    """Every part of a sharded tensor is read as a slice of the whole tensor."""
    chance = random.Random(5)
    for name, parameter in weights.parameters.items():
        whole = weights.read(name).view(parameter.shape)
        dims = [None, 0, 1] if len(parameter.shape) == 2 else [None, 0]
        for _ in range(num_cases(6)):
            dim = chance.choice(dims)
            size = 1 if dim is None else chance.choice([1, 2, 4])
            rank = chance.randrange(size)
            part = whole if dim is None else whole.chunk(size, dim)[rank]
            start = chance.randrange(part.numel())
            count = chance.randint(1, part.numel() - start)
            found = weights.read(name, MASTER, TensorPart(rank, size, dim), start, count)
            assert torch.equal(found, part.reshape(-1)[start : start + count]), (name, rank, size, dim)


def test_padding_rows_are_left_to_the_run(weights):
    """Padding rows are not read from the folder: with 20 rows padded to 24 on two
    ranks, the second rank reads 8.
    """
    whole = weights.read("word_embeddings.weight").view(20, 8)
    found = weights.read("word_embeddings.weight", MASTER, TensorPart(1, 2, 0), 0, None, 24)
    assert torch.equal(found.view(-1, 8), whole[12:])
    assert not len(weights.read("word_embeddings.weight", MASTER, TensorPart(3, 4, 0), 40, 8, 28))


def test_new_rows_are_the_mean_of_the_old_ones(weights):
    """New vocabulary rows are the mean of the old ones, as in transformers' resize_token_embeddings.

    A smaller vocabulary keeps the first rows.
    """
    whole = weights.read("word_embeddings.weight").view(20, 8)
    larger = FolderWeights(weights.model, 23)
    assert larger.parameters["word_embeddings.weight"].shape == (23, 8)
    assert larger.parameters["layers.0.attention.dense.weight"].shape == (8, 8)
    found = larger.read("word_embeddings.weight").view(23, 8)
    assert torch.equal(found[:20], whole)
    torch.testing.assert_close(found[20:], whole.mean(0).expand(3, 8), rtol=1e-6, atol=1e-6)
    part = larger.read("word_embeddings.weight", MASTER, TensorPart(1, 2, 0), 0, None, 24)
    assert torch.equal(part, found.flatten()[12 * 8 :])
    smaller = FolderWeights(weights.model, 5)
    assert torch.equal(smaller.read("word_embeddings.weight").view(5, 8), whole[:5])


def test_nan_is_caught_while_it_is_read(tmp_path):
    """NaN is detected while reading a folder that was never imported or has changed since."""
    tensors = write_small_folder(tmp_path / "m")
    tensors["model.layers.1.self_attn.k_proj.weight"][2, 3] = float("nan")
    from safetensors.numpy import save_file

    save_file(tensors, tmp_path / "m" / "model.safetensors")
    weights = FolderWeights(open_model(tmp_path / "m"), 20)
    with pytest.raises(
        CheckpointError, match=r"layers\.1\.attention\.query_key_value\.weight holds NaN or Inf"
    ):
        weights.read("layers.1.attention.query_key_value.weight")
