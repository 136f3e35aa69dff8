"""`nbtrain checkpoint ...`: what a run has saved.

    nbtrain checkpoint list RUN                step, size, layout, validation loss, and what is missing
    nbtrain checkpoint inspect RUN             one of them: what wrote it, where the training stood, its files
    nbtrain checkpoint verify RUN              all of them, or one: reads every file and compares its SHA-256
    nbtrain checkpoint universal RUN           one of them in DeepSpeed's universal form, for other tools

A run resumes in any layout without a conversion. RUN is a run's name, folder or YAML.
"""

import argparse
import contextlib
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtrain.base import amounts, files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.table import aligned
from nbtrain.base.workspace import display
from nbtrain.cli.verbs import Parser, run_of, run_verb

if TYPE_CHECKING:
    from nbtrain.base.rundir import RunDir

# What stands before _parallel_size in the fields of a layout that are shown if they differ from 1: its word.
LAYOUT = {kind: kind for kind in ("data", "tensor", "pipeline")} | {"ds_sequence": "Ulysses"}


def add_verbs(top: Any) -> None:
    """Add `checkpoint ...` below `top`, the subparsers of nbtrain."""
    group = top.add_parser("checkpoint", help="What a run has saved: list, inspect, verify, universal.")
    under = group.add_subparsers(required=True, metavar="VERB", title="verbs")
    one = run_verb(under, "list", list_checkpoints, "Checkpoints of a run, and which of them are whole.")
    one.add_argument("--json", action="store_true", help="as JSON")
    one = run_verb(under, "inspect", inspect, "What is in a checkpoint, and where the training stood.")
    _with_step(one).add_argument("--json", action="store_true", help="the manifest as it is")
    one = run_verb(under, "verify", verify, "Read every file of the checkpoints and compare its SHA-256.")
    one.add_argument("--step", type=int, metavar="N", help="this one alone; all without it")
    one = run_verb(under, "universal", universal, "Write a checkpoint in DeepSpeed's universal form.")
    text = "a new folder; output/<run>/universal/global_step<N> without it"
    _with_step(one).add_argument("--to", type=Path, metavar="DIR", help=text)


def _with_step(one: Parser) -> Parser:
    one.add_argument("--step", type=int, metavar="N", help="the newest whole one without it")
    return one


def list_checkpoints(options: argparse.Namespace) -> None:
    run = run_of(options).directory
    found = [summary(run, step) for step in run.checkpoint_steps()]
    on_nodes = [one for one in _kept_on_nodes(run) if one["step"] not in {whole["step"] for whole in found}]
    if options.json:
        print(json.dumps(sorted(found + on_nodes, key=lambda one: one["step"]), indent=2))
        return
    words = _on_nodes(run)
    if not found:
        print(f"{run.name}: has no checkpoint{f' in {display(run.model)}' if words else ''}.")
    rows = [("step", "size", "layout", "validation loss", "")]
    for one in sorted(found + on_nodes, key=lambda one: one["step"]):
        loss = "" if one["validation_loss"] is None else f"{one['validation_loss']:.4f}"
        size = "" if one["bytes"] is None else amounts.size(one["bytes"])
        # Contents are not read here; `verify` reads them.
        state = "sizes right" if one["problem"] is None else f"not whole: {one['problem']}"
        rows.append(
            (f"{one['step']:,}", size, one["layout"], loss, one["problem"] if one["hosts"] else state)
        )
    if len(rows) > 1:
        print("\n".join(aligned(rows)))
    if words:
        print(words)


def _kept_on_nodes(run: "RunDir") -> list[dict[str, Any]]:
    """Rows of `list` for what lies on the nodes' own disks, as far as the run's list of them says."""
    from nbtrain.base.checkpoint_files import kept_on_nodes
    from nbtrain.base.jobstate import SUCCEEDED, read_state
    from nbtrain.config.load import load_resolved

    job = run.newest_job()
    # Of a finished run nothing stays there.
    if not run.config_yaml.is_file() or (job and read_state(job, time.time())[0] == SUCCEEDED):
        return []
    saves = kept_on_nodes(run, load_resolved(run.config_yaml).checkpoint.local_keep_last)
    unknown = {"bytes": None, "layout": "", "validation_loss": None}
    return [
        {
            "step": save.step,
            **unknown,
            "problem": f"on the disks of {', '.join(save.hosts)} alone",
            "hosts": save.hosts,
        }
        for save in saves
        if not save.copied
    ]


