"""`nbtrain checkpoint ...`: list, inspect, verify and convert the checkpoints of a run."""

import argparse
import contextlib
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.printing.report import Facts, Report, Table
from nbtrain.base.run_directory.rundir import MANIFEST
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.cli.output import show, show_json
from nbtrain.cli.verbs import add_group, add_json, add_step, run_of, run_verb
from nbtrain.config.arithmetic.layout_words import layout_words

if TYPE_CHECKING:
    from nbtrain.base.run_directory.rundir import RunDir

HEADS = ("step", "size", "layout", "validation loss", "state")


def add_verbs(under: Any) -> None:
    """Add the group of verbs `nbtrain checkpoint ...` to `under`, the subparsers of nbtrain."""
    group = add_group(
        under, "checkpoint", "A run can resume in another layout without converting its checkpoints."
    )
    text = (
        "List each checkpoint's step, size, layout and validation loss, and whether its files are complete."
    )
    add_json(run_verb(group, "list", list_checkpoints, text))
    text = "Show a checkpoint's size, training progress, layout, parameters and the versions that wrote it."
    parser = run_verb(group, "inspect", inspect, text)
    add_step(parser)
    add_json(parser, "Print the manifest as JSON.")
    text = "Read every checkpoint file and compare its SHA-256 with the manifest."
    parser = run_verb(group, "verify", verify, text)
    add_step(parser, "Verify only the checkpoint from step N. Default: all checkpoints.")
    text = "Write a checkpoint in DeepSpeed's universal format, for other tools."
    parser = run_verb(group, "universal", universal, text)
    add_step(parser)
    text = "Folder to write. Default: universal/global_step<N> in the run's folder."
    parser.add_argument("--to", type=Path, metavar="DIR", help=text)


def list_checkpoints(options: argparse.Namespace) -> None:
    """List the checkpoints of a run."""
    run = run_of(options).directory
    saved = [summary(run, step) for step in run.checkpoint_steps()]
    steps = {checkpoint["step"] for checkpoint in saved}
    listed = saved + [other for other in _kept_on_nodes(run) if other["step"] not in steps]
    listed.sort(key=lambda checkpoint: checkpoint["step"])
    if options.json:
        show_json(listed)
        return
    elsewhere = _on_nodes(run)
    if not saved:
        show(f"{run.name} has no checkpoint{f' in {display(run.model)}' if elsewhere else ' yet'}.")
    if listed:
        show(Report("", [Table(HEADS, [_row(checkpoint) for checkpoint in listed])]))
    if elsewhere:
        show(elsewhere)


def _row(checkpoint: dict[str, Any]) -> tuple[str, ...]:
    """Return the table cells of a checkpoint, in the order of HEADS."""
    loss, size, problem = (checkpoint[key] for key in ("validation_loss", "bytes", "problem"))
    state = "complete" if problem is None else problem if checkpoint["hosts"] else f"incomplete: {problem}"
    return (
        f"{checkpoint['step']:,}",
        "" if size is None else amounts.size(size),
        checkpoint["layout"],
        "" if loss is None else f"{loss:.4f}",
        state,
    )


def _kept_on_nodes(run: "RunDir") -> list[dict[str, Any]]:
    """Return the complete checkpoints that, according to the run's records, only the nodes' disks hold."""
    from nbtrain.base.run_directory.checkpoint_files import kept_on_nodes
    from nbtrain.base.run_directory.jobstate import SUCCEEDED
    from nbtrain.base.run_directory.observed_state import read_state
    from nbtrain.config.load import load_resolved
    from nbtrain.monitor.status.steps_left import has_steps_left

    job = run.newest_job()
    # A finished run has no checkpoints on the nodes' disks.
    state = read_state(job, time.time())[0] if job else None
    if not run.config_yaml.is_file() or (state == SUCCEEDED and not has_steps_left(run, state)):
        return []
    saves = kept_on_nodes(run, load_resolved(run.config_yaml).checkpoint.local_keep_last)
    unknown = {"bytes": None, "layout": "", "validation_loss": None}
    return [
        {
            "step": save.step,
            **unknown,
            "problem": f"only on the disks of {', '.join(save.hosts)}",
            "hosts": save.hosts,
        }
        for save in saves
        if not save.copied
    ]


