"""The model on tensor-parallel ranks equals one process: losses, gradients, logits and dropout."""

import dataclasses
import shutil

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from nbtrain.model.gpt import GPT
from nbtrain.parallel.groups import Group
from nbtrain.parallel.layout import ModelParallel
from nbtrain.parallel.mappings import own_part
from nbtrain.parallel.random import TensorParallelStream
from nbtrain.parallel.tensor import partition_dim
from tests.parallel import ranks
from tests.parallel.cut import assert_close, world
from tests.parallel.rounding import FORWARD, GRADIENT
from tests.parallel.small import GROUPED, KINDS, VOCAB, S, gpt_config, text

DOCUMENTS = {
    "cu_seqlens": torch.tensor([0, 3, 8, 16], dtype=torch.int32),
    "max_seqlen": 8,
    "position_ids": torch.stack([torch.arange(S) - 3 * (torch.arange(S) >= 3), torch.arange(S)]),
}


def cut_model(sequence_parallel: bool, stream: bool = False, **changes) -> GPT:
    group = world()
    apart = TensorParallelStream(1, 0, group.rank) if stream else None
    return GPT(gpt_config(**changes), ModelParallel(group, sequence_parallel, stream=apart))


def assert_gradients(model: GPT, one: GPT) -> None:
    whole = dict(one.named_parameters())
    assert [name for name, _ in model.named_parameters()] == list(whole)
    for name, parameter in model.named_parameters():
        grad, group = whole[name].grad, model.parallel.tensor
        if name in ("word_embeddings.weight", "output_layer.weight"):
            more = len(parameter) * group.size - len(grad)
            grad = F.pad(grad, (0, 0, 0, more))
        part = grad if (dim := partition_dim(parameter)) is None else own_part(grad, dim, group)
        try:
            assert_close(parameter.grad, part, GRADIENT)
        except AssertionError as error:
            raise AssertionError(f"{name}, {model.parallel.sequence_parallel}: {error}") from error


def check_loss_and_gradients_are_those_of_one_process():
    """Loss and gradients equal one process's with the same initial weights, for plain batches and with
    documents, masks and positions.
    """
    tokens, labels = text()
    mask = (torch.arange(2 * S).view(2, S) % 3 > 0).float()
    for options in ({}, {**DOCUMENTS, "loss_mask": mask, "loss_denominator": torch.tensor(5.0)}):
        one = GPT(gpt_config(VOCAB))
        losses = [torch.empty(2, S), torch.empty(2, S)]
        expected = one(tokens, labels, token_losses=losses[0], **options)
        expected.backward()
        for sequence_parallel in (False, True):
            model = cut_model(sequence_parallel)
            loss = model(tokens, labels, token_losses=losses[1], **options)
            loss.backward()
            assert_close(loss, expected, FORWARD)
            assert_close(losses[1], losses[0], FORWARD)
            assert_gradients(model, one)


def check_other_layers_are_those_of_one_process():
    """Models with other kinds of layers equal one process: norms, activations, biases, grouped heads, head
    sizes, windows and caps.
    """
    tokens, labels = text()
    for kind in KINDS:
        one = GPT(gpt_config(VOCAB, **kind))
        expected = one(tokens, labels, **DOCUMENTS)
        expected.backward()
        for sequence_parallel in (False, True):
            model = cut_model(sequence_parallel, **kind)
            loss = model(tokens, labels, **DOCUMENTS)
            loss.backward()
            assert_close(loss, expected, FORWARD)
            assert_gradients(model, one)
            autocast = cut_model(sequence_parallel, autocast=True, **kind)(tokens, labels, **DOCUMENTS)
            torch.testing.assert_close(autocast, expected, rtol=3e-2, atol=0)


