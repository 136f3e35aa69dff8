"""A tokenizer that is exported: transformers reads the ids of training from its files."""

import json

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.corpus.tokenizer.exported import write_tokenizer
from nbtrain.corpus.tokenizer.folder import EOD_TOKEN, adopt, from_vocabulary
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from tests.corpus.tokenizer.test_beginning import two_files
from tests.dataset.dataset_maker import make_tokenizer

TEXT = "x<|im_start|>ab<new>ab<|im_start|><new>"
PLAIN = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def added(folder):
    """The list of added tokens of a folder's tokenizer.json, as transformers 4 writes it beside it."""
    entries = files.read_json(folder / "tokenizer.json")["added_tokens"]
    return {str(one["id"]): {key: one[key] for key in one if key != "id"} for one in entries}


def exported(workspace, name, is_listed=True):
    """(a run's tokenizer with two added tokens, its export), taken over from one of class `name`.

    `is_listed`: its tokenizer_config.json lists the added tokens, as transformers 4 writes it.
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
    assert write_tokenizer(mine, out, 64)["eos_token_id"] == 257
    return Tokenizer.load(mine), out


def test_added_tokens_are_in_every_list(workspace):
    """Of tokenizer.json and of tokenizer_config.json; what else the settings say stays."""
    _, out = exported(workspace, "Qwen2Tokenizer")
    before = json.loads((workspace / "theirs" / "tokenizer_config.json").read_text())
    settings = json.loads((out / "tokenizer_config.json").read_text())
    assert settings == {**before, "added_tokens_decoder": added(out)}
    assert settings["added_tokens_decoder"] == {
        "257": {"content": EOD_TOKEN, **PLAIN, "special": True},
        "258": {"content": "<|im_start|>", **PLAIN, "special": False},
        "259": {"content": "<new>", **PLAIN, "special": False},
    }


def test_settings_without_a_list_stay_as_they_were(workspace):
    """Byte for byte, as transformers 5 writes them."""
    _, out = exported(workspace, "Qwen2Tokenizer", is_listed=False)
    kept = (workspace / "theirs" / "tokenizer_config.json").read_bytes()
    assert (out / "tokenizer_config.json").read_bytes() == kept


def test_settings_of_our_own(workspace):
    """model_input_names: without it transformers 4 gives generate() token_type_ids too."""
    tokenizer = make_tokenizer("mine", ["ab ab"], 260)
    write_tokenizer(tokenizer.directory, workspace, 64)
    assert files.read_json(workspace / "tokenizer_config.json") == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": EOD_TOKEN,
        "eos_token": EOD_TOKEN,
        "pad_token": EOD_TOKEN,
        "model_max_length": 64,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }


def test_a_vocabulary_that_was_edited_is_not_exported(workspace):
    """Ids of training would mean other text; settings and a chat template may be edited."""
    exported(workspace, "Qwen2Tokenizer")
    adopt(workspace / "theirs", EOD_TOKEN, workspace / "taken")
    kept = workspace / "taken" / "as-given"
    (kept / "chat_template.jinja").write_text("{{ messages }}")
    write_tokenizer(workspace / "taken", workspace / "again", 64)
    (kept / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError) as refused:
        write_tokenizer(workspace / "taken", workspace / "again", 64)
    assert str(refused.value) == (
        "taken/as-given/tokenizer.json: has changed since the tokenizer was taken over. Ids would no longer "
        "mean the same text: restore it, or remove taken and run `nbtrain prepare RUN.yaml`."
    )


@pytest.mark.slow
@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("name", ["Qwen2Tokenizer", "GPT2Tokenizer", "PreTrainedTokenizerFast"])
def test_added_tokens_have_the_ids_of_training(workspace, name, is_listed):
    """In transformers, whichever class the settings name."""
    transformers = pytest.importorskip("transformers")
    tokenizer, out = exported(workspace, name, is_listed)
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert theirs(TEXT).input_ids == tokenizer.encode(TEXT).tolist() == [87, 258, 256, 259, 256, 258, 259]
    assert theirs.convert_tokens_to_ids("<new>") == 259


@pytest.mark.slow
@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("tokens", [(), ("<new>",)])
@pytest.mark.parametrize("said", [{"add_bos_token": True}, {"add_bos_token": False}, {}])
def test_two_files_begin_a_text_as_before(workspace, said, tokens, is_old):
    """transformers 5 does not look at add_bos_token beside the tokenizer.json that an export has.

    `is_old`: the tokenizer was taken over when its tokenizer.json did not have the token.
    """
    transformers = pytest.importorskip("transformers")
    theirs, mine, out = two_files(workspace / "theirs", **said), workspace / "mine", workspace / "out"
    wanted = transformers.AutoTokenizer.from_pretrained(theirs)("ab").input_ids
    manifest = adopt(theirs, "</s>", mine, tokens)
    if is_old and not tokens:
        document = files.read_json(mine / "tokenizer.json")
        files.write_json(mine / "tokenizer.json", {**document, "post_processor": None})
        manifest["files"]["tokenizer.json"]["sha256"] = files.sha256_of(mine / "tokenizer.json")
        files.write_json(mine / "manifest.json", manifest)
    out.mkdir()
    write_tokenizer(mine, out, 64)
    exported = transformers.AutoTokenizer.from_pretrained(out)
    assert exported("ab").input_ids == Tokenizer.load(mine).encode_prompt("ab") == wanted
    assert len(wanted) == 2 + said.get("add_bos_token", False)
