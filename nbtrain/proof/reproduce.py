"""`nbtrain reproduce`: trains a window of a run's steps again and compares it with the run's certificate.

    certificate   the steps, settings, code, versions and data of the run (monitor/run/certificate.py)
    start         the newest checkpoint at or before the window, linked into a separate run directory
    train         an ordinary job with the settings of the run, up to the window's last step
    compare       the loss and gradient norm of each step, and the tensors of a checkpoint that both runs have

The run itself is only read. Everything is written to output/<run>-reproduced/, which every call creates
again.
"""

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError, ConfigError, DataError, JobFailed
from nbtrain.base.printing.progress import Progress
from nbtrain.base.printing.report import Facts, Items, Picture, Report, Result
from nbtrain.base.run_directory.checkpoint_files import checkpoint_problem, files_sha256
from nbtrain.base.run_directory.jobstate import ACTIVE, SUCCEEDED
from nbtrain.base.run_directory.records import Heartbeat, JobRecord, ResumeCertificate
from nbtrain.base.run_directory.rundir import MANIFEST, JobDir, RunDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display, resolve, suffixed_name
from nbtrain.config.code_file import copy_of, defines
from nbtrain.config.load import Overrides, load, load_resolved
from nbtrain.config.load.attempt import environment_of_ranks
from nbtrain.config.load.derived import without_inherited
from nbtrain.config.load.edits import with_values
from nbtrain.config.load.effect import shown_settings
from nbtrain.config.load.elastic import spread
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.manifest import data_hashes
from nbtrain.dataset.of_run import read_run_data
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.jobs.control.control import cancel, wait
from nbtrain.jobs.gpu_side import stream
from nbtrain.jobs.request.initial_weights import refuse_other_weights
from nbtrain.jobs.request.own_code import submitted_path
from nbtrain.jobs.submission.submit import submit
from nbtrain.monitor.metrics.finite_json import finite
from nbtrain.monitor.run.certificate import (
    CertifiedPart,
    Difference,
    RunCertificate,
    certificate_problems,
    first_difference,
    make_certificate,
    numbers_text,
    part_differences,
)
from nbtrain.proof.folder import REPRODUCTION_OF, alone, renew

REPRODUCTION_JSON = "reproduction.json"
PICTURE = "reproduction.svg"
COMPARE = "nbtrain.checkpoint.weights.differences"
SCHEMA_VERSION = 1
POLL_SECONDS = 0.5
# Maximum number of tensors that the report names.
SHOWN_TENSORS = 8

BIT_EXACT, OTHER_HARDWARE, DIFFERS = "bit-exact", "other hardware", "differs"

Train = Callable[[RunConfig, int], JobDir]
"""A function that trains a run from the step of its checkpoint to its end and returns the job."""


