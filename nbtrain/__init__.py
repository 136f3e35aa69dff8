"""nbtrain: from raw text to a trained, watched, generating GPT, without leaving JupyterLab.

    import nbtrain as nb

    nb.load(yaml, overrides)      the checked configuration of a run
    nb.prepare(run)               corpus -> tokenizer -> .bin/.idx
    nb.data_card(prefix)          what is in a dataset, with pictures
    nb.plan(run)                  parameters, memory, time, disk
    nb.twin(run)                  a small run of the same shape, on this machine's CPU
    nb.submit(run)                start it (or pick it up again) as a detached job
    nb.runs(), nb.open_run(name)  find it again, from any kernel
    nb.launcher()                 the same as a form
    nb.tensorboard(run)           the live TensorBoard panel
    nb.generate(run, prompt)      text from the newest checkpoint

Importing this package costs milliseconds: every name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "data_card",
    "generate",
    "launcher",
    "load",
    "open_run",
    "plan",
    "prepare",
    "runs",
    "submit",
    "tensorboard",
    "twin",
]

if TYPE_CHECKING:
    from nbtrain.api import (
        data_card,
        generate,
        launcher,
        load,
        open_run,
        plan,
        prepare,
        runs,
        submit,
        tensorboard,
        twin,
    )


def __getattr__(name: str):
    if name in __all__:
        value = getattr(import_module("nbtrain.api"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'nbtrain' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
