"""Weights that are NaN or infinite are never saved in a checkpoint, and never loaded from one."""

import math

import pytest
import torch

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError, StabilityError
from nbtrain.parallel.startup import World
from nbtrain.train.health.finite_weights import bad_weights
from tests.train import launch

WORLD = World(0, 1, 0, torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_is_found_by_name(dtype, value):
    """A parameter with a single NaN or infinite value is named, in every format; the largest finite numbers
    are accepted.
    """
    module = torch.nn.Sequential(*[torch.nn.Linear(3, 3, dtype=dtype) for _ in range(5)])
    module[0].weight.data.fill_(torch.finfo(dtype).max)
    assert bad_weights(module, WORLD) == ""
    module[2].weight.data[1, 1] = value
    assert bad_weights(module, WORLD) == "2.weight"
    for layer in module:
        layer.bias.data[0] = value
    assert bad_weights(module, WORLD) == "0.bias, 1.bias, 2.weight and 3 more"


@pytest.mark.slow
def test_no_checkpoint_is_made_of_them_and_none_is_gone_on_from(tmp_path, forked):
    """Weights with a NaN are not saved in a checkpoint, and a checkpoint that contains a NaN is not resumed.

    Step 8 is good and a weight after it is NaN: the checkpoint of step 4 is kept.
    """
    settings = {"checkpoint.save_interval_steps": 4, "checkpoint.keep_last": 1, "evaluation.eval_iters": 0}
    run = launch.make_run(tmp_path, settings)
    launch.order_faults(run, {"step": 8, "do": "weights"})
    assert forked.end(run).exit_codes == [StabilityError.exit_code]
    name = "word_embeddings.weight"
    assert f"after step 8 some weights are NaN or Inf ({name}), so no checkpoint" in launch.log_of(run)
    assert run.checkpoint_steps() == [4]

    folder = run.checkpoint(4)
    weights = folder / "mp_rank_00_model_states.pt"
    state = torch.load(weights, weights_only=False)
    state["module"][name][3, 3] = math.nan
    torch.save(state, weights)
    (masters,) = folder.glob("*optim_states.pt")
    optimizer = torch.load(masters, weights_only=False)
    optimizer["optimizer_state_dict"]["single_partition_of_fp32_groups"][0][:] = math.nan
    torch.save(optimizer, masters)
    manifest = launch.manifest(run, 4)
    for path in (weights, masters):
        manifest["files"][path.name] |= {"bytes": path.stat().st_size, "sha256": files.sha256_of(path)}
    files.write_json(run.checkpoint_manifest(4), manifest)
    launch.new_job(run)
    assert forked.end(run).exit_codes == [CheckpointError.exit_code]
    assert "global_step4: its weights are NaN or Inf (" in launch.log_of(run)
    assert "Remove that folder: then `nbtrain resume` continues from the start." in launch.log_of(run)
    assert launch.trace(run).keys() == set(range(1, 9))
