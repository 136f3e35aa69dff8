"""Torch's compiler (torch._dynamo), which takes seconds to import, is kept out of uncompiled runs.

    uncompiled           a function that compiled graphs do not contain
    leave_out_compiler   keeps torch and DeepSpeed from importing the compiler where nothing is compiled

Where the compiler is not loaded, nothing is being compiled.
"""

import inspect
import sys
from collections.abc import Callable
from unittest.mock import patch

import torch
from torch.utils import checkpoint

COMPILER = "torch._dynamo"


def uncompiled(function: Callable) -> Callable:
    """Exclude `function` from compiled graphs, because the compiler cannot follow unfinished collectives.

    torch.compiler.disable is applied at the first call after the compiler was loaded, because it loads it.
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
    """Keep the first step of an uncompiled run from loading the compiler. Call it once DeepSpeed is imported.

    Torch decorates functions of its optimizers so that they are not compiled. At its first call, each of them
    looks for its variant that the compiler has made, and loads the compiler if there is none; AdamW.step
    loads it always, to end a graph before and after the step. DeepSpeed imports its Muon, whose functions are
    decorated with torch.compile, to ask whether an optimizer is one; ours is not (train/engine/muon.py). A
    compiler that is loaded later, such as by a run's own code, works as always.
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
        # torch/_compile.py. In a version of torch that does not decorate them, there is nothing to keep out.
        if (function := vars(decorated).get("__wrapped__")) is not None:
            function.__dict__.setdefault("__dynamo_disable", function)
    # Without `differentiable`, which no run sets, a step needs no gradients (torch/optim/optimizer.py).
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
    torch.optim.AdamW.step = step  # type: ignore[method-assign]
    from deepspeed.runtime import compiler

    with patch.object(compiler, "compile", lambda: lambda function: function):
        import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401
