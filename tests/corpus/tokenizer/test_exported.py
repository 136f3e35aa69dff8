"""Exported tokenizers give the same ids in transformers as in training."""

import json

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.corpus.tokenizer.exported import write_tokenizer
from nbtrain.corpus.tokenizer.folder import EOD_TOKEN, adopt, from_vocabulary
from nbtrain.corpus.tokenizer.padding import PADDING, give_padding
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.corpus.tokenizer.unfinished import byte_letters
from tests.corpus.tokenizer.test_beginning import two_files
from tests.dataset.dataset_maker import make_tokenizer

TEXT = "x<|im_start|>ab<new>ab<|im_start|><new>"
PLAIN = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def added(folder):
    """Return a folder's added tokens in the form of transformers 4's tokenizer_config.json."""
    entries = files.read_json(folder / "tokenizer.json")["added_tokens"]
    return {str(one["id"]): {key: one[key] for key in one if key != "id"} for one in entries}


def exported(workspace, name, is_listed=True):
    """Import a tokenizer of class `name` with two added tokens and export it; return (tokenizer, export).

    With `is_listed`, its tokenizer_config.json lists the added tokens, as transformers 4 writes it.
    """
    theirs, mine, out = workspace / "theirs", workspace / "mine", workspace / "out"
    theirs.mkdir()
    out.mkdir()
    letters = [*sorted(ByteLevel.alphabet()), "ab", EOD_TOKEN]
    files.write_json(theirs / "vocab.json", {letter: number for number, letter in enumerate(letters)})
    (theirs / "merges.txt").write_text("#version: 0.2\na b\n")
    built = from_vocabulary(theirs / "vocab.json", theirs / "merges.txt")
    built.add_special_tokens(["<|im_start|>"])
    built.save(str(theirs / "tokenizer.json"))
    for one in ("vocab.json", "merges.txt"):
        (theirs / one).unlink()
    settings = {
        "tokenizer_class": name,
        "eos_token": EOD_TOKEN,
        "additional_special_tokens": ["<|im_start|>"],
    }
    if is_listed:
        settings["added_tokens_decoder"] = added(theirs)
    files.write_json(theirs / "tokenizer_config.json", settings)
    adopt(theirs, EOD_TOKEN, mine, ["<|im_start|>", "<new>"])
    ids = write_tokenizer(mine, out, 64, 260)
    # The byte-level entry of 0xFF, a byte that never occurs in UTF-8.
    byte = letters.index(byte_letters()[0xFF])
    assert (ids["eos_token_id"], ids["pad_token_id"]) == (257, byte)
    return Tokenizer.load(mine), out


def test_added_tokens_are_in_every_list(workspace):
    """Added tokens are in tokenizer.json and in tokenizer_config.json; other settings are unchanged."""
    _, out = exported(workspace, "Qwen2Tokenizer")
    before = json.loads((workspace / "theirs" / "tokenizer_config.json").read_text())
    settings = json.loads((out / "tokenizer_config.json").read_text())
    assert settings == {**before, "pad_token": PADDING, "added_tokens_decoder": added(out)}
    number = files.read_json(out / "tokenizer.json")["model"]["vocab"][PADDING]
    assert settings["added_tokens_decoder"].pop(str(number)) == {"content": PADDING, **PLAIN, "special": True}
    assert settings["added_tokens_decoder"] == {
        "257": {"content": EOD_TOKEN, **PLAIN, "special": True},
        "258": {"content": "<|im_start|>", **PLAIN, "special": False},
        "259": {"content": "<new>", **PLAIN, "special": False},
    }


def test_settings_that_name_a_padding_token_stay_as_they_were(workspace):
    """If the settings name a padding token, settings and vocabulary are exported byte for byte."""
    exported(workspace, "Qwen2Tokenizer", is_listed=False)
    theirs, out = workspace / "theirs", workspace / "again"
    settings = files.read_json(theirs / "tokenizer_config.json")
    files.write_json(theirs / "tokenizer_config.json", {**settings, "pad_token": "<|im_start|>"})
    adopt(theirs, EOD_TOKEN, workspace / "plain")
    out.mkdir()
    assert write_tokenizer(workspace / "plain", out, 64, 260)["pad_token_id"] == 258
    for name in ("tokenizer_config.json", "tokenizer.json"):
        assert (out / name).read_bytes() == (theirs / name).read_bytes()
    # A token that ends a text (generation_config.json) must not be the padding token.
    assert write_tokenizer(workspace / "plain", out, 64, 260, end_ids=[258])["pad_token_id"] not in (257, 258)


def token(number, content, special=True):
    return {"id": number, "content": content, "special": special, **PLAIN}


