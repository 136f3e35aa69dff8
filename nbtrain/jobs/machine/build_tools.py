"""Find the compilers and headers with which torch and DeepSpeed build extensions on first use."""

import os
import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path

INCLUDE_FOLDERS = ("/usr/include", "/usr/local/include")
# Folder that torch.utils.cpp_extension searches last.
CUDA_FOLDER = "/usr/local/cuda"


def nvme_tools() -> dict[str, bool]:
    """Return {tool: whether it exists} for the tools with which DeepSpeed compiles its NVMe extension."""
    return {**_compiler_and_ninja(), "libaio's headers (Debian: libaio-dev)": _header("libaio.h")}


def quantization_tools() -> dict[str, bool]:
    """Return {tool: whether it exists} for the tools with which DeepSpeed compiles its ZeRO++ extension."""
    nvcc = f"CUDA's compiler nvcc (in $CUDA_HOME/bin, PATH or {CUDA_FOLDER}/bin)"
    return {**_compiler_and_ninja(), nvcc: has_nvcc()}


def _compiler_and_ninja() -> dict[str, bool]:
    return {
        "a C++ compiler (Debian: g++)": has_compiler("CXX", "g++", "clang++"),
        "ninja (pip install ninja)": has_program("ninja"),
    }


def has_nvcc() -> bool:
    """Return whether torch finds CUDA's compiler nvcc.

    The first of torch's search locations that is set or exists decides: $CUDA_HOME, $CUDA_PATH, PATH,
    CUDA_FOLDER.
    """
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if named is None and shutil.which("nvcc"):
        return True
    return (Path(named or CUDA_FOLDER) / "bin" / "nvcc").is_file()


def has_compiler(variable: str, *names: str) -> bool:
    """Return whether the compiler that the environment variable `variable` names exists.

    If the variable is not set, return whether any of the compilers `names` exists.
    """
    named = os.environ.get(variable)
    return any(shutil.which(name) for name in ([named] if named else names))


def has_program(name: str) -> bool:
    """Return whether ranks find a program, on PATH or next to the Python that starts them."""
    return shutil.which(name) is not None or (Path(sys.executable).parent / name).is_file()


def _header(name: str) -> bool:
    asked = [os.environ.get(variable, "") for variable in ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")]
    folders = [*INCLUDE_FOLDERS, *(folder for value in asked for folder in value.split(":") if folder)]
    words = [word for variable in ("CFLAGS", "CXXFLAGS") for word in _words(os.environ.get(variable, ""))]
    folders += [word[2:] or after for word, after in pairwise([*words, ""]) if word.startswith("-I")]
    return any((Path(folder) / name).is_file() for folder in folders if folder)


def _words(flags: str) -> list[str]:
    """Return a compiler's flags, split as in a shell; if quotes are not closed, split only at spaces."""
    try:
        return shlex.split(flags)
    except ValueError:
        return flags.split()
