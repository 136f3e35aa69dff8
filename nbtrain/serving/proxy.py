"""Registers a model server for all runs with jupyter-server-proxy, behind Jupyter's own URL and login.

    <base_url>nbtrain-models/       a page for trying a model
    <base_url>nbtrain-models/v1     OpenAI's base_url; the api_key is Jupyter's token

The server listens on a Unix socket that only this user can open, and Jupyter's login protects access to it.
It starts with the first request, loads a model on demand, and unloads it after ten idle minutes.
"""

import sys
from typing import Any

START_SECONDS = 60


def models_entry() -> dict[str, Any]:
    """Return the entry for jupyter-server-proxy (group jupyter_serverproxy_servers, name nbtrain-models)."""
    command = [sys.executable, "-m", "nbtrain", "serve", "--uds", "{unix_socket}"]
    return {
        # Jupyter Server, the parent of this process, may be killed.
        "command": [*command, "--end-with-parent"],
        "unix_socket": True,
        "timeout": START_SECONDS,
        "absolute_url": False,
        "new_browser_tab": False,
        # The labextension adds the tile, in a separate category.
        "launcher_entry": {"enabled": False, "title": "Try a model"},
    }
