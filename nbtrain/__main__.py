"""`python -m nbtrain` is `nbtrain`."""

import sys

from nbtrain.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
