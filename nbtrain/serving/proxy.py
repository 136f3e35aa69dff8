"""Models of all runs behind Jupyter's own address and login, by jupyter-server-proxy.

    <base_url>nbtrain-models/       a page to try a model
    <base_url>nbtrain-models/v1     OpenAI's base_url; the api_key is Jupyter's token

The server listens on a Unix socket that only this user can enter, so that Jupyter's login is the one there
is. It starts at the first look, loads a model when it is asked for, and unloads it after ten minutes.
"""

import sys
from typing import Any

START_SECONDS = 60


def models_entry() -> dict[str, Any]:
    """Entry point for jupyter-server-proxy (group jupyter_serverproxy_servers, name nbtrain-models)."""
    command = [sys.executable, "-m", "nbtrain", "serve", "--uds", "{unix_socket}"]
    return {
        # Jupyter Server, whose child it is, may be killed.
        "command": [*command, "--end-with-parent"],
        "unix_socket": True,
        "timeout": START_SECONDS,
        "absolute_url": False,
        "new_browser_tab": False,
        # The labextension has the tile, in a category of its own.
        "launcher_entry": {"enabled": False, "title": "Try a model"},
    }
