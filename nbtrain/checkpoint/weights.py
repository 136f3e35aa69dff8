"""The weights of a checkpoint alone, for a model that is not trained further."""

from pathlib import Path

import torch

from nbtrain.base.checkpoint_files import newest_whole
from nbtrain.base.errors import CheckpointError
from nbtrain.base.rundir import RunDir
from nbtrain.base.workspace import display
from nbtrain.checkpoint import manifest as manifests
from nbtrain.checkpoint import reshape
from nbtrain.checkpoint.store import CheckpointStore


def load_model_weights(
    run_dir: str | Path,
    step: int | None = None,
    unpadded: bool = False,
    masters: bool = False,
    padded_vocab_size: int | None = None,
) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint of any layout, whole, by canonical name, on the CPU; no process group is
    needed.

    In the format they were trained in, or with `masters` the fp32 masters of the optimizer. step None is the
    newest whole checkpoint. The word embedding has as many rows as in the layout that saved it; with
    `unpadded` only the rows of tokens; with padded_vocab_size that many rows, new rows being 0. Raises
    CheckpointError if there is none or it is not whole.
    """
    run = RunDir(run_dir)
    if step is None:
        step, skipped = newest_whole(run, manifests.problem)
        if step is None:
            reasons = "".join(f"\n  global_step{number}: {reason}" for number, reason in skipped)
            raise CheckpointError(f"{run.model}: holds no whole checkpoint; train the run first.{reasons}")
    elif reason := manifests.problem(run.checkpoint(step)):
        known = ", ".join(str(known) for known in run.checkpoint_steps()) or "none"
        raise CheckpointError(f"{display(run.checkpoint(step))}: {reason}. Checkpoints there: {known}.")
    store = CheckpointStore(run.checkpoint(step))
    weights = {name: store.full(name) if masters else store.weights(name) for name in store.parameters}
    rows = store.vocab_size if unpadded else padded_vocab_size
    if rows is not None:
        words = weights[reshape.WORD_EMBEDDINGS]
        missing = max(rows - len(words), 0)
        weights[reshape.WORD_EMBEDDINGS] = torch.cat([words[:rows], words.new_zeros(missing, words.shape[1])])
    return weights