@dataclass(repr=False)
class Reproduction(Result):
    """The content of reproduction.json: how a window of steps, trained again, compares with the run."""

    run: str
    name: str
    """Name of the run that trained the window again."""
    first_step: int
    """Step before the window; the window is the steps after `first_step` up to `last_step`."""
    last_step: int
    started_from_step: int
    """Step of the checkpoint that training started from; 0 means from the beginning."""
    verdict: str
    """Result: "bit-exact", "differs", or "other hardware" (differs, but only the processor is different)."""
    compared_steps: int
    first_different_step: int | None
    numbers_before: str
    """Loss and gradient norm of first_different_step in the run, with all digits; "" if no step differs."""
    numbers_now: str
    largest_loss_difference: float
    """Largest absolute loss difference of a step, in nats."""
    differences: list[Difference]
    """Other differences: settings, nbtrain's files, libraries, device, environment variables and data."""
    tensors_step: int | None
    """Step of the checkpoint whose tensors were compared; None if the runs have no checkpoint to compare."""
    compared_tensors: int
    different_tensors: list[dict[str, Any]]
    certificate_sha256: str
    """Hash of the run's certificate."""
    resume: str
    """The trainer's resume report for the loaded checkpoint; "" if training started from the beginning."""
    notes: list[str]
    curves: dict[str, list[Any]] = field(repr=False)
    """Numbers of each compared step: step, loss_before, loss, grad_norm_before and grad_norm."""
    seconds: float = 0.0
    created_at: float = 0.0
    schema_version: int = SCHEMA_VERSION

    @property
    def passed(self) -> bool:
        """Whether the window is bit-exact, or differs and only the processor is different."""
        return self.verdict != DIFFERS

    @property
    def headline(self) -> str:
        """The result in one line."""
        steps = f"steps {self.started_from_step + 1:,} to {self.last_step:,}"
        if self.verdict == BIT_EXACT:
            return f"{steps}, trained again, are bit-exact"
        step = self.first_different_step
        where = (
            f"first at step {step:,}"
            if step is not None
            else f"in the checkpoint of step {self.tensors_step:,}"
        )
        why = ", on a different kind of processor" if self.verdict == OTHER_HARDWARE else ""
        return f"{steps}, trained again, differ {where}{why}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, plus "headline" and "passed"; NaN and Inf become null."""
        return finite({**asdict(self), "headline": self.headline, "passed": self.passed})

    def as_report(self) -> Report:
        """Return a report of the result: the first different step, different tensors, other differences."""
        facts = {"compared": f"loss and gradient norm of {amounts.counted(self.compared_steps, 'step')}"}
        if self.first_different_step is not None:
            facts[f"step {self.first_different_step:,} in the run"] = self.numbers_before
            facts[f"step {self.first_different_step:,} trained again"] = self.numbers_now
            facts["largest loss difference"] = f"{self.largest_loss_difference:.3g}"
        if self.tensors_step is None:
            since = self.first_different_step or self.started_from_step + 1
            facts["tensors"] = (
                f"not compared: the run has no checkpoint at any step from {since:,} to {self.last_step:,}"
            )
        else:
            equal = self.compared_tensors - len(self.different_tensors)
            facts["tensors"] = f"{equal:,} of {self.compared_tensors:,} equal at step {self.tensors_step:,}"
        facts["certificate of the run"] = self.certificate_sha256[:12]
        shown = [_tensor_words(tensor) for tensor in self.different_tensors[:SHOWN_TENSORS]]
        if (more := len(self.different_tensors) - SHOWN_TENSORS) > 0:
            shown.append(f"and {more:,} more, in {REPRODUCTION_JSON}")
        return Report(
            f"{self.run}: {self.headline}.",
            [
                Picture(
                    lambda: self.figure()._repr_png_(), "losses of the run and of the steps trained again"
                ),
                Facts(facts),
                Items(shown, "Tensors that differ"),
                Items([str(difference) for difference in self.differences], "Other differences"),
                Items(self.notes, "Notes"),
            ],
        )

    def figure(self) -> Any:
        """Draw the losses and their differences as a Matplotlib figure."""
        from nbtrain.monitor.run.reproduction_picture import draw

        return draw(self.to_dict())


def _tensor_words(tensor: Mapping[str, Any]) -> str:
    name = f"{tensor['name']} {tensor['state']}".rstrip()
    if tensor["reason"]:
        return f"{name} {tensor['reason']}"
    share = f"{tensor['different']:,} of {tensor['elements']:,} elements"
    return f"{name}: {share} differ, by {tensor['largest']:.3g} at most"


