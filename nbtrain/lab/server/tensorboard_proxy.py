"""TensorBoard behind Jupyter's own address and login, by jupyter-server-proxy, with a tile in the launcher.

    <base_url>tensorboard/            TensorBoard itself, started at its first request, on the loopback
    <base_url>nbtrain/tensorboard/    TensorBoard in a frame that keeps it live: what the tile opens

One TensorBoard at the output root serves every run; ?runFilter= picks one.
"""

import sys
from pathlib import Path
from typing import Any

from nbtrain.base.workspace import output_root

PROXY_NAME = "tensorboard"
PAGE_PATH = "nbtrain/tensorboard/"

# TensorBoard needs 2 s on an idle machine and much more while a job trains on every core.
START_TIMEOUT_SECONDS = 60
RELOAD_INTERVAL_SECONDS = 5


def tensorboard_command(port: int | str) -> list[str]:
    """The command line of a TensorBoard at the output root, on the loopback."""
    options = {
        "logdir": output_root(),
        "host": "127.0.0.1",
        "port": port,
        "reload_interval": RELOAD_INTERVAL_SECONDS,
        "reload_multifile": "true",
        "window_title": "TensorBoard",
    }
    words = (word for name, value in options.items() for word in (f"--{name}", str(value)))
    return [sys.executable, "-m", "tensorboard.main", *words]


def tensorboard_entry() -> dict[str, Any]:
    """Entry point for jupyter-server-proxy (group jupyter_serverproxy_servers, name tensorboard)."""
    return {
        "command": tensorboard_command,
        "timeout": START_TIMEOUT_SECONDS,
        "absolute_url": False,
        "new_browser_tab": False,
        # The page asks for new points as long as it is open: that is no activity of a person.
        "update_last_activity": False,
        "launcher_entry": {
            "enabled": True,
            "title": "TensorBoard",
            "icon_path": str(Path(__file__).with_name("tensorboard.svg")),
            "path_info": PAGE_PATH,
            # JupyterLab draws an icon given by address only in the groups Notebook and Console.
            "category": "Notebook",
        },
    }
