"""Verbs before a run: doctor, init, import, check, schema, plan, advise, calibrate."""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from nbtrain.cli.verbs import PICTURE_HELP, add_verb, check_picture, config_verb, is_override, save_picture


def add_verbs(under: Any) -> None:
    """Add the verbs below `under`, the subparsers of nbtrain."""
    add_verb(under, "doctor", doctor, "Python, torch, DeepSpeed, devices, disk; and what to do.")
    one = add_verb(under, "init", init, "Copy the notebooks, example YAMLs and documentation to a folder.")
    one.add_argument("folder", metavar="DIR", type=Path)
    one = add_verb(
        under, "import", import_run, "Make a run YAML of a manifest, a script or a DeepSpeed JSON."
    )
    text = "a DeepSpeedJob or Kubeflow manifest, a shell script or a DeepSpeed JSON; and what they do not say"
    one.add_argument("words", nargs="+", metavar="FILE|key=value", help=text)
    one.add_argument("-o", "--output", type=Path, metavar="YAML", help="write it there; printed without it")
    one.add_argument("--overwrite", action="store_true", help="replace the YAML if it exists")
    one.add_argument("--onto", metavar="RUN", help="the run that a DeepSpeed JSON alone is put on")
    program = "program and version of the flags, e.g. megatron-lm@040eac94; chosen by the flags without it"
    one.add_argument("--from", dest="program", default="", metavar="PROGRAM", help=program)
    one.set_defaults(more="words")
    text = (
        "Check a run YAML or files of other programs, without data; exit 2 if it is refused or cannot work."
    )
    one = config_verb(under, "check", check, text)
    one.add_argument("--resolved", action="store_true", help="print the resolved YAML")
    one.add_argument("--json", action="store_true", help="the findings, as JSON")
    one.add_argument("--from", dest="program", default="", metavar="PROGRAM", help=program)
    # Files among them: check looks at each word.
    one.set_defaults(more="overrides")
    add_verb(under, "schema", schema, "Print the JSON Schema of a run YAML.")
    one = config_verb(under, "plan", plan, "Parameters, tokens, memory per device, time and disk of a run.")
    one.add_argument("--json", action="store_true", help="as JSON")
    one.add_argument("--picture", type=Path, metavar="FILE", help=f"also draw it: {PICTURE_HELP}")
    one.add_argument(
        "--why", action="store_true", help="every figure with its formula, and where that is from"
    )
    one = add_verb(under, "advise", advise, "What to change about a run, from what its last job has shown.")
    one.add_argument("run", metavar="RUN")
    one.add_argument(
        "--use", type=int, metavar="N", help="write the run with change N (with -o), show the diff"
    )
    one.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the YAML that --use writes; never one that exists"
    )
    one.add_argument("--json", action="store_true", help="as JSON")
    one = add_verb(under, "calibrate", calibrate, "Measure this machine's rates; plans use them.")
    one.add_argument("--seconds", type=float, default=120.0, help="how long to measure (default: 120)")
    one.add_argument("--json", action="store_true", help="every figure, as JSON")
    one.add_argument("--picture", type=Path, metavar="FILE", help=f"also draw it: {PICTURE_HELP}")
    one.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: count CPU time, as a trial beside other work; nothing is written",
    )


def advise(options: argparse.Namespace) -> None:
    from nbtrain.api import verbs as api
    from nbtrain.base.errors import ConfigError

    if (options.use is None) != (options.output is None):
        raise ConfigError("--use N and -o FILE belong together: which change, and the YAML to write it to.")
    advice = api.advise(options.run)
    if options.use is not None:
        words = sys.stderr if options.json else sys.stdout
        print(advice.use(options.use, options.output), file=words)
        print(f"{options.output}: written; `nbtrain submit {options.output}` starts it.", file=words)
        if not options.json:
            return
    print(json.dumps(advice.to_dict(), indent=2) if options.json else advice)


def calibrate(options: argparse.Namespace) -> None:
    from nbtrain.jobs.calibrate import calibrate as measure

    check_picture(options.picture)
    result = measure(options.seconds, options.clock)
    print(json.dumps(result.to_dict(), indent=2) if options.json else result)
    if options.picture:
        save_picture(result.picture(), options.picture)


def doctor(options: argparse.Namespace) -> int:
    from nbtrain.cli.doctor import examine

    findings = examine()
    for finding in findings:
        print(finding.line())
    return 1 if any(finding.level == "error" for finding in findings) else 0


def init(options: argparse.Namespace) -> None:
    from nbtrain.base import files
    from nbtrain.cli.init import copy_workspace
    from nbtrain.cli.reference.pages import editor_schema

    print(*copy_workspace(options.folder), sep="\n")
    # The first line of each example YAML names this file to editors; a docs/ of the user's own lacks it.
    schema_json = options.folder / "docs" / "run.schema.json"
    if not schema_json.exists():
        schema_json.parent.mkdir(exist_ok=True)
        files.write_text(schema_json, json.dumps(editor_schema(), indent=2) + "\n")
        print(schema_json)
    print(f"\nNext: cd {shlex.quote(str(options.folder))} && nbtrain lab")


def import_run(options: argparse.Namespace) -> None:
    from nbtrain.foreign.importing import import_files

    overrides = [word for word in options.words if is_override(word) and not Path(word).exists()]
    paths = [word for word in options.words if word not in overrides]
    imported = import_files(paths, overrides, options.onto, options.program)
    if options.output is None:
        print(imported, end="")
        return
    print(f"{imported.write(options.output, options.overwrite)}: from {imported.program}.")
    for note in imported.notes:
        print(f"  {note}")


def check(options: argparse.Namespace) -> int:
    from nbtrain.api import verbs as api
    from nbtrain.base.errors import ConfigError
    from nbtrain.config.load import to_yaml
    from nbtrain.foreign.read import is_foreign
    from nbtrain.planner.cost import checked_prices, is_prices

    files = [options.run, *(word for word in options.overrides if not is_override(word))]
    foreign = any(is_foreign(file) for file in files)
    if options.resolved and options.json:
        raise ConfigError("--resolved prints YAML and --json the findings: give one of the two.")
    if options.resolved and foreign:
        raise ConfigError("--resolved is for a run; `nbtrain import` prints the run YAML of these files.")
    if options.resolved:
        print(to_yaml(api.load(options.run, options.overrides)), end="")
        return 0
    if not foreign and is_prices(Path(options.run)):
        if options.json:
            raise ConfigError(f"--json is for runs and files of other programs; {options.run} holds prices.")
        print(checked_prices(Path(options.run)))
        return 0
    overrides = [word for word in options.overrides if is_override(word)] if foreign else options.overrides
    runs = files if foreign else [options.run]
    checked = api.check(*runs, overrides=overrides, program=options.program)
    if options.json:
        print(json.dumps(checked.to_dict(), indent=2, ensure_ascii=False))
    elif checked.refused is not None:
        raise checked.refused
    else:
        print(checked)
    return 0 if checked.works else ConfigError.exit_code


def schema(options: argparse.Namespace) -> None:
    from nbtrain.config.schema import RunConfig

    print(json.dumps(RunConfig.model_json_schema(), indent=2))


def plan(options: argparse.Namespace) -> None:
    from nbtrain.api import verbs as api

    check_picture(options.picture)
    result = api.plan(options.run, options.overrides)
    print(json.dumps(result.to_dict(), indent=2) if options.json else result.why() if options.why else result)
    if options.picture:
        save_picture(api.plan_picture(result), options.picture)
