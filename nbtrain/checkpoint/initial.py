"""`init_from`: starts a new run from the weights of another run or a model's folder, sharded to the run's
layout.

The weights are loaded into the optimizer's masters once the engine exists, like a checkpoint of another
layout. The masters thus keep the precision of the file. If the weights were loaded before the engine exists,
they would first be rounded to the format in which the model computes. Each rank reads its own parts,
PIECE_ELEMENTS at a time.
"""

import logging

import torch

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.text.amounts import count
from nbtrain.base.workspace import display, resolve
from nbtrain.checkpoint import reshape
from nbtrain.checkpoint.files import manifest as manifests
from nbtrain.checkpoint.live.live_run import LiveRun
from nbtrain.checkpoint.weights.folder_weights import PIECE_ELEMENTS
from nbtrain.checkpoint.weights.four_bits import load_four_bits
from nbtrain.checkpoint.weights.masters import MadeWhole, Weights
from nbtrain.checkpoint.weights.opened import weights_of
from nbtrain.checkpoint.weights.peft_adapters import read_adapters
from nbtrain.checkpoint.weights.store import MASTER, WHOLE, StoredParameter
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.names import OF_VOCABULARY, trained_rows_of
from nbtrain.parallel.agreement import gather_objects
from nbtrain.pretrained.peft import notes_of
from nbtrain.pretrained.start import (
    RunStart,
    Start,
    fit,
    hashes_of,
    identity_of,
    open_start,
    refuse_changed,
)

logger = logging.getLogger(__name__)


def load_initial(live: LiveRun, is_fresh: bool = True) -> None:
    """Load the weights of `init_from`, and report them. All ranks call it together.

    With adapters, the weights are loaded into the frozen weights at every start, because checkpoints do not
    hold frozen weights. If `is_fresh` is true (the run does not resume from a checkpoint), its trained token
    rows are also loaded from `init_from`, and its adapters from lora.init_from. Raises CheckpointError if the
    weights cannot be used, do not fit the run, or have changed since the run was submitted.
    """
    start, weights = _opened(live)
    config = live.config
    tensor = (config.topology.coordinate(live.world.rank)[2], config.parallel.tensor_parallel_size)
    how = (tensor, config.padded_vocab_size, PIECE_ELEMENTS)
    if config.lora is None:
        reshape.load_masters(live.engine, weights, *how)
    else:
        reshape.load_frozen(live.engine, weights, *how)
        load_four_bits(live.engine, weights, tensor, PIECE_ELEMENTS)
    _tell(live, start)
    if config.lora is None or not is_fresh:
        return
    if tokens := GPTConfig.of(config).trained_tokens:
        rows = RowsOfTokens(weights, tokens)
        reshape.load_masters(live.engine, rows, *how, names=rows.parameters)
    if (folder := config.lora.init_from) is not None:
        adapters = read_adapters(resolve(folder), config)
        reshape.load_masters(live.engine, adapters, *how, names=adapters.parameters)
        live.tell("checkpoint", f"loaded the adapters in {folder}", step=0)
        for note in notes_of(resolve(folder), config) if live.events is not None else ():
            logger.warning("lora.init_from: %s", note)
            live.tell("warning", f"lora.init_from: {note}")


class RowsOfTokens(MadeWhole):
    """The initial values of the token rows that a run trains along with adapters. `tokens` are the ids of
    these rows, ascending.
    """

    def __init__(self, weights: Weights, tokens: tuple[int, ...]):
        self.weights, self.tokens = weights, tokens
        self.folder, self.dtype, self.vocab_size = weights.folder, weights.dtype, weights.vocab_size
        self._matrices = {trained_rows_of(name): name for name in weights.parameters if name in OF_VOCABULARY}

    @property
    def parameters(self) -> dict[str, StoredParameter]:
        """Shapes of the trained rows, as StoredParameters by the canonical name of these rows."""
        return {
            name: StoredParameter(
                name, (len(self.tokens), *self.weights.parameters[matrix].shape[1:]), None, 0
            )
            for name, matrix in self._matrices.items()
        }

    def full(self, name: str) -> torch.Tensor:
        """Return the initial values of the trained rows `name`: rows of a vocabulary matrix, in fp32."""
        matrix = self._matrices[name]
        width = self.weights.parameters[matrix].shape[1]
        read = (self.weights.read(matrix, MASTER, WHOLE, one * width, width) for one in self.tokens)
        return torch.stack(list(read))


def start_sha256(live: LiveRun) -> str:
    """Return the SHA-256 of a run's initial weights, followed by the SHA-256 of its initial adapters, if any.

    These hashes were recorded at submission. If none were recorded, the files are hashed as they are now.
    """
    known = files.read_json(live.run.init_from_json)
    if known is None:
        known = hashes_of(open_start(live.config, live.run), live.config)
    return known["sha256"] + known.get("adapters_sha256", "")


def _opened(live: LiveRun) -> tuple[Start, Weights]:
    config = live.config
    start = open_start(config, live.run)
    found = fit(start, config)
    if found.problems:
        raise CheckpointError(
            f"init_from: {start.path}: does not fit this run: "
            f"{'; '.join(f'{key} {words}' for key, words in found.problems)}."
        )
    known = files.read_json(live.run.init_from_json)
    if known is not None:
        refuse_changed(start, known["sha256"])
    _refuse_damaged(live, start)
    return start, weights_of(start, config)


def _tell(live: LiveRun, start: Start) -> None:
    config = live.config
    message = f"starts from {config.init_from} ({start.title}, {count(start.count)} parameters"
    message += ")" if isinstance(start, RunStart) else f" in {', '.join(start.dtypes)})"
    if live.events is not None:
        logger.info("%s", message)
        for note in fit(start, config).notes:
            logger.warning("init_from: %s", note)
            live.tell("warning", f"init_from: {note}")
    live.tell("checkpoint", message, step=0, sha256=identity_of(start))


def _refuse_damaged(live: LiveRun, start: Start) -> None:
    """Raise CheckpointError on all ranks if a checkpoint's files differ from its manifest."""
    if not isinstance(start, RunStart):
        return
    shares = gather_objects(manifests.content_problem(start.path, live.world.rank, live.world.size))
    if reason := next((share for share in shares if share), None):
        raise CheckpointError(
            f"init_from: {display(start.path)}: {reason}. Name another checkpoint with init_step."
        )
