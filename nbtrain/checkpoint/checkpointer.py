"""Checkpoints: DeepSpeed makes the state of the engine, we decide what makes it count and what it must fit.

    save    room on the disk? -> DeepSpeed's files, hashed while written -> manifest.json -> latest -> prune
            checkpoint.async_save: copied to host memory; files and manifest follow in the background (checkpoint_writer.py)
    choose  newest whole folder; torn ones are skipped, and that is said
    load    does it fit this run? -> same layout: DeepSpeed's own load, bit for bit; another one: reshape.py
            -> the certificate of what the resume keeps (certificate.py)

With the engine's state go the data state, the random state of every rank and universal_checkpoint_info, so
that a resumed run makes the same steps, bit for bit, and that DeepSpeed can convert it to another layout.
"""

import dataclasses
import hashlib
import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.events import EventWriter
from nbtrain.base.rundir import RunDir
from nbtrain.checkpoint import certificate, reshape
from nbtrain.checkpoint import manifest as manifests
from nbtrain.checkpoint.certificate import Samples
from nbtrain.checkpoint.describe import UNIVERSAL_CHECKPOINT_VERSION, architecture, layout
from nbtrain.checkpoint.state import TrainState
from nbtrain.checkpoint.store import CheckpointStore
from nbtrain.checkpoint.writer import SHARES, BackgroundSave, CheckpointWriter, Described
from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_room_bytes
from nbtrain.config.resume import misfits
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.samples.state import DataState
from nbtrain.model.names import optimizer_group
from nbtrain.parallel import random
from nbtrain.parallel.agreement import broadcast_object, gather_objects
from nbtrain.parallel.random import TensorParallelStream
from nbtrain.parallel.startup import World, quiet
from nbtrain.parallel.wishes import NOTHING, SAVE

logger = logging.getLogger(__name__)

# Where DeepSpeed copies the swap files of state that is offloaded to NVMe.
SWAPPED = "offloaded_tensors"


@dataclass(frozen=True)
class Saved:
    """A checkpoint that counts."""

    step: int
    bytes: int
    stall_seconds: float
    """How long training stood still for it."""
    write_seconds: float
    """How long it took until it counted, training or not."""
    removed_steps: list[int]
    """Older checkpoints that went."""


