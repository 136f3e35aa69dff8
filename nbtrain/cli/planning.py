"""Verbs before a run: doctor, init, new, import, check, schema, plan, advise, calibrate."""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from nbtrain.cli import completers
from nbtrain.cli.output import show, show_json, show_text
from nbtrain.cli.verbs import (
    add_json,
    add_overrides,
    add_picture,
    add_verb,
    check_picture,
    complete,
    config_verb,
    is_override,
    run_verb,
    save_picture,
)

PROGRAM_HELP = (
    "Read the flags as flags of this program and version, for example megatron-lm@040eac94. Default: the "
    "version that has all of these flags."
)


def add_verbs(under: Any) -> None:
    """Add the verbs from `doctor` to `calibrate` to `under`, the subparsers of nbtrain."""
    text = (
        "Checks Python, torch, DeepSpeed, devices, memory and disk space, and suggests a fix for each "
        "problem. Exit code 1 means that a problem must be fixed."
    )
    add_json(add_verb(under, "doctor", doctor, text))

    parser = add_verb(
        under,
        "init",
        init,
        "They are copied to DIR, which may already exist; existing files are not replaced.",
        "nbtrain init my-work",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="The folder to copy to.")

    parser = add_verb(
        under,
        "new",
        new,
        "Looks at the text, chooses the vocabulary, model size and number of steps for this machine or the "
        "named GPUs, and writes NAME.yaml. Conversations and instructions make it a fine-tuning run.",
        "nbtrain new my-run --text books/\n"
        "nbtrain new my-run --text corpus.jsonl.gz --size 125M --gpus 4 --gpu-type A100-80GB",
    )
    parser.add_argument("name", metavar="NAME", help="The name of the run.")
    text = "Files, folders or quoted patterns: .txt, .md, .jsonl, .json, .parquet, also compressed."
    parser.add_argument("--text", nargs="+", required=True, metavar="PATH", dest="texts", help=text)
    text = "Number of model parameters, for example 3M or 125M. Default: a size that suits text and machine."
    parser.add_argument("--size", help=text)
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="Number of GPUs to train on. Default: this machine's."
    )
    parser.add_argument("--gpu-type", metavar="TYPE", help="Type of GPU, for example A100-80GB.")
    parser.add_argument("--gpus-per-node", type=int, metavar="N", help="GPUs per machine. Default: up to 8.")
    text = "Longest training time in minutes. Default: 4 on CPUs; on GPUs, no limit other than the text."
    parser.add_argument("--minutes", type=float, metavar="M", help=text)
    text = "For a fine-tuning run: the run whose model it starts from."
    start = parser.add_argument("--init-from", metavar="RUN", help=text)
    complete(start, completers.configs)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="YAML", help="File to write. Default: NAME.yaml in this folder."
    )
    parser.add_argument("--overwrite", action="store_true", help="Replace the YAML if it exists.")

    parser = add_verb(
        under,
        "import",
        import_run,
        "Reads a DeepSpeedJob or Kubeflow manifest, a shell script with Megatron flags, or a DeepSpeed JSON "
        "file.",
        "nbtrain import pretrain_gpt.sh -o my-run.yaml\n"
        "nbtrain import ds_config.json --onto gpt-125m -o my-run.yaml",
    )
    text = "Files to read, then settings (key=value) and values for a script's variables (TP=4)."
    parser.add_argument("words", nargs="+", metavar="FILE|key=value", help=text)
    text = "Write the run YAML to this file instead of printing it."
    parser.add_argument("-o", "--output", type=Path, metavar="YAML", help=text)
    parser.add_argument("--overwrite", action="store_true", help="Replace the YAML if it exists.")
    onto = parser.add_argument("--onto", metavar="RUN", help="Run to which a DeepSpeed JSON is applied.")
    complete(onto, completers.configs)
    parser.add_argument("--from", dest="program", default="", metavar="PROGRAM", help=PROGRAM_HELP)
    parser.set_defaults(more="words")

    text = (
        "Files that `nbtrain import` reads can be checked too. Exit code 2 means that the run is not valid "
        "or cannot work."
    )
    parser = config_verb(
        under, "check", check, text, "nbtrain check my-run.yaml\nnbtrain check gpt-tiny --resolved"
    )
    parser.add_argument("--resolved", action="store_true", help="Print the run as YAML with all its keys.")
    add_json(parser, "Print the findings as JSON.")
    parser.add_argument("--from", dest="program", default="", metavar="PROGRAM", help=PROGRAM_HELP)
    # The words after RUN may be files as well as key=value: check() tells them apart.
    parser.set_defaults(more="overrides")

    add_verb(under, "schema", schema, "Editors use it to complete and check run YAMLs.")

    parser = config_verb(
        under,
        "plan",
        plan,
        "Nothing is started.",
        "nbtrain plan 13B\nnbtrain plan gpt-125m batch.micro_batch_size=8 --why",
    )
    add_json(parser)
    add_picture(parser, "Also draw the plan to FILE")
    text = "Show each number with its formula, and the source of the formula."
    parser.add_argument("--why", action="store_true", help=text)

    parser = run_verb(
        under,
        "advise",
        advise,
        "Compares the last job's measurements with the plan.",
        "nbtrain advise gpt-125m\nnbtrain advise gpt-125m --use 1 -o faster.yaml",
    )
    text = "Write the run with change N to the file given with -o, and show the difference."
    parser.add_argument("--use", type=int, metavar="N", help=text)
    text = "Run YAML that --use writes. The file must not exist yet."
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    add_json(parser)

    parser = add_verb(
        under,
        "calibrate",
        calibrate,
        "Plans for this machine then use the measurements. With --network, measures the network between the "
        "machines of a run instead, in a job on the run's backend.",
        "nbtrain calibrate\nnbtrain calibrate --network 13B backend.kind=slurm --picture network.svg",
    )
    text = "Maximum time to measure. Default: 180, or 60 with --network."
    parser.add_argument("--seconds", type=float, help=text)
    text = "Measure all-reduce and all-gather across all ranks of this run, which uses several machines."
    complete(parser.add_argument("--network", metavar="RUN", help=text), completers.configs)
    add_overrides(parser)
    add_json(parser)
    add_picture(parser, "Also draw the measurements to FILE")
    text = "Clock to measure with. `cpu` is for a trial on a busy machine; its results are not saved."
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help=text)


