"""Conditions under which fastokens may encode: compared character classes, and
reasons against a tokenizer.
"""

import copy
import importlib.metadata
import json
import random
from itertools import pairwise

import fastokens
import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from nbtrain.corpus.tokenizer import proven
from nbtrain.corpus.tokenizer.folder import adopt
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.corpus.tokenizer.unfinished import byte_letters, letter_bytes

EOD = "<|endoftext|>"
LETTERS = byte_letters()
POINTS = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
# Every character is tried between upper-case and lower-case letters, digits, symbols, spaces and newlines,
# doubled, and after an apostrophe. The neighbours take two bytes or more, so that each border next to them is
# visible whatever happens at the other one. Each order of merges shows one of the two borders of an
# apostrophe.
PLACES = "\u00e9{}\u00e9\u00c9{}\u00c9\u0663{}\u0663\u3002{}\u3002 {} {}{}\n{}\u00e9'{}\u00e9"
APOSTROPHES = "\u00e9'{}\u00e9'{}{}\u3002"


def revealing(pre_tokenizer, normalizer=None, text: str = "", is_reversed: bool = False):
    """Return a byte-level BPE whose ids show where the pre-tokenizer splits `text`.

    It only merges the last byte of a character with the first byte of the next. If two boundaries share a
    single-byte character, only one of them is merged; the order of the merges decides which.
    """
    content = text.encode()
    pairs = sorted({(left, right) for left, right in pairwise(content) if not 0x80 <= right < 0xC0})
    merges = [(LETTERS[left], LETTERS[right]) for left, right in (pairs[::-1] if is_reversed else pairs)]
    vocab = {letter: number for number, letter in enumerate([*LETTERS, *map("".join, merges), EOD])}
    built = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    built.pre_tokenizer, built.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        built.normalizer = normalizer
    built.add_special_tokens([EOD])
    return built


def words_of(expressions) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions]
    return pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
RULES = {
    "GPT-2": (GPT2, None),
    "GPT-2, NFC": (GPT2, normalizers.NFC()),
    **{name: (words_of(expressions), None) for expressions, name in proven.WORDS.items()},
    # With literal newlines, as in DeepSeek's own file, fastokens selects another scanner.
    "DeepSeek 3, its file": (
        words_of(
            expression.replace(r"\r", "\r").replace(r"\n", "\n")
            for expression in next(key for key, name in proven.WORDS.items() if name == "DeepSeek 3")
        ),
        None,
    ),
}


def differing(name: str, points: list[str], places: str, is_reversed: bool = False) -> list[str]:
    """Insert each character into `places`; return the characters for which the engines split differently."""
    texts = ["".join(places.replace("{}", point) for point in group) for group in batched(points, 1000)]
    built = revealing(*RULES[name], "\n".join(texts), is_reversed)
    fast = fastokens.Tokenizer.from_json_str(built.to_str())

    def is_same(group) -> bool:
        text = "".join(places.replace("{}", point) for point in group)
        ids, _ = fast.encode_batch_flat([text], split_special_tokens=True)
        return np.frombuffer(ids, "<u4").tolist() == built.encode(text, add_special_tokens=False).ids

    return sorted(
        point
        for group in batched(points, 1000)
        if not is_same(group)
        for point in group
        if not is_same(point)
    )


def batched(points: list[str], size: int) -> list[list[str]]:
    return [points[start : start + size] for start in range(0, len(points), size)]


def check(name: str, points: list[str]) -> None:
    """Assert that the engines differ only on the characters that encoding checks for."""
    disputed = {piece[-1] for piece in proven.DISPUTED} if not name.startswith("GPT-2") else set()
    found = {*differing(name, points, PLACES), *differing(name, points, APOSTROPHES, is_reversed=True)}
    assert found <= disputed


