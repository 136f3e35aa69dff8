"""`python -m nbtrain.checkpoint.pretrained`: one JSON request on stdin, JSON lines on stdout.

These are the requests and their answers:

    request   {"target": "hf" | "consolidated" | "gguf" | "peft", "run_dir", "step", "dtype", "to",
               "max_shard_bytes", "bos"}
                  writes the weights of a checkpoint into the folder `to`, which already has the config.json
                  and the tokenizer, and compares the written model with the run; bos is the token that
                  llama.cpp is to put before each text (recorded in a gguf file), or null
              {"target": "megatron", "tree", "to", "order", "tokens"}
                  joins a Megatron checkpoint tree into the file `to`; order and tokens may be null
    answers   {"kind": "progress", "stage": "write" | "check", "done", "total"}
              {"kind": "end", "bytes", "difference", "seconds", "notes"}   after an export
              {"kind": "end", "order", "notes"}                            after a Megatron tree was joined
              {"kind": "error", "error", "message"}                        an NbtrainError's class and message
"""

import errno
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base.errors import CheckpointError
from nbtrain.base.process.answers import answer_request
from nbtrain.base.process.signals import hear_signals
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import display
from nbtrain.checkpoint.pretrained.adapters import check_adapters, write_adapters
from nbtrain.checkpoint.pretrained.compare import compare
from nbtrain.checkpoint.pretrained.convert import convert
from nbtrain.checkpoint.pretrained.export import (
    check_consolidated,
    open_weights,
    write_consolidated,
    write_folder,
)
from nbtrain.checkpoint.pretrained.gguf_file import GGUFFile
from nbtrain.checkpoint.pretrained.plain import PlainModel
from nbtrain.checkpoint.pretrained.plain_gguf import PlainGGUF
from nbtrain.checkpoint.weights.merged import MergedWeights
from nbtrain.config.load import load_resolved
from nbtrain.pretrained.folder import SINGLE
from nbtrain.pretrained.megatron import find_tree
from nbtrain.pretrained.written import GGUF_FILE


def main() -> int:
    return answer_request(answers)


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Carry out one request, and yield its answers."""
    try:
        yield from _answers(request)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise CheckpointError(
            f"{display(Path(request['to']).parent)}: {error.strerror}, after the export had begun. Free "
            "up space, or choose a folder on another disk."
        ) from None


def _answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if request["target"] == "megatron":
        tree = find_tree(Path(request["tree"]))
        assert tree is not None, "the requesting process has found the tree"
        yield from convert(tree, Path(request["to"]), request["order"], request["tokens"])
        return
    started = time.monotonic()
    run, folder, target = RunDir(request["run_dir"]), Path(request["to"]), request["target"]
    config = load_resolved(run.config_yaml)
    step = request["step"]
    weights = open_weights(run, config, step, request["dtype"])
    checks: Iterator[float]
    notes: list[str] = []
    adapters = None
    if target == "peft":
        if not isinstance(weights.source, MergedWeights):
            raise CheckpointError(
                f"{display(run.path)}: has no checkpoint of its adapters yet, but --to peft writes only "
                "adapters. Train the run first."
            )
        adapters = weights.source.adapters, config, folder, weights.dtype
    if target == "hf":
        writing = write_folder(weights, config, folder, request["max_shard_bytes"])
    elif adapters is not None:
        writing = write_adapters(*adapters)
    elif target == "gguf":
        file = GGUFFile(weights, config, folder, request["bos"])
        notes = file.notes
        writing = file.write(folder / GGUF_FILE)
    else:
        writing = write_consolidated(weights, config, folder / SINGLE, step)
    done = 0
    for done, total in writing:
        yield {"kind": "progress", "stage": "write", "done": done, "total": total}
    rounds = config.model.num_layers + 1
    if target == "consolidated":
        rounds, checks = len(weights.source.parameters), check_consolidated(weights, config, folder / SINGLE)
    elif adapters is not None:
        rounds, checks = len(adapters[0].parameters), check_adapters(*adapters)
    else:
        plain = PlainModel(folder) if target == "hf" else PlainGGUF(folder / GGUF_FILE)
        checks = compare(plain, weights, config)
    differences = []
    for difference in checks:
        differences.append(difference)
        yield {"kind": "progress", "stage": "check", "done": len(differences), "total": rounds}
    yield {
        "kind": "end",
        "bytes": done,
        "difference": differences[-1],
        "seconds": time.monotonic() - started,
        "notes": notes,
    }


if __name__ == "__main__":
    hear_signals()
    sys.exit(main())
