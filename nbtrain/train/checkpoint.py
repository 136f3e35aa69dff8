"""Checkpoints: DeepSpeed writes the state of the engine, we decide what makes it count and what it must fit.

    save    room on the disk? -> DeepSpeed's files -> every rank hashes its share -> manifest.json -> latest -> prune
    choose  newest whole folder; torn ones are skipped, and that is said
    load    does it fit this run? -> DeepSpeed

With the engine's state go the data state, the random state of every rank and universal_checkpoint_info, so
that a resumed run makes the same steps, bit for bit, and that DeepSpeed can convert it to another layout.
"""

import logging
import platform
import shutil
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import nbtrain
from nbtrain import files
from nbtrain.config.parameters import count_parameters
from nbtrain.config.schema import RunConfig
from nbtrain.data.state import DataState
from nbtrain.errors import CheckpointError
from nbtrain.parallel import random
from nbtrain.parallel.agreement import broadcast_object, gather_objects
from nbtrain.parallel.startup import World, prepare_deepspeed, quiet
from nbtrain.rundir import EventWriter, RunDir
from nbtrain.train import checkpoint_manifest as manifests
from nbtrain.workspace import display

logger = logging.getLogger(__name__)

# DeepSpeed's constant for the layout of universal_checkpoint_info (deepspeed/checkpoint/constants.py).
UNIVERSAL_CHECKPOINT_VERSION = 0.2
# Beside the tensors: manifest, recovery scripts, file system overhead.
SPARE_BYTES = 16 << 20


@dataclass
class TrainState:
    """Where the training stands, beside what the engine holds."""

    step: int
    data: DataState
    evaluated_step: int | None = None
    validation_loss: float | None = None
    best_validation_loss: float | None = None


def choose(run: RunDir, world: World, events: EventWriter | None) -> dict[str, Any] | None:
    """The manifest of the newest checkpoint that is whole; None where there is no checkpoint at all.

    Called by all ranks together, each reads a share. A torn one is passed over, with an event and a log line.
    Raises CheckpointError where there are checkpoints and none is whole.
    """
    torn = []
    steps = broadcast_object(run.checkpoint_steps())
    assert isinstance(steps, list)
    for step in reversed(steps):
        folder = run.checkpoint(step)
        reason = broadcast_object(manifests.size_problem(folder) if world.rank == 0 else None)
        if reason is None:
            shares = gather_objects(manifests.content_problem(folder, world.rank, world.size))
            reason = next((share for share in shares if share), None)
        if reason is None:
            return files.read_json(folder / manifests.MANIFEST)
        torn.append(f"{folder.name}: {reason}")
        if events is not None:
            message = f"checkpoint {folder.name} is not used: {reason}; trying the one before it"
            logger.warning("%s", message)
            events.write("warning", message, step=step)
    if torn:
        raise CheckpointError(
            f"{run.model}: no checkpoint is whole: {'; '.join(torn)}. Remove the folder to train from the start, "
            "or put a good copy there."
        )
    return None


