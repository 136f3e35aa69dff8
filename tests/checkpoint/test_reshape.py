"""A checkpoint of any layout can be loaded into any other: its state is
bit-identical and the losses are the same.

A source run is trained for half of its steps. Each target loads its checkpoint, saves it again immediately,
so that both can be compared tensor by tensor, and trains to the end.
"""

import pytest
import torch

from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import ResumeCertificate
from nbtrain.checkpoint.weights.model_weights import load_model_weights
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_bytes
from nbtrain.config.load import load_resolved
from tests.train import launch
from tests.train.layouts import HALF, STEPS, assert_same, layout

pytestmark = pytest.mark.slow


# tests/parity/test_reshaping.py goes from layout to layout. Here are the kinds of state that it lacks:
# sub-groups, other micro batches, other padding and 16-bit weights. `make parity` has every pair of layouts.
PAIRS = [
    ("d2 z1 offload", "z3 sub"),
    ("z3 sub", "t2 z3"),
    ("t2 z3", "d2 z2 micro1"),
    ("z1 pad", "t2 z1 pad"),
]
HALF_PAIRS = [("d2 z3 bf16", "p2 z1 bf16"), ("d2 z2 fp16", "z3 fp16")]
# Pairs that add another direction of the same kinds.
SOAK_PAIRS = [("z0", "d2 z3"), ("p2 z1", "d2 z1 offload"), ("t2 z1 pad", "z1 pad")]
SOAK_HALF_PAIRS = [("z1 bf16", "d2 z3 bf16"), ("p2 z1 bf16", "d2 z2 bf16 offload")]


def with_marks(here, in_soak):
    """Return the pairs of both lists as test parameters. The pairs of the second list are marked `soak`."""
    marked = [(pair, []) for pair in here] + [(pair, pytest.mark.soak) for pair in in_soak]
    return [pytest.param(*pair, id=" - ".join(pair), marks=marks) for pair, marks in marked]


@pytest.mark.parametrize("source, target", with_marks(PAIRS, SOAK_PAIRS))
def test_fp32_goes_on_where_it_was(place, source, target):
    """In fp32, the loaded state is bit-identical, and the following losses match an
    uninterrupted run within 1e-5.
    """
    straight = launch.losses(place.source("z1", STEPS))
    saved = place.source(source)
    run = place.target(saved, target)
    ranks = layout(target)[0]
    assert_same(saved.checkpoint(HALF), place.resave(run, ranks))
    place.train(run, ranks)
    losses = launch.losses(run)
    assert len(losses) == STEPS - HALF
    assert losses == pytest.approx(straight[HALF:], abs=1e-5)
    job = run.newest_job()
    made = ResumeCertificate.read(job.resume_json)
    assert made.kind == "data-exact", made.reasons
    assert made.next_batch_sha256 == launch.manifest(saved, HALF)["next_batch_sha256"]
    said = [event["message"] for event in read_events(job) if event["kind"] in ("checkpoint", "certificate")]
    assert said[0].startswith(
        f"resumed from the checkpoint of step {HALF}, which was saved with another layout ("
    )
    assert said[1] == str(made)
    weights = load_model_weights(run.path, STEPS, unpadded=True)
    assert weights["word_embeddings.weight"].shape == (launch.VOCAB_SIZE, 32)


@pytest.mark.parametrize("source, target", with_marks(HALF_PAIRS, SOAK_HALF_PAIRS))
def test_16_bit_masters_and_moments_are_kept_bit_for_bit(place, source, target):
    """With 16-bit weights, masters and moments are bit-identical and the weights are the rounded masters.

    The following losses match up to rounding.
    """
    saved = place.source(source)
    run = place.target(saved, target)
    ranks = layout(target)[0]
    resaved = place.resave(run, ranks)
    assert_same(saved.checkpoint(HALF), resaved)
    store = CheckpointStore(resaved)
    for name in store.parameters:
        assert torch.equal(store.weights(name), store.full(name).to(store.dtype)), name
    place.train(run, ranks)
    straight = launch.losses(place.source(f"z1 {layout(source)[1]['precision.dtype']}", STEPS))
    assert launch.losses(run) == pytest.approx(straight[HALF:], abs=2e-3)


@pytest.mark.parametrize("name", ["d2 z1 offload", "t2 z3", "d2 z3 bf16"])
def test_a_checkpoint_takes_no_more_than_is_reckoned(place, name):
    """A checkpoint is no larger than estimated before writing; tests/parity/runner.py checks every layout."""
    run = place.source(name)
    written = sum(entry["bytes"] for entry in launch.manifest(run, HALF)["files"].values())
    reckoned = checkpoint_bytes(load_resolved(run.config_yaml))
    assert 0 <= reckoned - written < 200_000