def reproduce(
    run: RunDir, steps: tuple[int, int] | None = None, overrides: Overrides = None, train: Train | None = None
) -> Reproduction:
    """Train a window of a run again in a separate run directory, and compare it with the run.

    `steps` (A, B) selects the steps after A up to B; by default, the steps after the newest checkpoint before
    the run's last step. `overrides` change settings such as the backend. Raises ConfigError if the run cannot
    train the window again, CheckpointError if the checkpoint was changed, DataError if the data is not the
    run's, and JobFailed if the job fails.
    """
    started = time.monotonic()
    certificate = make_certificate(run)
    kept = _kept_steps(run, certificate)
    first, last = _window(run, certificate, steps, kept)
    start = max((step for step in kept if step <= first), default=0)
    if start:
        _refuse_changed(run, certificate, start)
    part = _part(run, certificate, start, first, last)
    target = RunDir.named(suffixed_name(run.name, "reproduced"))
    if target.path.resolve() == run.path.resolve():
        raise ConfigError(
            f"{run.name} is itself a reproduction and would be replaced. Reproduce the original run instead."
        )
    compared = [step for step in kept if start < step <= last]
    config, notes = _config(run, part, last, target.name, overrides, compared)
    notes += certificate_problems(run)
    if gone := [link.step for link in certificate.checkpoints if start < link.step <= first]:
        problem = checkpoint_problem(run.checkpoint(gone[-1]))
        notes.append(
            f"the checkpoint of step {gone[-1]:,} cannot be used ({problem}), so the steps were trained from "
            f"step {start:,} on"
        )
    if not start:
        config = _with_recorded_weights(run, config, part)
    _check_data(config, part)
    with alone(target, "reproduction"):
        renew(target, REPRODUCTION_OF, run.name)
        if start:
            _link_checkpoint(run, target, start)
            if run.init_from_json.is_file():
                # It contains the hash of the initial weights, which may have been deleted.
                shutil.copy(run.init_from_json, target.init_from_json)
        if run.rollbacks_json.is_file():
            shutil.copy(run.rollbacks_json, target.rollbacks_json)
        job = (train or _submit_and_wait)(config, start)
        made = _compare(run, certificate, part, target, job, (first, last), start, notes)
        made.seconds, made.created_at = time.monotonic() - started, time.time()
        files.write_json(target.path / REPRODUCTION_JSON, made.to_dict())
        with files.atomic_writer(target.path / PICTURE) as stream:
            made.figure().savefig(stream, format="svg")
    return made


def _window(
    run: RunDir, certificate: RunCertificate, steps: tuple[int, int] | None, kept: list[int]
) -> tuple[int, int]:
    """Return the window (A, B): `steps` if given, otherwise from the newest checkpoint before the last step.

    Raises ConfigError if the run has not trained these steps.
    """
    reached = certificate.parts[-1].last_step
    if steps is None:
        return max((step for step in kept if step < reached), default=0), reached
    first, last = steps
    if not 0 <= first < last <= reached:
        raise ConfigError(
            f"steps {first:,}:{last:,} must be A:B with 0 <= A < B <= {reached:,}, the last step that "
            f"{run.name} has trained. A:B means the steps after A up to B."
        )
    return first, last


def _part(run: RunDir, certificate: RunCertificate, start: int, first: int, last: int) -> CertifiedPart:
    """Return the certificate's part with the job that trained the last step of the window.

    Raises ConfigError if settings changed between `start` and the window's last step, or if the run has no
    record of how those steps were trained.
    """
    parts = [part for part in certificate.parts if part.first_step < last and part.last_step > start]
    if not parts or parts[0].first_step > start:
        known = certificate.parts[0].first_step
        raise ConfigError(
            f"steps {first:,}:{last:,} would be trained from step {start:,}, but {display(run.jobs)} has no "
            f"record of how the steps up to step {known:,} were trained. Restore the missing job folders, or "
            f"choose a window that starts at a checkpoint saved after step {known:,}."
        )
    for before, now in itertools.pairwise(parts):
        changed = [key for key in _all_keys(before, now) if _setting(before, key) != _setting(now, key)]
        if changed:
            key, step = changed[0], now.first_step
            raise ConfigError(
                f"steps {first:,}:{last:,} would be trained from step {start:,}, but {run.name} was resumed "
                f"at step {step:,} with {key}: {_setting(before, key)} -> {_setting(now, key)}. Use "
                f"--steps {start}:{step}, or a window that starts at a checkpoint at or after step {step:,}."
            )
    return parts[-1]


def _all_keys(*parts: CertifiedPart) -> list[str]:
    return list(dict.fromkeys(key for part in parts for key in part.provenance.settings))


