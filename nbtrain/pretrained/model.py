"""A model's folder after all checks, with every tensor of every file assigned to a part of a parameter.

    open_model(path)      checks that config.json, index and headers agree, also with the architecture
    model.map             canonical names and pieces (tensors.py)
    model.tensors         {name in the map: tensor, with its file and offset}

This module reads a few kilobytes of each file. Checks that need the data (NaN, a tied output that differs)
are in values.py.

A tensor's name is matched whatever wrapped the model when it was saved:

    model.layers.0.self_attn.q_proj.weight                        transformers' name
    layers.0.self_attn.q_proj.weight                              a model without its output layer
    _orig_mod.model.layers.0.self_attn.q_proj.weight              torch.compile
    module.model.layers.0._fsdp_wrapped_module.self_attn. ...     DDP, FSDP
    base_model.model.model.layers.0.self_attn.q_proj.weight       peft
    actor.model.layers.0.self_attn.q_proj.weight                  a user's own module

A name in the file means the tensor with whose name it ends. All tensors of a model have the same prefix,
except for roots that transformers itself adds or omits.
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

# Formats whose numbers fp32 can represent exactly, so that masters hold them unchanged.
READ = ("F32", "BF16", "F16")
# Buffers that some files hold and that no model reads: causal masks of GPT-2, angles of Llama.
NOT_READ = re.compile(r"(^|\.)(attn\.(masked_)?bias|rotary_emb\.(original_)?inv_freq)$")
# Tensors of peft next to the base's weights, if the adapters are not merged.
OF_ADAPTERS = re.compile(r"\.(lora_|ia3_l|vera_|token_adapter|modules_to_save)")
SHOWN_NAMES = 3
# Modules that only wrap another one: torch.compile, DDP, FSDP, activation checkpointing, peft.
WRAPPERS = frozenset(
    (
        *("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"),
        *("_forward_module", "base_layer"),
    )
)
ROOTS = frozenset(("model", "transformer", "base_model", "language_model"))


@dataclass(frozen=True)
class PretrainedModel:
    """A folder, the model that it describes, and where each parameter is stored in it."""

    folder: ModelFolder
    described: Described
    map: TensorMap
    tensors: dict[str, Tensor]
    """{name in the map: the tensor}."""
    twin: Tensor | None = None
    """An output matrix that is stored although it is tied to the word embedding; its values must be equal."""

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def title(self) -> str:
        """Return the title of the family, such as "Llama"; "nbtrain" for a consolidated file."""
        return self.described.family.title if self.described.family is not None else "nbtrain"

    @property
    def dtypes(self) -> list[str]:
        """Number formats of the tensors in the spelling of safetensors."""
        return sorted({tensor.dtype for tensor in self.tensors.values()})

    @property
    def count(self) -> int:
        """Number of parameters of the model."""
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
                f"{display(tensor.path)}: {tensor.name} has the format {tensor.dtype}, which is not "
                f"supported; {', '.join(READ)} are. Get the model in one of them."
            )
    return PretrainedModel(folder, described, known, found, twin)


def model_section(described: Described, path: Path) -> ModelConfig:
    """Return the fields as a `model` section. Raises CheckpointError for an invalid field."""
    fields = described.fields
    if unknown := [name for name in fields if name not in ModelConfig.model_fields]:
        raise CheckpointError(
            f"{display(path)}: its model needs {unknown[0]} = {fields[unknown[0]]!r}, which nbtrain's models "
            "do not have."
        )
    try:
        return ModelConfig(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{display(path)}: {name} = {first['input']!r}: {first['msg']}.") from None


def _describe_own(folder: ModelFolder) -> Described:
    """Return the description in the metadata of a consolidated file."""
    said: dict[str, Any] = folder.config
    try:
        fields, vocab_size = dict(said["model"]), said["vocab_size"]
        if said["schema_version"] != OWN_SCHEMA or not isinstance(vocab_size, int):
            raise ValueError
        return Described(None, fields, vocab_size, fields["max_position_embeddings"])
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(
            f"{display(folder.path)}: its metadata does not have this nbtrain's format (schema_version "
            f"{OWN_SCHEMA}). Export the run again with this version of nbtrain."
        ) from None


def _named(folder: ModelFolder, family: Family | None, known: TensorMap) -> dict[str, Tensor]:
    """Return the tensors by their names in the map, whatever wrapped the model; unknown tensors keep their
    names.

    Buffers are omitted. Raises CheckpointError if two names mean the same tensor.
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
    """Raise CheckpointError for tensors that are missing, unknown, or have a wrong shape."""
    where = display(folder.path)
    # Where the model is described, and how to get the complete files.
    source = "metadata" if folder.is_own else CONFIG
    again = "Copy the file again." if folder.is_own else "Download the folder again."
    extra = [name for name in found if name not in wanted]
    if unmerged := next((name for name in extra if OF_ADAPTERS.search(name)), None):
        raise CheckpointError(
            f"{where}: holds adapters next to the weights that they change ({unmerged}). Merge them once "
            "with merge_and_unload() of peft and save the model, or save the adapters alone, for "
            "lora.init_from."
        )
    if missing := [name for name in wanted if name not in found]:
        what = _some(missing, "is missing", "are missing")
        there = ""
        if extra:
            names = ", ".join(extra[:SHOWN_NAMES])
            more = " ..." if len(extra) > SHOWN_NAMES else ""
            there = f" Names that match none of them: {names}{more}."
        raise CheckpointError(
            f"{where}: {what}. A model of its {source} has {counted(len(wanted), 'tensor')}; the rest would "
            f"be random numbers.{there} {again}"
        )
    if extra:
        what = _some(extra, "is not part of the model", "are not parts of the model")
        raise CheckpointError(
            f"{where}: {what} that its {source} describes, and would be lost. "
            + (again if folder.is_own else f"Is it the right {CONFIG}?")
        )
    for name, shape in wanted.items():
        if found[name].shape == (0,) and shape:
            raise CheckpointError(
                f"{where}: {found[name].name} is empty: the model was saved under ZeRO 3, whose ranks hold a "
                "part of each weight. Join them with DeepSpeed's zero_to_fp32.py, which is in the folder of "
                "the checkpoint, or save again with stage3_gather_16bit_weights_on_model_save: true."
            )
        if found[name].shape != shape:
            raise CheckpointError(
                f"{where}: {name} has the shape {list(found[name].shape)}, and {list(shape)} by its "
                f"{source}. {again}"
            )


def _some(names: list[str], one: str, several: str) -> str:
    if len(names) == 1:
        return f"{names[0]} {one}"
    return f"{len(names)} tensors {several}, first {names[0]}"


def unwrapped(name: str) -> str:
    """Return a tensor's name without the modules that only wrap others."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def matched(names: Iterable[str], wanted: Iterable[str]) -> dict[str, str]:
    """Return {name: the wanted name that it means}. Names without a match are omitted.

    Raises CheckpointError if two names mean the same tensor; the caller adds the file to its message.
    """
    cores = {_core(name): name for name in wanted}
    found: dict[str, tuple[str, str]] = {}
    for name in names:
        parts = unwrapped(name).split(".")
        # The longest ending first: `norm.weight` is also the ending of other norms.
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
    """Return a name without the roots at its beginning."""
    parts = name.split(".")
    first = next(place for place, part in enumerate(parts) if part not in ROOTS)
    return ".".join(parts[first:])


def _is_of(prefix: str, common: str) -> bool:
    """Return whether a prefix belongs to the model: it is the common prefix, a part of it, or only roots."""
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
                f"holds {other} and {name}, which are two names of one tensor, so it is not clear which one "
                f"to use. Remove one of them, or get another copy of the model."
            )