def advise(options: argparse.Namespace) -> None:
    """Show advice about a run, or write the run YAML with one of the suggested changes."""
    from nbtrain.api import verbs as api
    from nbtrain.base.errors import ConfigError

    if (options.use is None) != (options.output is None):
        raise ConfigError(
            "pass --use N and -o FILE together: N is a change's number, FILE is the run YAML to write."
        )
    advice = api.advise(options.run)
    if options.use is not None:
        stream = sys.stderr if options.json else sys.stdout
        print(advice.use(options.use, options.output), file=stream)
        start = shlex.join(("nbtrain", "submit", str(options.output)))
        show(f"{options.output}: written. Run `{start}` to start the run.", stream)
        if not options.json:
            return
    if options.json:
        show_json(advice.to_dict())
    else:
        show(advice)


def calibrate(options: argparse.Namespace) -> None:
    """Measure this machine."""
    from nbtrain.api import verbs as api
    from nbtrain.base.errors import ConfigError
    from nbtrain.jobs.calibration.calibrate import DEFAULT_SECONDS
    from nbtrain.jobs.calibration.calibrate import calibrate as measure

    check_picture(options.picture)
    result: Any
    if options.network is not None:
        if options.clock != "wall":
            raise ConfigError("--clock cpu is for a trial on this machine: omit --clock with --network.")
        result = api.calibrate(options.seconds, options.network, options.overrides)
    elif options.overrides:
        raise ConfigError(
            f"{options.overrides[0]}: settings need a run: `nbtrain calibrate --network RUN key=value`."
        )
    else:
        result = measure(DEFAULT_SECONDS if options.seconds is None else options.seconds, options.clock)
    if options.json:
        show_json(result.to_dict())
    else:
        show(result)
    if options.picture:
        save_picture(result.picture(), options.picture)


def doctor(options: argparse.Namespace) -> int:
    """Examine this machine."""
    from nbtrain.cli.doctor import examine, report_of

    findings = examine()
    ready = all(finding.level != "error" for finding in findings)
    if options.json:
        show_json({"ready": ready, "findings": [finding.to_dict() for finding in findings]})
    else:
        show(report_of(findings))
    return 0 if ready else 1


