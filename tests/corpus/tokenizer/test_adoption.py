"""Importing tokenizers: GPT-2's two files, and tokenizer.json files of every kind of model."""

# ruff: noqa: RUF001 (markers of other models look like ASCII)

import base64
import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.corpus.tokenizer import training
from nbtrain.corpus.tokenizer.exported import entries_of, is_as_given
from nbtrain.corpus.tokenizer.extension import ids_differ
from nbtrain.corpus.tokenizer.folder import EOD_TOKEN, adopt, save
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.corpus.tokenizer.unfinished import byte_letters

PROSE = [
    "All human beings are born free and equal in dignity and rights. They are endowed with reason.",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Everyone has the right to life, liberty and security of person; no one shall be held in slavery.",
] * 10
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def wordpiece():
    """Return a tokenizer like BERT's: lower case, with [UNK] for unknown words."""
    built = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    built.normalizer = normalizers.BertNormalizer()
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.decoder = decoders.WordPiece()
    return built, trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )


def unigram():
    """Return a tokenizer like T5's: spaces become characters, and the split is chosen by likelihood."""
    built = tokenizers.Tokenizer(models.Unigram())
    built.pre_tokenizer = pre_tokenizers.Metaspace()
    built.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    return built, trainer


def word_level():
    """Return a tokenizer that splits only at spaces, so that an EOD between spaces
    is a word of the vocabulary.
    """
    built = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return built, trainers.WordLevelTrainer(
        vocab_size=300, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )


def llama3():
    """Return a byte-level BPE with Llama 3's pre-tokenizer; words in the vocabulary skip the merges."""
    built = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated")
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    built.decoder = decoders.ByteLevel()
    return built, byte_level_trainer("<|begin_of_text|>", "<|end_of_text|>")


def neox():
    """Return a tokenizer like GPT-NeoX's: normalized, with runs of spaces as added tokens."""
    built = tokenizers.Tokenizer(models.BPE())
    built.normalizer = normalizers.NFC()
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    return built, byte_level_trainer(EOD_TOKEN)


def byte_level_trainer(*special_tokens):
    return trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


KINDS = {
    "wordpiece": (wordpiece, "[SEP]"),
    "unigram": (unigram, "</s>"),
    "word_level": (word_level, "[SEP]"),
    "llama3": (llama3, "<|end_of_text|>"),
    "neox": (neox, EOD_TOKEN),
}


@pytest.fixture
def bring(workspace):
    """Return a function that writes the tokenizer.json of a kind to a folder named after it."""

    def make(kind: str, change=None):
        built, trainer = KINDS[kind][0]()
        built.train_from_iterator(PROSE, trainer)
        if kind == "neox":
            built.add_tokens([AddedToken("    ", normalized=False)])
        document = json.loads(built.to_str())
        if change:
            change(document)
        folder = workspace / kind
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
        return folder / "tokenizer.json"

    return make


# --- tokenizer.json -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_any_tokenizer(bring, workspace, kind):
    """An imported tokenizer keeps its file and its ids, and the manifest describes it."""
    path, eod_token = bring(kind), KINDS[kind][1]
    manifest = adopt(path, eod_token, workspace / "mine")
    reference = tokenizers.Tokenizer.from_file(str(path))
    content = path.read_bytes()
    assert {key: value for key, value in manifest.items() if key not in ("eod_from_text", "unknown_id")} == {
        "schema_version": 1,
        "vocab_size": reference.get_vocab_size(),
        "eod_id": reference.token_to_id(eod_token),
        "eod_token": eod_token,
        "before_text": [],
        "sha256": hashlib.sha256(content).hexdigest(),
        "files": {"tokenizer.json": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}},
        "trained": None,
        "source": f"{kind}/tokenizer.json",
        "kept": {"tokenizer.json": files.sha256_of(path)},
    }
    assert manifest["unknown_id"] == (0 if kind in ("wordpiece", "unigram", "word_level") else None)
    assert (workspace / "mine" / "tokenizer.json").read_bytes() == content
    loaded = Tokenizer.load(workspace / "mine")
    loaded.check_exact(PROSE)
    for text in PROSE[:3]:
        assert loaded.encode(text).tolist() == reference.encode(text, add_special_tokens=False).ids
    # A folder that contains the file works too.
    assert adopt(path.parent, eod_token, workspace / "other")["sha256"] == manifest["sha256"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["fastokens", "tokenizers"])
