"""Survey of a user's text: which sources read it, how much there is, and its language."""
# ruff: noqa: RUF001  (words of other scripts)

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from nbtrain.base.errors import DataError
from nbtrain.base.text import amounts
from nbtrain.corpus.sources.record_kind import source_of, text_key
from nbtrain.corpus.survey import survey as module
from nbtrain.corpus.survey.language import language_of
from nbtrain.corpus.survey.survey import survey

ENGLISH = "The captain of the ship was not in his cabin, and the crew had to wait for the end of the storm. "
TALK = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]}


def lines(path: Path, records) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def corpus(workspace):
    """Create corpus/ with two kinds of text and an image."""
    folder = workspace / "corpus"
    folder.mkdir()
    lines(folder / "a.jsonl", [{"id": n, "content": f"{ENGLISH} {n}"} for n in range(300)])
    (folder / "b.jsonl.gz").write_bytes(
        gzip.compress((folder / "a.jsonl").read_bytes().replace(b"ship", b"boat"))
    )
    (folder / "notes.txt").write_text(ENGLISH)
    (folder / "cover.png").write_bytes(b"\x89PNG\0\0")
    return folder


def test_progress_ends_at_the_size_of_the_files(workspace, capsys):
    """Examples are more text in their template, and records less, than their file has bytes; a compressed
    file has no total.
    """
    examples, records, packed = (workspace / name for name in ("sums.jsonl", "text.jsonl", "text.jsonl.gz"))
    lines(examples, [{"instruction": f"{n} + 1", "output": f"{n + 1}"} for n in range(400)])
    lines(records, [{"id": n, "text": f"{n}"} for n in range(400)])
    packed.write_bytes(gzip.compress(records.read_bytes()))
    for path, is_known in ((examples, True), (records, True), (packed, False)):
        found = survey([path.name])
        size = path.stat().st_size
        assert (found.num_bytes > size) is (path == examples)
        amount = amounts.count_of(size, size) if is_known else amounts.count(found.num_bytes)
        assert capsys.readouterr().err.startswith(f"reading the text: {amount}B, ")


def refusal(*paths):
    with pytest.raises(DataError) as caught:
        survey(paths)
    return str(caught.value)


def test_a_folder_of_several_kinds(corpus):
    """Each kind of file becomes a source with its key; other files are listed;
    repeated documents count once.
    """
    lines(corpus / "again.jsonl", [{"content": f"{ENGLISH} {n}"} for n in range(10)])
    found = survey(["corpus"])
    assert found.sources == [
        {"kind": "text", "path": "corpus"},
        {"kind": "jsonl", "path": "corpus", "text_key": "content"},
    ]
    assert (found.documents, found.files, found.is_exact) == (601, 4, True)
    texts = [f"{ENGLISH} {n}" for n in range(300)]
    expected = 2 * sum(len(text) for text in texts) + len(ENGLISH)
    assert found.num_bytes == expected
    assert found.language == "English"
    assert found.notes == ["skipped because not text: corpus/cover.png", "skipped: 10 repeated documents"]
    assert found.words().endswith("of English in 601 documents, 4 files")


def test_held_out_files_are_not_trained_on(workspace):
    """If a folder is a downloaded data set, its test split and README.md are excluded from training."""
    (workspace / "set").mkdir()
    for split in ("train", "test"):
        lines(workspace / "set" / f"{split}.jsonl", [{"text": f"{ENGLISH} {split} {n}"} for n in range(30)])
    (workspace / "set" / "README.md").write_text("A dataset card")
    found = survey(["set"])
    assert found.sources == [{"kind": "jsonl", "path": "set", "split": "train"}]
    assert found.documents == 30
    assert "only the train files are read" in found.notes[0]
    (workspace / "set" / "story.md").write_text(ENGLISH)
    assert survey(["set"]).kinds == {"text", "jsonl"}


def test_a_book_is_cut(workspace):
    """A single book is split into documents, so that training and validation both get some."""
    paragraphs = [f"{number} {ENGLISH * 4}\n\n" for number in range(1000)]
    (workspace / "book").write_text("".join(paragraphs))
    found = survey([workspace / "book"])
    assert found.sources == [{"kind": "text", "path": "book", "document_bytes": 1024}]
    assert 200 <= found.documents <= 500
    (workspace / "poems").mkdir()
    for number in range(200):
        (workspace / "poems" / f"{number}.txt").write_text(paragraphs[number])
    assert survey(["poems"]).sources == [{"kind": "text", "path": "poems"}]


