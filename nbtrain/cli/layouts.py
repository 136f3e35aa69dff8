"""`nbtrain search` and `nbtrain largest`: layouts of a run on some GPUs, and the largest model that fits."""

import argparse
import sys
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.cli import completers
from nbtrain.cli.output import show, show_json
from nbtrain.cli.verbs import (
    Parser,
    add_json,
    add_picture,
    check_picture,
    complete,
    config_verb,
    save_picture,
)


def add_verbs(under: Any) -> None:
    """Add the verbs `search` and `largest` to `under`, the subparsers of nbtrain."""
    parser = config_verb(
        under,
        "search",
        search,
        "Explains why the first layout is the best and why other layouts were rejected.",
        "nbtrain search 13B --gpus 64 --gpu-type A100-80GB\n"
        "nbtrain search 13B --gpus 64 --use 1 -o my-run.yaml",
    )
    _add_gpus(parser)
    parser.add_argument("--top", type=int, default=10, metavar="N", help="Show the best N layouts.")
    add_json(parser)
    parser.add_argument("--why", type=int, metavar="N", help="Explain every choice made in layout N.")
    parser.add_argument("--refused", action="store_true", help="List every reason why layouts were rejected.")
    add_picture(parser, "Also draw the layouts to FILE")
    text = "Write the run with layout N to the file given with -o."
    parser.add_argument("--use", type=int, metavar="N", help=text)
    parser.add_argument("-o", "--output", type=Path, metavar="RUN.yaml", help="Run YAML that --use writes.")
    parser.add_argument("--force", action="store_true", help="Replace the file given with -o if it exists.")
    text = (
        "Also finds the longest sequence that fits, and compares tensor and pipeline parallelism, ZeRO 3 and "
        "their combination."
    )
    parser = config_verb(under, "largest", largest, text, "nbtrain largest 13B --gpus 16 --gpu-type H100")
    _add_gpus(parser)
    add_json(parser)


def _add_gpus(parser: Parser) -> None:
    text = "Total number of GPUs. Default: as many as the run YAML sets."
    parser.add_argument("--gpus", type=int, metavar="N", help=text)
    text = "GPUs per machine. Default: the number in the run YAML if the run uses several machines, else 8."
    parser.add_argument("--gpus-per-node", type=int, metavar="N", help=text)
    text = "The GPU's name in the device table, for example A100-80GB. Default: the run's type of GPU."
    kind = parser.add_argument("--gpu-type", metavar="NAME", help=text)
    complete(kind, completers.gpu_types)


def search(options: argparse.Namespace) -> None:
    """Show the layouts of a run, or write the run with one of them."""
    from nbtrain.api import verbs as api
    from nbtrain.base.printing.report import Facts, Report

    if (options.use is None) != (options.output is None):
        raise ConfigError(
            "pass --use N and -o RUN.yaml together: N is a layout's number, RUN.yaml is the run YAML to "
            "write."
        )
    check_picture(options.picture)
    gpus = options.gpus, options.gpus_per_node, options.gpu_type
    found = api.search(options.run, *gpus, options.overrides, top=options.top)
    if options.json:
        show_json(found.to_dict())
    elif options.why is not None:
        title = f"Layout {options.why}: {found[options.why].layout.words}"
        show(Report("", [Facts(found.why(options.why), title)]))
    elif options.refused:
        show(found.refused(every=True))
    elif options.use is None:
        show(found)
    if options.picture:
        save_picture(found.picture(), options.picture)
    if options.use is not None:
        path = found.use(options.use, options.output, options.force)
        show(path, sys.stderr if options.json else sys.stdout)


def largest(options: argparse.Namespace) -> None:
    """Show the largest model and the longest sequence that fit."""
    from nbtrain.api import verbs as api

    gpus = options.gpus, options.gpus_per_node, options.gpu_type
    found = api.largest(options.run, *gpus, options.overrides)
    if options.json:
        show_json(found.to_dict())
    else:
        show(found)
