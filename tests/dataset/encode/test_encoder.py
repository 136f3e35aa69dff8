"""Encoding parts into shards and a dataset gives the same bytes for any number
of workers and after any kill.
"""

import contextlib
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.printing.progress import Progress
from nbtrain.base.workspace import data_home, dataset_dir, tokenizer_dir
from nbtrain.config.sections.data_section import CleaningConfig, NearDedupConfig
from nbtrain.config.sections.sources import JsonlSource, TokensSource
from nbtrain.corpus.documents.corpus import Corpus, SourceCounts, Task
from nbtrain.corpus.records import SourcePart, Tally
from nbtrain.corpus.sources import base, jsonl
from nbtrain.corpus.sources import files as source_files
from nbtrain.corpus.sources.base import open_source
from nbtrain.corpus.tokenizer import training
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.corpus.workers import local_pool, ordered_map
from nbtrain.dataset.encode import encoder
from nbtrain.dataset.encode import join as shards
from nbtrain.dataset.encode.encoder import Encoder, can_be_kept
from nbtrain.dataset.encode.progress import EncodeProgress, WorkerCounters
from nbtrain.dataset.encode.shard import EncodeSettings, ShardRecord
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.indexed_writer import insert_at
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.prepare import dataset as prepare_dataset
from nbtrain.dataset.prepare.prepare import prepare
from tests.corpus import made
from tests.dataset.conftest import content
from tests.disks import mounted_disk
from tests.waiting import wait_until


def assert_hashes_are_right(dataset):
    """Assert that the manifest has the hashes of the files."""
    said = {name: entry["sha256"] for name, entry in dataset.manifest().files.items()}
    assert said == {name: files.sha256_of(dataset.directory / name) for name in said}


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize("num_values", [0, 1, 5, 1000])
@pytest.mark.parametrize("num_inserted", [0, 1, 4])
def test_insert_at_equals_numpy(num_values, num_inserted):
    """insert_at gives the same result as numpy.insert."""
    generator = np.random.default_rng(num_values)
    values = generator.integers(0, 1000, num_values).astype(np.uint32)
    ends = np.sort(generator.integers(0, num_values + 1, num_inserted))
    inserted = generator.integers(1000, 2000, num_inserted)
    found = insert_at(values, ends, inserted, np.dtype(np.uint16))
    assert found.dtype == np.uint16
    assert found.tolist() == np.insert(values, ends, inserted).tolist()


def test_one_part_or_many(make_config, small_parts, monkeypatch):
    """The dataset does not depend on where parts end."""
    config = make_config()
    prepare(config)
    many = content(dataset_dir("small"))
    parts = len(list(Corpus.open(config.data.sources).tasks()))
    for module in (base, source_files, jsonl):
        monkeypatch.setattr(module, "PART_BYTES", 1 << 20, raising=False)
    assert len(list(Corpus.open(config.data.sources).tasks())) == 1
    assert parts > 3
    prepare(config, force=True)
    assert content(dataset_dir("small")) == many


@pytest.mark.slow
def test_any_number_of_workers(make_config, small_parts, parallel):
    """1 and 3 processes write the same bytes and the same manifest."""
    prepare(make_config(data={"num_prepare_workers": 1}))
    one, manifest = content(dataset_dir("small")), DatasetFiles.named("small").manifest()
    prepare(make_config(data={"num_prepare_workers": 3}), force=True)
    assert content(dataset_dir("small")) == one
    assert DatasetFiles.named("small").manifest() == manifest


