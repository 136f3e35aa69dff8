"""The settings that determine a GPT's parameters and arithmetic, independent of the layout."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol


class RopeScaling(Protocol):
    """Fields of model.rope_scaling in a run's configuration."""

    kind: str
    factor: float
    original_max_position_embeddings: int
    low_freq_factor: float
    high_freq_factor: float
    beta_fast: float
    beta_slow: float

    def __hash__(self) -> int: ...


class Dpo(Protocol):
    """Fields of the section dpo in a run's configuration."""

    beta: float
    label_smoothing: float


class Lora(Protocol):
    """Fields of the section lora in a run's configuration."""

    kind: str
    rank: int
    dropout: float
    load_in_4bit: bool
    bnb_4bit_quant_type: str
    bnb_4bit_use_double_quant: bool
    trainable_token_indices: Sequence[int] | None

    @property
    def targets(self) -> Sequence[str]: ...

    @property
    def scale(self) -> float: ...


@dataclass(frozen=True)
class GPTConfig:
    """Everything that determines a GPT's parameters and arithmetic, with names as in the section `model`."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    ffn_hidden_size: int
    padded_vocab_size: int
    max_position_embeddings: int
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    init_method_std: float = 0.02
    activation: str = "gelu"
    add_bias_linear: bool = True
    add_qkv_bias: bool = False
    num_query_groups: int | None = None
    """Number of key and value heads; None means num_attention_heads."""
    kv_channels: int | None = None
    """Head size; None means hidden_size / num_attention_heads."""
    qk_layernorm: bool = False
    windows: tuple[int | None, ...] = ()
    """Attention window of each layer: the number of tokens that a query sees, including itself.

    None for a layer, or an empty tuple, means all earlier tokens.
    """
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    normalization: str = "LayerNorm"
    norm_epsilon: float = 1e-5
    untie_embeddings_and_output_weights: bool = False
    position_embedding_type: str = "learned_absolute"
    rotary_base: float = 10000.0
    rotary_size: int = 0
    """Number of elements of each head that rotary positions rotate."""
    rope_scaling: RopeScaling | None = None
    unturned: frozenset[int] = frozenset()
    """Indices, from 0, of the layers without rotary positions."""
    attention_backend: str = "auto"
    cross_entropy_chunk_tokens: int = 1024
    seed: int = 1234
    autocast: bool = False
    """Whether to keep the format of the weights and cast to bf16 only for products."""
    checkpoint_interval_layers: int = 0
    """Number of layers recomputed together in the backward pass; 0 keeps all activations."""
    selective_recompute: bool = False
    """Whether to recompute only large, cheap activations instead of whole layers (recompute.py)."""
    fp8: bool = False
    """Whether products with the blocks' matrices use FP8 (parallel/fp8.py)."""
    fpdt_chunk_tokens: int = 0
    """Tokens of the whole sequence that FPDT processes at a time (parallel/fpdt.py); 0 turns FPDT off."""
    vocab_size: int | None = None
    """Number of token ids in use. Larger ids are padding and are ignored; None means no padding."""
    lora: Lora | None = None
    """Adapter settings; if set, only adapters are trained."""
    dpo: Dpo | None = None
    """Settings of the preference loss; None without one."""

    @classmethod
    def of(cls, config: Any) -> "GPTConfig":
        """Build the settings from a RunConfig, whose section `model` has fields of the same names."""
        model, recompute = config.model, config.parallel.activation_checkpointing
        of_model = {
            entry.name: model.resolved(entry.name) for entry in fields(cls) if hasattr(model, entry.name)
        }
        return cls(
            **{
                **of_model,
                "windows": tuple(model.windows),
                "unturned": frozenset(model.layers_without_rope),
                "padded_vocab_size": config.padded_vocab_size,
                "vocab_size": config.tokenizer.vocab_size,
                "autocast": config.precision.autocast,
                "fp8": config.precision.fp8,
                "fpdt_chunk_tokens": config.parallel.fpdt_chunk_tokens,
                "checkpoint_interval_layers": (
                    recompute.interval_layers if recompute.granularity == "full" else 0
                ),
                "selective_recompute": recompute.granularity == "selective",
                "lora": config.lora,
                "dpo": config.dpo,
            }
        )

    @property
    def turns(self) -> bool:
        """Whether positions are rotary, that is, queries and keys are rotated (rotary.py)."""
        return self.position_embedding_type == "rope"

    @property
    def head_size(self) -> int:
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def trained_tokens(self) -> tuple[int, ...]:
        """Ids of the tokens whose vocabulary rows are trained along with adapters, in ascending order."""
        return tuple(sorted(self.lora.trainable_token_indices or ())) if self.lora is not None else ()

    @property
    def query_groups(self) -> int:
        """Number of query groups, each with its own key and value."""
        return self.num_query_groups or self.num_attention_heads

    def window_of(self, layer: int) -> int | None:
        """Return the number of tokens that a query of a layer sees, including itself; None means no limit."""
        return self.windows[layer] if self.windows else None

    def turns_in(self, layer: int) -> bool:
        """Return whether a layer has rotary positions."""
        return self.turns and layer not in self.unturned
