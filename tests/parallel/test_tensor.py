"""Tensor-parallel layers compared with one process: outputs, and gradients of inputs and weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nbtrain.base.errors import CodeError
from nbtrain.model.custom_layer import LayerParts
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.initialization import Initializer
from nbtrain.parallel.groups import ALONE, Group
from nbtrain.parallel.layout import ModelParallel
from nbtrain.parallel.mappings import own_part
from nbtrain.parallel.tensor import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    partition_dim,
)
from tests.parallel import ranks
from tests.parallel.cut import assert_close, assert_gradient, draw, world
from tests.parallel.small import FFN, HEADS, VOCAB, B, H, S, text

INIT = Initializer(seed=7, std=0.3, num_layers=2)


def whole_linear(inputs: int, outputs: int, name: str = "linear"):
    """Return (weight, bias) of an unsharded layer, with a bias that is not 0."""
    return INIT.normal(f"{name}.weight", outputs, inputs), nn.Parameter(draw(outputs, seed=9))


def with_bias(layer, bias: torch.Tensor):
    cut = partition_dim(layer.bias) is not None
    layer.bias.data = (own_part(bias.detach(), 0, layer.group) if cut else bias.detach()).clone()
    return layer


def part_of(x: torch.Tensor, dim: int, cut: bool = True) -> torch.Tensor:
    return own_part(x.detach(), dim, world()).clone() if cut else x.detach().clone()


def check_column_layers():
    group = world()
    weight, bias = whole_linear(H, FFN)
    x, grad = draw(B, S, H, seed=1).requires_grad_(), draw(B, S, FFN, seed=2)
    expected = F.linear(x, weight, bias)
    expected.backward(grad)
    for sequence_parallel in (False, True):
        layer = with_bias(ColumnParallelLinear("linear", H, FFN, INIT, group, sequence_parallel), bias)
        ours = part_of(x, 1, sequence_parallel).requires_grad_()
        y = layer(ours)
        assert_close(y, part_of(expected, 2))
        y.backward(part_of(grad, 2))
        assert_close(ours.grad, part_of(x.grad, 1, sequence_parallel))
        assert_gradient(layer.weight, weight.grad, group)
        assert_gradient(layer.bias, bias.grad, group)


def check_a_whole_parameter_has_one_gradient():
    """Without on_columns, a parameter that multiplies divided columns has another gradient on each rank."""
    group = world()
    parts = LayerParts(0, GPTConfig(2, H, HEADS, FFN, VOCAB, S), INIT, ModelParallel(tensor=group))
    wrong, right = parts.parameter("wrong", 1, value=1.0), parts.parameter("right", 1, on_columns=True)
    stream = parts.parameter("stream", H, value=1.0)
    columns = part_of(draw(B, S, FFN, seed=1), 2)
    (columns * right).sum().backward()
    (draw(B, S, H, seed=2) * stream).sum().backward()
    with pytest.raises(
        CodeError, match=r"layers\.0\.wrong gets different gradients on the tensor-parallel ranks"
    ):
        (columns * wrong).sum().backward()


def check_row_layers():
    """A row-parallel layer adds its bias once, and the bias has its full gradient on every rank, whichever
    tokens the rank has.
    """
    group = world()
    weight, bias = whole_linear(FFN, H)
    x, grad = draw(B, S, FFN, seed=1).requires_grad_(), draw(B, S, H, seed=2)
    expected = F.linear(x, weight, bias)
    expected.backward(grad)
    for sequence_parallel in (False, True):
        layer = with_bias(RowParallelLinear("linear", FFN, H, INIT, group, sequence_parallel), bias)
        ours = part_of(x, 2).requires_grad_()
        y = layer(ours)
        assert_close(y, part_of(expected, 1, sequence_parallel))
        y.backward(part_of(grad, 1, sequence_parallel))
        assert_close(ours.grad, part_of(x.grad, 2))
        assert_gradient(layer.weight, weight.grad, group)
        assert_gradient(layer.bias, bias.grad, group)


def check_embeddings():
    group = world()
    vocabulary = 52
    weight = INIT.normal("words.weight", vocabulary, H)
    tokens = torch.randint(VOCAB, (B, S), generator=torch.Generator().manual_seed(3))
    tokens[0, :4] = torch.tensor([0, vocabulary // 2 - 1, vocabulary // 2, VOCAB - 1])
    grad = draw(B, S, H, seed=2)
    expected = F.embedding(tokens, weight)
    expected.backward(grad)
    for sequence_parallel in (False, True):
        layer = VocabParallelEmbedding("words", vocabulary, H, INIT, group, sequence_parallel)
        y = layer(tokens)
        # One rank has the row and the others add 0, so the sum is exact.
        assert torch.equal(y, part_of(expected, 1, sequence_parallel))
        y.backward(part_of(grad, 1, sequence_parallel))
        assert_gradient(layer.weight, weight.grad, group)


def check_frozen_weights_and_inputs_without_gradient():
    group = world()
    for sequence_parallel in (False, True):
        column = ColumnParallelLinear("column", H, FFN, INIT, group, sequence_parallel)
        row = RowParallelLinear("row", FFN, H, INIT, group, sequence_parallel)
        x = part_of(draw(B, S, H), 1, sequence_parallel)
        row(column(x)).sum().backward()
        assert column.weight.grad is not None and row.weight.grad is not None
        column.requires_grad_(False), row.requires_grad_(False)
        x.requires_grad_()
        column.weight.grad = None
        row(column(x)).sum().backward()
        assert x.grad is not None and column.weight.grad is None


def check_autocast_computes_in_bf16_forward_and_backward():
    """Under autocast, forward and backward passes run in bf16; gradients are in fp32 and close to an fp32
    model's.
    """
    group = world()
    for sequence_parallel in (False, True):
        column = ColumnParallelLinear("column", H, FFN, INIT, group, sequence_parallel)
        row = RowParallelLinear("row", FFN, H, INIT, group, sequence_parallel)
        gradients = []
        for enabled in (False, True):
            x = part_of(draw(B, S, H), 1, sequence_parallel).requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                y = row(column(x))
            assert y.dtype == (torch.bfloat16 if enabled else torch.float32)
            wanted = (x, column.weight, column.bias, row.weight, row.bias)
            gradients.append(torch.autograd.grad(y.float().sum(), wanted))
        for exact, rounded in zip(*gradients):
            assert rounded.dtype == torch.float32
            # A few roundings of 2^-9 each.
            assert_close(rounded, exact, 3e-2)


def check_recomputation_repeats_the_collectives():
    """torch's checkpoint runs the collectives again for the backward pass, and the gradients are
    bit-identical.
    """
    group = world()
    for sequence_parallel in (False, True):
        column = ColumnParallelLinear("column", H, FFN, INIT, group, sequence_parallel)
        row = RowParallelLinear("row", FFN, H, INIT, group, sequence_parallel)

        def run(x, column=column, row=row):
            return row(F.gelu(column(x)))

        got = []
        for recompute in (False, True):
            x = part_of(draw(B, S, H), 1, sequence_parallel).requires_grad_()
            y = torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False) if recompute else run(x)
            got.append(torch.autograd.grad((y**2).sum(), (x, column.weight, row.weight, row.bias)))
        assert all(torch.equal(*pair) for pair in zip(*got))


def check_only_the_part_of_a_sequence_is_kept_for_backward():
    """With sequence parallelism, only this rank's part of the input is kept for the backward pass; the
    gathered input is not.
    """
    group = world()
    column = ColumnParallelLinear("column", H, FFN, INIT, group, True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(tuple(x.shape)) or x, lambda x: x):
        column(torch.zeros(B, S // group.size, H, requires_grad=True))
    assert (B, S // group.size, H) in kept and (B, S, H) not in kept


def check_a_compiled_layer_is_the_same():
    """A compiled layer gives the same gradients; the `eager` backend needs no C++ compiler."""
    group = world()
    column = ColumnParallelLinear("column", H, FFN, INIT, group, True)
    row = RowParallelLinear("row", FFN, H, INIT, group, True)
    x = part_of(draw(B, S, H), 1).requires_grad_()
    wanted = (x, column.weight, row.weight, row.bias)

    def run(x):
        return row(F.gelu(column(x))) * 2

    got = [torch.autograd.grad(one(x).sum(), wanted) for one in (run, torch.compile(run, backend="eager"))]
    assert all(torch.equal(*pair) for pair in zip(*got))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_cut_weights_are_those_of_one_process(size):
    """The shards together equal the weight of one process, and each records the dimension that is sharded; a
    replicated parameter records none.
    """
    hidden, unit = H, 3 * H // HEADS
    layers = {
        "qkv": (lambda g: ColumnParallelLinear("qkv", hidden, 3 * hidden, INIT, g, unit=unit), 0),
        "dense": (lambda g: RowParallelLinear("dense", hidden, hidden, INIT, g, residual=True), 1),
        "words": (lambda g: VocabParallelEmbedding("words", 52, hidden, INIT, g), 0),
    }
    whole = {
        "qkv": INIT.normal("qkv.weight", 3 * hidden, hidden),
        "dense": INIT.normal("dense.weight", hidden, hidden, residual=True),
        "words": INIT.normal("words.weight", 52, hidden),
    }
    for name, (make, dim) in layers.items():
        parts = [make(Group(tuple(range(size)), rank)) for rank in range(size)]
        assert torch.equal(torch.cat([part.weight for part in parts], dim), whole[name]), name
        assert all(partition_dim(part.weight) == dim for part in parts)
        assert all(part.weight.untyped_storage().nbytes() == part.weight.nbytes for part in parts)
    row = layers["dense"][0](Group((0, 1), 1))
    assert partition_dim(row.bias) is None and len(row.bias) == hidden


def test_each_rank_holds_whole_heads():
    """Rank r of 2 has the query, key and value rows of heads 2 r and 2 r + 1, in the order of the packed
    weight.
    """
    size = H // HEADS
    packed = INIT.normal("qkv.weight", 3 * H, H).view(HEADS, 3, size, H)
    for rank in range(2):
        layer = ColumnParallelLinear("qkv", H, 3 * H, INIT, Group((0, 1), rank), unit=3 * size)
        assert torch.equal(layer.weight.view(2, 3, size, H), packed[2 * rank : 2 * rank + 2])


def test_a_head_is_never_split():
    """A head is never split: 48 rows could be divided by 6 ranks, but only by splitting heads, so this is an
    error.
    """
    with pytest.raises(
        ValueError,
        match="qkv: 48 outputs in units of 12 cannot be sharded across 6 tensor-parallel ranks: the number "
        "must be a multiple of 72",
    ):
        ColumnParallelLinear("qkv", H, 3 * H, INIT, Group(tuple(range(6))), unit=12)


def test_uneven_rows_and_vocabularies_are_refused():
    with pytest.raises(ValueError, match=r"dense: 16 inputs cannot be sharded across 3 .* a multiple of 3"):
        RowParallelLinear("dense", H, H, INIT, Group((0, 1, 2)))
    with pytest.raises(
        ValueError, match=r"words: a padded vocabulary of 50 cannot be sharded across 4 .* a multiple of 4"
    ):
        VocabParallelEmbedding("words", 50, H, INIT, Group((0, 1, 2, 3)))


def test_more_padding_leaves_the_true_rows_as_they_are():
    """More ranks mean more padding rows; the real rows and their initial values do not change."""
    rows = [INIT.normal("words.weight", padded, H)[:VOCAB] for padded in (50, 52, 56, 64)]
    assert all(torch.equal(rows[0], other) for other in rows[1:])


def test_alone_the_layers_are_those_of_torch():
    x = draw(B, S, H)
    weight, bias = whole_linear(H, FFN, "column")
    assert torch.equal(
        with_bias(ColumnParallelLinear("column", H, FFN, INIT, ALONE, True), bias)(x),
        F.linear(x, weight, bias),
    )
    weight, bias = whole_linear(H, FFN, "row")
    assert torch.equal(
        with_bias(RowParallelLinear("row", H, FFN, INIT, ALONE, True), bias)(x), F.linear(x, weight, bias)
    )
    tokens = text()[0]
    layer = VocabParallelEmbedding("words", VOCAB, H, INIT, ALONE, True)
    assert torch.equal(layer(tokens), INIT.normal("words.weight", VOCAB, H)[tokens])


# On four ranks only checks that could differ from two.
CHECKS = {2: ranks.names(globals()), 4: [check_embeddings.__name__]}


@pytest.mark.slow
@ranks.each(CHECKS)
def test_on_ranks(outcome, size, check):
    assert not outcome(size, check), outcome(size, check)