def _setting(part: CertifiedPart, key: str) -> Any:
    return part.provenance.settings.get(key)


def _complete_steps(run: RunDir) -> list[int]:
    """Return the steps of the complete checkpoints, ascending. Only file names and sizes are checked."""
    return [step for step in run.checkpoint_steps() if checkpoint_problem(run.checkpoint(step)) is None]


def _refuse_changed(run: RunDir, certificate: RunCertificate, step: int) -> None:
    """Raise CheckpointError if the files of a checkpoint are not the ones that the run saved."""
    manifest, link = files.read_json(run.checkpoint_manifest(step)) or {}, certificate.checkpoint(step)
    if link is not None and (now := files_sha256(manifest)) != link.files_sha256:
        raise CheckpointError(
            f"{display(run.checkpoint(step))}: {MANIFEST} was changed: its files have the SHA-256 "
            f"{now[:12]}, but the run saved {link.files_sha256[:12]}. Restore the checkpoint, or remove "
            "it to start from an earlier checkpoint."
        )


def _kept_steps(run: RunDir, certificate: RunCertificate) -> list[int]:
    """Return the steps of the checkpoints that are in the certificate and still exist, ascending."""
    return [step for step in _complete_steps(run) if certificate.checkpoint(step) is not None]


def _config(
    run: RunDir, part: CertifiedPart, last: int, name: str, overrides: Overrides, compared: list[int]
) -> tuple[RunConfig, list[str]]:
    """Return the configuration that trains the window again, and notes for the user about differences.

    A note names a setting, code file or value that has changed since the window was trained. `compared` are
    the steps of the checkpoints to compare.
    """
    before, made, notes = load_resolved(run.config_yaml), part.provenance, list[str]()
    known = shown_settings(before)
    changed = {key: value for key, value in made.settings.items() if known.get(key) != value}
    for key, value in changed.items():
        notes.append(
            f"{display(run.config_yaml)} now has {key} = {known.get(key)}, but these steps were trained with "
            f"{value}, which the reproduction uses"
        )
    interval = before.checkpoint.save_interval_steps
    saves = last // interval - (min(compared) - 1) // interval + 1 if compared else 1
    own_layout = load(before, changed, check=False)
    if own_layout.world_size != before.world_size:
        # backend.elastic or a resume changed the layout. The settings of an attempt do not include machines
        # and GPUs, so take them from the job's record.
        job = JobRecord.read(run.job(made.job_id).job_json)
        attempt = job.attempt_record(made.attempt) if job else None
        own_layout = spread(own_layout, attempt.nodes if attempt else None)
    given = load(own_layout, overrides, check=False)
    code = given.code
    if code == before.code and (code := submitted_path(run, before)) != before.code:
        notes.append(f"{before.code} has changed or is missing, so the reproduction uses {code}")
    environment = environment_of_ranks(given)
    if "threads" in made.device:
        # The order of sums depends on the number of threads.
        environment = {"OMP_NUM_THREADS": str(made.device["threads"])} | environment
    own: dict[str, Any] = {
        "name": name,
        "mode": "full",
        "code": code,
        "batch.max_steps": last if last < given.scheduled_steps else None,
        "batch.exit_interval_steps": None,
        "batch.exit_duration_minutes": None,
        # Keep as many checkpoints as the window needs, so that their tensors can be compared.
        "checkpoint.keep_last": max(saves, 1),
    }
    if given.code is not None and given.code == made.settings.get("code"):
        # The file may be missing or changed. The run's ranks imported the run's copy, so use that copy.
        file = resolve(given.code)
        copy = copy_of(run, file.name)
        if copy.is_file():
            own["code"] = display(copy)
            if file.is_file() and file.read_bytes() != copy.read_bytes():
                notes.append(
                    f"{display(file)} has changed since the run was submitted, so the reproduction uses the "
                    "run's copy of it"
                )
    # An override would be merged with the existing variables, so injected faults would remain.
    return load(with_values(without_inherited(given), {"backend.env": environment}), own), notes


