"""The GPT as a list of layers for a pipeline, in the order in which they run (the layers of model/gpt.py).

    0            word embedding             tokens -> [b, s, h]
    1            positions
    2 .. L + 1   the L blocks
    L + 2        final norm
    L + 3        output                     returns hidden states and output matrix to the loss function

parallel/pipeline.py contains the pipeline itself, which works with any list of layers.

The first and the last layer share one matrix, unless model.untie_embeddings_and_output_weights is set. The
tied module must not have other parameters, because these would exist on the last stage too, unused and
trained separately. The logits never exist at full size, because one function computes both the linear layer
and the cross entropy. Documents are sent with the activations as a document number per token, [b, s], and
each stage builds its mask from these numbers.

The first stage receives whole sequences. If each sequence is split between ranks, the first stage selects
this rank's tokens, and each stage sends only the activations of these. Positions and documents are sent for
the whole sequence, because attention needs them.

Shapes: b sequences, s tokens, h hidden, v padded vocabulary, t tensor-parallel ranks
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from nbtrain.base.topology import Topology
from nbtrain.model.attention import Documents, document_numbers, mask_of
from nbtrain.model.bounds import as_lengths, bounds_of_chunks
from nbtrain.model.custom_layer import LayerFunction, build_layer, is_block
from nbtrain.model.custom_loss import CustomInputs, LossFunction
from nbtrain.model.gpt import language_model_loss, products_in
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.initialization import Initializer
from nbtrain.model.layers import Norm, OutputLayer, PositionEmbedding, WordEmbedding
from nbtrain.model.names import TRAINED_ROWS, canonical_name
from nbtrain.model.recompute import recomputed
from nbtrain.model.rotary import rotation_of
from nbtrain.parallel.layout import ModelParallel

if TYPE_CHECKING:
    from nbtrain.parallel.pipeline import Pipeline

Inputs = tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]


def build_pipeline(
    config: GPTConfig,
    parallel: ModelParallel,
    topology: Topology,
    stage_layers: Sequence[int],
    init: Initializer | None = None,
    loss_function: LossFunction | None = None,
    layer_function: LayerFunction | None = None,
) -> "Pipeline":
    """Build this rank's stage of a GPT for deepspeed.initialize, with the initial weights of build_model().

    `stage_layers` has the number of blocks in each stage (config/arithmetic/stages.py). `loss_function` and
    `layer_function` are user-defined functions, or None. All ranks must call this together, because it
    creates process groups. The engine's settings `pipe_partitioned` and `grad_partitioned` must be false.
    Otherwise, each tensor-parallel rank would send only a part of its activations and gradients, as if they
    were equal on these ranks, but with sequence parallelism they are not.
    """
    # Imported here, because DeepSpeed must be prepared first (startup.py) and only pipelines need it.
    from nbtrain.parallel.pipeline import BuiltLayer, LayerSpec, Pipeline, TiedLayerSpec

    init = init or Initializer(config.seed, config.init_method_std, config.num_layers)
    parts = (config, init, parallel)
    tied = ("word_embeddings", WordEmbedding, *parts)
    # These parameters' gradients are summed over the first and last stage.
    shared = {"tied_weight_attr": ["weight", TRAINED_ROWS] if config.trained_tokens else ["weight"]}
    untied = config.untie_embeddings_and_output_weights
    specs = [
        LayerSpec(WordEmbedding, *parts) if untied else TiedLayerSpec(*tied, **shared),
        LayerSpec(PositionEmbedding, *parts),
        *(
            BuiltLayer(functools.partial(build_layer, index, *parts, layer_function))
            for index in range(config.num_layers)
        ),
        LayerSpec(Norm, *parts),
        LayerSpec(_PipedOutput, *parts)
        if untied
        else TiedLayerSpec(*tied, forward_fn=_with_output_matrix, **shared),
    ]
    bounds = [0]
    for stage, blocks in enumerate(stage_layers):
        is_last = stage == len(stage_layers) - 1
        bounds.append(len(specs) if is_last else max(bounds[-1], 2) + blocks)
    return Pipeline(
        specs,
        bounds,
        topology,
        _Program(config, parallel),
        functools.partial(_loss, config, parallel, loss_function),
        repeated=range(2, 2 + config.num_layers),
        interval_layers=config.checkpoint_interval_layers,
    )


def pipeline_inputs(
    batch: Any,
    loss_denominator: torch.Tensor | None = None,
    token_losses: torch.Tensor | None = None,
    likeliest: torch.Tensor | None = None,
) -> Inputs:
    """Return (inputs of the first stage, inputs of the loss) for a micro batch of train/engine/batches.py.

    loss_denominator, token_losses and likeliest have the same meaning as in GPT.forward. Document boundaries
    must be in all micro batches of a run or in none, because the first micro batch determines which tensors
    the stages send.
    """
    inputs = [batch.tokens, _or_nothing(batch.position_ids)]
    if batch.cu_seqlens is not None:
        inputs.append(document_numbers(batch.cu_seqlens, *batch.tokens.shape))
    losses = (batch.loss_mask, loss_denominator, token_losses, likeliest, batch.answers, batch.reference)
    # A user-defined loss also needs the tokens and dataset_ids.
    return tuple(inputs), (batch.labels, batch.tokens, *map(_or_nothing, (*losses, batch.dataset_ids)))


def canonical_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (canonical name, parameter) for a GPT or a pipeline stage.

    A tied parameter is on both the first and the last stage.
    """
    repeated = getattr(model, "repeated", None)  # a Pipeline's
    for name, parameter in model.named_parameters():
        yield name if repeated is None else canonical_name(name, len(repeated)), parameter


