"""An existing dataset whose inputs have changed: the message names the key and
its place, or the changed file.
"""

import json
import os

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from nbtrain.base.errors import DataError
from nbtrain.config.load import load
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.prepare.prepare import prepare
from tests.dataset.dataset_maker import make_tokenizer

RUN = """\
name: small
model: {num_layers: 1, hidden_size: 8, num_attention_heads: 1, seq_length: 16}
tokenizer: {name: small, vocab_size: 300}
data:
  name: small
  sources:
    - {kind: text, path: texts}
  cleaning:
    min_bytes: 0
  split: 1,0,0
batch: {micro_batch_size: 2, global_batch_size: 4, train_tokens: 1920}
lr_schedule: {lr: 1.0e-3}
evaluation: {eval_iters: 0}
"""
END = (
    "Other runs may refer to it: change data.name, or make it again with `nbtrain prepare RUN.yaml --force`."
)


@pytest.fixture
def folder(workspace):
    """Prepare run.yaml, over a folder of two texts, through the step encode."""
    (workspace / "texts").mkdir()
    write(workspace / "texts" / "a.txt", "one text" * 40)
    write(workspace / "texts" / "b.txt", "second")
    (workspace / "run.yaml").write_text(RUN)
    prepare(load("run.yaml"), through="encode")
    return workspace / "texts"


def write(path, text, time=1):
    path.write_text(text)
    os.utime(path, ns=(time, time))


def refuses(message, *overrides):
    with pytest.raises(DataError) as caught:
        prepare(load("run.yaml", overrides), through="encode")
    assert str(caught.value) == f"data/dataset/small: {message}. {END}"


def test_the_place_of_the_key_that_differs(folder, workspace):
    """The message names the line or override that set the changed key, even if
    another one set the section.
    """
    same = "data.sources=[{kind: text, path: texts}]"
    (workspace / "run.yaml").write_text(RUN.replace("min_bytes: 0", "min_bytes: 5"))
    refuses(
        (
            "the dataset was made with other settings: data.cleaning.min_bytes = 0 in the "
            "dataset, 5 in run.yaml:9"
        ),
        same,
    )
    refuses(
        "the dataset was made with other settings: data.cleaning.min_bytes = 0 in the dataset, 7 in "
        "override data.cleaning.min_bytes=7; data.sources[0].path = 'texts' in the dataset, "
        "'texts/a.txt' in override data.sources.0.path=texts/a.txt",
        "data.cleaning.min_bytes=7",
        "data.sources.0.path=texts/a.txt",
        "data.name=small",
        "tokenizer.name=small",
    )
    (workspace / "run.yaml").write_text(
        RUN.replace("  cleaning", "    - {kind: text, path: more}\n  cleaning")
    )
    (workspace / "more").mkdir()
    write(workspace / "more" / "c.txt", "third")
    refuses(
        "the dataset was made with other settings: data.sources = 1 entry in the dataset, "
        "2 entries in run.yaml:6"
    )


def test_files_that_are_new_gone_and_changed(folder):
    """Changed files are listed before files that were only rewritten, followed by
    the number of further files.
    """
    where = "run.yaml:6: data.sources[0]"
    write(folder / "c.txt", "third")
    refuses(f"the sources have changed since the dataset was made: {where}: c.txt is new")
    write(folder / "a.txt", "one text" * 40, 2)
    (folder / "b.txt").unlink()
    refuses(
        f"the sources have changed since the dataset was made: {where}: b.txt is gone; "
        f"{where}: c.txt is new; {where}: a.txt was rewritten and still has 320 bytes"
    )
    write(folder / "a.txt", "one", 3)
    write(folder / "d.txt", "fourth")
    refuses(
        f"the sources have changed since the dataset was made: {where}: a.txt has changed "
        f"(320 bytes then, 3 now); {where}: b.txt is gone; {where}: c.txt is new; and 1 more"
    )


def test_files_written_again_of_documents_that_became_no_tokens(workspace, make_config):
    """Documents that give no tokens are not hashed, so a rewritten file is compared without them."""
    made = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "<|endoftext|>": 1, "a": 2}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.Replace("z", ""), pre_tokenizers.Whitespace()
    made.save(str(workspace / "small.json"))
    lines = [json.dumps({"text": text}) + "\n" for text in ("a a", "zz", "a z", "z")]
    assert_touched(make_config, workspace, lines, {"kind": "jsonl"}, {"no_token": 2}, path="small.json")


def test_files_written_again_of_ids_outside_the_vocabulary(workspace, make_config):
    """Broken records are not hashed, so a rewritten file is compared without them."""
    lines = [json.dumps({"input_ids": ids}) + "\n" for ids in ([5], [300], [6])]
    source = {"kind": "tokens", "append_eod": False, "max_broken_fraction": 0.5}
    assert_touched(make_config, workspace, lines, source, {"broken_record": 1})


