"""Lists which kind of source reads which file suffixes, and which words in file names indicate a split.

    suffixes                     also compressed   read by kind
    .jsonl .ndjson .json         yes               jsonl, and tokens, chat, alpaca, ... (record_files.py)
    .parquet .parq .pq           no                parquet, and tokens, chat, alpaca, ...
    .txt .md                     yes               text; not README.md, LICENSE.md and similar
    .arrow                       no                hf-dataset (a folder written by save_to_disk)

The suffix only determines which files of a folder are read. How a file is read depends on its first bytes
(compression.py).
"""

import re
from pathlib import PurePosixPath

from nbtrain.corpus.files.compression import PACKED_SUFFIXES, SUFFIXES, advice

RECORDS = (".jsonl", ".ndjson", ".json")
COLUMNS = (".parquet", ".parq", ".pq")
TEXTS = (".txt", ".md")
ARROW = (".arrow",)
COMPRESSIBLE = {*RECORDS, *TEXTS}
"""Suffixes that may be followed by a compression suffix."""
KINDS = {
    **dict.fromkeys(RECORDS, "jsonl"),
    **dict.fromkeys(COLUMNS, "parquet"),
    **dict.fromkeys(TEXTS, "text"),
    **dict.fromkeys(ARROW, "hf-dataset"),
}
"""Kind of source that reads files with a suffix as plain text, by suffix."""

# Metadata files of Hugging Face datasets and models, which hold no records.
METADATA = {
    "config.json",
    "croissant.json",
    "dataset_dict.json",
    "dataset_info.json",
    "dataset_infos.json",
    "state.json",
    "tokenizer.json",
    "tokenizer_config.json",
}
# Names of files that usually accompany data but are not data. Messages about skipped files omit them.
BESIDE_DATA = re.compile(
    r"(readme|licen[cs]e|copying|notice|citation|changelog|authors|makefile)([._-].*)?|_[^.]*"
    r"|.*\.(md5|sha1|sha256|sha512|crc|crc32|sig|asc)|(md5|sha1|sha256|sha512)sums?(\.txt)?",
    re.IGNORECASE,
)

SPLIT_WORDS = {
    "test": (
        "test",
        "testing",
        "testset",
        "testdata",
        "eval",
        "evals",
        "evalset",
        "evaluation",
        "heldout",
        "held-out",
        "held_out",
        "holdout",
        "hold-out",
    ),
    "validation": (
        *("validation", "validate", "valid", "validset", "val", "valset"),
        *("dev", "devset", "development"),
    ),
    "train": ("train", "training", "trainset", "traindata", "trainval"),
}
"""Words in file and folder names that indicate a split, by split; Hugging Face datasets uses some of them."""
# As in the datasets library, words are delimited by -, ., _, spaces, digits, and both ends of the name.
_SPLITS = {
    split: re.compile(rf"(?<![^-._ 0-9])({'|'.join(map(re.escape, words))})(?![^-._ 0-9])")
    for split, words in SPLIT_WORDS.items()
}


def suffix_of(name: str) -> str:
    """Return the suffix of a name in lower case, without a compression suffix: ".jsonl" for "A.JSONL.gz"."""
    path = PurePosixPath(name.lower())
    if path.suffix in PACKED_SUFFIXES and PurePosixPath(path.stem).suffix in COMPRESSIBLE:
        return PurePosixPath(path.stem).suffix
    return path.suffix


def is_metadata(name: str) -> bool:
    """Return whether a file describes a dataset or a model instead of holding records."""
    return name.lower() in METADATA


def stands_beside_data(name: str) -> bool:
    """Return whether a file usually accompanies data but holds none: a README, a checksum, _SUCCESS."""
    return is_metadata(name) or BESIDE_DATA.fullmatch(name) is not None


def why_not_read(name: str, suffixes: tuple[str, ...]) -> str:
    """Return a clause on how to use a file that is skipped because its suffix is not in `suffixes`.

    The clause names the command that unpacks the file, or the kind of source that would read it. The result
    is "" if there is nothing to suggest.
    """
    if unpack := advice(name, suffixes):
        return unpack
    kind = KINDS.get(suffix_of(name))
    return f"read by kind: {kind}" if kind and suffix_of(name) not in suffixes else ""


def listed_suffixes(suffixes: tuple[str, ...]) -> str:
    """Return suffixes as a list for messages, e.g. ".txt or .md (also compressed: .gz, .zst, .bz2, .xz)"."""
    *others, last = suffixes
    listed = f"{', '.join(others)} or {last}" if others else last
    packed = [suffix for suffix in suffixes if suffix in COMPRESSIBLE]
    if not packed:
        return listed
    which = "" if len(packed) == len(suffixes) else f"{', '.join(packed)} "
    return f"{listed} ({which}also compressed: {', '.join(SUFFIXES)})"


def split_of(name: str) -> str | None:
    """Return the split (train, validation, test) that the names in a relative path indicate, or None.

    The last name in the path that contains a split decides. If it contains several splits, a held-out split
    takes precedence over train.
    """
    for part in reversed(PurePosixPath(name.lower()).parts):
        for split, words in _SPLITS.items():
            if words.search(part):
                return split
    return None