def trained_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (canonical name, parameter) for the parameters that are not frozen."""
    return ((name, parameter) for name, parameter in canonical_parameters(model) if parameter.requires_grad)


def _or_nothing(tensor: torch.Tensor | None) -> torch.Tensor:
    # DeepSpeed can send only tensors, so an empty tensor represents None.
    return torch.empty(0) if tensor is None else tensor


def _or_none(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor if tensor.numel() else None


class _PipedOutput(OutputLayer):
    """The last layer of a pipeline, which passes the hidden states and the output matrix to the loss."""

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _with_output_matrix(self, hidden)


def _with_output_matrix(
    embedding: WordEmbedding | OutputLayer, hidden: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    # A view, because DeepSpeed prepares ZeRO for the backward pass at the first output with a grad_fn.
    held = [one for one in (embedding.weight, embedding.trained_rows) if one is not None]
    return hidden, *(one.view_as(one) for one in held)


class _ExtraInputs(NamedTuple):
    position_ids: torch.Tensor | None
    """int64 [b, s] on the first stage and, if positions are rotary, on all stages; None for defaults."""
    numbers: torch.Tensor | None
    """int32 [b, s]: document number of each token; None without document boundaries."""
    documents: Documents | None
    """Mask for attention, built from the document numbers."""
    turned: torch.Tensor | None = None
    """Positions of the tokens in attention, [s] or [b, s], if positions are rotary; otherwise None."""


class _Program:
    """The Program (parallel/pipeline.py) that runs the stages of a GPT."""

    def __init__(self, config: GPTConfig, parallel: ModelParallel):
        self.config = config
        self.parallel = parallel

    def enter(self, inputs: torch.Tensor | tuple) -> tuple[torch.Tensor, _ExtraInputs]:
        x, *extra = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
        # Positions and documents are distinguished by their dtype; the first stage may have no positions.
        position_ids = next((one for one in extra if one.dtype == torch.int64 and one.numel()), None)
        numbers = next((one for one in extra if one.dtype == torch.int32), None)
        documents = Documents(mask_of(numbers)) if numbers is not None else None
        turned, parallel = None, self.parallel
        if self.config.turns:
            # The first stage receives the tokens of whole sequences.
            length = self._length(x) if x.is_floating_point() else x.shape[1]
            turned = torch.arange(length, device=x.device) if position_ids is None else position_ids
            if parallel.context.size > 1:
                # With Ulysses, every rank has all tokens inside attention.
                turned = parallel.own_tokens(turned)
        if not x.is_floating_point():
            x = parallel.own_tokens(x)
        return x, _ExtraInputs(position_ids, numbers, documents, turned)

    def run(self, layers: Sequence[Callable], x: Any, extra: _ExtraInputs) -> Any:
        # Pass arguments only if they are needed, so that layers of other runs are not recompiled.
        apart: dict[str, Any] = {}
        in_chunks = self.parallel.context.size > 1
        if extra.documents is not None and not in_chunks:
            apart["documents"] = extra.documents
        with products_in(self.config, x.device.type):
            for layer in layers:
                if isinstance(layer, PositionEmbedding):
                    x = layer(x, *self._positions(x, extra.position_ids))
                elif isinstance(layer, nn.Module) and is_block(layer):
                    if in_chunks and "documents" not in apart:
                        apart["documents"] = self._bounds(x, extra.documents, layer.training)
                    if extra.turned is not None and "rotation" not in apart:
                        dtype = torch.bfloat16 if self.config.autocast else x.dtype
                        apart["rotation"] = rotation_of(self.config, extra.turned, dtype)
                    x = layer(x, **apart)
                else:
                    x = layer(x)
        return x

    def _positions(
        self, x: torch.Tensor, position_ids: torch.Tensor | None
    ) -> tuple[int, torch.Tensor | None]:
        """Return (first position, position ids) of this rank's tokens for the position embedding."""
        parallel, length = self.parallel, self._length(x)
        if position_ids is None and parallel.context.size > 1:
            position_ids = torch.arange(length, device=x.device).expand(len(x), -1)
        start = parallel.sequence.rank * (length // parallel.sequence.size)
        return start, None if position_ids is None else parallel.own_tokens(position_ids)

    def _length(self, hidden: torch.Tensor) -> int:
        """Return the length of the whole sequences, of which `hidden` may contain only a part."""
        return hidden.shape[1] * self.parallel.tokens_shared_by

    def _bounds(
        self, hidden: torch.Tensor, documents: Documents | None, training: bool
    ) -> tuple[Documents | None, ...]:
        size = torch.Size((len(hidden), self._length(hidden)))
        in_lengths = documents is None and as_lengths(self.config, hidden.device, hidden.dtype, training)
        return bounds_of_chunks(documents, size, self.parallel.context, in_lengths, hidden.device)

    def run_again(self, layers: Sequence[Callable], x: torch.Tensor, extra: _ExtraInputs) -> Any:
        return recomputed(self.parallel.stream, self.run, layers, x, extra)

    def leave(self, x: Any, extra: _ExtraInputs) -> torch.Tensor | tuple:
        # On the last stage, x is already the tuple for the loss.
        sent = [extra.position_ids if self.config.turns else None, extra.numbers]
        sent = [one for one in sent if one is not None]
        return x if isinstance(x, tuple) or not sent else (x, *sent)


def _loss(
    config: GPTConfig,
    parallel: ModelParallel,
    loss_function: LossFunction | None,
    outputs: tuple,
    labels: tuple,
) -> torch.Tensor:
    """Compute the loss from the last layer's output. DeepSpeed calls this with outputs and labels."""
    (hidden, weight, *rows), (targets, tokens, *inputs) = outputs, labels
    mask, denominator, token_losses, likeliest, answers, reference, dataset_ids = map(_or_none, inputs)
    custom = CustomInputs(loss_function, tokens, dataset_ids) if loss_function is not None else None
    with products_in(config, hidden.device.type):
        return language_model_loss(
            hidden,
            weight,
            targets,
            config,
            parallel,
            mask,
            denominator,
            token_losses,
            likeliest,
            answers,
            reference,
            rows[0] if rows else None,
            custom,
        )
