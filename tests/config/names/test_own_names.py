"""A run with its own text gets its own dataset and tokenizer, whatever file it extends."""

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load, load_resolved, to_yaml

SOURCES = [{"kind": "jsonl", "path": "books.jsonl"}]
BOOKS = "data.sources=[{kind: jsonl, path: books.jsonl}]"
WORDS = "  sources:\n    - {kind: jsonl, path: books.jsonl}\n"
DEMO = ("python-docs-1k", "python-docs-1k")


def names(run, overrides=None):
    config = load(run, overrides)
    return config.data.name, config.tokenizer.name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: books\n", DEMO),
        ("name: books\nbatch: {global_batch_size: 16}\n", DEMO),
        (f"name: books\ndata:\n{WORDS}", ("books", "books")),
        (f"name: books\ndata:\n  name: library\n{WORDS}", ("library", "library")),
        (f"name: books\ntokenizer: {{name: words}}\ndata:\n{WORDS}", ("books", "words")),
        # Named explicitly: the demo's tokenizer for other text.
        (f"name: books\ntokenizer: {{name: python-docs-1k}}\ndata:\n{WORDS}", ("books", "python-docs-1k")),
        ("name: wide\ntokenizer: {vocab_size: 2048}\n", ("wide", "wide")),
        ("name: wide\ntokenizer: {vocab_size: 1024}\n", DEMO),
        ("name: wide\ntokenizer: {path: gpt2}\n", ("wide", "wide")),
        ("name: clean\ndata: {cleaning: {min_bytes: 5}}\n", ("clean", "clean")),
        ("name: cut\ndata: {split_sentences: en}\n", ("cut", "python-docs-1k")),
        ("name: mine\ntokenizer: {name: words}\n", ("mine", "words")),
        # Token ids cannot train a tokenizer.
        (
            "name: ids\ndata: {sources: [{kind: tokens, path: a.jsonl}]}\n",
            ("ids", "python-docs-1k"),
        ),
        # Existing data, which was not encoded with the demo's tokenizer.
        ("name: brought\ndata: {name: corpus, sources: []}\n", ("corpus", "corpus")),
        ("name: brought\ndata: {sources: []}\n", DEMO),
        # Its datasets record their tokenizer, and prepare compares it.
        (
            "name: mixed\ndata: {sources: [], blend: [{name: a, weight: 1}]}\n",
            ("mixed", "python-docs-1k"),
        ),
        # The weights are valid for the ids of one tokenizer only.
        (f"name: tuned\ninit_from: gpt-tiny\ndata:\n{WORDS}", ("tuned", "python-docs-1k")),
        ("name: tuned\ninit_from: gpt-tiny\ntokenizer: {vocab_size: 1025}\n", DEMO),
    ],
)
def test_a_file_inherits_a_name_only_with_what_it_stands_for(run_yaml, text, expected):
    """A file over gpt-tiny with other text or another vocabulary gets new names; other changes keep the
    demo's names.
    """
    assert names(run_yaml(text)) == expected


@pytest.mark.parametrize(
    "overrides",
    [
        [BOOKS],
        {"data.sources": SOURCES},
        {"data": {"sources": SOURCES}},
        ["data.sources.0={kind: jsonl, path: books.jsonl}"],
        ["tokenizer.vocab_size=2048"],
        ["data.cleaning.min_bytes=5"],
    ],
)
def test_overrides_without_a_name_are_named_by_their_settings(overrides):
    """Without a name, overrides give names derived from their settings, equal for equal
    settings and never the demo's.
    """
    dataset, tokenizer = names("gpt-tiny", overrides)
    assert dataset == tokenizer
    assert dataset.startswith("gpt-tiny-") and len(dataset) == len("gpt-tiny-") + 8
    assert names(load("gpt-tiny"), overrides) == (dataset, tokenizer)
    assert names("gpt-tiny", {"tokenizer.vocab_size": 4096})[0] != dataset


def test_overrides_with_a_name_are_named_by_it():
    """Overrides may set the name of the run, of the dataset or of the tokenizer; the
    other names follow from it.
    """
    assert names("gpt-tiny", [BOOKS, "name=books"]) == ("books", "books")
    assert names("gpt-tiny", [BOOKS, "data.name=books"]) == ("books", "books")
    dataset, tokenizer = names("gpt-tiny", [BOOKS, "tokenizer.name=words"])
    assert dataset.startswith("gpt-tiny-") and tokenizer == "words"


