"""Resume report: how exactly a resume continues its run, written after each resume and proven where possible.

    bit-exact    same layout, settings, code and machine: every number is as without the interruption
    data-exact   the next batch is the same, to the token; sums round differently, or dropout is reseeded
    changed      the run continues differently; the reasons say how

The next batch is compared by a hash of its samples' positions in the training order and of their tokens.
conditions() describes the code and the machine. train/provenance.py records the same description for the
whole run.
"""

import functools
import hashlib
import os
import platform
import re
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from nbtrain.base.code_hashes import code_hashes, joint_sha256
from nbtrain.base.errors import DataError
from nbtrain.base.hardware.cpu import cpu_model, vector_flags
from nbtrain.base.run_directory.records import ResumeCertificate
from nbtrain.base.version import __version__
from nbtrain.config.arithmetic.layout_words import SIZE_KEYS
from nbtrain.config.load import flatten
from nbtrain.config.rules.environment import may_be_secret
from nbtrain.config.rules.resume import SAME_MATHEMATICS, WITHOUT_EFFECT, within
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.samples.sample import Samples
from nbtrain.dataset.samples.state import DataState

# Entries of a layout (describe.py) that are fields of the section `parallel`, under the same name.
SIZES = (*SIZE_KEYS, "zero_stage")
# {size that the layouts of older checkpoints do not contain: its value in these checkpoints}
ABSENT = {"context_parallel_size": 1}
# The YAML key that determines each entry of a layout, for messages.
LAYOUT_KEYS = {key: f"parallel.{key}" for key in (*SIZES, "sub_group_size")} | {
    "weights": "precision.dtype",
    "stage_layers": "parallel.pipeline_stage_layers",
    "offload_optimizer": "parallel.offload_optimizer.device",
    "offload_param": "parallel.offload_param.device",
}
# {entry of a layout: the entry that determines it}. If the determining entry has changed, only that entry is
# reported.
FOLLOWS = {"stage_layers": "pipeline_parallel_size", "sub_group_size": "zero_stage"}

# Prefixes of environment variables that choose algorithms. OMP_NUM_THREADS is not among them, because
# device() reports the threads.
VARIABLES = ("MKL_", "CUBLAS_", "NCCL_")
# Exceptions: variables that start with one of VARIABLES but only determine what is logged and how the ranks
# find each other.
NO_ALGORITHM = re.compile(r"NCCL_(DEBUG\w*|SOCKET_IFNAME|COMM_ID)")
HASH_CHARACTERS = 12


def next_batch_sha256(samples: Samples, data: DataState, batch_size: int) -> str | None:
    """Return the SHA-256, in hexadecimal, of the global batch that follows the data state `data`.

    Returns None if the training order ends before the batch is full.
    """
    positions = data.step_positions(batch_size)
    digest = hashlib.sha256(positions.astype("<i8").tobytes())
    for position in positions.tolist():
        try:
            tokens = samples.sample(position).tokens
        except (DataError, IndexError):
            return None
        digest.update(np.asarray(tokens).astype("<i8").tobytes())
    return digest.hexdigest()


