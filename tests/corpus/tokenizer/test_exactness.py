"""fastokens, HF tokenizers and tiktoken give the same GPT-2 ids for natural and adversarial texts."""

import gzip
import json
import random

import numpy as np
import pytest

from nbtrain.corpus.tokenizer import exactness, training
from nbtrain.corpus.tokenizer.folder import EOD_TOKEN, adopt
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from tests.corpus import made

# Unusual spacing, contractions and characters of many kinds, on which engines have differed.
PIECES = [
    *(
        " ",
        "  ",
        "\t",
        "\n",
        "\r",
        "\r\n",
        "\n\n",
        "\u00a0",
        "\u2003",
        "\u3000",
        "\u2028",
        "\u0085",
        "\x0b",
        "\x1f",
    ),
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'", "\u2019s", "''"),
    *(
        "a",
        "the",
        " the",
        "Hello",
        "don",
        "I",
        "x1",
        "_",
        "12",
        "123456",
        ".",
        "...",
        ",",
        "!",
        "(",
        ")",
        "-",
        "--",
        "=",
    ),
    *(
        "\u00e9",
        "e\u0301",
        "\u0300",
        "\u00df",
        "\u0130",
        "\u017f",
        "\u00bd",
        "\u00b2",
        "\u0661",
        "\u0967",
        "\u2167",
    ),
    *(
        "\u4e2d",
        "\u6587",
        "\uff0c",
        "\u3042",
        "\u30a2",
        "\ud55c",
        "\u05d0",
        "\u0639\u0631",
        "\u0939\u093f",
        "\u0e44\u0e17",
    ),
    *(
        "\U0001f600",
        "\U0001f469\u200d\U0001f467",
        "\U0001f1e9\U0001f1ea",
        "\u200d",
        "\u200b",
        "\ufeff",
        "\u00ad",
        "\ufffd",
    ),
    *("\x00", "\x7f", "\U0010ffff", "\ue000", EOD_TOKEN, "<|", "|>", "endoftext"),
]
SEED = 20_000


def adversarial(count: int) -> list[str]:
    """Return seeded strings of up to 40 items: entries of PIECES, repetitions of one, or any code points."""
    chance = random.Random(SEED)
    texts = []
    for _ in range(count):
        text = []
        for _ in range(chance.randint(1, 40)):
            draw = chance.random()
            if draw < 0.75:
                text.append(chance.choice(PIECES))
            elif draw < 0.85:
                text.append(chance.choice(PIECES) * chance.randint(2, 30))
            else:
                point = chance.randrange(chance.choice([0x100, 0x3000, 0x10000, 0x110000]))
                text.append(chr(point) if not 0xD800 <= point < 0xE000 else "x")
        texts.append("".join(text))
    return texts


def natural(shared_data, name: str, count: int, size: int) -> list[str]:
    with gzip.open(shared_data / "text" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as stream:
        return [json.loads(line)["text"][:size] for line, _ in zip(stream, range(count))]


@pytest.fixture(scope="module")
def gpt2(gpt2_files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    adopt(gpt2_files, EOD_TOKEN, folder)
    return folder


def assert_same(folder, texts) -> np.ndarray:
    fast, reference = Tokenizer.load(folder, "fastokens"), Tokenizer.load(folder, "tokenizers")
    ids, offsets = fast.encode_batch(texts)
    assert fast.engine == "fastokens"
    other_ids, other_offsets = reference.encode_batch(texts)
    different = [
        number
        for number in range(len(texts))
        if not np.array_equal(
            ids[offsets[number] : offsets[number + 1]],
            other_ids[other_offsets[number] : other_offsets[number + 1]],
        )
    ]
    assert [texts[number] for number in different] == []
    assert fast.eod_id not in ids
    return ids


def assert_as_tiktoken(folder, texts, ids: np.ndarray) -> None:
    """Assert that tiktoken gives the same ids, with ranks from vocab.json and GPT-2's published pattern."""
    tiktoken = pytest.importorskip("tiktoken")
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    byte_of = {letter: byte for byte, letter in enumerate(training.byte_letters())}
    eod = vocab.pop(EOD_TOKEN)
    oracle = tiktoken.Encoding(
        "gpt2-from-files",
        pat_str=training.GPT2_PATTERN,
        mergeable_ranks={bytes(byte_of[letter] for letter in entry): rank for entry, rank in vocab.items()},
        special_tokens={EOD_TOKEN: eod},
    )
    assert ids.tolist() == [token for row in oracle.encode_ordinary_batch(texts) for token in row]


@pytest.mark.slow
def test_a_thousand_adversarial_texts(gpt2):
    """All engines agree on a thousand adversarial texts, which decode to the same text again."""
    texts = [*adversarial(1000), *exactness.HARD_TEXTS]
    assert_same(gpt2, texts)
    fast = Tokenizer.load(gpt2)
    assert [fast.decode(fast.encode(text)) for text in texts[::7]] == texts[::7]


@pytest.mark.soak
def test_twenty_thousand_adversarial_texts(gpt2):
    """fastokens, HF tokenizers and tiktoken give the same ids, and an EOD written in
    a text is text in all three.
    """
    texts = adversarial(20_000)
    assert_as_tiktoken(gpt2, texts, assert_same(gpt2, texts))


@pytest.mark.slow
def test_texts_of_every_script(gpt2):
    """For 60 generated documents of each script, fastokens, HF tokenizers and tiktoken agree."""
    texts = [text for script in made.SCRIPTS for text in made.texts(script, 60)]
    assert_as_tiktoken(gpt2, texts, assert_same(gpt2, texts))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "size"),
    [("udhr-multilingual", 400, 10**6), ("chinese-classics", 3000, 10**6), ("books-30mb", 300, 10**6)],
)
def test_natural_texts(gpt2, shared_data, name, count, size):
    """The three engines agree on 388 languages, 3,000 Chinese texts and 300 excerpts of books."""
    texts = natural(shared_data, name, count, size)
    assert_as_tiktoken(gpt2, texts, assert_same(gpt2, texts))


@pytest.mark.slow
def test_languages_in_short(gpt2, shared_data):
    """The engines agree on short texts in 388 languages and on 100 Chinese texts."""
    texts = natural(shared_data, "udhr-multilingual", 400, 200) + natural(
        shared_data, "chinese-classics", 100, 200
    )
    assert len(texts) > 450
    assert_as_tiktoken(gpt2, texts, assert_same(gpt2, texts))


@pytest.mark.slow
def test_pathological_runs(gpt2):
    """The engines agree on 50,000 repeated spaces, newlines, letters or symbols."""
    assert_same(
        gpt2, [" " * 50_000, "\n" * 50_000, "a" * 50_000, "=" * 50_000, "\u4e2d" * 20_000, " \n" * 25_000]
    )


def test_hard_texts_are_of_every_kind():
    """The texts that check_exact always compares have every feature on which engines have differed."""
    together = "\n".join(exactness.HARD_TEXTS)
    for piece in (
        " " * 2000,
        "'ll",
        "\u200d",
        "\u4e2d",
        "e\u0301",
        "\x00",
        "\r",
        EOD_TOKEN,
        "1234567890",
        "\U0010ffff",
    ):
        assert piece in together
    assert "" in exactness.HARD_TEXTS
