"""What the figures of docs/parity.md hold for: a hash of the sources that make them, and the libraries' versions."""

import hashlib
import re
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "parity.md"
PACKAGES = ("parallel", "model", "train", "config", "data")
LIBRARIES = ("torch", "deepspeed")


def sources_sha256(root: Path = REPOSITORY / "nbtrain") -> str:
    """Over names and contents of every Python file of these packages."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def stamp() -> str:
    """The line that says so."""
    # Without what a build adds, such as +cpu.
    versions = ", ".join(f"{library} {version(library).partition('+')[0]}" for library in LIBRARIES)
    return f"Sources: sha256 `{sources_sha256()}`, {versions}."


def staleness(page: Path = PAGE) -> str:
    """Why the page's figures are not of these sources; "" where they are."""
    if not page.exists():
        return "docs/parity.md is not there: `make parity` writes it"
    found = re.search(r"^Sources: .*$", page.read_text(), re.MULTILINE)
    if found is None or found[0] != stamp():
        said = found[0].replace("Sources: ", "") if found else "nothing"
        return f"docs/parity.md is stale: it holds for {said} `make parity` renews it"
    return ""
