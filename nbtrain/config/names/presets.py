"""Presets: a size such as "13B" can be used like a run's name, and means the shipped run of that size.

The sizes are from GPT-3 (arXiv:2005.14165, table 2.1); 345M is GPT-2 medium, 3.7B is from Ascend's example,
and 135M, 360M, 1B, 3B and 8B are from SmolLM and Llama 3.
"""

import math
import re

PRESETS: dict[str, str] = {
    "125M": "gpt-125m",
    "135M": "llama-135m",
    "345M": "gpt-345m-8xdp",
    "350M": "gpt-350m-4xdp",
    "360M": "llama-360m-4xdp",
    "760M": "gpt-760m-8xdp",
    "1B": "llama-1b-8xdp",
    "1.3B": "gpt-1-3b-4xdp",
    "2.7B": "gpt-2-7b-2xdp-2xpp-2xtp",
    "3B": "llama-3b-8xdp",
    "3.7B": "gpt-3-7b-2xdp-2xpp-2xtp",
    "6.7B": "gpt-6-7b-4xdp-4xtp",
    "8B": "llama-8b-8xdp",
    "13B": "gpt-13b-4xdp-4xpp",
    "175B": "gpt-175b",
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?|\.\d+) ?([MBT])", re.IGNORECASE)
_UNITS = {"M": 1e6, "B": 1e9, "T": 1e12}


def preset_run(name: object) -> str | None:
    """Return the name of the run that a preset such as "13B" or "13b" means.

    None if `name` is not a preset.
    """
    if not isinstance(name, str):
        return None
    return next((run for key, run in PRESETS.items() if key.lower() == name.strip().lower()), None)


def size_of(name: str) -> float | None:
    """Return the number of parameters that a name such as "14B" states; None if it is not a size."""
    match = _SIZE.fullmatch(name.strip())
    return float(match[1]) * _UNITS[match[2].upper()] if match else None


def nearest_preset(size: float) -> str:
    """Return the preset whose size is nearest to `size`, compared by their ratio."""
    return min(PRESETS, key=lambda name: abs(math.log((size_of(name) or 1.0) / max(size, 1.0))))
