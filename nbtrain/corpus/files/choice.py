"""Chooses which files of a folder a source reads, by suffix, `exclude` and the split in the file names.

all files below the folder, except hidden ones
    -> others         another suffix
    -> excluded       a pattern of `exclude` matches
    -> other_splits   `split` is set, and the name contains another split
    -> read
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from nbtrain.corpus.files import folder
from nbtrain.corpus.files.file_kinds import split_of

ALL = "all"
HELD_OUT = {"validation", "test"}


@dataclass
class Choice:
    """The files of one folder, grouped by whether and why they are skipped, as sorted relative paths."""

    read: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Files with other suffixes, which another kind of source may be able to read."""
    excluded: list[str] = field(default_factory=list)
    other_splits: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    """Patterns of `exclude` that match no file."""

    @classmethod
    def of(
        cls, root: Path, is_wanted: Callable[[str], bool], split: str | None, exclude: list[str], where: str
    ) -> "Choice":
        """Group the files below `root` by why they are skipped. Raises the errors of folder.listed_files."""
        wanted, others = folder.listed_files(root, is_wanted, where)
        choice = cls(others=others)
        matched: set[str] = set()
        for name in wanted:
            patterns = [pattern for pattern in exclude if _matches(name, pattern)]
            matched.update(patterns)
            if patterns:
                choice.excluded.append(name)
            elif split in (None, ALL) or _is_of_split(name, str(split)):
                choice.read.append(name)
            else:
                choice.other_splits.append(name)
        choice.unmatched = [pattern for pattern in exclude if pattern not in matched]
        return choice

    def mixed_splits(self) -> str | None:
        """Return counted_splits() of the files to read, if a held-out split is mixed with other files.

        The result is None if all these files belong to one split, or if none belongs to a held-out split.
        """
        splits = {split_of(name) for name in self.read}
        return counted_splits(self.read) if len(splits) > 1 and splits & HELD_OUT else None


def counted_splits(names: list[str]) -> str:
    """Return each split's number of files and first file, e.g. "train: 2 (a/train.jsonl, ...); ..."."""
    parts = []
    for split in ("train", "validation", "test", None):
        own = [name for name in names if split_of(name) == split]
        if own:
            more = ", ..." if len(own) > 1 else ""
            parts.append(f"{split or 'no split in the name'}: {len(own):,} ({own[0]}{more})")
    return "; ".join(parts)


def _is_of_split(name: str, split: str) -> bool:
    """Return whether a file belongs to a split; a file whose name contains no split belongs to train."""
    return split_of(name) in ((None, "train") if split == "train" else (split,))


def _matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a path or, if it has no slash, any file or folder name in the path."""
    if "/" in pattern:
        return fnmatchcase(name, pattern)
    return any(fnmatchcase(part, pattern) for part in PurePosixPath(name).parts)
