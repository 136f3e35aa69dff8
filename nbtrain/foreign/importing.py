"""Imports files of other programs as a run: `nbtrain import FILE... [key=value ...]` and nb.import_run.

    files -> job (read.py) -> argument list (flags.py) -> fields (rows_*.py) -> overrides -> schema and rules

Everything that changes the model, the data, the schedule or the layout is imported; otherwise the import
fails and reports the setting with its file and line. Settings without an effect on the run are listed with a
reason.
"""

import functools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import Finding
from nbtrain.base.printing.report import Code, Findings, InNotebook, Report, Result
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import typed_path
from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.load import Overrides, find, flatten, load, override_layer, to_yaml, validate
from nbtrain.config.names.architectures import expanded
from nbtrain.config.rules.check import check_config
from nbtrain.config.rules.environment import SECRET_FIX, SECRET_VALUES, is_secret, why_reserved
from nbtrain.config.rules.resume import within
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import Located, parse_value, spelled
from nbtrain.foreign.job_files.job import Job
from nbtrain.foreign.job_files.own_files import run_of
from nbtrain.foreign.job_files.programs import other_program
from nbtrain.foreign.job_files.read import read_files
from nbtrain.foreign.lint_flags import exclusive
from nbtrain.foreign.mapping.conversion import Reading
from nbtrain.foreign.mapping.deepspeed_keys import (
    accumulation_contradicts,
    drop_auto,
    drop_wrong,
    read_alone,
    read_keys,
    two_formats,
)
from nbtrain.foreign.mapping.mapping import MAPPED, NEUTRAL, ROWS, without_meaning
from nbtrain.foreign.mapping.ranks import GPUS, NODES, ranks_of
from nbtrain.foreign.mapping.rows_layout import stage_for_format
from nbtrain.foreign.mapping.rows_model import clean_name
from nbtrain.foreign.syntax.flags import (
    ASCEND_REASON,
    Arguments,
    Table,
    choose_table,
    find_table,
    parse,
    tables,
)
from nbtrain.foreign.syntax.json_comments import Document, read_json
from nbtrain.foreign.syntax.located import Word
from nbtrain.planner.run_file import not_written, parent_name, path_of, refuse_existing, target_of

# A field that flags cannot express, as an export writes it: "# nbtrain: tokenizer.vocab_size=52000", or
# "# nbtrain: KEY=VALUE <- OTHER" for a field that the flags set to OTHER.
HINT = re.compile(r"#\s*nbtrain: ([a-z0-9_.]+)=(.*?)(?: <- (.*))?$")


# Maximum number of places that a message about several jobs lists.
MOST_PLACES = 8
# Kinds of files that hold only a layout, for a run that already has a model.
ALONE = ("DeepSpeed JSON", "Accelerate configuration")


