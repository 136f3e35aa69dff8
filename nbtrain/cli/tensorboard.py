"""`nbtrain tensorboard`: TensorBoard in any browser, live as in JupyterLab, until Ctrl-C."""

import argparse
import asyncio
import os
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.cli import completers
from nbtrain.cli.output import show
from nbtrain.cli.verbs import RUN_HELP, add_verb, complete


def add_verbs(under: Any) -> None:
    """Add the verb `nbtrain tensorboard` to `under`, the subparsers of nbtrain."""
    text = "Serves all runs in the output directory to browsers on this machine, until Ctrl-C."
    parser = add_verb(under, "tensorboard", tensorboard, text)
    text = f"Show only this run. {RUN_HELP}"
    complete(parser.add_argument("run", metavar="RUN", nargs="?", help=text), completers.runs)
    parser.add_argument(
        "--port", type=int, default=6006, metavar="PORT", help="Port to listen on; 0 selects a free port."
    )


def tensorboard(options: argparse.Namespace) -> int:
    """Serve TensorBoard until Ctrl-C."""
    from nbtrain.base.workspace import output_root
    from nbtrain.lab.server.tensorboard_door import IDLE_MINUTES, LOOPBACK, PAGE_PATH, Door
    from nbtrain.lab.server.tensorboard_proxy import board_command, tensorboard_page

    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port {options.port} must be between 0 and 65535; --port 0 selects a free port.")
    root, query = output_root(), ""
    if options.run:
        from nbtrain.api.run import open_run

        run = open_run(options.run).directory
        root, query = run.path.parent, f"?run={run.name}"
    door = Door(board_command(), 60 * IDLE_MINUTES, tensorboard_page("/").encode(), root)

    def say(port: int) -> None:
        show(f"TensorBoard: http://{LOOPBACK}:{port}{PAGE_PATH}{query}   (Ctrl-C ends it)")
        show(
            f"From another machine, run `ssh -L {port}:{LOOPBACK}:{port} HOST`, then open the same address.",
            flush=True,
        )

    try:
        asyncio.run(door.serve(LOOPBACK, options.port, say))
    except OSError as error:
        raise ConfigError(
            f"cannot listen on port {options.port} of {LOOPBACK} ({os.strerror(error.errno or 0)}): another "
            "program may be using the port. Use a free port, or --port 0."
        ) from None
    return 0
