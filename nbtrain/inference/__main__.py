"""`python -m nbtrain.inference`: the program of generate.py, without a search for garbage at start and end.

The modules of torch and nbtrain are two hundred thousand objects that stay until the end. To look through
them while they are loaded takes 0.3 s, and to free them one by one 0.5 s.
"""

import gc
import os
import sys

from nbtrain.base.process.signals import hear_signals


def main() -> int:
    """Load the program and run it."""
    gc.disable()
    from nbtrain.inference.generate import main as generate

    gc.freeze()
    gc.enable()
    return generate()


if __name__ == "__main__":
    hear_signals()
    if code := main():
        sys.exit(code)
    os._exit(0)
