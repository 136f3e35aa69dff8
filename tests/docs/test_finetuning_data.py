"""The run on docs/finetuning-data.md is prepared from the page's files and
trains on the tokens that it marks.
"""

import itertools
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.config.load import load
from nbtrain.corpus.sources.base import open_source
from nbtrain.corpus.sources.keys import RecordNotes
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.dataset.samples.packed_dataset import build_split
from tests.dataset.dataset_maker import make_tokenizer

REPOSITORY = Path(__file__).parents[2]
FILES = ("questions.jsonl", "tasks.json", "conversations.jsonl")


@pytest.fixture(scope="module")
def blocks():
    """Return the page's code blocks in order, by language."""
    page = (REPOSITORY / "docs" / "finetuning-data.md").read_text()
    found: dict[str, list[str]] = {}
    for language, text in re.findall(r"^```(\w+)\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL):
        found.setdefault(language, []).append(text)
    return found


@pytest.fixture(scope="module")
def prepared(blocks, tmp_path_factory):
    """Prepare the page's run on the page's files, with the demo's model; return
    (config, files, tokenizer).
    """
    workspace = tmp_path_factory.mktemp("page")
    for name, text in zip(FILES, blocks["json"], strict=True):
        (workspace / name).write_text(text + "\n")
    (workspace / "run.yaml").write_text("extends: gpt-tiny\nname: page\n" + blocks["yaml"][0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBTRAIN_WORKSPACE", str(workspace))
        patch.delenv("NBTRAIN_OUTPUT", raising=False)
        patch.delenv("NBTRAIN_DATA", raising=False)
        # Training that reads the few records tens of times, not hundreds.
        patch.setattr("nbtrain.dataset.samples.packed_index.LEAST_PASS_SAMPLES", 20)
        config = load(
            workspace / "run.yaml",
            {
                "tokenizer.name": "page",
                "tokenizer.vocab_size": 400,
                "data.split": "1,0,0",
                "data.num_prepare_workers": 1,
                "evaluation.eval_iters": 0,
                "model.seq_length": 128,
                "batch.train_tokens": 40_960,
                "lr_schedule.lr_warmup_tokens": 2_048,
            },
        )
        prepare(config)
        return config, dataset_of(config), Tokenizer.load(tokenizer_dir(config.tokenizer.name))


def shown(tokenizer: Tokenizer, ids: np.ndarray, learnt: np.ndarray) -> str:
    """Return the text of a sequence with its unmasked tokens between [[ and ]]."""
    text = ""
    for is_learnt, group in itertools.groupby(zip(ids, learnt), key=lambda pair: bool(pair[1])):
        tokens = [int(token) for token, _ in group]
        decoded = tokenizer.decode(tokens).replace("<|endoftext|>", "<EOD>")
        text += f"[[{decoded}]]" if is_learnt else decoded
    return text


def test_the_page_shows_what_is_learnt(prepared, blocks):
    """Every example on the page, read back from .bin and its loss mask, has the text
    and marks that are shown.
    """
    _, files_, tokenizer = prepared
    indexed = IndexedDataset(files_.prefix)
    mask = files_.open_loss_mask(indexed)
    texts = [shown(tokenizer, indexed[place], mask[place]) for place in range(len(indexed))]
    assert texts == blocks["text"][: len(indexed)]


def test_the_pages_templates_for_tools(blocks, tmp_path):
    """The page's tool templates are Qwen's: tools end the system message, and
    reasoning and call are in the answer.
    """
    (tmp_path / "run.yaml").write_text("extends: gpt-tiny\nname: page\n" + blocks["yaml"][1])
    (source,) = load(tmp_path / "run.yaml").data.sources
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    answer = {"role": "assistant", "content": "", "reasoning_content": "so", "tool_calls": [call]}
    record = {"messages": [{"role": "user", "content": "q"}, answer], "tools": [{"name": "f"}], "system": "s"}
    (prompt, _), (said, is_learnt) = open_source(source).example(record, RecordNotes()).pieces
    tools = '# Tools\n\n<tools>\n{"name": "f"}\n</tools>'
    assert prompt == (
        f"<|im_start|>system\ns\n\n{tools}<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    )
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert said == f"<think>\nso\n</think>\n\n{call}<|im_end|>\n" and is_learnt


def test_the_pages_run_is_packed_and_mixed_as_it_says(prepared):
    """Packing and mixing match the page: in two epochs, questions occur twice, tasks
    once, conversations 4 times.
    """
    config, files_, _ = prepared
    dataset = build_split(files_.open(), config, "train", 1, 1)
    assert dataset.dataset_names == ("questions", "tasks", "conversations")
    assert [source.weight for source in dataset.sources] == [1.0, 0.5, 2.0]
    index = dataset._pass(0)
    items = index.items[: index.offsets[index.epoch_ends[1]]]
    assert np.bincount(dataset.pieces.rows[items, 0]).tolist() == [2, 1, 1, 4, 4]


def test_the_examples_are_those_of_their_program(repository, monkeypatch):
    """make.py writes the example files that are next to it, and no held-out
    question is a training example.
    """
    folder = repository / "examples/megatron-gpt/finetuning/data"
    texts = runpy.run_path(str(folder / "make.py"))["made"]()
    assert set(texts) == {path.name for path in folder.iterdir()} - {"make.py", "__pycache__"}
    assert {name: (folder / name).read_text() for name in texts} == texts
    for name, text in texts.items():
        literals = re.findall(r"[Oo]f (.*?)\?|\"input\": (.*?), \"output\"", text)
        assert len(literals) > 7
        assert {"7" in one for pair in literals for one in pair if one} == {
            name in ("held-out.jsonl", "asked.jsonl")
        }


def test_the_example_run_is_prepared(workspace, repository):
    """The run in examples/megatron-gpt/finetuning/ loads, and all examples of its
    files are read and packed.
    """
    folder = "examples/megatron-gpt/finetuning"
    (workspace / "examples" / "megatron-gpt").mkdir(parents=True)
    (workspace / folder).symlink_to(repository / folder)
    config = load(repository / folder / "gpt-tiny-instructions.yaml")
    assert (config.name, config.init_from) == ("gpt-tiny-instructions", "gpt-tiny")
    with pytest.raises(DataError) as refused:
        prepare(config)
    assert str(refused.value).endswith(
        "tokenizer.name = python-docs-1k: data/tokenizer/python-docs-1k does not exist, but the weights from "
        "init_from (gpt-tiny) are only valid for the ids of their own tokenizer. Prepare the data of the run "
        "that they come from first, or set tokenizer.path to their tokenizer."
    )
    make_tokenizer(config.tokenizer.name, ["What does it return? The number of items of a list."])
    prepare(config)
    files_ = dataset_of(config)
    opened = files_.open(config.tokenizer.vocab_size)
    manifest = opened.manifest
    assert [(source["name"], source["documents"]) for source in manifest.sources] == [
        ("questions", 200),
        ("tasks", 60),
        ("conversations", 400),
    ]
    assert manifest.counts["dropped"] == {}
    for split, documents in (("train", 594), ("valid", 66)):
        dataset = build_split(opened, config, split, 1, 1)
        assert (dataset.num_documents, len(dataset.dataset_names)) == (documents, 3)
