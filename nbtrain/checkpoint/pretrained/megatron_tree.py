"""The weights of a checkpoint tree of Megatron-LM or Megatron-DeepSpeed, joined over its ranks.

    column-parallel (query_key_value, dense_h_to_4h)   rows of rank 0, then of rank 1, ...
    row-parallel (dense, dense_4h_to_h)                columns of rank 0, then of rank 1, ...
    SwiGLU                                             each rank has the gate's rows, then the rows of up

The row order of query, key and value has changed over time, and the files do not always record it.
For checkpoint_version 0 it is [3, heads, d], for 1 [heads, d, 3], and from 2 on by group, which is also our
order. However, since December 2024 (676a482c) Megatron-DeepSpeed's forward pass expects all queries of a
rank, then all keys, then all values, and it still writes 3.0. For such a tree the user must state the order,
or the order with the lower loss on a text is used.

Files are read with torch's weights-only loader, and only the few classes that such files contain are allowed,
by name. The values of Megatron's enums are ignored: an empty class replaces each of them.
"""

import argparse
import codecs
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nbtrain.base.errors import CheckpointError
from nbtrain.base.text import amounts
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import display
from nbtrain.checkpoint.files.torch_files import DAMAGED, load_file
from nbtrain.checkpoint.pretrained.files import NAMES
from nbtrain.checkpoint.weights.store import MASTER, StoredParameter
from nbtrain.pretrained.families import Described
from nbtrain.pretrained.megatron import MegatronTree, fields_of_arguments, whole_number
from nbtrain.pretrained.model import model_section
from nbtrain.pretrained.tensors import Sizes, parameter_shapes

# Names of classes that are replaced by an empty class.
ENUMS = re.compile(r"megatron\.(core\.|model\.|[\w.]*\.)?enums\.\w+")
CORES = ("core", "_core")
# Classes of NumPy's random state, under the names that they have in different NumPy versions.
NUMPY = {
    **{f"numpy.{core}.multiarray._reconstruct": np.zeros(0).__reduce__()[0] for core in CORES},
    **{f"numpy.{core}.multiarray.scalar": np.float64(0).__reduce__()[0] for core in CORES},
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "_codecs.encode": codecs.encode,
    "argparse.Namespace": argparse.Namespace,
}
# {name in some Megatron versions: canonical name}
RENAMED = {
    "self_attention.": "attention.",
    "input_norm.": "input_layernorm.",
    "post_attention_norm.": "post_attention_layernorm.",
    "final_norm.": "final_layernorm.",
    "lm_head.": "output_layer.",
}
# NumPy's dtype classes: torch's loader needs them for arrays, although no file names them.
NUMBERS = [type(np.dtype(kind)) for kind in "?bBhHiIlLqQefd"]
ROW_PARALLEL = ("attention.dense.weight", "mlp.dense_4h_to_h.weight")
LAYER = re.compile(r"layers\.(\d{1,6})\.(.+)")
# Kernel states, and buffers that can be computed.
NOT_READ = re.compile(r"(^|\.)(_extra_state|inv_freq)$")
COLUMN_PARALLEL = ("word_embeddings.weight", "output_layer.weight")


