"""Packages of nbtrain's extras, and the pip command that installs them."""

import importlib.metadata
import re


def install_command(extra: str) -> str:
    """Return the pip command that installs the packages of an extra: ``pip install 'kubernetes>=31.0'``.

    The command names the packages and not ``nbtrain[k8s]``, because pip would search its index for nbtrain,
    where another project may have that name.
    """
    try:
        requirements = importlib.metadata.requires("nbtrain") or []
    except importlib.metadata.PackageNotFoundError:
        # Run from its sources, without an installation.
        return f"pip install -e '.[{extra}]'"
    of_extra = re.compile(rf";.*\bextra\s*==\s*['\"]{re.escape(extra)}['\"]")
    packages = [line.partition(";")[0].strip() for line in requirements if of_extra.search(line)]
    return " ".join(["pip install", *(f"'{package}'" for package in packages)])
