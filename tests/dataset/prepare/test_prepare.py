"""prepare performs the missing steps and gives reasons, refuses to replace data, and survives a kill."""

import dataclasses
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.base.process.locks import locked_directory
from nbtrain.base.text import amounts
from nbtrain.base.workspace import data_home, tokenizer_dir
from nbtrain.corpus.documents.corpus import Corpus
from nbtrain.corpus.tokenizer import training
from nbtrain.corpus.tokenizer.folder import adopt, save
from nbtrain.corpus.tokenizer.prepare import is_trained
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.dataset import files as dataset_files
from nbtrain.dataset.encode.encoder import Encoder
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.dataset.views.prepare_report import PrepareReport
from tests.corpus.wiki.conftest import dump_xml, page
from tests.waiting import wait_until


def steps(report):
    return [(step.name, step.action, step.reason) for step in report.steps]


def everything(folder):
    """Return the SHA-256 of all files below a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def refusal(config, **keywords):
    with pytest.raises(DataError) as caught:
        prepare(config, **keywords)
    return str(caught.value)


def test_a_shared_tokenizer_is_not_made_anew(make_config):
    """A shared tokenizer is not trained again, even with force, because other
    datasets' ids would become invalid.
    """
    prepare(make_config())
    prepare(make_config(data={"name": "second"}))
    before = Tokenizer.load(tokenizer_dir("small")).sha256
    forced = prepare(make_config(data={"name": "second"}), force=True)
    assert steps(forced)[0] == (
        "tokenizer",
        "kept",
        "data/tokenizer/small: 300 entries, trained on these sources; kept, because small is encoded with it",
    )
    assert Tokenizer.load(tokenizer_dir("small")).sha256 == before
    assert refusal(make_config(tokenizer={"vocab_size": 290}), force=True).startswith(
        "data/tokenizer/small: the tokenizer was trained with other settings: vocab_size = 300 for the "
        "tokenizer, 290 in this run."
    )


def test_a_tokenizer_is_not_made_anew_while_another_prepare_encodes(make_config, monkeypatch):
    """A tokenizer is kept while shards encoded with it exist; if its files are
    replaced anyway, encoding stops.
    """
    prepare(make_config(), through="tokenizer")

    def killed(self, task):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "__call__", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(make_config())
    forced = prepare(make_config(data={"name": "second"}), force=True)
    assert steps(forced)[0][1:] == (
        "kept",
        "data/tokenizer/small: 300 entries, trained on these sources; kept, because small (unfinished; to "
        "discard it, remove data/dataset/small/.encode) is encoded with it",
    )

    def replaced(self, task):
        del self._tokenizer
        self.settings = dataclasses.replace(self.settings, tokenizer_sha256="0" * 64)
        return self._tokenizer

    monkeypatch.setattr(Encoder, "__call__", replaced)
    assert refusal(make_config()) == (
        "data/tokenizer/small: another tokenizer replaced this one after `nbtrain prepare` "
        "began. Make sure that no other `nbtrain prepare` writes this folder, then run the "
        "command again."
    )


@pytest.mark.parametrize("change", ["shrunk", "replaced", "edited"])
def test_a_source_that_changes_while_it_is_read(make_config, workspace, monkeypatch, change):
    """If a source changes while it is read, no dataset is written, and the next
    prepare starts from the beginning.
    """
    config = make_config()
    prepare(config, through="tokenizer")
    path = workspace / "texts.jsonl"
    whole = path.read_bytes()
    encode = Encoder.__call__

    def while_reading(self, task):
        if change == "shrunk":
            os.truncate(path, len(whole) // 3 // 10 * 10)
        elif change == "replaced":
            (workspace / "other").write_bytes(whole.replace(b"text", b"TEXT"))
            (workspace / "other").replace(path)
        record = encode(self, task)
        if change == "edited":
            path.write_bytes(whole.replace(b"a", b"b"))
        return record

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "__call__", while_reading)
        assert refusal(config) == (
            "data.sources[0]: texts.jsonl changed during reading. Make sure that no process writes to the "
            "source, then run the command again."
        )
    assert not dataset_of(config).manifest_json.exists()
    path.write_bytes(whole)
    assert steps(prepare(config))[1][:2] == ("encode", "made")


def test_training_tells_its_memory_first(make_config, capsys):
    """Before training a tokenizer, the size of the sample and the required and
    available memory are reported.
    """
    prepare(make_config(), through="tokenizer")
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"tokenizer small: training on 18\.1 KiB of text: about 220\.0 MiB of memory needed, .+ available",
        first,
    )
    assert second.startswith("tokenizer small: 1")


def test_training_on_compressed_text(make_config, workspace, capsys):
    """For compressed text, the progress bar and the memory estimate use the decompressed size."""
    config = make_config(data={"sources": [{"kind": "jsonl", "path": "texts.jsonl.gz"}]})
    content = (workspace / "texts.jsonl").read_bytes()
    (workspace / "texts.jsonl.gz").write_bytes(gzip.compress(content))
    prepare(config, through="tokenizer")
    first, second = capsys.readouterr().err.splitlines()
    assert f"training on {amounts.size(len(content))} of text" in first
    assert f"/{len(content) / 1000:.3g}kB" in second
    # No more than the sample is unpacked.
    for train_bytes, expected in ((5_000, 5_000), (10**8, len(content))):
        assert Corpus.open(config.data.sources).unpacked_bytes(train_bytes) == expected


def test_a_tokenizer_of_fewer_entries_than_asked_for(make_config, caplog):
    """If a tokenizer has fewer entries than configured, a warning names a setting that works."""
    prepare(make_config(tokenizer={"vocab_size": 52_000}), through="encode")
    found = Tokenizer.load(tokenizer_dir("small")).vocab_size
    assert found < 1_000
    assert caplog.messages == [
        f"data/tokenizer/small: the tokenizer has only {found} entries, because the text is too small for "
        "more merges. The model is built for tokenizer.vocab_size = 52,000, but the higher ids never occur. "
        f"Use more text, or set tokenizer.vocab_size to {found} and run prepare again with --force."
    ]
    caplog.clear()
    prepare(make_config(tokenizer={"vocab_size": found}), force=True, through="encode")
    assert Tokenizer.load(tokenizer_dir("small")).vocab_size == found
    assert caplog.messages == []


def test_a_failed_prepare_leaves_no_dataset_folder(make_config, workspace):
    """A failed prepare leaves no dataset folder, because an empty folder would look like a dataset."""
    (workspace / "texts.jsonl").write_text("")
    assert "empty" in refusal(make_config(data={"name": "nothing"}))
    assert not (data_home() / "dataset" / "nothing").exists()


def test_a_tokenizer_from_elsewhere(make_config, workspace):
    """tokenizer.path is imported once; a different tokenizer under the same name is
    refused with both hashes.
    """
    prepare(make_config())
    shutil.copytree(tokenizer_dir("small"), workspace / "brought")
    (workspace / "brought" / "manifest.json").unlink()
    own = {"name": "taken", "path": "brought", "vocab_size": 300}
    config = make_config(tokenizer=own, data={"name": "taken"})
    assert steps(prepare(config))[0] == (
        "tokenizer",
        "used",
        "data/tokenizer/taken: 300 entries, imported from brought",
    )
    before = everything(data_home())
    assert steps(prepare(config))[0][1] == "kept"
    assert everything(data_home()) == before
    (workspace / "other.jsonl").write_text('{"text": "quite other words in this text, quite other"}\n')
    sources = [{"kind": "jsonl", "path": "other.jsonl"}]
    prepare(
        make_config(tokenizer={"name": "other"}, data={"name": "other", "sources": sources, "split": "1,0,0"})
    )
    assert refusal(
        make_config(tokenizer={**own, "path": "data/tokenizer/other"}, data={"name": "taken"})
    ).startswith("data/tokenizer/taken: the folder holds another tokenizer (sha256 ")
    assert refusal(make_config(tokenizer={**own, "eod_token": "</s>"}, data={"name": "taken"})).startswith(
        "brought"
    )
    assert not list(data_home().rglob("*.tmp"))


def test_texts_come_back_from_the_dataset(make_config, texts):
    """The .bin has every document of the source in order; each ends with EOD and decodes to its text."""
    config = make_config()
    report = prepare(config)
    indexed = IndexedDataset(dataset_of(config).prefix)
    loaded = Tokenizer.load(tokenizer_dir("small"))
    assert [loaded.decode(indexed[index][:-1]) for index in range(len(indexed))] == texts
    assert all(indexed[index][-1] == loaded.eod_id for index in range(len(indexed)))
    assert report.manifest.counts == {
        "documents": 120,
        "tokens": indexed.num_tokens,
        "bytes": sum(map(len, texts)),
        "dropped": {},
        "unknown_tokens": 0,
    }
    assert report.manifest.tokenizer_sha256 == loaded.sha256


def test_second_call_does_nothing_and_says_so(make_config):
    """A second call changes no file and gives the reason for each step that it skips."""
    config = make_config()
    first = prepare(config)
    before = everything(data_home())
    second = prepare(config)
    assert everything(data_home()) == before
    assert (first.changed, second.changed) == (True, False)
    assert steps(first) == [
        ("tokenizer", "made", "data/tokenizer/small did not exist; trained 300 entries"),
        (
            "encode",
            "made",
            (f"the dataset did not exist; encoded 120 documents, {first.manifest.counts['tokens']:,} tokens"),
        ),
        ("index", "made", "3 of the indices of train, valid and test were missing from index-cache/"),
    ]
    assert steps(second) == [
        ("tokenizer", "kept", "data/tokenizer/small: 300 entries, trained on these sources"),
        ("encode", "kept", "same settings, same sources"),
        ("index", "kept", "index-cache/ has the indices for this dataset, split, seed and training length"),
    ]
    assert second.manifest == first.manifest
    assert second.splits == first.splits


def test_report_shows_itself(make_config):
    """The report is available as text, as escaped HTML, and as JSON values."""
    report = prepare(make_config())
    assert "tokenizer  made" in str(report)
    assert "data/dataset/small: 120 documents" in str(report)
    assert report._repr_html_().count("<table") == 2
    assert (
        json.loads(json.dumps(report.to_dict()))["manifest"]["dataset_sha256"]
        == report.manifest.dataset_sha256
    )
    assert json.loads(json.dumps(PrepareReport("none").to_dict()))["dataset"] is None


@pytest.mark.slow
def test_other_settings_under_the_same_name(make_config, workspace):
    """A different source or tokenizer size is refused with both values; force rebuilds the dataset."""
    prepare(make_config())
    before = everything(data_home())
    (workspace / "more.jsonl").write_text('{"text": "another text"}\n')
    other = make_config(data={"sources": [{"kind": "jsonl", "path": "more.jsonl"}]})
    assert refusal(other) == (
        "data/dataset/small: the dataset was made with other settings: data.sources[0].path = 'texts.jsonl' "
        "in the dataset, 'more.jsonl' in this run. Other runs may refer to it: change data.name, or "
        "make it again with `nbtrain prepare RUN.yaml --force`."
    )
    assert refusal(make_config(tokenizer={"vocab_size": 290})) == (
        "data/tokenizer/small: the tokenizer was trained with other settings: vocab_size = 300 for the "
        "tokenizer, 290 in this run. Datasets and runs may refer to it: give tokenizer.name another "
        "value, or make it again with `nbtrain prepare RUN.yaml --force`."
    )
    assert everything(data_home()) == before
    forced = prepare(make_config(tokenizer={"vocab_size": 290}), force=True)
    assert [step[1:] for step in steps(forced)][:2] == [
        ("made", "force; trained 290 entries"),
        ("made", f"force; encoded 120 documents, {forced.manifest.counts['tokens']:,} tokens"),
    ]
    assert not list(data_home().rglob("*.tmp"))


@pytest.mark.slow
def test_changed_source_file(make_config, workspace):
    """A rewritten source file is compared by its text: if the text is the same the
    dataset is kept, else refused.
    """
    config = make_config()
    prepare(config)
    source = workspace / "texts.jsonl"
    os.utime(source, ns=(10, 10))
    assert steps(prepare(config))[1][1:] == ("kept", "same settings; file times differ, the text is the same")
    assert steps(prepare(config))[1][1:] == ("kept", "same settings, same sources")
    size = source.stat().st_size
    with source.open("a") as stream:
        stream.write('{"text": "one more"}\n')
    os.utime(source, ns=(11, 11))
    assert refusal(config) == (
        "data/dataset/small: the sources have changed since the dataset was made: "
        f"data.sources[0]: texts.jsonl has changed ({size:,} bytes then, {size + 21:,} now). "
        "Other runs may refer to it: change data.name, or make it again with `nbtrain "
        "prepare RUN.yaml --force`."
    )


@pytest.mark.slow
def test_extracting_a_dump_that_has_changed(make_config, workspace):
    """Extraction, like prepare, is refused if the dump of an existing dataset has changed."""
    dump = workspace / "dump.xml"
    dump.write_bytes(dump_xml([page(f"Page {number}", f"Text {number}. " * 9) for number in range(30)]))
    config = make_config(data={"sources": [{"kind": "wiki", "path": "dump.xml"}]})
    prepare(config, through="encode")
    assert steps(prepare(config, through="extract"))[0][1] == "kept"
    dump.write_bytes(dump_xml([page("Another", "text " * 50)]))
    message = refusal(config)
    assert "the sources have changed since the dataset was made" in message
    with pytest.raises(DataError) as caught:
        prepare(config, through="extract")
    assert str(caught.value) == message


def test_sources_that_are_no_longer_there(make_config, workspace, caplog):
    """A dataset whose sources were deleted is kept with a warning; sources that still exist are compared."""
    (workspace / "more").mkdir()
    (workspace / "more" / "a.jsonl").write_text('{"text": "and another text"}\n')
    sources = [{"kind": "jsonl", "path": path} for path in ("texts.jsonl", "more")]
    config = make_config(data={"sources": sources})
    prepare(config)
    before = everything(data_home())
    (workspace / "texts.jsonl").rename(workspace / "away.jsonl")
    report = prepare(config)
    assert not report.changed
    assert steps(report)[1] == (
        "encode",
        "kept",
        "same settings; these sources no longer exist and were not compared: texts.jsonl",
    )
    assert caplog.messages == [
        "data/dataset/small: the dataset was kept, although these sources no longer exist "
        "and could not be compared: texts.jsonl."
    ]
    assert everything(data_home()) == before
    os.utime(workspace / "more" / "a.jsonl", ns=(10, 10))
    assert steps(prepare(config))[1][1:] == ("kept", "same settings; file times differ, the text is the same")
    missing = "data.sources[0]: path = 'texts.jsonl': no such file or folder"
    assert refusal(config, force=True).startswith(missing)
    changed = make_config(data={"sources": sources, "cleaning": {"min_bytes": 5}})
    assert "data.cleaning.min_bytes = 0 in the dataset, 5 in this run" in refusal(changed)
    (workspace / "more" / "a.jsonl").write_text('{"text": "other"}\n')
    assert "the sources have changed since the dataset was made" in refusal(config)
    shutil.rmtree(tokenizer_dir("small"))
    assert refusal(config).startswith(missing)
    (workspace / "away.jsonl").rename(workspace / "texts.jsonl")


@pytest.mark.slow
def test_upgraded_package_keeps_the_dataset(make_config, monkeypatch):
    """python-docs from other package versions is kept, and the versions are reported."""
    from nbtrain.corpus.sources import python_docs

    config = make_config(data={"sources": [{"kind": "python-docs", "max_bytes": 30_000}]})
    prepare(config)
    real = python_docs._version
    monkeypatch.setattr(python_docs, "_version", lambda name: "99.0" if name == "torch" else real(name))
    extract, _, (name, action, reason), _ = steps(prepare(config))
    assert extract == ("extract", "kept", "the tokenizer and the dataset exist, so no source has to be read")
    assert (name, action) == ("encode", "kept")
    assert reason == (
        "same settings; kept although versions differ: sources[0].versions.torch = "
        f"{real('torch')!r} in the dataset, '99.0' now"
    )


def test_two_datasets_share_a_tokenizer(make_config, workspace):
    """A second dataset uses the existing tokenizer, and the report names the text that it was trained on."""
    prepare(make_config())
    (workspace / "more.jsonl").write_text(
        '{"text": "the other text"}\n' * 2 + '{"text": "and one more text"}\n'
    )
    other = make_config(
        data={"name": "other", "sources": [{"kind": "jsonl", "path": "more.jsonl"}], "split": "1,1,0"},
    )
    report = prepare(other)
    assert steps(report)[0] == (
        "tokenizer",
        "kept",
        "data/tokenizer/small: 300 entries, trained on other sources; selected by tokenizer.name",
    )
    assert report.manifest.counts["dropped"] == {"duplicate": 1}


def test_another_tokenizer_under_the_same_name(make_config):
    """A dataset whose tokenizer was replaced is refused, because its ids would be decoded wrongly."""
    prepare(make_config())
    shutil.rmtree(tokenizer_dir("small"))
    message = refusal(make_config(tokenizer={"vocab_size": 290}))
    assert message.startswith(
        "data/dataset/small: the data was encoded with a tokenizer other than data/tokenizer/small (sha256 "
    )


def test_brought_tokenizer(make_config, workspace, texts):
    """vocab.json and merges.txt that a user has put into the folder are used unchanged, also with force."""
    prepare(make_config())
    for name in ("vocab.json", "merges.txt"):
        (tokenizer_dir("mine")).mkdir(exist_ok=True)
        shutil.copy(tokenizer_dir("small") / name, tokenizer_dir("mine") / name)
    config = make_config(tokenizer={"name": "mine", "vocab_size": 512}, data={"name": "mine"})
    assert steps(prepare(config))[0] == (
        "tokenizer",
        "used",
        "vocab.json and merges.txt were already in data/tokenizer/mine: 300 entries",
    )
    assert steps(prepare(config, force=True))[0] == (
        "tokenizer",
        "used",
        "data/tokenizer/mine: 300 entries, imported",
    )
    assert refusal(make_config(tokenizer={"name": "mine", "vocab_size": 280}, data={"name": "mine"})) == (
        "data/tokenizer/mine: the tokenizer has 300 entries, but this run sets tokenizer.vocab_size = 280, "
        "which is the size of the model's embedding. Set tokenizer.vocab_size to 300, or set tokenizer.name "
        "to another tokenizer."
    )
    (tokenizer_dir("half")).mkdir()
    shutil.copy(tokenizer_dir("small") / "vocab.json", tokenizer_dir("half"))
    assert refusal(make_config(tokenizer={"name": "half"}, data={"name": "half"})) == (
        "data/tokenizer/half/merges.txt: no such file. An imported tokenizer consists of vocab.json and "
        "merges.txt, or of a tokenizer.json. Add the missing file, or remove the folder to train a tokenizer."
    )


@pytest.mark.parametrize("also", [(), ("vocab.json", "merges.txt")])
def test_a_tokenizer_json_that_somebody_put_there(make_config, workspace, texts, also):
    """A tokenizer.json that a user has put into the folder is used with its other files; none is trained."""
    save(training.train(texts, 300), workspace / "made", {})
    mine = tokenizer_dir("mine")
    mine.mkdir(parents=True)
    for name in ("tokenizer.json", *also):
        shutil.copy(workspace / "made" / name, mine)
    (mine / "chat_template.jinja").write_text("{{ messages }}")
    given = everything(mine)
    config = make_config(tokenizer={"name": "mine", "vocab_size": 512}, data={"name": "mine"})
    assert is_trained(config)
    assert steps(prepare(config, through="tokenizer"))[-1] == (
        "tokenizer",
        "used",
        "tokenizer.json was already in data/tokenizer/mine: 300 entries",
    )
    assert everything(mine).items() >= given.items()
    assert everything(mine / "as-given") == Tokenizer.load(mine).manifest["kept"] == given


def test_files_of_others_are_not_removed(make_config, workspace, texts):
    """A tokenizer folder that nbtrain did not write is never replaced."""
    mine = tokenizer_dir("mine")
    mine.mkdir(parents=True)
    (mine / "spiece.model").write_text("somebody's")
    save(training.train(texts, 300), workspace / "made", {})
    for path in (None, "made"):
        for force in (False, True):
            config = make_config(tokenizer={"name": "mine", "path": path}, data={"name": "mine"})
            assert refusal(config, force=force) == (
                "data/tokenizer/mine: the folder contains spiece.model but no manifest, so nbtrain did not "
                "make it. To use the tokenizer in this folder, put its tokenizer.json into the folder, set "
                "tokenizer.name and leave tokenizer.path empty; otherwise move the folder away, or give "
                "tokenizer.name another value."
            )
    assert everything(mine.parent) == {"mine/spiece.model": hashlib.sha256(b"somebody's").hexdigest()}


@pytest.mark.parametrize("path", ["data/tokenizer/mine", "data/tokenizer/mine/tokenizer.json"])
def test_a_path_that_is_the_tokenizers_own_folder(make_config, workspace, texts, path):
    """If tokenizer.path is the tokenizer's own folder, its record is kept, and a different EOD is refused."""
    save(training.train(texts, 300), workspace / "made", {})
    (workspace / "made" / "chat_template.jinja").write_text("{{ messages }}")
    adopt(workspace / "made", "<|endoftext|>", tokenizer_dir("mine"), ["<|user|>"])
    before = everything(tokenizer_dir("mine"))
    config = make_config(tokenizer={"name": "mine", "path": path, "vocab_size": 512}, data={"name": "mine"})
    for force in (False, True):
        assert steps(prepare(config, force=force, through="tokenizer"))[-1] == (
            "tokenizer",
            "kept",
            "data/tokenizer/mine: 301 entries; tokenizer.path is this same folder",
        )
    assert everything(tokenizer_dir("mine")) == before
    other = make_config(tokenizer={"name": "mine", "path": path, "eod_token": "a"}, data={"name": "mine"})
    assert refusal(other) == (
        "data/tokenizer/mine: the tokenizer ends documents with <|endoftext|>, but this run sets "
        "tokenizer.eod_token = a. Datasets and runs may refer to the tokenizer: set tokenizer.eod_token to "
        "<|endoftext|>, or give tokenizer.name another value."
    )


