"""Converts a Megatron tree to one consolidated file, from which a run can start.

If the files do not determine the order of query, key and value, the order given by the user is used, or else
the order with the lower loss on a text that the model should know.
"""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from nbtrain.base.errors import CheckpointError
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.checkpoint.pretrained.compare import OurModel
from nbtrain.checkpoint.pretrained.export import write_consolidated
from nbtrain.checkpoint.pretrained.full_parameters import FullParameters
from nbtrain.checkpoint.pretrained.megatron_tree import MegatronWeights
from nbtrain.config.arithmetic.checkpoint_bytes import SPARE_BYTES
from nbtrain.config.load import validate
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import Located
from nbtrain.pretrained.megatron import ORDERS, MegatronTree, is_gelu_of_erf

# Smallest conclusive difference of the losses in nats per token; with the wrong order, a trained model's loss
# is higher by more than this.
LEAST_DIFFERENCE = 0.1


def convert(
    tree: MegatronTree, to: Path, order: str | None, tokens: list[int] | None
) -> Iterator[dict[str, Any]]:
    """Write a tree's weights to the file `to`. Yield answers of the kind "progress", then one of the kind
    "end".

    `tokens` are the token ids of a text. Raises CheckpointError if the order is unknown and neither `order`
    nor `tokens` is given, or if the disk has no room for the weights.
    """
    weights = MegatronWeights(tree, order or ORDERS[0])
    _refuse_a_full_disk(weights, to)
    notes = []
    if is_gelu_of_erf(weights.args):
        notes.append(
            "bias_gelu_fusion was off: the model was trained with the exact GELU (erf), and nbtrain computes "
            "the tanh form; outputs differ by about 0.001."
        )
    config = run_of(weights)
    if weights.is_ambiguous and order is None:
        chosen, words = _choose(tree, config, tokens)
        weights = MegatronWeights(tree, chosen)
        notes.append(words)
    iteration = weights.args.get("iteration")
    iteration = iteration if type(iteration) is int else 0
    for done, total in write_consolidated(FullParameters(weights), config, to, iteration):
        yield {"kind": "progress", "stage": "write", "done": done, "total": total}
    yield {"kind": "end", "order": weights.order, "notes": notes}


def _refuse_a_full_disk(weights: MegatronWeights, to: Path) -> None:
    count = sum(math.prod(parameter.shape) for parameter in weights.parameters.values())
    needed = count * weights.dtype.itemsize + SPARE_BYTES
    free = shutil.disk_usage(to.parent).free
    if free < needed:
        # `to` is in a temporary folder, so the message names the folder in which the result will be.
        raise CheckpointError(
            f"{display(to.parent.parent)}: the weights need {amounts.size(needed)}, but only "
            f"{amounts.size(free)} is free. Free up space, or set NBTRAIN_DATA to a folder on another disk."
        )


def run_of(weights: MegatronWeights) -> RunConfig:
    """Return a configuration with the model of a tree; its other settings are placeholders."""
    said = {
        "name": "megatron",
        "model": weights.model.model_dump(),
        "tokenizer": {"name": "megatron", "vocab_size": weights.vocab_size},
        "data": {"name": "megatron"},
        "batch": {"micro_batch_size": 1, "global_batch_size": 1, "train_tokens": 1},
        "lr_schedule": {"lr": 1e-4},
    }
    return validate(Located(said, {}), display(weights.folder))


def _choose(tree: MegatronTree, config: RunConfig, tokens: list[int] | None) -> tuple[str, str]:
    """Return (the row order that gives `tokens` the lower loss, a note for the user with both losses)."""
    where = display(tree.folder)
    if not tokens:
        raise CheckpointError(
            f"{where}: its files do not record the order of the rows of query, key and value, which "
            "Megatron-DeepSpeed changed in December 2024 (676a482c). Set --qkv-order groups (before) or "
            "thirds (after), or pass a text that the model knows with --text FILE, and the order that "
            "gives the text the lower loss is used."
        )
    if len(tokens) < 2:
        raise CheckpointError(f"{where}: the text has one token; at least 2 are needed. Use a longer text.")
    if (highest := max(tokens)) >= config.tokenizer.vocab_size:
        raise CheckpointError(
            f"{where}: the text has the token id {highest:,}, but the model has "
            f"{config.tokenizer.vocab_size:,} rows: the text was encoded with another model's tokenizer. "
            "Name the model's own tokenizer (tokenizer.path=FOLDER)."
        )
    ids = torch.tensor(tokens[: config.model.resolved_max_position_embeddings])
    losses = {order: loss_of(MegatronWeights(tree, order), config, ids) for order in ORDERS}
    words = ", ".join(f"{order} {loss:.3f}" for order, loss in losses.items())
    better, worse = sorted(losses, key=lambda order: losses[order])
    if not losses[worse] - losses[better] >= LEAST_DIFFERENCE:
        raise CheckpointError(
            f"{where}: both orders of query, key and value give the same loss on the text ({words}), so the "
            "right order remains unknown. Use another text, or set --qkv-order groups or thirds."
        )
    return (
        better,
        f"query, key and value are read in the order {better}, with which the text has the lower mean loss "
        f"({words}).",
    )


@torch.no_grad()
def loss_of(weights: MegatronWeights, config: RunConfig, tokens: torch.Tensor) -> float:
    """Return the mean loss of a text in nats per token, with one layer in memory at a time."""
    model = OurModel(FullParameters(weights, torch.float32), config)
    hidden = model.hidden(tokens)
    for index in range(config.model.num_layers):
        hidden = model.layer(index, hidden)
    logits = model.logits(model.final(hidden[:-1]), 0, weights.vocab_size)
    return float(F.cross_entropy(logits, tokens[1:]))
