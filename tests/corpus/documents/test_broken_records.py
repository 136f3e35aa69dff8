"""Records that cannot be read: three are logged, and all are listed in a file next to the dataset."""

import json

import pytest

from nbtrain.base.errors import DataError
from nbtrain.config.sections.sources import JsonlSource
from nbtrain.corpus import records
from nbtrain.corpus.documents import broken_records, corpus
from nbtrain.corpus.documents.corpus import SourceCounts
from nbtrain.corpus.documents.extract import extracted
from nbtrain.corpus.records import Problem, Tally
from nbtrain.corpus.sources import base, jsonl
from nbtrain.corpus.sources import files as source_files
from nbtrain.corpus.sources.base import open_source
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.prepare.prepare import prepare


def part_bytes(monkeypatch, size):
    for module in (base, source_files, jsonl):
        monkeypatch.setattr(module, "PART_BYTES", size, raising=False)


def spoil(path):
    """Replace every third line by text that is not JSON; return the numbers of those lines."""
    lines = path.read_text().splitlines()
    broken = range(2, len(lines), 3)
    for index in broken:
        lines[index] = "{"
    path.write_text("\n".join(lines) + "\n")
    return [index + 1 for index in broken]


def tolerant(*paths):
    return {"sources": [{"kind": "jsonl", "path": path, "max_broken_fraction": None} for path in paths]}


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_all_are_listed(make_config, workspace, monkeypatch, parallel, caplog, num_workers):
    """All broken records are listed in order with their lines; a dataset without
    broken records has no list.
    """
    lines = spoil(workspace / "texts.jsonl")
    (workspace / "more.jsonl").write_text('["a"]\n{"text": "and a separate text"}\n')
    data = {**tolerant("texts.jsonl", "more.jsonl"), "num_prepare_workers": num_workers}
    part_bytes(monkeypatch, 2_000)
    prepare(make_config(data=data))
    path = DatasetFiles.named("small").broken_records
    listed = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(entry["path"], entry["line"]) for entry in listed] == [
        *(("texts.jsonl", line) for line in lines),
        ("more.jsonl", 1),
    ]
    assert all(entry["what"].startswith("not ") for entry in listed)
    messages = [record.getMessage() for record in caplog.records]
    assert messages[-1].startswith("37 more records were skipped")
    assert messages[-1].endswith(" data/dataset/small/broken-records.jsonl.")
    assert sum("the record is skipped" in line for line in messages) == 4
    many = path.read_bytes()
    part_bytes(monkeypatch, 1 << 20)
    prepare(make_config(data={**data, "num_prepare_workers": 1}), force=True)
    assert path.read_bytes() == many
    (workspace / "texts.jsonl").write_text('{"text": "nothing is broken"}\n')
    alone = {**tolerant("texts.jsonl"), "split": "1,0,0", "num_prepare_workers": 1}
    prepare(make_config(data=alone), force=True, through="encode")
    assert not path.exists()


def test_too_many_broken_records(make_config, workspace):
    """The error names the list of rejected records, and the list of an existing dataset is unchanged."""
    config = make_config(data={"sources": [{"kind": "jsonl", "path": "texts.jsonl"}]})
    dataset = dataset_of(config)
    texts = (workspace / "texts.jsonl").read_text()
    (workspace / "texts.jsonl").write_text(texts + "{\n")
    prepare(config)
    before = dataset.broken_records.read_bytes()
    lines = spoil(workspace / "texts.jsonl")
    with pytest.raises(DataError) as caught:
        prepare(config, force=True)
    path = "data/dataset/small/.encode/broken-records.jsonl"
    assert f"; and {len(lines) - 2:,} more; listed in {path}. Fix the records" in str(caught.value)
    assert len((workspace / path).read_text().splitlines()) == len(lines) + 1
    assert dataset.broken_records.read_bytes() == before


@pytest.mark.slow
def test_a_corpus_of_broken_records_alone(make_config, workspace):
    """If no record is readable, the broken ones are listed too, also for a source that is extracted first."""
    prepare(make_config())
    (workspace / "broken.jsonl").write_text("{\n" * 5)
    with pytest.raises(DataError) as caught:
        prepare(make_config(data={**tolerant("broken.jsonl"), "name": "broken"}))
    assert str(caught.value).endswith(
        "; and 2 more; listed in data/dataset/broken/.encode/broken-records.jsonl. Fix the records, or "
        "correct the source's key settings (such as text_key)."
    )