def test_eod_never_comes_from_text(bring, workspace, kind, engine):
    """Text never gives the EOD id, even if the EOD's characters are a word; the text around it is kept."""
    eod_token = KINDS[kind][1]
    adopt(bring(kind), eod_token, workspace / "mine")
    loaded = Tokenizer.load(workspace / "mine", engine)
    texts = [
        f"{eod_token}",
        f"rights {eod_token} and",
        f"a{eod_token}{eod_token}b",
        "no such thing",
        f"x {eod_token}" * 20,
    ]
    ids, offsets = loaded.encode_batch(texts)
    assert loaded.eod_id not in ids
    for number, text in enumerate(texts):
        row = ids[offsets[number] : offsets[number + 1]].tolist()
        assert row == loaded.encode(text).tolist()
    assert loaded.encode("no such thing").tolist() == ids[offsets[3] : offsets[4]].tolist()
    if kind in ("llama3", "neox"):
        assert [loaded.decode(loaded.encode(text)) for text in texts] == texts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["fastokens", "tokenizers"])
def test_added_tokens_are_single_ids(bring, workspace, kind, engine):
    """Added tokens are single ids even inside words; the ids of existing entries do not change."""
    eod_token, path = KINDS[kind][1], bring(kind)
    base = tokenizers.Tokenizer.from_file(str(path))
    other = {"wordpiece": "[CLS]", "llama3": "<|begin_of_text|>", "unigram": "<unk>"}.get(kind)
    added = ["<｜User▁1｜>", "<|the bot|>", *([other] if other else [])]
    manifest = adopt(path, eod_token, workspace / "mine", added)
    before = base.get_vocab_size()
    assert manifest["vocab_size"] == before + 2 and manifest["added_tokens"] == added
    assert ids_differ(path.parent, workspace / "mine") == ""
    loaded = Tokenizer.load(workspace / "mine", engine)
    said = loaded.check_exact(PROSE)
    assert said is None or "fastokens may give other ids than HF tokenizers for" in said
    text = f"<｜User▁1｜>rights<|the bot|> and{eod_token}<｜User▁1｜>"
    ids = loaded.encode(text).tolist()
    assert [one for one in ids if one >= before] == [before, before + 1, before]
    assert loaded.eod_id not in ids
    if other:
        assert loaded.encode(f"free {other} born").tolist().count(base.token_to_id(other)) == 1
    if kind in ("llama3", "neox"):
        assert loaded.decode(ids) == text
        assert loaded.bytes_of(before).decode() == "<｜User▁1｜>"


def test_tokens_added_to_a_vocabulary_of_two_files(workspace):
    """Adding tokens to a two-file vocabulary changes its sha256; extra files next to
    a tokenizer.json are kept.
    """
    save(training.train(iter(PROSE), 300), workspace / "own", None)
    first = adopt(workspace / "own", EOD_TOKEN, workspace / "mine")
    manifest = adopt(workspace / "own", EOD_TOKEN, workspace / "chat", ["<|user|>"])
    assert manifest["sha256"] != first["sha256"] and manifest["vocab_size"] == first["vocab_size"] + 1
    own = Tokenizer.load(workspace / "own")
    assert Tokenizer.load(workspace / "chat").cuts_safely and own.cuts_safely
    markers = {"<｜User｜>": True, "<|the bot|>": False, "答：": False, "<|français|>": True}
    for number, (token, is_safe) in enumerate(markers.items()):
        adopt(workspace / "own", EOD_TOKEN, workspace / f"chat-{number}", [token])
        loaded = Tokenizer.load(workspace / f"chat-{number}")
        assert loaded.cuts_safely == is_safe, token
        # The characters of an added token are text, also those that a byte-level vocabulary uses for bytes.
        ids = loaded.encode(f"a{token}{token}b").tolist()
        assert len(ids) == 4 and loaded.decode(ids) == f"a{token}{token}b"
        assert loaded.bytes_of(ids[1]) == token.encode()
    (workspace / "own" / "tokenizer.json").unlink()
    again = adopt(workspace / "own", EOD_TOKEN, workspace / "again", ["<|user|>"])
    assert Tokenizer.load(workspace / "again").encode("<|user|>").tolist() == [again["vocab_size"] - 1]
    (workspace / "own" / "as-given").mkdir()
    (workspace / "own" / "as-given" / "chat_template.jinja").write_text("{{ messages }}")
    (workspace / "own" / "as-given" / "tokenizer.json").write_text("{}")
    (workspace / "own" / "tokenizer.json").write_bytes((workspace / "mine" / "tokenizer.json").read_bytes())
    kept = adopt(workspace / "own", EOD_TOKEN, workspace / "beside", ["<|user|>"])["kept"]
    assert list(kept) == ["chat_template.jinja"]