def _on_nodes(run: "RunDir") -> str:
    """Return a sentence about a checkpoint that exists only on the nodes' disks and is newer than all others.

    Returns "" without such a checkpoint. Checks the files on this host and does not contact other hosts.
    """
    from nbtrain.base.run_directory.checkpoint_files import (
        local_run_folder,
        on_nodes_words,
        only_on_nodes,
    )
    from nbtrain.config.load import load_resolved
    from nbtrain.monitor.status.resume_start import resume_start

    save, host = only_on_nodes(run), os.uname().nodename
    if save is None:
        return ""
    if host in save.hosts and run.config_yaml.is_file():
        config = load_resolved(run.config_yaml)
        roots = [
            local_run_folder(config.checkpoint.local_dir, node, host, run)
            for node in range(config.resources.nodes)
            if config.checkpoint.local_dir is not None
        ]
        if not any((root / f"global_step{save.step}").is_dir() for root in roots):
            start = resume_start(run, on_nodes=False)
            does = (
                "starts from the beginning" if start.step is None else f"continues from step {start.step:,}"
            )
            if start.torn:
                does = "finds no complete checkpoint to continue from"
            others = "" if len(save.hosts) == 1 else ", unless the other hosts hold the complete checkpoint"
            return (
                f"Step {save.step:,} was saved only on the disks of {', '.join(save.hosts)} "
                f"(checkpoint.local_dir) and is no longer on this host, {host}. A resume {does}{others}."
            )
    words = on_nodes_words(run)
    return f"{words[0].upper()}{words[1:]}."


def summary(run: "RunDir", step: int) -> dict[str, Any]:
    """Return a checkpoint as `list --json` prints it; `problem` is None if its files have the right sizes.

    `hosts` lists the machines if the checkpoint exists only on their local disks, and is empty otherwise.
    """
    from nbtrain.base.run_directory.checkpoint_files import checkpoint_problem, in_work

    folder = run.checkpoint(step)
    problem = checkpoint_problem(folder)
    if problem is not None and (doing := in_work(run, step, time.time())) is not None:
        problem = f"it {doing}"
    known: dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # `problem` says so
        read = files.read_json(run.checkpoint_manifest(step))
        known = read if isinstance(read, dict) else {}
    return {
        "step": step,
        "bytes": _payload_bytes(folder),
        "layout": layout_text(known.get("layout") or {}),
        # Show a loss only if it was measured at exactly this step.
        "validation_loss": known.get("validation_loss") if known.get("evaluated_step") == step else None,
        "problem": problem,
        "hosts": [],
    }


def _payload_bytes(folder: Path) -> int:
    """Return the total size in bytes of a checkpoint's files without the manifest.

    Files that a job removes during the call are not counted.
    """
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.name != MANIFEST:
                total += path.stat().st_size
    return total


def layout_text(layout: dict[str, Any]) -> str:
    """Return a layout as text, such as "data 2 x tensor 4, ZeRO 1, bf16"; "" if it is unknown."""
    if not layout:
        return ""
    return f"{layout_words(layout)}, ZeRO {layout['zero_stage']}, {layout['weights']}"


def inspect(options: argparse.Namespace) -> None:
    """Show one checkpoint."""
    from nbtrain.base.run_directory.checkpoint_files import checkpoint_problem, newest_checkpoint_step

    run = run_of(options).directory
    step = newest_checkpoint_step(run) if options.step is None else options.step
    if step is None:
        raise CheckpointError(f"{display(run.model)} contains no complete checkpoint. Train the run first.")
    folder = run.checkpoint(step)
    if problem := checkpoint_problem(folder):
        raise CheckpointError(f"{display(folder)}: {problem}.")
    manifest = _manifest(run, step)
    if options.json:
        show_json(manifest)
        return
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    parameters = manifest["parameters"]
    samples, tokens = manifest["consumed_samples"], manifest["consumed_tokens"]
    lines = [
        (
            "checkpoint",
            f"{display(folder)}: {amounts.size(size)} in {amounts.counted(len(manifest['files']), 'file')}",
        ),
        ("saved", amounts.moment(manifest["created_at"])),
        ("trained", f"step {step:,}, {samples:,} samples, {tokens:,} tokens"),
        ("layout", layout_text(manifest["layout"])),
        ("versions", ", ".join(f"{name} {number}" for name, number in manifest["versions"].items())),
    ]
    count = sum(math.prod(entry["shape"]) for entry in parameters.values())
    lines.append(("parameters", f"{count:,} in {len(parameters)} tensors, including vocabulary padding"))
    lines.append(("optimizer", optimizer_text(parameters)))
    if manifest["validation_loss"] is not None:
        at = manifest["evaluated_step"]
        where = "" if at == step else f", at step {at:,}"
        lines.append(("validation loss", f"{manifest['validation_loss']:.4f}{where}"))
    if manifest["next_batch_sha256"]:
        lines.append(("next batch", manifest["next_batch_sha256"]))
    show(Report("", [Facts(lines)]))


