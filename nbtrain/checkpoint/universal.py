"""Converts a checkpoint of any layout to DeepSpeed's universal format, for its loader and for other tools.

    <to>/zero/<canonical name>/{fp32,exp_avg,exp_avg_sq,step}.pt    whole tensors; the vocabulary without its
                                                                    padding; for a matrix that Muon updates
                                                                    {fp32,momentum_buffer,step}.pt
    <to>/zero/<a pipeline's name> -> <canonical name>               links, so that a DeepSpeed pipeline
                                                                    of these layers finds the tensors too
    <to>/zero/optimizer_state.pt, <to>/mp_rank_00_model_states.pt   other files that the loader reads
    <to>/../latest_universal                                        the folder's name

DeepSpeed's converter (ds_to_universal) joins the files of each layout by different rules. This converter
reads our store, one tensor after the other, so the result does not depend on the layout. To resume with
nbtrain, no conversion is needed (reshape.py). DeepSpeed loads the result with {"checkpoint":
{"load_universal": true}} for ZeRO 1 and 2; its loader for ZeRO 3 (0.19.8) counts Adam's step once for each
parameter and gives all groups the first group's weight decay.

    python -m nbtrain.checkpoint.universal < {"run_dir": ..., "step": null, "to": null}  answers as JSON lines
"""

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.process.answers import answer_request
from nbtrain.base.process.signals import hear_signals
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.checkpoint.files.manifest import whole_step
from nbtrain.checkpoint.files.torch_files import write_file
from nbtrain.checkpoint.live.describe import UNIVERSAL_CHECKPOINT_VERSION
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.arithmetic.checkpoint_bytes import SPARE_BYTES
from nbtrain.model.names import OF_VOCABULARY, is_adapter, piped_name
from nbtrain.parallel.startup import prepare_deepspeed


def main() -> int:
    return answer_request(answers)


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Convert, and yield one "progress" answer for each parameter, then one "end" answer."""
    run = RunDir(request["run_dir"])
    step, torn = whole_step(run, request.get("step"))
    for number, reason in torn:
        yield {"kind": "note", "message": f"checkpoint global_step{number} is not used: {reason}"}
    to = Path(request["to"]) if request.get("to") else run.universal / f"global_step{step}"
    started = time.monotonic()
    # Loads DeepSpeed's own class of the loss scaler, so that the object can be written again.
    prepare_deepspeed("gpu" if torch.cuda.is_available() else "cpu")
    store = CheckpointStore(run.checkpoint(step))
    if any(map(is_adapter, store.parameters)):
        raise CheckpointError(
            f"{display(store.folder)}: holds only adapters, without the weights that they belong to. "
            "`nbtrain export` writes the merged model."
        )
    for done, total in write_universal(store, to):
        yield {"kind": "progress", "done": done, "total": total}
    yield {
        "kind": "end",
        "folder": str(to),
        "step": step,
        "parameters": len(store.parameters),
        "bytes": sum(path.stat().st_size for path in to.rglob("*.pt") if not path.parent.is_symlink()),
        "seconds": time.monotonic() - started,
    }


def write_universal(store: CheckpointStore, to: Path) -> Iterator[tuple[int, int]]:
    """Write `store` to the folder `to`, which appears once it is complete, and yield (elements done, total
    elements).

    One tensor is in memory at a time. Raises CheckpointError if `to` exists or if its disk has no room.
    """
    if to.exists():
        raise CheckpointError(
            f"{display(to)} already exists. Remove the folder, or name another one with --to."
        )
    to.parent.mkdir(parents=True, exist_ok=True)
    total = sum(parameter.count for parameter in store.parameters.values())
    held = sum(4 * len(parameter.states) * parameter.count for parameter in store.parameters.values())
    needed, free = held + SPARE_BYTES, shutil.disk_usage(to.parent).free
    if free < needed:
        raise CheckpointError(
            f"{display(to)}: needs {amounts.size(needed)}, but only {amounts.size(free)} is free. Free "
            "up space, or choose a folder on another disk with --to."
        )
    temporary = to.with_name(f".{to.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    done = 0
    try:
        for name, parameter in store.parameters.items():
            _write_parameter(store, temporary / "zero" / name, name)
            piped = temporary / "zero" / piped_name(name, store.num_layers, store.is_tied)
            piped.symlink_to(name)
            done += parameter.count
            yield done, total
        write_file(temporary / "zero" / "optimizer_state.pt", _optimizer_state(store))
        write_file(temporary / "mp_rank_00_model_states.pt", _model_state(store))
        temporary.replace(to)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    files.fsync_directory(to.parent)
    files.write_text(to.parent / "latest_universal", to.name)


def _write_parameter(store: CheckpointStore, folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    partition_dim = store.parameters[name].partition_dim
    for state in store.parameters[name].states:
        whole = store.full(name, state)
        if name in OF_VOCABULARY:
            whole = whole[: store.vocab_size]
        # A copy, because torch would write the complete storage of a view.
        entry: dict[str, Any] = {"param": whole.clone()}
        if name in OF_VOCABULARY:
            entry["vocab_tensor"] = True
        if partition_dim is not None:
            entry["cat_dim"] = partition_dim
        write_file(folder / f"{state}.pt", entry)
    write_file(folder / "step.pt", torch.tensor(store.step(name)))


def _optimizer_state(store: CheckpointStore) -> dict[str, Any]:
    """Return the state shared by all ranks: hyperparameters by group, loss scale, and Adam's step."""
    groups = [{**group, "params": [number]} for number, group in enumerate(store.hyperparameters)]
    step = torch.tensor(store.step(next(iter(store.parameters))))
    shared = {
        key: value
        for key in ("loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad")
        if (value := store.global_state.get(key)) is not None
    }
    return {
        **shared,
        "zero_stage": store.zero_stage,
        "ds_version": store.manifest["versions"]["deepspeed"],
        "param_groups": groups,
        # DeepSpeed's loader for ZeRO 3 reads the step from here.
        "optimizer_state_dict": {"state": {0: {"step": step}}, "param_groups": groups},
    }


def _model_state(store: CheckpointStore) -> dict[str, Any]:
    """Return the trainer's state and DeepSpeed's counters without the weights, which are in zero/."""
    return {
        "module": {},
        "optimizer": None,
        "lr_scheduler": None,
        "dp_world_size": store.data_axis_size,
        "mp_world_size": 1,
        **store.counters,
        "ds_version": store.manifest["versions"]["deepspeed"],
        "nbtrain": store.client_state,
        "universal_checkpoint_info": {
            "universal_checkpoint_version": UNIVERSAL_CHECKPOINT_VERSION,
            "original_vocab_size": store.vocab_size,
        },
    }


if __name__ == "__main__":
    hear_signals()
    sys.exit(main())
