"""A run that was trained on conversations is exported with the chat template it was trained with."""

import pytest
import tokenizers

from nbtrain.base.workspace import tokenizer_dir
from nbtrain.checkpoint.pretrained import __main__ as gpu_side
from nbtrain.config.load import load, load_resolved
from nbtrain.corpus.sources.chat_jinja import pieces_of
from nbtrain.corpus.tokenizer.folder import adopt
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.exchange import export_model as exporting
from nbtrain.inference.generate import request_of
from nbtrain.serving.chat import template_of
from tests.inference import saved
from tests.inference.made import beginning_tokenizer_in

pytestmark = pytest.mark.slow

CHAT = {"kind": "chat", "path": "talks.jsonl"}
TALK = [
    {"role": "user", "content": "One day, a {content}?"},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "Why?"},
]


@pytest.fixture
def export(workspace, monkeypatch):
    monkeypatch.setattr(exporting, "stream", lambda module, request: gpu_side.answers(request))

    def export(*sources: dict, target: str = "hf", ending: str = ""):
        run = saved.save_run("talks", {"model.architecture": "llama", "data.sources": list(sources)})
        to = workspace / f"exported{ending}"
        exporting.export_model(run, to, target)
        return run, to

    return export


@pytest.mark.parametrize(
    ("source", "talk"),
    [
        (CHAT, TALK),
        ({**CHAT, "template": "[{role}] {content} [/]"}, TALK),
        ({"kind": "alpaca", "path": "tasks.json"}, TALK[:1]),
    ],
    ids=["chat", "template", "alpaca"],
)
def test_transformers_asks_with_the_tokens_of_training(source, talk, export):
    """From the exported folder, transformers encodes a conversation exactly as in training; the model card
    shows how.
    """
    transformers = pytest.importorskip("transformers")
    run, folder = export({"kind": "mock"}, source)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    directory = tokenizer_dir("small")
    tokenizer = Tokenizer.load(directory)
    found = template_of(load_resolved(run.config_yaml), None, directory, tokenizer.eod_token).prompt(talk)
    ours = request_of({"id": "a", "prompt": found.pieces, "max_new_tokens": 1}, tokenizer, 99).prompt
    assert ours == theirs.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
    assert "apply_chat_template(" in (folder / "README.md").read_text()


def test_markers_that_are_special_tokens_are_reported(export, workspace):
    """If a chat marker is a special token in other programs, that is reported, because training read it as
    ordinary characters.
    """
    source = {**CHAT, "template": "<s>{role}\n{content}\n"}
    beginning_tokenizer_in(tokenizer_dir("small"), workspace / "theirs")
    run = saved.save_run("marked", {"model.architecture": "llama", "data.sources": [source]})
    exported = exporting.export_model(run, workspace / "marked")
    assert exported.notes == (
        "chat_template.jinja: other programs encode <s> as special tokens, but training encoded them as "
        "ordinary characters, so answers may be worse in other programs. Add them to "
        "tokenizer.added_tokens and train again, or choose other markers.",
    )
    plain = saved.save_run("plain", {"model.architecture": "llama", "data.sources": [CHAT]})
    assert exporting.export_model(plain, workspace / "plain").notes == ()


def test_answers_that_other_programs_encode_otherwise(tmp_path):
    """If the tokenizer adds a space before each text, that is reported, because training encoded a
    conversation in pieces.
    """
    vocabulary = {one: number for number, one in enumerate(["<unk>", "<eod>", "\u2581", *"OneTwuasrit|<>\n"])}
    built = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>"))
    built.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    built.add_special_tokens(["<eod>"])
    built.save(str(tmp_path / "tokenizer.json"))
    adopt(tmp_path, "<eod>", tmp_path / "mine")
    (chat,) = load("gpt-tiny", {"data.sources": [CHAT]}, check=False).data.sources
    (note,) = exporting._other_tokens([], pieces_of(chat), Tokenizer.load(tmp_path / "mine"))
    assert note.startswith("chat_template.jinja: other programs encode a conversation as one text")


def test_a_run_without_conversations_has_no_template(export):
    _, folder = export({"kind": "mock"})
    assert not (folder / "chat_template.jinja").exists()
    assert "apply_chat_template" not in (folder / "README.md").read_text()


def test_gguf_has_the_template_too(export):
    gguf = pytest.importorskip("gguf")
    _, file = export(CHAT, target="gguf", ending=".gguf")
    field = gguf.GGUFReader(file).get_field("tokenizer.chat_template")
    assert field is not None and '{{- "<|assistant|>\\n" }}' in field.contents()