def optimizer_text(parameters: dict[str, Any]) -> str:
    """Return a text that lists each optimizer's states and the number of parameters in each of its groups."""
    words = []
    for name, groups, kept in (
        ("Muon", ("matrices",), "momentum_buffer"),
        ("AdamW", ("decay", "no_decay"), "exp_avg, exp_avg_sq"),
    ):
        of_group = {
            group: [math.prod(entry["shape"]) for entry in parameters.values() if entry["group"] == group]
            for group in groups
        }
        found = [
            f"{group} {amounts.counted(sum(counts), 'parameter')} in {amounts.counted(len(counts), 'tensor')}"
            for group, counts in of_group.items()
            if counts
        ]
        if found:
            words.append(f"{name} ({kept}): {', '.join(found)}")
    return "; ".join(words)


def verify(options: argparse.Namespace) -> None:
    """Compare the files of checkpoints with their manifests. Raises CheckpointError if any differs."""
    from nbtrain.base.printing.progress import Progress
    from nbtrain.base.run_directory.checkpoint_files import checkpoint_problem, in_work

    run = run_of(options).directory
    steps = run.checkpoint_steps()
    if not steps:
        raise CheckpointError(f"{display(run.model)} contains no checkpoint. Train the run first.")
    if options.step is not None and options.step not in steps:
        raise CheckpointError(
            f"{display(run.model)} has no checkpoint from step {options.step:,}. Run "
            f"`nbtrain checkpoint list {run.name}` to list its checkpoints."
        )
    steps = steps if options.step is None else [options.step]
    problems: dict[int, str | None] = {}
    described: dict[int, dict[str, Any]] = {}
    for step in steps:
        # A running job may publish or remove the checkpoint at any time.
        problem = checkpoint_problem(run.checkpoint(step))
        known = files.read_json(run.checkpoint_manifest(step)) if problem is None else None
        described[step] = known["files"] if known is not None else {}
        problems[step] = checkpoint_problem(run.checkpoint(step)) if known is None else None
    total = sum(entry["bytes"] for entries in described.values() for entry in entries.values())
    with Progress("verify", total, "B") as bar:
        for step, entries in described.items():
            for name, entry in sorted(entries.items()):
                try:
                    if files.sha256_of(run.checkpoint(step) / name) != entry["sha256"]:
                        problems[step] = f"the SHA-256 of {name} differs from the manifest"
                except FileNotFoundError:
                    problems[step] = f"{name} is missing"
                bar.update(entry["bytes"])
    for step, problem in problems.items():
        words = f"valid: {amounts.counted(len(described[step]), 'file')} compared by SHA-256"
        if problem is not None and (doing := in_work(run, step, time.time())) is not None:
            problems[step], words = None, f"not compared: it {doing}"
        elif problem is not None:
            words = f"not valid: {problem}"
        show(f"{step:>10,}  {words}")
    if bad := [step for step, problem in problems.items() if problem]:
        raise CheckpointError(
            f"{display(run.model)}: {len(bad)} of {amounts.counted(len(problems), 'checkpoint')} "
            f"{'is' if len(bad) == 1 else 'are'} not valid; a resume uses the newest complete checkpoint."
        )


def universal(options: argparse.Namespace) -> None:
    """Write a checkpoint in DeepSpeed's universal format."""
    from nbtrain.base.printing.progress import Progress
    from nbtrain.jobs.gpu_side import stream

    run = run_of(options).directory
    to = str(options.to.absolute()) if options.to else None
    request, done = {"run_dir": str(run.path), "step": options.step, "to": to}, 0
    with Progress("universal checkpoint", None, "parameters") as bar:
        for answer in stream("nbtrain.checkpoint.universal", request):
            if answer["kind"] == "progress":
                bar.total = answer["total"]
                bar.update(answer["done"] - done)
                done = answer["done"]
            elif answer["kind"] == "note":
                show(answer["message"], sys.stderr)
            elif answer["kind"] == "end":
                end = answer
    show(
        f"{display(Path(end['folder']))}: written from step {end['step']:,} in "
        f"{amounts.elapsed(end['seconds'])}; {amounts.counted(end['parameters'], 'tensor')}, "
        f"{amounts.size(end['bytes'])}."
    )


def _manifest(run: "RunDir", step: int) -> dict[str, Any]:
    """Return the manifest of a checkpoint that checkpoint_problem() has accepted."""
    manifest = files.read_json(run.checkpoint_manifest(step))
    assert isinstance(manifest, dict)
    return manifest
