"""`nbtrain code`: show or start the Python file with a run's own functions."""

import argparse
from pathlib import Path
from typing import Any

from nbtrain.cli.output import show
from nbtrain.cli.verbs import complete, config_verb
from nbtrain.config.code_file import HOOKS


def add_verbs(under: Any) -> None:
    """Add the verb `nbtrain code` to `under`, the subparsers of nbtrain."""
    parser = config_verb(
        under,
        "code",
        code,
        "Without --start, shows RUN's Python file with its functions and problems.",
        "nbtrain code gpt-tiny --start loss\nnbtrain code my-run",
    )
    text = (
        "Write a file with a copy of nbtrain's own functions, for you to change. NAMES is a comma-separated "
        f"list of {', '.join(HOOKS)}."
    )
    complete(parser.add_argument("--start", metavar="NAMES", help=text), lambda **_: HOOKS)
    text = "File that --start writes."
    parser.add_argument("-o", "--output", type=Path, default="my_code.py", metavar="FILE", help=text)


def code(options: argparse.Namespace) -> int:
    """Write a file that contains copies of nbtrain's own functions, or describe the code file of a run."""
    from nbtrain.api import verbs as api
    from nbtrain.jobs.code_start import describe_code, start_code
    from nbtrain.jobs.request.own_code import findings_of_code

    config = api.load(options.run, options.overrides)
    if options.start is not None:
        names = [name.strip() for name in options.start.split(",") if name.strip()]
        path = start_code(names, options.output.absolute(), config)
        show(
            f"{path}: written with {', '.join(names)}. Add `code: {path.name}` to a run YAML in the same "
            "folder. `nbtrain check` then checks the file, and `nbtrain submit` tries it before the run "
            "starts."
        )
        return 0
    show(describe_code(config))
    return 2 if any(findings_of_code(config)) else 0
