"""Contents of a checkpoint by canonical name, whatever layout wrote it.

    store = CheckpointStore(folder)
    store.full("layers.0.mlp.dense_h_to_4h.weight", "fp32")         the whole tensor
    store.read(name, "exp_avg", TensorPart(1, 4, dim=0), 0, 1000)   the first 1,000 elements of the part for
                                                                    the second of four tensor ranks

The optimizer and ZeRO keep a state for each parameter: fp32 (the master weight), step, and for Adam exp_avg
and exp_avg_sq, for Muon momentum_buffer. The parameter's group says which optimizer steps it. For each
(pipeline, tensor) rank, DeepSpeed partitions the state across the data-parallel ranks:

    ZeRO 0                  not at all: the model's file holds torch's own optimizer state
    ZeRO 1, 2               all parameters of a group, concatenated, split into equal parts; each file lists
    (and BF16_Optimizer)    the parameters in it, complete or in part (param_slice_mappings)
    ZeRO 3                  each parameter split into equal, padded parts, concatenated in the order of
                            param_shapes

A parameter is joined over tensor ranks along its partition_dim. Only the tied word embedding is on two
stages; the first stage's copy is read. Files are memory-mapped: only requested elements are read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nbtrain.base.errors import CheckpointError
from nbtrain.checkpoint.files import manifest as manifests
from nbtrain.checkpoint.files.torch_files import load_file
from nbtrain.model.names import DECAY, MATRICES, canonical_name

MASTER = "fp32"
ADAM = ("exp_avg", "exp_avg_sq")
MUON = ("momentum_buffer",)

OPTIMIZER_FILE = re.compile(r"zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt$")
MODEL_FILE = re.compile(r"^(zero_pp_rank_\d+_)?mp_rank_\d+_model_states\.pt$")
LAYER_FILE = re.compile(r"^layer_(\d+)-.*model_states\.pt$")


def moments_of(group: str) -> tuple[str, ...]:
    """Return the names of the states that the optimizer keeps for an optimizer group (model/names.py).

    The fp32 master and the step, which every group has, are not included.
    """
    return MUON if group == MATRICES else ADAM


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class StoredParameter:
    """A parameter as a checkpoint stores it: its unsharded shape, its sharding and its optimizer group."""

    name: str
    shape: tuple[int, ...]
    """Shape of the unsharded tensor, including vocabulary padding."""
    partition_dim: int | None
    """Dimension along which tensor-parallel ranks shard the tensor; None if each rank holds the whole tensor.
    """
    stage: int
    """First pipeline stage that holds the parameter."""
    group: str = DECAY
    """Name of the optimizer group to which the parameter belongs."""

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states that are stored for the parameter, without its step."""
        return (MASTER, *moments_of(self.group))

    @property
    def count(self) -> int:
        return torch.Size(self.shape).numel()


class TensorPart(NamedTuple):
    """The part of a parameter that is held by one of the reader's tensor ranks."""

    rank: int = 0
    size: int = 1
    dim: int | None = None
    """Dimension along which the reader's ranks shard the parameter; None if each rank holds the whole
    parameter.
    """


WHOLE = TensorPart()


@dataclass(frozen=True)
class _Piece:
    """Consecutive elements of a tensor rank's part of a parameter, and the tensors that hold their state."""

    start: int
    count: int
    states: dict[str, torch.Tensor]
    """State tensors, flat, of `count` elements each."""
    step: float


