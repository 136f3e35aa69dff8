"""Parquet: row groups as parts, text columns of every type, and errors about other types."""

import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtrain.base.errors import DataError
from nbtrain.base.extras import install_command
from nbtrain.config.sections.sources import ParquetSource
from nbtrain.corpus.records import Texts
from nbtrain.corpus.sources import base
from nbtrain.corpus.sources.base import open_source
from tests.fuzzing import num_cases

TEXTS = [f"document {number} é" for number in range(30)]


def parquet(path, **settings):
    return ParquetSource(kind="parquet", path=path, **settings)


@pytest.mark.parametrize("size", [1, 200, 10**6])
def test_row_groups(workspace, read, part_bytes, size):
    """Rows are read in order for any size of parts, whatever other columns there are."""
    part_bytes(size)
    table = pa.table({"n": range(30), "text": TEXTS, "list": [["x"] * 5] * 30})
    pq.write_table(table, workspace / "a.parquet", row_group_size=4)
    pq.write_table(table.slice(3, 4), workspace / "b.parquet")
    found = read(parquet("."))
    assert found.records == TEXTS + TEXTS[3:7]
    assert found.counts == {"records": 34, "broken": 0}
    assert (len(found.parts) == 1) == (size == 10**6)
    if size == 1:
        assert len(found.parts) == 9
        assert found.parts[:2] == ["a.parquet, row groups 0 to 1", "a.parquet, row groups 1 to 2"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_string()),
        pa.string_view(),
    ],
    ids=str,
)
def test_every_type_of_text(workspace, read, kind):
    """Strings in any Arrow layout are read, and binary columns are decoded as UTF-8."""
    values = ["a", None, "é", "a"]
    packed = [None if value is None else value.encode() for value in values]
    column = pa.array(values if "string" in str(kind) else packed, kind)
    pq.write_table(pa.table({"text": column}), workspace / "a.parquet")
    found = read(parquet("a.parquet"))
    assert found.records == ["a", "é", "a"]
    assert found.problems == ["a.parquet:2: 'text' is null"]


@pytest.mark.parametrize("size", [1, 10**6])
@pytest.mark.parametrize("kind", ["string", "large_string", "binary"])
def test_broken_rows(workspace, read, part_bytes, size, kind):
    """A null row, or one that is not UTF-8, is broken and reported with its number in the file."""
    part_bytes(size)
    # A careless writer stores bytes as text without checking them.
    bytes_of = {"string": pa.binary(), "large_string": pa.large_binary(), "binary": pa.binary()}[kind]
    column = pa.array([b"a", b"b", b"caf\xe9", None, b"c"], bytes_of).view(pa.type_for_alias(kind))
    pq.write_table(pa.table({"text": column}), workspace / "a.parquet", row_group_size=2)
    found = read(parquet("a.parquet"))
    assert found.records == ["a", "b", "c"]
    assert found.problems == ["a.parquet:3: 'text' is not UTF-8 (byte 0xe9)", "a.parquet:4: 'text' is null"]
    assert found.dropped == {"broken_record": 2}


def test_extra_keys(workspace, read, refusal):
    """Extra columns are returned with the text; the error about a missing column names the setting."""
    table = pa.table({"text": ["a", "b"], "title": ["A", None], "n": [1, 2]})
    pq.write_table(table, workspace / "a.parquet")
    found = read(parquet("a.parquet"), ("title",))
    assert found.records == [Texts("a", ("A",))]
    assert found.problems == ["a.parquet:2: 'title' is null"]
    assert refusal(parquet("a.parquet"), ("note",)) == (
        "run.yaml:7: data.sources[0]: a.parquet: no column 'note'; the columns are 'text', 'title', 'n'; set "
        "data.extra_json_keys to an existing column."
    )


@pytest.mark.parametrize("size", [1, 10**6])
def test_wrong_columns(workspace, refusal, part_bytes, size):
    """The error about a missing column, or one without text, suggests the columns that have text."""
    part_bytes(size)
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), workspace / "a.parquet")
    assert refusal(parquet("a.parquet")) == (
        "run.yaml:7: data.sources[0]: a.parquet: no column 'text'; the columns are 'body', 'n'; add to this "
        "source: text_key: body."
    )
    assert refusal(parquet("a.parquet", text_key="n")) == (
        "run.yaml:7: data.sources[0]: a.parquet: column 'n' has type int64, not text; the text columns are "
        "'body'. Set text_key to a text column."
    )


def test_no_rows_and_no_bytes(workspace, read, refusal):
    """A table without rows has no records, while a file of 0 bytes is reported as damaged."""
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), workspace / "a.parquet")
    assert read(parquet("a.parquet")).counts == {"records": 0, "broken": 0}
    (workspace / "b.parquet").write_bytes(b"")
    assert refusal(parquet("b.parquet")).startswith(
        "run.yaml:7: data.sources[0]: b.parquet: the file is damaged or not a Parquet file: "
        "Parquet file size is 0 bytes"
    )


@pytest.mark.parametrize("size", [1, 10**6])
@settings(max_examples=num_cases(25), deadline=None)
@given(share=st.floats(0, 0.999))
def test_cut_short_anywhere(read_parts, tmp_path_factory, size, share):
    """A truncated file raises a readable error."""
    path = tmp_path_factory.mktemp("cut") / "a.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path, row_group_size=4)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.MonkeyPatch.context() as patch, pytest.raises(DataError) as caught:
        patch.setattr(base, "PART_BYTES", size)
        read_parts(open_source(parquet(str(path)), "here"))
    assert str(caught.value).startswith(f"here: {path}: the file is damaged or not a Parquet file: ")
    assert str(caught.value).endswith(". Copy or download it again.")


def test_damaged_page(workspace, refusal):
    """A file with overwritten pages raises a readable error."""
    pq.write_table(pa.table({"text": TEXTS * 50}), workspace / "a.parquet", row_group_size=400)
    content = bytearray((workspace / "a.parquet").read_bytes())
    content[100:300] = b"\xff" * 200
    (workspace / "a.parquet").write_bytes(content)
    assert refusal(parquet("a.parquet")).startswith(
        "run.yaml:7: data.sources[0]: a.parquet: the file is damaged or not a Parquet file: "
    )


def test_without_pyarrow(workspace, refusal, monkeypatch):
    """Without pyarrow, the error includes the pip command."""
    (workspace / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refusal(parquet("a.parquet")) == (
        "run.yaml:7: data.sources[0]: a.parquet needs the package pyarrow, which is not installed. "
        f"Install it with `{install_command('data')}`."
    )
