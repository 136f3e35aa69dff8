"""Trainable rows for added tokens, together with adapters: every layout gives the results of one process, and
no other row changes.
"""

import shutil

import pytest
import torch

from nbtrain.checkpoint.weights.opened import RunWeights, open_checkpoint
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.model.names import OF_VOCABULARY, trained_rows_of
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
GROWN = launch.VOCAB_SIZE + 3
# Two of the new rows, which do not occur in the data, and three rows of the base weights.
TOKENS = [GROWN - 1, 7, 250, GROWN - 3, 499]
LORA = {
    "lora.rank": 4,
    "lora.alpha": 16.0,
    "lr_schedule.lr": 1e-2,
    "lr_schedule.lr_warmup_tokens": 256,
    "tokenizer.vocab_size": GROWN,
    "lora.trainable_token_indices": TOKENS,
}


def adapted(place, base, words, name="rows", **overrides):
    """Create a run in this layout that trains adapters and rows on another run's weights."""
    name = f"{name}-{words.replace(' ', '-')}"
    more = {**layout(words)[1], "init_from": base.name, **LORA, **overrides}
    return launch.make_run(place.root, more, name)


@pytest.fixture(scope="module")
def one(place):
    """Return a function from a kind of layers to (the run with the base weights, the run of one process)."""
    return beside_weights(place, lambda base, words: adapted(place, base, words))


# llama has a separate output layer.
HERE = [("t2 z1 fp32", "llama"), ("p2 z1 fp32", ""), ("d2 z3 fp32", "")]
MORE = [
    *(("t2 z1 fp32", ""), ("t2 z1 fp32 sequence", ""), ("t2 z1 fp32 sequence", "llama")),
    *(("p2 z1 fp32", "llama"), ("d2 z3 fp32", "llama"), ("d2 z2 fp32", "")),
    *(("d2 z1 fp32", "llama"), ("d2 z0 fp32", ""), ("s2 z2 fp32", "llama"), ("s2 z3 fp32", "")),
    *(("t2 d2 z2 fp32", ""), ("t2 p2 z1 fp32", ""), ("t2 p2 z1 fp32", "llama"), ("t4 z1 fp32", "")),
    *(("t2 p2 z1 fp32 sequence", ""), ("p2 d2 z1 fp32", "")),
    *(("t2 s2 z2 fp32 sequence", "llama"), ("p2 s2 z1 fp32", ""), ("t2 p2 z0 fp32", "")),
    *(("c2 z2 fp32", "llama"), ("c2 z3 fp32", "")),
    *(("t2 z1 fp32 recomputed", ""), ("p2 z1 fp32 recomputed", ""), ("d2 z3 fp32 recomputed", "llama")),
]


@pytest.mark.parametrize(
    "words, kind", [*HERE, *(pytest.param(*case, marks=pytest.mark.soak) for case in MORE)]
)
def test_every_layout_trains_the_rows_of_one_process(kind, words, place, one):
    base, alone = one(kind)
    more: dict = {"parallel.sequence_parallel": True} if words.endswith("sequence") else {}
    if words.endswith("recomputed"):
        more = {"parallel.activation_checkpointing.granularity": "full"}
    words = words.partition(" fp32")[0] + " fp32"
    name = "-".join(["rows", *more]).replace(".", "-").replace("_", "-")
    run = adapted(place, base, f"{words} {kind}".strip(), name=name[:30].strip("-"), **more)
    place.train(run, layout(words)[0])
    found = assert_trains_as(alone, run)
    matrices = {"word_embeddings", "output_layer"} if kind else {"word_embeddings"}
    assert {f"{name}.trained_rows" for name in matrices} <= set(found.parameters)


@pytest.mark.parametrize("kind", ["", "llama"])
def test_no_other_row_moves(kind, place, one):
    """In the merged vocabulary, all other rows are bit-identical to the base run's, including new rows that
    are frozen.
    """
    base, alone = one(kind)
    before = RunWeights(CheckpointStore(base.checkpoint(HALF)), GROWN)
    merged = open_checkpoint(alone, STEPS)
    names = OF_VOCABULARY & set(merged.parameters)
    assert len(names) == (2 if kind else 1)
    for name in names:
        expected = before.read(name).view(GROWN, -1)
        found = merged.full(name)
        moved = (found != expected).any(1).nonzero().flatten().tolist()
        assert moved == sorted(TOKENS)
        held = merged.adapters.full(trained_rows_of(name))
        assert torch.equal(found[sorted(TOKENS)], held)
        assert torch.equal(merged.read(name).view(GROWN, -1), found)