class Checkpointer:
    """Saves and loads the checkpoints of one run. Every method is called by all ranks together."""

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        engine: Any,
        world: World,
        tokenizer_sha256: str | None,
        events: EventWriter | None,
    ):
        self.run = run
        self.config = config
        self.engine = engine
        self.world = world
        self.tokenizer_sha256 = tokenizer_sha256
        self.events = events

    def save(self, state: TrainState) -> None:
        """Write the checkpoint of `state.step`. Raises CheckpointError where the disk is too small."""
        folder = self.run.checkpoint(state.step)
        problem = self._prepare(folder) if self.world.rank == 0 else None
        if agreed := broadcast_object(problem):
            raise CheckpointError(str(agreed))
        if self._is_whole(folder):
            return
        started = time.monotonic()
        client_state = {
            "nbtrain": {
                "state": {**vars(state), "data": state.data.to_dict()},
                "random": gather_objects(random.get_state()),
            },
            "universal_checkpoint_info": self._universal_checkpoint_info(),
        }
        try:
            with quiet():
                self.engine.save_checkpoint(
                    str(self.run.model), tag=folder.name, client_state=client_state, save_latest=False
                )
            names = manifests.payload(folder)
            shares = gather_objects(manifests.describe(folder, names[self.world.rank :: self.world.size]))
        except (OSError, RuntimeError) as error:
            # torch reports a full disk as a RuntimeError.
            raise CheckpointError(f"{folder}: the checkpoint could not be written: {error}") from error
        if self.world.rank == 0:
            described = {name: entry for share in shares for name, entry in share.items()}
            files.write_json(folder / manifests.MANIFEST, self._manifest(state, described))
            files.write_text(self.run.latest, folder.name)
            removed = manifests.prune(
                self.run,
                state.step,
                self.config.checkpoint.keep_last,
                self.config.checkpoint.keep_every_steps,
            )
            if self.events is not None:
                size = sum(entry["bytes"] for entry in described.values())
                self.events.write(
                    "checkpoint",
                    f"checkpoint of step {state.step} saved",
                    step=state.step,
                    bytes=size,
                    seconds=time.monotonic() - started,
                    removed_steps=removed,
                )

    def load(self, manifest: dict[str, Any], data: DataState) -> TrainState:
        """Put the checkpoint that `choose` found into the engine.

        `data` is the data state of a fresh run on the dataset that is there. Raises CheckpointError where the
        checkpoint does not fit the run.
        """
        step = manifest["step"]
        folder = self.run.checkpoint(step)
        self._check_fits(folder, manifest, data)
        with quiet():
            _, client_state = self.engine.load_checkpoint(
                str(self.run.model), tag=folder.name, load_lr_scheduler_states=False
            )
        saved = client_state["nbtrain"]
        state = TrainState(**{**saved["state"], "data": DataState.from_dict(saved["state"]["data"])})
        random.set_state(saved["random"][self.world.rank])
        if self.events is not None:
            self.events.write("checkpoint", f"resumed from the checkpoint of step {step}", step=step)
        return state

    # --- what a checkpoint needs and says --------------------------------------------------------------------

    def _prepare(self, folder: Path) -> str | None:
        """Rank 0: make room for a folder; a message where there is none."""
        self.run.model.mkdir(parents=True, exist_ok=True)
        if folder.exists() and manifests.size_problem(folder) is not None:
            shutil.rmtree(folder)
        if folder.exists():
            return None
        needed = checkpoint_bytes(self.config) + SPARE_BYTES
        free = shutil.disk_usage(self.run.model).free
        if free >= needed:
            return None
        return (
            f"{self.run.model}: a checkpoint needs {needed / 1e9:,.2f} GB and {free / 1e9:,.2f} GB are free. "
            "Free space, or lower checkpoint.keep_last; then resume the run."
        )

    def _is_whole(self, folder: Path) -> bool:
        return bool(broadcast_object(folder.exists() and manifests.size_problem(folder) is None))

    def _manifest(self, state: TrainState, described: dict[str, Any]) -> dict[str, Any]:
        return {
            "schema_version": manifests.SCHEMA_VERSION,
            "run_id": (self.run.record() or {}).get("run_id"),
            "step": state.step,
            "consumed_samples": state.data.consumed_samples,
            "consumed_tokens": state.data.consumed_samples * self.config.model.seq_length,
            "created_at": time.time(),
            "layout": layout(self.config),
            "architecture": architecture(self.config),
            "tokenizer_sha256": self.tokenizer_sha256,
            "data_state": state.data.to_dict(),
            "validation_loss": state.validation_loss,
            "versions": {
                "nbtrain": nbtrain.__version__,
                "torch": torch.__version__,
                "deepspeed": version("deepspeed"),
                "python": platform.python_version(),
            },
            "files": described,
        }

    def _universal_checkpoint_info(self) -> dict[str, Any]:
        return {
            "universal_checkpoint_version": UNIVERSAL_CHECKPOINT_VERSION,
            "original_vocab_size": self.config.tokenizer.vocab_size,
            "vocabulary_parameter_patterns": [r"word_embeddings\.weight"],
        }

    def _check_fits(self, folder: Path, manifest: dict[str, Any], data: DataState) -> None:
        found = []
        for title, ours in (
            ("architecture", architecture(self.config)),
            ("layout", layout(self.config)),
        ):
            theirs = manifest[title]
            found += [
                f"{title}.{key} is {theirs.get(key)!r} in the checkpoint and {value!r} in the run"
                for key, value in ours.items()
                if theirs.get(key) != value
            ]
        if manifest["tokenizer_sha256"] != self.tokenizer_sha256:
            found.append("the tokenizer is another one (its sha256 differs)")
        saved = DataState.from_dict(manifest["data_state"])
        for key in ("dataset_sha256", "seed", "split", "split_rule", "index_samples", "shuffle", "packing"):
            if getattr(saved, key) != getattr(data, key):
                found.append(
                    f"data: {key} is {getattr(saved, key)!r} in the checkpoint, {getattr(data, key)!r} now"
                )
        if found:
            raise CheckpointError(
                # One line: the first line of a rank's error is the cause of its job's end.
                f"{folder}: does not fit this run: {'; '.join(found)}. "
                "Restore the setting, or train the new one as another run."
            )


