"""The user's layer() as a model calls it: every block that it returns is checked, and errors inside it are
reported as errors of the user's file.

    own_layer(code)                         for training: the file is imported already
    recorded_layer(run, config, manifest)   for readers of a checkpoint: the file recorded with the run

A block is accepted if its parameters are exactly those that LayerParts created, so that a checkpoint knows
the name and the shards of each parameter, and if it has no other state, which a checkpoint would lose.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from nbtrain.base.errors import CheckpointError, CodeError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import display
from nbtrain.checkpoint.user_code import UserCode, load_user_code, shown
from nbtrain.config.code_file import submitted_functions
from nbtrain.config.schema import RunConfig
from nbtrain.model.custom_layer import LayerParts
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.names import is_adapter

CONTEXT = ("cache", "documents", "rotation")
MAKE = (
    "Create it with parts.parameter(name, *shape, shard_dim=...), parts.column_linear() or parts.row_linear()"
)


class OwnLayer:
    """A LayerFunction (model/custom_layer.py) that calls the user's layer() and checks the block that it
    returns.
    """

    def __init__(self, code: UserCode):
        self._code = code

    def __call__(self, config: GPTConfig, index: int, parts: LayerParts) -> nn.Module:
        block: Any = self._code.call("layer", config, index, parts)
        if not isinstance(block, nn.Module):
            raise self._error(f"layer returned {shown(block)}", "Return the block as a torch.nn.Module")
        self._check_state(block, index, parts)
        self._check_signature(block)
        forward = block.forward

        def blamed(x: torch.Tensor, **context: Any) -> torch.Tensor:
            with self._code.blamed("layer"):
                y = forward(x, **context)
            if not isinstance(y, torch.Tensor) or (y.shape, y.dtype) != (x.shape, x.dtype):
                raise self._error(
                    f"block {index} received {shown(x)} and returned {shown(y)}",
                    "A block must return the residual stream in the shape and number format of x",
                )
            return y

        block.forward = blamed  # type: ignore[method-assign]
        return block

    def _check_state(self, block: nn.Module, index: int, parts: LayerParts) -> None:
        made = set(map(id, parts.parameters()))
        for name, parameter in block.named_parameters():
            if id(parameter) not in made:
                raise self._error(
                    f"the parameter {name} of block {index} was not created by `parts`, so its initial "
                    "values and its shards on tensor-parallel ranks are unknown",
                    MAKE,
                )
            if not parameter.requires_grad:
                raise self._error(
                    f"the parameter {name} of block {index} is frozen",
                    "Make it trainable, or use a buffer instead",
                )
            if is_adapter(name):
                raise self._error(
                    f"the parameter {name} of block {index} has a name that is reserved for adapters",
                    "Rename it",
                )
        held = set(map(id, block.parameters()))
        if lost := [list(made.shape) for made in parts.parameters() if id(made) not in held]:
            raise self._error(
                f"`parts` created a parameter of shape {lost[0]} that is not in block {index}: it would be "
                "neither trained nor saved",
                "Assign it to an attribute of the module. Put several into a torch.nn.ParameterList or "
                "ModuleList, because torch does not search Python lists",
            )
        for place, module in block.named_modules():
            for name in module._buffers.keys() - module._non_persistent_buffers_set:
                raise self._error(
                    f"the buffer {f'{place}.{name}'.lstrip('.')} of block {index} would not be saved in "
                    "checkpoints",
                    "If it is computed from config, register it with persistent=False. Other values would be "
                    "lost on a resume",
                )

    def _check_signature(self, block: nn.Module) -> None:
        try:
            inspect.signature(block.forward).bind(None, **dict.fromkeys(CONTEXT))
        except TypeError as error:
            raise self._error(
                f"forward() of {type(block).__name__} cannot be called with x and the arguments of "
                f"attention ({', '.join(CONTEXT)}): {error}",
                "Write `def forward(self, x, **context):` and call self.attention(..., **context)",
            ) from error

    def _error(self, problem: str, fix: str) -> CodeError:
        return self._code.error("layer", problem, f"{fix}.")


def own_layer(code: UserCode | None) -> OwnLayer | None:
    """Return the layer() function that a run's `code` file defines; None if there is no such function."""
    return OwnLayer(code) if code is not None and code.defines("layer") else None


def recorded_layer(run: RunDir, config: RunConfig, manifest: Mapping[str, Any]) -> OwnLayer | None:
    """Return the layer() function that a checkpoint of a run was trained with; None if its blocks are
    nbtrain's own.

    `manifest` is the checkpoint's manifest. The user's file is imported only if it defines layer(). Raises
    CodeError if the file differs from the one that was submitted, and CheckpointError if the checkpoint was
    trained with a different file.
    """
    if config.code is None or "layer" not in submitted_functions(run):
        return None
    code = load_user_code(run, config)
    assert code is not None
    if manifest["code_sha256"] != code.sha256:
        raise CheckpointError(
            f"{display(code.path)}: has the SHA-256 {code.sha256[:12]}..., but the checkpoint was trained "
            f"with the layer() of a file {str(manifest['code_sha256'])[:12]}...: restore that file."
        )
    return OwnLayer(code)