def check_logits_are_those_of_one_process():
    """Gathered logits equal one process's, with -inf for padding. A rank's cache has its own key and value
    heads, at least one.
    """
    tokens = text()[0]
    for kind, groups in (({}, 4), (GROUPED, 2), ({"num_query_groups": 1}, 1)):
        with torch.no_grad():
            expected = GPT(gpt_config(VOCAB, **kind))(tokens)
            for sequence_parallel in (False, True):
                logits = cut_model(sequence_parallel, **kind)(tokens)
                assert_close(logits[..., :VOCAB], expected, FORWARD)
                assert (logits[..., VOCAB:] == -torch.inf).all() and logits.shape[-1] == 52
            model = cut_model(False, **kind)
            cache = model.new_cache(2)
            assert cache.layers[0].keys.shape[1] == max(groups // world().size, 1)
            model(tokens[:, :5], cache=cache)
            last = model(tokens[:, 5:], cache=cache, last_token_only=True)
        assert_close(last[:, 0, :VOCAB], expected[:, -1], FORWARD)


def losses_of_dropped(sequence_parallel: bool, hidden: float, attention: float, **changes):
    """Run one step with dropout, seeded as in training, and return (loss, gradients); every call gives the
    same result.
    """
    torch.manual_seed(3)
    model = cut_model(
        sequence_parallel, stream=True, hidden_dropout=hidden, attention_dropout=attention, **changes
    )
    loss = model(*text())
    loss.backward()
    return loss, [parameter.grad for parameter in model.parameters()]


def check_replicated_activations_are_dropped_alike():
    """Without sequence parallelism, the hidden states between layers and their gradients are equal on all
    ranks.
    """
    loss, gradients = losses_of_dropped(False, 0.5, 0.5)
    names = [name for name, _ in GPT(gpt_config()).named_parameters()]
    whole = gradients[names.index("final_layernorm.weight")]
    for one in (loss.detach(), whole):
        everyone = [torch.empty_like(one) for _ in range(world().size)]
        dist.all_gather(everyone, one)
        assert all(torch.equal(one, other) for other in everyone)


def check_cut_activations_are_dropped_apart():
    """Dropout differs between ranks, for the tokens that a rank has and for its heads."""
    group = world()
    for sequence_parallel, name in ((True, "hidden_dropout"), (False, "attention_dropout")):
        model = cut_model(sequence_parallel, stream=True, **{name: 0.5})
        torch.manual_seed(3)
        layer = model.layers[0]
        if sequence_parallel:
            drawn = model.position_embeddings(torch.ones(2, S // group.size, 16) * 100) == 0
        else:
            # Equal queries, keys and values in all heads, so that ranks differ only by dropout.
            with torch.no_grad():
                layer.attention.query_key_value.weight.zero_()
                layer.attention.query_key_value.bias.fill_(1.0)
            layer.attention.dense = torch.nn.Identity()
            drawn = layer.attention(torch.ones(2, S, 16)).detach()
        everyone = [torch.empty_like(drawn) for _ in range(group.size)]
        dist.all_gather(everyone, drawn)
        assert not torch.equal(everyone[0], everyone[1])


def check_recomputation_changes_no_bit_with_dropout_of_both_streams():
    for sequence_parallel in (False, True):
        kept = losses_of_dropped(sequence_parallel, 0.2, 0.2)
        for way in ({"checkpoint_interval_layers": 1}, {"selective_recompute": True}):
            again = losses_of_dropped(sequence_parallel, 0.2, 0.2, **way)
            assert torch.equal(kept[0], again[0])
            assert all(torch.equal(*pair) for pair in zip(kept[1], again[1]))
        other = losses_of_dropped(sequence_parallel, 0.0, 0.0)
        assert not torch.equal(kept[0], other[0])


def check_parameters_of_own_tokens_are_marked():
    """With sequence parallelism, every replicated parameter is marked, such as LayerNorms, positions and
    row-parallel biases: each rank applies it to its own tokens only.
    """
    for sequence_parallel in (False, True):
        model = cut_model(sequence_parallel)
        marked = {
            name for name, value in model.named_parameters() if getattr(value, "sequence_parallel", False)
        }
        whole = {name for name, value in model.named_parameters() if partition_dim(value) is None}
        assert marked == (whole if sequence_parallel else set())
        assert {"position_embeddings.weight", "layers.0.attention.dense.bias"} < whole


def check_autocast_keeps_fp32_gradients():
    tokens, labels = text()
    for sequence_parallel in (False, True):
        exact, rounded = cut_model(sequence_parallel), cut_model(sequence_parallel, autocast=True)
        losses = [model(tokens, labels) for model in (exact, rounded)]
        for loss in losses:
            loss.backward()
        assert losses[0] != losses[1]
        torch.testing.assert_close(losses[1], losses[0], rtol=3e-2, atol=0)
        assert all(parameter.grad.dtype == torch.float32 for parameter in rounded.parameters())


def check_compiled_layers_are_the_same():
    """Compiled layers, with graph breaks at collectives and random streams, give the same gradients up to
    rounding.
    """
    if not (shutil.which("g++") or shutil.which("clang++")):
        return
    tokens, labels = text()
    plain, compiled = (
        cut_model(True, stream=True, hidden_dropout=0.2, attention_dropout=0.2) for _ in range(2)
    )
    for layer in compiled.layers:
        layer.compile()
    for model in (plain, compiled):
        torch.manual_seed(3)
        model(tokens, labels).backward()
    for ours, theirs in zip(compiled.parameters(), plain.parameters()):
        assert_close(ours.grad, theirs.grad, GRADIENT)


def test_ranks_that_cannot_share_groups_are_refused():
    four = Group((0, 1, 2, 3), 0, None)
    with pytest.raises(
        ValueError, match=r"layers\.0\.attention: 4 tensor-parallel ranks cannot share 3 groups"
    ):
        GPT(gpt_config(num_attention_heads=12, num_query_groups=3, kv_channels=4), ModelParallel(four))


def test_more_padding_changes_no_loss():
    """More ranks need more vocabulary padding, but the loss does not change, because the softmax excludes the
    padding.
    """
    for chunk in (0, 5):
        config = gpt_config(VOCAB, cross_entropy_chunk_tokens=chunk)
        losses = []
        for padded in (VOCAB, 52, 64):
            model = GPT(dataclasses.replace(config, padded_vocab_size=padded))
            losses.append(model(*text()))
            losses[-1].backward()
            assert (model.word_embeddings.weight.grad[VOCAB:] == 0).all()
        torch.testing.assert_close(torch.stack(losses), losses[0].expand(3), rtol=FORWARD, atol=0)


CHECKS = {
    2: ranks.names(globals()),
    # Only checks that could differ from two ranks.
    4: [
        "check_loss_and_gradients_are_those_of_one_process",
        "check_other_layers_are_those_of_one_process",
        "check_logits_are_those_of_one_process",
    ],
}


@pytest.mark.slow
@ranks.each(CHECKS)
def test_on_ranks(outcome, size, check):
    assert not outcome(size, check), outcome(size, check)
