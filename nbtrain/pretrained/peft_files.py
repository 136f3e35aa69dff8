"""The two files of an adapter folder that `peft` writes: settings and tensors."""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.workspace import display
from nbtrain.pretrained.folder import CONFIG, PEFT_SETTINGS, PEFT_WEIGHTS, what_it_is
from nbtrain.pretrained.header import Tensor, read_header
from nbtrain.pretrained.model import matched

PICKLE = "adapter_model.bin"
PREFIX = "base_model.model."
# The adapter's name, which is part of tensor names in a state_dict, but not in files from save_pretrained.
ADAPTER = re.compile(r"\.(lora_A|lora_B|ia3_l)\.(?!weight$)[^.]+(?=\.weight$|$)")


def read_tensors(folder: Path, wanted: Iterable[str]) -> dict[str, Tensor]:
    """Return the file's tensors by their wanted names, no matter which modules wrapped the model.

    Tensors that match no wanted name keep their own names. Raises CheckpointError if the file is damaged, or
    if two names match the same tensor.
    """
    stored = read_header(folder / PEFT_WEIGHTS).tensors
    tensors = {ADAPTER.sub(r".\1", name): tensor for name, tensor in stored.items()}
    if len(tensors) < len(stored):
        raise CheckpointError(
            f"{display(folder / PEFT_WEIGHTS)} contains several adapters for the same module. Save a single "
            "adapter with peft's save_pretrained(..., selected_adapters=[NAME])."
        )
    try:
        meant = matched(tensors, wanted)
    except CheckpointError as error:
        raise CheckpointError(f"{display(folder / PEFT_WEIGHTS)}: {error}") from None
    return {meant.get(name, name): tensor for name, tensor in tensors.items()}


def name_problems(missing: Collection[str], surplus: Collection[str], reason: str) -> list[str]:
    """Return up to two clauses: one about missing tensors, one about unexpected (surplus) tensors.

    Each clause names the first of the tensors and ends with `reason`. The list is empty if there are neither
    missing nor unexpected tensors.
    """
    problems = []
    for words, names in (("has no", missing), ("has an unexpected tensor", surplus)):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            problems.append(f"{words} {min(names).removeprefix(PREFIX)}{more}: {reason}")
    return problems


def targets_module(settings: Mapping[str, Any], module: str) -> bool:
    """Return whether adapter_config.json targets a module, according to peft's rules.

    target_modules and exclude_modules are lists of name endings, or a regular expression for whole names.
    layers_to_transform limits the layers.
    """
    if _names(settings.get("exclude_modules"), module) or not _names(settings.get("target_modules"), module):
        return False
    layers = settings.get("layers_to_transform")
    if layers is None or layers == []:
        return True
    number = re.search(r"\.(\d+)\.", module)
    return number is not None and int(number[1]) in (layers if isinstance(layers, list) else [layers])


def _names(said: object, module: str) -> bool:
    if said == "all-linear":
        return True
    if isinstance(said, str):
        try:
            return re.fullmatch(said, module) is not None
        except re.error:
            return False
    if not isinstance(said, list):
        return False
    return any(module == name or module.endswith(f".{name}") for name in said)


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings in adapter_config.json.

    Raises CheckpointError if the file is missing or damaged, or if the tensor file is missing.
    """
    try:
        found = files.read_json(folder / PEFT_SETTINGS)
    except ValueError as error:
        raise CheckpointError(f"{error}") from None
    if not isinstance(found, dict) or not (folder / PEFT_WEIGHTS).is_file():
        if isinstance(found, dict):
            missing, why = PEFT_WEIGHTS, ""
            if (folder / PICKLE).is_file():
                why = (
                    f" {PICKLE} is a pickle, which can run code when it is loaded. If you trust it, load it "
                    "with peft, and save it again with save_pretrained(..., safe_serialization=True)."
                )
        else:
            missing, why = PEFT_SETTINGS, f" It is {what}" if (what := what_it_is(folder)) else ""
            if not why and (folder / CONFIG).is_file():
                why = " It contains a complete model: set init_from to it."
        raise CheckpointError(
            f"{display(folder)} has no {missing}, so it is not an adapter folder that peft has written.{why}"
        )
    return found
