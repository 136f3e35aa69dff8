"""Peak memory for a document of 50 MB, measured in separate processes."""

import gzip
import json
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from nbtrain.config.sections.sources import HfDatasetSource, JsonlSource, ParquetSource, TextSource

DOCUMENT_BYTES = 50_000_000
# Besides the document: two blocks of 256 KiB, the decompressor's window and input, and malloc's rounding.
BUFFERS_BYTES = 2 * 2**20

READ = """
import json, re, sys
from pydantic import TypeAdapter
from nbtrain.config.sections.sources import Source
from nbtrain.corpus.sources.base import open_source

def peak():
    # Not ru_maxrss: in a child process, it starts from the peak of the parent.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

reader = open_source(TypeAdapter(Source).validate_python(json.loads(sys.argv[1])))
reader.check_dependencies()
before = peak()
longest = count = 0
for document in reader.documents():
    longest, count = max(longest, len(document)), count + 1
    del document
print(json.dumps([longest, count, peak() - before]))
"""


@pytest.fixture
def cost(workspace):
    """Return a function that reads a source; it returns the longest document, the
    number and the memory in bytes.
    """

    def measure(config) -> list[int]:
        answer = subprocess.run(
            [sys.executable, "-c", READ, config.model_dump_json()],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    return measure


@pytest.fixture(scope="module")
def document():
    """Return text without line ends that cannot be compressed well."""
    block = "".join(chr(97 + (number * number // 7) % 26) for number in range(1_000_000))
    return "".join(f"{number} {block[: 999_998 - len(str(number))]} " for number in range(50))[
        :DOCUMENT_BYTES
    ]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_one_line(workspace, cost, document, suffix):
    """One JSON line needs at most four times its document: the part, the line, orjson's copy and the text."""
    pack = {
        "": bytes,
        ".gz": lambda text: gzip.compress(text, 1),
        ".zst": zstandard.ZstdCompressor().compress,
    }
    lines = b'{"text": "a"}\n' + json.dumps({"text": document}).encode() + b'\n{"text": "b"}\n'
    (workspace / f"a.jsonl{suffix}").write_bytes(pack[suffix](lines))
    longest, count, used = cost(JsonlSource(kind="jsonl", path=f"a.jsonl{suffix}"))
    assert (longest, count) == (len(document), 3)
    assert used <= 4 * DOCUMENT_BYTES + BUFFERS_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("separator", [None, "---"])
def test_one_text(workspace, cost, document, separator):
    """Plain text needs at most four times its largest document, with or without separators."""
    (workspace / "a.txt").write_text(document)
    longest, count, used = cost(TextSource(kind="text", path="a.txt", document_separator=separator))
    assert (longest, count) == (len(document), 1)
    assert used <= 4 * DOCUMENT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "hf-dataset"])
def test_one_row(workspace, cost, document, kind):
    """A large row needs memory for itself in Arrow; in Parquet for the page, packed
    and unpacked, column and text.
    """
    table = pa.table({"text": ["a", document, "b"]})
    if kind == "parquet":
        pq.write_table(table, workspace / "a.parquet")
        config = ParquetSource(kind="parquet", path="a.parquet")
    else:
        with (
            pa.OSFile(str(workspace / "a.arrow"), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema) as stream,
        ):
            stream.write_table(table)
        (workspace / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
        config = HfDatasetSource(kind="hf-dataset", path=".")
    longest, count, used = cost(config)
    assert (longest, count) == (len(document), 3)
    assert used <= (4.5 if kind == "parquet" else 4) * DOCUMENT_BYTES


@pytest.mark.slow
def test_many_documents(workspace, cost):
    """Reading 50 MB of short lines needs memory for one block. Of 200 MB that workers get decompressed, it is
    memory for a few parts.
    """
    lines = b"".join(b'{"text": "%s"}\n' % random.randbytes(200).hex().encode() for _ in range(4_800)) * 25
    (workspace / "a.jsonl").write_bytes(lines)
    assert cost(JsonlSource(kind="jsonl", path="a.jsonl"))[2] <= 16 << 20
    (workspace / "a.jsonl.gz").write_bytes(gzip.compress(lines * 4, 1))
    used = cost(JsonlSource(kind="jsonl", path="a.jsonl.gz"))[2]
    assert (32 << 20) < used <= (160 << 20)
