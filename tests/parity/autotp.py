"""DeepSpeed's own tensor parallelism (AutoTP) applied to plain_gpt.py: a second implementation to compare
ours with.

AutoTP replaces the linear layers with its own and shards their weights; embeddings and logits stay whole on
every rank.
"""

import json
from pathlib import Path

import torch
import torch.distributed as dist

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.arithmetic.lr_schedule import LrSchedule
from nbtrain.config.load import load_resolved
from nbtrain.dataset.samples.build import build_datasets
from nbtrain.parallel import startup
from nbtrain.train.engine.optimizer import parameter_groups, set_rates
from tests.parity.oracle import batch_of, plain_model

SPECS = [
    {"patterns": [r".*(query_key_value|dense_h_to_4h)\.(weight|bias)$"], "partition_type": "column"},
    {"patterns": [r".*(attention\.dense|dense_4h_to_h)\.(weight|bias)$"], "partition_type": "row"},
]


def main(path: str, answer: str) -> None:
    """Train the run in its layout (tp, dp, ZeRO stage). Rank 0 writes [[loss, norm], ...] to the file
    `answer`.
    """
    world = startup.start("cpu", 600)
    import deepspeed

    run = RunDir(path)
    config = load_resolved(run.config_yaml)
    parallel, batch = config.parallel, config.batch
    tensor, data = parallel.tensor_parallel_size, parallel.data_parallel_size
    # Rank 0 fills the index cache.
    if world.rank == 0:
        build_datasets(config, None)
    dist.barrier()
    datasets, schedule = build_datasets(config, None), LrSchedule.of(config)
    model = plain_model(config)
    optimizer = torch.optim.AdamW(
        parameter_groups(model.named_parameters(), config.optimizer.weight_decay),
        betas=(config.optimizer.adam_beta1, config.optimizer.adam_beta2),
        eps=config.optimizer.adam_eps,
    )
    with startup.quiet():
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            config={
                "train_micro_batch_size_per_gpu": batch.global_batch_size // data,
                "gradient_clipping": config.optimizer.clip_grad,
                "zero_optimization": {"stage": parallel.zero_stage},
                "tensor_parallel": {
                    "autotp_size": tensor,
                    "partition_config": {"use_default_specs": False, "layer_specs": SPECS},
                },
                "steps_per_print": 2**31,
            },
            dist_init_required=False,
        )
    cut = sum(parameter.numel() for parameter in model.parameters())
    whole = sum(parameter.numel() for parameter in plain_model(config).parameters())
    assert parallel.zero_stage == 3 or cut < whole, "AutoTP has cut nothing"
    size, place = batch.global_batch_size // data, world.rank // tensor
    curve = []
    for step in range(config.train_steps):
        first = step * batch.global_batch_size
        set_rates(
            engine.optimizer,
            schedule.learning_rate(first * config.model.seq_length),
            config.optimizer.weight_decay,
        )
        own = range(first + place * size, first + (place + 1) * size)
        loss = engine(*batch_of(datasets.train, own))
        engine.backward(loss)
        engine.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        curve.append([float(total) / world.size, float(engine.get_global_grad_norm())])
    if world.rank == 0:
        Path(answer).write_text(json.dumps(curve))
    startup.finish()
