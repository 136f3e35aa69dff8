"""JSON lines: documents, broken lines and line numbers do not depend on the size of parts."""

import bz2
import gzip
import json
import re
import tempfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtrain.config.sections.sources import JsonlSource, WikiextractorSource
from nbtrain.corpus.records import Texts
from nbtrain.corpus.sources import base
from nbtrain.corpus.sources.base import open_source
from tests.fuzzing import num_cases

PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".bz2": bz2.compress,
}


def jsonl(path, **settings):
    return JsonlSource(kind="jsonl", path=path, **settings)


@pytest.mark.parametrize("suffix", list(PACK))
def test_chosen_key_plain_and_compressed(workspace, read, suffix):
    """Documents are read from the configured key; empty lines are skipped; the last line needs no newline."""
    content = b'{"body": "one\\n\\u00e9"}\n\n \r\n{"body": "two", "x": 1}\r\n{"body": ""}'
    (workspace / f"a.jsonl{suffix}").write_bytes(PACK[suffix](content))
    found = read(jsonl(f"a.jsonl{suffix}", text_key="body"))
    assert found.records == ["one\né", "two", ""]
    assert found.counts == {"records": 3, "broken": 0}


def test_a_folder_of_all(workspace, read):
    """Plain and compressed files in one folder form one source."""
    for number, (suffix, pack) in enumerate(PACK.items()):
        (workspace / f"{number}.jsonl{suffix}").write_bytes(pack(b'{"text": "%d"}\n' % number))
    assert read(jsonl(".")).records == ["0", "1", "2", "3"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("size", [20, 10**6])
def test_a_byte_order_mark(workspace, read, part_bytes, suffix, size):
    """A byte order mark, as editors on Windows write it, does not hide the first line."""
    part_bytes(size)
    content = b'\xef\xbb\xbf{"text": "one"}\r\n{"text": "two"}\r\n'
    (workspace / f"a.jsonl{suffix}").write_bytes(PACK[suffix](content))
    found = read(jsonl(f"a.jsonl{suffix}"))
    assert found.records == ["one", "two"]
    assert not found.problems


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("size", [20, 10**6])
@pytest.mark.parametrize(("encoding", "mark"), [("utf-16-le", "ff fe"), ("utf-16-be", "fe ff")])
def test_utf16(workspace, refusal, part_bytes, suffix, size, encoding, mark):
    """A UTF-16 file, as PowerShell writes it, gives one error instead of one for each line."""
    part_bytes(size)
    content = '\ufeff{"text": "one"}\n{"text": "two"}\n'.encode(encoding)
    (workspace / f"a.jsonl{suffix}").write_bytes(PACK[suffix](content))
    assert refusal(jsonl(f"a.jsonl{suffix}")) == (
        f"run.yaml:7: data.sources[0]: a.jsonl{suffix}: the file is UTF-16 (it begins with the bytes "
        f"{mark}), not UTF-8. Convert it with `iconv -f UTF-16 -t UTF-8 OLD > NEW`, and use the new file."
    )


NOT_JSON = "not JSON (...)"
NO_ARRAY = "; each line must hold one object, not an array"
BROKEN = {
    b"{": NOT_JSON,
    b"[1]": f"not an object but a list{NO_ARRAY}",
    b'[{"text": "a"},': NOT_JSON + NO_ARRAY,
    b"5": "not an object but a number",
    b'"text"': "not an object but text",
    b'{"text": 5}': "'text' is not text but a number",
    b'{"text": null}': "'text' is not text but null",
    b'{"txt": "a", "b": 1}': "no key 'text' among 'txt', 'b'",
    b"{}": "no key 'text' among no keys",
    b'{"text": "caf\xe9"}': "not UTF-8 (byte 0xe9)",
    b'{"text": "\xed\xa0\x80"}': "not UTF-8 (byte 0xed)",
    b'{"text": "a", "x": NaN': NOT_JSON,
    b'{"text": NaN}': "'text' is not text but a number",
    b'{"text": "a"} x': NOT_JSON,
    # Nested deeper than any version of Python parses.
    b"[" * 200_000 + b"]" * 200_000: NOT_JSON + NO_ARRAY,
}


@pytest.mark.parametrize("line", list(BROKEN), ids=lambda line: repr(line[:12]))
def test_one_broken_line(workspace, read, line):
    """A broken line is skipped, counted, and reported with file, line and reason; the others are read."""
    (workspace / "a.jsonl").write_bytes(b'{"text": "a"}\n\n' + line + b'\n{"text": "b"}\n')
    found = read(jsonl("a.jsonl"))
    assert found.records == ["a", "b"]
    # The text in the brackets is the parser's own message.
    assert [re.sub(r"JSON \(.+\)", "JSON (...)", problem) for problem in found.problems] == [
        f"a.jsonl:3: {BROKEN[line]}"
    ]
    assert found.counts == {"records": 3, "broken": 1}
    assert found.dropped == {"broken_record": 1}


@pytest.mark.parametrize(
    "value", ["NaN", "-Infinity", "1e999", "9" * 5000, '"\\ud800"', '{"\\udc00": [NaN]}']
)
def test_what_only_python_reads(workspace, read, value):
    """NaN, lone surrogates and large numbers under keys that are not read do not break a record."""
    (workspace / "a.jsonl").write_text(f'{{"text": "a", "x": {value}}}\n{{"text": "b"}}\n')
    found = read(jsonl("a.jsonl"))
    assert found.records == ["a", "b"]
    assert found.counts == {"records": 2, "broken": 0}


def test_lone_surrogates(workspace, read):
    """A lone surrogate under a key that is read drops the record; a surrogate pair is one character."""
    lines = [
        {"text": "a\ud800", "title": "A"},
        {"text": "b", "title": "\udc00"},
        {"text": "\U0001f600", "title": "C", "x": "\ud83d"},
    ]
    (workspace / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = read(jsonl("a.jsonl"), ("title",))
    assert found.records == [Texts("\U0001f600", ("C",))]
    assert found.counts == {"records": 3, "broken": 0}
    assert found.dropped == {"not_unicode": 2}


def test_every_broken_line_is_named(workspace, read):
    """Every broken line is counted and reported."""
    (workspace / "a.jsonl").write_bytes(b"{\n" * 50)
    found = read(jsonl("a.jsonl"))
    assert [problem.partition(": ")[0] for problem in found.problems] == [
        f"a.jsonl:{line}" for line in range(1, 51)
    ]
    assert found.counts == {"records": 50, "broken": 50}


def test_extra_keys(workspace, read):
    """Extra keys are returned with the text in the configured order; a record
    without one of them is broken.
    """
    lines = [
        {"text": "a", "title": "A", "note": "1"},
        {"text": "b", "title": "B"},
        {"text": "c", "title": None, "note": "3"},
        {"text": "d", "title": "", "note": "4"},
    ]
    (workspace / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = read(jsonl("a.jsonl"), ("note", "title"))
    assert found.records == [Texts("a", ("1", "A")), Texts("d", ("4", ""))]
    assert found.problems == [
        "a.jsonl:2: no key 'note' among 'text', 'title'",
        "a.jsonl:3: 'title' is not text but null",
    ]


def test_empty_files(workspace, read):
    """An empty file and a file of empty lines have no records."""
    (workspace / "a.jsonl").write_bytes(b"")
    (workspace / "b.jsonl").write_bytes(b"\n \n")
    (workspace / "c.jsonl.gz").write_bytes(gzip.compress(b""))
    found = read(jsonl("."))
    assert found.records == []
    assert found.counts == {"records": 0, "broken": 0}


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2"])
@pytest.mark.parametrize("size", [100, 10**6])
def test_a_truncated_file_ends_the_reading(workspace, refusal, part_bytes, suffix, size):
    """The error about a truncated file names the file and the fix, whichever process decompresses it."""
    part_bytes(size)
    content = PACK[suffix](b"".join(b'{"text": "%d"}\n' % number for number in range(3000)))
    (workspace / f"a.jsonl{suffix}").write_bytes(content[:-10])
    check = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2"}[suffix]
    message = refusal(jsonl(f"a.jsonl{suffix}"))
    assert message.startswith(
        f"run.yaml:7: data.sources[0]: a.jsonl{suffix}: damaged {suffix} file: it ends too early, after "
        f"{len(content) - 10:,} bytes ("
    )
    assert message.endswith(f" bytes unpacked). Copy or download it again; run `{check} -t` to check it.")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", list(PACK))
@settings(max_examples=num_cases(40), deadline=None)
@given(
    lines=st.lists(
        st.one_of(
            st.text(max_size=30).map(lambda text: json.dumps({"text": text}).encode()),
            st.sampled_from([b"", b"  ", b"{", b'{"text": 1}', b'{"text": "\xff"}', b"\xef\xbb\xbf"]),
        ),
        max_size=12,
    ),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    has_end=st.booleans(),
    has_mark=st.booleans(),
    size=st.integers(1, 120),
)
def test_parts_change_nothing(read_parts, suffix, lines, ending, has_end, has_mark, size):
    """Records, counts and line numbers do not depend on the size of parts, and the
    parts add up to the file.
    """
    content = b"\xef\xbb\xbf" * has_mark + ending.join(lines) + ending * (has_end and bool(lines))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, f"a.jsonl{suffix}")
        path.write_bytes(PACK[suffix](content))
        reader = open_source(jsonl(str(path)))
        whole = read_parts(reader)
        patch.setattr(base, "PART_BYTES", size)
        parts = read_parts(reader)
        again = list(reader.parts())
        assert again == list(reader.parts())
    assert (parts.records, parts.counts, parts.dropped) == (whole.records, whole.counts, whole.dropped)
    # Each part lists its first three.
    assert parts.problems == whole.problems


def test_parts_of_a_compressed_file_are_those_of_its_text(workspace, read, part_bytes):
    """A compressed file is split at the same lines as the plain file, so shards are the same."""
    content = b"".join(b'{"text": "%s"}\n' % (b"x" * (number % 50)) for number in range(60))
    (workspace / "a.jsonl").write_bytes(content)
    (workspace / "a.jsonl.zst").write_bytes(PACK[".zst"](content))
    part_bytes(300)
    plain, packed = read(jsonl("a.jsonl")), read(jsonl("a.jsonl.zst"))
    assert len(plain.parts) > 5
    assert packed.parts == [
        part.replace("a.jsonl, bytes", "a.jsonl.zst, unpacked bytes") for part in plain.parts
    ]


def test_wikiextractor(workspace, read):
    """Folders are read in order, compressed or not; articles without text are dropped as empty."""
    for name, texts in {"AA/wiki_00": ["one", ""], "AA/wiki_01": ["two"], "AB/wiki_00": ["three"]}.items():
        path = workspace / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"id": "1", "url": "", "title": "T", "text": text}) for text in texts]
        path.write_text("\n".join(lines) + "\n")
    (workspace / "out" / "AB" / "wiki_01.bz2").write_bytes(bz2.compress(b'{"text": "four"}\n'))
    (workspace / "out" / "log.txt").write_text("no")
    found = read(WikiextractorSource(kind="wikiextractor", path="out"))
    assert found.records == ["one", "two", "three", "four"]
    assert found.dropped == {"empty": 1}
    assert found.counts == {"records": 5, "broken": 0}


def test_wikiextractor_without_files(workspace, refusal):
    """The error about a folder without such files gives the expected names."""
    (workspace / "out").mkdir()
    assert refusal(WikiextractorSource(kind="wikiextractor", path="out")) == (
        "run.yaml:7: data.sources[0]: path = 'out': the folder contains no file named wiki_00, wiki_01, "
        "..., as wikiextractor writes. Change path or kind."
    )
