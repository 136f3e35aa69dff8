"""Ranks that share sequences train like one process: the mean of their gradients is the gradient of the whole
sequence.
"""

import contextlib
import functools
import io

import pytest
import torch
import torch.distributed as dist

from nbtrain.model.gpt import GPT
from nbtrain.parallel import ulysses
from nbtrain.parallel.layout import ModelParallel
from nbtrain.parallel.mappings import own_part
from tests.parallel import ranks
from tests.parallel.cut import assert_close, draw, world
from tests.parallel.rounding import FORWARD, GRADIENT, rounding, training_terms
from tests.parallel.small import HEADS, KINDS, S, gpt_config, text

STEPS = 3
MASK = (torch.arange(2 * S).view(2, S) % 3 > 0).float()
DOCUMENTS = {
    "cu_seqlens": torch.tensor([0, 3, 8, 16], dtype=torch.int32),
    "max_seqlen": 8,
    "position_ids": torch.stack([torch.arange(S) - 3 * (torch.arange(S) >= 3), torch.arange(S)]),
}


def model_of(**changes) -> GPT:
    return GPT(gpt_config(**changes), ModelParallel(ulysses=world()))


def mean(tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total / world().size


def check_tokens_are_traded_for_heads_and_back():
    """Each rank receives its own heads for all tokens, and the gradient is sent back the same way."""
    group = world()
    whole = draw(2, S, HEADS, 6)
    own = own_part(whole, 1, group).clone().requires_grad_()
    traded = ulysses.heads_for_tokens(own, group)
    assert torch.equal(traded, own_part(whole, 2, group))
    assert torch.equal(ulysses.tokens_for_heads(traded, group), own)
    grad = draw(2, S, HEADS, 6, seed=1)
    traded.backward(own_part(grad, 2, group))
    assert torch.equal(own.grad, own_part(grad, 1, group))


def check_losses_and_gradients_are_those_of_one_process():
    """Losses and gradients equal one process's: for plain batches, with documents and positions, and with
    masks and a denominator that is computed or given.
    """
    tokens, labels = text()
    size = world().size
    # A given denominator divides one rank's sum: the mean over the ranks is then the sum over the whole.
    cases = [
        ({}, {}),
        (DOCUMENTS, DOCUMENTS),
        ({"loss_mask": MASK}, {"loss_mask": MASK}),
        (
            {"loss_mask": MASK, "loss_denominator": torch.tensor(6.0)},
            {"loss_mask": MASK, "loss_denominator": torch.tensor(6.0 / size)},
        ),
    ]
    for plain, shared in cases:
        one, model = GPT(gpt_config()), model_of()
        expected_losses, losses = torch.empty(2, S), torch.full((2, S), 7.0)
        expected = one(tokens, labels, token_losses=expected_losses, **plain)
        loss = model(tokens, labels, token_losses=losses, **shared)
        expected.backward(), loss.backward()
        assert_close(mean(loss), expected.detach(), FORWARD)
        assert_close(mean(losses) * size, expected_losses, FORWARD)
        assert (losses == 0).sum() == (size - 1) * losses.numel() // size
        for (name, ours), theirs in zip(model.named_parameters(), one.parameters()):
            try:
                assert_close(mean(ours.grad), theirs.grad, GRADIENT)
            except AssertionError as error:
                raise AssertionError(f"{name}, {sorted(plain)}: {error}") from error


def check_other_layers_are_those_of_one_process():
    """Models with other kinds of layers equal one process: whole and repeated key-value groups, windows, caps
    and rotary positions.
    """
    for kind in KINDS:
        one, model = GPT(gpt_config(**kind)), model_of(**kind)
        expected, loss = one(*text(), **DOCUMENTS), model(*text(), **DOCUMENTS)
        expected.backward(), loss.backward()
        assert_close(mean(loss), expected.detach(), FORWARD)
        for (name, ours), theirs in zip(model.named_parameters(), one.parameters()):
            try:
                assert_close(mean(ours.grad), theirs.grad, GRADIENT)
            except AssertionError as error:
                raise AssertionError(f"{name}, {kind}: {error}") from error


def check_ranks_drop_apart_and_recomputation_changes_no_bit():
    """Each rank draws the dropout of its heads and tokens with a separate seed, and recomputation changes no
    bit.
    """
    results = []
    for interval in (0, 1):
        torch.manual_seed(world().rank)
        model = model_of(attention_dropout=0.3, hidden_dropout=0.2, checkpoint_interval_layers=interval)
        loss = model(*text())
        loss.backward()
        results.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(*pair) for pair in zip(*results))


def check_logits_are_refused():
    with pytest.raises(ValueError, match="logits need whole sequences"):
        model_of()(text()[0])


def check_uneven_heads_and_tokens_are_refused():
    group = world()
    size = group.size
    with pytest.raises(ValueError, match=rf"{size + 1} attention heads .* a multiple of {size}"):
        ulysses.heads_for_tokens(torch.zeros(2, 3, size + 1, 6), group)
    with pytest.raises(ValueError, match=f"{S - 1} tokens .* cannot be sharded across {size} Ulysses ranks"):
        model_of()(text()[0][:, : S - 1], text()[1][:, : S - 1])


@functools.cache
def curve_of_one_process() -> list[tuple[float, float]]:
    model = GPT(gpt_config())
    optimizer, curve = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(*text())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        curve.append((float(loss.detach()), float(norm)))
    return curve


def check_deepspeed_trains_as_one_process():
    """In every ZeRO stage, DeepSpeed trains like one process. It treats the ranks as data-parallel, and the
    mean of their gradients is correct.
    """
    import deepspeed

    for stage in (1, 2, 3):
        config = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_clipping": 0.5,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        }
        with contextlib.redirect_stdout(io.StringIO()):
            with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
                model = model_of()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
            engine, *_ = deepspeed.initialize(
                model=model, optimizer=optimizer, config=config, dist_init_required=False
            )
        curve = []
        for _ in range(STEPS):
            loss = engine(*text())
            engine.backward(loss)
            engine.step()
            curve.append((float(mean(loss)), float(engine.get_global_grad_norm())))
        engine.destroy()
        allowed = rounding(training_terms(STEPS))
        torch.testing.assert_close(
            torch.tensor(curve), torch.tensor(curve_of_one_process()), rtol=allowed, atol=0
        )


@pytest.fixture(scope="module")
def outcomes(fork_server, tmp_path_factory):
    # On four ranks only checks that could differ from two: one head each.
    checks = {
        2: ranks.names(globals()),
        4: [
            "check_tokens_are_traded_for_heads_and_back",
            "check_losses_and_gradients_are_those_of_one_process",
            "check_other_layers_are_those_of_one_process",
        ],
    }
    return {
        size: ranks.launch(fork_server, __file__, size, tmp_path_factory.mktemp("ranks"), names)
        for size, names in checks.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("check", ranks.names(globals()))
def test_on_two_ranks(outcomes, check):
    assert not outcomes[2][check], outcomes[2][check]


@pytest.mark.slow
def test_on_four_ranks(outcomes):
    assert not any(outcomes[4].values()), outcomes[4]
