"""The prompt of a conversation, built with the run's template, Alpaca's, or a Jinja file, and the suffix that
is stripped from an answer.
"""

import random

import orjson
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.corpus.sources.chat import ChatReader
from nbtrain.corpus.sources.keys import RecordNotes
from nbtrain.corpus.sources.templates import ALPACA_WITHOUT_INPUT
from nbtrain.corpus.tokenizer.folder import KEPT, ONE_FILE, adopt
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.serving.chat import JinjaTemplate, RunTemplate, Suffix, template_of
from nbtrain.serving.refusals import Refusal

TALK = [
    {"role": "user", "content": "a {content} <|user|>"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
]


def config_of(*sources: dict):
    return load("gpt-tiny", {"data.sources": list(sources)}, check=False)


def test_the_prompt_is_what_training_saw_before_the_answer():
    """The prompt equals the pieces that training saw before the answer in the same conversation."""
    config = config_of({"kind": "chat", "path": "x.jsonl"})
    template = template_of(config, None, None, "<eod>")
    found = template.prompt(TALK)
    example = ChatReader(config.data.sources[0]).example(
        {"messages": [*TALK, {"role": "assistant", "content": "answer"}]}, RecordNotes()
    )
    texts = [text for text, _ in example.pieces]
    assert [*found.pieces, "answer\n"] == texts
    assert found.suffix == "\n"
    assert {"<|user|>", "<|assistant|>", "<|system|>"} <= set(found.stop)


def test_other_templates_and_roles():
    source = {"kind": "chat", "path": "x", "template": "[{role}] {content} [/]", "learn_roles": ["bot"]}
    template = template_of(config_of(source), None, None, "")
    found = template.prompt([{"role": "user", "content": "a"}])
    assert found.pieces == ["[user] a [/][bot] "] and found.suffix == " [/]"
    with pytest.raises(Refusal, match=r"messages\[0\].role = 'x' must be one of system, developer, user"):
        template.prompt([{"role": "x", "content": "a"}])


def test_alpacas_prompt_is_for_one_question():
    template = template_of(config_of({"kind": "alpaca", "path": "x"}), None, None, "")
    found = template.prompt([{"role": "user", "content": "Do {input}."}])
    assert found.pieces == [ALPACA_WITHOUT_INPUT.replace("{instruction}", "Do {input}.")]
    with pytest.raises(Refusal, match="send one message with the role user"):
        template.prompt(TALK)


def test_a_run_without_conversations_says_so(tmp_path):
    template = template_of(config_of({"kind": "mock"}), None, tmp_path, "")
    assert template.origin == "none"
    with pytest.raises(Refusal) as refused:
        template.prompt(TALK)
    assert refused.value.message == (
        "this run has no chat template: its data.sources contain no conversations, and its tokenizer has "
        "no template. Use /v1/completions, or serve the run with --chat-template FILE."
    )


def test_a_file_of_either_kind(tmp_path):
    file = tmp_path / "template"
    file.write_text("{role}: {content}\n")
    config = config_of({"kind": "mock"})
    assert template_of(config, str(file), tmp_path, "").origin == f"--chat-template {file}"
    assert template_of(config, str(file), tmp_path, "").prompt(TALK[:1]).pieces == [
        "user: a {content} <|user|>\nassistant: "
    ]
    for text, message in (
        ("none", "does not contain {content}"),
        ("{% if", "the chat template is not valid Jinja"),
    ):
        file.write_text(text)
        (tmp_path / ONE_FILE).write_bytes(orjson.dumps({"added_tokens": []}))
        with pytest.raises(ConfigError) as error:
            template_of(config, str(file), tmp_path, "")
        assert message in str(error.value)
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
        template_of(config, str(tmp_path / "none"), tmp_path, "")


JINJA = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_jinja_and_special_tokens(tmp_path):
    """Special tokens become their ids, as in transformers. A template can reject messages, and it cannot
    access Python objects.
    """
    tokens = [{"content": "<|im_start|>", "id": 7, "special": True}]
    tokens += [{"content": "<|im_end|>", "id": 8, "special": True}]
    (tmp_path / ONE_FILE).write_bytes(orjson.dumps({"added_tokens": tokens}))
    template = JinjaTemplate(JINJA, tmp_path, "<eod>", "file")
    found = template.prompt([{"role": "user", "content": "a"}])
    assert found.pieces == [7, "user\na", 8, "\n", 7, "assistant\n"]
    with pytest.raises(Refusal, match="the chat template rejects these messages: no tools"):
        template.prompt([{"role": "tool", "content": "a"}])
    reaching = JinjaTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", tmp_path, "", "file")
    with pytest.raises(Refusal, match="rejects"):
        reaching.prompt([{"role": "user", "content": "a"}])


@pytest.mark.parametrize("written", ["<s>", {"content": "<s>", "special": True}, None])
def test_jinja_begins_with_the_imported_tokenizer_s_token(tmp_path, written):
    """Templates of Llama 3 and Mistral write bos_token first; a tokenizer that was trained with nbtrain has
    no such token.
    """
    special = {"added_tokens": [{"content": "<s>", "id": 1, "special": True}]}
    (tmp_path / ONE_FILE).write_bytes(orjson.dumps(special))
    template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    assert JinjaTemplate(template, tmp_path, "<eod>", "file").prompt(TALK[:1]).pieces[0] != 1
    (tmp_path / KEPT).mkdir()
    (tmp_path / KEPT / "tokenizer_config.json").write_bytes(orjson.dumps({"bos_token": written}))
    pieces = JinjaTemplate(template, tmp_path, "<eod>", "file").prompt(TALK[:1]).pieces
    assert pieces == [*([1] if written else []), TALK[0]["content"] + "<eod>"]


def test_jinja_sees_every_special_token_that_the_tokenizer_names(tmp_path):
    """Jinja templates can use every special token of both tokenizer files, as in transformers; an undefined
    token is empty.
    """
    folder = imported(tmp_path / "mine", {"pad_token": {"content": "<p>"}, "image_token": "<i>"})
    (folder / KEPT / "special_tokens_map.json").write_bytes(
        orjson.dumps({"unk_token": "<u>", "pad_token": "<old>"})
    )
    template = JinjaTemplate(
        "{{ pad_token }}{{ unk_token }}{{ image_token }}{{ sep_token }}", folder, "", "f"
    )
    assert template.prompt(TALK).pieces == ["<p><u><i>"]


def imported(folder, settings: dict, jinja: str | None = None):
    """Write an imported tokenizer's folder with these settings and, if given, a chat template."""
    (folder / KEPT).mkdir(parents=True)
    special = {"added_tokens": [{"content": "<s>", "id": 1, "special": True}]}
    (folder / ONE_FILE).write_bytes(orjson.dumps(special))
    (folder / KEPT / "tokenizer_config.json").write_bytes(orjson.dumps(settings))
    if jinja is not None:
        (folder / KEPT / "chat_template.jinja").write_text(jinja, encoding="utf-8")
    return folder


def test_an_imported_tokenizer_s_template_is_the_last_choice(tmp_path):
    """The template in --chat-template is preferred to the one of the run's data, and that one to the imported
    tokenizer's.
    """
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    own = "{{ bos_token }}own {{ messages[0].content }}{{ eos_token }}"
    folder = imported(tmp_path / "mine", settings, own)
    text = config_of({"kind": "mock"})
    template = template_of(text, None, folder, "<eod>")
    assert template.prompt(TALK[1:2]).pieces == [1, "own b</s>"]
    assert template.origin == f"from the tokenizer, {folder / KEPT / 'chat_template.jinja'}"
    talks = template_of(config_of({"kind": "chat", "path": "x.jsonl"}), None, folder, "<eod>")
    assert talks.prompt(TALK[2:]).pieces == ["<|user|>\nc\n<|assistant|>\n"]
    assert talks.origin == "from the run's data"
    file = tmp_path / "file"
    file.write_text("{{ bos_token }}file{{ eos_token }}")
    given = template_of(config_of({"kind": "chat", "path": "x.jsonl"}), str(file), folder, "<eod>")
    assert given.prompt(TALK).pieces == [1, "file</s>"] and given.origin == f"--chat-template {file}"


@pytest.mark.parametrize(
    ("written", "pieces"),
    [
        ("text", ["text"]),
        ([{"name": "rag", "template": "no"}, {"name": "default", "template": "named"}], ["named"]),
        ([{"name": "rag", "template": "no"}], None),
        (None, None),
    ],
)
def test_a_template_in_tokenizer_config_json(tmp_path, written, pieces):
    """In tokenizer_config.json, chat_template is a text or a list with a default. chat_template.jinja takes
    precedence over both, as in transformers.
    """
    folder = imported(tmp_path / "mine", {"chat_template": written})
    template = template_of(config_of({"kind": "mock"}), None, folder, "")
    if pieces is None:
        assert template.origin == "none"
    else:
        assert template.prompt(TALK).pieces == pieces
        assert template.origin == f"from the tokenizer, {folder / KEPT / 'tokenizer_config.json'}"
    folder = imported(tmp_path / "other", {"chat_template": written}, "file")
    assert template_of(config_of({"kind": "mock"}), None, folder, "").prompt(TALK).pieces == ["file"]


@pytest.mark.parametrize(
    ("jinja", "said"),
    [
        (b"{% if", "chat_template.jinja: the chat template is not valid Jinja"),
        (b"\xff", "its chat template cannot be read"),
    ],
)
def test_an_imported_template_that_is_none_stops_no_server(tmp_path, jinja, said):
    """With an invalid imported template, the server still starts and continues texts; a chat is rejected with
    the reason.
    """
    folder = imported(tmp_path / "mine", {}, "")
    (folder / KEPT / "chat_template.jinja").write_bytes(jinja)
    template = template_of(config_of({"kind": "mock"}), None, folder, "")
    assert template.origin.startswith("none (") and said in template.origin
    with pytest.raises(Refusal, match=said):
        template.prompt(TALK)


def test_jinja_has_what_transformers_gives_it(tmp_path):
    """Jinja templates have the extensions of transformers: generation blocks, loop controls, JSON without
    HTML escapes, and the date.
    """
    source = (
        "{{ strftime_now('%Y') | length }} {% for m in messages %}{% generation %}{{ m | tojson }}"
        "{% endgeneration %}{% break %}{% endfor %}{{ messages[0].none.none }}"
    )
    folder = imported(tmp_path / "mine", {}, source[: source.index("{{ messages[0]")])
    template = template_of(config_of({"kind": "mock"}), None, folder, "")
    assert template.prompt([{"role": "user", "content": "<ü>"}] * 2).pieces == [
        '4 {"role": "user", "content": "<ü>"}'
    ]
    with pytest.raises(Refusal, match=r"the chat template rejects these messages: .*has no attribute 'none'"):
        JinjaTemplate(source, folder, "", "file").prompt(TALK)


WRITTEN = "[INST]{{ m.content }}[/INST]{{ '' if m.role == 'user' else eos_token }}"
TEMPLATES = [
    "{% for m in messages %}" + one + "{% endfor %}" for one in (WRITTEN, WRITTEN.replace("]{{", "] {{"))
]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["first", "always", "never", "normalizer"])
def test_a_chat_s_tokens_are_those_of_transformers(workspace, scheme):
    """A chat is encoded into the same tokens as in transformers, also by a SentencePiece tokenizer that adds
    a space before the first word.
    """
    transformers = pytest.importorskip("transformers")
    from nbtrain.inference.generate import request_of

    letters = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "\u2581", *"abc[]/INST"]
    vocabulary = {one: number for number, one in enumerate(dict.fromkeys(letters))}
    talk = [
        {"role": "user", "content": "ab c"},
        {"role": "assistant", "content": "ba"},
        {"role": "user", "content": "c"},
    ]
    for number, template in enumerate(["{{ bos_token }}" + one for one in TEMPLATES] + TEMPLATES):
        for special in (["[INST]", "[/INST]"], []):
            built = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
            if scheme == "normalizer":
                blanks = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
                built.normalizer = normalizers.Sequence(blanks)
            else:
                built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
            built.decoder = decoders.Metaspace()
            built.add_special_tokens(["<s>", "</s>", *special])
            folder = workspace / f"{number}{len(special)}"
            folder.mkdir()
            built.save(str(folder / ONE_FILE))
            settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
            (folder / "tokenizer_config.json").write_bytes(
                orjson.dumps({**settings, "tokenizer_class": "PreTrainedTokenizerFast"})
            )
            theirs = transformers.AutoTokenizer.from_pretrained(folder)
            adopt(folder, "</s>", folder / "mine")
            found = template_of(config_of({"kind": "mock"}), None, folder / "mine", "</s>").prompt(talk)
            asked = {"id": "a", "prompt": found.pieces, "max_new_tokens": 1}
            ids = request_of(asked, Tokenizer.load(folder / "mine"), 99).prompt
            assert ids == theirs.apply_chat_template(talk)["input_ids"]


def test_what_follows_an_answer_is_taken_off():
    """The suffix that the template appends to an answer is stripped from the answer's end, wherever the
    stream is split.
    """
    chance = random.Random(1)
    for text, suffix in (("a\nb\n", "\n"), ("x [/] y [/]", " [/]"), ("plain", "\n"), ("\n\n", "\n")):
        for _ in range(50):
            cuts = sorted(chance.sample(range(len(text) + 1), chance.randint(0, len(text))))
            pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)])]
            held = Suffix(suffix)
            given = [held.add(piece, number == len(pieces) - 1) for number, piece in enumerate(pieces)]
            assert "".join(given) == text.removesuffix(suffix)


def test_a_template_without_a_role_ends_at_no_header():
    assert RunTemplate("{content}\n").prompt([{"role": "user", "content": "a"}]).stop == ()
