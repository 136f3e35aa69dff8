"""`nbtrain search`: options and output; writing the YAML of a layout."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.cli.verbs import PICTURE_HELP, Parser, check_picture, config_verb, save_picture


def add_verbs(under: Any) -> None:
    """Add the verbs below `under`, the subparsers of nbtrain."""
    one = config_verb(
        under, "search", search, "Every legal layout of a run on some GPUs, ranked, with reasons."
    )
    _gpus(one)
    one.add_argument("--top", type=int, default=10, metavar="N", help="layouts shown (10)")
    one.add_argument("--json", action="store_true", help="as JSON")
    one.add_argument("--why", type=int, metavar="N", help="every decision of layout N")
    one.add_argument("--refused", action="store_true", help="every reason against other layouts")
    one.add_argument("--picture", type=Path, metavar="FILE", help=f"also draw it: {PICTURE_HELP}")
    one.add_argument("--use", type=int, metavar="N", help="write the run YAML of layout N to the file of -o")
    one.add_argument("-o", "--output", type=Path, metavar="RUN.yaml", help="the run YAML to write")
    one.add_argument("--force", action="store_true", help="overwrite that file")
    text = "The largest model and the longest sequence that fit on some GPUs; three ways compared."
    _gpus(config_verb(under, "largest", largest, text))


def _gpus(one: Parser) -> None:
    one.add_argument("--gpus", type=int, metavar="N", help="all GPUs together; else the run's own")
    one.add_argument("--gpus-per-node", type=int, metavar="N", help="GPUs of one machine (8)")
    one.add_argument("--gpu-type", metavar="NAME", help="of the device table, e.g. A100-80GB")


def search(options: argparse.Namespace) -> None:
    from nbtrain.api import verbs as api

    if (options.use is None) != (options.output is None):
        raise ConfigError("--use N and -o RUN.yaml go together: which layout, and where its run YAML goes.")
    check_picture(options.picture)
    gpus = options.gpus, options.gpus_per_node, options.gpu_type
    found = api.search(options.run, *gpus, options.overrides, top=options.top)
    if options.json:
        print(json.dumps(found.to_dict(), indent=2))
    elif options.why is not None:
        print(f"Layout {options.why}: {found[options.why].layout.words}")
        print(*(f"  {topic:<15}{words}" for topic, words in found.why(options.why)), sep="\n")
    elif options.refused:
        print(*found.refused_lines(every=True), sep="\n")
    elif options.use is None:
        print(found)
    if options.picture:
        save_picture(found.picture(), options.picture)
    if options.use is not None:
        path = found.use(options.use, options.output, options.force)
        print(path, file=sys.stderr if options.json else sys.stdout)


def largest(options: argparse.Namespace) -> None:
    from nbtrain.api import verbs as api

    gpus = options.gpus, options.gpus_per_node, options.gpu_type
    print(api.largest(options.run, *gpus, options.overrides))
