"""Print what a run needs to know about a host, as one line of JSON; run on the host with `python -`.

    NBTRAIN_NODE_RANK=0 python - '{"folders": [...], "token": ..., "device": ..., "interface": ...}'

The program runs on Python 3.6 and later, so that an old Python can report its version. It leaves no files on
the host.
"""

import contextlib
import json
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

PACKAGES = ("torch", "deepspeed")


def versions():
    """Return {package: version}, with None for a package that is not installed.

    Of these packages, only nbtrain is imported. Returns {} if this Python is too old to look up versions.
    """
    try:
        from importlib import metadata
    except ImportError:
        return {}
    found = dict.fromkeys((*PACKAGES, "nbtrain"))
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    with contextlib.suppress(ImportError):
        from nbtrain.base.version import __version__

        found["nbtrain"] = __version__
    return found


def place(interface):
    """Return the {address, port} at which other machines reach this host, or {trouble: the error}.

    The agent finds its address and port by the same rules.
    """
    from nbtrain.base.process.ports import port_to_listen_on
    from nbtrain.jobs.machine.node_address import own_address

    try:
        address = own_address(interface)[0]
        return {"address": address, "port": port_to_listen_on(address)}
    except Exception as error:
        return {"trouble": str(error)}


def gpus(chosen):
    """Return the names of the GPUs that ranks see if CUDA_VISIBLE_DEVICES is `chosen`; None means all."""
    from nbtrain.base.hardware.nvml import visible_gpus

    return [gpu.name for gpu in visible_gpus(chosen)]


def local_disk(local_dir, run):
    """Return the fields of NodeDisk for this node's local checkpoints; None if the run has no local_dir."""
    if local_dir is None:
        return None
    from dataclasses import asdict

    from nbtrain.base.run_directory.rundir import RunDir
    from nbtrain.jobs.machine.node_disk import node_disk

    node = int(os.environ["NBTRAIN_NODE_RANK"])
    return asdict(node_disk(local_dir, node, socket.gethostname(), RunDir(Path(run))))


def shared_memory():
    """Return the number of bytes in /dev/shm that can be allocated."""
    from nbtrain.jobs.machine.shared_memory import free_shared_memory

    return free_shared_memory()


def boot_id():
    return (read("/proc/sys/kernel/random/boot_id") or "").strip()


def read(path):
    """Return the text of a file; None if the file cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return None


def main(asked):
    answer = {
        "time": time.time(),
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "python": platform.python_version(),
        "versions": versions(),
        "missing": [path for path in asked["folders"] if not Path(path).is_dir()],
        "token": read(asked["token"]),
        "writable": os.access(Path(asked["token"]).parent, os.W_OK | os.X_OK),
        # False if none of the requested programs is installed: mpirun would start nothing on this host.
        "daemon": any(shutil.which(daemon) for daemon in asked.get("daemons", ())),
        "scratch": tempfile.gettempdir(),
        "scratch_free": shutil.disk_usage(tempfile.gettempdir()).free,
    }
    if answer["versions"].get("nbtrain"):
        try:
            answer["place"] = place(asked["interface"])
            answer["shared_memory"] = shared_memory()
            answer["local_disk"] = local_disk(asked["local_dir"], asked["run"])
            answer["gpus"] = gpus(asked["gpus"]) if asked["device"] == "gpu" else None
        except ImportError as error:
            answer["place"] = {"trouble": f"nbtrain cannot be loaded: {error}"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