@pytest.mark.parametrize(
    ("settings", "added_tokens", "expected"),
    [
        # Padding tokens in public models: the end of text, the end of an answer, none.
        ({"pad_token": "</s>"}, [token(3, "</s>"), token(4, "<pad>")], "<pad>"),
        ({}, [token(3, "</s>"), token(4, "<|finetune_right_pad_id|>")], "<|finetune_right_pad_id|>"),
        (
            {"pad_token": {"content": "</s>"}},
            [token(3, "</s>"), token(4, "<|vision_pad|>")],
            "<|vision_pad|>",
        ),
        ({}, [token(3, "</s>"), token(4, "<|reserved_special_token_0|>")], "<|reserved_special_token_0|>"),
        ({"unk_token": "<unk>"}, [token(3, "</s>"), token(2, "<unk>")], "<unk>"),
        ({"unk_token": "</s>"}, [token(3, "</s>"), token(4, "<mask>")], PADDING),
        # A vocabulary word that resembles a padding token, and a token for which the model has no row.
        ({}, [token(3, "</s>"), token(4, "paddock", special=False), token(9, "<pad>")], PADDING),
        ({"pad_token": "<pad>", "bos_token": "<pad>"}, [token(3, "</s>"), token(4, "<pad>")], "<pad>"),
    ],
)
def test_the_token_that_pads_a_text_ends_none(settings, added_tokens, expected, tmp_path):
    byte = byte_letters()[0xFF]
    document = {
        "added_tokens": added_tokens,
        "pre_tokenizer": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"a": 0, byte: 1}, "merges": []},
    }
    files.write_json(tmp_path / "tokenizer.json", document)
    files.write_json(tmp_path / "tokenizer_config.json", {"eos_token": "</s>", **settings})
    files.write_json(tmp_path / "special_tokens_map.json", {"pad_token": "</s>", "eos_token": "</s>"})
    assert give_padding(tmp_path, {3}, 6) == expected
    assert files.read_json(tmp_path / "tokenizer_config.json")["pad_token"] in (
        expected,
        settings.get("pad_token"),
    )
    written = files.read_json(tmp_path / "tokenizer.json")
    assert (written == document) == (expected != PADDING)
    if expected == PADDING:
        assert written["model"]["vocab"] == {"a": 0, PADDING: 1}
        assert token(1, PADDING) in written["added_tokens"]
        assert files.read_json(tmp_path / "special_tokens_map.json")["pad_token"] == PADDING


def test_a_vocabulary_without_a_token_to_spare(tmp_path):
    """If no token can serve as padding, none is named; the end-of-text token is not used for it."""
    document = {"added_tokens": [token(1, "</s>")], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
    files.write_json(tmp_path / "tokenizer.json", document)
    files.write_json(tmp_path / "tokenizer_config.json", {"eos_token": "</s>", "pad_token": "</s>"})
    assert give_padding(tmp_path, {1}, 6) is None
    assert files.read_json(tmp_path / "tokenizer_config.json")["pad_token"] is None


def test_settings_of_our_own(workspace):
    """The settings for a tokenizer that nbtrain trained keep transformers 4 from passing token_type_ids."""
    tokenizer = make_tokenizer("mine", ["ab ab"], 260)
    write_tokenizer(tokenizer.directory, workspace, 64, 260)
    assert files.read_json(workspace / "tokenizer_config.json") == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": EOD_TOKEN,
        "eos_token": EOD_TOKEN,
        "pad_token": PADDING,
        "model_max_length": 64,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }


def test_a_vocabulary_that_was_edited_is_not_exported(workspace):
    """A vocabulary that was edited after import is not exported; settings and a
    chat template may be edited.
    """
    exported(workspace, "Qwen2Tokenizer")
    adopt(workspace / "theirs", EOD_TOKEN, workspace / "taken")
    kept = workspace / "taken" / "as-given"
    (kept / "chat_template.jinja").write_text("{{ messages }}")
    write_tokenizer(workspace / "taken", workspace / "again", 64, 260)
    (kept / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError) as refused:
        write_tokenizer(workspace / "taken", workspace / "again", 64, 260)
    assert str(refused.value) == (
        "taken/as-given/tokenizer.json: the file has changed since the tokenizer was imported, so token ids "
        "would mean different text. Restore the file, or remove taken and run `nbtrain prepare RUN.yaml`."
    )


@pytest.mark.slow
@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("name", ["Qwen2Tokenizer", "GPT2Tokenizer", "PreTrainedTokenizerFast"])
def test_added_tokens_have_the_ids_of_training(workspace, name, is_listed):
    """In transformers, added tokens have their training ids, whatever class the settings name."""
    transformers = pytest.importorskip("transformers")
    tokenizer, out = exported(workspace, name, is_listed)
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert theirs(TEXT).input_ids == tokenizer.encode(TEXT).tolist() == [87, 258, 256, 259, 256, 258, 259]
    assert theirs.convert_tokens_to_ids("<new>") == 259
    # The padding token replaces no id used by text: every character has its training ids.
    every = "".join(map(chr, (*range(0x20, 0x2FF), 0xFFFD, 0x1F600))) + "\u00ff\u00f5"
    assert theirs(every).input_ids == tokenizer.encode(every).tolist()
    ends, pads = theirs.eos_token_id, theirs.pad_token_id
    assert (ends, theirs.pad_token, len(theirs)) == (257, PADDING, 260) and pads < 256
    collate = transformers.DataCollatorForLanguageModeling(theirs, mlm=False)
    texts = [theirs(text + EOD_TOKEN) for text in ("ab", "one longer text")]
    for row, text in zip(collate(texts)["labels"].tolist(), texts):
        # The end-of-text token is in the loss, padding is not.
        assert [number for number in row if number != -100] == text.input_ids and text.input_ids[-1] == ends


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [(), ("<new>",)])
@pytest.mark.parametrize("said", [{"add_bos_token": True}, {"add_bos_token": False}, {}])
def test_two_files_begin_a_text_as_before(workspace, said, tokens):
    """An exported tokenizer adds the leading token, although transformers 5 ignores add_bos_token."""
    transformers = pytest.importorskip("transformers")
    theirs, mine, out = two_files(workspace / "theirs", **said), workspace / "mine", workspace / "out"
    wanted = transformers.AutoTokenizer.from_pretrained(theirs)("ab").input_ids
    adopt(theirs, "</s>", mine, tokens)
    out.mkdir()
    write_tokenizer(mine, out, 64, 512)
    exported = transformers.AutoTokenizer.from_pretrained(out)
    assert exported("ab").input_ids == Tokenizer.load(mine).encode_prompt("ab") == wanted
    assert len(wanted) == 2 + said.get("add_bos_token", False)