def _with_recorded_weights(run: RunDir, config: RunConfig, part: CertifiedPart) -> RunConfig:
    """Return the configuration with the initial weights that the run recorded when it was submitted.

    The run named by init_from may have newer checkpoints by now. Initial weights set by overrides are kept.
    Raises CheckpointError if the recorded weights were changed.
    """
    made, recorded = part.provenance.settings, files.read_json(run.init_from_json)
    chosen = (config.init_from, config.init_step)
    if (
        recorded is None
        or config.init_from is None
        or chosen != (made.get("init_from"), made.get("init_step"))
    ):
        return config
    if config.lora is None or config.lora.init_from != made.get("lora.init_from"):
        recorded.pop("adapters_sha256", None)
    if "step" in recorded:
        config = load(config, {"init_step": recorded["step"]})
    refuse_other_weights(config, recorded)
    return config


def _check_data(config: RunConfig, part: CertifiedPart) -> None:
    """Prepare missing data.

    Raises DataError, which lists the files that differ, if the data is not the run's.

    Existing data is never prepared again, because the run itself depends on it.
    """
    made = part.provenance
    if defines(config, "dataset"):
        # Only the ranks read samples from the user's dataset(); the certificate compares its code file.
        return
    if (data := read_run_data(config)).dataset is None and data.manifest is None:
        prepare(config)
        data = read_run_data(config)
    if data.manifest is None:
        raise DataError(data.dataset_problem)
    changed = [
        Difference("data", name, (made.data_files.get(name) or "none")[:12], (now or "none")[:12])
        for name, now in {**dict.fromkeys(made.data_files), **data_hashes(data.manifest)}.items()
        if made.data_files.get(name) != now
    ]
    if data.dataset_sha256 != made.data["dataset_sha256"]:
        lines = "".join(f"\n  {difference}" for difference in changed)
        raise DataError(
            f"dataset {config.data.name} is not the one that these steps were trained on. SHA-256 of the "
            f"files that differ:{lines}\nRestore the source and prepare it again, or set NBTRAIN_DATA to the "
            "run's data directory."
        )
    then = made.data["tokenizer_sha256"]
    if then and data.tokenizer_sha256 and data.tokenizer_sha256 != then:
        raise DataError(
            f"tokenizer {config.tokenizer.name} is not the run's tokenizer (SHA-256 {then[:12]} -> "
            f"{data.tokenizer_sha256[:12]}). Restore its folder in the data directory."
        )


def _link_checkpoint(run: RunDir, target: RunDir, step: int) -> None:
    """Add a run's checkpoint to `target` with hard links, or copies if the files cannot be linked.

    Links are safe, because checkpoint files are never modified, only replaced or removed.
    """
    source, folder = run.checkpoint(step), target.checkpoint(step)
    manifest = files.read_json(source / MANIFEST)
    assert manifest is not None
    temporary = folder.with_name(f".{folder.name}.tmp")
    temporary.mkdir(parents=True)
    described = manifest["files"]
    with Progress(
        f"checkpoint of step {step:,}", sum(entry["bytes"] for entry in described.values()), "B"
    ) as bar:
        for name, entry in described.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source / name, path)
            except OSError:
                shutil.copyfile(source / name, path)
            bar.update(entry["bytes"])
    files.write_json(temporary / MANIFEST, manifest)
    temporary.rename(folder)


def _submit_and_wait(config: RunConfig, start: int) -> JobDir:
    """Train as an ordinary job and show its progress. An interrupt cancels the job. Raises JobFailed."""
    # The code file needs no trial, because it has already trained the run.
    job = submit(config, tries_code=False)
    try:
        label = f"reproduce as {config.name} from step {start:,}"
        with Progress(label, config.train_steps - start, "steps") as bar:
            while True:
                state, cause = wait(job, POLL_SECONDS)
                beat = Heartbeat.read(job.heartbeat(0))
                reached = max((beat.step if beat else 0) - start, 0)
                bar.update(max(reached - bar.done, 0), state=state)
                if state not in ACTIVE:
                    break
    except BaseException:
        with contextlib.suppress(Exception):
            cancel(job, now=True)
        raise
    if state != SUCCEEDED:
        raise JobFailed(
            f"{config.name}: the job that trains the window again ended as {state}: "
            f"{cause or 'no cause was recorded'}. Its logs are in {display(job.log(0, 0).parent)}."
        )
    return job


