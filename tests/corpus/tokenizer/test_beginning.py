"""Tokens that a tokenizer adds before a text are found on import and prepended to a prompt once."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from nbtrain.base import files
from nbtrain.base.errors import RecordError
from nbtrain.corpus.tokenizer.beginning import own_token, settings_of
from nbtrain.corpus.tokenizer.folder import adopt
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer

BEGIN, END = ("<s>", 1), ("</s>", 2)
BYTES = processors.ByteLevel(trim_offsets=False)


def framing(single: str):
    return processors.TemplateProcessing(single=single, special_tokens=[BEGIN, END])


FRAMES = {
    "before": (framing("<s> $A"), [1]),
    "before and after": (framing("<s> $A </s>"), [1]),
    "twice": (framing("<s> <s> $A"), [1, 1]),
    "after": (framing("$A </s>"), []),
    "Llama 3": (processors.Sequence([BYTES, framing("<s> $A")]), [1]),
    "GPT-2": (BYTES, []),
    "none": (None, []),
}


def written(folder, frame=None, **settings):
    """Write a folder with a character BPE whose first word begins with a space, like Llama 2's."""
    vocabulary = ["<unk>", "<s>", "</s>", "\u2581", *"abc<>/s"]
    built = tokenizers.Tokenizer(
        models.BPE({one: i for i, one in enumerate(vocabulary)}, [], unk_token="<unk>")
    )
    built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    built.decoder = decoders.Metaspace(prepend_scheme="first")
    built.add_special_tokens(["<s>", "</s>"])
    if frame is not None:
        built.post_processor = frame
    built.enable_truncation(1)
    folder.mkdir(parents=True)
    built.save(str(folder / "tokenizer.json"))
    said = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return folder


@pytest.mark.parametrize("name", FRAMES)
def test_it_is_found_as_a_tokenizer_is_taken_over(workspace, name):
    """The manifest of an imported tokenizer has the ids that it adds before a text."""
    frame, before = FRAMES[name]
    mine = workspace / "mine"
    assert adopt(written(workspace / "theirs", frame), "</s>", mine)["before_text"] == before
    loaded = Tokenizer.load(mine)
    assert loaded.before_text == before
    plain = loaded.encode("ab c").tolist()
    assert loaded.encode_prompt("ab c") == [*before, *plain]
    assert loaded.encode_prompt("") == before


def test_a_prompt_that_begins_so_gets_nothing(workspace):
    """A prompt that already begins with the leading token gets no second one;
    elsewhere the token is plain text.
    """
    adopt(written(workspace / "theirs", FRAMES["before"][0]), "</s>", workspace / "mine")
    loaded = Tokenizer.load(workspace / "mine")
    assert loaded.encode_prompt("<s>ab") == loaded.encode_prompt("ab") == [1, *loaded.encode("ab").tolist()]
    assert loaded.encode_prompt("a<s>") == [1, *loaded.encode("a<s>").tolist()]
    adopt(written(workspace / "other"), "</s>", workspace / "without")
    without = Tokenizer.load(workspace / "without")
    assert without.encode_prompt("<s>ab") == without.encode("<s>ab").tolist()


def test_a_vocabulary_of_whole_words(workspace):
    """A tokenizer that cannot encode the sample text is imported without leading tokens."""
    built = tokenizers.Tokenizer(models.WordLevel({"word": 0, "</s>": 1}, unk_token="none"))
    (workspace / "theirs").mkdir()
    built.save(str(workspace / "theirs" / "tokenizer.json"))
    assert adopt(workspace / "theirs", "</s>", workspace / "mine")["before_text"] == []


def two_files(folder, **settings):
    """Write GPT-2's two files with <s> and </s>, and a tokenizer_config.json."""
    folder.mkdir()
    letters = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    (folder / "vocab.json").write_text(json.dumps({letter: number for number, letter in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    said = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**said, **settings}))
    return folder


@pytest.mark.parametrize("added", [(), ("<|user|>",)])
@pytest.mark.parametrize("said", [{"add_bos_token": True}, {"add_bos_token": False}, {}])
def test_two_files_go_by_their_settings(workspace, said, added):
    theirs = two_files(workspace / "theirs", bos_token={"content": "<s>"}, **said)
    adopt(theirs, "</s>", workspace / "mine", added)
    loaded = Tokenizer.load(workspace / "mine")
    before = [0] if said.get("add_bos_token") else []
    assert loaded.before_text == before
    assert loaded.encode_prompt("ab") == [*before, *loaded.encode("ab").tolist()]
    assert len(loaded.encode("ab")) == 2
    reference = tokenizers.Tokenizer.from_file(str(workspace / "mine" / "tokenizer.json"))
    ab = loaded.encode("ab").tolist()
    assert reference.encode("ab", "ab").ids == [*before, *ab, *before, *ab]


@pytest.mark.slow
def test_prompts_are_those_of_transformers(workspace):
    """Prompts equal transformers' default call, except that tokens after the text are omitted."""
    transformers = pytest.importorskip("transformers")
    for number, (frame, _) in enumerate(FRAMES.values()):
        for said in ({}, {"add_bos_token": True}, {"add_bos_token": False}):
            folder = written(workspace / f"{number} {said}", frame, **said)
            document = files.read_json(folder / "tokenizer.json")
            files.write_json(folder / "tokenizer.json", {**document, "truncation": None})
            theirs = transformers.AutoTokenizer.from_pretrained(folder)
            adopt(folder, "</s>", folder / "mine")
            mine = Tokenizer.load(folder / "mine")
            for text in ("ab c", " a", ""):
                ids = theirs(text)["input_ids"]
                assert mine.encode_prompt(text) == (ids[:-1] if ids[-1:] == [2] else ids)


@pytest.mark.parametrize("content", ["[1]", '"words"', "5"])
def test_settings_that_are_no_object_are_refused(content, tmp_path):
    """Settings that are not an object are refused with the file's name; a token
    that is not text is ignored.
    """
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(RecordError, match=r"tokenizer_config\.json: must be a JSON object, but is "):
        settings_of(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": 5}')
    assert own_token(tmp_path, "bos_token") is None
