"""Records hashes and commits of the files that an import reads, for the run's record."""

import hashlib
from pathlib import Path

from nbtrain.base.git import commit_of_file
from nbtrain.base.text.terminal import printable
from nbtrain.config.sections.imported import ImportedFile


def imported_file(path: Path) -> ImportedFile:
    """Return a file's name, hash and commit."""
    content = path.read_bytes()
    return ImportedFile(
        file=printable(path.name),
        sha256=hashlib.sha256(content).hexdigest(),
        commit=commit_of_file(path, content),
    )