class CheckpointStore:
    """A checkpoint folder, opened for reading.

    Raises CheckpointError if it cannot be read into another layout.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest = manifests.read(folder)
        layout = self.manifest["layout"]
        self.zero_stage: int = layout["zero_stage"]
        self.tensor_parallel_size: int = layout["tensor_parallel_size"]
        self.pipeline_parallel_size: int = layout["pipeline_parallel_size"]
        sharing = layout["ds_sequence_parallel_size"] * layout.get("context_parallel_size", 1)
        self.data_axis_size: int = layout["data_parallel_size"] * sharing
        architecture = self.manifest["architecture"]
        self.num_layers: int = architecture["num_layers"]
        self.is_tied: bool = not architecture["untie_embeddings_and_output_weights"]
        self.dtype = DTYPES[layout["weights"]]
        self._files: dict[str, Any] = {}
        self._pieces: dict[tuple[int, int], dict[str, list[_Piece]]] = {}
        if layout.get("offload_optimizer") == "nvme" or layout.get("offload_param") == "nvme":
            raise CheckpointError(
                f"{folder}: its optimizer state is in NVMe swap files, which can be read only with the "
                "layout that wrote them. Resume the run with that layout, including its offloading."
            )

    @cached_property
    def parameters(self) -> dict[str, StoredParameter]:
        """Shape, sharding and optimizer group of each parameter, by canonical name, in the model's order."""
        return {
            name: StoredParameter(name, **{**entry, "shape": tuple(entry["shape"])})
            for name, entry in self.manifest["parameters"].items()
        }

    @cached_property
    def client_state(self) -> dict[str, Any]:
        """Data that the trainer saved besides the tensors, such as its progress and its random state."""
        return self._model_file(0, 0)["nbtrain"]

    @property
    def counters(self) -> dict[str, int]:
        """DeepSpeed's counters: {"global_steps", "global_samples", "skipped_steps"}."""
        common = self._model_file(0, 0)
        return {key: common[key] for key in ("global_steps", "global_samples", "skipped_steps")}

    @cached_property
    def global_state(self) -> dict[str, Any]:
        """Values that ZeRO saves besides tensors, such as loss_scaler, read for rank 0; {} without ZeRO."""
        if not self.zero_stage:
            return {}
        saved = self._optimizer_state(0, 0, 0)
        return {key: value for key, value in saved.items() if not isinstance(value, dict | list)}

    @property
    def hyperparameters(self) -> list[dict[str, Any]]:
        """Hyperparameters of the groups that DeepSpeed steps (train/engine/optimizer.py), as they were
        saved.
        """
        if not self.zero_stage:
            base = self._model_file(0, 0)["optimizer"]
        else:
            saved = self._optimizer_state(0, 0, 0)
            base = saved.get("base_optimizer_state") or saved["optimizer_state_dict"]
        return [
            {key: value for key, value in group.items() if key != "params"} for group in base["param_groups"]
        ]

    @property
    def vocab_size(self) -> int:
        """Number of rows of the word embedding that belong to tokens; the other rows are padding."""
        known = self.manifest["vocab_size"]
        return known or self._model_file(0, 0)["universal_checkpoint_info"]["original_vocab_size"]

    def step(self, name: str) -> float:
        """Return the optimizer's step count of one parameter."""
        return self._pieces_of(name, 0)[0].step

    def full(self, name: str, state: str = MASTER) -> torch.Tensor:
        """Return one state of a parameter, such as "exp_avg", unsharded and in fp32."""
        return self.read(name, state).view(self._parameter(name).shape)

    def read(
        self,
        name: str,
        state: str,
        part: TensorPart = WHOLE,
        start: int = 0,
        count: int | None = None,
        rows: int | None = None,
    ) -> torch.Tensor:
        """Return elements [start, start + count) of a part of a parameter, flat, fp32.

        `rows` is the number of rows of the whole tensor in the reader's layout. It is needed for the
        vocabulary's tensors, whose padding depends on the number of tensor ranks; rows that are not stored
        are omitted. Raises CheckpointError for an unknown name, or a state that the parameter's optimizer
        does not keep.
        """
        parameter = self._parameter(name)
        if state not in parameter.states:
            raise CheckpointError(
                f"{self.folder}: has no {state} for {name}; its states are {', '.join(parameter.states)}."
            )
        rank, size, dim = part if part.dim is not None else WHOLE
        total = torch.Size((rows or parameter.shape[0], *parameter.shape[1:])).numel()
        count = total // size - start if count is None else count
        if 1 in (dim, parameter.partition_dim):
            return self._columns(parameter, state, rank, size, start, count)
        # Sharded along the first dimension, the parts are consecutive in the whole tensor.
        first = rank * (total // size) + start
        return self._rows(parameter, state, first, min(first + count, parameter.count))

    def _rows(self, parameter: StoredParameter, state: str, first: int, end: int) -> torch.Tensor:
        """Return elements [first, end) of a whole tensor, sharded along its first dimension or not at all."""
        if first >= end:
            return torch.empty(0)
        size = self.tensor_parallel_size if parameter.partition_dim is not None else 1
        length = parameter.count // size
        found = []
        for rank in range(first // length, (end - 1) // length + 1):
            begin = rank * length
            found.append(self._local(parameter, state, rank, max(first - begin, 0), min(end - begin, length)))
        return found[0] if len(found) == 1 else torch.cat(found)

    def _columns(
        self, parameter: StoredParameter, state: str, rank: int, size: int, start: int, count: int
    ) -> torch.Tensor:
        """Return elements [start, start + count) of a rank's part of a matrix that is sharded by columns."""
        columns = parameter.shape[1]
        ours, theirs = columns // size, columns // self.tensor_parallel_size
        left = rank * ours
        top, bottom = start // ours, -(-(start + count) // ours)
        out = torch.empty(bottom - top, ours)
        for other in range(left // theirs, (left + ours - 1) // theirs + 1):
            begin, end = max(left, other * theirs), min(left + ours, (other + 1) * theirs)
            block = self._local(parameter, state, other, top * theirs, bottom * theirs).view(-1, theirs)
            out[:, begin - left : end - left] = block[:, begin - other * theirs : end - other * theirs]
        return out.flatten()[start - top * ours :][:count]

    def _local(self, parameter: StoredParameter, state: str, rank: int, first: int, end: int) -> torch.Tensor:
        """Return elements [first, end) of the part that tensor rank `rank` of the saved layout held."""
        found = []
        for piece in self._pieces_of(parameter.name, rank):
            begin, stop = max(first, piece.start), min(end, piece.start + piece.count)
            if begin < stop:
                # A parameter without stored moments has not been updated yet.
                values = piece.states.get(state)
                found.append(
                    values[begin - piece.start : stop - piece.start]
                    if values is not None
                    else torch.zeros(stop - begin)
                )
        if sum(len(part) for part in found) != end - first:
            raise CheckpointError(
                f"{self.folder}: {parameter.name} ({state}): the files contain only "
                f"{sum(len(part) for part in found):,} of {end - first:,} elements. Use another checkpoint."
            )
        return found[0] if len(found) == 1 else torch.cat(found)

    def weights(self, name: str) -> torch.Tensor:
        """Return an unsharded weight in the format in which it was trained.

        With ZeRO 3, the weight is its fp32 master, rounded to this format.
        """
        dim = self._parameter(name).partition_dim
        if self.zero_stage == 3:
            return self.full(name).to(self.dtype)
        if dim is None or self.tensor_parallel_size == 1:
            return self._module(name, 0)
        return torch.cat([self._module(name, rank) for rank in range(self.tensor_parallel_size)], dim)

    def _module(self, name: str, tensor: int) -> torch.Tensor:
        if self.pipeline_parallel_size == 1:
            return self._model_file(0, tensor)["module"][name]
        return self._piped[tensor][name]

    @cached_property
    def _piped(self) -> dict[int, dict[str, torch.Tensor]]:
        """Return {tensor rank: {canonical name: weight}} of a pipeline, which writes one file per layer."""
        found: dict[int, dict[str, torch.Tensor]] = {rank: {} for rank in range(self.tensor_parallel_size)}
        for file, entry in sorted(self.manifest["files"].items()):
            if (matched := LAYER_FILE.match(file)) is None:
                continue
            index = int(matched[1])
            # A tied output layer holds a second copy of the word embedding.
            tied = self.is_tied and index in (0, self.num_layers + 3)
            layer = "tied_modules.word_embeddings" if tied else str(index)
            for inner, weight in self._open(file).items():
                name = canonical_name(f"{layer}.{inner}", self.num_layers)
                found[entry["rank"][2]].setdefault(name, weight)
        return found

    def _parameter(self, name: str) -> StoredParameter:
        try:
            return self.parameters[name]
        except KeyError:
            raise CheckpointError(f"{self.folder}: holds no parameter {name}.") from None

    def _pieces_of(self, name: str, tensor: int) -> list[_Piece]:
        coordinate = (self._parameter(name).stage, tensor)
        if coordinate not in self._pieces:
            pieces: dict[str, list[_Piece]] = {}
            read = (self._pieces_0, self._pieces_1, self._pieces_1, self._pieces_3)[self.zero_stage]
            for found, piece in read(*coordinate):
                pieces.setdefault(found, []).append(piece)
            self._pieces[coordinate] = pieces
        try:
            return self._pieces[coordinate][name]
        except KeyError:
            raise CheckpointError(f"{self.folder}: its optimizer files have no state for {name}.") from None

    def _pieces_0(self, pipeline: int, tensor: int) -> Iterator[tuple[str, _Piece]]:
        common = self._model_file(pipeline, tensor)
        optimizer, order = common["optimizer"], common["nbtrain"]["optimizer_names"]
        for group, names in zip(optimizer["param_groups"], order, strict=True):
            for number, name in zip(group["params"], names, strict=True):
                # Before the first step, torch's optimizer has no state.
                state = optimizer["state"].get(number, {})
                whole = {MASTER: self._module(name, tensor), **_moments(state)}
                flat = {key: value.reshape(-1) for key, value in whole.items()}
                yield name, _Piece(0, flat[MASTER].numel(), flat, float(state.get("step", 0)))

    def _pieces_1(self, pipeline: int, tensor: int) -> Iterator[tuple[str, _Piece]]:
        reached: dict[str, int] = {}
        for data in range(self.data_axis_size):
            saved = self._optimizer_state(pipeline, data, tensor)
            base = saved["base_optimizer_state"]
            for number, mapping in enumerate(saved["param_slice_mappings"]):
                (key,) = base["param_groups"][number]["params"]
                state = base["state"].get(key, {})
                whole = {MASTER: saved["single_partition_of_fp32_groups"][number], **_moments(state)}
                for found, address in mapping.items():
                    name = self._canonical(found)
                    here = slice(address.start, address.start + address.numel)
                    flat = {kind: values[here] for kind, values in whole.items()}
                    step = _step(state, base["param_groups"][number])
                    yield name, _Piece(reached.get(name, 0), address.numel, flat, step)
                    reached[name] = reached.get(name, 0) + address.numel

    def _pieces_3(self, pipeline: int, tensor: int) -> Iterator[tuple[str, _Piece]]:
        shapes = self._model_file(pipeline, tensor)["param_shapes"]
        for data in range(self.data_axis_size):
            saved = self._optimizer_state(pipeline, data, tensor)
            base = saved["optimizer_state_dict"]
            groups = {key: group for group in base["param_groups"] for key in group["params"]}
            for number, names in enumerate(shapes):
                state = base["state"].get(number, {})
                whole = {MASTER: saved["fp32_flat_groups"][number], **_moments(state)}
                offset = 0
                for found, shape in names.items():
                    share = -(-shape.numel() // self.data_axis_size)
                    count = min(share, shape.numel() - data * share)
                    if count > 0:
                        flat = {kind: values[offset : offset + count] for kind, values in whole.items()}
                        step = _step(state, groups.get(number, {}))
                        yield self._canonical(found), _Piece(data * share, count, flat, step)
                    offset += share

    def _canonical(self, found: str) -> str:
        return found if self.pipeline_parallel_size == 1 else canonical_name(found, self.num_layers)

    def _optimizer_state(self, pipeline: int, data: int, tensor: int) -> dict[str, Any]:
        return self._open(self._file(OPTIMIZER_FILE, (pipeline, data, tensor)))["optimizer_state_dict"]

    def _model_file(self, pipeline: int, tensor: int) -> dict[str, Any]:
        return self._open(self._file(MODEL_FILE, (pipeline, 0, tensor)))

    def _file(self, pattern: re.Pattern[str], rank: tuple[int, int, int]) -> str:
        try:
            return self._names[pattern, rank]
        except KeyError:
            raise CheckpointError(
                f"{self.folder}: has no file of rank {rank} whose name matches {pattern.pattern}."
            ) from None

    @cached_property
    def _names(self) -> dict[tuple[re.Pattern[str], tuple[int, ...]], str]:
        return {
            (pattern, tuple(entry["rank"])): name
            for name, entry in self.manifest["files"].items()
            for pattern in (OPTIMIZER_FILE, MODEL_FILE)
            if pattern.search(name)
        }

    def _open(self, name: str) -> Any:
        if name not in self._files:
            self._files[name] = load_file(self.folder / name, mmap=True)
        return self._files[name]


def _step(state: dict[str, Any], group: dict[str, Any]) -> float:
    """Return an optimizer's step count; 0 before the first step.

    Torch stores it with the moments (`state`), DeepSpeed with the parameter group (`group`).
    """
    return float(state.get("step", group.get("step", 0)))


def _moments(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {moment: state[moment] for moment in (*ADAM, *MUON) if moment in state}
