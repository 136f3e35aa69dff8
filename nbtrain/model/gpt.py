"""GPT-3 (arXiv:2005.14165, section 2.1): learned positions, pre-LN, tied embeddings.

    tokens -> word embedding -> + positions, dropout -> num_layers x layer -> final LayerNorm -> tied output

    build_model(config)                       GPT with the initial weights of a RunConfig
    model(tokens, labels)                     mean loss, fp32; what training calls
    model(tokens, labels, cu_seqlens=...)     the same, documents apart from each other (train/batches.py: Batch)
    model(tokens)                             logits of every position
    model(tokens, cache=model.new_cache(1))   the same, behind the tokens that the cache holds

Shapes: b sequences, s tokens, h hidden, v padded vocabulary
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from nbtrain.model.attention import Documents, KVCache, LayerCache, documents_of, takes_lengths
from nbtrain.model.initialization import Initializer
from nbtrain.model.layers import LayerNorm, PositionEmbedding, TransformerLayer, WordEmbedding
from nbtrain.model.loss import linear_cross_entropy


@dataclass(frozen=True)
class GPTConfig:
    """Everything that decides a GPT's parameters and its arithmetic; names as in the run's `model` section."""

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
    """Recompute in the backward pass, this many layers at a time; 0 keeps all activations."""

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
        )


def build_model(config: Any) -> "GPT":
    """The GPT of a RunConfig with its initial weights, in fp32 on the CPU and in training mode."""
    return GPT(GPTConfig.of(config))


class GPT(nn.Module):
    """Decoder-only transformer; the names of its parameters are the canonical ones (names.py)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        init = Initializer(config.seed, config.init_method_std, config.num_layers)
        self.word_embeddings = WordEmbedding(
            "word_embeddings", config.padded_vocab_size, config.hidden_size, init
        )
        self.position_embeddings = PositionEmbedding(
            "position_embeddings",
            config.max_position_embeddings,
            config.hidden_size,
            config.hidden_dropout,
            init,
        )
        self.layers = nn.ModuleList(
            TransformerLayer(
                f"layers.{index}",
                config.hidden_size,
                config.ffn_hidden_size,
                config.num_attention_heads,
                config.hidden_dropout,
                config.attention_dropout,
                config.layernorm_epsilon,
                config.attention_backend,
                init,
            )
            for index in range(config.num_layers)
        )
        self.final_layernorm = LayerNorm(config.hidden_size, config.layernorm_epsilon, init)

    def layer_list(self) -> Iterator[nn.Module]:
        """The layers in running order; the tied output follows the last. A pipeline is cut along this list."""
        yield self.word_embeddings
        yield self.position_embeddings
        yield from self.layers
        yield self.final_layernorm

    def forward(
        self,
        tokens: torch.Tensor,
        labels: torch.Tensor | None = None,
        cache: KVCache | None = None,
        last_token_only: bool = False,
        *,
        position_ids: torch.Tensor | None = None,
        cu_seqlens: torch.Tensor | None = None,
        max_seqlen: int = 0,
        loss_mask: torch.Tensor | None = None,
        loss_denominator: torch.Tensor | None = None,
        token_losses: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Mean loss (fp32 scalar) where labels [b, s] are given, else logits [b, s, v], or [b, 1, v].

        tokens [b, s] stand behind the cache.length tokens that the cache holds, and are added to it. Without a
        cache: position_ids [b, s] where they are not 0 .. s-1; cu_seqlens, int32 cumulative lengths over the b * s
        tokens, with the longest of them, to keep documents apart (attention.documents_of). loss_mask [b, s],
        loss_denominator and token_losses [b, s] as loss.linear_cross_entropy has them.
        Raises ValueError where tokens pass the positions or the cache.
        """
        with self._precision(tokens.device.type):
            documents = self._documents(tokens, cu_seqlens, max_seqlen) if cu_seqlens is not None else None
            hidden = self._hidden(tokens, cache, position_ids, documents)
            # ZeRO 3 gathers a weight for the module that owns it; the output matrix is used outside of it.
            weight = self.word_embeddings.weight
            if labels is not None:
                return linear_cross_entropy(
                    hidden.flatten(0, 1),
                    weight,
                    labels.flatten(),
                    self.config.cross_entropy_chunk_tokens,
                    loss_mask.flatten() if loss_mask is not None else None,
                    loss_denominator,
                    # A view: what is filled must be the caller's.
                    token_losses.view(-1) if token_losses is not None else None,
                )
            if last_token_only:
                hidden = hidden[:, -1:]
            return nn.functional.linear(hidden, weight)

    def new_cache(self, batch_size: int, max_tokens: int | None = None) -> KVCache:
        """An empty key-value cache on the model's device; at most max_position_embeddings tokens."""
        config = self.config
        limit = max_tokens or config.max_position_embeddings
        weight = self.word_embeddings.weight
        dtype = torch.bfloat16 if config.autocast else weight.dtype
        shape = (
            batch_size,
            config.num_attention_heads,
            limit,
            config.hidden_size // config.num_attention_heads,
        )
        return KVCache(
            limit,
            layers=[
                LayerCache(*(torch.empty(shape, dtype=dtype, device=weight.device) for _ in range(2)))
                for _ in self.layers
            ],
        )

    def _hidden(
        self,
        tokens: torch.Tensor,
        cache: KVCache | None,
        position_ids: torch.Tensor | None,
        documents: Documents | None,
    ) -> torch.Tensor:
        start = cache.length if cache is not None else 0
        end = start + tokens.shape[1]
        limit = self.config.max_position_embeddings
        limit = min(limit, cache.max_tokens) if cache is not None else limit
        if end > limit:
            raise ValueError(f"{end} tokens are more than the {limit} positions there are")
        if cache is not None and (position_ids is not None or documents is not None):
            raise ValueError(
                "a cache holds one document from position 0 on; give no position_ids or cu_seqlens"
            )
        hidden = self.position_embeddings(self.word_embeddings(tokens), start, position_ids)
        # Said only where there are some: a compiled layer of a plain run is called as ever.
        apart = {} if documents is None else {"documents": documents}
        if cache is not None:
            for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
                hidden = layer(hidden, layer_cache, start)
            cache.length = end
        elif (interval := self.config.checkpoint_interval_layers) and torch.is_grad_enabled():
            for first in range(0, len(self.layers), interval):
                piece = self.layers[first : first + interval]
                hidden = checkpoint(_run, piece, hidden, apart, use_reentrant=False)
        else:
            hidden = _run(self.layers, hidden, apart)
        return self.final_layernorm(hidden)

    def _documents(self, tokens: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int) -> Documents:
        config, device = self.config, tokens.device.type
        dtype = torch.bfloat16 if config.autocast else self.final_layernorm.weight.dtype
        dropout = config.attention_dropout if self.training else 0.0
        as_lengths = takes_lengths(device, dtype, dropout, config.attention_backend)
        batch, length = tokens.shape
        return documents_of(cu_seqlens, max_seqlen, batch, length, as_lengths)

    def _precision(self, device: str) -> contextlib.AbstractContextManager:
        if self.config.autocast:
            return torch.autocast(device, dtype=torch.bfloat16)
        return contextlib.nullcontext()


def _run(layers: nn.ModuleList, hidden: torch.Tensor, apart: dict[str, Documents]) -> torch.Tensor:
    for layer in layers:
        hidden = layer(hidden, **apart)
    return hidden
