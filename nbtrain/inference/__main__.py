"""`python -m nbtrain.inference`: runs generate.py without garbage collection at startup and exit.

Freeing the objects of torch's and nbtrain's modules one by one at exit would take 0.5 s.
"""

import os
import sys

from nbtrain.base.process.garbage import kept_from_the_collector
from nbtrain.base.process.signals import hear_signals


def main() -> int:
    """Import generate.py and run it."""
    with kept_from_the_collector():
        from nbtrain.inference.generate import main as generate
    return generate()


if __name__ == "__main__":
    hear_signals()
    if code := main():
        sys.exit(code)
    os._exit(0)
