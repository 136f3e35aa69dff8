"""Opens the weights of a checkpoint, or of the model that `init_from` names, to be read by any layout.

Both functions return weights that are read by canonical name and chunk by chunk:

    open_checkpoint(run, step)    a checkpoint; for a run with adapters, merged with the frozen weights
    weights_of(start, config)     a model folder or another run's checkpoint, with this run's vocabulary
"""

from pathlib import Path

import torch

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.weights.folder_weights import PIECE_ELEMENTS, FolderWeights
from nbtrain.checkpoint.weights.four_bits import FourBitWeights
from nbtrain.checkpoint.weights.masters import Weights
from nbtrain.checkpoint.weights.merged import MergedWeights
from nbtrain.checkpoint.weights.store import MASTER, WHOLE, CheckpointStore, StoredParameter, TensorPart
from nbtrain.config.load import load_resolved
from nbtrain.config.schema import RunConfig
from nbtrain.model.names import OF_VOCABULARY, is_adapter
from nbtrain.pretrained.start import RunStart, Start, open_start, refuse_changed


def open_checkpoint(run: RunDir, step: int) -> CheckpointStore | MergedWeights:
    """Open a checkpoint of a run, with its adapters merged into the frozen weights.

    Raises CheckpointError if the frozen weights are missing or have changed since the adapters were trained.
    """
    store = CheckpointStore(run.checkpoint(step))
    if not any(map(is_adapter, store.parameters)):
        return store
    config = load_resolved(run.config_yaml)
    start = open_start(config, run)
    if (known := store.manifest["init_from"]) is not None:
        refuse_changed(start, known["sha256"])
    base = weights_of(start, config)
    if config.lora is not None and config.lora.load_in_4bit:
        base = FourBitWeights(base, config)
    return MergedWeights(base, store, config)


def weights_of(start: Start, config: RunConfig) -> Weights:
    """Open the weights that a run starts from, with one vocabulary row for each of the run's token ids."""
    if isinstance(start, RunStart):
        return RunWeights(open_checkpoint(start.run, start.step), config.tokenizer.vocab_size)
    return FolderWeights(start, config.tokenizer.vocab_size)


class RunWeights:
    """A checkpoint's masters. The vocabulary's matrices have `vocab_size` rows; rows that the checkpoint
    lacks are the mean of its rows.
    """

    def __init__(self, store: CheckpointStore | MergedWeights, vocab_size: int):
        self.store, self.vocab_size = store, vocab_size
        self._means: dict[str, torch.Tensor] = {}

    @property
    def folder(self) -> Path:
        return self.store.folder

    @property
    def dtype(self) -> torch.dtype:
        """Format in which the checkpoint was trained."""
        return self.store.dtype

    @property
    def parameters(self) -> dict[str, StoredParameter]:
        """Shapes of the unsharded parameters by name, without vocabulary padding, in the model's order."""
        return {
            name: StoredParameter(name, (self.vocab_size, *one.shape[1:]), None, 0)
            if name in OF_VOCABULARY
            else one
            for name, one in self.store.parameters.items()
        }

    def read(
        self,
        name: str,
        state: str = MASTER,
        part: TensorPart = WHOLE,
        start: int = 0,
        count: int | None = None,
        rows: int | None = None,
    ) -> torch.Tensor:
        """Return elements [start, start + count) of a part of a parameter, like CheckpointStore.read."""
        assert state == MASTER, "initial weights have no moments"
        if name not in OF_VOCABULARY:
            return self.store.read(name, state, part, start, count, rows)
        width = torch.Size(self.store.parameters[name].shape[1:]).numel()
        rank, size, dim = part if part.dim is not None else WHOLE
        assert dim != 1, "the vocabulary is sharded by rows"
        total = (rows or self.vocab_size) * width // size
        count = total - start if count is None else count
        # Sharded along the first dimension, the parts are consecutive in the whole tensor.
        first = rank * total + start
        end = min(first + count, self.vocab_size * width)
        known = min(self.store.vocab_size, self.vocab_size) * width
        parts = []
        if first < min(end, known):
            parts.append(self.store.read(name, state, WHOLE, first, min(end, known) - first))
        if (begin := max(first, known)) < end:
            top, bottom = begin // width, -(-end // width)
            block = self._mean(name).repeat(bottom - top)
            parts.append(block[begin - top * width : end - top * width])
        return torch.cat(parts) if parts else torch.empty(0)

    def _mean(self, name: str) -> torch.Tensor:
        """Return the mean row of the checkpoint's tokens."""
        if name not in self._means:
            rows, width = self.store.vocab_size, torch.Size(self.store.parameters[name].shape[1:]).numel()
            total, step = torch.zeros(width, dtype=torch.float64), max(PIECE_ELEMENTS // width, 1)
            for top in range(0, rows, step):
                count = (min(top + step, rows) - top) * width
                block = self.store.read(name, MASTER, WHOLE, top * width, count)
                total += block.view(-1, width).sum(0, dtype=torch.float64)
            self._means[name] = (total / rows).float()
        return self._means[name]