@pytest.mark.soak
@pytest.mark.parametrize("name", RULES)
def test_every_code_point(name):
    """For all 1,112,064 code points in every kind of position, the engines split alike,
    except at disputed characters.
    """
    check(name, POINTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_part_of_the_code_points(name):
    """For every 10,007th code point and those on which engines have differed, only disputed characters are
    split differently.
    """
    check(name, [*POINTS[::10_007], *"\u180e\u017f\u212a\u0130\u0345\u200b\u0085\u2028'sSlL/\r\n 1"])


@pytest.mark.parametrize("name", RULES)
def test_what_the_engines_dispute(name, tmp_path):
    """A text with disputed characters is encoded by HF tokenizers, between texts that fastokens encodes."""
    texts = ["a \u180e b", "plain", "x\u180e's \u180e\n", "the'\u017f THE'S 's'\u017f", "", "\u017f\u180e'"]
    built = revealing(*RULES[name], "\n".join(texts))
    built.save(str(tmp_path / "tokenizer.json"))
    adopt(tmp_path / "tokenizer.json", EOD, tmp_path / "own")
    own = Tokenizer.load(tmp_path / "own")
    ids, offsets = own.encode_batch(texts)
    assert own.engine == "fastokens"
    for number, text in enumerate(texts):
        row = ids[offsets[number] : offsets[number + 1]].tolist()
        assert row == built.encode(text, add_special_tokens=False).ids


def any_bpe(chance: random.Random) -> tuple[dict, list[str]]:
    """Return a tokenizer.json with random merges, and texts whose words use the merges."""
    letters = [LETTERS[byte] for byte in chance.sample(range(256), chance.choice([3, 5, 20, 256]))]
    vocab = {letter: number for number, letter in enumerate([*LETTERS, EOD])}
    merges, entries = [], list(letters)
    for _ in range(chance.choice([5, 50, 500, 3000])):
        pair = (chance.choice(entries), chance.choice(entries))
        if len("".join(pair)) <= chance.choice([4, 12, 60]) and pair not in merges:
            merges.append(pair)
            if (joined := "".join(pair)) not in vocab:
                vocab[joined] = len(vocab)
                entries.append(joined)
    if chance.random() < 0.3:
        chance.shuffle(merges)
    built = document(pre_tokenizer=chance.choice([document()["pre_tokenizer"], LLAMA3]))
    built["model"] |= {"vocab": vocab, "merges": merges, "ignore_merges": chance.random() < 0.3}
    byte_of = letter_bytes()
    texts = [
        bytes(byte_of[letter] for letter in chance.choices(letters, k=chance.choice([1, 5, 20, 400])))
        for _ in range(40)
    ]
    pieces = ["a", "b", " ", "\n", "\u00e9", "\u4e2d", "'s", "ab "]
    return built, [
        *(text.decode("utf-8", "replace") for text in texts),
        *(text.decode("latin-1") for text in texts),
        *("".join(chance.choices(pieces, k=chance.randint(1, 300))) for _ in range(20)),
    ]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 200))])
def test_any_byte_level_bpe(seed, tmp_path):
    """The engines agree for random merges in any order, words that skip them, and words of 400 bytes."""
    built, texts = any_bpe(random.Random(seed))
    (tmp_path / "tokenizer.json").write_text(json.dumps(built))
    adopt(tmp_path / "tokenizer.json", EOD, tmp_path / "own")
    own = Tokenizer.load(tmp_path / "own")
    ids, offsets = own.encode_batch(texts)
    assert own.engine == "fastokens"
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "own" / "tokenizer.json"))
    for number, text in enumerate(texts):
        row = ids[offsets[number] : offsets[number + 1]].tolist()
        assert row == reference.encode(text, add_special_tokens=False).ids


def document(**changes) -> dict:
    """Return a tokenizer.json with GPT-2's pre-tokenizer, in which some sections are replaced."""
    return {**json.loads(revealing(GPT2).to_str()), **changes}


def model(**changes) -> dict:
    return document(model={**document()["model"], **changes})


def added(*tokens: AddedToken) -> dict:
    built = revealing(GPT2)
    built.add_tokens(list(tokens))
    return json.loads(built.to_str())


