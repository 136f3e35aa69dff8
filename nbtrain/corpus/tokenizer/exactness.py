"""Compares the ids of two tokenizer engines on texts for which engines are known to differ.

The result is stored in the tokenizer folder, because loading HF tokenizers and comparing the texts takes as
long as encoding 10 MB.
"""

import contextlib
import hashlib
import importlib.metadata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nbtrain.base import files

Encode = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]

ENGINES = ("fastokens", "tokenizers")
REMEMBERED = ".exactness.json"
SAMPLE_TEXTS = 100
SAMPLE_CHARS = 500  # characters compared of each text; HF tokenizers encodes 2 to 5 MB per second

HARD_TEXTS = (
    "",
    " ",
    "  leading and trailing  ",
    " " * 2000,
    "\n" * 300,
    "a \n\n\n b\t\t c\r d\r\n\r\ne \r",
    "\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u0085\u000b\u000c\u001c\u001f x",
    "x" * 500,
    "\x00\x01\x7f\x80\x9f \x00",
    "don't I'll we've you're it's I'm he'd DON'T I'LL 'tis 's's ''ll '",
    "don\u2019t I\u2019ll \u2018quoted\u2019 \u201cdouble\u201d",
    "0 12 123 1234 12345678901234567890 3.14 1,000 1e-9 0x7f \u0661\u0662\u0663 \u0967\u0968 \u00bd \u00b2 "
    "\u2167 a1b2c3",
    # accents, marks, ligatures, unusual upper and lower case
    "na\u00efve caf\u00e9 \u00c5ngstr\u00f6m e\u0301 a\u0300\u0316\u20dd \ufb01 \u00df \u017f \u0130 \u0131",
    "\u0300\u0301 starts with marks \u200b\u200c\u200d\ufeff\u00ad",
    # a character that older Unicode versions count as a space, and a long s in contractions
    "\u182c\u1820\u1837\u180e\u1820 \u180e\u1820 x\u180e's \u180e\n the'\u017f THE'S 's'\u017f",
    # emoji with joiners, skins, flags, keycap
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd "
    "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7 \u263a\ufe0f 1\ufe0f\u20e3 "
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    # Chinese, Japanese, Korean
    "\u4e2d\u6587\u6587\u672c\uff0c\u6a19\u9ede\u3002 \u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 "
    "\u30ab\u30bf\u30ab\u30ca \ud55c\uad6d\uc5b4 \ub744\uc5b4\uc4f0\uae30",
    # Hebrew, Arabic, Hindi, Bengali, Tamil, Thai, Lao, Khmer, Burmese, Tibetan, Georgian, Amharic
    "\u05e2\u05d1\u05e8\u05d9\u05ea "
    "\u0627\u0644\u0652\u0639\u064e\u0631\u064e\u0628\u0650\u064a\u064e\u0651\u0629 "
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f "
    "\u09ac\u09be\u0982\u09b2\u09be \u0ba4\u0bae\u0bbf\u0bb4\u0bcd "
    "\u0e44\u0e17\u0e22\u0e44\u0e21\u0e48\u0e21\u0e35\u0e0a\u0e48\u0e2d\u0e07\u0e27\u0e48\u0e32\u0e07 "
    "\u0ea5\u0eb2\u0ea7 \u1781\u17d2\u1798\u17c2\u179a \u1019\u103c\u1014\u103a\u1019\u102c "
    "\u0f56\u0f7c\u0f51\u0f0b \u10e5\u10d0\u10e0\u10d7\u10e3\u10da\u10d8 \u12a0\u121b\u122d\u129b",
    "\U00010400\U0001f600\U000e0001\U0010ffff\ufffd\ufffe",
    "x=1;y=[2,3]\n    return {'a': 0x7f}\n\t\tif (a&&b||!c) { s += \"\\n\"; } // ok\n#include <stdio.h>\n",
    "https://example.org/a_b-c?d=%20&e=f#g user@example.org C:\\path\\file.txt",
    "| a | b |\n|---|---|\n| 1 | 2 |\n------------ ============ ............ !!!???",
    "_under_score_ __init__ snake_case camelCase SCREAMING_CASE a'b a-b a.b a/b",
    "<s></s><pad><unk><mask>[CLS][SEP][PAD][MASK]<|endoftext|><|im_start|>x<|im_end|><|end_of_text|>",
    "dGhpcyBpcyBub3QgYSBzZWNyZXQ=" * 20,
    "ab" * 700 + " " + "\u4e2d" * 700,
)


def remembered(folder: Path, key: dict[str, str]) -> dict[str, Any] | None:
    """Return the result stored for `key`, {"difference": a difference or None}; None if nothing is stored."""
    with contextlib.suppress(ValueError, OSError):  # an incomplete or unreadable file: compare again
        value = files.read_json(folder / REMEMBERED)
        if isinstance(value, dict) and value.get("key") == key and "difference" in value:
            return value
    return None


def remember(folder: Path, key: dict[str, str], difference: str | None) -> None:
    """Store the result in the folder. In a read-only folder, each process compares the engines again."""
    with contextlib.suppress(OSError):
        files.write_json(folder / REMEMBERED, {"key": key, "difference": difference})


def key_of(tokenizer_json_sha256: str, eod_token: str) -> dict[str, str]:
    """Return the key under which the result is stored.

    It consists of the hashes of tokenizer.json and of the compared texts, and the versions of the engines.
    """
    texts = hashlib.sha256("\0".join((*HARD_TEXTS, eod_token)).encode("utf-8", "surrogatepass"))
    return {
        "tokenizer.json": tokenizer_json_sha256,
        "texts": texts.hexdigest(),
        **{name: importlib.metadata.version(name) for name in ENGINES},
    }


def first_difference(
    encode: Encode, reference: Encode, sample_texts: Sequence[str], eod_token: str
) -> str | None:
    """Return a clause on the first text for which fastokens and HF tokenizers differ; None if they agree.

    Compares HARD_TEXTS, texts that contain `eod_token`, and the beginnings of the first SAMPLE_TEXTS texts.
    """
    eod = (eod_token, 2 * eod_token, f"a{eod_token}b", f" {eod_token} \n{eod_token}\n", eod_token[:-1])
    texts = [*HARD_TEXTS, *eod, *(text[:SAMPLE_CHARS] for text in sample_texts[:SAMPLE_TEXTS])]
    versions = " and ".join(f"{name} {importlib.metadata.version(name)}" for name in ENGINES)
    # HF tokenizers runs first, so that its memory is free again before fastokens loads.
    other_ids, other_offsets = reference(texts)
    try:
        ids, offsets = encode(texts)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a Rust panic is not an Exception
        return f"{versions} cannot be compared: fastokens failed ({error})"
    if np.array_equal(ids, other_ids) and np.array_equal(offsets, other_offsets):
        return None
    for number, text in enumerate(texts):
        row = ids[offsets[number] : offsets[number + 1]]
        other_row = other_ids[other_offsets[number] : other_offsets[number + 1]]
        if not np.array_equal(row, other_row):
            return f"{versions} differ on {text if len(text) <= 40 else text[:40] + '...'!a}"
    return f"{versions} differ"
