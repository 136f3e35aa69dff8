"""Small runs on a blend of datasets with a loss mask and separate documents: bit-exact resume, and any number
of ranks.
"""

from pathlib import Path

import numpy as np
import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.run.run_view import RunView
from tests.train import launch
from tests.train.test_training import assert_same_state

pytestmark = pytest.mark.slow

STEPS = 12
BLEND = {
    "data.name": "mixed",
    "data.blend": [{"name": "test", "weight": 1.0}, {"name": "short", "weight": 2.0}],
    "data.inter_document_masking": True,
    "data.reset_position_ids": True,
    "data.eod_mask_loss": True,
    "batch.train_tokens": STEPS * 4 * 32,
    "evaluation.eval_interval_steps": 5,
    "lr_schedule.lr_warmup_tokens": 128,
}


@pytest.fixture(scope="module")
def home(data_home) -> Path:
    """Return the data directory with an additional dataset of short documents, several of which end within
    each sample.
    """
    launch.make_dataset(data_home, "short", document_tokens=(3, 12))
    return data_home


def test_a_blend_with_documents_apart_resumes_bitwise(tmp_path, home, forked):
    """On a blend with separate documents, a resumed run has bit-identical losses, norms and last checkpoint
    (several epochs, one rank).
    """
    steps = STEPS
    overrides = {**BLEND, "data.shuffle": "per_epoch"}
    straight = launch.make_run(tmp_path, overrides, "straight")
    forked.train(straight)
    cut = launch.make_run(tmp_path, overrides, "cut")
    assert 3 <= forked.stop_at(cut, 3) < steps
    launch.new_job(cut)
    forked.train(cut)
    assert sorted(launch.trace(straight)) == list(range(1, steps + 1))
    assert launch.trace(cut) == launch.trace(straight)
    assert_same_state(straight.checkpoint(steps), cut.checkpoint(steps))
    state = launch.manifest(cut, steps)["data_state"]
    assert (state["shuffle"], state["packing"], state["consumed_samples"]) == (
        "per_epoch",
        "stream",
        steps * 4,
    )
    losses = {name: RunView(cut).scalars(name) for name in ("loss", "loss/test", "loss/short")}
    kinds = ("loss", "validation_loss", "validation_perplexity")
    assert RunView(cut).scalar_names()[-6:] == [
        f"{kind}/{one}" for kind in kinds for one in ("short", "test")
    ]
    assert losses["loss"].steps == losses["loss/short"].steps == list(range(1, steps + 1))
    by_step = dict(zip(losses["loss/test"].steps, losses["loss/test"].values))
    for step, loss, short in zip(losses["loss"].steps, losses["loss"].values, losses["loss/short"].values):
        low, high = sorted((short, by_step.get(step, short)))
        assert low - 1e-5 <= loss <= high + 1e-5


def test_packed_examples_resume_bitwise_on_two_ranks(tmp_path, home, forked):
    """On packed examples of two sources, a resumed run on two ranks is bit-identical, including the loss of
    each source.
    """
    launch.make_packed(home)
    overrides = {
        **{key: value for key, value in BLEND.items() if not key.startswith("data.")},
        "data.name": "packed",
        "data.packing": "best_fit",
        "parallel.data_parallel_size": 2,
    }
    straight = launch.make_run(tmp_path, overrides, "straight")
    forked.train(straight, 2)
    cut = launch.make_run(tmp_path, overrides, "cut")
    assert 3 <= forked.stop_at(cut, 3, 2) < STEPS
    launch.new_job(cut)
    forked.train(cut, 2)
    assert launch.trace(cut) == launch.trace(straight)
    assert launch.manifest(cut, STEPS)["data_state"]["packing"] == "best_fit"
    view = RunView(cut)
    assert view.scalar_names()[-6:-4] == ["loss/alpaca", "loss/talk"]
    assert len(view.scalars("loss/talk")) == STEPS


# Ranks, micro batch, ZeRO stage: a step in one micro batch, the same step in four, and on two ranks.
LAYOUTS: dict[str, tuple[int, int, int, str]] = {
    "whole": (1, 4, 1, "data_parallel_size"),
    "accumulated": (1, 1, 0, "data_parallel_size"),
    "two-ranks": (2, 1, 1, "data_parallel_size"),
    "zero3": (2, 1, 3, "data_parallel_size"),
    "tensor": (2, 2, 1, "tensor_parallel_size"),
    "pipeline": (2, 1, 1, "pipeline_parallel_size"),
    "ulysses": (2, 2, 1, "ds_sequence_parallel_size"),
}
SOAK = ("tensor", "pipeline", "ulysses")


@pytest.fixture(scope="module")
def layouts(tmp_path_factory, home, forked):
    root = tmp_path_factory.mktemp("layouts")
    runs = {
        name: launch.make_run(
            root,
            {
                **BLEND,
                "model.hidden_dropout": 0.0,
                "model.attention_dropout": 0.0,
                "batch.micro_batch_size": micro,
                f"parallel.{size}": ranks,
                "parallel.zero_stage": stage,
            },
            name,
        )
        for name, (ranks, micro, stage, size) in LAYOUTS.items()
    }
    trained: dict[str, RunDir] = {}

    def train(name):
        """Train the run and return it."""
        if name not in trained:
            forked.train(runs[name], LAYOUTS[name][0])
            trained[name] = runs[name]
        return trained[name]

    return train


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.soak] * (name in SOAK)) for name in LAYOUTS if name != "whole"],
)
def test_the_mean_over_learnt_tokens_does_not_depend_on_the_layout(layouts, name):
    """If samples have different numbers of unmasked tokens, losses, norms and validation still do not depend
    on the layout.

    They agree up to the order of fp32 sums; averaging the means of micro batches would differ in the third
    digit.
    """
    ours, theirs = launch.trace(layouts(name)), launch.trace(layouts("whole"))
    assert sorted(ours) == sorted(theirs) == list(range(1, STEPS + 1))
    for index in (0, 1):
        values = [[float.fromhex(trace[step][index]) for step in sorted(trace)] for trace in (ours, theirs)]
        np.testing.assert_allclose(*values, rtol=2e-6, atol=4e-6)
    views = [RunView(layouts(one)) for one in (name, "whole")]
    of_datasets = [f"{kind}/{one}" for kind in ("loss", "validation_loss") for one in ("test", "short")]
    for scalar in (*of_datasets, "validation_loss", "validation_perplexity/short", "test_loss"):
        points = [view.scalars(scalar) for view in views]
        assert points[0].steps == points[1].steps != []
        np.testing.assert_allclose(points[0].values, points[1].values, rtol=2e-6, atol=4e-6)