def test_brought_dataset(make_config):
    """A .bin/.idx pair without a manifest is used if data.sources is empty, and is
    never overwritten otherwise.
    """
    prepared = prepare(make_config()).manifest
    dataset = DatasetFiles.named("small")
    dataset.manifest_json.unlink()
    assert refusal(make_config()) == (
        "data/dataset/small: the folder holds text_document.bin without a manifest, so "
        "nbtrain did not make that file. To use it, leave data.sources empty; to replace it, "
        "make it again with `nbtrain prepare RUN.yaml --force`."
    )
    brought = make_config(data={"sources": []})
    report = prepare(brought)
    assert steps(report)[1] == (
        "encode",
        "used",
        "data/dataset/small/text_document.bin exists, and data.sources is empty; "
        f"{prepared.counts['tokens']:,} tokens",
    )
    assert report.manifest.dataset_sha256 == prepared.dataset_sha256
    assert report.manifest.eod_id == prepared.eod_id
    assert steps(prepare(brought))[1][1] == "kept"


@pytest.mark.parametrize("has_tokenizer", [True, False])
@pytest.mark.parametrize("without", [0, 3, 40])
def test_a_brought_dataset_whose_documents_have_no_end(make_config, caplog, has_tokenizer, without):
    """For a user's files, documents that do not end with EOD are counted in a
    warning, and the files are used.
    """
    prepare(make_config(), through="encode")
    dataset = DatasetFiles.named("small")
    tokens = IndexedDataset(dataset.prefix)
    num_documents = tokens.num_documents
    assert num_documents >= 40
    ends, ids = np.cumsum(tokens.lengths) - 1, np.array(tokens.tokens)
    ids[ends[:without]] = np.arange(1, without + 1)
    ids.tofile(dataset.bin)
    dataset.manifest_json.unlink()
    config = make_config(data={"sources": []})
    if not has_tokenizer:
        shutil.rmtree(tokenizer_dir("small"))
    blend = make_config(
        data={"name": "mix", "sources": [], "blend": [{"prefix": str(dataset.prefix), "weight": 1.0}]}
    )
    for run in (blend, config):
        caplog.clear()
        prepare(run, through="encode")
        said = [message for message in caplog.messages if "documents" in message]
        if not without:
            assert said == []
        elif has_tokenizer:
            assert f"{without} of the {num_documents} checked documents do not end" in said[0]
        else:
            assert "the documents end in different tokens" in said[0]