def _on_nodes(run: "RunDir") -> str:
    """A sentence on a newer checkpoint that lies on the nodes' disks alone; "" if there is none.

    Of this host it says so only if the files are there; other hosts are not asked.
    """
    from nbtrain.base.checkpoint_files import (
        local_folder,
        newest_checkpoint_step,
        on_nodes_words,
        only_on_nodes,
    )
    from nbtrain.config.load import load_resolved

    save, host = only_on_nodes(run), os.uname().nodename
    if save is None:
        return ""
    if host in save.hosts and run.config_yaml.is_file():
        config = load_resolved(run.config_yaml)
        name = f"{run.name}-{(run.record() or {}).get('run_id', '')}"
        roots = [
            local_folder(config.checkpoint.local_dir, node, host) / name
            for node in range(config.resources.nodes)
            if config.checkpoint.local_dir is not None
        ]
        if not any((root / f"global_step{save.step}").is_dir() for root in roots):
            older = newest_checkpoint_step(run)
            start = "starts from the beginning" if older is None else f"goes on from step {older:,}"
            others = "" if len(save.hosts) == 1 else ", unless the other hosts have it whole"
            return (
                f"Step {save.step:,} was saved on the disks of {', '.join(save.hosts)} alone "
                f"(checkpoint.local_dir), and is no longer on this host, {host}: a resume {start}{others}."
            )
    words = on_nodes_words(run)
    return f"{words[0].upper()}{words[1:]}."


def summary(run: "RunDir", step: int) -> dict[str, Any]:
    """A checkpoint folder in a row of `list`; `problem` is None if its files' names and sizes are right.

    `hosts`: on whose own disks it lies alone.
    """
    from nbtrain.base.checkpoint_files import MANIFEST, checkpoint_problem

    folder = run.checkpoint(step)
    known: dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # `problem` says so
        read = files.read_json(run.checkpoint_manifest(step))
        known = read if isinstance(read, dict) else {}
    payload = (path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {
        "step": step,
        "bytes": sum(path.stat().st_size for path in payload),
        "layout": layout_text(known.get("layout") or {}),
        # Only the loss that was measured at this very step.
        "validation_loss": known.get("validation_loss") if known.get("evaluated_step") == step else None,
        "problem": checkpoint_problem(folder),
        "hosts": [],
    }


def layout_text(layout: dict[str, Any]) -> str:
    """ "data 2, tensor 4, ZeRO 1, bf16"; "" for a layout that is not known."""
    if not layout:
        return ""
    sizes = {word: layout.get(f"{kind}_parallel_size", 1) for kind, word in LAYOUT.items()}
    parts = [f"{word} {size}" for word, size in sizes.items() if size > 1]
    return ", ".join([*(parts or ["1 rank"]), f"ZeRO {layout['zero_stage']}", layout["weights"]])


def inspect(options: argparse.Namespace) -> None:
    from nbtrain.base.checkpoint_files import checkpoint_problem, newest_checkpoint_step

    run = run_of(options).directory
    step = newest_checkpoint_step(run) if options.step is None else options.step
    if step is None:
        raise CheckpointError(f"{display(run.model)}: holds no whole checkpoint; train the run first.")
    folder = run.checkpoint(step)
    if problem := checkpoint_problem(folder):
        raise CheckpointError(f"{display(folder)}: {problem}.")
    manifest = _manifest(run, step)
    if options.json:
        print(json.dumps(manifest, indent=2))
        return
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    parameters = manifest.get("parameters") or {}
    samples, tokens = manifest["consumed_samples"], manifest["consumed_tokens"]
    lines = [
        ("checkpoint", f"{display(folder)}: {amounts.size(size)} in {len(manifest['files'])} files"),
        ("saved", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest["created_at"]))),
        ("trained", f"step {step:,}, {samples:,} samples, {tokens:,} tokens"),
        ("layout", layout_text(manifest["layout"])),
        ("versions", ", ".join(f"{name} {number}" for name, number in manifest["versions"].items())),
    ]
    if parameters:
        count = sum(math.prod(entry["shape"]) for entry in parameters.values())
        lines.append(("parameters", f"{count:,} in {len(parameters)} tensors, vocabulary padding included"))
        lines.append(("optimizer", optimizer_text(parameters)))
    if manifest.get("validation_loss") is not None:
        at = manifest.get("evaluated_step")
        where = "" if at in (None, step) else f", of step {at:,}"
        lines.append(("validation loss", f"{manifest['validation_loss']:.4f}{where}"))
    if manifest.get("next_batch_sha256"):
        lines.append(("next batch", manifest["next_batch_sha256"]))
    for title, text in lines:
        print(f"{title:<16}{text}")


