"""Models of all runs behind Jupyter's own address and login, by jupyter-server-proxy, with a launcher tile.

    <base_url>nbtrain-models/       a page to try a model
    <base_url>nbtrain-models/v1     OpenAI's base_url; the api_key is Jupyter's token

The server listens on a Unix socket that only this user can enter, so that Jupyter's login is the one there
is. It starts at the first look, loads a model when it is asked for, and unloads it after ten minutes.
"""

import sys
from pathlib import Path
from typing import Any

PROXY_NAME = "nbtrain-models"
TITLE = "Try a model"
CATEGORY = "nbtrain"
START_SECONDS = 60


def models_entry() -> dict[str, Any]:
    """Entry point for jupyter-server-proxy (group jupyter_serverproxy_servers, name nbtrain-models)."""
    return {
        "command": [sys.executable, "-m", "nbtrain", "serve", "--uds", "{unix_socket}"],
        "unix_socket": True,
        "timeout": START_SECONDS,
        "absolute_url": False,
        "new_browser_tab": False,
        "launcher_entry": {
            "enabled": True,
            "title": TITLE,
            "icon_path": str(Path(__file__).with_name("tile.svg")),
            "path_info": f"{PROXY_NAME}/",
            "category": CATEGORY,
        },
    }
