"""Git LFS pointers: the three-line text files that a clone without git-lfs contains instead of large files.

    version https://git-lfs.github.com/spec/v1
    oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
    size 12345

The format: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md. The Hugging Face Hub has the same
pointers for files that it stores in Xet.
"""

import re
from contextlib import suppress
from pathlib import Path

# By the specification, a pointer has fewer than 1,024 bytes. Older programs wrote two other URLs.
MOST_BYTES = 1024
_POINTER = re.compile(
    rb"\s*version https?://(git-lfs\.github\.com/spec|hawser\.github\.com/spec|git-media\.io)/v\d+\r?\n"
    rb"([a-z0-9.-]+ [^\r\n]*\r?\n)*"
    rb"size (?P<size>\d+)\s*"
)


def pointer_problem(content: bytes) -> str | None:
    """Return a message, without a full stop, if `content` is a Git LFS pointer. None for other content."""
    match = _POINTER.fullmatch(content) if len(content) < MOST_BYTES else None
    if match is None:
        return None
    return (
        f"is a Git LFS pointer, not the file ({int(match['size']):,} bytes, not yet downloaded): run "
        "`git lfs pull` in its repository, or download the file itself"
    )


def pointer_problem_of(path: Path) -> str | None:
    """Return pointer_problem() for the content of a file. None if the file cannot be read."""
    with suppress(OSError, ValueError):
        if Path(path).stat().st_size < MOST_BYTES:
            return pointer_problem(Path(path).read_bytes())
    return None
