"""Folders written by datasets' save_to_disk, with and without splits, intact and damaged."""

import json

import pyarrow as pa
import pytest

from nbtrain.config.sections.sources import HfDatasetSource
from nbtrain.corpus.records import Texts
from nbtrain.corpus.sources.base import open_source

TEXTS = [f"document {number} é" for number in range(25)]
INFO = {"citation": "@misc{x}", "homepage": "https://example.org", "license": "cc-by-4.0", "features": {}}


def hf(path, **settings):
    return HfDatasetSource(kind="hf-dataset", path=path, **settings)


def save(folder, *shards, info=INFO, batch_rows=4):
    """Write shards like datasets 5.2: Arrow streams, state.json and dataset_info.json."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{number:05d}-of-{len(shards):05d}.arrow" for number in range(len(shards))]
    for name, table in zip(names, shards):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=batch_rows)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "51ef", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps(info))


def table(texts):
    return pa.table({"text": pa.array(texts, pa.string()), "n": pa.array(range(len(texts)))})


@pytest.mark.parametrize("size", [1, 100, 10**6])
def test_shards_and_batches(workspace, read, part_bytes, size):
    """The rows of all shards are read in order, whatever the size of parts."""
    part_bytes(size)
    save(workspace / "set", table(TEXTS[:15]), table(TEXTS[15:]))
    found = read(hf("set"))
    assert found.records == TEXTS
    assert found.counts == {"records": 25, "broken": 0}
    if size == 1:
        assert found.parts[:2] == [
            f"set/data-00000-of-00002.arrow, batches {span}" for span in ("0 to 1", "1 to 2")
        ]
        assert len(found.parts) == 7


def test_one_large_batch(workspace, read, monkeypatch):
    """Large batches are read in chunks."""
    monkeypatch.setattr("nbtrain.corpus.sources.arrow.BATCH_BYTES", 50)
    save(workspace / "set", table([*TEXTS[:8], None, *TEXTS[8:]]), batch_rows=1000)
    found = read(hf("set"))
    assert found.records == TEXTS
    assert found.problems == ["set/data-00000-of-00001.arrow:9: 'text' is null"]


@pytest.mark.parametrize("size", [1, 10**6])
def test_a_null_row(workspace, read, part_bytes, size):
    """A null row is a broken record and is reported with its number in its shard."""
    part_bytes(size)
    save(workspace / "set", table(TEXTS[:9]), table([*TEXTS[:6], None, "end"]))
    found = read(hf("set"))
    assert found.records == [*TEXTS[:9], *TEXTS[:6], "end"]
    assert found.problems == ["set/data-00001-of-00002.arrow:7: 'text' is null"]


def test_splits(workspace, read, refusal):
    """For a dataset with several splits, one must be chosen; a single split is used without a setting."""
    for name, texts in {"train": TEXTS[:3], "test": TEXTS[3:]}.items():
        save(workspace / "set" / name, table(texts))
    (workspace / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert read(hf("set", split="train")).records == TEXTS[:3]
    assert read(hf("set/test")).records == TEXTS[3:]
    where = "run.yaml:7: data.sources[0]: path = 'set': "
    assert refusal(hf("set")) == f"{where}the dataset has the splits train, test. Set split to one of them."
    assert refusal(hf("set", split="dev")) == (
        f"{where}no split 'dev'; the splits are train, test. Set split to one of them."
    )
    (workspace / "set" / "dataset_dict.json").write_text('{"splits": ["test"]}')
    assert read(hf("set")).records == TEXTS[3:]


def test_what_the_dataset_says_of_itself(workspace):
    """The dataset's licence and citation go into the manifest, unless the section sets its own."""
    save(workspace / "set", table(TEXTS))
    described = open_source(hf("set")).describe()
    assert (described["licence"], described["attribution"]) == ("cc-by-4.0", "@misc{x}")
    assert list(described["fingerprint"]["files"]) == ["data-00000-of-00001.arrow"]
    assert open_source(hf("set", licence="mine")).describe()["licence"] == "mine"
    save(workspace / "bare", table(TEXTS), info={"license": "", "citation": "", "homepage": "https://h"})
    described = open_source(hf("bare")).describe()
    assert (described["licence"], described["attribution"]) == (None, "https://h")
    (workspace / "bare" / "dataset_info.json").unlink()
    assert open_source(hf("bare")).describe()["licence"] is None


