"""nbtrain's server extension: REST routes under <base_url>nbtrain/, and the TensorBoard tile.

Importing it is cheap: the handlers and jupyter_server are imported when the server loads the extension.
"""

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "nbtrain.lab.server"}]


def _load_jupyter_server_extension(server_app: Any) -> None:
    from nbtrain.lab.server.extension import load

    load(server_app)