def test_chains_of_files(run_yaml, tmp_path):
    """In a chain of files, the dataset and tokenizer are named after the file that sets the text."""
    run_yaml(f"name: books\ndata:\n{WORDS}", name="books.yaml")
    (tmp_path / "longer.yaml").write_text(
        "extends: books.yaml\nname: longer\nbatch: {global_batch_size: 16}\n"
    )
    assert names(tmp_path / "longer.yaml") == ("books", "books")
    (tmp_path / "other.yaml").write_text(
        "extends: longer.yaml\nname: other\ndata: {sources: [{kind: text, path: a.txt}]}\n"
    )
    assert names(tmp_path / "other.yaml") == ("other", "other")
    # A file that is not a run, after a run: its text is not encoded with the run's tokenizer.
    (tmp_path / "part.yaml").write_text(f"data:\n  name: library\n{WORDS}")
    run_yaml("", name="base.yaml")
    (tmp_path / "two.yaml").write_text("extends: [base.yaml, part.yaml]\nname: two\n")
    assert names(tmp_path / "two.yaml") == ("library", "library")
    # Such files give names to the runs above them.
    (tmp_path / "shared.yaml").write_text("tokenizer: {name: words, vocab_size: 512}\n")
    (tmp_path / "three.yaml").write_text(
        "extends: [shared.yaml, part.yaml]\nname: three\nmodel: {num_layers: 1, hidden_size: 8, "
        "num_attention_heads: 1, seq_length: 16}\nbatch: {train_tokens: 64, micro_batch_size: 1, "
        "global_batch_size: 1}\nlr_schedule: {lr: 1e-3}\n"
    )
    assert names(tmp_path / "three.yaml") == ("library", "words")


def test_weights_bring_their_tokenizer(run_yaml, workspace):
    """A run that starts from another run's weights uses that run's tokenizer, unless it names another one."""
    start = load("gpt-tiny", [BOOKS, "name=books"])
    for folder in (RunDir.named("books").path, workspace / "elsewhere"):
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(to_yaml(start))
    text = "name: tuned\ninit_from: {}\ndata: {{sources: [{{kind: mock}}]}}\n"
    for place in ("books", "./elsewhere", str(workspace / "elsewhere")):
        path = run_yaml(text.format(place))
        assert names(path) == ("tuned", "books")
        assert not load(path).names_tokenizer
        assert names(path, ["tokenizer.name=longer"])[1] == "longer"
        assert names(path, {"data.sources": SOURCES})[1] == "books"
    # The same examples with other ids are another dataset.
    dataset, tokenizer = names("gpt-tiny-instructions", ["init_from=books"])
    assert dataset.startswith("gpt-tiny-instructions-") and tokenizer == "books"


def test_names_that_nobody_gives(run_yaml):
    """The dataset's name is by default the run's, and the tokenizer's name the
    dataset's; config.yaml has both.
    """
    path = run_yaml(
        "name: alone\nmodel: {num_layers: 1, hidden_size: 8, num_attention_heads: 1, seq_length: 16}\n"
        "tokenizer: {vocab_size: 512}\ndata: {sources: [{kind: mock}]}\n"
        "batch: {train_tokens: 64, micro_batch_size: 1, global_batch_size: 1}\nlr_schedule: {lr: 1e-3}\n",
        base=None,
    )
    config = load(path)
    assert (config.data.name, config.tokenizer.name) == ("alone", "alone")
    assert not config.names_tokenizer and not config.sets("data.name")
    assert config.where("tokenizer.name") == "default"
    (path.parent / "config.yaml").write_text(to_yaml(config))
    assert load_resolved(path.parent / "config.yaml").names_tokenizer
    # Another name of the run is another output folder with the same data.
    assert names(config, {"name": "again"}) == ("alone", "alone")


def test_who_names_a_tokenizer(run_yaml):
    """A tokenizer counts as named if a file or an override names it; an inherited name
    counts if the text is inherited.
    """
    assert not load("gpt-tiny").names_tokenizer
    assert load("gpt-125m").names_tokenizer
    assert not load("gpt-125m", [BOOKS]).names_tokenizer
    assert load("gpt-125m", [BOOKS, "tokenizer.name=words"]).names_tokenizer
    assert not load(load("gpt-tiny", [BOOKS]), {"batch.max_steps": 2}).names_tokenizer
