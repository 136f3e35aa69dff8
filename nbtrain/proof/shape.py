"""Scales a run down to its twin: the same kinds of parallelism, ZeRO stage, precision and schedules on a CPU.

The twin keeps every part of the layout in which an error could occur. What only costs time is scaled down:
layers, widths, heads, vocabulary, sequence length, batch size, steps, and the number of ranks.

The number of ranks is reduced by folding: while there are more than MAX_RANKS ranks, the largest parallel
size is halved (rounded up). Among equal sizes, data parallelism is halved first, then tensor, pipeline,
Ulysses and context parallelism. A size of 2 is not halved, so that the twin still uses every kind of
parallelism. A run with four kinds therefore has a twin of 16 ranks. Examples:

    4 data x 4 pipeline               -> 2 x 4          4 data x 4 pipeline x 4 tensor  -> 2 x 2 x 2
    4 data x 8 pipeline               -> 2 x 4          16 pipeline x 8 tensor          -> 4 x 2
    8 tensor x 2 pipeline x 2 Ulysses -> 2 x 2 x 2

Features that a CPU does not support are removed or replaced, and the report lists them, so that a proof never
claims more than was run.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.workspace import display, suffixed_name
from nbtrain.config.code_file import code_file, defines
from nbtrain.config.load.attempt import TRACE, environment_of_ranks
from nbtrain.config.load.derived import without_inherited
from nbtrain.config.schema import RunConfig
from nbtrain.proof.small_sections import (
    EVAL_INTERVAL_STEPS,
    KEEP_LAST,
    LEARNING_RATE,
    SAVE_INTERVAL_STEPS,
    STOP_STEP,
    Abilities,
    NotProven,
    in_one_process,
    small_batch,
    small_data,
    small_lr_schedule,
    small_model,
    small_parallel,
    small_precision,
    validated,
)

# A twin has more ranks than this only if its kinds of parallelism, each with size 2, require more.
MAX_RANKS = 8
# The order in which equal sizes are halved. Data parallelism comes first, because a deep pipeline can go
# wrong in more ways than many replicas.
FOLDED_FIRST = tuple(
    f"{kind}_parallel_size" for kind in ("data", "tensor", "pipeline", "ds_sequence", "context")
)


@dataclass(frozen=True)
class Twin:
    """A run's twin, and how it differs from the run."""

    config: RunConfig
    """Configuration of the twin."""
    run: str
    """Name of the run."""
    folded: dict[str, tuple[int, int]]
    """Parallel sizes that were reduced: {key: (size in the run, size in the twin)}."""
    not_proven: list[NotProven]
    datasets: list[RunConfig] = field(default_factory=list)
    """Configurations to prepare before the twin's own data: the parts of its blend."""

    @property
    def exact(self) -> RunConfig:
        """The twin in fp32 without dropout, which differs from one process only in the order of sums."""
        if self._is_plain and self.config.precision.dtype == "fp32":
            return self.config
        fp32 = {"dtype": "fp32", "autocast": False}
        return self._changed("exact", {"precision": fp32, "model": NO_DROPOUT})

    @property
    def rounded(self) -> RunConfig:
        """The twin in its own number format, without dropout."""
        if self.config.precision.dtype == "fp32":
            return self.exact
        return self.config if self._is_plain else self._changed("rounded", {"model": NO_DROPOUT})

    @property
    def reference(self) -> RunConfig:
        """The reference run: one process in fp32, without sharding, recomputation or offloading."""
        return in_one_process(self.exact, suffixed_name(self.run, "reference"))

    @property
    def reshaped(self) -> RunConfig:
        """The run that resumes from a checkpoint of `exact` in one process."""
        return in_one_process(self.exact, suffixed_name(self.run, "reshaped"))

    @property
    def resumed(self) -> RunConfig:
        """The twin as a run that saves a checkpoint and stops at STOP_STEP, and then resumes."""
        return self._changed("resumed", {"batch": {"exit_interval_steps": STOP_STEP}})

    @property
    def _is_plain(self) -> bool:
        return self.config.model.hidden_dropout == self.config.model.attention_dropout == 0

    def _changed(self, name: str, changes: dict[str, dict[str, Any]]) -> RunConfig:
        values = self.config.model_dump()
        for section, change in changes.items():
            values[section] |= change
        return validated(values | {"name": suffixed_name(self.run, name)})


NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
# Abilities that every machine has.
WITHOUT = Abilities()


def fold(sizes: Mapping[str, int]) -> dict[str, int]:
    """Halve the largest of `sizes` until the product is at most MAX_RANKS or no size is larger than 2."""
    folded = dict(sizes)
    while math.prod(folded.values()) > MAX_RANKS and (largest := max(folded.values())) > 2:
        key = next(key for key in FOLDED_FIRST if folded.get(key) == largest)
        folded[key] = max(-(-largest // 2), 2)
    return folded


def make_twin(config: RunConfig, abilities: Abilities = WITHOUT, folder: str = "data/twin") -> Twin:
    """Derive a run's twin, a valid configuration. Raises ConfigError if the run cannot have a twin.

    `folder`, relative to the workspace, will contain the examples for the twin of a fine-tuning run.
    """
    missing: list[NotProven] = []
    sizes = {key: getattr(config.parallel, key) for key in FOLDED_FIRST}
    folded = fold(sizes)
    values = without_inherited(config).model_dump()
    values |= {
        "name": suffixed_name(config.name, "twin"),
        "mode": "full",
        "init_from": None,
        "init_step": "newest",
        "lora": None,
        "dpo": None,
        "model": small_model(config, folded, abilities, missing),
        "precision": small_precision(config, abilities, missing),
        "parallel": small_parallel(config, folded, missing),
        "evaluation": {"eval_interval_steps": EVAL_INTERVAL_STEPS, "eval_iters": 1},
        "profile": {},
        "notify": {},
        "limits": {},
        "resources": {"device": "cpu"},
    }
    values["batch"] = small_batch(config, folded)
    values["checkpoint"] |= {"save_interval_steps": SAVE_INTERVAL_STEPS, "keep_last": KEEP_LAST}
    values["checkpoint"]["keep_every_steps"] = None
    values["logging"] |= {"log_interval_steps": 1}
    values["backend"] |= {
        "kind": "local",
        "max_restarts": 0,
        "heartbeat_timeout_seconds": 300.0,
        "deadline_seconds": None,
    }
    # Rank 0 writes the bit-exact loss and gradient norm of each step to its events (train/figures/report.py).
    # A submitted twin uses one thread like forked ranks, because more threads sum 16-bit products in another
    # order.
    values["backend"]["env"] = environment_of_ranks(config) | {TRACE: "1", "OMP_NUM_THREADS": "1"}
    if (code := code_file(config)) is not None:
        refuse(code.problems, ConfigError)
        # This is the run's copy if the original file is missing.
        values["code"] = display(code.path)
    if defines(config, "dataset"):
        values["code"] = None
        why = "its dataset() returns the run's token ids and lengths"
        missing.append(NotProven(f"code: {config.code}", why, "nbtrain's own functions and mock documents"))
    datasets = small_data(config, values, folder, missing)
    # The schedules depend on the twin's batch sizes, which the values already contain.
    small = RunConfig.model_validate({**values, "lr_schedule": {"lr": LEARNING_RATE}})
    values["lr_schedule"] = small_lr_schedule(config, small)
    if (rate := config.optimizer.muon_lr) is not None:
        values["optimizer"]["muon_lr"] = rate * LEARNING_RATE / config.lr_schedule.lr
    twin = validated(values)
    if config.init_from is not None:
        why = "these weights are as large as the run's model"
        missing.append(NotProven(f"init_from: {config.init_from}", why, "randomly initialized weights"))
    if config.lora is not None:
        why = "the frozen weights are as large as the run's model"
        missing.append(NotProven("lora: adapters", why, "training of all weights instead of adapters"))
    if config.dpo is not None:
        why = "its reference model has the weights of init_from, which the twin lacks"
        missing.append(NotProven("dpo: pairs of answers", why, "prompts with completions"))
    if config.checkpoint.local_dir is not None:
        why = "this machine does not have the nodes' local disks"
        missing.append(NotProven("checkpoint.local_dir", why, "checkpoints in the run directory"))
    for key in ("enabled", "memory_snapshot"):
        if getattr(config.profile, key):
            why = "the times and memory of a small run say nothing about the large one"
            missing.append(NotProven(f"profile.{key}: true", why, "no profiler"))
    return Twin(
        twin,
        config.name,
        {key: (sizes[key], size) for key, size in folded.items() if size != sizes[key]},
        missing,
        [validated({**values, **entry}) for entry in datasets],
    )
