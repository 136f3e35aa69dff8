"""Removes locks left by killed builds of compiled ops, because later runs would silently wait for them.

While torch builds an extension, such as DeepSpeed's async_io for NVMe or its CPU Adam, a file `lock` exists
next to the extension. Other processes wait until the file is gone, which never happens if the building
process was killed. The building process keeps the file open, so a lock that no process has open is stale.
Processes on other machines are not visible, so on a file system that may be shared, a lock must also be old
to count as stale.
"""

import os
import time
from pathlib import Path

from nbtrain.base.files import file_system_of

# Minimum age of a stale lock on a local file system, so that a lock created during the check is not removed.
LOCAL_SECONDS = 5.0
# Minimum age on a file system that may be shared: the longest observed build on a busy machine.
SHARED_SECONDS = 1800.0
LOCAL_FILE_SYSTEMS = frozenset({"ext4", "ext3", "ext2", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "f2fs"})


def extensions_root() -> Path:
    """Return the folder where torch builds extensions: TORCH_EXTENSIONS_DIR or the user's cache."""
    if folder := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(folder)
    from torch._appdirs import user_cache_dir

    return Path(user_cache_dir(appname="torch_extensions"))


def remove_stale_locks(root: Path | None = None) -> list[Path]:
    """Remove stale locks, and return their paths."""
    root = root or extensions_root()
    # Ops are in the root, or in a subfolder for a version of Python and CUDA.
    locks = {path.resolve() for pattern in ("*/lock", "*/*/lock") for path in root.glob(pattern)}
    removed: list[Path] = []
    if not locks:
        return removed
    oldest = LOCAL_SECONDS if file_system_of(root) in LOCAL_FILE_SYSTEMS else SHARED_SECONDS
    for lock in sorted(locks - _held_open()):
        try:
            if time.time() - lock.stat().st_mtime >= oldest:
                lock.unlink()
                removed.append(lock)
        except FileNotFoundError:  # the build has finished in the meantime
            continue
    return removed


def _held_open() -> set[Path]:
    """Return the files that are open in any process on this machine that this process may inspect."""
    held = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            held.add(descriptor.readlink())
        except OSError:  # the process is gone or belongs to another user
            continue
    return held