def test_folders_that_are_none(workspace, refusal):
    """The error about a folder that is not a dataset lists the files that were expected."""
    (workspace / "set").mkdir()
    where = "run.yaml:7: data.sources[0]: "
    assert refusal(hf("gone")) == (
        f"{where}path = 'gone': no such folder (gone). Relative paths start at the workspace."
    )
    assert refusal(hf("set")) == (
        f"{where}path = 'set': not a dataset written by save_to_disk: the folder has neither "
        "dataset_dict.json nor state.json. For files in other formats, use kind: parquet or kind: jsonl."
    )
    save(workspace / "set", table(TEXTS))
    assert refusal(hf("set", split="train")) == (
        f"{where}path = 'set': split = 'train', but the dataset has no splits. Remove split."
    )
    assert refusal(hf("set", text_key="body")) == (
        f"{where}set/data-00000-of-00001.arrow: no column 'body'; the columns are 'text', 'n'; set "
        "text_key to an existing column."
    )
    (workspace / "set" / "data-00000-of-00001.arrow").unlink()
    assert refusal(hf("set")) == (
        f"{where}set/state.json lists the file 'data-00000-of-00001.arrow', which is missing. Copy the whole "
        "folder."
    )
    for content in ("{", "[" * 100_000):
        (workspace / "set" / "state.json").write_text(content)
        assert refusal(hf("set")).startswith(
            f"{where}set/state.json: the file cannot be read as a JSON object with the key '_data_files' ("
        )
    save(workspace / "none")
    assert refusal(hf("none")) == f"{where}none: the dataset has no rows."


def test_a_name_outside_the_folder(workspace, refusal):
    """A shard name in state.json that points outside the folder is refused."""
    save(workspace / "set", table(TEXTS))
    (workspace / "set" / "state.json").write_text('{"_data_files": [{"filename": "../other.arrow"}]}')
    (workspace / "other.arrow").write_bytes(b"")
    assert "lists the file '../other.arrow', which is missing" in refusal(hf("set"))


@pytest.mark.parametrize("size", [1, 10**6])
@pytest.mark.parametrize("length", [0, 5, 300, -60])
def test_truncated(workspace, refusal, part_bytes, size, length):
    """A truncated shard raises a readable error."""
    part_bytes(size)
    save(workspace / "set", table(TEXTS))
    path = workspace / "set" / "data-00000-of-00001.arrow"
    path.write_bytes(path.read_bytes()[:length])
    assert refusal(hf("set")).startswith(
        "run.yaml:7: data.sources[0]: set/data-00000-of-00001.arrow: the file is damaged or not an "
        "Arrow stream: "
    )


def test_extra_keys(workspace, read):
    """Extra columns are returned with the text."""
    save(workspace / "set", pa.table({"text": ["a", "b"], "title": ["A", None]}))
    found = read(hf("set"), ("title",))
    assert found.records == [Texts("a", ("A",))]
    assert found.problems == ["set/data-00000-of-00001.arrow:2: 'title' is null"]


def test_a_folder_that_may_not_be_entered(workspace, refusal, closed):
    """A folder that cannot be entered is reported as such, not as a folder without a dataset."""
    save(workspace / "set", table(TEXTS))
    closed("set")
    assert refusal(hf("set")) == (
        "run.yaml:7: data.sources[0]: set/dataset_dict.json: cannot be read: Permission denied."
    )
