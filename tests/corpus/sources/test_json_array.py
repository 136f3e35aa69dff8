"""Files that are one JSON array are split into elements, at any read size and with bounded memory."""

import gzip
import io
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtrain.base.errors import DataError
from nbtrain.config.sections.sources import JsonlSource
from nbtrain.corpus.records import Tally
from nbtrain.corpus.sources import json_array
from nbtrain.corpus.sources.base import open_source
from tests.fuzzing import num_cases

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from(['"', "\\", '\\"', "],[", "}{", ","]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def lines(content: bytes) -> list[bytes]:
    stream = io.BufferedReader(io.BytesIO(content))
    return list(io.BufferedReader(json_array.ArrayLines(stream, Path("a.json"), "here")))


def source(path: str) -> JsonlSource:
    return JsonlSource(kind="jsonl", path=path)


@pytest.mark.slow
@settings(max_examples=num_cases(150), deadline=None)
@given(
    st.lists(VALUES, max_size=6), st.sampled_from([None, 1]), st.booleans(), st.sampled_from([1, 7, 1 << 18])
)
def test_any_array(values, indent, is_ascii, read_bytes):
    """Every element of an array becomes a line, however the array is formatted and read."""
    content = json.dumps(values, indent=indent, ensure_ascii=is_ascii).encode(errors="surrogatepass")
    before, json_array.READ_BYTES = json_array.READ_BYTES, read_bytes
    try:
        found = lines(content)
    finally:
        json_array.READ_BYTES = before
    assert [json.loads(line) for line in found] == values


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("size", [50, 1 << 20])
def test_an_array_under_the_name_of_json_lines(workspace, read, part_bytes, suffix, size):
    """Kind jsonl reads a JSON array like lines, small or large, compressed or not,
    with the suffix .jsonl or .json.
    """
    part_bytes(size)
    content = json.dumps([{"text": f"text {number}"} for number in range(20)], indent=1).encode()
    for name in (f"a.jsonl{suffix}", f"a.json{suffix}"):
        (workspace / name).write_bytes(gzip.compress(content) if suffix else b"\xef\xbb\xbf\n" + content)
        found = read(source(name))
        assert found.records == [f"text {number}" for number in range(20)]
        assert found.counts == {"records": 20, "broken": 0}
        assert (len(found.parts) > 1) == (size == 50)


def test_lines_that_are_arrays_are_no_array(workspace, read):
    """If each line is an array, each line is a broken record, and the objects after them are read."""
    (workspace / "a.jsonl").write_text('[1, 2]\n{"text": "b"}\n[]\n')
    found = read(source("a.jsonl"))
    assert found.records == ["b"]
    assert found.counts == {"records": 3, "broken": 2}


def test_a_broken_element_costs_no_other(workspace, read):
    """A broken element is reported by its number, and the other elements are read."""
    (workspace / "a.jsonl").write_text(
        '[{"text": "a"},\n {"text": b}, 7, {"text":\n"c\nd"}, {"text": "e"}]\n'
    )
    found = read(source("a.jsonl"))
    assert found.records == ["a", "e"]
    assert [problem.split(" (")[0] for problem in found.problems] == [
        "a.jsonl:2: not JSON",
        "a.jsonl:3: not an object but a number",
        "a.jsonl:4: not JSON",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[{"text": "a"}, {"text": ', "element 2 of the array does not end: the file is truncated"),
        (
            '[{"text": "a"}, {"text": "b}]',
            "element 2 of the array does not end: the file is truncated, or a quote",
        ),
        ('[{"text": "a"}', "element 1 of the array does not end"),
        (
            '[{"text": "a"}]\n[{"text": "b"}]',
            'the array ends after element 1, but \'[{"text": "b"}]\' follows.',
        ),
    ],
)
def test_an_array_that_does_not_end(workspace, refusal, content, said):
    """An array without an end is an error, because max_broken_fraction could not
    count the missing elements.
    """
    (workspace / "a.jsonl").write_text(content)
    assert said in refusal(source("a.jsonl"))


def test_an_element_is_bounded(monkeypatch):
    """After a missing quote, the rest of the file is not read into memory."""
    monkeypatch.setattr(json_array, "MAX_ELEMENT_BYTES", 1000)
    with pytest.raises(DataError, match="element 1 of the array is larger than 1,000 bytes"):
        lines(b'[{"text": "' + b"a" * (1 << 20))


@pytest.mark.slow
def test_memory_is_that_of_an_element(workspace):
    """Reading an array of 20 MB needs only a few megabytes of memory."""
    with (workspace / "a.jsonl").open("w") as stream:
        stream.write("[" + ",\n".join([json.dumps({"text": "word " * 2000})] * 2000) + "]")
    reader = open_source(source("a.jsonl"), "here")
    tracemalloc.start()
    assert sum(1 for _ in reader.documents(Tally())) == 2000
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4 << 20


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize("size", [50, 1 << 20])
@pytest.mark.parametrize("read_bytes", [1, 7, 1 << 18])
def test_objects_over_several_lines(workspace, read, part_bytes, monkeypatch, suffix, size, read_bytes):
    """Objects that extend over several lines, as json.dumps(indent=2) and jq write them, are read."""
    part_bytes(size)
    monkeypatch.setattr(json_array, "READ_BYTES", read_bytes)
    texts = ['a "quoted" {brace}', "b]\n", "c"]
    for count in (1, 3):
        content = "\n".join(json.dumps({"text": text, "n": [1, {}]}, indent=2) for text in texts[:count])
        (workspace / f"a{suffix}").write_text(content)
        assert read(source(f"a{suffix}")).records == texts[:count]


def test_an_object_over_several_lines_without_an_end(workspace, refusal):
    """The error about an object without an end gives its number, counted from 1."""
    (workspace / "a.json").write_text('{\n "text": "a"\n}\n{\n "text": "b')
    assert refusal(source("a.json")) == (
        "run.yaml:7: data.sources[0]: a.json: element 2 of the file does not end: the file is truncated, or "
        "a quote or bracket is missing. Fix the file, or write one object per line."
    )
