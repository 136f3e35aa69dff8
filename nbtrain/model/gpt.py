"""A decoder-only transformer: GPT-3 (arXiv:2005.14165, section 2.1), with the variants set in GPTConfig.

    tokens -> word embedding -> + positions, dropout -> num_layers x layer -> final norm -> output

    build_model(config, parallel)             a GPT with initial weights, or one rank's part of it
    model(tokens, labels)                     mean loss in fp32, as used in training
    model(tokens, labels, cu_seqlens=...)     mean loss with separate documents (train/engine/batches.py)
    model(tokens)                             logits at every position
    model(tokens, cache=model.new_cache(1))   logits of tokens that follow the cached tokens

Every rank receives whole sequences and selects its own part of them. If each sequence is split between ranks
(Ulysses or context parallelism), a rank's loss is the mean over its own tokens, and the mean over the ranks
is the loss of all tokens.

Shapes: b sequences, s tokens, h hidden, v padded vocabulary, t tensor-parallel ranks, u ranks between which
each sequence is split
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nbtrain.model.attention import Documents, documents_of
from nbtrain.model.bounds import as_lengths, bounds_of_chunks
from nbtrain.model.custom_layer import LayerFunction, build_layer
from nbtrain.model.custom_loss import CustomInputs, LossBatch, LossFunction, custom_loss
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.initialization import Initializer
from nbtrain.model.kv_cache import KVCache
from nbtrain.model.layers import Norm, OutputLayer, PositionEmbedding, WordEmbedding
from nbtrain.model.preference import Pairs, preference_loss
from nbtrain.model.recompute import recomputed
from nbtrain.model.rotary import rotation_of
from nbtrain.parallel import mappings
from nbtrain.parallel.cross_entropy import linear_cross_entropy
from nbtrain.parallel.layout import WHOLE, ModelParallel
from nbtrain.parallel.trained_rows import TrainedRows, own_rows


def build_model(
    config: Any,
    parallel: ModelParallel = WHOLE,
    init: Initializer | None = None,
    layer_function: LayerFunction | None = None,
) -> "GPT":
    """Build the GPT of a RunConfig, or this rank's part of it, with initial weights in fp32.

    The model is on the CPU and in training mode; under deepspeed.zero.Init, DeepSpeed chooses the device and
    format. If given, `layer_function` builds the blocks instead of nbtrain.
    """
    return GPT(GPTConfig.of(config), parallel, init, layer_function)


class GPT(nn.Module):
    """A decoder-only transformer whose parameters have canonical names (names.py)."""

    def __init__(
        self,
        config: GPTConfig,
        parallel: ModelParallel = WHOLE,
        init: Initializer | None = None,
        layer_function: LayerFunction | None = None,
    ):
        super().__init__()
        self.config = config
        self.parallel = parallel
        init = init or Initializer(config.seed, config.init_method_std, config.num_layers)
        self.word_embeddings = WordEmbedding(config, init, parallel)
        self.position_embeddings = PositionEmbedding(config, init, parallel)
        self.layers = nn.ModuleList(
            build_layer(index, config, init, parallel, layer_function) for index in range(config.num_layers)
        )
        self.final_layernorm = Norm(config, init, parallel)
        if config.untie_embeddings_and_output_weights:
            self.output_layer = OutputLayer(config, init, parallel)
        self.output_product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = nn.functional.linear
        """Function that multiplies hidden states by the output matrix; inference/packed.py replaces it."""
        self.loss_function: LossFunction | None = None
        """User-defined loss, which replaces cross entropy in training and validation; None without one."""

    def forward(
        self,
        tokens: torch.Tensor,
        labels: torch.Tensor | None = None,
        cache: KVCache | None = None,
        last_token_only: bool = False,
        *,
        logits_at: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cu_seqlens: torch.Tensor | None = None,
        max_seqlen: int = 0,
        loss_mask: torch.Tensor | None = None,
        loss_denominator: torch.Tensor | None = None,
        token_losses: torch.Tensor | None = None,
        likeliest: torch.Tensor | None = None,
        answers: torch.Tensor | None = None,
        reference: torch.Tensor | None = None,
        dataset_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the mean loss (fp32 scalar) if labels [b, s] are given, otherwise logits [b, s, v].

        Args:
            tokens, labels: Token ids [b, s].
            cache: Cache that contains the tokens before these; the new tokens are added to it (kv_cache.py).
            last_token_only, logits_at: Return only logits [b, 1, v] of the last token, or [b, i, v] of the
                tokens at the indices logits_at [i]. Logits of padding ids are -inf.
            position_ids: Positions [b, s]; by default 0 .. s-1, or those after the cached tokens.
            cu_seqlens, max_seqlen: Cumulative lengths of documents over the b * s tokens (int32), and the
                largest length; tokens attend only within their document (attention.documents_of).
            loss_mask, loss_denominator, token_losses, likeliest: See parallel/cross_entropy.py and, if each
                sequence is split between ranks, language_model_loss.
            answers, reference: Fields of Pairs, [b, s] and [P, 2]. If they are given, the loss is the
                preference loss (preference.py).
            dataset_ids: Index of each label's dataset [b, s], for a user-defined loss.

        Raises ValueError if there are more tokens than positions, or if logits are requested while each
        sequence is split between ranks.
        """
        with products_in(self.config, tokens.device.type):
            documents = self._documents(tokens, cu_seqlens, max_seqlen) if cu_seqlens is not None else None
            hidden = self._hidden(tokens, cache, position_ids, documents)
            # ZeRO 3 gathers a weight for the module that owns it, but this weight is used outside of its
            # module.
            untied = self.config.untie_embeddings_and_output_weights
            output = self.output_layer if untied else self.word_embeddings
            weight, rows = output.weight, output.trained_rows
            if labels is None:
                return self._logits(hidden, weight, last_token_only, logits_at, rows)
            noted = (token_losses, likeliest, answers, reference)
            masked = (loss_mask, loss_denominator)
            how = (self.config, self.parallel)
            custom = CustomInputs(self.loss_function, tokens, dataset_ids) if self.loss_function else None
            return language_model_loss(
                hidden, weight, labels, *how, *masked, *noted, rows=rows, custom=custom
            )

    def new_cache(self, slots: int, positions: int | None = None) -> KVCache:
        """Allocate an empty cache on the model's device.

        Each slot holds `positions` tokens, by default max_position_embeddings.
        """
        config, weight = self.config, self.word_embeddings.weight
        # If the queries of a group are on several ranks, each of them stores the group's keys and values.
        groups = max(config.query_groups // self.parallel.tensor.size, 1)
        pairs = weight.new_empty(
            (
                len(self.layers),
                2,
                slots,
                groups,
                positions or config.max_position_embeddings,
                config.head_size,
            ),
            dtype=torch.bfloat16 if config.autocast else weight.dtype,
        )
        return KVCache(pairs)

    def _hidden(
        self,
        tokens: torch.Tensor,
        cache: KVCache | None,
        position_ids: torch.Tensor | None,
        documents: Documents | None,
    ) -> torch.Tensor:
        start, end = 0, tokens.shape[1]
        if cache is not None:
            if position_ids is not None or documents is not None:
                raise ValueError(
                    "a cache holds one document that starts at position 0: omit position_ids and cu_seqlens"
                )
            start, end, position_ids = cache.reach(tokens)
        if end > (limit := self.config.max_position_embeddings):
            raise ValueError(f"{end} tokens are more than the {limit} positions of the model")
        parallel, chunk, whole = self.parallel, self.config.fpdt_chunk_tokens, tokens.shape
        turned = None
        if self.config.turns:
            turned = torch.arange(start, end, device=tokens.device) if position_ids is None else position_ids
            if parallel.context.size > 1:
                # With Ulysses, every rank has all tokens inside attention.
                turned = parallel.own_tokens(turned)
        if parallel.sequence.size > 1:
            if position_ids is None and (chunk or parallel.context.size > 1):
                position_ids = torch.arange(end, device=tokens.device).expand_as(tokens)
            tokens = parallel.own_tokens(tokens, chunk)
            if position_ids is not None:
                position_ids = parallel.own_tokens(position_ids, chunk)
            start = parallel.sequence.rank * tokens.shape[1]
        hidden = self.position_embeddings(self.word_embeddings(tokens), start, position_ids)
        # Pass documents only if there are any, so that layers of other runs are not recompiled.
        apart: dict[str, Any] = {} if documents is None else {"documents": documents}
        if parallel.context.size > 1:
            in_lengths = self._as_lengths(hidden.device)
            apart["documents"] = bounds_of_chunks(
                documents, whole, parallel.context, in_lengths, hidden.device
            )
        if turned is not None:
            dtype = torch.bfloat16 if self.config.autocast else hidden.dtype
            apart["rotation"] = rotation_of(self.config, turned, dtype)
        if cache is not None:
            for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
                hidden = layer(hidden, cache=layer_cache, **apart)
            cache.read(tokens)
        elif (interval := self.config.checkpoint_interval_layers) and torch.is_grad_enabled():
            for first in range(0, len(self.layers), interval):
                piece = self.layers[first : first + interval]
                hidden = recomputed(self.parallel.stream, _run, piece, hidden, apart)
        else:
            hidden = _run(self.layers, hidden, apart)
        return self.final_layernorm(hidden)

    def _logits(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        last_token_only: bool,
        logits_at: torch.Tensor | None,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        parallel, vocab_size = self.parallel, self.config.vocab_size
        if parallel.sequence.size > 1:
            raise ValueError(
                "logits need whole sequences, but these ranks share sequences and can return only losses"
            )
        if parallel.cuts_tokens:
            hidden = mappings.gather_from_sequence_parallel_region(hidden, parallel.tensor)
        else:
            hidden = mappings.copy_to_tensor_model_parallel_region(hidden, parallel.tensor)
        if last_token_only:
            hidden = hidden[:, -1:]
        elif logits_at is not None:
            hidden = hidden[:, logits_at]
        logits = self.output_product(hidden, weight)
        if rows is not None:
            first = parallel.tensor.rank * len(weight)
            own = own_rows(rows, self.config.trained_tokens, first, len(weight))
            logits = logits.index_copy(-1, own.columns, nn.functional.linear(hidden, own.rows))
        logits = mappings.gather_from_tensor_model_parallel_region(logits, parallel.tensor)
        if (softcap := self.config.final_logit_softcapping) is not None:
            logits = softcap * torch.tanh(logits / softcap)
        if vocab_size is not None and vocab_size < logits.shape[-1]:
            logits[..., vocab_size:] = float("-inf")
        return logits

    def _documents(self, tokens: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int) -> Documents:
        batch, length = tokens.shape
        return documents_of(cu_seqlens, max_seqlen, batch, length, self._as_lengths(tokens.device))

    def _as_lengths(self, device: torch.device) -> bool:
        return as_lengths(self.config, device, self.final_layernorm.weight.dtype, self.training)


def products_in(config: GPTConfig, device: str) -> contextlib.AbstractContextManager:
    """Return the context manager for a forward pass: bf16 autocast if the configuration enables it."""
    return torch.autocast(device, dtype=torch.bfloat16) if config.autocast else contextlib.nullcontext()


def language_model_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    config: GPTConfig,
    parallel: ModelParallel = WHOLE,
    loss_mask: torch.Tensor | None = None,
    loss_denominator: torch.Tensor | None = None,
    token_losses: torch.Tensor | None = None,
    likeliest: torch.Tensor | None = None,
    answers: torch.Tensor | None = None,
    reference: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    custom: CustomInputs | None = None,
) -> torch.Tensor:
    """Return the mean loss from the last hidden states, computed by parallel/cross_entropy.py.

    hidden has this rank's tokens, [b, s/t, h] or [b, s/u, h]. weight is [v/t, h]; `rows` are the trained rows
    of config.trained_tokens, if there are any. loss_denominator is a scalar, and reference is [P, 2]. All
    other tensors are [b, s], for whole sequences.

    If each sequence is split between ranks, the loss is the mean over this rank's tokens. With loss_mask, it
    is the sum over the rank's unmasked tokens, divided by loss_denominator. Without loss_denominator, the sum
    is divided by 1/u of the number of unmasked tokens on all u ranks. token_losses and likeliest are filled
    for this rank's tokens and are 0 elsewhere. With answers and reference, the loss is the preference loss,
    for which sequences must not be split.

    With `custom`, the loss is user-defined, but token_losses are still the cross entropy. A pass with
    `likeliest` scores a task and always returns the cross entropy.
    """
    sharing, chunk = parallel.sequence.size, config.fpdt_chunk_tokens
    if sharing > 1:
        labels = parallel.own_tokens(labels, chunk)
        if loss_mask is not None:
            if loss_denominator is None:
                loss_denominator = loss_mask.sum().clamp(min=1) / sharing
            loss_mask = parallel.own_tokens(loss_mask, chunk)
        everyones = (token_losses, likeliest)
        token_losses, likeliest = (None if one is None else one.new_empty(labels.shape) for one in everyones)
    cross_entropy = functools.partial(
        linear_cross_entropy,
        hidden,
        weight,
        labels,
        config.cross_entropy_chunk_tokens,
        group=parallel.tensor,
        sequence_parallel=parallel.sequence_parallel,
        vocab_size=config.vocab_size,
        softcap=config.final_logit_softcapping,
        trained=None if rows is None else TrainedRows(rows, config.trained_tokens),
    )
    if answers is not None:
        assert reference is not None and config.dpo is not None and loss_mask is not None
        pairs = Pairs(answers, reference)
        return preference_loss(cross_entropy, pairs, config.dpo, loss_mask, loss_denominator, token_losses)
    if custom is None or likeliest is not None:
        loss = cross_entropy(loss_mask, loss_denominator, token_losses, likeliest)
    else:
        if token_losses is not None:
            with torch.no_grad():
                cross_entropy(loss_mask, loss_denominator, token_losses)
        tokens, dataset_ids = (
            parallel.own_tokens(ids, chunk) if ids is not None else None
            for ids in (custom.tokens, custom.dataset_ids)
        )
        assert tokens is not None
        mask = torch.ones_like(labels, dtype=torch.float32) if loss_mask is None else loss_mask
        batch = LossBatch(tokens, labels, mask, dataset_ids, custom.function.dataset_names)
        loss = custom_loss(custom.function, hidden, weight, rows, config, parallel, batch, loss_denominator)
    if sharing > 1:
        for everyone, own in zip(everyones, (token_losses, likeliest), strict=True):
            if everyone is not None and own is not None:
                parallel.set_own_tokens(everyone, own, chunk)
    return loss


def _run(layers: nn.ModuleList, hidden: torch.Tensor, apart: dict[str, Any]) -> torch.Tensor:
    for layer in layers:
        hidden = layer(hidden, **apart)
    return hidden