def software() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect the results."""
    found = {
        "nbtrain": __version__,
        "torch": torch.__version__,
        "deepspeed": version("deepspeed"),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    if torch.version.cuda:
        found |= {"cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}
    return found


def device(kind: torch.device) -> dict[str, Any]:
    """Return the device properties that determine which kernels run: the kind of device and its name; for a
    CPU also its threads, model and vector instructions.
    """
    if kind.type == "cuda":
        return {"kind": "gpu", "name": torch.cuda.get_device_name(kind)}
    return {
        "kind": "cpu",
        "name": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        **_processor(),
    }


def conditions(kind: torch.device) -> dict[str, Any]:
    """Return the code and machine that the results depend on (not settings or data), as manifest entries."""
    return {"versions": software(), "device": device(kind), **_of_this_process()}


@functools.cache
def _of_this_process() -> dict[str, Any]:
    """Return the hash of nbtrain's files and the variables that choose algorithms, as they were at the first
    call, because libraries may set some variables later.
    """
    names = (name for name in sorted(os.environ) if name.startswith(VARIABLES))
    chosen = {name: os.environ[name] for name in names if not NO_ALGORITHM.fullmatch(name)}
    return {
        "nbtrain_sha256": joint_sha256(code_hashes()),
        "variables": {name: value for name, value in chosen.items() if not may_be_secret(name, value)},
    }


@functools.cache
def _processor() -> dict[str, Any]:
    return {"model": cpu_model()[0], "vector_flags": vector_flags()}


def settings(config: RunConfig) -> dict[str, Any]:
    """Return {dotted key: JSON value} of every field of the configuration."""
    return dict(flatten(config.model_dump(mode="json")))


def certify(
    manifest: Mapping[str, Any],
    config: RunConfig,
    layout: Mapping[str, Any],
    now_on: torch.device,
    next_batch: str | None,
    random_reseeded: bool,
) -> ResumeCertificate:
    """Return the report of a resume from the checkpoint with this manifest.

    The other arguments describe the resumed run: its configuration, layout and device, the hash of its next
    batch, and whether its random streams were reseeded.
    """
    changed: list[str] = []
    inexact: list[str] = []
    for key, before, now in _differences(manifest["settings"], settings(config)):
        if not within(key, WITHOUT_EFFECT):
            (inexact if within(key, SAME_MATHEMATICS) else changed).append(f"{key}: {before} -> {now}")
    if not inexact:
        # If settings have changed, they already report the new layout, under the names of the YAML file.
        inexact += layout_words(manifest["layout"], layout)
    inexact += _condition_words(manifest, conditions(now_on))
    if random_reseeded and (config.model.hidden_dropout or config.model.attention_dropout):
        inexact.append("random numbers (dropout) start from a new seed, derived from model.seed and the step")
    if manifest["next_batch_sha256"] is None:
        inexact.append("the checkpoint does not record which batch came next")
    elif manifest["next_batch_sha256"] != next_batch:
        changed.append("the next batch differs from the one that the checkpoint recorded")
    kind = "changed" if changed else "data-exact" if inexact else "bit-exact"
    return ResumeCertificate(kind, changed + inexact, manifest["step"], next_batch, time.time())


def _condition_words(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences in code and machine. Facts that an older version's manifest does not contain
    count as unchanged.
    """
    found = _differences(before["versions"], now["versions"])
    words = [f"version of {key}: {old} -> {new}" for key, old, new in found if key != "python"]
    code = before.get("nbtrain_sha256", now["nbtrain_sha256"])
    if code != now["nbtrain_sha256"] and before["versions"].get("nbtrain") == __version__:
        old, new = (digest[:HASH_CHARACTERS] for digest in (code, now["nbtrain_sha256"]))
        words.append(f"files of nbtrain: SHA-256 {old} -> {new}")
    known = before["device"]
    for key, old, new in _differences(known, now["device"]):
        if isinstance(old, list) and isinstance(new, list):
            # The lists are long, so only instructions that one of the two processors lacks are named.
            lost, added = (
                [one for one in own if one not in other] for own, other in ((old, new), (new, old))
            )
            old, new = " ".join(lost) or "none", " ".join(added) or "none"
        elif key in ("model", "vector_flags") and (key not in known or key not in now["device"]):
            continue
        words.append(f"device {key.replace('_', ' ')}: {old} -> {new}")
    found = _differences(before.get("variables", now["variables"]), now["variables"])
    return words + [
        f"environment variable {key}: {'none' if old is None else old} -> {'none' if new is None else new}"
        for key, old, new in found
    ]


def layout_words(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences of two layouts under their YAML keys: ["parallel.zero_stage: 1 -> 3", ...]."""
    changed = {key: (old, new) for key, old, new in _differences({**ABSENT, **before}, {**ABSENT, **now})}
    return [
        f"{LAYOUT_KEYS.get(key, key)}: {'none' if old is None else old} -> {'none' if new is None else new}"
        for key, (old, new) in changed.items()
        if FOLLOWS.get(key) not in changed
    ]


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    keys = [*before, *(key for key in now if key not in before)]
    return [(key, before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key)]
