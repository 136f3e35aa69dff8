"""`python -m nbtrain.inference`: the program of generate.py, without a search for garbage at start and end.

To free the objects of torch's and nbtrain's modules one by one at the end would take 0.5 s.
"""

import os
import sys

from nbtrain.base.process.garbage import kept_from_the_collector
from nbtrain.base.process.signals import hear_signals


def main() -> int:
    """Load the program and run it."""
    with kept_from_the_collector():
        from nbtrain.inference.generate import main as generate
    return generate()


if __name__ == "__main__":
    hear_signals()
    if code := main():
        sys.exit(code)
    os._exit(0)
