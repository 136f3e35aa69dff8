"""`init_from`: a fresh run gets the weights of a model's folder, cut to its layout while they are read.

They go into the optimizer's masters, once the engine is there, as a checkpoint of another layout does: in the
file's own precision, whatever the format that the model computes in. Before the engine is made they would be
rounded to that format first. Each rank reads its own parts, PIECE_ELEMENTS at a time.
"""

import logging

from nbtrain.base import files
from nbtrain.base.amounts import count
from nbtrain.base.errors import CheckpointError
from nbtrain.checkpoint import reshape
from nbtrain.checkpoint.live_run import LiveRun
from nbtrain.checkpoint.pretrained.reading import PIECE_ELEMENTS, FolderWeights
from nbtrain.pretrained.fit import fit, open_initial

logger = logging.getLogger(__name__)


def load_initial(live: LiveRun) -> None:
    """Load what `init_from` names, and report it. Called by all ranks together.

    Raises CheckpointError if it cannot be used, does not fit the run, or has changed since the run was
    submitted.
    """
    config = live.config
    model = open_initial(config)
    found = fit(model, config)
    if found.problems:
        raise CheckpointError(
            f"init_from: {model.path}: does not fit this run: "
            f"{'; '.join(f'{key} {words}' for key, words in found.problems)}."
        )
    known = files.read_json(live.run.init_from_json)
    if known is not None and known["sha256"] != model.folder.sha256:
        raise CheckpointError(
            f"init_from: {model.path}: has changed since the run was submitted: its config.json or the heads "
            "of its files are others. Restore the folder, or train from the new one under another name."
        )
    tensor = (config.topology.coordinate(live.world.rank)[2], config.parallel.tensor_parallel_size)
    weights = FolderWeights(model, config.tokenizer.vocab_size)
    reshape.load_masters(live.engine, weights, tensor, config.padded_vocab_size, PIECE_ELEMENTS)
    message = (
        f"starts from {config.init_from} ({model.title}, {count(model.count)} parameters in "
        f"{', '.join(model.dtypes)})"
    )
    if live.events is not None:
        logger.info("%s", message)
        for note in found.notes:
            logger.warning("init_from: %s", note)
            live.tell("warning", f"init_from: {note}")
    live.tell("checkpoint", message, step=0, sha256=model.folder.sha256)
