"""`nbtrain certify` and `nbtrain reproduce`: what a run depends on, and training some of its steps again."""

import argparse
import re
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError, JobFailed, RecordError
from nbtrain.cli.output import show, show_json
from nbtrain.cli.verbs import (
    add_json,
    add_overrides,
    add_picture,
    check_picture,
    run_of,
    run_verb,
    save_picture,
)

STEPS = re.compile(r"(\d+):(\d+)")


def add_verbs(under: Any) -> None:
    """Add the verbs `certify` and `reproduce` to `under`, the subparsers of nbtrain."""
    parser = run_verb(
        under,
        "certify",
        certify,
        "Compares settings, code, versions, device, data, losses and checkpoints with certificate.json, "
        "which a job writes at its end. Exit code 4 means that something differs.",
        "nbtrain certify gpt-tiny\nnbtrain certify gpt-tiny --against certificate.json",
    )
    text = "Also compare with this certificate, of another run or of the same run on another machine."
    parser.add_argument("--against", type=Path, metavar="FILE", help=text)
    add_json(parser, "Print the certificate as JSON.")
    parser = run_verb(
        under,
        "reproduce",
        reproduce,
        "The run is not changed: its settings and the checkpoint before the steps are copied to a new run, "
        "RUN-reproduced. Exit code 7 means that a loss, a gradient norm or a tensor differs on the same kind "
        "of processor.",
        "nbtrain reproduce gpt-tiny\nnbtrain reproduce /backup/gpt-125m --steps 1000:1020 backend.kind=local",
    )
    text = (
        "Train the steps after step A up to step B again; A may be 0, the beginning. Default: the steps "
        "after the second-to-last checkpoint."
    )
    parser.add_argument("--steps", metavar="A:B", help=text)
    add_overrides(parser)
    add_json(parser, "Print the result as JSON.")
    add_picture(parser, "Also draw the losses and their differences to FILE")


def certify(options: argparse.Namespace) -> int:
    """Show and verify the certificate of a run. Return 4 if something differs, else 0."""
    from nbtrain.base.errors import CheckpointError
    from nbtrain.monitor.run.certificate import (
        certificate_problems,
        differences,
        make_certificate,
        read_certificate,
    )

    run = run_of(options).directory
    made = make_certificate(run)
    problems = certificate_problems(run)
    if options.against:
        other = read_certificate(options.against)
        if other is None:
            raise RecordError(f"{options.against}: no such file. Name a certificate.json.")
        problems += [f"{options.against}: {difference}" for difference in differences(other, made)]
    if options.json:
        show_json({**made.to_dict(), "problems": problems})
    else:
        show(made)
        checked = "certificate.json" if run.certificate_json.is_file() else ""
        checked = " and ".join(filter(None, (checked, str(options.against or ""))))
        if not problems and checked:
            show(f"\nThe run matches {checked}.")
        for problem in problems:
            show(f"Differs: {problem}")
    return CheckpointError.exit_code if problems else 0


def reproduce(options: argparse.Namespace) -> int:
    """Train some steps of a run again. Return 7 if they differ, else 0."""
    from nbtrain.base.run_directory.rundir import RunDir
    from nbtrain.base.workspace import display
    from nbtrain.proof.reproduce import REPRODUCTION_JSON, reproduce

    # Check this before training for minutes.
    check_picture(options.picture)
    made = reproduce(run_of(options).directory, window_of(options.steps), options.overrides)
    if options.json:
        show_json(made.to_dict())
    else:
        show(made)
        show(f"Result and picture: {display(RunDir.named(made.name).path / REPRODUCTION_JSON)}")
    if options.picture:
        save_picture(made.figure(), options.picture)
    return 0 if made.passed else JobFailed.exit_code


def window_of(text: str | None) -> tuple[int, int] | None:
    """Parse "A:B" into (A, B); return None without a text. Raises ConfigError for other texts."""
    if text is None:
        return None
    if (matched := STEPS.fullmatch(text)) is None:
        raise ConfigError(f"--steps {text}: must be A:B with two whole numbers, for example --steps 100:120.")
    return int(matched[1]), int(matched[2])