def test_word_level_eod_is_cut_in_two(bring, workspace):
    """In a word-level tokenizer, an EOD written in the text becomes two unknown words."""
    path = bring("word_level")
    adopt(path, "[SEP]", workspace / "mine")
    reference = tokenizers.Tokenizer.from_file(str(path))
    reference.encode_special_tokens = True
    assert reference.token_to_id("[SEP]") in reference.encode("and [SEP] free").ids
    loaded = Tokenizer.load(workspace / "mine")
    tokens = {number: word for word, number in reference.get_vocab().items()}
    assert [tokens[number] for number in loaded.encode("and [SEP] free").tolist()] == [
        "and",
        "[UNK]",
        "[UNK]",
        "free",
    ]


def test_letters_that_become_eod_by_normalization(bring, workspace):
    """Text that a normalizer turns into the EOD token is located by bisecting the text."""

    def change(document):
        document["normalizer"] = {"type": "Lowercase"}
        document["model"]["vocab"]["<end>"] = 300
        document["added_tokens"].append(
            {"id": 300, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
        )

    adopt(bring("word_level", change), "<end>", workspace / "mine")
    loaded = Tokenizer.load(workspace / "mine")
    assert loaded.eod_id == 300
    ids = loaded.encode("born <END> free <end> and")
    assert 300 not in ids and len(ids) >= 5


def test_a_character_that_is_eod(bring, workspace):
    """If the EOD token is a single character, a text with that character is
    refused, and the error names it.
    """
    adopt(bring("wordpiece"), ".", workspace / "mine")
    loaded = Tokenizer.load(workspace / "mine")
    assert loaded.encode("no stop").size
    with pytest.raises(DataError) as caught:
        loaded.encode("a stop.")
    assert str(caught.value) == (
        "mine: the character '.' is encoded as the end-of-document token ., so a document that contains it "
        "would end there. Set tokenizer.eod_token to another token."
    )


def test_added_tokens(bring, workspace):
    """Special tokens written in a text are plain text; runs of spaces in the vocabulary are used."""
    adopt(bring("neox"), EOD_TOKEN, workspace / "mine")
    for engine in ("fastokens", "tokenizers"):
        loaded = Tokenizer.load(workspace / "mine", engine)
        blanks = loaded.vocab_size - 1
        assert loaded.encode("    x").tolist()[0] == blanks
        assert loaded.decode([blanks]) == "    "
    adopt(bring("llama3"), "<|end_of_text|>", workspace / "other")
    for engine in ("fastokens", "tokenizers"):
        assert 0 not in Tokenizer.load(workspace / "other", engine).encode("<|begin_of_text|>x")


def test_what_would_lose_text_is_fixed(bring, workspace):
    """Truncation, padding, dropout and a non-special EOD are corrected on import, so
    that ids cover the whole text.
    """

    def change(document):
        document["truncation"] = {
            "direction": "Right",
            "max_length": 5,
            "strategy": "LongestFirst",
            "stride": 0,
        }
        document["padding"] = {
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
        } | {
            "pad_id": 1,
            "pad_type_id": 0,
            "pad_token": "x",
        }
        document["model"]["dropout"] = 0.5
        document["added_tokens"][0]["special"] = False

    plain = adopt(bring("neox"), EOD_TOKEN, workspace / "plain")
    spoilt = adopt(bring("neox", change), EOD_TOKEN, workspace / "mine")
    document = json.loads((workspace / "mine" / "tokenizer.json").read_text(encoding="utf-8"))
    assert document == json.loads((workspace / "plain" / "tokenizer.json").read_text(encoding="utf-8"))
    assert spoilt["sha256"] != plain["sha256"]  # the sha256 of the original file
    for engine in ("fastokens", "tokenizers"):
        ids = Tokenizer.load(workspace / "mine", engine).encode(PROSE[0] + EOD_TOKEN)
        assert (
            ids.tolist() == Tokenizer.load(workspace / "plain", engine).encode(PROSE[0] + EOD_TOKEN).tolist()
        )
        assert spoilt["eod_id"] not in ids


def test_ids_with_gaps(bring, workspace):
    """The vocabulary size is the largest id plus one, because the model has a row for each id."""

    def change(document):
        document["model"]["vocab"]["far"] = 999

    assert adopt(bring("word_level", change), "[SEP]", workspace / "mine")["vocab_size"] == 1000


def test_a_kind_that_fastokens_is_not_proven_for(bring, workspace):
    """A kind of model on which fastokens was not verified is encoded with tokenizers;
    check_exact gives the reason.
    """
    adopt(bring("wordpiece"), "[SEP]", workspace / "mine")
    loaded = Tokenizer.load(workspace / "mine", "fastokens")
    assert loaded.encode("All human").tolist()
    assert loaded.engine == "tokenizers"
    sentence = Tokenizer.load(workspace / "mine", "fastokens").check_exact()
    assert sentence == (
        "mine: fastokens may give other ids than HF tokenizers for a WordPiece model. Encoding with HF "
        "tokenizers, which is slower."
    )


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("unigram", "Set tokenizer.eod_token to one of these tokens: </s>."),
        ("llama3", "Set tokenizer.eod_token to one of these tokens: <|end_of_text|>."),
        ("wordpiece", "Set tokenizer.eod_token to one of these tokens: [SEP]."),
    ],
)
def test_no_such_eod(bring, workspace, kind, advice):
    """An EOD token that does not exist is refused with likely candidates, and nothing is written."""
    with pytest.raises(DataError) as caught:
        adopt(bring(kind), EOD_TOKEN, workspace / "mine")
    assert str(caught.value) == (
        f"{kind}/tokenizer.json: the tokenizer lacks the end-of-document token <|endoftext|>. {advice}"
    )
    assert not (workspace / "mine").exists()


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"version": "1.0"}', b"\xff"])
def test_not_a_tokenizer_json(workspace, content):
    """A damaged file, and JSON of another format, are refused with the file's name."""
    (workspace / "tokenizer.json").write_bytes(content)
    with pytest.raises(DataError, match=r"^tokenizer\.json: not a tokenizer\.json of HF tokenizers: "):
        adopt(workspace / "tokenizer.json", EOD_TOKEN, workspace / "mine")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        # spm_train writes <unk> first, with score 0 and type 2.
        (
            b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02\n\x0c\n\x03<s>\x15\x00\x00\x00\x00\x18\x03",
            "SentencePiece model",
        ),
        (b"IQ== 0\nIg== 1\n", "tiktoken file"),
    ],
)
@pytest.mark.parametrize("name", ["tokenizer.model", "cl100k.tiktoken"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_other_formats(workspace, content, kind, name, is_folder):
    """For another tokenizer format, the message names the format and the command that converts it."""
    (workspace / "llama").mkdir()
    (workspace / "llama" / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        adopt(workspace / "llama" / ("" if is_folder else name), EOD_TOKEN, workspace / "mine")
    assert str(caught.value) == (
        f"llama/{name}: the file is a {kind}, but a tokenizer.json is needed. Most models have one in the "
        "same folder. Otherwise put the model's tokenizer_config.json into that folder and convert the file "
        "once, "
        'where transformers, sentencepiece and tiktoken are installed: python -c "from transformers import '
        "AutoTokenizer; AutoTokenizer.from_pretrained('llama').save_pretrained('llama')\". Then set "
        "tokenizer.path to llama/tokenizer.json."
    )
    assert not (workspace / "mine").exists()


@pytest.mark.parametrize(
    ("name", "content", "load"),
    [
        (
            "tekken.json",
            json.dumps(
                {
                    "config": {"pattern": r"\\p{L}+", "num_vocab_tokens": 1, "default_vocab_size": 2},
                    "vocab": [{"rank": 0, "token_bytes": "AA==", "token_str": None}],
                }
            ),
            "from transformers.integrations.mistral import convert_tekken_tokenizer; "
            "convert_tekken_tokenizer('m/tekken.json')",
        ),
        (
            "vocab.txt",
            "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n",
            "from transformers import BertTokenizer; BertTokenizer.from_pretrained('m')",
        ),
        (
            "tekken.json",
            json.dumps({"version": 3, "vocab": [{"token_bytes": "AA=="}], "config": {}}, indent=2),
            "from transformers.integrations.mistral import convert_tekken_tokenizer; "
            "convert_tekken_tokenizer('m/tekken.json')",
        ),
        (
            "vocab.txt",
            "the\n##s\n[UNK]\n",
            "from transformers import BertTokenizer; BertTokenizer.from_pretrained('m')",
        ),
    ],
)
def test_files_that_have_their_own_conversion(workspace, name, content, load):
    """For a format with a separate converter, the message gives that command; the soak runs both."""
    (workspace / "m").mkdir()
    (workspace / "m" / name).write_text(content)
    for path in (workspace / "m", workspace / "m" / name):
        with pytest.raises(DataError) as caught:
            adopt(path, EOD_TOKEN, workspace / "mine")
        assert f"python -c \"{load}.save_pretrained('m')\"" in str(caught.value)
        assert str(caught.value).startswith(f"m/{name}: the file is ")


def test_files_that_are_no_tokenizer_by_themselves(workspace):
    """fairseq's dict.txt is not taken for a tiktoken file; for one of GPT-2's two
    files, the folder is suggested.
    """
    (workspace / "dict.txt").write_text("the 100\nof 50\n")
    with pytest.raises(DataError, match=r"dict\.txt: not a tokenizer\.json of HF tokenizers"):
        adopt(workspace / "dict.txt", EOD_TOKEN, workspace / "mine")
    (workspace / "m").mkdir()
    (workspace / "m" / "vocab.json").write_text('{"a": 0}')
    (workspace / "m" / "merges.txt").write_text("a b\n")
    with pytest.raises(DataError, match=r"To import vocab\.json and merges\.txt, give their folder, m\."):
        adopt(workspace / "m" / "vocab.json", EOD_TOKEN, workspace / "mine")


@pytest.mark.soak
def test_the_commands_write_a_tokenizer(workspace, monkeypatch):
    """The commands in the messages can be run unchanged and write a tokenizer.json that can be imported."""
    byte_entries = [
        {"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode(), "token_str": None}
        for byte in range(256)
    ]
    tekken = {
        "config": {"pattern": r"\p{L}+|\s+|.", "num_vocab_tokens": 256, "default_vocab_size": 266},
        "vocab": byte_entries,
        "special_tokens": [
            {"rank": rank, "token_str": token, "is_control": True}
            for rank, token in enumerate(["<unk>", "<s>", "</s>"])
        ],
    }
    tekken["config"] |= {"default_num_special_tokens": 10, "version": "v3"}
    vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n"
    for name, content, eod in (
        ("tekken.json", json.dumps(tekken), "</s>"),
        ("vocab.txt", vocabulary, "[SEP]"),
    ):
        folder = workspace / Path(name).stem
        folder.mkdir()
        (folder / name).write_text(content)
        with pytest.raises(DataError) as caught:
            adopt(folder, eod, workspace / "mine")
        command = re.search(r'python (-c) "(.*?)"', str(caught.value))
        subprocess.run([sys.executable, command[1], command[2]], check=True, cwd=workspace)
        assert adopt(folder, eod, workspace / f"own-{folder.name}")["eod_token"] == eod


def test_nothing_there(workspace):
    """A folder without a tokenizer and a missing path are refused with a list of accepted inputs."""
    for path in (workspace, workspace / "absent"):
        with pytest.raises(DataError) as caught:
            adopt(path, EOD_TOKEN, workspace / "mine")
        assert str(caught.value).endswith(
            "no tokenizer found. Give the path of a tokenizer.json, of a folder that contains one, or of a "
            "folder with vocab.json and merges.txt (GPT-2's encoder.json and vocab.bpe, renamed)."
        )


# --- GPT-2's two files --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_gpt2s_two_files(gpt2_files, workspace):
    """GPT-2's two files are copied; EOD is the last entry, and the ids equal those of HF tokenizers."""
    manifest = adopt(gpt2_files, EOD_TOKEN, workspace / "gpt2")
    size = len(json.loads((gpt2_files / "vocab.json").read_text(encoding="utf-8")))
    assert (manifest["vocab_size"], manifest["eod_id"], manifest["trained"]) == (size, size - 1, None)
    identity = ""
    for name in ("merges.txt", "vocab.json"):
        content = (gpt2_files / name).read_bytes()
        assert (workspace / "gpt2" / name).read_bytes() == content
        identity += f"{name} {hashlib.sha256(content).hexdigest()}\n"
    assert manifest["sha256"] == hashlib.sha256(identity.encode()).hexdigest()
    reference = tokenizers.ByteLevelBPETokenizer.from_file(
        str(gpt2_files / "vocab.json"), str(gpt2_files / "merges.txt")
    )
    for engine in ("fastokens", "tokenizers"):
        loaded = Tokenizer.load(workspace / "gpt2", engine)
        for text in ("Hello world", *PROSE[:3]):
            assert loaded.encode(text).tolist() == reference.encode(text).ids
    assert Tokenizer.load(workspace / "gpt2").check_exact() is None


@pytest.mark.slow
def test_known_ids_of_gpt2(shared_data, workspace):
    manifest = adopt(shared_data / "gpt2", EOD_TOKEN, workspace / "gpt2")
    assert (manifest["vocab_size"], manifest["eod_id"]) == (50257, 50256)
    assert Tokenizer.load(workspace / "gpt2").encode("Hello world").tolist() == [15496, 995]


@pytest.mark.slow
def test_in_place(gpt2_files, workspace):
    """Files that the user has put into the tokenizer's own folder are imported without moving them."""
    folder = workspace / "mine"
    shutil.copytree(gpt2_files, folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    before = (folder / "vocab.json").stat().st_ino
    manifest = adopt(folder, EOD_TOKEN, folder)
    assert (folder / "vocab.json").stat().st_ino == before
    assert Tokenizer.load(folder).sha256 == manifest["sha256"]


def test_a_folder_that_nbtrain_made(workspace, texts):
    """A copy of a tokenizer folder that nbtrain trained is the same tokenizer,
    unless its manifest is missing.
    """
    made = save(training.train(texts, 300), workspace / "made", {"x": 1})
    copied = adopt(workspace / "made", EOD_TOKEN, workspace / "copy")
    assert (copied["sha256"], copied["vocab_size"]) == (made["sha256"], 300)
    (workspace / "made" / "manifest.json").unlink()
    other = adopt(workspace / "made", EOD_TOKEN, workspace / "other")
    assert set(other["files"]) == {"tokenizer.json"}
    assert other["sha256"] != made["sha256"]


def without(*bytes_):
    """Return a function that changes a byte-level BPE as if its training text had none of these bytes."""

    def change(document):
        letters = {byte_letters()[byte] for byte in bytes_}
        model = document["model"]
        vocab = [entry for entry in model["vocab"] if not letters & {*entry}]
        model["vocab"] = {entry: number for number, entry in enumerate(vocab)}
        model["merges"] = [merge for merge in model["merges"] if not letters & {*"".join(merge)}]
        document["added_tokens"] = [
            one | {"id": vocab.index(one["content"])} for one in document["added_tokens"][:1]
        ]

    return change


@pytest.mark.parametrize("kind", ["letters", "bytes"])
def test_a_bpe_that_would_leave_text_out(bring, workspace, kind):
    """A BPE that has no entry for some bytes or characters, and no unknown token, is
    refused: it would lose text.
    """

    def of_letters(document):
        document["pre_tokenizer"] = {"type": "WhitespaceSplit"}

    def of_known_letters(document):
        of_letters(document)
        document["model"]["unk_token"] = EOD_TOKEN

    path = bring("neox", of_letters if kind == "letters" else without(0xC3))
    with pytest.raises(DataError) as caught:
        adopt(path, EOD_TOKEN, workspace / "mine")
    assert str(caught.value) == (
        "neox/tokenizer.json: the BPE has neither an entry for each byte nor an unknown token, so text would "
        "be lost silently. Train it again with all bytes (in HF tokenizers: BpeTrainer with "
        "initial_alphabet=ByteLevel.alphabet()), or set model.unk_token in the file to one of its entries."
    )
    assert not (workspace / "mine").exists()
    path = bring("neox", of_known_letters if kind == "letters" else without(0xC0, 0xF5, 0xFF))
    manifest = adopt(path, EOD_TOKEN, workspace / "mine")
    assert manifest["unknown_id"] == (manifest["eod_id"] if kind == "letters" else None)


@pytest.mark.parametrize("form", ["one file", "two files", "added tokens"])
def test_what_was_kept_goes_on_to_the_next(bring, workspace, form):
    """A tokenizer imported again keeps the chat template and settings that came with the original."""
    theirs = bring("neox").parent
    if form == "two files":
        save(training.train(iter(PROSE), 300), theirs, None)
        for name in ("manifest.json", "tokenizer.json"):
            (theirs / name).unlink()
    (theirs / "chat_template.jinja").write_text("{{ messages }}")
    files.write_json(theirs / "tokenizer_config.json", {"eos_token": EOD_TOKEN})
    added = ["<|user|>"] if form == "added tokens" else []
    first = adopt(theirs, EOD_TOKEN, workspace / "first", added)
    second = adopt(workspace / "first", EOD_TOKEN, workspace / "second")
    third = adopt(workspace / "second", EOD_TOKEN, workspace / "third", ["<|bot|>"])
    assert {"chat_template.jinja", "tokenizer_config.json"} <= set(first["kept"])
    assert second == {**first, "source": second["source"]}
    assert third["added_tokens"] == [*added, "<|bot|>"]
    assert set(third["kept"]) == {"chat_template.jinja", "tokenizer_config.json"}
    if form != "two files":
        given = files.sha256_of(theirs / "tokenizer.json")
        assert all(is_as_given(workspace / name, given) for name in ("first", "second", "third"))


def test_two_files_that_are_no_byte_level_bpe(workspace):
    """Two files that are damaged, or without EOD or some bytes, are refused with the reason."""
    (workspace / "merges.txt").write_text("")
    (workspace / "vocab.json").write_text("{")
    with pytest.raises(DataError, match=r"^vocab\.json, merges\.txt: not a byte-level BPE: "):
        adopt(workspace, EOD_TOKEN, workspace / "mine")
    (workspace / "vocab.json").write_text('{"a": 0, "</s>": 1}')
    with pytest.raises(DataError) as caught:
        adopt(workspace, EOD_TOKEN, workspace / "mine")
    assert str(caught.value) == (
        "vocab.json: the tokenizer lacks the end-of-document token <|endoftext|>. Set "
        "tokenizer.eod_token to one of these tokens: </s>."
    )
    (workspace / "vocab.json").write_text('{"a": 0, "<|endoftext|>": 1}')
    with pytest.raises(DataError) as caught:
        adopt(workspace, EOD_TOKEN, workspace / "mine")
    assert str(caught.value) == (
        "vocab.json: not a byte-level BPE: 255 of the 256 bytes have no entry, so text would be lost. Import "
        "the tokenizer's tokenizer.json instead."
    )
    assert not (workspace / "mine").exists()


def slow_files(folder, settings, added=None):
    """Write the files of a slow tokenizer of transformers 4: GPT-2's two files, settings and added tokens."""
    folder.mkdir()
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "12", EOD_TOKEN]
    files.write_json(folder / "vocab.json", {letter: number for number, letter in enumerate(letters)})
    (folder / "merges.txt").write_text("#version: 0.2\n1 2\n")
    files.write_json(folder / "tokenizer_config.json", settings)
    if added is not None:
        files.write_json(folder / "added_tokens.json", added)


def listed(*tokens):
    return {"added_tokens_decoder": {str(257 + at): {"content": token} for at, token in enumerate(tokens)}}


GPT2 = {"tokenizer_class": "GPT2Tokenizer"}
QWEN = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", **listed(EOD_TOKEN, "<|im_end|>")}


@pytest.mark.parametrize(
    ("settings", "added", "why"),
    [
        (QWEN, None, "tokenizer_config.json names Qwen2Tokenizer, which splits text differently"),
        (
            {"tokenizer_class": ["x"]},
            None,
            "tokenizer_config.json names ['x'], which splits text differently",
        ),
        (
            GPT2,
            {EOD_TOKEN: 257, "<|im_end|>": 258},
            "added_tokens.json lists the added token <|im_end|>, which vocab.json lacks",
        ),
        (
            listed(EOD_TOKEN, "<|im_end|>"),
            None,
            "tokenizer_config.json lists the added token <|im_end|>, which vocab.json lacks",
        ),
    ],
)
@pytest.mark.parametrize("tokens", [(), ("<new>",)])
def test_two_files_of_another_model(workspace, settings, added, why, tokens):
    """The two files of another model are refused, because GPT-2's pre-tokenizer
    would split text differently.
    """
    slow_files(workspace / "slow", settings, added)
    for read in (lambda: adopt("slow", EOD_TOKEN, "mine", tokens), lambda: entries_of(Path("slow"))):
        with pytest.raises(DataError) as caught, contextlib.chdir(workspace):
            read()
        assert str(caught.value) == (
            f"slow: vocab.json and merges.txt without a tokenizer.json are read as GPT-2's, but {why}. "
            "Create "
            'the tokenizer.json once, where transformers is installed: python -c "from '
            "transformers import AutoTokenizer; "
            "AutoTokenizer.from_pretrained('slow').save_pretrained('slow')\"."
        )
    assert not (workspace / "mine").exists()


@pytest.mark.parametrize(
    ("settings", "added"),
    [
        ({}, None),
        ({"tokenizer_class": None, "added_tokens_decoder": [1]}, [1]),
        (GPT2 | listed(EOD_TOKEN), {EOD_TOKEN: 257}),
        (
            {"tokenizer_class": "GPT2TokenizerFast", "added_tokens_decoder": {"1": 2, "3": {"content": [4]}}},
            {},
        ),
    ],
)
def test_two_files_of_gpt2(workspace, settings, added):
    """Two files are read as GPT-2's unless their settings name another class or another token."""
    slow_files(workspace / "slow", settings, added)
    assert adopt(workspace / "slow", EOD_TOKEN, workspace / "mine")["vocab_size"] == 258
    assert len(entries_of(workspace / "slow")) == 258


@pytest.mark.slow
def test_the_named_command_writes_a_tokenizer_json(workspace):
    """After the command in the message, the folder can be imported, with the same ids as in transformers."""
    transformers = pytest.importorskip("transformers")
    folder = workspace / "slow"
    slow_files(folder, QWEN | {"pad_token": EOD_TOKEN}, {"<|im_end|>": 258})
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    adopt(folder, "<|im_end|>", workspace / "mine")
    loaded = Tokenizer.load(workspace / "mine")
    assert loaded.eod_id == 258
    for text in ("a12", "e\u0301 \u212b", "Hello world"):
        theirs = transformers.AutoTokenizer.from_pretrained(folder)(text).input_ids
        assert loaded.encode(text).tolist() == theirs


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one["model"]["vocab"].update(x="y"), "the id of 'x' is \"y\""),
        (lambda one: one["model"]["vocab"].update(x=None), "the id of 'x' is null"),
        (lambda one: one["model"]["vocab"].update(x=-1), "the id of 'x' is -1"),
        (lambda one: one["model"]["vocab"].update(x=True), "the id of 'x' is true"),
        (lambda one: one["added_tokens"][0].update(id=1.5), "the id of '[UNK]' is 1.5"),
    ],
)
def test_ids_that_are_no_numbers(bring, change, said):
    with pytest.raises(DataError) as caught:
        entries_of(bring("word_level", change).parent)
    assert str(caught.value) == (
        f"word_level/tokenizer.json: {said}; an id must be a whole number of at least 0. Copy or download "
        "the file again."
    )
