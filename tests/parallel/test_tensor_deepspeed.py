"""DeepSpeed trains tensor-parallel layers like one process: losses, gradient norms and clipping."""

import contextlib
import functools
import io

import pytest
import torch
import torch.distributed as dist

from nbtrain.base.topology import Topology
from nbtrain.model.gpt import GPT
from nbtrain.parallel.groups import MegatronUnits, ParallelGroups
from nbtrain.parallel.layout import ModelParallel
from nbtrain.parallel.mappings import own_part
from nbtrain.train.engine.optimizer import parameter_groups
from tests.parallel import ranks
from tests.parallel.rounding import rounding, training_terms
from tests.parallel.small import gpt_config, text

STEPS, CLIP = 5, 0.5


def adamw(model) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameter_groups(model.named_parameters(), 0.1), lr=1e-2, betas=(0.9, 0.95))


@functools.cache
def curve_of_one_process() -> list[tuple[float, float]]:
    """Train in one process and return (loss, gradient norm before clipping) of each step."""
    model = GPT(gpt_config())
    optimizer, curve = adamw(model), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(*text())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        curve.append((float(loss.detach()), float(norm)))
    return curve


def curve_of_deepspeed(zero_stage: int, sequence_parallel: bool, unmarked: bool = False):
    import deepspeed

    replicas = dist.get_world_size() // 2
    groups = ParallelGroups.create(Topology(data_parallel_size=replicas, tensor_parallel_size=2), 1, 20)
    units = MegatronUnits(groups)
    config = {
        "train_micro_batch_size_per_gpu": 2 // replicas,
        "gradient_clipping": CLIP,
        "zero_optimization": {"stage": zero_stage, "stage3_param_persistence_threshold": 0},
        "zero_force_ds_cpu_optimizer": False,
    }
    # Without the groups, DeepSpeed would use the world as its data-parallel group.
    with (
        contextlib.redirect_stdout(io.StringIO()),
        deepspeed.zero.Init(
            data_parallel_group=groups.data_parallel.process_group,
            config_dict_or_path=config,
            enabled=zero_stage == 3,
            mpu=units,
        ),
    ):
        model = GPT(gpt_config(), ModelParallel(groups.tensor_model_parallel, sequence_parallel))
    if unmarked:
        for parameter in model.parameters():
            parameter.tensor_model_parallel = False
    with contextlib.redirect_stdout(io.StringIO()):
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=adamw(model), config=config, mpu=units, dist_init_required=False
        )
    tokens, labels = (own_part(one, 0, groups.data_parallel) for one in text())
    curve = []
    for _ in range(STEPS):
        loss = engine(tokens, labels)
        engine.backward(loss)
        engine.step()
        total = loss.detach().clone()
        dist.all_reduce(total, group=groups.data_parallel.process_group)
        curve.append((float(total) / replicas, float(engine.get_global_grad_norm())))
    engine.destroy()
    return curve


def assert_follows(curve) -> None:
    allowed = rounding(training_terms(STEPS))
    torch.testing.assert_close(
        torch.tensor(curve), torch.tensor(curve_of_one_process()), rtol=allowed, atol=0
    )


def check_zero_1():
    assert_follows(curve_of_deepspeed(1, False))


def check_zero_1_with_sequence_parallelism():
    assert_follows(curve_of_deepspeed(1, True))


def check_zero_2_with_sequence_parallelism():
    assert_follows(curve_of_deepspeed(2, True))


def check_zero_3():
    assert_follows(curve_of_deepspeed(3, False))


def check_zero_3_with_sequence_parallelism():
    assert_follows(curve_of_deepspeed(3, True))


def check_without_the_marks_the_norm_is_wrong_in_silence():
    """If sharded parameters are not marked, the gradient norm is wrong without an error, because DeepSpeed
    counts only rank 0's shards.
    """
    (loss, norm), *_ = curve_of_deepspeed(1, False, unmarked=True)
    expected_loss, expected_norm = curve_of_one_process()[0]
    assert abs(loss - expected_loss) < 1e-5
    assert norm < 0.95 * expected_norm


# 2: two tensor ranks; 4: two replicas of them.
CHECKS = {
    2: ["check_zero_1", "check_zero_3", "check_without_the_marks_the_norm_is_wrong_in_silence"],
    4: [name for name in ranks.names(globals()) if name.endswith("with_sequence_parallelism")],
}


@pytest.mark.slow
@ranks.each(CHECKS)
def test_on_ranks(outcome, size, check):
    assert not outcome(size, check), outcome(size, check)