def test_nothing_to_make_data_from(make_config):
    """Without sources and files, the error names the missing file and the empty setting."""
    assert refusal(make_config(data={"sources": []})) == (
        "data/dataset/small/text_document.bin: no such file. Make it with `nbtrain prepare "
        "RUN.yaml`. This command needs data.sources, which this run leaves empty."
    )


def test_data_home_that_cannot_be_written(make_config, workspace, monkeypatch):
    """A data directory that is not a folder raises a readable error."""
    (workspace / "file").write_text("")
    monkeypatch.setenv("NBTRAIN_DATA", str(workspace / "file"))
    assert refusal(make_config()).startswith(
        "file/dataset/small: cannot be created or opened: Not a directory. Set NBTRAIN_DATA to "
    )


KILLED = """
import json, os, signal, sys
from nbtrain.base import files
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.prepare import prepare
from nbtrain.corpus.tokenizer import prepare as tokenizer

config, calls = RunConfig.model_validate(json.loads(sys.argv[1])), 0

def counting(function, point):
    def call(*arguments, **keywords):
        global calls
        calls += 1
        if calls == point:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **keywords)
    return call

def prepared(home, point):
    # A fork for each: the imports are paid once.
    if child := os.fork():
        return os.waitpid(child, 0)[1]
    # Of a killed process nothing is lost that it had written; waiting for the disk takes most of the time.
    os.fsync = lambda descriptor: None
    # Wherever something has just got its final name, or tokens were appended.
    files.fsync_directory = counting(files.fsync_directory, point)
    files.fsync_file = counting(files.fsync_file, point)
    tokenizer.save = counting(tokenizer.save, point)
    os.environ["NBTRAIN_DATA"] = home
    prepare.prepare(config)
    os._exit(0)

point = 1
while (status := prepared(f"killed {point}", point)) == signal.SIGKILL:
    assert prepared(f"killed {point}", 0) == 0
    point += 1
assert status == 0
print(point)
"""