class MegatronWeights:
    """The parameters of a tree, joined over its ranks, with all rows of its padded vocabulary.

    `order` is the row order of query, key and value if the files do not determine it: "groups" (queries, key
    and value of one group after the other) or "thirds" (all queries of a rank, then all keys, then all
    values).
    """

    def __init__(self, tree: MegatronTree, order: str = "groups"):
        self.tree, self.order = tree, order
        self.folder = tree.folder
        self._loaded: dict[Path, Any] = {}
        where, first = display(tree.folder), self._load(next(iter(tree.files.values())))
        args = first.get("args")
        args = vars(args) if isinstance(args, argparse.Namespace) else args
        if not isinstance(args, dict):
            raise CheckpointError(f"{where}: holds no arguments (args), which would describe the model.")
        self.args: dict[str, Any] = args
        self.version = first.get("checkpoint_version", 0)
        if type(self.version) not in (int, float):
            raise CheckpointError(
                f"{where}: checkpoint_version = {shortened(repr(self.version))} must be a number."
            )
        _refuse_fewer_ranks(tree, args, where)
        fields = fields_of_arguments(args, where)
        self.vocab_size = whole_number(args, "padded_vocab_size", where)
        described = Described(None, fields, self.vocab_size, fields["max_position_embeddings"])
        self.model = model_section(described, tree.folder)
        self.sizes = Sizes.of(self.model, self.vocab_size)
        if self.version < 2 and self.sizes.num_query_groups != self.sizes.num_attention_heads:
            raise CheckpointError(
                f"{where}: files with checkpoint_version = {self.version:g} cannot hold grouped queries, "
                "but the arguments (args) in them require grouped queries."
            )

    @property
    def is_ambiguous(self) -> bool:
        """Whether the files do not determine the order of query, key and value."""
        # With one group on each rank both orders are equal. Megatron-LM's arguments do not mention DeepSpeed.
        groups = self.sizes.num_query_groups // self.tree.tensor_parallel_size
        return self.version >= 2 and groups > 1 and "deepspeed" in self.args

    @property
    def dtype(self) -> torch.dtype:
        """Format of the weights; fp32 if the tree has several formats."""
        kinds = {tensor.dtype for rank in self._ranks for tensor in rank.values()}
        kind = kinds.pop() if len(kinds) == 1 else torch.float32
        # _part() refuses weights of any other format.
        return kind if kind in NAMES else torch.float32

    @cached_property
    def parameters(self) -> dict[str, StoredParameter]:
        shapes = parameter_shapes(self.sizes)
        return {name: StoredParameter(name, shape, None, 0) for name, shape in shapes.items()}

    def read(self, name: str, state: str = MASTER) -> torch.Tensor:
        """Return an unsharded parameter, flat, in fp32.

        Raises CheckpointError if a rank's part is missing or has another shape, or for NaN and Inf.
        """
        assert state == MASTER, "a tree is read without optimizer states"
        found = self._joined(name).float()
        assert found.shape == self.parameters[name].shape, "the shape of each part was checked"
        if not bool(torch.isfinite(found).all()):
            raise CheckpointError(f"{display(self.folder)}: {name} holds NaN or Inf. Use another step.")
        return found.reshape(-1)

    def _joined(self, name: str) -> torch.Tensor:
        gate = ".gate_" in name
        stored = name.replace(".gate_", ".") if gate else name
        parts = [self._part(rank, stored) for rank in range(self.tree.tensor_parallel_size)]
        if ".query_key_value." in name:
            return torch.cat([self._by_group(part) for part in parts])
        if ".dense_h_to_4h." in name:
            if self.sizes.is_gated:
                parts = [part.chunk(2)[0 if gate else 1] for part in parts]
            return torch.cat(parts)
        if name in COLUMN_PARALLEL:
            return torch.cat(parts)
        if name.endswith(ROW_PARALLEL):
            return torch.cat(parts, dim=1)
        return parts[0]

    def _part(self, rank: int, name: str) -> torch.Tensor:
        where = f"{display(self.folder)}: tensor rank {rank}"
        found = self._ranks[rank].get(name)
        if found is None:
            raise CheckpointError(f"{where} has no {name}, which the arguments (args) require.")
        if found.is_meta or found.layout != torch.strided or found.dtype not in NAMES:
            raise CheckpointError(
                f"{where} has {name} as {found.dtype} ({found.layout}); only dense tensors in fp32, bf16 "
                "or fp16 can be read."
            )
        wanted = self._shape(name)
        if found.shape != wanted:
            raise CheckpointError(
                f"{where} of {self.tree.tensor_parallel_size} has {name} in the shape {list(found.shape)}, "
                f"but the arguments (args) require {list(wanted)}."
            )
        return found

    def _shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a rank's part. Raises CheckpointError if the ranks do not divide the tensor."""
        shape, ranks = list(self.parameters[name].shape), self.tree.tensor_parallel_size
        is_column = ".query_key_value." in name or ".dense_h_to_4h." in name or name in COLUMN_PARALLEL
        if not is_column and not name.endswith(ROW_PARALLEL):
            return tuple(shape)
        dim = 0 if is_column else 1
        cut = self.sizes.num_query_groups if ".query_key_value." in name else shape[dim]
        if cut % ranks:
            kind = "query group" if ".query_key_value." in name else "column" if dim else "row"
            raise CheckpointError(
                f"{display(self.folder)}: {name} has {amounts.counted(cut, kind)}, which cannot be divided "
                f"evenly among {ranks} tensor ranks."
            )
        shape[dim] //= ranks
        if ".dense_h_to_4h." in name and self.sizes.is_gated:
            shape[0] *= 2
        return tuple(shape)

    def _by_group(self, rows: torch.Tensor) -> torch.Tensor:
        """Regroup a rank's rows of query, key and value to [queries of a group|key|value] for each group."""
        ranks, sizes = self.tree.tensor_parallel_size, self.sizes
        heads, groups = sizes.num_attention_heads // ranks, sizes.num_query_groups // ranks
        size, rest = sizes.head_size, rows.shape[1:]
        if self.version < 1:
            return rows.view(3, heads, size, *rest).transpose(0, 1).reshape(rows.shape)
        if self.version < 2:
            return rows.view(heads, size, 3, *rest).transpose(1, 2).reshape(rows.shape)
        if self.order == "groups":
            return rows
        query, key, value = rows.split([heads * size, groups * size, groups * size])
        by_group = (part.unflatten(0, (groups, -1)) for part in (query, key, value))
        return torch.cat(list(by_group), dim=1).flatten(0, 1)

    @cached_property
    def _ranks(self) -> list[dict[str, torch.Tensor]]:
        """Return {canonical name: the rank's part} for each tensor rank."""
        found = self._stored()
        self._refuse_others(found)
        return found

    def _stored(self) -> list[dict[str, torch.Tensor]]:
        tree = self.tree
        if tree.layers:
            return [self._of_layers(rank) for rank in range(tree.tensor_parallel_size)]
        found = []
        for rank in range(tree.tensor_parallel_size):
            own: dict[str, torch.Tensor] = {}
            first = 0
            for pipeline in range(tree.pipeline_parallel_size):
                part = self._of_stage(tree.files[rank, pipeline], first)
                first += len({name.split(".")[1] for name in part if name.startswith("layers.")})
                own |= part
            found.append(own)
        return found

    def _refuse_others(self, found: list[dict[str, torch.Tensor]]) -> None:
        """Raise CheckpointError for a tensor that is not part of the model described by the tree's
        arguments.
        """
        for rank, part in enumerate(found):
            others = (name for name in part if name not in self.parameters)
            if extra := next((name for name in others if not NOT_READ.search(name)), None):
                raise CheckpointError(
                    f"{display(self.folder)}: tensor rank {rank} holds {shortened(extra)}, which is not part "
                    "of the model that the arguments (args) describe; the tensor would be lost."
                )

    def _of_stage(self, path: Path, first: int) -> dict[str, torch.Tensor]:
        """Read the tensors of one stage's file, whose layer 0 is layer `first` of the model."""
        state = self._load(path)
        model = state.get("model") or state.get("module")
        if "model0" in state or not isinstance(model, dict):
            raise CheckpointError(
                f"{display(path)}: the model is not stored in one piece (interleaved pipeline stages?); such "
                "files are not supported."
            )
        language = _inner(model, "language_model") or model
        found = _flat(_inner(language, "embedding"))
        for name, tensor in _flat(_inner(language, "encoder", "transformer")).items():
            ours = _ours(name)
            if (layer := LAYER.fullmatch(ours)) is not None:
                ours = f"layers.{int(layer[1]) + first}.{layer[2]}"
            found[ours] = tensor
        for name, tensor in _flat(_inner(language, "output_layer")).items():
            found[f"output_layer.{name}"] = tensor
        return found

    def _of_layers(self, rank: int) -> dict[str, torch.Tensor]:
        """Read a rank's tensors from a DeepSpeed pipeline, which stores one file per layer.

        Layer 1 holds the embeddings, the next layers the blocks, then come the norm and the output layer.
        """
        layers = self.model.num_layers
        found: dict[str, torch.Tensor] = {}
        for (tensor, number), path in self.tree.layers.items():
            if tensor != rank:
                continue
            for name, value in _flat(self._load(path)).items():
                ours = _ours(name)
                if number == 1:
                    found[ours] = value
                elif 2 <= number < layers + 2:
                    found[f"layers.{number - 2}.{ours}"] = value
                elif number == layers + 2:
                    found[f"final_layernorm.{ours}"] = value
                elif not self.sizes.is_tied:
                    found[ours] = value
        return found

    def _load(self, path: Path) -> Any:
        if path not in self._loaded:
            loaded = load_allowed(path)
            if not isinstance(loaded, dict):
                raise CheckpointError(f"{display(path)}: does not hold a dictionary, as Megatron's files do.")
            self._loaded[path] = loaded
        return self._loaded[path]


