"""A rank that loads all modules, waits for an order, and trains: `python -m tests.gpu.warm gpu`.

The order is one JSON line on standard input: {"run", "answer", "log", "watch", "environment"}. Without an
order the process ends. The answer file gets the measured values as JSON. The GPU is not used before the
order.
"""

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.process.parent_death import die_with_parent

# Imports of a rank, including the parts that DeepSpeed loads at its first call.
LOADED = (
    "deepspeed.runtime.engine",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.bf16_optimizer",
    "torch._dynamo",
    "torch.utils.tensorboard",
    "nbtrain.config.rules.check",
    "nbtrain.dataset.samples.gpt_dataset",
    "nbtrain.train.trainer",
)


def main(device: str) -> int:
    die_with_parent(signal.SIGKILL)
    from nbtrain.parallel.startup import prepare_deepspeed

    prepare_deepspeed(device)
    for module in LOADED:
        importlib.import_module(module)
    line = sys.stdin.readline()
    return obey(json.loads(line), device) if line else 0


def obey(order: dict[str, Any], device: str) -> int:
    """Train as the order says and return the exit code."""
    # Includes output that libraries write from C.
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for target in (1, 2):
        os.dup2(log, target)
    os.environ.update(order["environment"])

    from nbtrain.train.__main__ import main as train
    from tests.gpu.watch import WATCHES

    watch = WATCHES[order["watch"]](device)
    code = train(order["run"])
    if code == 0:
        files.write_json(Path(order["answer"]), watch.found())
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
