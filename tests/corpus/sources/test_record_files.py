"""Lines, arrays and tables give the same objects."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbtrain.config.sections.sources import PromptCompletionSource
from nbtrain.corpus.records import Tally
from nbtrain.corpus.sources.record_files import RecordFileReader

RECORDS = [{"prompt": f"p{number}", "turns": [{"role": "user", "n": number}]} for number in range(12)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()


class Objects(RecordFileReader):
    """A reader that returns every row unchanged."""

    kind = "prompt-completion"

    def read(self, part, tally):
        yield from self.rows(part, tally)


def objects(path):
    return Objects(PromptCompletionSource(kind="prompt-completion", path=path), "here")


@pytest.fixture
def files(workspace):
    """Write the same records in every format to one folder."""
    (workspace / "in").mkdir()
    (workspace / "in" / "a.json").write_text("\ufeff \n" + json.dumps(RECORDS, indent=2))
    (workspace / "in" / "b.json").write_bytes(LINES)
    (workspace / "in" / "c.jsonl").write_bytes(LINES)
    (workspace / "in" / "d.jsonl.gz").write_bytes(gzip.compress(LINES))
    pq.write_table(pa.Table.from_pylist(RECORDS), workspace / "in" / "e.parquet", row_group_size=5)
    (workspace / "in" / "f.JSON.gz").write_bytes(gzip.compress(json.dumps(RECORDS).encode()))
    return workspace / "in"


@pytest.mark.parametrize("size", [1, 100, 10**6])
def test_every_format(files, read_parts, part_bytes, size):
    """Every format gives the same records, numbered within their file, for any size of parts."""
    part_bytes(size)
    found = read_parts(objects("in"))
    assert [row.record for row in found.records] == RECORDS * 6
    assert found.counts == {"records": 72, "broken": 0}
    names = list(dict.fromkeys(row.path for row in found.records))
    assert names == [f"in/{path.name}" for path in sorted(files.iterdir())]
    if size == 10**6:
        assert [row.number for row in found.records] == list(range(1, 13)) * 6


def test_what_is_no_object(workspace, read_parts):
    """Elements and lines that are not objects are broken records and are reported by number."""
    (workspace / "a.json").write_text('[{"a": 1}, 5, null, {"a": 2}]')
    (workspace / "b.jsonl").write_bytes(b'{"a": 3}\n\n[]\n{\n{"a": "\xe9"}\n')
    found = read_parts(objects("."))
    assert [row.record["a"] for row in found.records] == [1, 2, 3]
    assert found.problems[:3] == [
        "a.json:2: not an object but a number",
        "a.json:3: not an object but null",
        "b.jsonl:3: not an object but a list; each line must hold one object, not an array",
    ]
    assert found.counts == {"records": 8, "broken": 5}


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_what_only_python_reads(workspace, read_parts, name):
    """NaN, numbers beyond float64 and lone surrogates are kept, in lines and in arrays."""
    records = ['{"a": 1, "x": NaN}', '{"a": 2, "x": -1e999}', '{"a": 3, "x": "\\ud800"}']
    is_array = name.endswith(".json")
    (workspace / name).write_text(f"[{', '.join(records)}]" if is_array else "\n".join(records))
    found = read_parts(objects(name))
    assert [row.record["a"] for row in found.records] == [1, 2, 3]
    assert found.counts == {"records": 3, "broken": 0}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.timestamp("ns"), 1),
        (pa.duration("ns"), 1),
        (pa.time64("ns"), 1),
        (pa.date32(), 5_000_000),
        (pa.timestamp("us", tz="Nowhere/Land"), 1),
        (pa.list_(pa.timestamp("ns")), [1]),
    ],
)
def test_columns_that_python_has_no_type_for(workspace, read_parts, kind, value):
    """Times that are too precise or too late for Python's types do not break a record."""
    table = pa.table({"a": [1, 2, 3], "x": pa.array([None, value, value], kind)})
    pq.write_table(table, workspace / "a.parquet")
    found = read_parts(objects("a.parquet"))
    assert [row.record["a"] for row in found.records] == [1, 2, 3]
    assert [type(row.record["x"]).__name__.endswith("Scalar") for row in found.records] == [False, True, True]
    assert found.counts == {"records": 3, "broken": 0}


@pytest.mark.parametrize("is_nested", [False, True])
def test_columns_that_are_not_utf8(workspace, read_parts, is_nested):
    """A table row with text that is not UTF-8 is broken, like a JSON line; the rows around it are read."""
    texts = pa.array([b"a", b"\xe9", b"c"]).view(pa.string())
    column = pa.ListArray.from_arrays([0, 1, 2, 3], texts) if is_nested else texts
    pq.write_table(pa.table({"a": [1, 2, 3], "x": column}), workspace / "a.parquet")
    found = read_parts(objects("a.parquet"))
    assert [row.record["a"] for row in found.records] == [1, 3]
    assert [row.number for row in found.records] == [1, 3]
    assert found.problems == ["a.parquet:2: 'x' is not UTF-8 (byte 0xe9)"]
    assert found.counts == {"records": 3, "broken": 1}


def test_all_columns_by_default(files):
    """A reader that names no columns gets all of them."""
    reader = objects("in/e.parquet")
    row = next(iter(reader.documents(Tally())))
    assert (row.path, row.number, row.record) == ("in/e.parquet", 1, RECORDS[0])