def test_patterns_and_many_files(workspace, corpus):
    """A pattern means the files that match; many files become their folder with
    exclusions, or are refused.
    """
    assert survey(["corpus/*.jsonl"]).sources == [
        {"kind": "jsonl", "path": "corpus/a.jsonl", "text_key": "content"}
    ]
    assert "no file or folder matches" in refusal("corpus/*.csv")
    (workspace / "parts").mkdir()
    parts = [lines(workspace / "parts" / f"{n}.jsonl", [{"text": f"{ENGLISH} {n}"}]) for n in range(11)]
    assert survey(parts).sources == [{"kind": "jsonl", "path": "parts"}]
    assert survey(parts[:10]).sources == [{"kind": "jsonl", "path": "parts", "exclude": ["10.jsonl"]}]
    for name in ("old/a.txt", "notes.txt", "valid.md", *(f"{n}.md" for n in range(6))):
        path = workspace / "mixed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{ENGLISH}\n\n{name}\n\n" * 20)
    (found,) = survey(["mixed/*.md"]).sources
    assert (found["path"], found["split"], found["exclude"]) == ("mixed", "all", ["*.txt", "old"])
    assert "but at most 4 entries are written to a run YAML" in refusal(*parts[::2])


def test_amounts_of_much_text_are_estimated(workspace, monkeypatch):
    """Parts are read until the sample is large enough; the rest is estimated in proportion."""
    monkeypatch.setattr(module, "READ_BYTES", 100_000)
    monkeypatch.setattr("nbtrain.corpus.sources.base.PART_BYTES", 50_000)
    lines(workspace / "a.jsonl", [{"text": f"{ENGLISH} {n}"} for n in range(10_000)])
    found = survey(["a.jsonl"])
    assert not found.is_exact
    assert found.documents == pytest.approx(10_000, rel=0.05)
    assert found.num_bytes == pytest.approx(sum(len(f"{ENGLISH} {n}") for n in range(10_000)), rel=0.05)
    assert found.words().startswith("about ")


@pytest.mark.parametrize(
    ("record", "source"),
    [
        ({"text": "a", "id": 3}, {"kind": "jsonl"}),
        ({"id": "x", "body": "a long text"}, {"kind": "jsonl", "text_key": "body"}),
        ({"id": "x", "abstract": "a long text"}, {"kind": "jsonl", "text_key": "abstract"}),
        (TALK, {"kind": "chat"}),
        ({"conversations": [{"from": "human", "value": "a"}]}, {"kind": "chat"}),
        ({"prompt": {"role": "user", "text": "a", "replies": []}}, {"kind": "chat"}),
        ({"message_id": "1", "parent_id": None, "role": "prompter", "text": "a"}, {"kind": "chat"}),
        ({"instruction": "a", "input": "", "output": "b"}, {"kind": "alpaca"}),
        ({"prompt": "a", "completion": "b"}, {"kind": "prompt-completion"}),
        (
            {"question": "a", "answer": "b"},
            {"kind": "prompt-completion", "prompt_key": "question", "completion_key": "answer"},
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, {"kind": "preference"}),
        ({"input_ids": [1, 2], "labels": [1, -100]}, {"kind": "tokens", "labels_key": "labels"}),
        (
            {"instruction": "a", "context": "b", "response": "c"},
            {"kind": "alpaca", "output_key": "response", "input_key": "context"},
        ),
        # What is asked about belongs in the prompt, and this kind does not put it there.
        ({"question": "a", "context": "b", "answer": "c"}, None),
        ({"messages": json.dumps(TALK["messages"])}, {"kind": "chat"}),
        (
            {"messages": "text", "conversation": TALK["messages"]},
            {"kind": "chat", "messages_key": "conversation"},
        ),
        ({"prompt": "a", "output": "b"}, {"kind": "prompt-completion", "completion_key": "output"}),
        ({"text": "a", "prompt": "b", "response": None}, {"kind": "jsonl"}),
        # Names that a text has for other reasons.
        ({"text": "a", "source": "web", "target": "train"}, {"kind": "jsonl"}),
        ({"body": "a", "winner": "b", "loser": "c"}, {"kind": "jsonl", "text_key": "body"}),
        ({"text": "a", "items": ["b"], "ids": [3]}, {"kind": "jsonl"}),
        (
            {"abstract": "a text", "source": "web", "target": "x", "ids": [3]},
            {"kind": "jsonl", "text_key": "abstract"},
        ),
        (
            {"prompt": "a long one", "winner": "b", "loser": "c"},
            {"kind": "preference", "chosen_key": "winner", "rejected_key": "loser"},
        ),
        ({"numbers": [1]}, None),
    ],
)
def test_the_kind_of_records(record, source):
    """The kind of source is derived from the keys and values of the records."""
    assert source_of([record] * 3) == source


