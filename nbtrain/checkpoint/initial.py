"""`init_from`: a fresh run gets the weights of another run or of a model's folder, cut to its layout.

They go into the optimizer's masters, once the engine is there, as a checkpoint of another layout does: in the
file's own precision, whatever the format that the model computes in. Before the engine is made they would be
rounded to that format first. Each rank reads its own parts, PIECE_ELEMENTS at a time.
"""

import logging
from pathlib import Path

import torch

from nbtrain.base import files
from nbtrain.base.amounts import count
from nbtrain.base.errors import CheckpointError
from nbtrain.base.workspace import display
from nbtrain.checkpoint import manifest as manifests
from nbtrain.checkpoint import reshape
from nbtrain.checkpoint.live_run import LiveRun
from nbtrain.checkpoint.pretrained.reading import PIECE_ELEMENTS, FolderWeights
from nbtrain.checkpoint.reshape import Weights
from nbtrain.checkpoint.store import MASTER, WHOLE, CheckpointStore, StoredParameter, TensorPart
from nbtrain.config.schema import RunConfig
from nbtrain.model.names import OF_VOCABULARY
from nbtrain.parallel.agreement import gather_objects
from nbtrain.pretrained.fit import fit
from nbtrain.pretrained.start import RunStart, Start, identity_of, open_start

logger = logging.getLogger(__name__)


def load_initial(live: LiveRun) -> None:
    """Load what `init_from` names, and report it. Called by all ranks together.

    Raises CheckpointError if it cannot be used, does not fit the run, or has changed since the run was
    submitted.
    """
    config = live.config
    start = open_start(config, live.run)
    found = fit(start, config)
    if found.problems:
        raise CheckpointError(
            f"init_from: {start.path}: does not fit this run: "
            f"{'; '.join(f'{key} {words}' for key, words in found.problems)}."
        )
    known = files.read_json(live.run.init_from_json)
    if known is not None and known["sha256"] != identity_of(start):
        what = (
            "the checkpoint's files"
            if isinstance(start, RunStart)
            else "its config.json or the heads of its files"
        )
        raise CheckpointError(
            f"init_from: {start.path}: has changed since the run was submitted: {what} are others. Restore "
            "it, or train from the new one under another name."
        )
    _refuse_damaged(live, start)
    tensor = (config.topology.coordinate(live.world.rank)[2], config.parallel.tensor_parallel_size)
    weights = weights_of(start, config)
    reshape.load_masters(live.engine, weights, tensor, config.padded_vocab_size, PIECE_ELEMENTS)
    message = f"starts from {config.init_from} ({start.title}, {count(start.count)} parameters"
    message += ")" if isinstance(start, RunStart) else f" in {', '.join(start.dtypes)})"
    if live.events is not None:
        logger.info("%s", message)
        for note in found.notes:
            logger.warning("init_from: %s", note)
            live.tell("warning", f"init_from: {note}")
    live.tell("checkpoint", message, step=0, sha256=identity_of(start))


def _refuse_damaged(live: LiveRun, start: Start) -> None:
    """Raises CheckpointError, on all ranks, if a checkpoint's files are not what its manifest says."""
    if not isinstance(start, RunStart):
        return
    shares = gather_objects(manifests.content_problem(start.path, live.world.rank, live.world.size))
    if reason := next((share for share in shares if share), None):
        raise CheckpointError(
            f"init_from: {display(start.path)}: {reason}. Name another checkpoint with init_step."
        )


def weights_of(start: Start, config: RunConfig) -> Weights:
    """The parameters of a start, with the run's vocabulary."""
    if isinstance(start, RunStart):
        return RunWeights(CheckpointStore(start.path), config.tokenizer.vocab_size)
    return FolderWeights(start, config.tokenizer.vocab_size)


class RunWeights:
    """A checkpoint's masters with the rows of `vocab_size` tokens: new rows are the mean of the old ones."""

    def __init__(self, store: CheckpointStore, vocab_size: int):
        self.store, self.vocab_size = store, vocab_size
        self._means: dict[str, torch.Tensor] = {}

    @property
    def folder(self) -> Path:
        return self.store.folder

    @property
    def dtype(self) -> torch.dtype:
        """The format that it was trained in."""
        return self.store.dtype

    @property
    def parameters(self) -> dict[str, StoredParameter]:
        """By canonical name, in the model's order; whole, without padding."""
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
        """Elements [start, start + count) of a part of a parameter, flat, fp32; as CheckpointStore.read."""
        assert state == MASTER, "a start has no moments"
        if name not in OF_VOCABULARY:
            return self.store.read(name, state, part, start, count, rows)
        width = torch.Size(self.store.parameters[name].shape[1:]).numel()
        rank, size, dim = part if part.dim is not None else WHOLE
        assert dim != 1, "the vocabulary's rows are cut"
        total = (rows or self.vocab_size) * width // size
        count = total - start if count is None else count
        # Cut along the first dimension, the parts lie end to end in the whole.
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
        """The mean row of the tokens that the checkpoint knows."""
        if name not in self._means:
            rows, width = self.store.vocab_size, torch.Size(self.store.parameters[name].shape[1:]).numel()
            total, step = torch.zeros(width, dtype=torch.float64), max(PIECE_ELEMENTS // width, 1)
            for top in range(0, rows, step):
                count = (min(top + step, rows) - top) * width
                block = self.store.read(name, MASTER, WHOLE, top * width, count)
                total += block.view(-1, width).sum(0, dtype=torch.float64)
            self._means[name] = (total / rows).float()
        return self._means[name]
