"""Small runs on small texts, each in a separate workspace, and megatron-core in a separate process."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.sources import base
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.manifest import DatasetManifest
from nbtrain.dataset.prepare import workers
from tests.dataset.indexed_writer import IndexedWriter

WORDS = ["the", "model", "reads", "a", "text", "and", "is", "cut", "into", "tokens", "one", "by"]


# megatron-core takes seconds to import, so one process serves all tests: a script sets `answer` from `given`.
MEGATRON_CORE = """
import json, os, sys, traceback, warnings
warnings.simplefilter("ignore")
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import numpy, torch
from megatron.core.datasets import helpers, indexed_dataset
for line in sys.stdin:
    ask = json.loads(line)
    names = {"given": ask["given"], "answer": None}
    try:
        exec(ask["script"], names)
        result = {"answer": names["answer"]}
    except Exception:
        result = {"error": traceback.format_exc()}
    print(json.dumps(result), file=answers, flush=True)
"""


def content(folder):
    """Return {name: bytes} of a dataset's file pairs."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".bin", ".idx")}


def refuses(message, call, *arguments, **keywords):
    """Check that the call raises a DataError with exactly this message."""
    with pytest.raises(DataError) as caught:
        call(*arguments, **keywords)
    assert str(caught.value) == message


@pytest.fixture
def small_parts(monkeypatch):
    """Set the size of parts to 2 kB, so that a test's texts span several parts."""
    monkeypatch.setattr(base, "PART_BYTES", 2_000)


@pytest.fixture
def prefix(workspace):
    (workspace / "data").mkdir()
    return workspace / "data" / "text_document"


@pytest.fixture(scope="session")
def megatron_core(tmp_path_factory) -> Iterator[Callable[..., Any]]:
    """Return a function that runs a script with megatron-core and returns the script's `answer`.

    megatron-core is not a dependency: without it these tests skip, unless NBTRAIN_REQUIRE_MEGATRON_CORE=1
    makes them fail.
    """
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
        reason = "megatron-core is not installed (pip install --no-deps megatron-core)"
        if os.environ.get("NBTRAIN_REQUIRE_MEGATRON_CORE"):
            pytest.fail(f"{reason}, and NBTRAIN_REQUIRE_MEGATRON_CORE is set")
        pytest.skip(reason)
    log = tmp_path_factory.mktemp("megatron-core") / "log.txt"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", MEGATRON_CORE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):

        def run(script: str, given: Any) -> Any:
            process.stdin.write(json.dumps({"script": script, "given": given}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, log.read_text()[-3000:]
            result = json.loads(line)
            assert "error" not in result, result["error"]
            return result["answer"]

        yield run
        process.kill()  # its regular shutdown takes seconds


@pytest.fixture
def texts() -> list[str]:
    """Return 120 different documents of 5 to 60 words."""
    return [
        " ".join(
            WORDS[(number * 7 + place * (number % 5 + 1)) % len(WORDS)] for place in range(5 + number % 56)
        )
        + f" ({number})."
        for number in range(120)
    ]


@pytest.fixture
def make_config(workspace, texts):
    """Return a function that makes a RunConfig over the workspace's texts.jsonl from changed sections."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (workspace / "texts.jsonl").write_text(lines)

    def make(**sections) -> RunConfig:
        base = {
            "name": "small",
            "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "seq_length": 16},
            "tokenizer": {"name": "small", "vocab_size": 300},
            "data": {
                "name": "small",
                "sources": [{"kind": "jsonl", "path": "texts.jsonl"}],
                "split": "70,20,10",
            },
            "batch": {"micro_batch_size": 2, "global_batch_size": 4, "train_tokens": 16 * 4 * 30},
            "lr_schedule": {"lr": 1e-3},
            "evaluation": {"eval_iters": 2},
        }
        for section, values in sections.items():
            base[section] = {**base[section], **values}
        return RunConfig.model_validate(base)

    return make


@pytest.fixture
def parallel(monkeypatch):
    """Let data.num_prepare_workers processes prepare texts of any size."""
    for name in ("PARALLEL_FROM_BYTES", "PARALLEL_FROM_BYTES_WHEN_SLOW"):
        monkeypatch.setattr(workers, name, 0)


@pytest.fixture
def write_dataset(workspace) -> Callable[..., DatasetFiles]:
    """Return a function that writes a dataset as prepare does: random documents that end in token 0."""

    def write(
        name: str = "small",
        documents: int = 120,
        seed: int = 0,
        tokens: tuple[int, int] = (5, 60),
        **manifest,
    ) -> DatasetFiles:
        target = DatasetFiles.named(name)
        target.directory.mkdir(parents=True)
        generator = np.random.default_rng(seed)
        with IndexedWriter(target.prefix, 300, eod_id=0) as writer:
            for _ in range(documents):
                writer.add_document(generator.integers(1, 300, size=generator.integers(*tokens)))
        written = writer.written
        counts = {
            "documents": written.num_documents,
            "tokens": written.num_tokens,
            "bytes": None,
            "dropped": {},
        }
        values = {
            "json_key": "text",
            "sources": [],
            "counts": counts,
            "vocab_size": 300,
            "dtype": writer.dtype.name,
            "eod_id": 0,
            "tokenizer_sha256": "0" * 64,
            "files": written.files,
            **manifest,
        }
        files.write_json(target.manifest_json, DatasetManifest(**values).to_dict())
        return target

    return write
