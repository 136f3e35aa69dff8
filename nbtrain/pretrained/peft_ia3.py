"""IA3 vectors in the format of `peft`: adapter_config.json, and one tensor for each module.

    base_model.model.model.layers.0.self_attn.k_proj.ia3_l    [outputs, 1]
    base_model.model.model.layers.0.mlp.down_proj.ia3_l       [1, inputs]

GPT-2 has a single module for queries, keys and values. In its vector, the elements for the queries are
written as 1, and must be 1 in a vector that peft trained.

This module does not use torch; checkpoint/weights/peft_vectors.py reads and writes the tensors.
"""

from pathlib import Path
from typing import Any, NamedTuple

from nbtrain.config.schema import RunConfig
from nbtrain.pretrained.peft_files import (
    PREFIX,
    name_problems,
    read_settings,
    read_tensors,
    targets_module,
)
from nbtrain.pretrained.tensors import PACKED, Piece, Sizes
from nbtrain.pretrained.written import family_of

OPENED = "mlp.dense_4h_to_h"


class RescaledModule(NamedTuple):
    """A module of the family's model that IA3 rescales, and where its elements are in nbtrain's vector."""

    name: str
    vector: str
    """Canonical name of nbtrain's vector."""
    pieces: tuple[tuple[Piece, int | None], ...]
    """Ranges of the module's rows, each with the index in nbtrain's vector at which its elements begin.

    The index is None for queries, which have no elements in the vector. () for the MLP's module, whose inputs
    correspond one to one to the elements of the vector.
    """
    size: int

    @property
    def tensor(self) -> str:
        return f"{PREFIX}{self.name}.ia3_l"

    @property
    def is_input(self) -> bool:
        """Whether the vector multiplies the module's input (a feedforward module in peft)."""
        return not self.pieces

    @property
    def shape(self) -> tuple[int, int]:
        return (1, self.size) if self.is_input else (self.size, 1)


def rescaled_modules(config: RunConfig) -> list[RescaledModule]:
    """Return the modules that IA3 rescales, in the model's order.

    Raises ConfigError if no family can express the run's model.
    """
    sizes = Sizes.of(config.model, config.tokenizer.vocab_size)
    known = family_of(config).tensors(sizes)
    head = sizes.head_size
    queries = sizes.num_attention_heads // sizes.num_query_groups * head
    unit = queries + 2 * head

    def place(piece: Piece) -> int | None:
        group, row = divmod(piece.first, unit)
        return None if row < queries else group * 2 * head + row - queries

    found = []
    for weight, shape in known.shapes.items():
        inner = weight.split(".", 2)[-1].removesuffix(".weight")
        if not weight.startswith("layers.") or not weight.endswith(".weight"):
            continue
        vector = weight.removesuffix("weight") + "ia3"
        if inner == OPENED:
            name = known.pieces[weight][0].tensor.removesuffix(".weight")
            found.append(RescaledModule(name, vector, (), shape[1]))
        if inner != PACKED:
            continue
        for tensor in dict.fromkeys(piece.tensor for piece in known.pieces[weight]):
            pieces = tuple((one, place(one)) for one in known.pieces[weight] if one.tensor == tensor)
            if any(start is not None for _, start in pieces):
                size = sum(piece.count for piece, _ in pieces)
                found.append(RescaledModule(tensor.removesuffix(".weight"), vector, pieces, size))
    return found


def shapes_of(config: RunConfig) -> dict[str, tuple[int, ...]]:
    """Return {tensor: shape} for the adapter file that a run writes."""
    return {module.tensor: module.shape for module in rescaled_modules(config)}


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Return the content of the adapter_config.json that a run writes."""
    modules = rescaled_modules(config)
    # "attn.c_proj" and "mlp.c_proj" are two modules of GPT-2.
    names = {".".join(module.name.split(".")[-2:]): module for module in modules}
    return {
        "peft_type": "IA3",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": config.init_from,
        "inference_mode": True,
        "target_modules": sorted(names),
        "feedforward_modules": sorted(name for name, module in names.items() if module.is_input),
        "fan_in_fan_out": any(piece.transposed for module in modules for piece, _ in module.pieces),
        "modules_to_save": None,
    }


def problems_of(folder: Path, config: RunConfig) -> list[str]:
    """Return why a folder's vectors do not fit a run; [] if they fit.

    Raises CheckpointError if files are missing or damaged.
    """
    found = read_settings(folder)
    if found.get("peft_type") != "IA3":
        return [f"peft_type is {found.get('peft_type')!r}, but the run's lora.kind is ia3"]
    if found.get("modules_to_save"):
        return [f"modules_to_save is {found['modules_to_save']!r}, but only null is supported"]
    wanted = shapes_of(config)
    tensors = read_tensors(folder, wanted)
    # Vectors of modules that the folder does not target start at 1.
    asked = {module.tensor for module in rescaled_modules(config) if targets_module(found, module.name)}
    missing, surplus = asked - tensors.keys(), tensors.keys() - wanted.keys()
    if problems := name_problems(missing, surplus, "the run has vectors for keys, values and the MLP"):
        return problems[:1]
    return [
        f"{name.removeprefix(PREFIX)} has the shape {list(tensors[name].shape)}, but the run needs "
        f"{list(shape)}"
        for name, shape in wanted.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ][:1]
