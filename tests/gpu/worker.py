"""The process of one step: `python -m tests.gpu.worker MODULE ROWS`, which tests/gpu/__main__.py starts.

Reads one JSON object from standard input: {"device", "gpus", "gpu_name", "folder", "done"}.
"""

import importlib
import json
import signal
import sys
from pathlib import Path

from nbtrain.base.process.parent_death import die_with_parent
from tests.gpu.cases import Place, find_all


def main(module: str, rows: str) -> int:
    die_with_parent(signal.SIGKILL)
    order = json.load(sys.stdin)
    done = order.pop("done")
    place = Place(**{**order, "folder": Path(order["folder"])})
    place.folder.mkdir(parents=True, exist_ok=True)
    return find_all(importlib.import_module(module).cases(place), Path(rows), done)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
