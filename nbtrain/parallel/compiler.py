"""Keeps torch's compiler (torch._dynamo), which takes seconds to import, out of uncompiled runs.

Two functions do this:

    uncompiled           excludes a function from compiled graphs
    leave_out_compiler   prevents torch and DeepSpeed from importing the compiler in an uncompiled run
"""

import inspect
import sys
from collections.abc import Callable
from unittest.mock import patch

import torch
from torch.utils import checkpoint

COMPILER = "torch._dynamo"


def uncompiled(function: Callable) -> Callable:
    """Exclude `function` from compiled graphs, because the compiler cannot trace unfinished collectives.

    torch.compiler.disable would load the compiler, so it is applied only at the first call after something
    else has loaded the compiler. As long as the compiler is not loaded, nothing is being compiled.
    """
    made: list[Callable] = []

    def call(*arguments):
        if not made:
            if not torch.compiler.is_compiling() and COMPILER not in sys.modules:
                return function(*arguments)
            made.append(torch.compiler.disable(function))
        return made[0](*arguments)

    return call


def leave_out_compiler() -> None:
    """Prevent the first step of an uncompiled run from loading the compiler.

    Call it after importing DeepSpeed.

    Torch decorates functions of its optimizers so that they are not compiled. At the first call, each
    function looks for its disabled variant and, if there is none, loads the compiler to create it. AdamW.step
    always loads the compiler, to end a graph before and after the step. DeepSpeed imports its Muon, whose
    functions are decorated with torch.compile, only to check whether an optimizer is an instance of it;
    nbtrain's Muon is not (train/engine/muon.py). If something loads the compiler later, such as a run's own
    code, it works as usual.
    """
    if COMPILER in sys.modules:
        return
    optimizer = torch.optim.Optimizer
    for decorated in (
        optimizer.add_param_group,
        optimizer.zero_grad,
        optimizer.state_dict,
        optimizer.load_state_dict,
        checkpoint.checkpoint,
    ):
        # See torch/_compile.py. A version of torch that does not decorate these functions needs no change.
        if (function := vars(decorated).get("__wrapped__")) is not None:
            function.__dict__.setdefault("__dynamo_disable", function)
    # A step needs no gradients, because no run sets `differentiable` (torch/optim/optimizer.py).
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
    torch.optim.AdamW.step = step  # type: ignore[method-assign]
    from deepspeed.runtime import compiler

    with patch.object(compiler, "compile", lambda: lambda function: function):
        import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401
