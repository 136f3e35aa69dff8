"""TensorBoard behind Jupyter's own address and login, by jupyter-server-proxy, with a tile in the launcher.

    <base_url>tensorboard/            TensorBoard itself, behind a proxy (tensorboard_door.py)
    <base_url>nbtrain/tensorboard/    TensorBoard in a frame that keeps it live: what the tile opens

One TensorBoard for the output root shows every run; the page's ?run=NAME selects one run. The first cards on
the page show the loss.
"""

import html
import json
import sys
from pathlib import Path
from typing import Any

from nbtrain.base.run_directory.metrics import scalar
from nbtrain.base.workspace import output_root

PROXY_NAME = "tensorboard"
PAGE_PATH = "nbtrain/tensorboard/"

PAGE = Path(__file__).with_name("tensorboard.html")
# Scalars whose cards come first, if the run has them. TensorBoard orders the other cards by name.
PINNED = ("loss", "validation_loss")

# Time that jupyter-server-proxy waits until the proxy listens, which takes only a moment.
START_TIMEOUT_SECONDS = 60
RELOAD_INTERVAL_SECONDS = 5


def board_options() -> list[str]:
    """Return TensorBoard's command-line options. The proxy adds the address and the folder of the runs."""
    options = {
        "reload_interval": RELOAD_INTERVAL_SECONDS,
        "reload_multifile": "true",
        "window_title": "TensorBoard",
    }
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def board_command() -> list[str]:
    """Return the command line that starts TensorBoard with board_options()."""
    return [sys.executable, "-m", "tensorboard.main", *board_options()]


def tensorboard_command(port: int | str) -> list[str]:
    """Return the command line of the proxy in front of TensorBoard, which listens on the loopback
    interface.
    """
    door = [sys.executable, "-m", "nbtrain.lab.server.tensorboard_door"]
    return [*door, "--port", str(port), "--root", str(output_root()), *board_options()]


def tensorboard_page(address: str) -> str:
    """Return the page that keeps TensorBoard live. `address` is TensorBoard's URL and ends with a slash."""
    pinned = json.dumps([{"plugin": "scalars", "tag": scalar(name).tag} for name in PINNED])
    page = PAGE.read_text(encoding="utf-8")
    return page.replace("{{address}}", html.escape(address)).replace("{{pinned}}", html.escape(pinned))


def tensorboard_entry() -> dict[str, Any]:
    """Return the settings for jupyter-server-proxy (entry point group jupyter_serverproxy_servers, name
    tensorboard).
    """
    return {
        "command": tensorboard_command,
        "timeout": START_TIMEOUT_SECONDS,
        "absolute_url": False,
        "new_browser_tab": False,
        # An open page keeps requesting new points, which does not count as a user's activity.
        "update_last_activity": False,
        # The labextension adds the tile, in a separate category.
        "launcher_entry": {"enabled": False, "title": "TensorBoard", "path_info": PAGE_PATH},
    }
