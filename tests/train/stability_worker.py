"""Two ranks that discard a bad step, with each of DeepSpeed's optimizers, and a run without that step to
compare with.

The fork server starts the ranks, which call main(); rank 0 writes a line of JSON per case and way. `all` runs
every case in each of the three ways, `turns` runs every second case in one of them, in rotation.
"""

import contextlib
import io
import json
import math
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from nbtrain.config.load import load
from nbtrain.parallel import startup
from nbtrain.train.health.discard import discard_gradients
from nbtrain.train.health.finite_weights import bad_weights, local_part
from nbtrain.train.health.stability import StepGuard

WIDTH, ACCUMULATION = 24, 2
GOOD, BAD = (0, 1, 2, 3), (0, 1, "bad", 2, 3)


class Residual(torch.nn.Module):
    """A model of uneven sizes, so that some parameters are split between partitions."""

    def __init__(self, width: int):
        super().__init__()
        self.up = torch.nn.Linear(width, 2 * width + 1)
        self.down = torch.nn.Linear(2 * width + 1, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.float() - y.float()).square().mean()


def batch(step: Any, micro: int, rank: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    number = 999 if step == "bad" else step
    generator = torch.Generator().manual_seed(1000 * number + 10 * micro + rank)
    return tuple(torch.randn(4, WIDTH, generator=generator).to(dtype) for _ in range(2))


def make(case: dict[str, Any], world: startup.World) -> Any:
    import deepspeed

    torch.manual_seed(0)
    stage, dtype = case["stage"], case["dtype"]
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": ACCUMULATION,
        "gradient_clipping": 1.0,
        "communication_data_type": "fp32",
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": case.get("overlap", True) and stage > 0,
            "contiguous_gradients": case.get("contiguous", True),
            "reduce_bucket_size": case.get("bucket", 1000),
            "allgather_bucket_size": 1000,
            "stage3_param_persistence_threshold": 30,
        },
    }
    if case.get("offload"):
        settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    if case.get("offload_param"):
        settings["zero_optimization"]["offload_param"] = {"device": "cpu"}
    if dtype == "bf16":
        settings["bf16"] = {"enabled": True}
    if dtype == "fp16":
        settings["fp16"] = {"enabled": True, "initial_scale_power": 4, "loss_scale_window": 1000}
    if dtype != "fp32":
        settings["data_types"] = {"grad_accum_dtype": case.get("accumulate", "fp32")}
    layers = [Residual(WIDTH) for _ in range(4)]
    pipeline = case.get("pipeline", False)
    if pipeline:
        from deepspeed.pipe import PipelineModule

        model = PipelineModule(layers=layers, num_stages=2, loss_fn=loss_of, partition_method="uniform")
    else:
        torch.manual_seed(0)
        with deepspeed.zero.Init(config_dict_or_path=settings, enabled=stage == 3):
            model = torch.nn.Sequential(*[Residual(WIDTH) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=settings, dist_init_required=False
    )
    return engine


def train(
    run_yaml: str, case: dict[str, Any], world: startup.World, steps: tuple, how: str
) -> tuple[dict, Any, list]:
    """Train `steps` and return the complete state of the optimizer; the bad step is discarded in the way
    `how`.
    """
    engine = make(case, world)
    config = load(run_yaml, {"stability.on_nan": "skip", "precision.dtype": case["dtype"]}, check=False)
    guard = StepGuard(config, engine, world, None) if how != "call" else None
    take = engine._take_model_step
    if guard is not None:
        guard.install()
    verdicts = []
    for number, step in enumerate(steps, start=1):
        if guard is None and step == "bad":
            engine._take_model_step = lambda *unused: discard_gradients(engine)
        loss = make_step(case, world, engine, guard, number, step, how)
        if guard is not None:
            verdicts.append(guard.end_step(torch.as_tensor(loss), None))
        else:
            engine._take_model_step = take
    return state_of(engine), engine, verdicts


def make_step(
    case: dict[str, Any], world: startup.World, engine: Any, guard: Any, number: int, step: Any, how: str
) -> Any:
    """Run one step and return the mean loss of this rank's micro batches."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[case["dtype"]]
    pipeline = case.get("pipeline", False)
    spoils_gradient = step == "bad" and how == "gradient"
    spoils_loss = step == "bad" and how == "loss" and (pipeline or world.rank == 0)
    losses: list[torch.Tensor] = []

    def noted_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(x, y) * (math.nan if spoils_loss else 1.0)
        losses.append(loss.detach())
        return Spoil.apply(loss) if spoils_gradient else loss

    def own_loss() -> torch.Tensor | None:
        return sum(losses) / ACCUMULATION if losses else None

    if guard is not None:
        guard.begin_step(number, (8 * number - 8, 8 * number), own_loss)
    if pipeline:
        engine.module.loss_fn = engine.loss_model = noted_loss
        return engine.train_batch(batch(step, micro, 0, dtype) for micro in range(ACCUMULATION))
    for micro in range(ACCUMULATION):
        engine.set_gradient_accumulation_boundary(micro == ACCUMULATION - 1)
        x, y = batch(step, micro, world.rank, dtype)
        engine.backward(noted_loss(engine(x), y))
        engine.step()
    return own_loss()


class Spoil(torch.autograd.Function):
    """A function that returns its input unchanged, but has a gradient that is NaN or infinite."""

    @staticmethod
    def forward(context: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.inf


def state_of(engine: Any) -> dict[str, torch.Tensor]:
    """Return this rank's weights and the complete state of the inner optimizer, including the master
    weights.
    """
    found = {}
    for name, parameter in engine.module.named_parameters():
        found[f"weight {name}"] = local_part(parameter).clone()
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    for group, values in enumerate(inner.param_groups):
        for number, parameter in enumerate(values["params"]):
            found[f"master {group}.{number}"] = parameter.detach().clone()
    for number, state in enumerate(inner.state.values()):
        for name, value in state.items():
            found[f"{name} {number}"] = torch.as_tensor(value).detach().clone()
    return found


def weights_told(engine: Any, world: startup.World) -> dict[str, str]:
    """Return the report on the weights before and after a value of rank 1 is set to NaN."""
    sound = bad_weights(engine.module, world)
    held = [(name, local_part(parameter)) for name, parameter in engine.module.named_parameters()]
    name, part = [(name, part) for name, part in held if part.numel()][-1]
    if world.rank == 1:
        part.view(-1)[-1] = math.nan
    return {"sound": sound, "spoilt": bad_weights(engine.module, world), "spoilt_name": name}


CASES = [
    {"stage": 0, "dtype": "fp32"},
    {"stage": 1, "dtype": "fp32"},
    {"stage": 1, "dtype": "bf16"},
    {"stage": 1, "dtype": "fp32", "overlap": False, "contiguous": False},
    {"stage": 1, "dtype": "bf16", "offload": True},
    {"stage": 2, "dtype": "fp32", "overlap": False},
    {"stage": 2, "dtype": "bf16"},
    {"stage": 2, "dtype": "bf16", "contiguous": False},
    {"stage": 2, "dtype": "fp16"},
    {"stage": 2, "dtype": "fp16", "offload": True},
    {"stage": 2, "dtype": "fp32", "offload": True},
    {"stage": 3, "dtype": "fp32"},
    {"stage": 3, "dtype": "bf16", "overlap": False, "contiguous": False},
    {"stage": 3, "dtype": "bf16", "offload": True, "offload_param": True},
    {"stage": 0, "dtype": "fp32", "pipeline": True},
    {"stage": 1, "dtype": "fp32", "pipeline": True},
    {"stage": 1, "dtype": "bf16", "pipeline": True},
]
# Bad loss; bad gradient only; or a step with good numbers that the caller discards.
HOWS = ("loss", "gradient", "call")


def main(results: str, run_yaml: str, ways: str) -> None:
    warnings.simplefilter("ignore")
    world = startup.start("cpu", 120)
    # DeepSpeed checks the processor for fp16 instructions; torch computes without them, slowly.
    get_accelerator().is_fp16_supported = lambda: True
    lines = []
    for number, case in enumerate(CASES if ways == "all" else CASES[::2]):
        with contextlib.redirect_stdout(io.StringIO()):
            expected, engine, _ = train(run_yaml, case, world, GOOD, "call")
        for how in HOWS if ways == "all" else (HOWS[(number + 2) % len(HOWS)],):
            with contextlib.redirect_stdout(io.StringIO()):
                found, engine, verdicts = train(run_yaml, case, world, BAD, how)
            differing = [name for name in expected if not torch.equal(expected[name], found[name])]
            moved = expected.keys() ^ found.keys()
            answer = {
                "rank": world.rank,
                "differing": differing + sorted(moved),
                "optimizer": type(engine.optimizer).__name__,
                "skipped_steps": engine.skipped_steps,
                "global_steps": engine.global_steps,
                "verdicts": [verdict.skipped for verdict in verdicts],
                "overflowed": [verdict.overflowed for verdict in verdicts],
                "reason": next((verdict.reason for verdict in verdicts if verdict.reason), ""),
                "values": len(expected),
                **weights_told(engine, world),
                "finite": all(bool(value.float().isfinite().all()) for value in found.values()),
            }
            answers: list = [None] * world.size
            dist.all_gather_object(answers, answer)
            lines.append({"case": case, "how": how, "answers": answers})
    if world.rank == 0:
        with Path(results).open("w") as stream:
            for line in lines:
                stream.write(json.dumps(line) + "\n")
    startup.finish()
