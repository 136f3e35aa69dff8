"""Ranks that share sequences train like one process: the mean of their gradients is the gradient of the whole
sequence.
"""

import contextlib
import functools
import io

import pytest
import torch

from nbtrain.model.gpt import GPT
from nbtrain.parallel import ulysses
from nbtrain.parallel.layout import ModelParallel
from nbtrain.parallel.mappings import own_part
from tests.parallel import ranks
from tests.parallel.cut import draw, world
from tests.parallel.rounding import rounding, training_terms
from tests.parallel.shared_sequences import (
    assert_losses_and_gradients,
    assert_other_layers,
    assert_recomputed,
    mean,
)
from tests.parallel.small import HEADS, S, gpt_config, text

STEPS = 3


def layout() -> ModelParallel:
    return ModelParallel(ulysses=world())


def model_of(**changes) -> GPT:
    return GPT(gpt_config(**changes), layout())


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
    assert_losses_and_gradients(layout())


def check_other_layers_are_those_of_one_process():
    """Models with other kinds of layers equal one process: whole and repeated key-value groups, windows, caps
    and rotary positions.
    """
    assert_other_layers(layout())


def check_ranks_drop_apart_and_recomputation_changes_no_bit():
    """Each rank draws the dropout of its heads and tokens with a separate seed, and recomputation changes no
    bit.
    """
    assert_recomputed(layout())


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


CHECKS = {
    2: ranks.names(globals()),
    # Only checks that could differ from two ranks: one head each.
    4: [
        "check_tokens_are_traded_for_heads_and_back",
        "check_losses_and_gradients_are_those_of_one_process",
        "check_other_layers_are_those_of_one_process",
    ],
}


@pytest.mark.slow
@ranks.each(CHECKS)
def test_on_ranks(outcome, size, check):
    assert not outcome(size, check), outcome(size, check)