def optimizer_text(parameters: dict[str, Any]) -> str:
    """Which optimizer steps how many of a manifest's parameters, by group, and what it keeps of each."""
    words = []
    for name, groups, kept in (
        ("Muon", ("matrices",), "momentum_buffer"),
        ("AdamW", ("decay", "no_decay"), "exp_avg, exp_avg_sq"),
    ):
        of_group = {
            group: [math.prod(entry["shape"]) for entry in parameters.values() if entry["group"] == group]
            for group in groups
        }
        found = [f"{group} {sum(counts):,} in {len(counts)}" for group, counts in of_group.items() if counts]
        if found:
            words.append(f"{name} ({kept}): {', '.join(found)}")
    return "; ".join(words)


def verify(options: argparse.Namespace) -> None:
    """Raises CheckpointError, at the end, if a checkpoint is not whole; nothing is changed."""
    from nbtrain.base.checkpoint_files import checkpoint_problem
    from nbtrain.base.progress import Progress

    run = run_of(options).directory
    steps = run.checkpoint_steps()
    if options.step is not None:
        steps = [step for step in steps if step == options.step]
    if not steps:
        which = "no checkpoint" if options.step is None else f"no checkpoint of step {options.step:,}"
        raise CheckpointError(f"{display(run.model)}: holds {which}.")
    problems = {step: checkpoint_problem(run.checkpoint(step)) for step in steps}
    described = {step: _manifest(run, step)["files"] for step, problem in problems.items() if problem is None}
    total = sum(entry["bytes"] for entries in described.values() for entry in entries.values())
    with Progress("verify", total, "B") as bar:
        for step, entries in described.items():
            for name, entry in sorted(entries.items()):
                if files.sha256_of(run.checkpoint(step) / name) != entry["sha256"]:
                    problems[step] = f"{name} does not have the SHA-256 that its manifest says"
                bar.update(entry["bytes"])
    for step, problem in problems.items():
        count = len(described.get(step, ()))
        whole = f"whole: {count} file{' has its' if count == 1 else 's have their'} SHA-256"
        print(f"{step:>10,}  {f'not whole: {problem}' if problem else whole}")
    if bad := [step for step, problem in problems.items() if problem]:
        raise CheckpointError(
            f"{display(run.model)}: {len(bad)} of {len(problems)} checkpoints "
            f"{'is' if len(bad) == 1 else 'are'} not whole; a resume takes the newest whole one."
        )


def universal(options: argparse.Namespace) -> None:
    from nbtrain.base.progress import Progress
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
                print(answer["message"], file=sys.stderr)
            elif answer["kind"] == "end":
                end = answer
    print(
        f"{display(Path(end['folder']))}: step {end['step']:,}, {end['parameters']} tensors, "
        f"{amounts.size(end['bytes'])} in {amounts.elapsed(end['seconds'])}."
    )


def _manifest(run: "RunDir", step: int) -> dict[str, Any]:
    """Of a checkpoint without a problem."""
    manifest = files.read_json(run.checkpoint_manifest(step))
    assert isinstance(manifest, dict)
    return manifest
