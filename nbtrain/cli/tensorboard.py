"""`nbtrain tensorboard`: TensorBoard in any browser, live as in JupyterLab, until Ctrl+C."""

import argparse
import asyncio
import os
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.cli.verbs import add_verb


def add_verbs(under: Any) -> None:
    """Add the verb below `under`, the subparsers of nbtrain."""
    text = "Serve TensorBoard of the output root to a browser of this machine, until Ctrl+C."
    one = add_verb(under, "tensorboard", tensorboard, text)
    one.add_argument("run", metavar="RUN", nargs="?", help="a run's name, folder or YAML: show this one")
    one.add_argument("--port", type=int, default=6006, help="6006; 0 takes a free one")


def tensorboard(options: argparse.Namespace) -> int:
    from nbtrain.base.workspace import output_root
    from nbtrain.lab.server.tensorboard_door import IDLE_MINUTES, LOOPBACK, PAGE_PATH, Door
    from nbtrain.lab.server.tensorboard_proxy import board_command, tensorboard_page

    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port {options.port} must be from 0 (a free one) to 65535. Give --port 0.")
    root, query = output_root(), ""
    if options.run:
        from nbtrain.api.run import open_run

        run = open_run(options.run).directory
        root, query = run.path.parent, f"?run={run.name}"
    door = Door(board_command(), 60 * IDLE_MINUTES, tensorboard_page("/").encode(), root)

    def say(port: int) -> None:
        print(f"TensorBoard: http://{LOOPBACK}:{port}{PAGE_PATH}{query}   (Ctrl+C ends it)")
        print(
            f"From another machine: ssh -L {port}:{LOOPBACK}:{port} HOST, then the same address.", flush=True
        )

    try:
        asyncio.run(door.serve(LOOPBACK, options.port, say))
    except OSError as error:
        raise ConfigError(
            f"port {options.port} of {LOOPBACK} cannot be had ({os.strerror(error.errno or 0)}): another "
            "program may have it. Give a free one, or --port 0."
        ) from None
    return 0