def architecture(config: RunConfig) -> dict[str, Any]:
    """What decides the shapes and the meaning of the parameters."""
    model = config.model
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "ffn_hidden_size": model.resolved_ffn_hidden_size,
        "max_position_embeddings": model.resolved_max_position_embeddings,
        "seq_length": model.seq_length,
        "padded_vocab_size": config.padded_vocab_size,
    }


def layout(config: RunConfig) -> dict[str, Any]:
    """How the state is cut into files. A checkpoint is loaded into the same layout only."""
    parallel, precision = config.parallel, config.precision
    return {
        "data_parallel_size": parallel.data_parallel_size,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "zero_stage": parallel.zero_stage,
        "weights": "fp32" if precision.autocast else precision.dtype,
    }


def checkpoint_bytes(config: RunConfig) -> int:
    """Bytes of one checkpoint: weights, fp32 masters where ZeRO keeps them apart, two moments."""
    weights = 4 if config.precision.dtype == "fp32" or config.precision.autocast else 2
    masters = 4 if config.parallel.zero_stage else 0
    return count_parameters(config).total * (weights + masters + 8)


def load_model_weights(run_dir: str | Path, step: int | None = None) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint by canonical name, on the CPU, in the format they were trained in.

    step None is the newest whole checkpoint. Needs no process group. Raises CheckpointError where there is none
    or where it is not whole.
    """
    run = RunDir(run_dir)
    if step is None:
        step, skipped = manifests.newest_whole(run)
        if step is None:
            reasons = "".join(f"\n  global_step{number}: {reason}" for number, reason in skipped)
            raise CheckpointError(f"{run.model}: holds no whole checkpoint; train the run first.{reasons}")
    elif reason := manifests.problem(run.checkpoint(step)):
        known = ", ".join(str(known) for known in run.checkpoint_steps()) or "none"
        raise CheckpointError(f"{display(run.checkpoint(step))}: {reason}. Checkpoints there: {known}.")
    folder = run.checkpoint(step)
    manifest = files.read_json(folder / manifests.MANIFEST)
    assert manifest is not None
    if manifest["layout"]["zero_stage"] == 3:
        return _gathered_zero3(folder)
    return _load(folder / "mp_rank_00_model_states.pt")["module"]


def _gathered_zero3(folder: Path) -> dict[str, torch.Tensor]:
    """ZeRO 3 keeps each parameter cut over the ranks: rank k holds the k-th of equal, padded parts."""
    prepare_deepspeed("gpu" if torch.cuda.is_available() else "cpu")
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum

    shapes = _load(folder / "zero_pp_rank_0_mp_rank_00_model_states.pt")["param_shapes"]
    ranks = len(list(folder.glob("*zero_pp_rank_*_mp_rank_00_optim_states.pt")))
    parts = []
    for rank in range(ranks):
        (path,) = folder.glob(f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        with torch.serialization.safe_globals([LossScaler, ZeroStageEnum]):
            parts.append(_load(path)["optimizer_state_dict"]["fp32_flat_groups"])
    weights = {}
    for group, group_shapes in enumerate(shapes):
        offset = 0
        for name, shape in group_shapes.items():
            share = -(-shape.numel() // ranks)
            pieces = [part[group].detach()[offset : offset + share] for part in parts]
            weights[name] = torch.cat(pieces)[: shape.numel()].view(shape)
            offset += share
    return weights


def _load(path: Path) -> dict[str, Any]:
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
