"""One step of a two-layer model with the user's file, on the CPU, to find its errors before a run starts.

The model has two narrow layers, and the run's vocabulary, number format and position embeddings. The micro
batch has random tokens. The first token of each sequence is not in the loss, and if the run has several
datasets, each sequence has tokens from two of them. on_checkpoint() is not called, because nothing is saved.
Blocks from layer() are also tested by trial_of_layer.py.
"""

import math
from typing import Any

import torch

from nbtrain.checkpoint.user_code import UserCode
from nbtrain.config.schema import RunConfig
from nbtrain.config.shape import OwnBlock
from nbtrain.dataset.blend import BlendFiles
from nbtrain.model.gpt import GPT
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.parallel.random import preserved
from nbtrain.train.code.own_dataset import own_datasets
from nbtrain.train.code.own_loss import OwnLoss
from nbtrain.train.code.own_scalars import own_scalars
from nbtrain.train.code.trial_of_layer import check_gradients, count_block, try_layer

HIDDEN_SIZE, HEADS = 32, 2
MOST_TOKENS = 128
STEP = 1


def try_code(config: RunConfig, code: UserCode) -> OwnBlock | None:
    """Call the user's functions for one step, and return the parameter counts of a block if the file defines
    layer(), otherwise None. Raises CodeError for the first error.
    """
    block = None
    with preserved():
        torch.manual_seed(0)
        names = _dataset_names(config)
        settings, is_bf16 = small_settings(config)
        if code.defines("layer"):
            block = count_block(config, code)
            model = try_layer(settings, code, is_bf16)
        else:
            model = GPT(settings)
        # fp16 needs instructions that few CPUs have.
        model = model.to(torch.bfloat16) if is_bf16 else model
        if code.defines("loss") or code.defines("layer"):
            _try_step(config, code, model, names)
        if code.defines("on_step"):
            with torch.no_grad():
                code.call("on_step", STEP, model)
    if code.defines("scalars"):
        own_scalars(code, STEP)
    if code.defines("dataset"):
        own_datasets(config, code, None, 0).train.sample(0)
    return block


def _dataset_names(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the datasets of a blend or mixture; () if there is only one dataset."""
    if config.data.blend:
        names = [entry.name for entry in BlendFiles.of(config).entries]
    else:
        is_mixture = config.data.resolved_packing == "best_fit"
        names = [source.name or source.kind for source in config.data.sources] if is_mixture else []
    unique = tuple(dict.fromkeys(names))
    return unique if len(unique) > 1 else ()


def small_settings(config: RunConfig) -> tuple[GPTConfig, bool]:
    """Return (the settings of the two-layer model, whether its weights are bf16)."""
    small = config.model.model_copy(
        update={
            "num_layers": 2,
            "hidden_size": HIDDEN_SIZE,
            "num_attention_heads": HEADS,
            "num_query_groups": None,
            "kv_channels": None,
            "ffn_hidden_size": HIDDEN_SIZE,
            "seq_length": _length(config),
            "max_position_embeddings": None,
            "window_size": None,
            "window_attn_skip_freq": None,
            "no_rope_freq": None,
            "attention_backend": "auto",
            "rotary_percent": 1.0,
        }
    )
    alone = type(config.parallel)()
    plain = config.precision.model_copy(update={"fp8": False})
    tried: Any = config.model_copy(
        update={"model": small, "parallel": alone, "precision": plain, "lora": None, "dpo": None}
    )
    is_bf16 = config.precision.dtype != "fp32" and not config.precision.autocast
    return GPTConfig.of(tried), is_bf16


def _length(config: RunConfig) -> int:
    return min(config.model.seq_length, MOST_TOKENS)


def _try_step(config: RunConfig, code: UserCode, model: GPT, names: tuple[str, ...]) -> None:
    own = OwnLoss(code, names) if code.defines("loss") else None
    model.loss_function = own
    shape = (2, _length(config))
    tokens, labels = (torch.randint(config.tokenizer.vocab_size, shape) for _ in range(2))
    mask = torch.ones(shape)
    mask[:, 0] = 0
    more = {"dataset_ids": torch.arange(2 * shape[1]).view(shape) % len(names)} if names else {}
    blamed = "loss" if own is not None else "layer"
    with code.blamed(blamed):
        loss = model(tokens, labels, loss_mask=mask, loss_denominator=mask.sum(), **more)
        value = loss.item()
        if not math.isfinite(value):
            raise code.error(
                blamed,
                f"the loss is {value} for a model with its initial weights",
                "Look for a division by zero, such as a mean over no tokens, or for a logarithm of 0.",
            )
        try:
            loss.backward()
        except RuntimeError as error:
            # autograd names the tensor, but no line of the file.
            raise code.error(
                blamed,
                f"the backward pass failed: {str(error).partition('. Hint')[0].partition(': [')[0]}",
                "An in-place operation, such as x += y, overwrites a value that the backward pass needs: "
                "write x = x + y.",
            ) from error
    if code.defines("layer"):
        check_gradients(code, model)
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
    if not math.isfinite(norm) or norm == 0:
        raise code.error(
            blamed,
            f"the gradient of the loss has norm {norm:g} for a model with its initial weights",
            "Look for an operation without a gradient, such as argmax, or with an infinite gradient, such as "
            "sqrt at 0.",
        )
    if own is not None:
        own.check_count(mask.sum())