LLAMA3 = json.loads(revealing(words_of(next(iter(proven.WORDS)))).to_str())["pre_tokenizer"]


@pytest.mark.parametrize(
    "changed",
    [
        document(),
        document(normalizer={"type": "NFC"}),
        document(pre_tokenizer=LLAMA3),
        model(ignore_merges=True, unk_token=EOD),
        added(AddedToken("<|user|>", normalized=False)),
        added(AddedToken("    ", normalized=True)),
    ],
)
def test_what_fastokens_may_encode(changed):
    """fastokens may encode a byte-level BPE with a known pre-tokenizer, also with added chat tokens."""
    assert proven.agreement(changed).objection is None


def _with(step: dict, index: int, **changes) -> dict:
    changed = copy.deepcopy(step)
    changed["pretokenizers"][index] |= changes
    return changed


OBJECTIONS = {
    "a Unigram model": model(type="Unigram"),
    "a BPE with dropout": model(dropout=0.1),
    "a BPE with end_of_word_suffix": model(end_of_word_suffix="</w>"),
    "a BPE with byte_fallback": model(byte_fallback=True),
    "a BPE without an entry for each byte": model(
        vocab={entry: number for entry, number in document()["model"]["vocab"].items() if entry != "a"}
    ),
    "a vocabulary in which two entries have one id": model(vocab={**document()["model"]["vocab"], "zz": 5}),
    "the normalizer Lowercase": document(normalizer={"type": "Lowercase"}),
    "a different rule for splitting words (ByteLevel)": document(
        pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}
    ),
    "a different rule for splitting words (Split and ByteLevel)": document(
        pre_tokenizer=_with(LLAMA3, 0, pattern={"Regex": r"\p{L}+|\s+"})
    ),
    "a different rule for splitting words (Digits and ByteLevel)": document(
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, proven.GPT2_WORDS],
        }
    ),
    "added tokens with lstrip, rstrip or single_word": added(AddedToken("<|user|>", lstrip=True)),
    "added tokens of which only some are normalized": added(
        AddedToken("<|user|>", normalized=True), AddedToken("<|bot|>", normalized=False)
    ),
    "added tokens whose ids differ": document(
        added_tokens=[{**token, "id": 99_999} for token in added(AddedToken("<|u|>"))["added_tokens"]]
    ),
}


@pytest.mark.parametrize("objection", OBJECTIONS)
def test_objections(objection):
    """A tokenizer on which fastokens is not verified is encoded with tokenizers, and the reason is given."""
    assert str(proven.agreement(OBJECTIONS[objection]).objection).startswith(objection)


@pytest.mark.parametrize("name", proven.VERSIONS)
def test_another_version(name, monkeypatch):
    """Engine versions that were not compared are not trusted; the message lists the compared versions."""
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda of: "9.9" if of == name else version(of))
    assert proven.agreement(document()).objection == (
        f"any tokenizer, because {name} 9.9 was not compared (only {', '.join(proven.VERSIONS[name])})"
    )


def test_the_installed_versions_were_compared():
    """The installed engine versions were compared; otherwise the slower engine would encode every text."""
    for name, versions in proven.VERSIONS.items():
        assert importlib.metadata.version(name) in versions


@pytest.mark.parametrize("tokens", [["<x>", "<y>", "b", "<z>"], ["b"], ["<y>", "<z>"]])
@pytest.mark.parametrize("vocab", [{"a": 0, "b": 1, "<x>": 2}, {"a": 0, "b": 7, "<x>": 2}])
def test_ids_of_added_tokens(tokens, vocab):
    """fastokens is used only if it would give added tokens the same ids as tokenizers does."""
    built = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    built.add_tokens(tokens)
    entries = [{"content": token, "id": built.token_to_id(token)} for token in tokens]
    has_gaps = 7 in vocab.values() and tokens != ["b"]
    assert proven._are_numbered(entries, vocab) is not has_gaps
    entries[-1]["id"] += 1
    assert not proven._are_numbered(entries, vocab)