@pytest.mark.slow
def test_kill_9_at_any_moment(make_config, tmp_path):
    """After kill -9 at any of many moments, the next prepare writes the same bytes."""
    answer = subprocess.run(
        [sys.executable, "-c", KILLED, make_config().model_dump_json()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert answer.returncode == 0, answer.stderr
    whole = int(answer.stdout)
    assert whole > 15
    expected = everything(tmp_path / f"killed {whole}")
    for point in range(1, whole):
        assert everything(tmp_path / f"killed {point}") == expected, point


STREAM = """
import json, re, sys
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.prepare.prepare import prepare
report = prepare(RunConfig.model_validate(json.loads(sys.argv[1])))
# Not ru_maxrss: that of a child begins with the peak of the process that started it.
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""


@pytest.mark.slow
def test_memory_does_not_follow_the_corpus(make_config, workspace):
    """80 MB of text need at most 20 MiB more memory than 10 MB, and less than 250 MiB in total."""
    line = "".join(
        chr(97 + (7 * place + place // 11) % 26) + " " * (place % 6 == 0) for place in range(20_000)
    )
    peaks = []
    for name, documents in (("few", 500), ("many", 4000)):
        with (workspace / f"{name}.jsonl").open("w") as stream:
            for number in range(documents):
                stream.write(json.dumps({"text": f"{number} {line[: 20_000 - number % 97]}"}) + "\n")
        config = make_config(
            tokenizer={"name": "stream", "train_bytes": 1_000_000},
            data={"name": name, "sources": [{"kind": "jsonl", "path": f"{name}.jsonl"}]},
        )
        answer = subprocess.run(
            [sys.executable, "-c", STREAM, config.model_dump_json()],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert answer.returncode == 0, answer.stderr
        peaks.append(int(answer.stdout) * 1024)
    assert peaks[1] - peaks[0] < 20 << 20
    assert peaks[1] < 250 << 20


def test_a_lock_on_a_folder_that_is_gone(workspace, caplog):
    """If a folder is removed while another process waits for its lock, that process locks the new folder."""
    folder = workspace / "held"
    order = []
    with locked_directory(folder):
        waiting = threading.Thread(target=lambda: order.append(_held(folder)))
        waiting.start()
        wait_until(lambda: "waiting for it to finish" in caplog.text, "nobody waits")
        folder.rmdir()
    waiting.join(timeout=600)
    assert order == [True]


def _held(folder):
    with locked_directory(folder):
        return folder.is_dir()


def test_prepare_opens_each_thing_once(make_config, monkeypatch):
    """The manifests, the tokenizer and the .bin/.idx are each read once, whether they are built or kept."""
    opened = Counter()

    def counted(owner, name):
        function = getattr(owner, name)

        def call(*given, **named):
            opened[name] += 1
            return function(*given, **named)

        monkeypatch.setattr(owner, name, call)

    counted(IndexedDataset, "__init__")
    counted(dataset_files, "read_manifest")
    counted(Tokenizer, "load")
    for _ in range(2):
        prepare(make_config())
        assert opened == {"__init__": 1, "read_manifest": 1, "load": 1}
        opened.clear()
