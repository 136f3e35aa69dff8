"""Loads the weights of a checkpoint without the optimizer's state, for a model that is not trained
further.
"""

from pathlib import Path

import torch

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.files.manifest import whole_step
from nbtrain.checkpoint.weights.opened import open_checkpoint
from nbtrain.model.names import OF_VOCABULARY


def load_model_weights(
    run_dir: str | Path,
    step: int | None = None,
    unpadded: bool = False,
    masters: bool = False,
    padded_vocab_size: int | None = None,
) -> dict[str, torch.Tensor]:
    """Return the unsharded weights of a checkpoint by canonical name, on the CPU, with adapters merged.

    The checkpoint may have any layout. If `step` is None, the newest complete checkpoint is read. The weights
    are in the format in which they were trained; with `masters` they are the optimizer's fp32 masters.

    Word embedding and output layer have as many rows as were saved. With `unpadded`, they have only the rows
    of tokens. With `padded_vocab_size`, they have that number of rows, and new rows are 0. No process group
    is needed. Raises CheckpointError if the checkpoint is not complete, or if the run has no complete
    checkpoint.
    """
    run = RunDir(run_dir)
    store = open_checkpoint(run, whole_step(run, step)[0])
    weights = {name: store.full(name) if masters else store.weights(name) for name in store.parameters}
    rows = store.vocab_size if unpadded else padded_vocab_size
    if rows is not None:
        for name in OF_VOCABULARY & set(weights):
            words = weights[name]
            missing = max(rows - len(words), 0)
            weights[name] = torch.cat([words[:rows], words.new_zeros(missing, words.shape[1])])
    return weights
