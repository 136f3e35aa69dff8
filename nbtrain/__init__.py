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

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

from nbtrain.base.version import __version__  # noqa: F401

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
    from nbtrain.api.run import open_run
    from nbtrain.api.verbs import (
        data_card,
        generate,
        launcher,
        load,
        plan,
        prepare,
        runs,
        submit,
        tensorboard,
        twin,
    )


def __getattr__(name: str):
    if name in __all__:
        value = getattr(import_module("nbtrain.api.verbs"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'nbtrain' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


class _OldNames:
    """Asked for a module of nbtrain that does not exist: it may have moved."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith("nbtrain."):
            return None
        from nbtrain.base.moved import find_spec

        return find_spec(name)


sys.meta_path.append(_OldNames)  # type: ignore[arg-type]
