"""The command line: `nbtrain VERB ...`, or `python -m nbtrain.cli VERB ...`."""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code. The verbs' modules are imported only when this is called."""
    from nbtrain.cli.__main__ import main as run

    return run(arguments)
