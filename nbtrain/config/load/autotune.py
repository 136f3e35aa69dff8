"""Input of DeepSpeed's autotuner, and its result as overrides of the run.

The tuner reads a JSON, changes ZeRO stage and micro-batch size in it, and starts a script with each changed
JSON (nbtrain/train/tuning/). This module converts each changed JSON to overrides of the run. The rules then
check every trial, and the best settings can be applied to the run. The global batch size stays the same: each
micro-batch size divides the sequences of a rank, and the number of accumulation steps follows.
"""

import base64
import binascii
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.workspace import display
from nbtrain.config.deepspeed.ds_config import deepspeed_config
from nbtrain.config.load.edits import with_overrides
from nbtrain.config.schema import RunConfig

# Multiples of the current micro-batch size to try, in addition to half of it. Each size takes one trial for
# each ZeRO stage.
MULTIPLES = (1, 2, 4, 8)
ZERO_STAGES = (0, 1, 2, 3)
# Keys of zero_optimization that are fields of parallel with the same names.
SAME_NAME = (
    "overlap_comm",
    "contiguous_gradients",
    "reduce_scatter",
    "reduce_bucket_size",
    "allgather_bucket_size",
    "sub_group_size",
    "stage3_max_live_parameters",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
)
# DeepSpeed's launcher starts a script, not a module. Python puts the script's folder, which holds no modules,
# at sys.path[0].
SCRIPT = """import runpy

runpy.run_module("nbtrain.train.tuning", run_name="__main__", alter_sys=True)
"""


def mode_of(config: RunConfig) -> str:
    """Return the mode of DeepSpeed's autotuner for the run: none, tune or run.

    With tune or run, the run's job begins with the autotuner.
    """
    return config.backend.kubernetes.autotune if config.backend.kind == "kubernetes" else "none"


def tuner_json(config: RunConfig, run_path: str) -> dict[str, Any]:
    """Return the tuner's input: lists of ZeRO stages and micro-batch sizes that the rules allow.

    `run_path` is the run directory as the pods see it. Options of the tuner itself are taken from
    parallel.deepspeed_extra.autotuning.
    """
    given = deepspeed_config(config)
    sizes = _allowed(config, "batch.micro_batch_size", micro_batch_sizes(config))
    given["train_micro_batch_size_per_gpu"] = sizes
    # The accumulation steps that belong to the largest micro-batch size. The tuner adjusts them to smaller
    # sizes, so that the product of the two stays the same.
    given["gradient_accumulation_steps"] = sequences_of_rank(config) // max(sizes)
    del given["train_batch_size"]
    given["zero_optimization"]["stage"] = _allowed(config, "parallel.zero_stage", ZERO_STAGES)
    given["autotuning"] = {
        **given.get("autotuning", {}),
        "enabled": True,
        "results_dir": f"{run_path}/{RunDir(run_path).autotuning_results.name}",
        "exps_dir": f"{run_path}/{RunDir(run_path).autotuning_exps.name}",
    }
    return given


def sequences_of_rank(config: RunConfig) -> int:
    """Return the number of sequences that one data-parallel rank trains on in each step."""
    return config.batch.global_batch_size // config.parallel.data_parallel_size


