"""Hashes of nbtrain's own files, by which a run's certificate identifies the code that trained it."""

import functools
import hashlib
from collections.abc import Mapping

from nbtrain.base.version import PACKAGE


@functools.cache
def code_hashes() -> dict[str, str]:
    """Return {path in the package: SHA-256 in hex} for every Python file of nbtrain.

    The hashes are computed at the first call in this process.
    """
    paths = sorted(path for path in PACKAGE.rglob("*.py") if "_bundled" not in path.parts)
    return {
        path.relative_to(PACKAGE).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths
    }


def joint_sha256(hashes: Mapping[str, str]) -> str:
    """Return one SHA-256 in hex for several files, from {name: SHA-256 of the content}."""
    lines = "".join(f"{digest} {name}\n" for name, digest in sorted(hashes.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
