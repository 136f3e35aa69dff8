"""Writes the list of records that could not be read, which is stored with the dataset that omits them.

    data/dataset/<name>/broken-records.jsonl    {"path": "books.jsonl", "line": 12, "what": "not JSON (...)"}
                                                per record, in the order of the sources; {"not_listed": n}
                                                at the end if there are n more

While a dataset is built, and after a source was rejected for too many broken records, the list is in the work
folder.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from nbtrain.base import files
from nbtrain.corpus.documents.corpus import SourceCounts
from nbtrain.corpus.records import LISTED_PROBLEMS


def write(path: Path, counts: Sequence[SourceCounts]) -> bool:
    """Write the broken records of all sources to `path`, and return True.

    If no record is broken, remove the file and return False.
    """
    listed = [problem for source in counts for problem in source.listed][:LISTED_PROBLEMS]
    num_left_out = sum(source.broken for source in counts) - len(listed)
    if not listed:
        path.unlink(missing_ok=True)
        return False
    values = [problem._asdict() for problem in listed]
    if num_left_out > 0:
        values.append({"not_listed": num_left_out})
    # A file name that is not UTF-8 contains lone surrogates, which backslashreplace escapes as JSON does.
    lines = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    files.write_bytes(path, lines.encode(errors="backslashreplace"))
    return True