def micro_batch_sizes(config: RunConfig) -> list[int]:
    """Return at most five micro-batch sizes to try, ascending.

    Each size divides the number of sequences that one data-parallel rank trains on in each step.
    """
    size, sequences = config.batch.micro_batch_size, sequences_of_rank(config)
    sizes = {size // 2, *(size * multiple for multiple in MULTIPLES)}
    return sorted(one for one in sizes if one and sequences % one == 0)


def _allowed(config: RunConfig, key: str, values: tuple[int, ...] | list[int]) -> list[int]:
    """Return the values of a field, out of `values`, with which the run passes all rules."""
    found = []
    for value in values:
        try:
            deepspeed_config(with_overrides(config, {key: value}))
        except ConfigError:
            continue
        found.append(value)
    return found


def overrides_of(config: RunConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides that correspond to a JSON from the tuner. {} if it changes nothing in the run.

    Keys for which nbtrain has no field go to parallel.deepspeed_extra. Raises ConfigError for a key that
    nbtrain derives from another field.
    """
    derived, overrides = deepspeed_config(config)["zero_optimization"], {}
    size = given.get("train_micro_batch_size_per_gpu", config.batch.micro_batch_size)
    if size != config.batch.micro_batch_size:
        overrides["batch.micro_batch_size"] = size
    extra = {}
    for key, value in given.get("zero_optimization", {}).items():
        if value == derived.get(key):
            continue
        if key == "stage":
            overrides["parallel.zero_stage"] = value
        elif key in SAME_NAME:
            # DeepSpeed tries sizes such as 5e8, which are floats. nbtrain's fields are integers.
            overrides[f"parallel.{key}"] = int(value) if isinstance(value, float) else value
        elif key in derived:
            raise ConfigError(
                f"DeepSpeed's autotuner sets zero_optimization.{key} = {value!r}, which nbtrain derives as "
                f"{derived[key]!r}. Remove it from the tuner's options (parallel.deepspeed_extra.autotuning)."
            )
        else:
            extra[key] = value
    if extra:
        own = config.parallel.deepspeed_extra
        zero = {**own.get("zero_optimization", {}), **extra}
        overrides["parallel.deepspeed_extra"] = {**own, "zero_optimization": zero}
    return overrides


def found_overrides(run: RunDir, config: RunConfig) -> dict[str, Any] | None:
    """Return the tuner's result for the run, as overrides. None if there is no result yet."""
    given = files.read_json(run.autotuning_optimum)
    return None if given is None else overrides_of(config, given)


def found_words(run: RunDir, config: RunConfig, mode: str, active: bool) -> str | None:
    """Describe the tuner's result for a job: the settings, their file and how to apply them.

    None if the mode is none.
    """
    if mode == "none":
        return None
    where = display(run.autotuning_optimum)
    try:
        overrides = found_overrides(run, config)
    except ConfigError as error:
        return f"{where} cannot be applied: {error}"
    if overrides is None:
        folder = display(run.autotuning_results)
        if active:
            return f"the autotuner writes its trials to {folder}/"
        return f"no trial finished; see stderr.log and stdout.log of each trial in {folder}/"
    if mode == "run" or not overrides:
        return f"the run already has the best settings ({where})"
    words = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    taken = " ".join(shlex.quote(word) for word in [*words, "backend.kubernetes.autotune=none"])
    return f"{where} has the best settings; `nbtrain resume {run.name} {taken}` trains with them"


def write_files(job: JobDir, config: RunConfig) -> None:
    """Write the tuner's JSON and script to the job's folder, which the pods see.

    Do nothing if the mode is none.
    """
    if mode_of(config) == "none":
        return
    run_path = f"{config.backend.kubernetes.workspace_path}/output/{config.name}"
    files.write_json(job.autotune_json, tuner_json(config, run_path))
    files.write_text(job.autotune_script, SCRIPT)


def read_given(text: str) -> dict[str, Any]:
    """Return the JSON object that the argument --deepspeed_config passes.

    The argument is the path of a JSON file or, if the tuner starts the script, the JSON text in base64.
    Raises ConfigError if the file cannot be read or the content is not a JSON object.
    """
    try:
        if text.endswith(".json"):
            given = json.loads(Path(text).read_text(encoding="utf-8"))
        else:
            given = json.loads(base64.urlsafe_b64decode(text))
    except (OSError, binascii.Error, ValueError, RecursionError) as error:
        raise ConfigError(
            f"--deepspeed_config {text[:60]}: is neither the path of a JSON file nor base64-encoded JSON: "
            f"{error}. nbtrain's manifest passes the path, and DeepSpeed's autotuner passes base64: do not "
            "change this argument."
        ) from error
    if not isinstance(given, dict):
        raise ConfigError(f"--deepspeed_config {text[:60]}: must hold a JSON object, not {given!r:.60}.")
    return given
