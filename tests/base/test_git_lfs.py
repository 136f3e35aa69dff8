"""Every reader reports a Git LFS pointer as such, and no other file is mistaken for one."""

import pytest

from nbtrain.base import files
from nbtrain.base.errors import NbtrainError
from nbtrain.base.git_lfs import pointer_problem, pointer_problem_of
from nbtrain.config.sections.sources import HfDatasetSource, ParquetSource, TextSource, WikiSource
from nbtrain.config.yaml_source import read_yaml
from nbtrain.corpus.sources.base import open_source
from nbtrain.corpus.tokenizer.folder import adopt
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.evaluation.formats import lines_of
from nbtrain.foreign.job_files.read import read_files
from nbtrain.pretrained.folder import open_folder

OID = b"oid sha256:" + b"4d7a2146" * 8
POINTER = b"version https://git-lfs.github.com/spec/v1\n" + OID + b"\nsize 12345\n"


@pytest.mark.parametrize(
    "content",
    [
        POINTER,
        POINTER.replace(b"\n", b"\r\n"),
        POINTER.rstrip(),
        POINTER.replace(b"git-lfs.github.com", b"hawser.github.com"),
        b"version https://git-lfs.github.com/spec/v1\next-0-foo " + OID[4:] + b"\n" + OID + b"\nsize 12345\n",
    ],
)
def test_forms_of_a_pointer(content):
    """A pointer is recognised with extensions, with other line ends, and with the old address of the
    specification.
    """
    assert "is a Git LFS pointer, not the file (12,345 bytes" in str(pointer_problem(content))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"The first line is: " + POINTER,
        POINTER + b"This text is about pointers.\n",
        b"version https://git-lfs.github.com/spec/v1\n",
        POINTER + b"\n" * 1024,
    ],
)
def test_what_is_no_pointer(content, tmp_path):
    """A text about pointers, a file that only begins like a pointer, and a longer file are not pointers."""
    assert pointer_problem(content) is None
    (tmp_path / "a").write_bytes(content)
    assert pointer_problem_of(tmp_path / "a") is None
    assert pointer_problem_of(tmp_path / "none") is None


def _read(config) -> None:
    reader = open_source(config, "here")
    for _ in reader.documents():
        pass


READERS = {
    "a.json": files.read_json,
    "run.yaml": read_yaml,
    "job.sh": lambda path: read_files([path]),
    "a.txt": lambda path: _read(TextSource(kind="text", path=str(path))),
    "a.parquet": lambda path: _read(ParquetSource(kind="parquet", path=str(path))),
    "state.json": lambda path: _read(HfDatasetSource(kind="hf-dataset", path=str(path.parent))),
    "dump.xml.bz2": lambda path: _read(WikiSource(kind="wiki", path=str(path))),
    "tokenizer.json": lambda path: adopt(path, "<eos>", path.parent / "own"),
    "vocab.json": lambda path: adopt(path.parent, "<eos>", path.parent / "own"),
    "spiece.model": lambda path: adopt(path.parent, "<eos>", path.parent / "own"),
    "config.json": lambda path: open_folder(path.parent),
    "model.safetensors": lambda path: open_folder(path.parent),
    "a.idx": lambda path: IndexedDataset(path.with_suffix("")),
    "questions.jsonl": lambda path: list(lines_of(path)),
}


@pytest.mark.parametrize("name", list(READERS))
def test_every_reader_names_it(name, workspace):
    """Readers of weights, records, dumps, tokenizers, datasets and settings print the command that gets the
    file.
    """
    if name == "model.safetensors":
        (workspace / "config.json").write_text("{}")
    if name == "vocab.json":
        (workspace / "merges.txt").write_text("#version: 0.2\n")
    (workspace / name).write_bytes(POINTER)
    with pytest.raises(NbtrainError, match=r"Git LFS pointer, not the file .*: run `git lfs pull`") as caught:
        READERS[name](workspace / name)
    assert name in str(caught.value)