def test_one_process_joins_as_it_writes(make_config, workspace, small_parts, monkeypatch):
    """A shard written in order becomes the .bin, without being copied or read again."""
    config = make_config(data={"extra_json_keys": ["more"], "json_key": "text"})
    lines = [{"text": f"text {number}", "more": f"more {number} " * 5} for number in range(200)]
    write_jsonl(workspace / "texts.jsonl", lines)
    written = []
    replace = Path.replace

    def noted(path, target):
        written.append(path.name)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", noted)
    with monkeypatch.context() as patched:
        patched.delattr(shards._Pair, "_copy")
        prepare(config)
    assert_hashes_are_right(DatasetFiles.named("small"))
    assert len(list(Corpus.open(config.data.sources).tasks())) > 3
    assert {"in-order.bin", "in-order-key-more.bin"} <= set(written)
    one = content(dataset_dir("small"))
    written.clear()
    monkeypatch.setattr(shards, "_is_joined", lambda *of: False)
    prepare(config, force=True)
    assert "in-order.bin" not in written
    assert content(dataset_dir("small")) == one


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_shards_of_a_killed_run_are_used(make_config, small_parts, monkeypatch, request, num_workers):
    """After a kill, complete shards are reused, truncated ones are rebuilt, and the bytes are the same."""
    config = make_config()
    prepare(config)
    expected = content(dataset_dir("small"))
    shutil.rmtree(dataset_dir("small"))
    calls = []
    encode = Encoder.__call__

    def dying(self, task):
        calls.append(task.number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return encode(self, task)

    monkeypatch.setattr(Encoder, "__call__", dying)
    with pytest.raises(KeyboardInterrupt):
        prepare(config)
    work = DatasetFiles.named("small").work
    assert sorted(path.name for path in work.glob("*.json")) == ["000000.json", "000001.json", "inputs.json"]
    assert not list(dataset_dir("small").glob("*.bin"))
    first = ShardRecord.read(work, 0)
    assert ShardRecord.read(work, 1).starts == {"in-order.bin": first.files["in-order.bin"]}
    os.truncate(work / "in-order.bin", first.files["in-order.bin"] + 10)
    assert ShardRecord.read(work, 1) is None
    calls[:] = [-1, -1, -1]
    request.getfixturevalue("parallel")
    prepare(make_config(data={"num_prepare_workers": num_workers}))
    assert calls[3:5] == ([1, 2] if num_workers == 1 else [])
    assert content(dataset_dir("small")) == expected
    assert_hashes_are_right(DatasetFiles.named("small"))
    assert not work.exists()


def test_another_end_of_document(make_config, workspace, texts, small_parts, monkeypatch):
    """Another end-of-document token invalidates shards and dataset, although
    tokenizer.json has the same hash.
    """
    built = training.train(texts, 300)
    built.add_special_tokens(["</s>"])
    (workspace / "brought.json").write_text(built.to_str())
    tokenizer = {"path": "brought.json", "vocab_size": 301}
    config = make_config(tokenizer=tokenizer)
    encode = Encoder.__call__

    def dying(self, task):
        if task.number == 2:
            raise KeyboardInterrupt
        return encode(self, task)

    with monkeypatch.context() as patched:
        patched.setattr(Encoder, "__call__", dying)
        with pytest.raises(KeyboardInterrupt):
            prepare(config)
    other = make_config(tokenizer={**tokenizer, "eod_token": "</s>"})
    before = Tokenizer.load(tokenizer_dir("small"))
    manifest = prepare(other, force=True).manifest
    assert (
        (manifest.tokenizer_sha256, manifest.eod_id) == (before.sha256, 300) != (before.sha256, before.eod_id)
    )
    indexed = IndexedDataset(dataset_of(config).prefix)
    assert {int(indexed[number][-1]) for number in range(len(indexed))} == {300}
    shutil.rmtree(tokenizer_dir("small"))
    with pytest.raises(DataError) as caught:
        prepare(config)
    assert str(caught.value) == (
        "data/dataset/small: the documents end in the token 300, but data/tokenizer/small "
        f"ends documents in {before.eod_id} (<|endoftext|>), so a model would not learn to end a document. "
        "Set tokenizer.eod_token to the dataset's token, change data.name, or make it again "
        "with `nbtrain prepare RUN.yaml --force`."
    )


def test_shards_out_of_order_are_joined_in_order(make_config, small_parts, monkeypatch):
    """A shard that was lost in the middle is rebuilt after the others and joined in its order."""
    config = make_config()
    prepare(config)
    expected = content(dataset_dir("small"))
    shutil.rmtree(dataset_dir("small"))

    def dying(*of):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(prepare_dataset, "join", dying)
        with pytest.raises(KeyboardInterrupt):
            prepare(config)
    work = DatasetFiles.named("small").work
    (work / "000001.npz").unlink()
    with (work / "in-order.bin").open("ab") as stream:
        stream.write(b"half a shard")
    prepare(config)
    assert content(dataset_dir("small")) == expected


def test_shards_of_other_inputs_are_not_used(make_config, workspace, small_parts):
    """A work folder that was begun for another text is emptied."""
    config = make_config()
    work = DatasetFiles.named("small").work
    work.mkdir(parents=True)
    files.write_json(work / "inputs.json", {"settings": "others"})
    (work / "000000.json").write_text("not looked at")
    prepare(config)
    assert DatasetFiles.named("small").manifest().counts["documents"] == 120


def test_a_forced_prepare_that_fails_leaves_the_dataset(make_config, workspace):
    """The old dataset is replaced only when the new one is complete."""
    config = make_config()
    prepare(config)
    before = content(dataset_dir("small"))
    (workspace / "texts.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match="the corpus is empty"):
        prepare(config, force=True)
    assert content(dataset_dir("small")) == before
    assert DatasetFiles.named("small").manifest() is not None


def test_duplicates_over_parts_and_sources(make_config, workspace, small_parts):
    """The first of several equal texts is kept, across parts and sources, and
    duplicates are counted by source.
    """
    texts = [f"text number {number}, " * 20 for number in range(12)]
    write_jsonl(workspace / "one.jsonl", [{"text": text} for text in [*texts, texts[0]]])
    write_jsonl(workspace / "two.jsonl", [{"text": texts[5]}, {"text": "a new one"}])
    sources = [
        {"kind": "jsonl", "path": "one.jsonl", "name": "first"},
        {"kind": "jsonl", "path": "two.jsonl"},
    ]
    config = make_config(data={"sources": sources})
    manifest = prepare(config).manifest
    assert manifest.counts["documents"] == 13
    assert manifest.counts["dropped"] == {"duplicate": 2}
    one, two = manifest.sources
    assert (one["name"], one["documents"], one["sequences"], one["dropped"]) == (
        "first",
        12,
        [0, 12],
        {"duplicate": 1},
    )
    assert (two["name"], two["documents"], two["sequences"]) == ("jsonl", 1, [12, 13])
    assert one["tokens"] + two["tokens"] == manifest.counts["tokens"]
    indexed = IndexedDataset(dataset_of(config).prefix)
    decode = Tokenizer.load(tokenizer_dir("small")).decode
    assert [decode(indexed[number][:-1]) for number in range(13)] == [*texts, "a new one"]
    kept = make_config(data={"sources": sources, "cleaning": {"exact_dedup": False}, "name": "kept"})
    assert prepare(kept).manifest.counts["documents"] == 15


def test_near_duplicates_over_parts(make_config, workspace, small_parts):
    """The first of several nearly equal texts is kept, also across parts."""
    generator = np.random.default_rng(1)
    words = [f"word{number}" for number in range(500)]
    texts = [" ".join(generator.choice(words, 120)) for _ in range(10)]
    near = texts[2].rsplit(" ", 1)[0] + " other"
    write_jsonl(workspace / "near.jsonl", [{"text": text} for text in [*texts, near]])
    cleaning = {"near_dedup": {"enabled": True, "threshold": 0.7}}
    config = make_config(data={"sources": [{"kind": "jsonl", "path": "near.jsonl"}], "cleaning": cleaning})
    manifest = prepare(config).manifest
    assert manifest.counts["documents"] == 10
    assert manifest.counts["dropped"] == {"near_duplicate": 1}


def test_drops_are_in_the_shards_record(make_config, workspace, small_parts):
    """Records dropped from a part are counted even if its shard is reused, because the shard records them."""
    (workspace / "texts.jsonl").write_text('{"text": ""}\n{"text": "a"}\nbroken\n' * 2)
    source = {"kind": "jsonl", "path": "texts.jsonl", "max_broken_fraction": None}
    config = make_config(data={"sources": [source], "split": "1,0,0"}, evaluation={"eval_iters": 0})
    assert prepare(config).manifest.counts["dropped"] == {"empty": 2, "broken_record": 2, "duplicate": 1}


def test_several_keys(make_config, workspace, small_parts):
    """Each key has a .bin/.idx pair whose document k is from the same record; an
    empty extra text is just an EOD.
    """
    records = [{"text": f"body {number} " * 9, "title": f"title {number}"} for number in range(30)]
    records[4]["title"] = ""
    records.append(records[7])
    write_jsonl(workspace / "keys.jsonl", records)
    data = {"sources": [{"kind": "jsonl", "path": "keys.jsonl"}], "extra_json_keys": ["title"]}
    manifest = prepare(make_config(data=data)).manifest
    loaded = Tokenizer.load(tokenizer_dir("small"))
    for key in ("text", "title"):
        indexed = IndexedDataset(DatasetFiles.named("small", key).prefix)
        assert len(indexed) == 30
        assert [loaded.decode(indexed[k][:-1]) for k in range(30)] == [record[key] for record in records[:30]]
        assert indexed[4][-1] == loaded.eod_id
    assert sorted(manifest.files) == [
        "text_document.bin",
        "text_document.idx",
        "title_document.bin",
        "title_document.idx",
    ]


def test_long_documents_are_streamed_to_the_same_bytes(make_config, monkeypatch):
    """Streaming long documents writes the same bytes as encoding them at once, also
    with near-duplicate removal.
    """
    from nbtrain.corpus.tokenizer import tokenizer
    from nbtrain.dataset.encode import encoder as encode

    config = make_config()
    prepare(config)
    whole = content(dataset_dir("small"))
    monkeypatch.setattr(encode, "LONG_TEXT_CHARS", 100)
    monkeypatch.setattr(tokenizer, "LONG_TEXT_CHARS", 30)
    prepare(config, force=True)
    assert content(dataset_dir("small")) == whole


@pytest.mark.parametrize("eod_from_text", [False, True])
def test_a_text_that_may_become_eod_is_looked_at_whole(eod_from_text):
    """A text is not streamed in chunks if the tokenizer could produce EOD from text."""
    from nbtrain.dataset.encode.encoder import Encoder

    tokenizer = SimpleNamespace(cuts_safely=True, manifest={"eod_from_text": eod_from_text})
    encoder = SimpleNamespace(settings=SimpleNamespace(sentence_language=None), _tokenizer=tokenizer)
    assert Encoder._may_stream(encoder, "a text") is not eod_from_text


def test_sentences(make_config, workspace):
    """With split_sentences, each sentence is a sequence, and EOD follows the last one of a document."""
    write_jsonl(workspace / "s.jsonl", [{"text": "One is here. Two is there. Three?"}, {"text": "Only one."}])
    config = make_config(
        data={"sources": [{"kind": "jsonl", "path": "s.jsonl"}], "split_sentences": "en", "split": "100,0,0"},
        evaluation={"eval_iters": 0},
    )
    prepare(config)
    indexed = IndexedDataset(dataset_dir("small") / "text_sentence")
    loaded = Tokenizer.load(tokenizer_dir("small"))
    assert indexed.document_indices.tolist() == [0, 3, 4]
    assert [int(indexed[k][-1] == loaded.eod_id) for k in range(4)] == [0, 0, 1, 1]
    assert loaded.decode(indexed.tokens).count("<|endoftext|>") == 2
    assert [loaded.decode(indexed[k]) for k in range(2)] == ["One is here.", "Two is there."]


def test_token_ids(make_config, workspace):
    """Token ids are stored unchanged, labels become the loss mask, and an EOD that
    is there is not added again.
    """
    prepare(make_config())
    eod = Tokenizer.load(tokenizer_dir("small")).eod_id
    records = [
        {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]},
        {"input_ids": [9, 10, eod], "labels": [9, 10, eod]},
        {"input_ids": [11, eod], "labels": [11, -100]},
        {"input_ids": [12, eod], "labels": [-100, eod]},
    ]
    write_jsonl(workspace / "ids.jsonl", records)
    source = {"kind": "tokens", "path": "ids.jsonl", "labels_key": "labels"}
    config = make_config(
        data={"sources": [source], "name": "ids", "split": "100,0,0"}, evaluation={"eval_iters": 0}
    )
    prepare(config, through="encode")
    dataset = dataset_of(config)
    indexed, mask = IndexedDataset(dataset.prefix), IndexedDataset(dataset.loss_mask.prefix)
    assert [indexed[k].tolist() for k in range(4)] == [[5, 6, 7, 8, eod], [9, 10, eod], [11, eod], [12, eod]]
    # An EOD in the record keeps its label; an added one gets the label of the last token.
    assert [mask[k].tolist() for k in range(4)] == [[0, 0, 1, 1, 1], [1, 1, 1], [1, 0], [0, 1]]
    write_jsonl(workspace / "ids.jsonl", [{"input_ids": [5, 300]}])
    high = make_config(data={"sources": [{"kind": "tokens", "path": "ids.jsonl"}], "name": "high"})
    with pytest.raises(DataError) as caught:
        prepare(high, through="encode")
    assert str(caught.value) == (
        "data.sources[0]: 1 of 1 records (100.00%) cannot be read, more than max_broken_fraction = 1.00% "
        "allows. First: ids.jsonl:1: token id 300 is outside the vocabulary of 300 entries; listed in "
        "data/dataset/high/.encode/broken-records.jsonl. Fix the records, correct the source's key "
        "settings (such as text_key), or raise its max_broken_fraction."
    )


def test_a_long_record_of_ids_without_a_tokenizer(make_config, workspace, monkeypatch):
    """A long record of token ids is encoded without a tokenizer, although a text of
    that length would be streamed.
    """
    monkeypatch.setattr(encoder, "LONG_TEXT_CHARS", 3)
    write_jsonl(workspace / "ids.jsonl", [{"input_ids": [5, 6, 7, 8]}])
    source = {"kind": "tokens", "path": "ids.jsonl", "append_eod": False}
    config = make_config(
        data={"sources": [source], "name": "ids", "split": "100,0,0"}, evaluation={"eval_iters": 0}
    )
    prepare(config, through="encode")
    assert not tokenizer_dir("small").is_dir()
    assert IndexedDataset(dataset_of(config).prefix)[0].tolist() == [5, 6, 7, 8]


def test_where_an_id_is_outside_the_vocabulary(workspace, monkeypatch):
    """An id outside the vocabulary is reported by file and line, also in grouped files and later parts."""
    (workspace / "in").mkdir()
    write_jsonl(workspace / "in" / "0.jsonl", [{"input_ids": []}])
    write_jsonl(workspace / "in" / "1.jsonl", [{"input_ids": [5]}] * 4 + [{"input_ids": [5, 10]}])
    reader = open_source(TokensSource(kind="tokens", path="in"))
    for part_bytes in (10**6, 20):
        monkeypatch.setattr(base, "PART_BYTES", part_bytes)
        counts = SourceCounts()
        for part in reader.parts():
            tally = Tally()
            kept = list(filter(partial(can_be_kept, 10, True, tally), reader.read(part, tally)))
            assert all(record.ids.tolist() == [5] for record in kept)
            counts.absorb(tally, part.path)
        assert counts.named == ["in/1.jsonl:5: token id 10 is outside the vocabulary of 10 entries"]
        assert counts.broken == 1


def test_ordered_map_in_this_process():
    """With one worker, `make` is called once, in this process, and results arrive one at a time."""
    made = []

    def make():
        made.append(1)
        return lambda task: task * 2

    results = ordered_map.ordered_map(make, iter([1, 2, 3]), None)
    assert next(results) == 2
    assert list(results) == [4, 6]
    assert made == [1]


POOL = """
import os, signal, sys, time
from functools import partial
from pathlib import Path
from nbtrain.corpus.workers.local_pool import LocalPool
from nbtrain.corpus.workers.ordered_map import ordered_map

def work(folder, task):
    mark = Path(folder) / str(task)
    if task in KILLED and (ALWAYS or not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if SLEEP:
        time.sleep(SLEEP)
    return os.getpid(), task

def make(folder):
    return partial(work, folder)

results = ordered_map(partial(make, sys.argv[1]), range(8), partial(LocalPool, 2))
print([task for _, task in results], flush=True)
"""


def pool(tmp_path, killed="()", always=False, sleep=0):
    """Run POOL as a script without a main guard; its workers must not run the script again."""
    script = tmp_path / "script.py"
    script.write_text(f"KILLED, ALWAYS, SLEEP = {killed}, {always}, {sleep}\n{textwrap.dedent(POOL)}")
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_killed_worker_is_replaced(tmp_path):
    """After kill -9 of two workers, their tasks run again in order, and a message reports it."""
    process = pool(tmp_path, "(0, 7)")
    out, err = process.communicate(timeout=600)
    assert out == "[0, 1, 2, 3, 4, 5, 6, 7]\n"
    assert err.count("A worker process died: SIGKILL(-9). Its work is repeated.") == 2


@pytest.mark.slow
def test_a_worker_that_cannot_begin(capfd):
    """An exception while a worker starts is raised in the parent, and is not
    reported as a death of the worker.
    """
    with pytest.raises(DataError, match=r"^package x is missing$"):
        list(ordered_map.ordered_map(_cannot_begin, iter(range(3)), partial(local_pool.LocalPool, 2)))
    assert "Traceback" not in capfd.readouterr().err


def _cannot_begin():
    raise DataError("package x is missing")


@pytest.mark.parametrize(
    ("package", "data"),
    [
        ("rensa", {"cleaning": {"near_dedup": {"enabled": True}}}),
        ("sentencex", {"split_sentences": "en"}),
    ],
)
def test_a_missing_package_is_reported_first(make_config, monkeypatch, package, data):
    """A missing package is reported before a source is read or a tokenizer trained."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=f"needs the package {package}, which is not installed"):
        prepare(make_config(data=data))
    assert not tokenizer_dir("small").exists()


@pytest.mark.slow
def test_a_task_that_always_kills(tmp_path):
    """A task that kills its worker three times ends the map with an error that gives the reason and a fix."""
    out, err = pool(tmp_path, "(3,)", always=True).communicate(timeout=600)
    assert out == ""
    assert "DataError: a worker process died 3 times while processing the same part: SIGKILL(-9)." in err
    assert "lower data.num_prepare_workers, then run the command again. Finished work is kept." in err


def test_a_worker_that_dies_while_tasks_are_submitted(monkeypatch, caplog):
    """If a worker dies while tasks are being submitted, no task is lost or repeated."""
    from loky.process_executor import BrokenProcessPool

    class Pool(ThreadPoolExecutor):
        """A pool that raises BrokenProcessPool at the third submit, twice."""

        broken = 0

        def __init__(self, num_workers, initializer, initargs):
            super().__init__(num_workers)
            self.submits = 0
            monkeypatch.setattr(local_pool, "_function", initargs[0]())

        def submit(self, *arguments):
            self.submits += 1
            if self.submits == 3 and Pool.broken < 2:
                Pool.broken += 1
                raise BrokenProcessPool("The exit codes of the workers are {SIGKILL(-9)}")
            return super().submit(*arguments)

        def shutdown(self, kill_workers):
            super().shutdown()

    monkeypatch.setattr(local_pool, "ProcessPoolExecutor", Pool)
    assert list(
        ordered_map.ordered_map(lambda: abs, iter(range(9)), partial(local_pool.LocalPool, 2))
    ) == list(range(9))
    assert Pool.broken == 2
    assert caplog.messages == ["A worker process died: SIGKILL(-9). Its work is repeated."] * 2


@pytest.mark.slow
def test_workers_die_with_their_parent(tmp_path):
    """After kill -9 of the parent, no worker keeps running."""
    process = pool(tmp_path, sleep=60)
    import psutil

    family = psutil.Process(process.pid)
    wait_until(lambda: len(family.children(recursive=True)) >= 3, "fewer than three workers")
    children = family.children(recursive=True)
    time.sleep(1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=600)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_a_parent_that_dies_while_workers_start(tmp_path):
    """A worker that starts after its parent has died exits by itself, because no signal would reach it."""
    import psutil

    for delay_seconds in (0.35, 0.7):
        process = pool(tmp_path, sleep=60)
        time.sleep(delay_seconds)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=600)  # a process that held the pipe open would keep it waiting
        _, alive = psutil.wait_procs(children, timeout=600)
        assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


PREPARE = """
import sys
from nbtrain.config.load import load
from nbtrain.corpus.sources import base, files, jsonl
for module in (base, files, jsonl):
    if hasattr(module, "PART_BYTES"):
        module.PART_BYTES = 2_000
from nbtrain.dataset.prepare import workers
workers.PARALLEL_FROM_BYTES = workers.PARALLEL_FROM_BYTES_WHEN_SLOW = 0
from nbtrain.dataset.prepare.prepare import prepare
prepare(load(sys.argv[1], sys.argv[2:]))
"""


@pytest.mark.slow
def test_a_parent_that_is_killed_while_its_workers_encode(make_config, workspace, parallel):
    """After kill -9 when a part is encoded, a second run writes the same bytes, and no partial file has a
    final name. tests/dataset/prepare/test_prepare.py kills one process at every moment.
    """
    from nbtrain.config.load import to_yaml

    config = make_config(data={"num_prepare_workers": 2})
    (workspace / "run.yaml").write_text(to_yaml(config))
    prepare(config)
    expected = content(dataset_dir("small"))
    command = [sys.executable, "-c", PREPARE, "run.yaml"]
    other = {**os.environ, "NBTRAIN_DATA": str(workspace / "other")}
    folder = workspace / "other" / "dataset" / "small"
    first = folder / ".encode" / "000000.json"
    process = subprocess.Popen(command, env=other, stderr=subprocess.DEVNULL)
    while not first.exists() and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    process.wait()
    if (folder / "manifest.json").exists():
        assert content(folder) == expected
    subprocess.run(command, env=other, check=True, capture_output=True, timeout=600)
    assert content(folder) == expected
    assert not list(folder.glob(".*"))
    assert data_home() != workspace / "other"


def test_settings_travel(tmp_path, make_config):
    """Settings and readers that are sent to workers can be pickled."""
    import pickle

    make_config()
    corpus = Corpus.open([JsonlSource(kind="jsonl", path="texts.jsonl")])
    cleaning = CleaningConfig(near_dedup=NearDedupConfig(enabled=True))
    settings = EncodeSettings(tmp_path, tuple(corpus.readers), cleaning, None, None, 300, None, "<u2")
    assert pickle.loads(pickle.dumps(settings)).readers[0].config == corpus.readers[0].config


@pytest.fixture
def small_disk(root, tmp_path):
    """Mount a disk of 8 MiB."""
    with mounted_disk(tmp_path / "disk", "8m") as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.root
def test_a_full_disk(make_config, workspace, small_disk, monkeypatch, small_parts):
    """A disk that fills up during encoding is reported with the fix, and finished shards are used later."""
    config = make_config(
        data={"name": "full", "cleaning": {"exact_dedup": False}}, tokenizer={"train_bytes": 5_000}
    )
    lines = "".join(json.dumps({"text": f"{number} " + "word and " * 200}) + "\n" for number in range(300))
    (workspace / "texts.jsonl").write_text(lines)
    monkeypatch.setenv("NBTRAIN_DATA", str(small_disk))
    prepare(config, through="tokenizer")
    filler = small_disk / "filler"
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    filler.write_bytes(bytes(free - (200 << 10)))
    with pytest.raises(DataError) as caught:
        prepare(config)
    for part in ("No space left on device.", "NBTRAIN_DATA", "Finished work is kept"):
        assert part in str(caught.value)
    folder = dataset_dir("full")
    assert not list(folder.glob("*.bin")) and not (folder / "manifest.json").exists()
    kept = len(list((folder / ".encode").glob("[0-9]*.json")))
    assert kept > 1
    filler.unlink()
    assert prepare(config).manifest.counts["documents"] == 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("repeats", "place"), [*((1, place) for place in range(3)), *((2, place) for place in range(5))]
)
def test_a_disk_that_is_full_while_shards_are_joined(
    make_config, workspace, small_parts, monkeypatch, repeats, place
):
    """If the disk fills up while shards are joined, the next run neither encodes
    nor stores any token twice.
    """
    config = make_config(data={"extra_json_keys": ["more"]})
    lines = [{"text": f"text {number}", "more": f"more {number} " * 5} for number in range(100)]
    write_jsonl(workspace / "texts.jsonl", lines * repeats)
    whole = content(prepare(config, through="encode").dataset)
    folder, made, write = dataset_dir("small"), [], files.atomic_writer
    shutil.rmtree(folder)

    @contextlib.contextmanager
    def filling(path, mode="wb"):
        # Without duplicates, the .bin files are moved, and two .idx and the manifest written; else all five.
        if path.parent == folder:
            if len(made) == place:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            made.append(path)
        with write(path, mode) as stream:
            yield stream

    with monkeypatch.context() as patched:
        patched.setattr(files, "atomic_writer", filling)
        with pytest.raises(DataError, match="Finished work is kept"):
            prepare(config, through="encode")
    monkeypatch.setattr(Encoder, "__call__", lambda self, task: pytest.fail("a part was encoded again"))
    seen = []
    join = prepare_dataset.join
    monkeypatch.setattr(
        prepare_dataset, "join", lambda *of: seen.append(sorted(folder.glob("[!.]*.*"))) or join(*of)
    )
    assert content(prepare(config, through="encode").dataset) == whole
    assert seen == [[]]


def test_progress_inside_parts(tmp_path):
    """Progress includes unfinished parts, never more than their size, and ends at the
    number of completed bytes.
    """
    progress = Progress("encode", 300, "B", io.StringIO())
    account = EncodeProgress(tmp_path, [SourceCounts()], progress)
    for number in range(3):
        account.begin(Task(number, 0, SourcePart(f"part {number}", size_bytes=100)))
    worker = WorkerCounters(tmp_path)
    worker(60, 5, 20)
    account.show()
    assert (progress.done, progress.figures.partition(" (")[0]) == (60, "documents 5")
    worker(900, 50, 200)
    account.show()
    assert progress.done == 300
    for number in range(3):
        account.add(ShardRecord(number, 0, "", 100, 10, 40, 90, None, Tally().to_dict(), {}))
    assert progress.done == 300
    assert progress.figures.startswith("documents 30 (")
    assert progress.figures.endswith("tokens 120")


# Encoding is still running when TERM arrives, however slow the test is.
WAIT_AFTER_FIVE = """
import time
from nbtrain.cli.__main__ import main
from nbtrain.dataset.encode.progress import EncodeProgress
add, added = EncodeProgress.add, []
def add_and_wait(self, record):
    add(self, record)
    added.append(record)
    if len(added) == 5:
        time.sleep(600)
EncodeProgress.add = add_and_wait
"""


@pytest.mark.slow
def test_a_stop_is_orderly(make_config, workspace, small_parts):
    """TERM, which batch systems send, ends the workers without a traceback; finished work is reused."""
    from nbtrain.config.load import to_yaml

    lines = "".join(json.dumps({"text": f"{number} " + "word and " * 40}) + "\n" for number in range(3_000))
    (workspace / "texts.jsonl").write_text(lines)
    config = make_config(data={"num_prepare_workers": 2}, tokenizer={"train_bytes": 5_000})
    (workspace / "run.yaml").write_text(to_yaml(config))
    patched = PREPARE.replace(
        "from nbtrain.dataset.prepare.prepare import prepare\nprepare(load(sys.argv[1], sys.argv[2:]))", ""
    )
    command = f"{patched}{WAIT_AFTER_FIVE}sys.exit(main(['data', 'encode', 'run.yaml']))"
    process = subprocess.Popen([sys.executable, "-c", command], stderr=subprocess.PIPE, text=True)
    work = DatasetFiles.named("small").work
    wait_until(
        lambda: len(list(work.glob("[0-9]*.json"))) >= 5 or process.poll() is not None,
        "fewer than five parts",
    )
    assert process.poll() is None
    process.terminate()
    _, err = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Stopped. Finished work is kept: run the same command again to continue." in err
    assert "Traceback" not in err and "leaked" not in err
    kept = len(list(work.glob("[0-9]*.json")))
    report = prepare(config, through="encode")
    assert f"an earlier `nbtrain prepare` did not finish ({kept} part" in report.steps[-1].reason


MEMORY = """
import json, sys
from pathlib import Path
from nbtrain.config.load import load
from nbtrain.dataset.prepare.prepare import prepare
prepare(load(sys.argv[1]), through="encode")
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(int(status["VmHWM"].split()[0]) * 1024)
"""


UNITS = ["the model reads some words ", "文本分詞模型讀取\uff0c"]


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("vocabulary", "megabytes"),
    [("made", 30), *(pytest.param(name, 100, marks=pytest.mark.soak) for name in ("made", "shared"))],
)
def test_memory_of_one_large_document(make_config, workspace, request, vocabulary, megabytes, unit):
    """For one document, prepare needs at most 250 MiB plus four times the document."""
    from nbtrain.config.load import to_yaml

    text = unit * (megabytes * 1_000_000 // len(unit.encode()))
    (workspace / "texts.jsonl").write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    if vocabulary == "made":
        folder, size = made.write_gpt2_files(workspace / "gpt2", also=tuple(UNITS)), made.VOCAB_SIZE
    else:
        folder, size = request.getfixturevalue("shared_data") / "gpt2", 50257
    brought = {"name": "gpt2", "vocab_size": size, "path": str(folder)}
    (workspace / "run.yaml").write_text(to_yaml(make_config(tokenizer=brought)))
    command = [sys.executable, "-c", MEMORY, "run.yaml"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert int(done.stdout) <= (250 << 20) + 4 * len(text.encode())
    assert DatasetFiles.named("small").manifest().counts["documents"] == 1
