"""Runs in a Dask worker: checks that the worker's software matches, then processes parts one at a time."""

import functools
import os
import pickle
import platform
import socket
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from nbtrain.base.code_hashes import code_hashes, joint_sha256
from nbtrain.base.errors import DataError
from nbtrain.base.version import __version__
from nbtrain.corpus.workers import lease

# Packages that affect the bytes of a shard, in addition to nbtrain.
LIBRARIES = ("numpy", "tokenizers", "fastokens", "orjson", "lxml", "ftfy", "rensa", "sentencex", "pyarrow")


class Order(NamedTuple):
    """Instructions for a worker, sent with each part as a plain tuple that any nbtrain version can read."""

    key: str
    software: dict[str, str]
    environment: dict[str, str]
    lease: str
    token: str
    make: bytes
    """Pickled `make` of ordered_map(), unpickled only if the worker has the software in `software`."""


@functools.cache
def software() -> dict[str, str]:
    """Return the versions of the software that affects the bytes of a shard.

    nbtrain's version includes a hash of its files.
    """
    python = ".".join(platform.python_version_tuple()[:2])
    found = {"python": python, "nbtrain": f"{__version__} ({joint_sha256(code_hashes())[:12]})"}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


# Parts run one at a time, however many threads the worker has, because encoders keep state and a part keeps a
# core busy.
_one_part = threading.Lock()
_key: str | None = None
_function: Callable[[Any], Any]


def run(order: bytes, task: bytes | str) -> bytes:
    """Run one task and return its pickled result; `task` is a pickle, or the path of a file with one."""
    with _one_part:
        function = _function_of(Order(*pickle.loads(order)))
        return pickle.dumps(
            function(pickle.loads(Path(task).read_bytes() if isinstance(task, str) else task))
        )


def _function_of(order: Order) -> Callable[[Any], Any]:
    global _key, _function
    worker = f"Dask worker {socket.gethostname()} (process {os.getpid()})"
    if order.key != _key:
        here = software()
        if differing := [
            name for name in {**order.software, **here} if order.software.get(name) != here.get(name)
        ]:
            found = ", ".join(
                f"{name} {here.get(name, 'missing')} on the worker, "
                f"{order.software.get(name, 'missing')} in this process"
                for name in differing
            )
            raise DataError(
                f"{worker}: {found}. Workers must have the same software as this process, otherwise shards "
                "may differ. Restart the workers in the same Python environment."
            )
        os.environ.update(order.environment)
    lease.hold(Path(order.lease), order.token, worker)
    if order.key != _key:
        _function = pickle.loads(order.make)()
        _key = order.key
    return _function
