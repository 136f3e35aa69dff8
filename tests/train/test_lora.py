"""LoRA adapters on frozen weights: every layout gives the results of one process, and no other weight
changes.
"""

import shutil

import pytest
import torch

from nbtrain.checkpoint.weights.opened import open_checkpoint
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.model.names import OF_VOCABULARY, adapters_of
from tests.train import launch
from tests.train.layouts import (
    HALF,
    STEPS,
    apart_and_merged,
    assert_resumes,
    assert_same,
    assert_trains_as,
    beside_weights,
    layout,
)

pytestmark = pytest.mark.slow
LORA = {"lora.rank": 4, "lora.alpha": 16.0, "lr_schedule.lr": 1e-2, "lr_schedule.lr_warmup_tokens": 256}


def adapted(place, base, words, name="lora", **overrides):
    """Create a run in this layout that trains adapters on another run's weights."""
    name = f"{name}-{words.replace(' ', '-')}"
    more = {**layout(words)[1], "init_from": base.name, **LORA, **overrides}
    return launch.make_run(place.root, more, name)


@pytest.fixture(scope="module")
def one(place):
    """Return a function from a kind of layers to (the run with the base weights, the run of one process that
    trained adapters).
    """
    return beside_weights(place, lambda base, words: adapted(place, base, words))


# test_trained_rows.py covers more layouts, with trained rows of tokens in addition to the adapters.
HERE = [("d2 z3 fp32", "llama")]
MORE = [
    *(("t2 z1 fp32", "llama"), ("p2 z1 fp32", "")),
    *(("t2 z1 fp32", ""), ("d2 z3 fp32", ""), ("p2 z1 fp32", "llama"), ("s2 z2 fp32", "llama")),
    *(
        ("t2 d2 z2 fp32", ""),
        ("t2 p2 z1 fp32", "llama"),
        ("t2 z1 fp32 sequence", ""),
        ("t2 z1 fp32 recomputed", ""),
        ("t2 s2 z0 fp32", ""),
        ("p2 s2 z1 fp32", "llama"),
        ("c2 z3 fp32", "llama"),
        ("t2 c2 z1 fp32 sequence", ""),
        ("p2 c2 z1 fp32", "llama"),
    ),
]


@pytest.mark.parametrize(
    "words, kind", [*HERE, *(pytest.param(*case, marks=pytest.mark.soak) for case in MORE)]
)
def test_every_layout_trains_the_adapters_of_one_process(kind, words, place, one):
    base, alone = one(kind)
    more: dict = {"parallel.sequence_parallel": True} if words.endswith("sequence") else {}
    if words.endswith("recomputed"):
        more = {"parallel.activation_checkpointing.granularity": "full"}
    words = words.partition(" fp32")[0] + " fp32"
    name = "-".join(["lora", *more]).replace(".", "-").replace("_", "-")
    run = adapted(place, base, f"{words} {kind}".strip(), name=name[:30].strip("-"), **more)
    place.train(run, layout(words)[0])
    assert_trains_as(alone, run)


def test_nothing_but_adapters_moves_and_is_saved(place, one):
    """Only adapters are trained and saved; in the merged model, all other weights are bit-identical to those
    of the base run.
    """
    base, alone = one("")
    before, merged = CheckpointStore(base.checkpoint(HALF)), open_checkpoint(alone, STEPS)
    assert set(merged.parameters) == set(before.parameters)
    moved = set()
    for name in before.parameters:
        expected = before.full(name)[: launch.VOCAB_SIZE] if name in OF_VOCABULARY else before.full(name)
        if torch.equal(merged.full(name), expected):
            assert adapters_of(name)[0] not in merged.adapters.parameters
            assert torch.equal(merged.weights(name), expected)
        else:
            moved.add(name.split(".", 2)[2])
    assert moved == {f"{part}.weight" for part in PARTS}
    held = sum(one_.count for one_ in merged.adapters.parameters.values())
    files_ = alone.checkpoint(STEPS).iterdir()
    assert sum(path.stat().st_size for path in files_) < 12 * held + 150_000
    assert held < 9_000


PARTS = ("attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")


@pytest.mark.parametrize(
    "words",
    ["d2 z3 bf16", *(pytest.param(each, marks=pytest.mark.soak) for each in ("z0 fp32", "p2 z1 bf16"))],
)
def test_a_resume_goes_on_bit_for_bit(words, place, one, forked):
    base, _ = one("")
    dropped = {"lora.dropout": 0.2, "lora.use_rslora": True}
    assert_resumes(place, forked, words, lambda name: adapted(place, base, words, name, **dropped))


def test_a_checkpoint_of_adapters_is_read_by_another_layout(place, one):
    """A checkpoint of adapters is loaded in another layout with bit-identical master weights and moments."""
    base, _ = one("")
    run = adapted(place, base, "t2 z1 bf16", name="saved", **{"batch.max_steps": HALF})
    place.train(run, 2)
    other = adapted(place, base, "d2 z3 bf16", name="read")
    shutil.copytree(run.model, other.model)
    assert_same(run.checkpoint(HALF), place.resave(other, 2))


def test_merged_logits_are_those_of_the_adapters(place, one):
    """The merged model, which generates text, has the same logits as the trained model with separate
    adapters.
    """
    _, alone = one("llama")
    tokens = torch.arange(60).view(2, 30)
    with torch.no_grad():
        logits = [model(tokens)[..., : launch.VOCAB_SIZE] for model in apart_and_merged(alone)]
    assert (logits[0] - logits[1]).abs().max() < 1e-5
    assert not torch.equal(*logits)
