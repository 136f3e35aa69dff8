"""The function nb.serve: serves a run's model through OpenAI's API, in a process that ends with this one."""

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from nbtrain.api.run import RunLike, open_run
from nbtrain.base.errors import ConfigError

if TYPE_CHECKING:
    from nbtrain.serving.launched import Server


def serve(run: RunLike, port: int = 0, step: int | None = None, **options: Any) -> "Server":
    """Start a server for the newest checkpoint or the checkpoint of `step`, and wait until it responds.

    A cell shows its base_url and api_key, which any OpenAI client accepts. The server ends with `.stop()`,
    and together with this kernel. port 0 selects a free port. `options` are the options of `nbtrain serve`,
    such as host, max_batch, max_queue or chat_template: see docs/serving.md.
    """
    from nbtrain.serving.launched import Server
    from nbtrain.serving.options import ServeOptions

    known = {field.name for field in fields(ServeOptions)} - {"run", "uds", "idle_seconds"}
    if unknown := sorted(set(options) - known):
        raise ConfigError(
            f"{', '.join(unknown)}: no such option. The options are: {', '.join(sorted(known))}."
        )
    folder = str(open_run(run).directory.path)
    if isinstance(template := options.get("chat_template"), os.PathLike):
        options["chat_template"] = os.fspath(template)
    try:
        asked = ServeOptions(run=folder, port=port, step=step, **options)
    except TypeError:
        # ServeOptions compared a value with a number, and the value has another type.
        raise ConfigError(
            f"{options | {'port': port, 'step': step}}: an option has a value of the wrong type. Pass "
            "numbers as numbers, not as text."
        ) from None
    return Server(asked)