def _compare(
    run: RunDir,
    certificate: RunCertificate,
    part: CertifiedPart,
    target: RunDir,
    job: JobDir,
    window: tuple[int, int],
    start: int,
    notes: list[str],
) -> Reproduction:
    """Compare the reproduction in `target` with the run's certificate.

    Raises JobFailed if the reproduction has not trained all of the steps.
    """
    again = make_certificate(target)
    ours = {step: numbers for step, numbers in certificate.numbers().items() if start < step <= window[1]}
    theirs = again.numbers()
    if missing := sorted(ours.keys() - theirs.keys()):
        raise JobFailed(
            f"{target.name} did not train step {missing[0]:,}, which {run.name} has trained. Its logs are in "
            f"{display(job.log(0, 0).parent)}."
        )
    step = first_difference(ours, theirs)
    at = _common_checkpoint(run, certificate, target, start, window[1], step)
    compared, tensors = (0, []) if at is None else _compare_tensors(run.checkpoint(at), target.checkpoint(at))
    found = part_differences(part, again.parts[-1], certificate.code, again.code)
    verdict = BIT_EXACT
    if step is not None or tensors:
        # The hardware is the reason only if nothing else differs.
        is_hardware = [difference.kind == "device" and difference.name != "threads" for difference in found]
        verdict = OTHER_HARDWARE if is_hardware and all(is_hardware) else DIFFERS
    resumed = ResumeCertificate.read(job.resume_json)
    steps = sorted(ours)
    far = [abs(theirs[at][0] - ours[at][0]) for at in steps if None not in (theirs[at][0], ours[at][0])]  # type: ignore[operator]
    return Reproduction(
        run.name,
        target.name,
        *window,
        start,
        verdict,
        len(steps),
        step,
        numbers_text(ours[step]) if step is not None else "",
        numbers_text(theirs[step]) if step is not None else "",
        max(far, default=0.0),
        found,
        at,
        compared,
        tensors,
        certificate.sha256,
        str(resumed) if resumed else "",
        notes,
        {
            "step": steps,
            "loss_before": [ours[step][0] for step in steps],
            "loss": [theirs[step][0] for step in steps],
            "grad_norm_before": [ours[step][1] for step in steps],
            "grad_norm": [theirs[step][1] for step in steps],
        },
    )


def _common_checkpoint(
    run: RunDir, certificate: RunCertificate, target: RunDir, start: int, last: int, different: int | None
) -> int | None:
    """Return the step of the checkpoint to compare; None if the runs have no suitable checkpoint in common.

    If a step differs, return the first common checkpoint at or after that step, otherwise the newest common
    checkpoint.
    """
    kept = {step for step in _kept_steps(run, certificate) if start < step <= last}
    common = sorted(kept & {*_complete_steps(target)})
    if different is None:
        return common[-1] if common else None
    return next((step for step in common if step >= different), None)


def _compare_tensors(before: Path, now: Path) -> tuple[int, list[dict[str, Any]]]:
    """Compare two checkpoints. Return (number of compared tensors, descriptions of those that differ)."""
    found, compared = [], 0
    with Progress("compare tensors", None, "parameters") as bar:
        for answer in stream(COMPARE, {"before": str(before), "now": str(now)}):
            if answer["kind"] == "tensor":
                found.append({key: value for key, value in answer.items() if key != "kind"})
            elif answer["kind"] == "end":
                compared = answer["tensors"]
            else:
                bar.total = answer["total"]
                bar.update(answer["done"] - bar.done)
    return compared, found
