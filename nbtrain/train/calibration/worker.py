"""One rank of a calibration: it measures together with the others, and rank 0 prints the results.

    python -m nbtrain.train.calibration.worker '{"device": "cpu", "until": 1234.5, "slices": 99, ...}'

__main__.py starts the ranks with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

from nbtrain.base.process.signals import hear_signals
from nbtrain.parallel import startup
from nbtrain.train.calibration import collectives, engine_steps, kernels
from nbtrain.train.calibration.stopwatch import Stopwatch, ranks

TIMEOUT_SECONDS = 600.0
ZERO_STAGES = (0, 1, 3)


def main(request: dict[str, Any]) -> None:
    """Run the measurements of `request` with the other ranks. Rank 0 prints one JSON line for each."""
    world = startup.start(request["device"], TIMEOUT_SECONDS)
    watch = Stopwatch(
        world.device,
        request["until"],
        request["slices"],
        request["engines"],
        request["build_seconds"],
        request.get("clock") == "cpu",
    )
    for figure in figures(watch, request):
        spread = watch.take_spread()
        if world.rank == 0:
            answer = {"kind": "figure", "ranks": world.size, **figure, "spread": spread}
            print(json.dumps(answer), flush=True)
    startup.finish()


def figures(watch: Stopwatch, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run the parts that the request selects (kernels, steps, collectives), and yield each measurement."""
    on_gpu = watch.device.type == "cuda"
    if "kernels" in request["parts"]:
        sizes = kernels.GPU_SIZES if on_gpu else kernels.CPU_SIZES
        formats = kernels.usable_formats(watch.device)
        yield from kernels.measure(watch, sizes, formats, request["model_formats"])
    if "steps" in request["parts"]:
        for dtype in request["model_formats"]:
            for stage in ZERO_STAGES:
                if stage or dtype == "fp32":  # 16-bit weights need ZeRO (config/deepspeed/ds_config.py)
                    yield from engine_steps.measure(watch, dtype, stage)
    if "collectives" in request["parts"] and ranks() > 1:
        yield from collectives.measure(watch, collectives.GPU_BYTES if on_gpu else collectives.CPU_BYTES)


if __name__ == "__main__":
    hear_signals()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.manual_seed(0)
    main(json.loads(sys.argv[1]))
