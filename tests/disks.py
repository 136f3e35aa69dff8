"""Small disks that tests fill."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted_disk(
    folder: Path, size: str, refused: type[BaseException] = pytest.skip.Exception
) -> Iterator[Path]:
    """Create `folder` and mount an empty disk there, of a size such as "2m". Needs root.

    Raises `refused` where mounting is not allowed; by default the test is skipped.
    """
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        raise refused(f"mount is not allowed here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
