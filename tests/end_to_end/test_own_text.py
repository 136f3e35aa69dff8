"""Training on a user's text, from `nbtrain new` to a model that beats n-gram
counts, on three real texts (a soak).
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nbtrain as nb
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.workspace import tokenizer_dir

pytestmark = [pytest.mark.slow, pytest.mark.soak]

# file of ../shared/data/text, bytes of text, name of the run's file
TEXTS = {
    "books": ("books-30mb.jsonl.gz", 3_000_000, "books.jsonl"),
    "chinese": ("chinese-classics.jsonl.gz", 1_000_000, "poems.parquet"),
    "little": ("books-30mb.jsonl.gz", 300_000, "little.txt.gz"),
}
# The choices are for this machine's cores, and so is the number of threads.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}


def documents(path: Path, most_bytes: int) -> list[str]:
    """Return the first documents of a file of records, up to about this many bytes."""
    texts: list[str] = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            texts.append(json.loads(line)["text"])
            most_bytes -= len(texts[-1].encode())
            if most_bytes <= 0:
                return texts
    raise AssertionError(f"{path} holds less text")


def write(path: Path, texts: list[str]) -> None:
    """Write documents in the format that the file's suffix says."""
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"number": range(len(texts)), "content": texts}), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    else:
        path.write_bytes(gzip.compress("\n\n".join(texts).encode()))


def nbtrain(folder: Path, *words: str) -> str:
    """Run the command and return its output."""
    command = [sys.executable, "-m", "nbtrain.cli", *words]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("name", TEXTS)
def test_the_chosen_run_beats_counts_of_its_tokens(name, workspace, shared_data):
    """The proposed run's validation loss is below unigram and bigram loss, within the predicted time."""
    source, most_bytes, file = TEXTS[name]
    write(workspace / file, documents(shared_data / "text" / source, most_bytes))
    print(nbtrain(workspace, "new", name, "--text", file))
    assert len((workspace / f"{name}.yaml").read_text().splitlines()) <= 20
    for verb in (("check",), ("prepare",), ("plan",), ("submit", "--wait")):
        nbtrain(workspace, verb[0], name, *verb[1:])
    run = nb.open_run(name)
    loss, counts = run.summary()["last_validation_loss"], nb.baselines(run.config)
    record = JobRecord.read(run.job.job_json)
    minutes = (record.ended_at - record.started_at) / 60
    print(f"{name}: validation loss {loss:.4f} after {minutes:.1f} min; {counts}")
    assert loss < counts.bigram_nats < counts.unigram_nats
    assert tokenizer_dir(name).is_dir()
    assert nb.generate(run, ["The "], 20)[0].new_text


def test_demo_and_books_in_any_order(workspace, shared_data):
    """In any order, each run has a tokenizer of its own text, and the demo's tokens do not change."""
    texts = documents(shared_data / "text" / "books-30mb.jsonl.gz", 3_000_000)
    tokens = {}
    for order in (("books", "gpt-tiny"), ("gpt-tiny", "books")):
        folder = workspace / "-".join(order)
        folder.mkdir()
        write(folder / "books.jsonl", texts)
        (folder / "books.yaml").write_text(
            "extends: gpt-tiny\nname: books\ndata:\n  sources: [{kind: jsonl, path: books.jsonl}]\n"
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NBTRAIN_WORKSPACE", str(folder))
            for run in order:
                report = nb.prepare(run)
                tokens[*order, run] = (report.manifest.counts["tokens"], report.manifest.tokenizer_sha256)
    for run in ("books", "gpt-tiny"):
        assert tokens["books", "gpt-tiny", run] == tokens["gpt-tiny", "books", run]
    first = tokens["gpt-tiny", "books", "gpt-tiny"]
    print(f"gpt-tiny: {first[0]:,} tokens")
    assert first[1] != tokens["gpt-tiny", "books", "books"][1]


def test_the_notebook_of_own_text(workspace, shared_data):
    """11_own_text with `-p text PATH` shows the choices, the n-gram counts, and
    text from the trained model.
    """
    texts = documents(shared_data / "text" / "books-30mb.jsonl.gz", 300_000)
    write(workspace / "little.txt.gz", texts)
    parameters = ("-p", "text", "little.txt.gz", "-p", "name", "little")
    nbtrain(workspace, "notebook", "11_own_text", *parameters, "-o", "made.ipynb")
    shown = (workspace / "made.ipynb").read_text()
    for text in ("of English in", "unigram entropy", "SUCCEEDED", "The "):
        assert text in shown
