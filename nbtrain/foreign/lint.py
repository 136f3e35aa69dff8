"""Reports problems in files of other programs: `nbtrain check FILE...` on manifests, scripts and JSON files.

Contradictions between the files, and between a file and its program, come first, with file and line. If the
job can be read as a run, all findings about the run's plan follow (memory, time, schedule, disk).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.findings import FATAL, Cost, Finding, by_cost
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_bytes
from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.load import Overrides, flatten, load, override_layer, validate
from nbtrain.config.rules.check import find_problems
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import Located
from nbtrain.foreign.importing import ALONE, nested, read_job, split_variables
from nbtrain.foreign.job_files.own_files import run_of
from nbtrain.foreign.job_files.read import read_files
from nbtrain.foreign.lint_flags import FLAG_RULES, number
from nbtrain.foreign.lint_json import JSON_RULES
from nbtrain.foreign.mapping.conversion import Reading
from nbtrain.foreign.mapping.ranks import ranks_of
from nbtrain.foreign.mapping.rows_model import GPT2_VOCABULARY

RULES: tuple[Callable[[Reading], Iterator[Finding]], ...] = (*FLAG_RULES, *JSON_RULES)


def lint(paths: Sequence[str | Path], overrides: Overrides = None, target: str = "") -> list[Finding]:
    """Return all findings about the files, most expensive first.

    `overrides` set what the files do not contain. `target` names the program and version if the flags do not
    determine them.
    """
    variables, overrides = split_variables(overrides)
    layer = override_layer(overrides)
    given = dict(flatten(layer.value))
    jobs = read_files(paths, variables)
    runs = [load(run_of(job), overrides, check=False) for job in jobs if job.own_run is not None]
    sources = [read_job(job, given, target) for job in jobs if job.own_run is None]
    findings = [finding for run in runs for finding in _of_run(run)]
    findings += [*names_are_their_own(sources), *folders_are_their_own(sources)]
    for source in sources:
        if source.job.other_program is not None:
            findings += [replace(failure, rule="a_program_is_known") for failure in source.failures]
            continue
        found = [finding for rule in RULES for finding in rule(source)]
        found += source.job.remarks
        found += states_fit_the_cluster(source, given)
        findings += [*found, *_as_run(source, layer, found)]
    return by_cost(findings)


# Fields for which a flag rule explains better why they cannot be imported.
EXPLAINED = {
    "parallel.data_parallel_size": "ranks_fill_the_machines",
    "batch.global_batch_size": "json_batch_agrees",
    "batch.micro_batch_size": "json_batch_agrees",
}


def _as_run(source: Reading, layer: Located, own: list[Finding]) -> list[Finding]:
    """Return the findings of the rules and the plan if the job can be read as a run.

    Otherwise, return the reasons why it cannot.
    """
    if source.job.kind == "DeepSpeed JSON":
        return []
    if source.job.kind in ALONE:
        return [replace(failure, rule="a_layout_is_read") for failure in source.failures if not failure.key]
    findings: list[Finding] = []
    if source.job.program is None:
        return [replace(source.failures[0], rule="a_program_is_launched")]
    places, rules = {finding.place for finding in own}, {finding.rule for finding in own}
    if "tokenizer.vocab_size" not in {*source.values, *source.given}:
        # No Megatron file contains the vocabulary size, which has little effect on the findings.
        source.set("tokenizer.vocab_size", GPT2_VOCABULARY, place=f"{source.job.label}, assumed")
    left = [
        failure
        for failure in source.failures
        if failure.key not in source.given and (not failure.key or failure.key not in source.values)
    ]
    asked = {(key, place, words) for key, place, words in source.job.asked if key in source.values}
    for failure in source.failures:
        if (failure.key, failure.place, failure.message) in asked and failure.key not in source.given:
            fix = "nbtrain import fails at this setting."
            findings.append(Finding("note", "has_a_field", "", failure.place, failure.message, fix))
    for failure in left:
        if failure.place not in places and EXPLAINED.get(failure.key) not in rules:
            fix = "nbtrain import fails at this setting."
            findings.append(Finding("note", "has_a_field", "", failure.place, failure.message, fix))
    if any(failure.key for failure in left):
        return findings
    located = Located(nested(source.values), dict(source.origins)).merged_with(layer)
    try:
        config = validate(located, source.job.label)
    except ConfigError:
        if not source.arguments.complaints:
            raise
        return findings  # a finding about a flag explains why the field is missing
    if problems := find_problems(config):
        return [*findings, *problems]
    return [*findings, *_of_run(config), *checkpoints_fit_the_volume(source, config)]


def _of_run(config: RunConfig) -> list[Finding]:
    """Return the findings of the rules or, if no rule is broken, of the plan."""
    from nbtrain.planner.plan import plan

    return list(find_problems(config)) or list(plan(config).findings)


def states_fit_the_cluster(source: Reading, given: dict[str, Any]) -> Iterator[Finding]:
    """Check that all layers' weights, gradients, master weights and moments fit into the memory of all GPUs.

    They take 18 bytes per parameter with Megatron-LM's optimizer and 16 with DeepSpeed's (Megatron-LM's
    README 040eac94; arXiv:1910.02054, section 3), if everything is sharded across all GPUs.
    """
    hidden, layers = number(source, "hidden_size"), number(source, "num_layers")
    name = given.get("resources.gpu_type", source.values.get("resources.gpu_type"))
    device = find_device(name)
    gpus = ranks_of(source).total
    if device is None or not (hidden and layers and gpus):
        return
    per_parameter = 16 if source.program == "megatron-deepspeed" else 18
    states, room = 12 * layers * hidden**2 * per_parameter, gpus * device.memory_bytes
    if states > room:
        enough = -(-states // device.memory_bytes)
        yield Finding(
            "error",
            "states_fit_the_cluster",
            "--num-layers",
            source.place("num_layers"),
            f"{layers} layers of width {hidden:,} have {amounts.count(12 * layers * hidden**2)} parameters. "
            f"Their states, {per_parameter} bytes per parameter, take {amounts.size(states)}, but {gpus} "
            f"{device.name} together have {amounts.size(room)}.",
            f"Use at least {enough} {device.name}, and more for activations; or offload states; or make the "
            "model smaller.",
            Cost(fatal=True, num_bytes=states - room),
        )


def names_are_their_own(sources: Sequence[Reading]) -> Iterator[Finding]:
    """Check that no two jobs have the same name, because one job would replace the other in the cluster."""
    seen: dict[str, Reading] = {}
    for source in sources:
        name = source.job.name
        if name is None:
            continue
        if (first := seen.setdefault(name.text, source)) is not source and first.job.name:
            yield Finding(
                "error",
                "names_are_their_own",
                "metadata.name",
                name.place,
                f"the job in {first.job.name.place} is also named {name.text}.",
                f"Rename this job, e.g. to {Path(source.job.label).stem}.",
                FATAL,
            )


def folders_are_their_own(sources: Sequence[Reading]) -> Iterator[Finding]:
    """Check that no two jobs save to the same folder.

    They would overwrite each other's checkpoints and resume from each other's weights.
    """
    seen: dict[str, tuple[Reading, str]] = {}
    for source in sources:
        save = source.setting("save")
        if save is None or (save.word is not None and save.word.from_outside):
            continue
        first, place = seen.setdefault(str(save.value), (source, save.place))
        if first is not source:
            yield Finding(
                "error",
                "folders_are_their_own",
                "--save",
                save.place,
                f"the job in {place} also saves to {save.value}, so each job would resume from the other's "
                "checkpoints.",
                f"Set --save and --load to output/{Path(source.job.label).stem}/model.",
                Cost(words="a run that continues with another run's weights"),
            )


def checkpoints_fit_the_volume(source: Reading, config: RunConfig) -> Iterator[Finding]:
    """Check that all checkpoints fit into the volume claim.

    Megatron keeps all checkpoints unless --save-retain-interval is set.
    """
    interval, room = config.checkpoint.save_interval_steps, source.job.volume_bytes
    if source.setting("save_interval") is None or source.value("save_retain_interval"):
        return
    count = max(config.train_steps // interval, 1)
    total = count * checkpoint_bytes(config)
    full = room is not None and total > room.value
    if not full and total < MANY_BYTES:
        return
    claim = f", but the claim at {room.place} has {amounts.size(room.value)}" if full and room else ""
    size = amounts.size(checkpoint_bytes(config))
    held = min(room.value // checkpoint_bytes(config), MANY) if full and room else MANY
    fix = f"Request a volume of more than {size}, which is the size of one checkpoint."
    if held:
        sparser = -(-config.train_steps // held) if held < MANY else max(config.train_steps // MANY, 1)
        number = "ten checkpoints" if held == MANY else amounts.counted(held, "checkpoint")
        fix = f"Set --save-interval {sparser} to keep {number}, or remove old checkpoints."
    yield Finding(
        "error" if full else "warning",
        "checkpoints_fit_the_volume",
        "--save-interval",
        source.place("save_interval"),
        f"{config.train_steps:,} steps / save-interval({interval:,}) = {count:,} checkpoints of {size}. The "
        f"program keeps all of them, which takes {amounts.size(total)}{claim}.",
        fix,
        Cost(fatal=full, num_bytes=total if not full else total - room.value if room else 0),
    )


# Checkpoints are reported only if they take a terabyte or more.
MANY_BYTES = 10**12
# Number of checkpoints that suffice for going back to an earlier one.
MANY = 10
