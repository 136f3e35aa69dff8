"""The records on docs/preferences.md are prepared and packed as the page says; invalid ones are reported."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.config.load import load
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.dataset.of_run import open_dataset
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.dataset.samples.packed_dataset import build_split as build_packed
from nbtrain.dataset.samples.preference_dataset import all_pairs, build_split
from nbtrain.dataset.views.baselines import baselines
from nbtrain.evaluation.perplexity import Perplexity
from nbtrain.planner.memory.estimate import estimate_memory
from nbtrain.planner.plan import plan
from tests.dataset.dataset_maker import make_tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "preferences.md"
TEXTS = ["What does the list give? A number, a text or a long word. " * 3] * 20
SMALL = {
    "name": "page",
    "init_from": "a-run",
    "dpo.beta": 0.1,
    "tokenizer.name": "page",
    "tokenizer.vocab_size": 300,
    "data.name": "page",
    "data.packing": "best_fit",
    "data.split": "1,0,0",
    "data.num_prepare_workers": 1,
    "evaluation.eval_iters": 0,
    "model.seq_length": 256,
    # Training that reads the few pairs tens of times, not hundreds.
    "batch.train_tokens": 40_960,
    "lr_schedule.lr_warmup_tokens": 2_048,
}


@pytest.fixture
def prepared(workspace, monkeypatch):
    """Return a function that prepares records; it returns (config, open dataset, tokenizer)."""
    monkeypatch.setattr("nbtrain.dataset.samples.packed_index.LEAST_PASS_SAMPLES", 20)
    make_tokenizer("page", TEXTS, 300)

    def make(records, **more):
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        (workspace / "pairs.jsonl").write_text("\n".join(lines) + "\n")
        source = {"kind": "preference", "path": "pairs.jsonl", "max_broken_fraction": None}
        config = load("gpt-tiny", {**SMALL, "data.sources": [source], **more})
        prepare(config)
        return config, open_dataset(config), Tokenizer.load(tokenizer_dir("page"))

    return make


def shown(tokenizer, ids, learnt):
    """Return the text with unmasked tokens in [[ ]]."""
    text = ""
    for is_learnt, group in itertools.groupby(zip(ids, learnt, strict=True), key=lambda pair: bool(pair[1])):
        part = tokenizer.decode([token for token, _ in group]).replace("<|endoftext|>", "<EOD>")
        text += f"[[{part}]]" if is_learnt else part
    return text


def test_the_records_of_the_page(prepared):
    """Each record on the page becomes one sequence with both answers and their ends.

    Only the parts in which the answers differ are unmasked.
    """
    (block,) = re.findall(r"^```json\n(.*?)\n```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    config, opened, tokenizer = prepared(block.splitlines())
    found = [
        shown(tokenizer, opened.indexed.get(number), opened.loss_mask.get(number)) for number in range(3)
    ]
    assert found == [
        "What does len([3, 4]) return?\n[[2, the number of items.<EOD>]]"
        "What does len([3, 4]) return?\n[[It depends.<EOD>]]",
        "<|user|>\nHow do I sort a list?\n<|assistant|>\n[[With sorted().\n<EOD>]]"
        "<|user|>\nHow do I sort a list?\n<|assistant|>\n[[You cannot.\n<EOD>]]",
        "<|user|>\nWhat is {}?\n<|assistant|>\n[[An empty dict.\n<EOD>]]"
        "<|user|>\nWhat is {}?\n<|assistant|>\n[[A set.\n<EOD>]]",
    ]
    dataset = build_split(opened, config, "train", 1, 1)
    seen = []
    for position in range(dataset.once()):
        sample = dataset.sample(position)
        bounds = sorted(set(sample.cu_seqlens.tolist()))
        for segment, (first, last) in enumerate(itertools.pairwise(bounds)):
            if segment == 2 * len(sample.pairs):
                assert not sample.loss_mask[first:].any()
                continue
            assert sample.answers[first:last].tolist() == [segment] * (last - first)
            assert sample.position_ids[first:last].tolist() == list(range(last - first))
            text = shown(tokenizer, sample.labels[first:last], sample.loss_mask[first:last])
            seen.append((int(sample.pairs[segment // 2]), segment % 2, text.partition("[[")[2]))
    assert sorted(seen) == sorted(
        (number, side, part + "]]" * (not part.endswith("]]")))
        for number, text in enumerate(found)
        for side, part in enumerate(re.findall(r"\[\[(.*?\]\])", text, re.DOTALL))
    )


def test_a_reference_is_read_by_pair(prepared):
    """Reference log-probabilities are read by pair, in any order of the samples."""
    records = [{"prompt": f"q{n}", "chosen": "a" * (n + 1), "rejected": "b"} for n in range(30)]
    config, opened, _ = prepared(records)
    dataset = build_split(opened, config, "train", 1, 1)
    dataset.reference = np.arange(60, dtype=np.float32).reshape(30, 2)
    met = []
    for position in range(dataset.once()):
        sample = dataset.sample(position)
        assert sample.reference[:, 0].tolist() == (2 * sample.pairs).tolist()
        met += sample.pairs.tolist()
    assert sorted(met) == list(range(30))
    once = all_pairs(opened, config)
    assert sorted(pair for n in range(once.once()) for pair in once.sample(n).pairs) == list(range(30))


def test_long_pairs_are_left_out_and_counted(prepared, caplog):
    records = [{"prompt": "q", "chosen": "long 1 word 2 " * 60, "rejected": "b"}]
    with pytest.raises(DataError, match=r"no pair of .* fits into model.seq_length = 256 positions"):
        prepared(records)
    caplog.clear()
    config, opened, _ = prepared(
        [*records, {"prompt": "q", "chosen": "a", "rejected": "b"}], **{"data.name": "other"}
    )
    assert "skipped 1 pair longer than model.seq_length = 256 positions" in caplog.text
    assert build_split(opened, config, "train", 1, 1).counts["examples"] == 1


def test_broken_records_are_named(prepared, workspace):
    """An invalid record is reported with the file, the line and the problem."""
    good = {"prompt": "q", "chosen": "a", "rejected": "b"}
    said = {"role": "assistant", "content": "a"}
    _, opened, _ = prepared(
        [
            good,
            {"prompt": "q", "chosen": "a"},
            {"prompt": "q", "chosen": "a", "rejected": [said]},
            {"prompt": "q", "chosen": "a", "rejected": "a"},
            {"prompt": "q", "chosen": "a", "rejected": " "},
            {"chosen": "a", "rejected": "b"},
            {"prompt": [said], "chosen": [said], "rejected": [said, {"role": "user", "content": "b"}]},
            {"prompt": 3, "chosen": [said], "rejected": [{**said, "content": "b"}]},
            "not json",
        ]
    )
    assert opened.manifest.counts["documents"] == 1
    listed = [json.loads(line) for line in opened.files.broken_records.read_text().splitlines()]
    found = [f"{one['path']}:{one['line']}: {one['what']}" for one in listed]
    assert found == [
        "pairs.jsonl:2: no key 'rejected' among 'prompt', 'chosen'",
        "pairs.jsonl:3: 'chosen' is text and 'rejected' is a list; both must be text, or both must be "
        "messages",
        "pairs.jsonl:4: 'chosen' and 'rejected' render to the same text, so neither is preferred",
        "pairs.jsonl:5: 'rejected' is empty",
        "pairs.jsonl:6: no key 'prompt' among 'chosen', 'rejected', and the two answers do not begin with a "
        "common prompt",
        "pairs.jsonl:7: 'chosen' has no message with the role assistant after the messages that both answers "
        "share",
        "pairs.jsonl:8: 'prompt' is neither text nor messages but a number",
        found[-1],
    ]
    assert "not JSON" in found[-1]


def test_whole_conversations_beside_a_prompt_of_text(prepared):
    """Complete conversations next to a text prompt, as in UltraFeedback, have the question once.

    Earlier answers are masked.
    """
    asked, other = ({"role": "user", "content": text} for text in ("one", "two"))
    answers = [{"role": "assistant", "content": text} for text in ("first", "good", "bad")]
    begin = [asked, answers[0], other]
    record = {"prompt": "one", "chosen": [*begin, answers[1]], "rejected": [*begin, answers[2]]}
    short = {"prompt": "one", "chosen": [answers[1]], "rejected": [answers[2]]}
    _, opened, tokenizer = prepared([record, short])
    texts = [
        shown(tokenizer, opened.indexed.get(number), opened.loss_mask.get(number)) for number in range(2)
    ]
    before = "<|user|>\none\n<|assistant|>\nfirst\n<|user|>\ntwo\n<|assistant|>\n"
    assert texts[0] == f"{before}[[good\n<EOD>]]{before}[[bad\n<EOD>]]"
    plain = "<|user|>\none\n<|assistant|>\n"
    assert texts[1] == f"{plain}[[good\n<EOD>]]{plain}[[bad\n<EOD>]]"


def test_other_data_is_no_pairs(prepared, workspace):
    """A text dataset is refused as preference pairs, and preference pairs are refused as text."""
    config, opened, tokenizer = prepared([{"prompt": "q", "chosen": "a", "rejected": "b"}])
    with pytest.raises(DataError, match="perplexity is not defined"):
        Perplexity(config, tokenizer, opened.files, "all", True)
    assert "the loss of preference pairs" in str(baselines(config, too_small="explain"))
    plain = build_packed(opened, config, "train", 1, 1)
    assert plain is not None
    manifest = json.loads(opened.files.manifest_json.read_text())
    manifest["sources"][0]["kind"] = "chat"
    opened.files.manifest_json.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="was not made from sources of kind: preference"):
        build_split(open_dataset(config), config, "train", 1, 1)


def test_the_example_is_planned_as_its_fine_tuning():
    """The example's memory is planned as for its fine-tuning, with four products of
    the output layer, not three.
    """
    config = load("gpt-tiny-preferences")
    tuned = load("gpt-tiny-instructions", {"model.hidden_dropout": 0.0, "model.attention_dropout": 0.0})
    assert estimate_memory(config).parts == estimate_memory(tuned).parts
    planned = plan(config, use_measured=False)
    assert "instead of a second model" in planned.sections()["Model"]["preferences"]


@pytest.mark.parametrize("count", [36])
def test_the_pairs_of_the_example(count, workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    (workspace / "examples").symlink_to(PAGE.parents[1] / "examples")
    make_tokenizer("page", TEXTS, 300)
    config = load(
        "gpt-tiny-preferences",
        {"tokenizer.name": "page", "tokenizer.vocab_size": 300, "data.num_prepare_workers": 1},
    )
    prepare(config)
    assert all_pairs(open_dataset(config), config).counts["examples"] == count