def init(options: argparse.Namespace) -> None:
    """Copy notebooks, examples and documentation."""
    from nbtrain.base import files
    from nbtrain.cli.init import copy_workspace
    from nbtrain.config.editor_schema import editor_schema

    for path in copy_workspace(options.folder):
        show(path)
    # The first line of each example YAML tells editors to read this file, which a user's own docs/ lacks.
    schema_json = options.folder / "docs" / "run.schema.json"
    if not schema_json.exists():
        schema_json.parent.mkdir(exist_ok=True)
        files.write_text(schema_json, json.dumps(editor_schema(), indent=2) + "\n")
        show(schema_json)
    show(f"\nNext: cd {shlex.quote(str(options.folder))} && nbtrain lab")


def new(options: argparse.Namespace) -> None:
    """Write a run YAML for a text."""
    from nbtrain.api import verbs as api

    made = api.new(
        options.name,
        *options.texts,
        size=options.size,
        gpus=options.gpus,
        gpu_type=options.gpu_type,
        gpus_per_node=options.gpus_per_node,
        minutes=options.minutes,
        init_from=options.init_from,
        path=options.output,
        overwrite=options.overwrite,
    )
    show(made)
    print(f"\n{made.text}")
    show(f"Next: {made.next_commands[0]}")


def import_run(options: argparse.Namespace) -> None:
    """Make a run YAML from other programs' files."""
    from nbtrain.base.workspace import display
    from nbtrain.foreign.importing import import_files

    overrides = [word for word in options.words if is_override(word) and not _exists(word)]
    paths = [word for word in options.words if word not in overrides]
    imported = import_files(paths, overrides, options.onto, options.program)
    if options.output is None:
        show_text(imported.text)
        return
    path = imported.write(options.output, options.overwrite)
    show(f"{display(path)}: imported from {imported.program}.")
    for note in imported.notes:
        show(f"  {note}")


def _exists(word: str) -> bool:
    """Return whether a file named `word` exists. A word that is too long for a file name names no file."""
    try:
        return Path(word).exists()
    except OSError:
        return False


def check(options: argparse.Namespace) -> int:
    """Check a run, other programs' files, or a price table. Return 2 if the run cannot work."""
    from nbtrain.api import verbs as api
    from nbtrain.base.errors import ConfigError
    from nbtrain.config.load import to_yaml
    from nbtrain.foreign.job_files.file_kinds import is_foreign
    from nbtrain.planner.budget.cost import checked_prices, is_prices

    files = [options.run, *(word for word in options.overrides if not is_override(word))]
    foreign = any(is_foreign(file) for file in files)
    if options.resolved and options.json:
        raise ConfigError("--resolved prints YAML, --json prints the findings: use one of the two.")
    if options.resolved and foreign:
        raise ConfigError(
            "--resolved needs a run: use `nbtrain import` to print the run YAML of these files."
        )
    if options.resolved:
        print(to_yaml(api.load(options.run, options.overrides)), end="")
        return 0
    if not foreign and is_prices(Path(options.run)):
        if options.json:
            raise ConfigError(
                f"{options.run} is a price table, and --json is for runs and files of other programs: "
                "omit --json."
            )
        show(checked_prices(Path(options.run)))
        return 0
    overrides = [word for word in options.overrides if is_override(word)] if foreign else options.overrides
    runs = files if foreign else [options.run]
    checked = api.check(*runs, overrides=overrides, program=options.program)
    if options.json:
        show_json(checked.to_dict())
    elif checked.refused is not None:
        raise checked.refused
    else:
        show(checked)
    return 0 if checked.works else ConfigError.exit_code


def schema(options: argparse.Namespace) -> None:
    """Print the JSON Schema."""
    from nbtrain.config.schema import RunConfig

    show_json(RunConfig.model_json_schema())


def plan(options: argparse.Namespace) -> None:
    """Show the plan of a run."""
    from nbtrain.api import verbs as api

    check_picture(options.picture)
    result = api.plan(options.run, options.overrides)
    if options.json:
        show_json(result.to_dict())
    else:
        show(result.why() if options.why else result)
    if options.picture:
        save_picture(api.plan_picture(result), options.picture)