@dataclass(frozen=True, slots=True, repr=False)
class Imported(Result):
    """A run made from files of other programs. Printing it shows its YAML."""

    config: RunConfig
    text: str
    """The run YAML. A comment after each value names its source."""
    notes: tuple[Finding, ...]
    """Settings that were not imported, with reasons, and steps to take manually."""
    program: str
    """Program that the files are for, e.g. megatron-deepspeed@e7bff5ec, or DeepSpeed."""
    onto: str = ""
    """Name of the run that the YAML extends, as the user gave it; "" if it extends no run."""

    def as_report(self) -> Report:
        """Return the run YAML; in a notebook, with the notes above it."""
        notes = Findings(self.notes)
        return Report("", [InNotebook(notes), Code(self.text, indent="")])

    def write(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write the run YAML and return its absolute path.

        Raises ConfigError if the file exists, unless `overwrite` is set.
        """
        target, text = target_of(path, overwrite, "--overwrite"), self.text
        if self.onto:
            # A relative name is resolved from the folder of the YAML.
            parent = parent_name(find(self.onto).absolute(), target)
            text = text.replace(_extends(self.onto), _extends(parent), 1)
        return write_once(target, text, overwrite)


def _extends(name: str) -> str:
    return f"\nextends: {spelled(name)}\n"


def write_once(path: str | Path, text: str, overwrite: bool) -> Path:
    """Write a file. Raises ConfigError if it exists, unless `overwrite` is set."""
    path = typed_path(path_of(path))
    refuse_existing(path, overwrite, "--overwrite")
    try:
        files.write_output(path, text)
    except OSError as error:
        raise not_written(path, error) from None
    return path


def import_files(
    paths: Sequence[str | Path], overrides: Overrides = None, onto: str | Path | None = None, target: str = ""
) -> Imported:
    """Return the run that files of other programs describe.

    `overrides` set fields that the files do not contain (tokenizer.vocab_size), or fields that should differ.
    `onto` is the run that a layout alone, such as a DeepSpeed JSON, is applied to. `target` names the program
    and version if the flags do not determine them. Raises ConfigError with the file and line of everything
    that cannot be imported.
    """
    variables, overrides = split_variables(overrides)
    jobs = read_files(paths, variables)
    if len(jobs) > 1:
        names = ", ".join(f"{job.label} ({job.name.text if job.name else job.kind})" for job in jobs)
        programs = [job.program for job in jobs if job.program is not None]
        if len({job.label for job in jobs}) == 1 and len(programs) == len(jobs):
            places = [f"{word.place} ({word.text})" for word in programs]
            names = ", ".join(places[:MOST_PLACES]) + (" and others" if places[MOST_PLACES:] else "")
        alternatives = next((job.alternatives for job in jobs if job.alternatives), "")
        if alternatives:
            fix = f"\n{alternatives}"
        elif len({job.label for job in jobs}) < len(jobs):
            fix = " Write each job into a separate file, and import one file at a time."
        else:
            fix = " Import one file at a time."
        raise ConfigError(f"the files describe {len(jobs)} jobs: {names}.{fix}")
    layer = override_layer(overrides)
    if jobs[0].own_run is not None:
        config = load(run_of(jobs[0]), overrides)
        head = _comment(f"Made by nbtrain import from {jobs[0].label}, a file that nbtrain wrote.")
        text = f"{head}\n\n{to_yaml(config)}"
        return Imported(config, text, (), "nbtrain")
    source = read_job(jobs[0], dict(flatten(layer.value)), target)
    if onto is not None:
        return _onto(source, layer, onto)
    if jobs[0].kind in ALONE:
        raise_failures(source)
        article = "an" if jobs[0].kind.startswith("A") else "a"
        raise ConfigError(
            f"{jobs[0].label}: {article} {jobs[0].kind} has no model, no data and no training length. Give a "
            "run to apply it to: run `nbtrain import FILE --onto gpt-125m`."
        )
    raise_failures(source)
    located = Located(nested(source.values), dict(source.origins))
    located = located.merged_with(expanded(layer, located))
    config = validate(located, jobs[0].label)
    check_config(config)
    text = _yaml(source, located.value, f"Made by nbtrain import from {jobs[0].label} ({source.table.name}).")
    return Imported(config, text, tuple(source.notes), source.table.name)


def split_variables(overrides: Overrides) -> tuple[dict[str, str], Overrides]:
    """Separate values of the scripts' variables (TP=4) from overrides of fields (parallel.zero_stage=1)."""
    if not overrides:
        return {}, overrides
    if isinstance(overrides, Mapping):
        names = {
            key: "" if value is None else str(value)
            for key, value in overrides.items()
            if _is_variable(str(key)) and not isinstance(value, Mapping)
        }
        return names, {key: value for key, value in overrides.items() if key not in names}
    try:
        words = shlex.split(overrides) if isinstance(overrides, str) else list(overrides)
    except (ValueError, TypeError):
        return {}, overrides
    found: dict[str, str] = {}
    rest: list[str] = []
    for word in words:
        name, equals, value = word.partition("=") if isinstance(word, str) else ("", "", "")
        if equals and _is_variable(name):
            found[name] = value
        else:
            rest.append(word)
    return found, rest


def _is_variable(name: str) -> bool:
    """Return whether a name is a shell variable or argument rather than a field."""
    if name.isdigit():
        return True
    field = RunConfig.model_fields.get(name)
    section = field.annotation if field is not None else None
    is_section = isinstance(section, type) and issubclass(section, BaseModel)
    return bool(re.fullmatch(r"[A-Za-z_]\w*", name)) and (field is None or is_section)


def _onto(source: Reading, layer: Located, onto: str | Path) -> Imported:
    raise_failures(source)
    base = load(onto, check=False)
    stage_for_format(source, base.precision.dtype)
    _ranks_of_layout(source, base)
    values = {key: value for key, value in source.values.items() if key != "name"}
    before = [file.model_dump(exclude_none=True) for file in base.imported_from]
    values["imported_from"] = before + [file for file in values["imported_from"] if file not in before]
    merged = Located(base.model_dump(), dict(base._origins)).merged_with(
        Located(nested(values), {key: source.origins[key] for key in values})
    )
    config = validate(merged.merged_with(expanded(layer, merged)), source.job.label)
    check_config(config)
    _accumulation_is_the_runs(source, config)
    written = Located(nested(values)).merged_with(layer).value
    head = f"Made by nbtrain import from {source.job.label}, on {base.name}."
    text = _yaml(source, {"name": config.name, "extends": str(onto), **written}, head)
    return Imported(config, text, tuple(source.notes), "DeepSpeed", str(onto))


def _ranks_of_layout(source: Reading, base: RunConfig) -> None:
    """Set the number of data-parallel ranks if the layout changes the number of nodes or GPUs of `base`."""
    if not any(key in source.values for key in (NODES, GPUS)):
        return
    ranks = ranks_of(source, base)
    place = source.origins.get(GPUS) or source.origins[NODES]
    if ranks.leave_some_over:
        raise ConfigError(
            f"{place}: {ranks.total} ranks are not a multiple of {ranks.words} = {ranks.model} ranks in "
            f"{base.name}. Add {NODES}={ranks.fitting_nodes} to the command, or a multiple of that number."
        )
    if ranks.replicas:
        source.set("parallel.data_parallel_size", ranks.replicas, comment=ranks.comment, place=place)


def _accumulation_is_the_runs(source: Reading, config: RunConfig) -> None:
    """Raise ConfigError if the JSON's accumulation steps differ from the run's, as DeepSpeed would."""
    document, key = source.job.deepspeed, "gradient_accumulation_steps"
    steps = document.get(key) if document is not None else None
    if "train_batch_size" in source.auto:
        return  # the run's batch is kept, whatever the number of steps
    if document is None or not isinstance(steps, int) or steps == config.accumulation_steps:
        return
    micro, ranks = config.batch.micro_batch_size, config.parallel.data_parallel_size
    raise ConfigError(
        f"{document.place(key)}: {key}({steps}) * micro_batch_size({micro}) * data_parallel_size({ranks}) = "
        f"{steps * micro * ranks}, but the batch is {config.batch.global_batch_size} "
        f"({config.where('batch.global_batch_size')}), which needs {config.accumulation_steps} accumulation "
        f"steps. Remove {key}, or add batch.global_batch_size={steps * micro * ranks} to the command."
    )


def raise_failures(source: Reading) -> None:
    """Raise a ConfigError that lists everything that cannot be imported and is not overridden."""
    failures = [
        failure
        for failure in source.failures
        if not failure.key or not any(within(given, (failure.key,)) for given in source.given)
    ]
    if source.job.program is None:
        # Without a known program the flags are not parsed, so only the first failure is worth reporting.
        del failures[1:]
    refuse({str(failure): failure for failure in failures}.values(), ConfigError)


def read_job(job: Job, given: dict[str, Any] | None = None, target: str = "") -> Reading:
    """Read the fields, notes and failures of a job. `given` holds the overrides by field."""
    if job.program is not None and (other := other_program(job.program, job.flags)):
        job.other_program, job.program, job.flags = other, None, []
    source = Reading(job, parse(_table(job, target), job.flags), dict(given or {}))
    if job.other_program is not None:
        source.fail("", *job.other_program)
        return source
    hints = read_hints(job)
    source.given = {key: value for key, (value, _, _) in hints.items()} | source.given
    if "name" in hints:
        value, _, place = hints["name"]
        job.name = Word(str(value), place)
    source.set("name", _name(job), comment=job.kind, place=job.name.place if job.name else job.label)
    if job.deepspeed is not None:
        _faults(source, job.deepspeed)
        drop_auto(source, job.deepspeed)
        drop_wrong(source, job.deepspeed)
        if words := two_formats(job.deepspeed):
            source.fail("precision.dtype", job.deepspeed.place("fp16.enabled"), f"fp16.enabled: {words}")
    for place, words in job.refused:
        source.fail("", place, words)
    for key, place, words in job.asked:
        source.fail(key, place, words)
    for key, unknown in job.unknown:
        source.ask(key, unknown)
    if job.kind in ALONE:
        if job.deepspeed is not None:
            read_alone(source, job.deepspeed)
        _place(source)
        return source
    if job.program is None:
        _no_program(source)
    for word in source.arguments.ascend:
        source.note(word.place, f"{word.text}: {ASCEND_REASON}.")
    for complaint in source.arguments.complaints:
        # The key of a failure must be a field, and no field can replace a wrong flag.
        source.failures.append(replace(complaint, key=""))
    for first, second in exclusive(source):
        source.fail(
            "",
            first.place,
            f"{first.text} with {second.text} ({second.place}): the program refuses to start with "
            "both. Remove one of them.",
        )
    _lists(source)
    source.notes += job.remarks
    for row in ROWS:
        row.read(source)
    _compare_batch(source)
    if job.deepspeed is not None:
        read_keys(source, job.deepspeed)
    _other_flags(source)
    _machine(source)
    _place(source)
    _take_hints(source, hints)
    return source


def _faults(source: Reading, document: Document) -> None:
    """Report faults in the JSON as failures or notes.

    DeepSpeed refuses a key that is written twice. Megatron's json uses the last value, but refuses comments.
    """
    for fault in document.faults:
        if fault.is_duplicate and source.job.kind in ALONE:
            source.fail("", fault.place, f"{fault.text}, which DeepSpeed rejects. Remove one of the two.")
        elif fault.is_duplicate:
            source.note(fault.place, f"{fault.text}; the last value is used.")
        else:
            source.note(fault.place, f"{fault.text}.")


def _no_program(source: Reading) -> None:
    """Fail the import because the command launches no known program, and report the command."""
    missing = source.job.script_missing
    if missing is None:
        words = (
            "the command does not start a training program that nbtrain knows. Give the file with the "
            "command that runs a Megatron training script, such as pretrain_gpt.py."
        )
        source.fail("", source.job.label, words)
        return
    source.fail(
        "",
        missing.place,
        f"the command runs {missing.text}, which is in none of the given files. Add its ConfigMap to the "
        "file, or import the script itself with resources.nodes=... resources.gpus_per_node=...",
    )


def _table(job: Job, target: str) -> Table:
    if target:
        return find_table(target)
    for _, text in job.comments:
        if match := re.search(r"# nbtrain export: (\S+)", text):
            return find_table(match.group(1))
    return choose_table(job.flags, job.program.text if job.program else "")


def _name(job: Job) -> str:
    return clean_name(job.name.text if job.name else Path(job.label).stem, "imported-run")


def _lists(source: Reading) -> None:
    """Check the words, such as $EXTRA_ARGS, that stand for flags which only the shell knows.

    A variable that no file sets counts as empty. If a file sets the variable to a value that only the shell
    can compute, the user has to give the value, unless it cannot contain a flag that affects the run.
    """
    for word in source.arguments.lists:
        unknown = word.unknowns[0] if word.unknowns else None
        if unknown is None or unknown.is_absent:
            text = f"{word.text}: the file does not set this variable, so it counts as empty."
            source.note(word.place, text)
        elif unknown.choices and all(_without_effect(source, text) for text in unknown.choices):
            texts = " or ".join(shortened(" ".join(text.split())) or "nothing" for text in unknown.choices)
            source.note(
                unknown.place,
                f"{unknown.name} is {texts}, depending on values that are not known. The imported run is the "
                "same in each case.",
            )
        elif unknown.name:
            source.ask("", unknown)
        else:
            source.fail(
                "",
                word.place,
                f"{word.text}: the output of this command may contain flags that change the run. Write the "
                f"flags out, or remove {word.text}.",
            )


def _without_effect(source: Reading, text: str) -> bool:
    """Return whether a text consists of flags that do not affect the run in some version of the program."""
    words = [Word(part, "", ()) for part in text.split()]
    return any(_says_nothing(parse(table, words)) for table in tables(source.program))


def _says_nothing(found: Arguments) -> bool:
    dests = [setting.option.dest for setting in found.settings]
    return not (found.complaints or found.lists) and all(
        dest not in MAPPED and without_meaning(dest) for dest in dests
    )


def _other_flags(source: Reading) -> None:
    """Add a note about each flag that is not in a row of the mapping, or reject it if it changes the run."""
    for setting in source.arguments.settings:
        dest = setting.option.dest
        if dest in MAPPED:
            continue
        reason = without_meaning(dest)
        if (
            reason == "read"
            or setting.value == setting.option.default
            or setting.value in NEUTRAL.get(dest, ())
        ):
            continue
        if reason:
            source.note(setting.place, f"{setting.text}: {reason}.")
        elif not _holds(source, dest, setting.value):
            source.fail(
                "",
                setting.place,
                f"{setting.text}: this flag changes the run, and nbtrain has no field for it. Remove it if "
                "the run can do without it.",
            )


def _holds(source: Reading, dest: str, value: Any) -> bool:
    """Return whether a flag sets what nbtrain does for this model even without the flag."""
    if dest == "encoder_num_layers":
        return bool(value == source.values.get("model.num_layers"))
    return dest == "gradient_accumulation_fusion"


def _compare_batch(source: Reading) -> None:
    """Compare the JSON's batch with the batch in the flags, because DeepSpeed asserts that they agree."""
    document = source.job.deepspeed
    if document is None:
        return
    for key, dotted in (
        ("batch.global_batch_size", "train_batch_size"),
        ("batch.micro_batch_size", "train_micro_batch_size_per_gpu"),
    ):
        value, flag = document.get(dotted), source.values.get(key)
        if value is not None and flag is not None and value != flag:
            place = source.origins[key]
            source.fail(
                key,
                document.place(dotted),
                f"{dotted} = {value}, but {place} has {source.comments[key]}. Make both equal.",
            )
    if words := accumulation_contradicts(source, source.said("parallel.data_parallel_size")):
        place = document.place("gradient_accumulation_steps")
        text = f"{words} Remove gradient_accumulation_steps."
        source.fail("batch.global_batch_size", place, text)


def _machine(source: Reading) -> None:
    """Read the CPU cores, memory, image and environment of the job."""
    job = source.job
    for key, found in (
        ("resources.cpus_per_node", job.cpus),
        ("resources.memory_per_node_bytes", job.memory_bytes),
        ("resources.image", job.image),
    ):
        if found is not None:
            source.set(key, found.value, comment=job.kind, place=found.place)
    if job.gpu_product is not None:
        label = str(job.gpu_product.value)
        bare = label.removeprefix("NVIDIA-")
        device = find_device(label) or find_device(bare) or find_device(bare.replace("-", " "))
        if device is None:
            text = (
                f"{label}: this device is not in the device table, so resources.gpu_type is not set. Add "
                "resources.gpu_type=... to the command."
            )
            source.note(job.gpu_product.place, text)
        else:
            source.set("resources.gpu_type", device.name, comment=label, place=job.gpu_product.place)
    environment = {}
    secret = job.settings.get("backend.kubernetes.secret_variables")
    secret_names = {variable["name"] for variable in secret.value} if secret else set()
    for name, word in job.environment.items():
        if name in secret_names:
            if not word.from_outside:
                text = f"{name}: not imported; another container takes its value from a Secret."
                source.note(word.place, text)
        elif words := why_reserved(name):
            source.note(word.place, f"{name}: {words}")
        elif is_secret(name, word.text, addresses=False):
            source.note(word.place, f"{name} looks like a secret: {SECRET_FIX}.")
        elif is_secret(name, word.text):
            words = "not imported; its address holds a password or a query, which a run YAML never shows"
            source.note(word.place, f"{name}: {words}; {SECRET_FIX}.")
        elif word.from_outside:
            source.note(word.place, f"{name}: not imported; its value comes from outside the script.")
        else:
            environment[name] = word.text
    if environment:
        source.set("backend.env", environment, comment=job.kind)


def _place(source: Reading) -> None:
    """Read where the job runs, and list its settings without a corresponding field."""
    job = source.job
    for key, value in job.settings.items():
        source.set(key, value.value, comment=job.kind, place=value.place)
    for place, text in job.left:
        source.note(place, text)
    if job.files:
        files = [file.model_dump(exclude_none=True) for file in job.files]
        source.set("imported_from", files, place=job.label)


def read_hints(job: Job) -> dict[str, tuple[Any, str | None, str]]:
    """Return {field: (value, the flags' value at export, place)} from the comments that an export writes."""
    found: dict[str, tuple[Any, str | None, str]] = {}
    for place, text in job.comments:
        if match := HINT.match(text):
            key, value, instead = match.groups()
            found[key] = (parse_value(value), instead, place)
    return found


def _take_hints(source: Reading, hints: dict[str, tuple[Any, str | None, str]]) -> None:
    """Set the fields that an export wrote as comments, unless the flags were edited after the export.

    An edited flag makes the comments on all fields in its row of the mapping invalid.
    """
    said = said_by(source)
    stale: set[str] = set()
    for key, (value, instead, place) in hints.items():
        if instead is not None and spelled(said.get(key)) != instead:
            now = spelled(said.get(key))
            source.note(
                place,
                f"{key}={spelled(value)}: this comment of the export is ignored, because the flags now set "
                f"{now}, not {instead} as in the export.",
            )
            stale |= {one for row in ROWS if key in row.fields for one in row.fields}
    for key, (value, _, place) in hints.items():
        if key in stale or any(one.startswith(f"{key}.") for one in stale):
            continue
        for part in [one for one in source.values if one.startswith(f"{key}.")]:
            del source.values[part]
        source.values.pop(key.rpartition(".")[0], None)
        source.set(key, value, comment="comment of the export", place=place)


@functools.cache
def _defaults() -> dict[str, Any]:
    """Return the schema's defaults by dotted field."""

    def of(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, info in model.model_fields.items():
            section = info.annotation
            if isinstance(section, type) and issubclass(section, BaseModel):
                yield from of(section, f"{prefix}{name}.")
            elif not info.is_required():
                default = info.get_default()
                yield f"{prefix}{name}", default

    return dict(of(RunConfig, ""))


def said_by(source: Reading) -> dict[str, Any]:
    """Return every field as the job sets it, or with the schema's default."""
    # If a job sets a field inside a section, the section's own default does not apply.
    outer = {one[:end] for one in source.values for end, letter in enumerate(one) if letter == "."}
    return {key: value for key, value in _defaults().items() if key not in outer} | source.values


def read_json_alone(text: str) -> dict[str, Any]:
    """Return the fields that a DeepSpeed JSON without flags sets."""
    job = Job("DeepSpeed JSON", "ds_config.json", deepspeed=read_json(text, "ds_config.json"))
    return read_job(job).values


def nested(values: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        target = nested
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    return nested


def _yaml(source: Reading, values: dict[str, Any], head: str) -> str:
    """Return the run YAML: values with their sources in the schema's order, then what was not imported."""
    lines = [_comment(head), ""]
    order = ["name", "extends", *(name for name in RunConfig.model_fields if name != "name")]
    for section in sorted(values, key=order.index):
        inner = values[section]
        if isinstance(inner, dict):
            lines += [f"{section}:", *_section(source, inner, section, 1), ""]
        else:
            lines += [_line(source, section, section, inner, 0), ""]
    if source.notes:
        notes = (_comment(f"- {note}") for note in source.notes)
        lines += ["# Not imported, or to be done manually:", *notes]
    return "\n".join(lines).rstrip() + "\n"


def _section(source: Reading, values: dict[str, Any], prefix: str, depth: int) -> list[str]:
    lines = []
    for key, value in values.items():
        dotted = f"{prefix}.{key}"
        if isinstance(value, dict) and value and dotted not in source.values:
            lines += [f"{'  ' * depth}{key}:", *_section(source, value, dotted, depth + 1)]
        else:
            lines.append(_line(source, dotted, key, value, depth))
    return lines


def _line(source: Reading, dotted: str, key: str, value: Any, depth: int) -> str:
    text = f"{'  ' * depth}{key}: {spelled(value)}"
    same = dotted in source.values and source.values[dotted] == value
    comment = source.comments.get(dotted, "") if same else ""
    return f"{text}  {_comment(comment)}" if comment else text


def _comment(text: str) -> str:
    """Return a YAML comment on one line, with secrets replaced by ***."""
    return f"# {SECRET_VALUES.sub('***', ' '.join(text.split()))}"


def arguments_of(job: Job, target: str = "") -> Arguments:
    """Return a job's argument list, parsed."""
    return parse(_table(job, target), job.flags)
