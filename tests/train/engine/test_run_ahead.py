"""A step never waits for the device. On a CPU, the test counts how often a number is read from a tensor."""

import json

import pytest

from nbtrain.config.load import load
from nbtrain.train.engine.run_ahead import may_run_ahead
from tests.train import launch

STEPS = 3


@pytest.mark.slow
def test_a_step_takes_no_number_from_the_device(tmp_path, fork_server):
    """Without DeepSpeed's checks, only the stability guard reads a number from a tensor during a step.

    Losses and norms are bit-identical with and without DeepSpeed's checks.
    """
    launch.make_dataset(tmp_path / "data")
    runs = {
        f"{name}{ending}": launch.make_run(
            tmp_path,
            {
                "batch.train_tokens": STEPS * 4 * 32,
                "evaluation.eval_iters": 0,
                # The gradients of these runs are clipped.
                "optimizer.clip_grad": 0.3,
                **overrides,
            },
            f"{name}{ending}",
        )
        for name, overrides in {
            "bf16-zero1": {"precision.dtype": "bf16"},
            "bf16-zero2": {"precision.dtype": "bf16", "parallel.zero_stage": 2},
            "fp32-zero1": {"parallel.zero_stage": 1},
        }.items()
        for ending in ("", "-ahead")
    }
    ended = fork_server.run(
        1,
        "tests.train.host_syncs_worker:main",
        [str(run.path) for run in runs.values()],
        log=tmp_path / "{rank}.log",
        environment={"NBTRAIN_DATA": str(tmp_path / "data")},
        sys_path=[launch.REPOSITORY],
        timeout_seconds=launch.TIMEOUT_SECONDS,
    )
    assert ended.succeeded, ended.last_output(40)
    waits = {name: json.loads((run.path / "host_syncs.json").read_text()) for name, run in runs.items()}
    own = {"stability.py:_look": 2 * STEPS}
    for name, found in waits.items():
        if name.endswith("-ahead"):
            assert found == own, name
            plain = runs[name.removesuffix("-ahead")]
            assert launch.trace(runs[name]) == launch.trace(plain) and len(launch.trace(plain)) == STEPS, name
        else:
            assert set(found) > set(own), name
            assert all(
                place in own or "utils.py" in place or "optimizer.py" in place or "stage" in place
                for place in found
            )


@pytest.mark.parametrize(
    ("overrides", "may"),
    [
        ({}, True),
        ({"stability.on_nan": "rollback"}, True),
        ({"stability.on_nan": "skip"}, False),
        ({"stability.on_loss_spike": "skip"}, False),
        ({"precision.dtype": "fp16"}, False),
    ],
)
def test_who_may_run_ahead(overrides, may):
    """A run may not run ahead if the loss scale or the stability policy needs the result before the weights
    are updated.
    """
    assert may_run_ahead(load("gpt-125m", {"precision.dtype": "bf16", **overrides})) is may
