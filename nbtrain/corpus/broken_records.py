"""The list of records that could not be read, beside the dataset that lacks them.

    data/dataset/<name>/broken-records.jsonl    {"path": "books.jsonl", "line": 12, "what": "not JSON (...)"}
                                                for each, in the order of the sources; if there are more,
                                                {"not_listed": n} comes last

While a dataset is being made, and after a source was refused for too many of them, the list lies in its work
folder.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from nbtrain.base import files
from nbtrain.corpus.corpus import SourceCounts
from nbtrain.corpus.records import LISTED_PROBLEMS


def write(path: Path, counts: Sequence[SourceCounts]) -> bool:
    """Write the list of what all sources have met; False, and no file, where there is none."""
    listed = [problem for source in counts for problem in source.listed][:LISTED_PROBLEMS]
    num_left_out = sum(source.broken for source in counts) - len(listed)
    if not listed:
        path.unlink(missing_ok=True)
        return False
    values = [problem._asdict() for problem in listed]
    if num_left_out > 0:
        values.append({"not_listed": num_left_out})
    # A name of a file that is not UTF-8 holds lone surrogates; escaped so, they are JSON.
    lines = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    files.write_bytes(path, lines.encode(errors="backslashreplace"))
    return True
