"""Forked ranks that train with one guard removed, or that show DeepSpeed's behaviour alone."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nbtrain.parallel import startup
from nbtrain.train import __main__ as trainer
from nbtrain.train import build


def train(path: str, guard: str) -> int:
    """Train the run at `path` without `guard`, which is a key of TAKEN_AWAY."""
    TAKEN_AWAY[guard]()
    return trainer.main(path)


def _without_marks() -> None:
    """Train with parameters that are not marked as sharded (T3)."""
    make = build.build_model

    def unmarked(*arguments):
        model = make(*arguments)
        for parameter in model.parameters():
            parameter.tensor_model_parallel = False
        return model

    build.build_model = unmarked


def _with_partitioned_activations() -> None:
    """Train with DeepSpeed's defaults for the activations that a pipeline sends (T6)."""
    derive = build.deepspeed_config
    build.deepspeed_config = lambda config: derive(config) | {"pipeline": {}}


TAKEN_AWAY: dict[str, Callable[[], None]] = {
    "marks": _without_marks,
    "whole activations": _with_partitioned_activations,
}


def facts(answer: str) -> None:
    """Measure DeepSpeed's behaviour without nbtrain's guards, on one rank, and
    write it as JSON to `answer`.
    """
    startup.start("cpu", 600)
    found = {check.__name__.removeprefix("_"): check() for check in FACTS}
    Path(answer).write_text(json.dumps(found))
    startup.finish()


def _engine(stage: int, **config: Any) -> tuple[Any, torch.optim.Optimizer]:
    import deepspeed

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with startup.quiet():
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            config={
                "train_micro_batch_size_per_gpu": 1,
                "zero_optimization": {"stage": stage},
                "steps_per_print": 2**31,
                **config,
            },
            dist_init_required=False,
        )
    return engine, optimizer


def _adam_steps_before_training() -> dict[str, float]:
    """Return Adam's step count before the first step, by ZeRO stage, with bf16 weights (T1)."""
    counts = {}
    for stage in (0, 1):
        _, optimizer = _engine(stage, bf16={"enabled": True})
        steps = [float(state["step"]) for state in optimizer.state.values() if "step" in state]
        counts[str(stage)] = max(steps, default=0.0)
    return counts


def _norms() -> dict[str, bool]:
    """Return whether the engine reports the gradient norm, by ZeRO stage, in fp32 (T2)."""
    reported = {}
    for stage in (0, 1):
        engine, _ = _engine(stage, gradient_clipping=1.0)
        engine.backward(engine(torch.ones(1, 4)).sum())
        engine.step()
        reported[str(stage)] = engine.get_global_grad_norm() is not None
    return reported


def _matrices_inside_zero_init() -> dict[str, int]:
    """Count the parameters of a GPT inside zero.Init that dim() takes for matrices,
    and those in `decay` (T4).
    """
    import deepspeed

    from nbtrain.model.gpt import GPT, GPTConfig
    from nbtrain.train.engine.optimizer import parameter_groups

    with deepspeed.zero.Init(config_dict_or_path={"train_batch_size": 1, "zero_optimization": {"stage": 3}}):
        model = GPT(GPTConfig(2, 16, 2, 64, 32, 8))
    decay, no_decay = parameter_groups(model.named_parameters(), 0.1)
    return {
        "by dim": sum(parameter.dim() > 1 for parameter in model.parameters()),
        "decay": len(decay["params"]),
        "decay of matrices": sum(len(parameter.ds_shape) > 1 for parameter in decay["params"]),
        "no_decay of matrices": sum(len(parameter.ds_shape) > 1 for parameter in no_decay["params"]),
    }


def _pipeline_recomputes_its_embedding() -> str:
    """Return the error of DeepSpeed's own recomputation of a pipeline, with its default settings (T15)."""
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule

    with startup.quiet():
        module = PipelineModule(
            [LayerSpec(torch.nn.Embedding, 8, 4), LayerSpec(torch.nn.Linear, 4, 8)],
            num_stages=1,
            loss_fn=lambda logits, labels: torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten()
            ),
            activation_checkpoint_interval=1,
        )
        engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=torch.optim.AdamW(module.parameters()),
            config={
                "train_micro_batch_size_per_gpu": 1,
                "zero_optimization": {"stage": 1},
                "steps_per_print": 2**31,
            },
            dist_init_required=False,
        )
    tokens = torch.zeros(1, 3, dtype=torch.int64)
    try:
        engine.train_batch(iter([(tokens, tokens)]))
    except (AssertionError, RuntimeError) as error:
        return str(error)
    return ""


FACTS = (
    _adam_steps_before_training,
    _norms,
    _matrices_inside_zero_init,
    _pipeline_recomputes_its_embedding,
)


def compiled_ops(answer: str) -> None:
    """Return the ops that DeepSpeed considers available, and those compiled when a rank starts (T13)."""
    startup.start("cpu", 600)
    import deepspeed

    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
    built = sorted(path.name for path in folder.rglob("*")) if folder.exists() else []
    Path(answer).write_text(json.dumps([deepspeed.ops.__compatible_ops__, built]))
    startup.finish()
