"""Loads a run's model for generation from a checkpoint of any layout, sharded across tensor-parallel ranks.

Each rank reads its own shard of every weight by canonical name (checkpoint/weights/store.py), whatever layout
wrote the checkpoint. On a CPU the weights are fp32 by default, and stored in a layout that suits products
with few rows (packed.py). On a GPU they keep the training format by default.
"""

import dataclasses
from dataclasses import dataclass

import torch

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.checkpoint.files.manifest import whole_step
from nbtrain.checkpoint.own_layer import recorded_layer
from nbtrain.checkpoint.weights.merged import MergedWeights
from nbtrain.checkpoint.weights.opened import open_checkpoint
from nbtrain.checkpoint.weights.store import DTYPES, CheckpointStore
from nbtrain.config.load import load_resolved
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.tokenizer.origin import end_ids
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.inference.packed import pack
from nbtrain.model.custom_layer import LayerFunction
from nbtrain.model.gpt import GPT
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.initialization import Unset
from nbtrain.model.names import OF_VOCABULARY
from nbtrain.parallel.groups import ALONE, Group
from nbtrain.parallel.layout import ModelParallel
from nbtrain.parallel.tensor import partition_dim


@dataclass(frozen=True)
class Loaded:
    """A loaded model with everything needed to generate text."""

    model: GPT
    tokenizer: Tokenizer
    end_ids: frozenset[int]
    """Ids of the tokens that end a text."""
    step: int
    dtype: str
    passed_over: list[tuple[int, str]]
    """Newer checkpoints that were skipped as incomplete: (step, reason)."""


def load(
    run: RunDir,
    step: int | None = None,
    dtype: str = "auto",
    group: Group = ALONE,
    device: torch.device | str = "cpu",
    is_checked: bool = False,
) -> Loaded:
    """Load a run's model, or this rank's shard of it, from the checkpoint of `step`.

    Without a step, the newest complete checkpoint is loaded. `dtype` is fp32, bf16, fp16 or auto, which means
    fp32 on a CPU and the training format on a GPU. With `is_checked`, the checksums of the given step are not
    compared again. Raises CheckpointError if no checkpoint is complete, DataError if the tokenizer is not the
    one used in training, and ConfigError if the model cannot be sharded across the ranks of `group`.
    """
    config = load_resolved(run.config_yaml)
    tokenizer = Tokenizer.load(tokenizer_dir(config.tokenizer.name))
    passed_over: list[tuple[int, str]] = []
    if step is None or not is_checked:
        step, passed_over = whole_step(run, step)
    store = open_checkpoint(run, step)
    tokenizer.check_trained_with(store.manifest["tokenizer_sha256"])
    name = dtype
    if dtype == "auto":
        name = "fp32" if torch.device(device).type == "cpu" else config.precision.dtype
    model = model_of(config, group, recorded_layer(run, config, store.manifest))
    fill(model, store)
    model = model.to(device=device, dtype=DTYPES[name]).eval().requires_grad_(False)
    pack(model)
    return Loaded(model, tokenizer, end_ids(run, tokenizer), step, name, passed_over)


def model_of(config: RunConfig, group: Group = ALONE, layer_function: LayerFunction | None = None) -> GPT:
    """Build a run's GPT with unset weights, sharded across `group`, for inference.

    `layer_function` builds the blocks if the run uses its own layer instead of nbtrain's.
    """
    plain = GPTConfig.of(config)
    rows = -(-plain.padded_vocab_size // group.size) * group.size
    plain = dataclasses.replace(
        plain,
        padded_vocab_size=rows,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_backend="auto",
        autocast=False,
        checkpoint_interval_layers=0,
        selective_recompute=False,
        fp8=False,
        fpdt_chunk_tokens=0,
        # LoRA adapters are merged into the weights during loading.
        lora=None,
    )
    try:
        return GPT(plain, ModelParallel(tensor=group), Unset(), layer_function)
    except ValueError as error:
        raise ConfigError(f"tensor_parallel_size = {group.size}: {error}") from None


@torch.no_grad()
def fill(model: GPT, store: CheckpointStore | MergedWeights) -> None:
    """Load a checkpoint's weights, or this rank's shard of them, into the model."""
    group = model.parallel.tensor
    for name, parameter in model.named_parameters():
        weight = store.weights(name)
        if name in OF_VOCABULARY:
            # The padding of the vocabulary depends on the number of tensor ranks, so it may differ here.
            rows = model.config.padded_vocab_size
            weight = weight[:rows]
            if len(weight) < rows:
                weight = torch.cat([weight, weight.new_zeros(rows - len(weight), *weight.shape[1:])])
        if (dim := partition_dim(parameter)) is not None and group.size > 1:
            size = weight.shape[dim] // group.size
            weight = weight.narrow(dim, group.rank * size, size)
        parameter.copy_(weight)
