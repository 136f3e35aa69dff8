"""The bytes of the tensors that autograd saves for the backward pass of nbtrain's model, counted with
saved-tensor hooks.
"""

from collections.abc import Callable

import torch

from nbtrain.model.gpt_config import GPTConfig
from nbtrain.planner.memory import activations, buffers
from nbtrain.planner.memory.stage import stage_of
from nbtrain.planner.setup.setup import Setup

RECOMPUTE = {
    "none": {},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
    "every2": {"recompute": "full", "recompute_interval": 2},
}
PRECISIONS = {"fp32": {}, "bf16": {"dtype": "bf16"}, "autocast": {"dtype": "bf16", "autocast": True}}


def planned(setup: Setup, stage_number: int = 0) -> float:
    """Return the bytes that a stage should keep at the end of its last forward pass, according to the
    planner.
    """
    stage = stage_of(setup, stage_number)
    return activations.kept(setup, stage).total + buffers.loss_gradients(setup, stage)


def saved(setup: Setup, model: torch.nn.Module, forward: Callable[[], torch.Tensor]) -> int:
    """Return the bytes that autograd keeps after `forward`, counting each storage once, without parameters
    and their casts.
    """
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    # Autocast's copies of matrices count as weights.
    matrices = {parameter.shape for parameter in model.parameters() if parameter.dim() == 2}
    words = setup.shape.padded_vocab_size // setup.tensor_parallel_size, setup.shape.hidden_size
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        is_cast = setup.autocast and {tensor.shape, tensor.T.shape if tensor.dim() == 2 else None} & matrices
        is_gradient = tensor.dtype == torch.float32 and tensor.shape == words
        if storage._cdata not in own and (not is_cast or is_gradient):
            # A reference is kept, so that no later storage can have the same address.
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        assert forward().requires_grad
    return sum(storage.nbytes() for storage in kept.values())


def gpt_config(setup: Setup) -> GPTConfig:
    """Return the model configuration that corresponds to a setup."""
    shape, full = setup.shape, setup.recompute == "full"
    return GPTConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_attention_heads,
        ffn_hidden_size=shape.ffn_hidden_size,
        padded_vocab_size=shape.padded_vocab_size,
        max_position_embeddings=shape.learned_positions or shape.seq_length,
        position_embedding_type="learned_absolute" if shape.learned_positions else "rope",
        rotary_size=shape.kv_channels,
        hidden_dropout=shape.hidden_dropout,
        attention_dropout=shape.attention_dropout,
        activation="swiglu" if shape.gated else "gelu",
        add_bias_linear=shape.bias,
        add_qkv_bias=shape.add_qkv_bias,
        num_query_groups=shape.num_query_groups,
        kv_channels=shape.kv_channels,
        qk_layernorm=shape.qk_layernorm,
        windows=tuple(shape.window_size if one else None for one in shape.window_layers),
        # As large as its argument, so that only the kernel and the tensors it keeps change.
        attn_logit_softcapping=1e4 if shape.attn_softcap else None,
        final_logit_softcapping=1e4 if shape.logit_softcap else None,
        untie_embeddings_and_output_weights=not shape.tied,
        normalization="RMSNorm" if shape.rmsnorm else "LayerNorm",
        # On a CPU, windows reach the flash kernel as a mask.
        attention_backend="math" if setup.keeps_scores else "flash" if setup.masks_windows else "auto",
        cross_entropy_chunk_tokens=setup.logits_chunk_tokens,
        autocast=setup.autocast,
        checkpoint_interval_layers=setup.recompute_interval if full else 0,
        selective_recompute=setup.recompute == "selective",
    )


def in_format(setup: Setup, model: torch.nn.Module) -> torch.nn.Module:
    """Put the model in training mode and convert its weights to the setup's format."""
    model.train()
    if setup.dtype == "bf16" and not setup.autocast:
        # Module.to() cannot change the parameters of fake tensors.
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    setattr(module, name, torch.nn.Parameter(parameter.detach().bfloat16()))
    return model
