"""nbtrain on the command line: one verb a call, the same functions that the notebooks call.

    nbtrain doctor                       is this machine ready
    nbtrain init DIR                     notebooks and example YAMLs to a folder of yours
    nbtrain check RUN [key=value ...]    the YAML alone
    nbtrain plan RUN [key=value ...]     parameters, memory, time, disk
    nbtrain prepare RUN [key=value ...]  corpus, tokenizer, .bin/.idx
    nbtrain twin RUN [key=value ...]     a small run of the same shape, on this machine's CPU
    nbtrain submit RUN [key=value ...]   start it; status, logs -f, cancel, resume, clean follow
    nbtrain generate RUN -p TEXT         text from the newest checkpoint

RUN is a YAML's path, an example's name (gpt-tiny) or, once submitted, the run's name or folder.
Exit codes: 0 done, 2 config or usage, 3 data, 4 checkpoint, 5 job, 6 not submitted (an active run keeps its settings), 7 job failed or was stopped, 130 interrupted.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nbtrain.base.errors import NbtrainError
from nbtrain.base.version import __version__
from nbtrain.cli import checkpoint as cli_checkpoint
from nbtrain.cli import data as cli_data
from nbtrain.cli import twin as cli_twin
from nbtrain.cli.notebooks import demo, lab, notebook
from nbtrain.cli.runs import (
    _save_picture,
    cancel,
    clean,
    clone,
    curves,
    generate,
    logs,
    profile,
    resume,
    runs,
    save,
    status,
    submit,
    wait,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; every NbtrainError becomes its message and exit code."""
    options = parse(arguments)
    try:
        return options.verb(options) or 0
    except NbtrainError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `nbtrain logs | head`: the reader has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # A full disk, a folder without rights, a FILE that names a folder: the words of the system say which.
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of one call.

    Overrides may stand behind flags too, where argparse alone refuses them; what `lab` does not know is JupyterLab's.
    """
    options, rest = parser().parse_known_args(arguments)
    late = [word for word in rest if "=" in word and not word.startswith("-")]
    if options.verb is lab:
        options.rest = rest
    elif late and late == rest and "overrides" in options:
        options.overrides += late
    elif rest:
        parser().error(f"unrecognized arguments: {' '.join(rest)}")
    return options


def parser() -> argparse.ArgumentParser:
    summary, _, rest = (__doc__ or "").partition("\n")
    top = argparse.ArgumentParser(
        prog="nbtrain", description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--version", action="version", version=f"nbtrain {__version__}")
    verbs = top.add_subparsers(required=True, metavar="VERB", title="verbs")

    def verb(name: str, function: Callable, help_text: str, under: Any = verbs) -> argparse.ArgumentParser:
        one = under.add_parser(name, help=help_text, description=help_text)
        one.set_defaults(verb=function)
        return one

    def with_config(one: argparse.ArgumentParser) -> argparse.ArgumentParser:
        one.add_argument("run", metavar="RUN", help="a run YAML or the name of an example")
        one.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. batch.max_steps=2")
        return one

    def with_run(one: argparse.ArgumentParser) -> argparse.ArgumentParser:
        one.add_argument("run", metavar="RUN", help="a run's name, folder or YAML")
        return one

    verb("doctor", doctor, "Python, torch, DeepSpeed, devices, disk; and what to do.")
    one = verb("init", init, "Copy the notebooks and example YAMLs to a folder.")
    one.add_argument("folder", metavar="DIR", type=Path)
    one = with_config(verb("check", check, "Check a run YAML; needs no data and no device."))
    one.add_argument("--resolved", action="store_true", help="print the resolved YAML")
    verb("schema", schema, "Print the JSON Schema of a run YAML.")
    one = with_config(verb("plan", plan, "Parameters, tokens, memory per device, time and disk of a run."))
    one.add_argument("--json", action="store_true", help="as JSON")
    one.add_argument("--picture", type=Path, metavar="FILE", help="also draw it: .png or .svg")
    one = with_config(
        verb("prepare", cli_data.prepare, "Make what is missing of a run's tokenizer, dataset and indices.")
    )
    one.add_argument("--force", action="store_true", help="make it anew")

    cli_twin.add_verb(verb, with_config)

    data = verbs.add_parser(
        "data",
        help="Datasets, step by step: prepare, download, extract, tokenizer, encode, inspect, verify, card, merge, repair.",
    )
    data_verbs = data.add_subparsers(required=True, metavar="VERB", title="verbs")
    cli_data.add_verbs(data_verbs, verb, with_config)

    one = with_config(verb("submit", submit, "Start a run as a detached job, join it, or resume it."))
    one.add_argument("--wait", action="store_true", help="wait for its end; exit 7 where it fails")
    verb("runs", runs, "Every run under the output root and its state.").add_argument(
        "--json", action="store_true", help="as JSON"
    )
    one = with_run(verb("status", status, "State, progress, cause and last events of a run."))
    one.add_argument("--json", action="store_true", help="the snapshot that the panel draws")
    one = with_run(verb("logs", logs, "A rank's log."))
    one.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    one.add_argument("--rank", type=int, default=0)
    one.add_argument("-n", "--lines", type=int, default=50)
    one = with_run(verb("wait", wait, "Wait for a run's end; exit 7 where it fails."))
    one = with_run(verb("cancel", cancel, "Ask the job to save a checkpoint and leave."))
    one.add_argument("--now", action="store_true", help="kill it without saving")
    one = with_run(verb("save", save, "Ask the job for a checkpoint; it goes on."))
    one = with_run(verb("resume", resume, "Go on from the newest whole checkpoint as a new job."))
    one.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. batch.train_tokens=5e6")
    one.add_argument("--wait", action="store_true", help="wait for its end")
    one = with_run(verb("clone", clone, "Submit a run's configuration under a new name."))
    one.add_argument("name", metavar="NAME")
    one.add_argument("overrides", nargs="*", metavar="key=value")
    saved = verbs.add_parser("checkpoint", help="What a run has saved: list, inspect, verify, universal.")
    saved_verbs = saved.add_subparsers(required=True, metavar="VERB", title="verbs")
    cli_checkpoint.add_verbs(saved_verbs, verb, with_run)
    one = with_run(verb("clean", clean, "Remove what failed attempts left behind."))
    one.add_argument("--yes", action="store_true", help="remove; without it the list is only shown")
    one = with_run(verb("curves", curves, "Draw loss, perplexity, learning rate and throughput."))
    one.add_argument(
        "-o", "--output", type=Path, default=Path("curves.png"), metavar="FILE", help=".png or .svg"
    )

    with_run(
        verb("profile", profile, "What the profiler saw of a run: a page each, and where its pictures are.")
    )

    one = with_run(verb("generate", generate, "Text from a run's newest checkpoint."))
    one.add_argument("-p", "--prompt", required=True)
    one.add_argument("-n", "--max-new-tokens", type=int, default=100)
    one.add_argument("--temperature", type=float, default=0.8, help="0 is greedy")
    one.add_argument("--top-k", type=int, default=40, help="0 does not cut")
    one.add_argument("--top-p", type=float, default=1.0)
    one.add_argument("--seed", type=int, default=1234)
    one.add_argument("--step", type=int, help="of this checkpoint instead of the newest")

    one = verb("notebook", notebook, "Run one of the notebooks headless and save it and its HTML.")
    one.add_argument("notebook", metavar="NOTEBOOK", help="e.g. 03_launch")
    one.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    one.add_argument("-o", "--output", type=Path, metavar="FILE", help="where the executed notebook goes")
    one = with_config(verb("demo", demo, "Run notebooks 01 to 05 for a run and sum up."))
    one.set_defaults(run="gpt-tiny")
    for action in one._actions:
        if action.dest == "run":
            action.nargs, action.default = "?", "gpt-tiny"
    verb(
        "lab",
        lab,
        "Open JupyterLab on the notebooks: loopback, token, TensorBoard tile; takes its options too.",
    )
    return top


# --- before a run -------------------------------------------------------------------------------------------


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

    for path in copy_workspace(options.folder):
        print(path)
    # Where the first line of the example YAMLs leads an editor.
    schema_json = options.folder / "docs" / "run.schema.json"
    if not schema_json.exists():
        schema_json.parent.mkdir(exist_ok=True)
        files.write_text(schema_json, json.dumps(editor_schema(), indent=2) + "\n")
        print(schema_json)
    print(f"\nNext: cd {options.folder} && nbtrain lab")


def check(options: argparse.Namespace) -> None:
    from nbtrain.config.load import load, to_yaml
    from nbtrain.config.rules.warnings import find_warnings

    config = load(options.run, options.overrides)
    if options.resolved:
        print(to_yaml(config), end="")
        return
    print(f"{config.name}: every field and every rule holds.")
    for warning in find_warnings(config):
        print(f"Warning: {warning}")


def schema(options: argparse.Namespace) -> None:
    from nbtrain.config.schema import RunConfig

    print(json.dumps(RunConfig.model_json_schema(), indent=2))


def plan(options: argparse.Namespace) -> None:
    from nbtrain.config.load import load
    from nbtrain.planner.plan import plan as make_plan

    result = make_plan(load(options.run, options.overrides))
    print(json.dumps(result.to_dict(), indent=2) if options.json else result)
    if options.picture:
        from nbtrain.planner.picture import plan_picture

        _save_picture(plan_picture(result), options.picture)


if __name__ == "__main__":
    sys.exit(main())