def load_allowed(path: Path) -> Any:
    """Load a file of a tree, mapped into memory. Raises CheckpointError for classes that are not allowed."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (*DAMAGED, OSError):
        raise CheckpointError(
            f"{display(path)}: is damaged, or was not written by torch.save since version 1.6."
        ) from None
    allowed: list[Any] = list(NUMBERS)
    for name in names:
        if name in NUMPY:
            allowed.append((NUMPY[name], name))
        elif ENUMS.fullmatch(name):
            allowed.append((type(name.rpartition(".")[2], (_StandIn,), {}), name))
    with torch.serialization.safe_globals(allowed):
        return load_file(path, mmap=True)


class _StandIn:
    """Stand-in for an enum's value, which does not affect any weight."""

    def __init__(self, *values: Any):
        self.values = values


def _ours(name: str) -> str:
    for theirs, ours in RENAMED.items():
        name = name.replace(theirs, ours)
    return name


def _inner(state: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the nested dictionary under the first of `names` that exists; {} if none of them exists."""
    return next((state[name] for name in names if isinstance(state.get(name), dict)), {})


def _refuse_fewer_ranks(tree: MegatronTree, args: dict[str, Any], where: str) -> None:
    """Raise CheckpointError if files of some ranks that saved the tree are missing."""
    sizes = {"tensor_model_parallel_size": tree.tensor_parallel_size}
    if not tree.layers:
        sizes["pipeline_model_parallel_size"] = tree.pipeline_parallel_size
    for name, size in sizes.items():
        if type(args.get(name)) is int and args[name] > size:
            raise CheckpointError(
                f"{where}: {name} = {args[name]}, but the folder has files of only "
                f"{amounts.counted(size, 'rank')}. Copy the whole folder."
            )


def _flat(state: dict[str, Any], prefix: str = "") -> dict[str, torch.Tensor]:
    """Return the tensors of nested dictionaries by dotted name; other values (_extra_state) are omitted."""
    found: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, torch.Tensor):
            found[f"{prefix}{name}"] = value
    return found
