"""Processor of this machine: its model, and the instructions that it supports."""

import platform
import re
from pathlib import Path

from nbtrain.base.hardware.cgroup import text_of

CPU_INFO = Path("/proc/cpuinfo")
# Libraries choose their kernels by these flags.
VECTOR_FLAGS = re.compile(r"fma|f16c|avx\w*|amx\w*|asimd\w*|sve\w*|bf16")


def cpu_model() -> tuple[str, frozenset[str]]:
    """Return the name of the processor's model, and its flags.

    If the system does not report a model, the name of the architecture is returned.
    """
    text = text_of(CPU_INFO)
    name = re.search(r"^model name[ \t]*:[ \t]*(.*\S)", text, flags=re.M)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, flags=re.M)
    model = name[1] if name else platform.processor() or platform.machine()
    return model, frozenset(flags[1].split() if flags else ())


def vector_flags() -> list[str]:
    """Return the processor's flags for vector and matrix instructions, sorted."""
    return sorted(flag for flag in cpu_model()[1] if VECTOR_FLAGS.fullmatch(flag))
