"""What decides a GPT's parameters and arithmetic, without the layout."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GPTConfig:
    """All that decides a GPT's parameters and arithmetic; names are those of the run's `model` section."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    ffn_hidden_size: int
    padded_vocab_size: int
    max_position_embeddings: int
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    init_method_std: float = 0.02
    layernorm_epsilon: float = 1e-5
    attention_backend: str = "auto"
    cross_entropy_chunk_tokens: int = 1024
    seed: int = 1234
    autocast: bool = False
    """Keep the weights as they are and cast to bf16 inside each product."""
    checkpoint_interval_layers: int = 0
    """Recompute this many layers at a time in the backward pass; 0 keeps their activations."""
    selective_recompute: bool = False
    """Recompute what is large and cheap in each layer (recompute.py), unless whole layers are recomputed."""
    fp8: bool = False
    """Multiply the blocks' matrices in FP8 (parallel/fp8.py)."""
    fpdt_chunk_tokens: int = 0
    """Attention and MLP take chunks of this many tokens of the whole sequence (parallel/fpdt.py); 0: off."""
    vocab_size: int | None = None
    """Number of ids in use; ids from here on are padding and ignored. None: all ids are in use."""

    @classmethod
    def of(cls, config: Any) -> "GPTConfig":
        """The model of a RunConfig."""
        model, recompute = config.model, config.parallel.activation_checkpointing
        return cls(
            num_layers=model.num_layers,
            hidden_size=model.hidden_size,
            num_attention_heads=model.num_attention_heads,
            ffn_hidden_size=model.resolved_ffn_hidden_size,
            padded_vocab_size=config.padded_vocab_size,
            max_position_embeddings=model.resolved_max_position_embeddings,
            hidden_dropout=model.hidden_dropout,
            attention_dropout=model.attention_dropout,
            init_method_std=model.init_method_std,
            layernorm_epsilon=model.layernorm_epsilon,
            attention_backend=model.attention_backend,
            cross_entropy_chunk_tokens=model.cross_entropy_chunk_tokens,
            seed=model.seed,
            autocast=config.precision.autocast,
            checkpoint_interval_layers=recompute.interval_layers if recompute.granularity == "full" else 0,
            selective_recompute=recompute.granularity == "selective",
            fp8=config.precision.fp8,
            fpdt_chunk_tokens=config.parallel.fpdt_chunk_tokens,
            vocab_size=config.tokenizer.vocab_size,
        )

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads
