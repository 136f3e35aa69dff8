"""Tries the file of a run's `code` in a separate process, before the run is submitted.

    python -m nbtrain.train.code     {"path": "my_code.py", "config": {...}}
                                     ->  {"kind": "tried", "own_block": {"sharded": 98304, ...}}

jobs/request/own_code.py starts it. own_block is null without layer(). An error is answered as
{"kind": "error", "error": "CodeError", "message"}.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

from nbtrain.base.errors import NbtrainError
from nbtrain.base.process.signals import hear_signals
from nbtrain.base.workspace import workspace
from nbtrain.checkpoint.user_code import UserCode, checked
from nbtrain.config.schema import RunConfig
from nbtrain.train.code.trial import try_code


def main() -> int:
    request = json.load(sys.stdin)
    # Ranks start in the workspace, so relative paths in the user's file are relative to the workspace.
    if (folder := workspace()).is_dir():
        os.chdir(folder)
    # A user's file may read its rank from the environment.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        config = RunConfig.model_validate(request["config"])
        block = try_code(config, UserCode(checked(Path(request["path"]))))
    except NbtrainError as error:
        answer: dict[str, Any] = {"kind": "error", "error": type(error).__name__, "message": str(error)}
    else:
        answer = {"kind": "tried", "own_block": None if block is None else asdict(block)}
    # The user's file may have printed text without a line break at the end.
    print(f"\n{json.dumps(answer)}", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    hear_signals()
    sys.exit(main())