@pytest.mark.parametrize(
    "words",
    [
        "z1 bf16",
        *(
            pytest.param(each, marks=pytest.mark.soak)
            for each in ("p2 z1 bf16", "d2 z3 bf16", "t2 z2 bf16 llama", "z0 fp32")
        ),
    ],
)
def test_a_resume_goes_on_bit_for_bit(words, place, one, forked):
    base, _ = one("llama" if words.endswith("llama") else "")
    assert_resumes(place, forked, words, lambda name: adapted(place, base, words, name))


@pytest.mark.parametrize(
    "before, after",
    [
        ("p2 z1 bf16", "d2 z3 bf16"),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in (
                ("d2 z3 bf16", "t2 p2 z1 bf16"), ("t2 z1 bf16 llama", "p2 z1 bf16 llama"),
                ("d2 z2 fp32", "z0 fp32"),
            )
        ),
    ],
)  # fmt: skip
def test_a_checkpoint_is_read_by_another_layout(before, after, place, one):
    """A checkpoint is loaded in another layout with bit-identical master weights and moments of the rows."""
    base, _ = one("llama" if before.endswith("llama") else "")
    run = adapted(place, base, before, name="saved", **{"batch.max_steps": HALF})
    place.train(run, layout(before)[0])
    other = adapted(place, base, after, name="read")
    shutil.copytree(run.model, other.model)
    resaved = place.resave(other, layout(after)[0])
    assert_same(run.checkpoint(HALF), resaved)
    assert CheckpointStore(resaved).full("word_embeddings.trained_rows", "exp_avg").any()


@pytest.mark.parametrize("kind", ["", "llama"])
def test_merged_logits_are_those_of_training(kind, place, one):
    """The merged model, which generates text, has the same logits as the trained model with separate rows."""
    _, alone = one(kind)
    apart, merged = apart_and_merged(alone)
    tokens = torch.arange(GROWN - 60, GROWN).view(2, 30)
    with torch.no_grad():
        logits = [model(tokens)[..., :GROWN] for model in (apart, merged)]
        losses = [model(tokens, tokens.roll(-1, 1)) for model in (apart, merged)]
    assert (logits[0] - logits[1]).abs().max() < 1e-5
    assert abs(losses[0] - losses[1]) < 1e-5
    with torch.no_grad():
        for name, parameter in apart.named_parameters():
            if name.endswith("trained_rows"):
                parameter.zero_()
        # Both the embedding and the output have these rows.
        changed = apart(tokens)[..., :GROWN]
    assert not changed[..., sorted(TOKENS)].any()
    others = [one for one in range(GROWN) if one not in TOKENS]
    assert (changed - logits[0])[1, -1, others].abs().max() > 1e-3


@pytest.mark.soak
def test_beside_matrices_in_4_bits(place, one):
    """Rows can be trained on a model with 4-bit matrices, because embeddings are not quantized; two ranks
    give the results of one.
    """
    pytest.importorskip("bitsandbytes")
    base, _ = one("llama")
    runs = [
        adapted(place, base, words, name="four", **{"lora.load_in_4bit": True})
        for words in ("z0 fp32 llama", "d2 z2 fp32 llama")
    ]
    for run, ranks in zip(runs, (1, 2), strict=True):
        place.train(run, ranks)
    assert_trains_as(*runs)
    before, merged = (
        RunWeights(CheckpointStore(base.checkpoint(HALF)), GROWN),
        open_checkpoint(runs[0], STEPS),
    )
    for name in OF_VOCABULARY:
        moved = (merged.full(name) != before.read(name).view(GROWN, -1)).any(1).nonzero().flatten()
        assert moved.tolist() == sorted(TOKENS)
