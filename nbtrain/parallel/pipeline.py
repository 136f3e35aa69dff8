"""Pipeline stages from a list of layers, based on DeepSpeed's PipelineModule.

model/gpt_pipe.py passes the GPT's layers. This module changes PipelineModule as follows:

- The split into stages is an argument. PipelineModule would build every layer to count its parameters.
- Inputs that layers need besides the activations are sent from stage to stage, as a Program defines.
- Only the repeated layers (`repeated`) are recomputed, without reentrant checkpointing. DeepSpeed's own
  recomputation includes the embedding, whose input has no gradient, and therefore fails by default.

DeepSpeed sends a stage's output, a tensor or a tuple of tensors, to the next stage, and sends back the
gradients of its floating-point tensors. The first micro batch determines shapes and formats.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import nn

from nbtrain.base.topology import Topology
from nbtrain.parallel.startup import quiet

__all__ = ["BuiltLayer", "LayerSpec", "Pipeline", "Program", "TiedLayerSpec"]


class BuiltLayer(LayerSpec):
    """The specification of a layer that a function builds. DeepSpeed's LayerSpec supports only classes."""

    def __init__(self, build: Callable[[], nn.Module]):
        super().__init__(nn.Module)
        self._build = build

    def build(self, log: bool = False) -> nn.Module:
        """Build the layer. DeepSpeed calls this on the stage that has the layer."""
        return self._build()


class Program(Protocol):
    """Defines what a stage does with a micro batch.

    enter() builds `extra`, which contains the inputs that layers need besides the activations. Layers do not
    change `extra`.
    """

    def enter(self, inputs: torch.Tensor | tuple) -> tuple[torch.Tensor, Any]:
        """Return (input x of this stage's first layer, extra).

        `inputs` is the micro batch on the first stage, and the previous stage's output on all others.
        """

    def run(self, layers: Sequence[Callable], x: torch.Tensor, extra: Any) -> Any:
        """Run the layers in order, and return the output of the last layer."""

    def run_again(self, layers: Sequence[Callable], x: torch.Tensor, extra: Any) -> Any:
        """Run the layers in order and keep only their input x. The backward pass runs the layers again."""

    def leave(self, x: Any, extra: Any) -> torch.Tensor | tuple:
        """Return the tensors for the next stage or, on the last stage, for the loss."""


class Pipeline(PipelineModule):
    """This rank's stage of a pipeline with the layers `specs`. A layer is built only on its own stage.

    bounds[i] is the index of stage i's first layer, and the last bound is the number of layers. Only layers
    with indices in `repeated` are recomputed, `interval_layers` at a time; 0 keeps all activations.
    """

    def __init__(
        self,
        specs: Sequence[LayerSpec],
        bounds: Sequence[int],
        topology: Topology,
        program: Program,
        loss_fn: Callable,
        repeated: range,
        interval_layers: int = 0,
    ):
        axes = PipeModelDataParallelTopology(
            num_pp=topology.pipeline_parallel_size,
            num_mp=topology.tensor_parallel_size,
            num_dp=topology.data_parallel_size,
        )
        with quiet():
            super().__init__(specs, topology=axes, loss_fn=loss_fn, partition_method=list(bounds))
        self.program = program
        self.repeated = repeated
        self.interval_layers = interval_layers

    def _partition_layers(self, method: Any = None) -> None:
        # PipelineModule calls this with its partition_method, which is the list of bounds.
        self.parts = method
        self._set_bounds(self.parts[self.stage_id], self.parts[self.stage_id + 1])

    def _synchronize_tied_weights(self) -> None:
        # DeepSpeed 0.19.8 overwrites a leaf of the graph in place here. Autograd would record this and warn
        # about a broadcast without a gradient in the first backward pass.
        with torch.no_grad():
            super()._synchronize_tied_weights()

    def get_tied_weights_and_groups(self) -> list[tuple[Any, Any]]:
        """Return tied weights whose gradients the engine can sum, wherever ZeRO keeps them.

        DeepSpeed 0.19.8 sums `grad` or, with its BF16_Optimizer, `_hp_grad`. Under ZeRO 1 with fp16 weights,
        the gradients are already in `grad_accum` and `grad` is None, so the copies would silently drift
        apart.
        """
        return [(_TiedGradient(weight), group) for weight, group in super().get_tied_weights_and_groups()]

    @property
    def own_repeated(self) -> range:
        """Indices of the repeated layers on this stage."""
        return range(max(self._local_start, self.repeated.start), min(self._local_stop, self.repeated.stop))

    @property
    def layers(self) -> list[nn.Module]:
        """Repeated layers on this stage, in the order in which they run."""
        return [self.forward_funcs[index - self._local_start] for index in self.own_repeated]

    def forward(self, forward_input: torch.Tensor | tuple) -> torch.Tensor | tuple:
        """Run this stage on one micro batch. DeepSpeed's schedule calls this."""
        program, layers = self.program, self.forward_funcs
        x, extra = program.enter(forward_input)
        if not self.interval_layers or not torch.is_grad_enabled():
            return program.leave(program.run(layers, x, extra), extra)
        first = self.own_repeated.start - self._local_start
        last = self.own_repeated.stop - self._local_start
        x = program.run(layers[:first], x, extra)
        for start in range(first, last, self.interval_layers):
            x = program.run_again(layers[start : min(start + self.interval_layers, last)], x, extra)
        return program.leave(program.run(layers[last:], x, extra), extra)


class _TiedGradient:
    """A tied parameter, reduced to the attributes that DeepSpeed's engine reads."""

    def __init__(self, weight: nn.Parameter):
        self._weight: Any = weight

    @property
    def grad(self) -> torch.Tensor | None:
        accumulated = getattr(self._weight, "grad_accum", None)
        return self._weight.grad if accumulated is None else accumulated

    @property
    def _hp_grad(self) -> torch.Tensor | None:
        return getattr(self._weight, "_hp_grad", None)