class Checkpointer:
    """Saves and loads the checkpoints of one run."""

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        engine: Any,
        world: World,
        tokenizer_sha256: str | None,
        events: EventWriter | None,
        samples: Samples | None = None,
        stream: TensorParallelStream | None = None,
    ):
        """`engine` is DeepSpeed's own; it is given the writer of its files here.

        `samples`: the training split, for the hash of the next batch. `stream`: the tensor-parallel dropout's.
        """
        self.run = run
        self.config = config
        self.engine = engine
        self.world = world
        self.tokenizer_sha256 = tokenizer_sha256
        self.events = events
        self.samples = samples
        self.stream = stream
        self.writer = CheckpointWriter(background=config.checkpoint.async_save)
        if engine is not None:
            engine.checkpoint_engine = self.writer
        self._in_flight: BackgroundSave | None = None
        self._saved: Saved | None = None
        self._told: Saved | None = None
        self._parameters: dict[str, Any] | None = None

    # --- at a step boundary ----------------------------------------------------------------------------------

    def wish(self) -> int:
        """SAVE where this rank's part of a background save has failed, so that all ranks hear of it; else NOTHING."""
        return SAVE if self._in_flight is not None and self._in_flight.error else NOTHING

    def poll(self) -> Saved | None:
        """Rank 0: the checkpoint that has come to count since it was asked last. Costs nothing."""
        self._tell_saved()
        told, self._told = self._told, None
        return told

    def _tell_saved(self) -> None:
        # The background thread leaves it here: events have one writer, the main thread.
        saved, self._saved = self._saved, None
        if saved is None:
            return
        self._told = saved
        if self.events is not None:
            self.events.write(
                "checkpoint",
                f"checkpoint of step {saved.step} saved",
                step=saved.step,
                bytes=saved.bytes,
                seconds=saved.write_seconds,
                stall_seconds=saved.stall_seconds,
                removed_steps=saved.removed_steps,
            )

    # --- all ranks together ----------------------------------------------------------------------------------

    def save(self, state: TrainState) -> float:
        """Write the checkpoint of `state.step`, or begin to; the seconds that training stood still for it.

        Raises CheckpointError, on all ranks, where the disk is too small or the save before this one has failed.
        """
        started = time.monotonic()
        self.finish()
        folder = self.run.checkpoint(state.step)
        problem = self._prepare(folder) if self.world.rank == 0 else None
        if agreed := broadcast_object(problem):
            raise CheckpointError(str(agreed))
        if self._is_whole(folder):
            return time.monotonic() - started
        client_state = {
            "nbtrain": {
                "state": {**vars(state), "data": state.data.to_dict()},
                "random": gather_objects(self._random_state()),
                "optimizer_names": self._optimizer_names(),
            },
            "universal_checkpoint_info": self._universal_checkpoint_info(),
        }
        try:
            with quiet():
                self.engine.save_checkpoint(
                    str(self.run.model), tag=folder.name, client_state=client_state, save_latest=False
                )
        except (OSError, RuntimeError) as error:
            raise CheckpointError(f"{folder}: the checkpoint could not be written: {error}") from error
        manifest = self._manifest(state)
        # `state` goes on with the training while the files are written.
        step = state.step
        if self.writer.background:
            self.writer.wait_for_copies()
            stall = time.monotonic() - started

            def publish(shares: dict[int, Described]) -> None:
                self._publish(step, manifest, shares, started, stall)

            self._in_flight = BackgroundSave(self.writer, folder, self.world.rank, self.world.size, publish)
            return stall
        shares = dict(enumerate(gather_objects(self.writer.described)))
        if self.world.rank == 0:
            self._publish(step, manifest, shares, started, None)
            self._tell_saved()
        return time.monotonic() - started

    def finish(self) -> None:
        """Wait until the checkpoint in flight counts; nothing where there is none.

        Raises CheckpointError, on all ranks, where it could not be written; its folder is removed.
        """
        saving, self._in_flight = self._in_flight, None
        if saving is None:
            return
        errors = [error for error in gather_objects(saving.wait_written()) if error]
        if errors:
            saving.cancel()
        elif error := broadcast_object(saving.wait_published() if self.world.rank == 0 else None):
            errors.append(error)
        if errors:
            if self.world.rank == 0:
                shutil.rmtree(saving.folder, ignore_errors=True)
            raise CheckpointError(
                f"{saving.folder}: the checkpoint could not be written: {errors[0]}. The one before it still counts."
            )
        self._tell_saved()

    def add_validation(self, state: TrainState) -> None:
        """The validation behind a step that was saved without it: into its manifest, where keep_best and a resume look."""
        if self.world.rank != 0:
            return
        step, options = state.step, self.config.checkpoint
        manifests.add_validation(self.run, step, state.validation_loss)
        removed = []
        if options.keep_best:
            removed = manifests.prune(self.run, step, options.keep_last, options.keep_every_steps, True)
        if self.events is not None:
            message = f"the checkpoint of step {step} has its validation loss now"
            self.events.write("checkpoint", message, step=step, removed_steps=removed)

    def load(self, manifest: dict[str, Any], data: DataState) -> TrainState:
        """Put the checkpoint that `choose` found into the engine, and say what the resume keeps.

        `data` is the data state of a fresh run on the dataset that is there. Raises CheckpointError where the
        checkpoint does not fit the run.
        """
        step, now = manifest["step"], layout(self.config)
        folder = self.run.checkpoint(step)
        self._check_fits(folder, manifest, data)
        padded = self.config.padded_vocab_size
        same_layout = manifest["layout"] == now and manifest["padded_vocab_size"] == padded
        saved = self._load_native(folder) if same_layout else self._load_reshaped(folder)
        known = {field.name for field in dataclasses.fields(TrainState)}
        values = {key: value for key, value in saved["state"].items() if key in known}
        state = TrainState(**{**values, "data": DataState.from_dict(values["data"])})
        if manifest["evaluated_step"] == step != state.evaluated_step:
            # It came after the save.
            state.validated(manifest["validation_loss"])
        if same_layout:
            self._set_random_state(saved["random"][self.world.rank])
        else:
            self._reseed(step)
        if self.events is not None:
            message = f"resumed from the checkpoint of step {step}"
            if not same_layout:
                words = certificate.layout_words(manifest["layout"], now)
                if manifest["padded_vocab_size"] != padded:
                    words.append(f"padded vocabulary: {manifest['padded_vocab_size']:,} -> {padded:,}")
                message += f", which another layout saved ({', '.join(words)})"
                logger.info("%s", message)
            self.events.write("checkpoint", message, step=step, saved_layout=manifest["layout"], layout=now)
        self._certify(manifest, state, reseeded=not same_layout)
        return state

    # --- loading ---------------------------------------------------------------------------------------------

    def _load_native(self, folder: Path) -> dict[str, Any]:
        """DeepSpeed's own load; what the configuration decides stays: DeepSpeed would restore the checkpoint's."""
        optimizer = self.engine.optimizer
        groups = [
            {key: value for key, value in group.items() if key not in ("params", "step")}
            for group in optimizer.param_groups
        ]
        clip_grad = getattr(optimizer, "clip_grad", None)
        with quiet():
            _, client_state = self.engine.load_checkpoint(
                str(self.run.model), tag=folder.name, load_lr_scheduler_states=False
            )
        for group, own in zip(optimizer.param_groups, groups, strict=True):
            group.update(own)
        if clip_grad is not None:
            optimizer.clip_grad = clip_grad
        return client_state["nbtrain"]

    def _load_reshaped(self, folder: Path) -> dict[str, Any]:
        store = CheckpointStore(folder)
        _, _, tensor = self.config.topology.coordinate(self.world.rank)
        size = self.config.parallel.tensor_parallel_size
        reshape.load_into(self.engine, store, (tensor, size), self.config.padded_vocab_size)
        return store.client_state

    def _certify(self, manifest: dict[str, Any], state: TrainState, reseeded: bool) -> None:
        if self.world.rank != 0:
            return
        # It imports DeepSpeed, which reading a checkpoint's weights must not do first.
        from nbtrain.checkpoint.rollbacks import pass_bad_samples

        # What a rollback passes over changes the next batch.
        data = pass_bad_samples(self.run, state.data)
        made = certificate.certify(
            manifest,
            self.config,
            layout(self.config),
            self.world.device,
            self._next_batch_sha256(data),
            reseeded,
        )
        logger.info("%s", made)
        if self.events is not None:
            self.events.write(
                "certificate", str(made), step=made.step, resume=made.kind, reasons=made.reasons,
                next_batch_sha256=made.next_batch_sha256,
            )  # fmt: skip
        if (job := self.run.newest_job()) is not None:
            made.write(job.resume_json)

    def _next_batch_sha256(self, data: DataState) -> str | None:
        if self.samples is None:
            return None
        batch_size = self.config.batch_schedule.size_at(data.consumed_samples)
        return certificate.next_batch_sha256(self.samples, data, batch_size)

    # --- random state ----------------------------------------------------------------------------------------

    def _random_state(self) -> dict[str, Any]:
        state = random.get_state()
        return state if self.stream is None else {**state, "stream": self.stream.get_state()}

    def _set_random_state(self, state: dict[str, Any]) -> None:
        random.set_state(state)
        if self.stream is not None:
            self.stream.set_state(state["stream"])

    def _reseed(self, step: int) -> None:
        """Another layout has other streams: they begin anew, from the seed and the step, the same at each load."""
        digest = hashlib.sha256(f"{self.config.model.seed} {step}".encode()).digest()
        seed = int.from_bytes(digest[:4])
        place, tensor = divmod(self.world.rank, self.config.parallel.tensor_parallel_size)
        random.seed_rank(seed, place)
        if self.stream is not None:
            self.stream.set_state(TensorParallelStream(seed, place, tensor).get_state())

    # --- what a checkpoint needs and says --------------------------------------------------------------------

    def _prepare(self, folder: Path) -> str | None:
        """Rank 0: make room for a folder; a message where there is none."""
        self.run.model.mkdir(parents=True, exist_ok=True)
        if folder.exists() and manifests.size_problem(folder) is not None:
            shutil.rmtree(folder)
        if folder.exists():
            return None
        needed = checkpoint_room_bytes(self.config)
        free = shutil.disk_usage(self.run.model).free
        if free >= needed:
            return None
        return (
            f"{self.run.model}: a checkpoint needs {needed / 1e9:,.2f} GB and {free / 1e9:,.2f} GB are free. "
            "Free space, or lower checkpoint.keep_last; then resume the run."
        )

    def _is_whole(self, folder: Path) -> bool:
        return bool(broadcast_object(folder.exists() and manifests.size_problem(folder) is None))

    def _publish(
        self,
        step: int,
        manifest: dict[str, Any],
        shares: dict[int, Described],
        started: float,
        stall_seconds: float | None,
    ) -> None:
        """Rank 0: the checkpoint counts from here on; older ones go. Not the main thread's in a background save."""
        folder, options = self.run.checkpoint(step), self.config.checkpoint
        coordinate = self.config.topology.coordinate
        described = {
            name: {**entry, "rank": list(coordinate(rank))}
            for rank, share in sorted(shares.items())
            for name, entry in share.items()
        }
        swapped = [name for name in manifests.payload(folder) if name.parts[0] == SWAPPED]
        for name, entry in manifests.describe(folder, swapped).items():
            described[name] = {**entry, "rank": None}
        files.write_json(folder / manifests.MANIFEST, {**manifest, "files": dict(sorted(described.items()))})
        files.write_text(self.run.latest, folder.name)
        shutil.rmtree(folder / SHARES, ignore_errors=True)
        removed = manifests.prune(
            self.run, step, options.keep_last, options.keep_every_steps, options.keep_best
        )
        seconds = time.monotonic() - started
        size = sum(entry["bytes"] for entry in described.values())
        self._saved = Saved(step, size, seconds if stall_seconds is None else stall_seconds, seconds, removed)

    def _manifest(self, state: TrainState) -> dict[str, Any]:
        """All but the files. Called by all ranks together; that of rank 0 counts."""
        parameters = self._described_parameters()
        if self.world.rank != 0:
            return {}
        return {
            "schema_version": manifests.SCHEMA_VERSION,
            "run_id": (self.run.record() or {}).get("run_id"),
            "step": state.step,
            "consumed_samples": state.data.consumed_samples,
            "consumed_tokens": state.data.consumed_samples * self.config.model.seq_length,
            "created_at": time.time(),
            "layout": layout(self.config),
            "architecture": architecture(self.config),
            "vocab_size": self.config.tokenizer.vocab_size,
            "padded_vocab_size": self.config.padded_vocab_size,
            "tokenizer_sha256": self.tokenizer_sha256,
            "data_state": state.data.to_dict(),
            "next_batch_sha256": self._next_batch_sha256(state.data),
            "validation_loss": state.validation_loss,
            "evaluated_step": state.evaluated_step,
            "versions": certificate.software(),
            "device": certificate.device(self.world.device),
            "settings": certificate.settings(self.config),
            "parameters": parameters,
        }

    def _described_parameters(self) -> dict[str, Any]:
        """{canonical name: {shape, partition_dim, group, stage}} of the whole model. Asked of the ranks once."""
        if self._parameters is None:
            stage, data, tensor = self.config.topology.coordinate(self.world.rank)
            size = self.config.parallel.tensor_parallel_size
            held = {}
            if data == tensor == 0:
                live = reshape.canonical_parameters(self.engine, self.config.model.num_layers)
                for name, parameter in live.items():
                    shape, dim = list(reshape.live_shape(parameter)), reshape.partition_dim(parameter)
                    if dim is not None:
                        shape[dim] *= size
                    held[name] = {
                        "shape": shape, "partition_dim": dim, "group": optimizer_group(name), "stage": stage
                    }  # fmt: skip
            self._parameters = {}
            for described in gather_objects(held):
                for name, entry in described.items():
                    # The tied word embedding is on the last stage too.
                    self._parameters.setdefault(name, entry)
        return self._parameters

    def _optimizer_names(self) -> list[list[str]] | None:
        """ZeRO 0: the names behind the numbers of torch's optimizer state."""
        if self.config.parallel.zero_stage:
            return None
        live = reshape.canonical_parameters(self.engine, self.config.model.num_layers)
        names = {id(parameter): name for name, parameter in live.items()}
        return [
            [names[id(parameter)] for parameter in group["params"]]
            for group in self.engine.optimizer.param_groups
        ]

    def _universal_checkpoint_info(self) -> dict[str, Any]:
        info: dict[str, Any] = {
            "universal_checkpoint_version": UNIVERSAL_CHECKPOINT_VERSION,
            "original_vocab_size": self.config.tokenizer.vocab_size,
            "vocabulary_parameter_patterns": [r"word_embeddings\.weight"],
        }
        # A pattern that matches nothing is an error to DeepSpeed's converter.
        if self.config.parallel.pipeline_parallel_size > 1:
            info["pipeline_replicated_parameter_patterns"] = [r"word_embeddings\.weight"]
        if self.config.parallel.tensor_parallel_size > 1:
            info["parameter_with_row_parallelism_patterns"] = [r"dense\.weight", r"dense_4h_to_h\.weight"]
            info["tp_replicated_parameter_patterns"] = [
                r"layernorm\.(weight|bias)", r"dense\.bias", r"dense_4h_to_h\.bias",
                r"(position_embeddings|^1)\.weight",
            ]  # fmt: skip
        return info

    def _check_fits(self, folder: Path, manifest: dict[str, Any], data: DataState) -> None:
        vocab_size, saved_vocab_size = self.config.tokenizer.vocab_size, manifest["vocab_size"]
        if saved_vocab_size is None:
            # The padding belongs to a layout; but version 1 knew the padded size only.
            layout_then, multiple = manifest["layout"], self.config.model.make_vocab_size_divisible_by
            multiple *= layout_then["tensor_parallel_size"]
            saved_vocab_size, vocab_size = (
                manifest["padded_vocab_size"],
                -(-vocab_size // multiple) * multiple,
            )
        saved = DataState.from_dict(manifest["data_state"]).to_dict()
        found = misfits(
            {**manifest, "vocab_size": saved_vocab_size, "data_state": saved},
            {
                "architecture": architecture(self.config),
                "vocab_size": vocab_size,
                "tokenizer_sha256": self.tokenizer_sha256,
                "data_state": data.to_dict(),
            },
        )
        if found:
            raise CheckpointError(
                # One line: the first line of a rank's error is the cause of its job's end.
                f"{folder}: does not fit this run: {'; '.join(found)}. "
                "Restore the setting, or train the new one as another run."
            )
