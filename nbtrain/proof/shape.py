"""Scales a run down to its twin: the same kinds of parallelism, ZeRO stage, precision and schedules on a CPU.

Everything in a layout that can be wrong is kept. Everything that only costs time is scaled down: layers,
widths, heads, vocabulary, sequence, batch, steps, and the number of ranks.

Folding: while there are more than MAX_RANKS ranks, the largest size is halved (rounded up). Among equal
sizes, data comes first, then tensor, then pipeline, then Ulysses or context parallelism. No size falls below
2, so that every kind of parallelism is still used. A run with four kinds therefore has a twin of 16 ranks:

    4 data x 4 pipeline               -> 2 x 4          4 data x 4 pipeline x 4 tensor  -> 2 x 2 x 2
    4 data x 8 pipeline               -> 2 x 4          16 pipeline x 8 tensor          -> 4 x 2
    8 tensor x 2 pipeline x 2 Ulysses -> 2 x 2 x 2

Features that a CPU does not support are removed or replaced, and reported, so that a proof never claims more
than was run.
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

# More only if two ranks for each kind are more.
MAX_RANKS = 8
# The order in which equal sizes are halved; a deep pipeline has more to get wrong than many copies.
FOLDED_FIRST = tuple(
    f"{kind}_parallel_size" for kind in ("data", "tensor", "pipeline", "ds_sequence", "context")
)


@dataclass(frozen=True)
class Twin:
    """A run's twin and how it was derived."""

    config: RunConfig
    """Scaled-down configuration of the run."""
    run: str
    """Name of the run."""
    folded: dict[str, tuple[int, int]]
    """Sizes of parallelism that were reduced: (the run's, the twin's)."""
    not_proven: list[NotProven]
    datasets: list[RunConfig] = field(default_factory=list)
    """Datasets to prepare before the twin itself, which are the parts of a blend."""

    @property
    def exact(self) -> RunConfig:
        """Return the twin in fp32 without dropout, which differs from one process only in the order of
        sums.
        """
        if self._is_plain and self.config.precision.dtype == "fp32":
            return self.config
        fp32 = {"dtype": "fp32", "autocast": False}
        return self._changed("exact", {"precision": fp32, "model": NO_DROPOUT})

    @property
    def rounded(self) -> RunConfig:
        """Return the twin in its own number format, without dropout."""
        if self.config.precision.dtype == "fp32":
            return self.exact
        return self.config if self._is_plain else self._changed("rounded", {"model": NO_DROPOUT})

    @property
    def reference(self) -> RunConfig:
        """Return the reference: one process in fp32, without sharding, recomputation or offloading."""
        return in_one_process(self.exact, suffixed_name(self.run, "reference"))

    @property
    def reshaped(self) -> RunConfig:
        """Return the run that continues in one process from a checkpoint of `exact`."""
        return in_one_process(self.exact, suffixed_name(self.run, "reshaped"))

    @property
    def resumed(self) -> RunConfig:
        """Return the twin as a run that saves and stops at STOP_STEP, and then resumes."""
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
# Nothing that only some machines have.
WITHOUT = Abilities()


def fold(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return `sizes` halved until their product is at most MAX_RANKS, or none is larger than 2."""
    folded = dict(sizes)
    while math.prod(folded.values()) > MAX_RANKS and (largest := max(folded.values())) > 2:
        key = next(key for key in FOLDED_FIRST if folded.get(key) == largest)
        folded[key] = max(-(-largest // 2), 2)
    return folded


def make_twin(config: RunConfig, abilities: Abilities = WITHOUT, folder: str = "data/twin") -> Twin:
    """Return the twin of a run, which passes check.py. Raises ConfigError if the run cannot have one.

    `folder`, relative to the workspace, is where the examples of a fine-tuning run's twin will be.
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
    # The loss and the norm of each step to the last bit, in the events of rank 0 (train/figures/report.py).
    # One thread, as forked ranks have: products in 16 bits are summed in another order by more.
    values["backend"]["env"] = environment_of_ranks(config) | {TRACE: "1", "OMP_NUM_THREADS": "1"}
    if (code := code_file(config)) is not None:
        refuse(code.problems, ConfigError)
        # The run's copy, if its file is gone.
        values["code"] = display(code.path)
    if defines(config, "dataset"):
        values["code"] = None
        why = "its dataset() has the run's ids and lengths"
        missing.append(NotProven(f"code: {config.code}", why, "nbtrain's own functions and mock documents"))
    datasets = small_data(config, values, folder, missing)
    # The schedules need the twin's batch sizes, which are in the values made so far.
    small = RunConfig.model_validate({**values, "lr_schedule": {"lr": LEARNING_RATE}})
    values["lr_schedule"] = small_lr_schedule(config, small)
    if (rate := config.optimizer.muon_lr) is not None:
        values["optimizer"]["muon_lr"] = rate * LEARNING_RATE / config.lr_schedule.lr
    twin = validated(values)
    if config.init_from is not None:
        why = "its weights are as large as in the run"
        missing.append(NotProven(f"init_from: {config.init_from}", why, "weights drawn at random"))
    if config.lora is not None:
        why = "its frozen weights are as large as in the run"
        missing.append(NotProven("lora: adapters", why, "all weights trained"))
    if config.dpo is not None:
        why = "its reference is the weights of init_from"
        missing.append(NotProven("dpo: pairs of answers", why, "prompts with completions"))
    if config.checkpoint.local_dir is not None:
        why = "this machine does not have the nodes' own disks"
        missing.append(NotProven("checkpoint.local_dir", why, "saved in the run directory"))
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
