"""Imports packages of the extras `data` and `dask` when they are needed."""

from importlib import import_module
from typing import Any

from nbtrain.base.errors import DataError
from nbtrain.base.extras import install_command


def optional(package: str, needed_by: str, instead: str = "", extra: str = "data") -> Any:
    """Import `package` and return it. Raises the error of missing() if it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        raise missing(package, needed_by, instead, extra) from error


def missing(package: str, needed_by: str, instead: str = "", extra: str = "data") -> DataError:
    """Return the error for a missing package, with the pip command; `instead` names an alternative."""
    return DataError(
        f"{needed_by} needs the package {package.partition('.')[0]}, which is not installed. Install it with "
        f"`{install_command(extra)}`{instead and ', or ' + instead}."
    )