def test_files_written_again_with_extra_keys(workspace, make_config):
    """A rewritten file with the same texts keeps the dataset, but a correction of
    an extra text is a change.
    """
    source = {"kind": "jsonl", "path": "lines.jsonl"}
    write(workspace / "lines.jsonl", '{"text": "one", "title": "teh one"}\n')
    config = make_config(data={"sources": [source], "extra_json_keys": ["title"]})
    prepare(config, through="encode")
    write(workspace / "lines.jsonl", '{"text": "one", "title": "teh one"}\n', 1)
    assert [step.action for step in prepare(config, through="encode").steps] == ["kept", "kept"]
    write(workspace / "lines.jsonl", '{"text": "one", "title": "the one"}\n', 2)
    with pytest.raises(DataError) as refused:
        prepare(config, through="encode")
    assert str(refused.value) == (
        "data/dataset/small: the sources have changed since the dataset was made: "
        f"data.sources[0]: lines.jsonl was rewritten and still has 36 bytes. {END}"
    )


def assert_touched(make_config, workspace, lines, source, dropped, **tokenizer):
    """Assert that rewriting a file keeps the dataset, and that another text of the same size is a change."""
    write(workspace / "lines.jsonl", "".join(lines))
    vocabulary = {"tokenizer": {"name": "small", **tokenizer}} if tokenizer else {}
    config = make_config(data={"sources": [{**source, "path": "lines.jsonl"}]}, **vocabulary)
    prepare(config, through="encode")
    before = dataset_of(config).manifest()
    assert before.counts["dropped"] == dropped
    write(workspace / "lines.jsonl", "".join(lines), 2)
    prepare(config, through="encode")
    after = dataset_of(config).manifest()
    assert after.files == before.files and after.sources != before.sources
    write(workspace / "lines.jsonl", "".join(reversed(lines)), 3)
    with pytest.raises(DataError, match=r"lines\.jsonl was rewritten and still has [0-9]+ bytes"):
        prepare(config, through="encode")


def test_labels_decide_by_the_first_record_whether_there_is_a_mask(workspace, make_config, caplog):
    """The first record decides whether a source has a loss mask; a mask that appears later is refused."""
    caplog.set_level("INFO")
    tokenizer = {"name": "small", "vocab_size": 300}
    make_tokenizer("small", ["one two"])

    def dataset(name, *records):
        write(workspace / f"{name}.jsonl", "".join(json.dumps(record) + "\n" for record in records))
        source = {"kind": "tokens", "path": f"{name}.jsonl", "max_broken_fraction": 0.5}
        config = make_config(tokenizer=tokenizer, data={"name": name, "sources": [source]})
        prepare(config, through="encode")
        return DatasetFiles.named(name)

    labelled = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}
    with_mask = dataset("labelled", labelled, {"input_ids": [8, 9]})
    mask = with_mask.open_loss_mask(IndexedDataset(with_mask.prefix))
    assert [mask[0].tolist(), mask[1].tolist()] == [[0, 1, 1, 1], [1, 1, 1]]
    assert with_mask.manifest().loss_tokens == 6
    assert caplog.text.count("data.packing=best_fit") == 1
    without = dataset("plain", {"input_ids": [8, 9]}, labelled)
    assert not without.has_loss_mask and without.manifest().loss_tokens is None
    (broken,) = map(json.loads, without.broken_records.read_text().splitlines())
    assert (
        broken["line"] == 2 and "but the source's first record has no mask; set labels_key" in broken["what"]
    )


def test_documents_with_other_extra_texts_are_other_documents(workspace, make_config):
    """Records with equal main texts but different extra texts are not duplicates,
    and the pairs stay aligned.
    """
    rows = [("q", "a"), ("q", "b"), ("q", "a"), ("r", "a")]
    write(workspace / "rows.jsonl", "".join(json.dumps({"text": q, "answer": a}) + "\n" for q, a in rows))
    source = {"kind": "jsonl", "path": "rows.jsonl"}
    near = {"near_dedup": {"enabled": True, "threshold": 0.9}}
    for cleaning in ({}, near):
        name = "near" if cleaning else "exact"
        data = {"name": name, "sources": [source], "extra_json_keys": ["answer"], "cleaning": cleaning}
        prepare(make_config(data=data), through="encode")
        manifest = DatasetFiles.named(name).manifest()
        assert manifest.counts["documents"] == 3 and manifest.counts["dropped"] == {"duplicate": 1}
        assert len(IndexedDataset(DatasetFiles.named(name, "answer").prefix)) == 3