def test_the_list_ends(tmp_path, monkeypatch):
    """The list ends after a maximum number of records and gives the number omitted; so does a tally."""
    for module in (records, corpus, broken_records):
        monkeypatch.setattr(module, "LISTED_PROBLEMS", 4)
    counts = [SourceCounts(), SourceCounts()]
    for source in counts:
        tally = Tally(lines=10)
        for line in range(1, 7):
            tally.add_broken("a.jsonl", line, "x" * 1000)
        assert len(tally.problems) == 4
        for _ in range(2):
            source.absorb(tally, "a.jsonl")
        assert len(source.listed) == 4
    assert broken_records.write(tmp_path / "list", counts)
    *listed, last = [json.loads(line) for line in (tmp_path / "list").read_text().splitlines()]
    assert listed == [{"path": "a.jsonl", "line": line, "what": "x" * 797 + "..."} for line in range(1, 5)]
    assert last == {"not_listed": 20}


def test_names_that_are_no_text(tmp_path):
    """A file name that is not UTF-8 can be read back from the list."""
    problem = Problem("b\udce9.jsonl", None, "a \u202e b")
    broken_records.write(tmp_path / "list", [SourceCounts(broken=1, listed=[problem])])
    assert json.loads((tmp_path / "list").read_bytes()) == problem._asdict()
    assert not broken_records.write(tmp_path / "list", [SourceCounts()])
    assert not (tmp_path / "list").exists()


def test_what_an_extraction_has_met(workspace):
    """A page that broke during extraction is reported again when the extracted text is read."""
    (workspace / "a.jsonl").write_text('{"text": "one"}\n{\n{"text": "two"}\n')
    reader = open_source(JsonlSource(kind="jsonl", path="a.jsonl", max_broken_fraction=None))
    for action in ("made", "kept"):
        found, did, _ = extracted(reader, lambda total, folder: None)
        tally = Tally()
        assert (did, list(found.documents(tally))) == (action, ["one", "two"])
        assert (tally.records, tally.broken, tally.dropped) == (3, 1, {"broken_record": 1})
        assert [problem.line for problem in tally.problems] == [2]
    strict = open_source(JsonlSource(kind="jsonl", path="a.jsonl", name="strict"))
    with pytest.raises(DataError) as caught:
        extracted(strict, lambda total, folder: None)
    (path,) = (workspace / "data" / "corpus").glob("strict-*/broken-records.jsonl")
    assert f"; listed in {path.relative_to(workspace)}. Fix" in str(caught.value)


def test_an_extraction_goes_on_when_more_may_be_broken(workspace):
    """After max_broken_fraction is raised, the extracted parts are reused instead of
    reading the source again.
    """
    (workspace / "a.jsonl").write_text('{"text": "one"}\n{\n{"text": "two"}\n')
    source = {"kind": "jsonl", "path": "a.jsonl", "name": "pages"}
    with pytest.raises(DataError, match="more than max_broken_fraction"):
        extracted(open_source(JsonlSource(**source)), lambda total, folder: None)
    reader = open_source(JsonlSource(**source, max_broken_fraction=0.5))
    _, did, why = extracted(reader, lambda total, folder: None)
    assert did == "made" and why.endswith(": 2 documents; parts kept from an earlier extraction: 1")
    assert len(list((workspace / "data" / "corpus").iterdir())) == 1


def test_the_lock_stays_when_an_extraction_is_made_anew(workspace):
    """A rebuilt extraction keeps its lock file; on NFS a new one would let two processes write at once."""
    (workspace / "a.jsonl").write_text('{"text": "one"}\n')
    reader = open_source(JsonlSource(kind="jsonl", path="a.jsonl"))
    found, _, _ = extracted(reader, lambda total, folder: None)
    (found.folder / ".lock").touch()
    lock = (found.folder / ".lock").stat().st_ino
    assert extracted(reader, lambda total, folder: None, force=True)[1] == "made"
    assert (found.folder / ".lock").stat().st_ino == lock
    reader.fingerprint = iter([{"files": {}}, {"files": {"a.jsonl": [1, 1]}}]).__next__
    with pytest.raises(DataError, match="changed during reading"):
        extracted(reader, lambda total, folder: (folder / ".lock").touch())
    assert [path.name for path in (workspace / "data" / "corpus").glob("*/*") if path.name == ".lock"] == [
        ".lock"
    ] * 2
