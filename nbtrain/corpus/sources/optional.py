"""Packages that only some sources need: imported on use."""

from importlib import import_module
from typing import Any

from nbtrain.base.errors import DataError


def optional(package: str, where: str, what: str) -> Any:
    """The module `package`. Raises DataError, with the pip command, if it is missing: `what` needs it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise DataError(
            f"{where}: {what} needs the package {package.partition('.')[0]}, which is not installed: "
            "`pip install 'nbtrain[data]'`."
        ) from error