def test_the_key_of_text_in_most_records():
    """A key that most records have is preferred to a rarer key with longer text."""
    records = [{"content": "short", "markup": "much longer text"}] * 19 + [{"markup": "x"}]
    assert source_of(records) == {"kind": "jsonl", "text_key": "content"}
    assert text_key([{"markup": "much longer text", "title": "t"}]) == "markup"


def test_files_of_columns_and_datasets(workspace):
    """Parquet files and save_to_disk folders are recognised, with their text key and training split."""
    table = pa.table({"title": ["t"] * 30, "content": [f"{ENGLISH} {n}" for n in range(30)]})
    pyarrow.parquet.write_table(table, workspace / "a.parquet")
    assert survey(["a.parquet"]).sources == [{"kind": "parquet", "path": "a.parquet", "text_key": "content"}]
    for split in ("test", "train"):
        (workspace / "set" / split).mkdir(parents=True)
        path = workspace / "set" / split / "data.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
        (workspace / "set" / split / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    (workspace / "set" / "dataset_dict.json").write_text('{"splits": ["test", "train"]}')
    assert survey(["set"]).sources == [
        {"kind": "hf-dataset", "path": "set", "split": "train", "text_key": "content"}
    ]


def test_what_is_refused(workspace, corpus):
    """The error about unusable input says what the input is and what to do."""
    lines(workspace / "talks.jsonl", [TALK] * 30)
    assert "cannot be mixed in one run" in refusal("talks.jsonl", "corpus/a.jsonl")
    assert refusal("nowhere.txt").startswith("nowhere.txt: no such file or folder")
    assert "hf download org/name --repo-type dataset" in refusal("hf://datasets/org/name")
    (workspace / "b.pdf").write_bytes(b"%PDF")
    assert "pdftotext" in refusal("b.pdf")
    (workspace / "latin.txt").write_bytes("größer".encode("latin-1") * 1000)
    assert "the file is not UTF-8 text (byte 0xf6 at position 2)" in refusal("latin.txt")
    lines(workspace / "ids.jsonl", [{"input_ids": [1, 2, 3]}] * 30)
    assert "contains token ids" in refusal("ids.jsonl")
    lines(workspace / "odd.jsonl", [{"numbers": [1]}] * 3)
    assert "has the keys 'numbers'" in refusal("odd.jsonl")
    (workspace / "mixed").mkdir()
    lines(workspace / "mixed" / "a.jsonl", [{"text": "a"}])
    lines(workspace / "mixed" / "b.jsonl", [TALK])
    assert "records of several kinds: mixed/a.jsonl (jsonl) and mixed/b.jsonl (chat)" in refusal("mixed")
    (workspace / "none").mkdir()
    assert "the folder contains no text" in refusal("none")
    (workspace / "empty.txt").write_text("")
    assert "no usable text" in refusal("empty.txt")


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (ENGLISH, "English"),
        (
            "Der Kapitän war nicht in der Kajüte, und die Mannschaft wartete mit dem Boot auf ihn.",
            "German",
        ),
        ("春眠不覺曉，處處聞啼鳥。夜來風雨聲，花落知多少。", "Chinese"),
        ("吾輩は猫である。名前はまだ無い。どこで生れたか", "Japanese"),
        ("Он не был в каюте, и это было как в тот раз, когда она ждала его на берегу", "Russian"),
        ("Arma virumque cano Troiae qui primus ab oris", "Latin script"),
        ("12345 67890", ""),
    ],
)
def test_languages(text, language):
    """The language is derived from the script, or from common words if languages share the script."""
    assert language_of([text]) == language
