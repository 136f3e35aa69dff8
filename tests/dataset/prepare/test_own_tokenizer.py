"""The tokenizer of a dataset is its own or the one that the YAML names, whatever was prepared before."""

import json
import shutil

import pytest

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import dataset_dir, tokenizer_dir
from nbtrain.config.load import load
from nbtrain.corpus.tokenizer.folder import read_manifest
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.dataset.views.card import data_card
from nbtrain.planner.plan import plan

MODEL = "{num_layers: 1, hidden_size: 8, num_attention_heads: 1, seq_length: 16}"
DEMO = f"""\
name: demo
model: {MODEL}
tokenizer: {{vocab_size: 300}}
data:
  name: demo-300
  sources: [{{kind: jsonl, path: demo.jsonl}}]
  split: 8,1,1
batch: {{micro_batch_size: 1, global_batch_size: 1, train_tokens: 160}}
lr_schedule: {{lr: 1.0e-3}}
evaluation: {{eval_iters: 1}}
"""
BOOKS = "extends: demo.yaml\nname: books\ndata:\n  sources: [{kind: jsonl, path: books.jsonl}]\n"


@pytest.fixture
def files(workspace):
    """Write demo.yaml, and books.yaml which extends it, over two texts with different words."""
    for name, words in (("demo", "def return self import"), ("books", "whale captain harpoon ocean")):
        pairs = [
            f"{word} {other} {number}" for number in range(40) for word in words.split() for other in "ab"
        ]
        lines = [json.dumps({"text": " ".join(pairs[start : start + 8])}) for start in range(0, 320, 8)]
        (workspace / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (workspace / "demo.yaml").write_text(DEMO)
    (workspace / "books.yaml").write_text(BOOKS)
    return workspace


def prepared(run, *overrides, **keywords):
    """Prepare a run; return its tokens and the SHA-256 of its tokenizer."""
    config = load(run, list(overrides))
    prepare(config, **keywords)
    manifest = dataset_of(config).manifest()
    return manifest.counts["tokens"], manifest.tokenizer_sha256


def refusal(run, *overrides, **keywords):
    with pytest.raises(DataError) as caught:
        prepare(load(run, list(overrides)), **keywords)
    return str(caught.value)


@pytest.mark.slow
def test_the_demo_does_not_depend_on_what_was_prepared_before(files, monkeypatch):
    """Runs that extend the demo with other text, vocabulary or cleaning do not change the demo's dataset."""
    monkeypatch.setenv("NBTRAIN_DATA", str(files / "first"))
    demo, books = prepared("demo.yaml"), prepared("books.yaml")
    assert demo[1] != books[1]
    monkeypatch.setenv("NBTRAIN_DATA", str(files / "second"))
    assert prepared("books.yaml") == books
    for override in (
        "tokenizer.vocab_size=290",
        "data.cleaning.min_bytes=9",
        "data.sources.0.path=books.jsonl",
    ):
        prepared("demo.yaml", override)
    assert prepared("demo.yaml") == demo
    assert prepared("books.yaml") == books


def test_a_tokenizer_of_other_text_is_used_only_if_the_yaml_names_it(files):
    """A tokenizer trained on other text is used, and reported, only if the YAML names
    it; otherwise it is refused.
    """
    prepared("demo.yaml")
    named = ["data.sources.0.path=books.jsonl", "tokenizer.name=demo-300", "data.name=books"]
    config = load("demo.yaml", named)
    step = prepare(config).steps[0]
    assert step.reason == (
        "data/tokenizer/demo-300: 300 entries, trained on other sources; selected by override "
        "tokenizer.name=demo-300: tokenizer.name"
    )
    (finding,) = [one for one in plan(config).findings if one.rule == "tokenizer_is_of_this_text"]
    assert finding.message.startswith("data/tokenizer/demo-300 was trained on other text (demo.jsonl). ")
    for target in (config, "books"):
        (warning,) = [text for text in data_card(target).warnings if "other text" in text]
        assert warning.startswith("data/tokenizer/demo-300 was trained on other text (demo.jsonl): ")
    assert not data_card(load("demo.yaml")).warnings
    assert not [one for one in plan(load("demo.yaml")).findings if one.rule == "tokenizer_is_of_this_text"]
    # The file's own sources are changed.
    (files / "demo.yaml").write_text(DEMO.replace("demo.jsonl", "books.jsonl"))
    message = refusal("demo.yaml")
    assert message.startswith(
        "data/tokenizer/demo-300: the tokenizer was trained on other text: data.sources[0].path = "
        "'demo.jsonl' for the tokenizer, "
        "'books.jsonl' in this run. "
    )
    assert "set tokenizer.name: demo-300; or make it again" in message
    assert "(datasets encoded with it: books)" in refusal("demo.yaml", force=True)


def test_force_trains_a_changed_text_again(files):
    """With force, the tokenizer is trained again on a changed text, unless another dataset uses it."""
    _, before = prepared("demo.yaml")
    (files / "demo.yaml").write_text(DEMO.replace("demo.jsonl", "books.jsonl"))
    _, after = prepared("demo.yaml", force=True)
    assert before != after
    assert read_manifest(tokenizer_dir("demo-300"))["trained"]["sources"][0]["path"] == "books.jsonl"


def test_a_brought_tokenizer_is_named(files):
    """An imported tokenizer that has the dataset's name is used only if the YAML names it."""
    prepared("demo.yaml")
    tokenizer_dir("demo-300").rename(tokenizer_dir("books"))
    (tokenizer_dir("books") / "manifest.json").unlink()
    message = "data/tokenizer/books: the folder holds an imported tokenizer. This run does not set "
    assert refusal("books.yaml").startswith(message)
    prepared("books.yaml", "tokenizer.name=books")
    assert refusal("books.yaml", force=True).startswith(message)


def test_weights_keep_their_tokenizer(files):
    """A run with init_from uses its model's tokenizer for any text, and trains none."""
    _, demo = prepared("demo.yaml")
    (files / "tuned.yaml").write_text(BOOKS.replace("name: books", "name: tuned\ninit_from: demo"))
    assert prepared("tuned.yaml")[1] == demo
    config = load("tuned.yaml")
    assert (
        prepare(config)
        .steps[0]
        .reason.endswith("other sources; the weights from init_from (demo) were trained with its ids")
    )
    assert not [one for one in plan(config).findings if one.rule == "tokenizer_is_of_this_text"]


def test_a_blend_has_the_tokenizer_of_its_datasets(files):
    """A blend that inherits a tokenizer other than its datasets' is refused, and the
    message names the right one.
    """
    prepared("demo.yaml")
    prepared("books.yaml")
    blend = ["name=mixed", "data.sources=[]", "data.blend=[{name: books, weight: 1}]"]
    assert refusal("demo.yaml", *blend).endswith("ids would mean different text. Set tokenizer.name: books.")
    assert load("demo.yaml", blend).data.name == "mixed"
    prepare(load("demo.yaml", [*blend, "tokenizer.name=books"]))


def test_a_blend_ends_its_documents_as_its_tokenizer_does(files):
    """A blend under the same vocabulary with another end-of-document token is refused: a model would not
    learn to stop. A pair without a manifest, whose end is unknown, is accepted.
    """
    prepared("books.yaml")
    manifest = read_manifest(tokenizer_dir("books"))
    shutil.copytree(tokenizer_dir("books"), tokenizer_dir("chat"))
    eod = {"eod_id": 5, "eod_token": "<|im_end|>"}
    (tokenizer_dir("chat") / "manifest.json").write_text(json.dumps({**manifest, **eod}))
    blend = ["name=mixed", "data.sources=[]", "data.blend=[{name: books, weight: 1}]", "tokenizer.name=chat"]
    said = f"end in the token {manifest['eod_id']}, but data/tokenizer/chat ends documents in 5 (<|im_end|>)"
    message = refusal("demo.yaml", *blend)
    assert said in message and message.endswith("Set tokenizer.name: books.")
    shutil.rmtree(tokenizer_dir("books"))
    assert refusal("demo.yaml", *blend).endswith("or encode the datasets again with this tokenizer.")
    (dataset_dir("books") / "manifest.json").unlink()
    pair = "data.blend=[{prefix: data/dataset/books/text_document, weight: 1}]"
    prepare(load("demo.yaml", [*blend[:2], pair, blend[3]]))


def test_names_of_shipped_runs_are_theirs(files):
    """Dataset and tokenizer names of shipped runs are reserved: no other run can create data under them."""
    message = refusal("demo.yaml", "tokenizer.name=python-docs-1k")
    assert "tokenizer.name = python-docs-1k is the name of the tokenizer that " in message
    assert "run `nbtrain prepare gpt-tiny` first" in message
    message = refusal("demo.yaml", "data.name=python-docs-1k", "tokenizer.name=words")
    assert "data.name = python-docs-1k is the name of the dataset that " in message
    assert read_manifest(tokenizer_dir("python-docs-1k")) is None
