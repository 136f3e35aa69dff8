"""A checked model folder, with every tensor of every file assigned to a part of a parameter.

    open_model(path)      checks that config.json, index, headers and architecture agree
    model.map             canonical names and pieces (tensors.py)
    model.tensors         {name in the map: tensor, with its file and offset}

This module reads only a few kilobytes of each file. Checks that need the data (NaN, a tied output that
differs) are in values.py.

A tensor is recognized no matter which modules wrapped the model when it was saved:

    model.layers.0.self_attn.q_proj.weight                        transformers' name
    layers.0.self_attn.q_proj.weight                              a model without its output layer
    _orig_mod.model.layers.0.self_attn.q_proj.weight              torch.compile
    module.model.layers.0._fsdp_wrapped_module.self_attn. ...     DDP, FSDP
    base_model.model.model.layers.0.self_attn.q_proj.weight       peft
    actor.model.layers.0.self_attn.q_proj.weight                  a user's own module

A name in the file belongs to the tensor whose name it ends with. All tensors of a model must have the same
prefix, except for root modules that transformers itself adds or omits.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nbtrain.base.errors import CheckpointError
from nbtrain.base.text.amounts import counted
from nbtrain.base.workspace import display
from nbtrain.config.schema import ModelConfig
from nbtrain.pretrained.families import Described, Family, describe
from nbtrain.pretrained.folder import CONFIG, ModelFolder, open_folder
from nbtrain.pretrained.header import Tensor
from nbtrain.pretrained.tensors import OUTPUT, Sizes, TensorMap, own_tensors
from nbtrain.pretrained.written import OWN_SCHEMA

# Number formats that fp32 can represent exactly, so that the master copy holds the weights unchanged.
READ = ("F32", "BF16", "F16")
# Buffers that some files contain and that are ignored: GPT-2's causal masks, Llama's rotary frequencies.
NOT_READ = re.compile(r"(^|\.)(attn\.(masked_)?bias|rotary_emb\.(original_)?inv_freq)$")
# Names of peft's tensors in a file with unmerged adapters and base weights.
OF_ADAPTERS = re.compile(r"\.(lora_|ia3_l|vera_|token_adapter|modules_to_save)")
SHOWN_NAMES = 3
# Modules that only wrap another module: torch.compile, DDP, FSDP, activation checkpointing, peft.
WRAPPERS = frozenset(
    (
        *("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"),
        *("_forward_module", "base_layer"),
    )
)
ROOTS = frozenset(("model", "transformer", "base_model", "language_model"))


@dataclass(frozen=True)
class PretrainedModel:
    """A model folder, the model that it describes, and where each parameter is stored."""

    folder: ModelFolder
    described: Described
    map: TensorMap
    tensors: dict[str, Tensor]
    """{tensor name in `map.tensors`: tensor, with its file and offset}."""
    twin: Tensor | None = None
    """The output matrix in the file, if the output is tied to the word embedding; None if it is not stored.

    Its values must equal the embedding's.
    """

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def title(self) -> str:
        """Title of the family, such as "Llama"; "nbtrain" for a consolidated file."""
        return self.described.family.title if self.described.family is not None else "nbtrain"

    @property
    def dtypes(self) -> list[str]:
        """Number formats of the tensors, as safetensors spells them."""
        return sorted({tensor.dtype for tensor in self.tensors.values()})

    @property
    def count(self) -> int:
        """Number of parameters in the model; a tied output matrix is not counted again."""
        return sum(tensor.count for tensor in self.tensors.values())


def open_model(path: Path) -> PretrainedModel:
    """Open and check a folder or a consolidated file. Raises CheckpointError with a one-sentence reason."""
    folder = open_folder(path)
    described = _describe_own(folder) if folder.is_own else describe(folder.config, folder.path / CONFIG)
    sizes = Sizes.of(model_section(described, folder.path), described.vocab_size)
    known = own_tensors(sizes) if described.family is None else described.family.tensors(sizes)
    found = _named(folder, described.family, known)
    twin = found.pop(OUTPUT, None) if sizes.is_tied else None
    _compare(folder, known.tensors, found)
    for tensor in (*found.values(), *([twin] if twin is not None else [])):
        if tensor.dtype not in READ:
            raise CheckpointError(
                f"{display(tensor.path)}: {tensor.name} has the unsupported number format {tensor.dtype}. "
                f"Get the model in a supported format: {', '.join(READ)}."
            )
    return PretrainedModel(folder, described, known, found, twin)


def model_section(described: Described, path: Path) -> ModelConfig:
    """Return the described fields as a `model` section. Raises CheckpointError for an invalid field."""
    fields = described.fields
    if unknown := [name for name in fields if name not in ModelConfig.model_fields]:
        raise CheckpointError(
            f"{display(path)}: the model needs {unknown[0]} = {fields[unknown[0]]!r}, a field that nbtrain's "
            "models do not have."
        )
    try:
        return ModelConfig(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{display(path)}: {name} = {first['input']!r}: {first['msg']}.") from None


def _describe_own(folder: ModelFolder) -> Described:
    """Return the model settings in the metadata of a consolidated file."""
    said: dict[str, Any] = folder.config
    try:
        fields, vocab_size = dict(said["model"]), said["vocab_size"]
        if said["schema_version"] != OWN_SCHEMA or not isinstance(vocab_size, int):
            raise ValueError
        return Described(None, fields, vocab_size, fields["max_position_embeddings"])
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(
            f"{display(folder.path)}: the file's metadata does not have the format of this version of "
            f"nbtrain (schema_version {OWN_SCHEMA}). Export the run again with this version."
        ) from None


def _named(folder: ModelFolder, family: Family | None, known: TensorMap) -> dict[str, Tensor]:
    """Return the tensors by their names in the map, no matter which modules wrapped the model.

    Unknown tensors keep their names in the file, and buffers are omitted. Raises CheckpointError if two names
    belong to the same tensor.
    """
    tensors = {
        name: tensor for name, tensor in folder.tensors.items() if not NOT_READ.search(unwrapped(name))
    }
    if family is None:
        return tensors
    try:
        meant = matched(tensors, (*known.tensors, OUTPUT))
    except CheckpointError as error:
        raise CheckpointError(f"{display(folder.path)}: {error}") from None
    return {meant.get(name, name): tensor for name, tensor in tensors.items()}


def _compare(folder: ModelFolder, wanted: dict[str, tuple[int, ...]], found: dict[str, Tensor]) -> None:
    """Raise CheckpointError if tensors are missing, are unknown or have a wrong shape."""
    where = display(folder.path)
    # For the messages: the file that describes the model, and how to get complete files.
    source = "metadata" if folder.is_own else CONFIG
    again = "Copy the file again." if folder.is_own else "Download the folder again."
    extra = [name for name in found if name not in wanted]
    if unmerged := next((name for name in extra if OF_ADAPTERS.search(name)), None):
        raise CheckpointError(
            f"{where} contains unmerged adapters in addition to the base weights ({unmerged}). Merge them "
            "once with peft's merge_and_unload() and save the model, or save only the adapters and set "
            "lora.init_from to them."
        )
    if missing := [name for name in wanted if name not in found]:
        what = _some(missing, "is missing", "are missing")
        there = ""
        if extra:
            names = ", ".join(extra[:SHOWN_NAMES])
            more = " ..." if len(extra) > SHOWN_NAMES else ""
            there = f" Tensors with unknown names: {names}{more}."
        raise CheckpointError(
            f"{where}: {what}. The model in its {source} has {counted(len(wanted), 'tensor')}, and missing "
            f"tensors would be random numbers.{there} {again}"
        )
    if extra:
        model = f"the model in its {source}"
        what = _some(extra, f"does not belong to {model}", f"do not belong to {model}")
        raise CheckpointError(
            f"{where}: {what}, and would be lost. "
            + (again if folder.is_own else f"Check that {CONFIG} belongs to these weights.")
        )
    for name, shape in wanted.items():
        if found[name].shape == (0,) and shape:
            raise CheckpointError(
                f"{where}: {found[name].name} is empty, because the model was saved under ZeRO 3, where each "
                "rank holds a shard of each weight. Combine the shards with DeepSpeed's zero_to_fp32.py, "
                "which is in the checkpoint's folder, or save the model again with "
                "stage3_gather_16bit_weights_on_model_save: true."
            )
        if found[name].shape != shape:
            raise CheckpointError(
                f"{where}: {name} has the shape {list(found[name].shape)}, but must have {list(shape)} "
                f"according to its {source}. {again}"
            )


def _some(names: list[str], one: str, several: str) -> str:
    if len(names) == 1:
        return f"{names[0]} {one}"
    return f"{len(names)} tensors {several} (the first is {names[0]})"


def unwrapped(name: str) -> str:
    """Return a tensor's name without the modules that only wrap other modules."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def matched(names: Iterable[str], wanted: Iterable[str]) -> dict[str, str]:
    """Return {name in the file: wanted name that it ends with}.

    Names that match no wanted name are omitted, and so are names whose prefix does not belong to the model
    (_is_of). Raises CheckpointError if two names match the same wanted name. The caller adds the file to the
    message.
    """
    cores = {_core(name): name for name in wanted}
    found: dict[str, tuple[str, str]] = {}
    for name in names:
        parts = unwrapped(name).split(".")
        # The longest ending is tried first, because other norms end in `norm.weight` too.
        for start in range(len(parts)):
            if (core := ".".join(parts[start:])) in cores:
                found[name] = core, ".".join(parts[:start])
                break
    prefixes = Counter(prefix for core, prefix in found.values() if "." in core.partition(".")[2])
    common = prefixes.most_common(1)[0][0] if prefixes else ""
    kept = {name: cores[core] for name, (core, prefix) in found.items() if _is_of(prefix, common)}
    _refuse_two_of_one(kept)
    return kept


def _core(name: str) -> str:
    """Return a name without the root modules (ROOTS, such as `model`) at its beginning."""
    parts = name.split(".")
    first = next(place for place, part in enumerate(parts) if part not in ROOTS)
    return ".".join(parts[first:])


def _is_of(prefix: str, common: str) -> bool:
    """Return whether a tensor with `prefix` belongs to the model.

    `common` is the prefix of most of the model's tensors. The prefix must be `common`, the beginning of
    `common`, or consist only of root modules (ROOTS).
    """
    return (
        prefix == common
        or common.startswith(f"{prefix}.")
        or all(part in ROOTS for part in prefix.split(".") if part)
    )


def _refuse_two_of_one(meant: Mapping[str, str]) -> None:
    first: dict[str, str] = {}
    for name, wanted in meant.items():
        if (other := first.setdefault(wanted, name)) != name:
            raise CheckpointError(
                f"{other} and {name} are two names for the same tensor, so it is not clear which tensor to "
                "use. Remove one of the two tensors, or get another copy of the model."
            )
