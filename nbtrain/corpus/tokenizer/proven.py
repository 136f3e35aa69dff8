"""Decides from tokenizer.json whether fastokens gives the ids of HF tokenizers for every text.

fastokens is a second implementation, with a different regular expression engine. The two agree if all of the
following is true (checked by agreement()). Text for any other tokenizer is encoded with HF tokenizers, which
is slower.

- The model is a byte-level BPE with an entry for each byte, so unknown tokens and fallbacks never occur.
- Text is split into words by GPT-2's rule or by an expression in WORDS. The result depends only on the
  classes of the characters, which were compared for all 1,112,064 code points (`make soak` repeats the
  comparison). DISPUTED lists the characters that the engines classify differently; a text that contains one
  of them is encoded with HF tokenizers.
- Text is normalized to NFC or not at all. Both engines use the Unicode 9 tables for NFC.
- Added tokens that occur in texts cannot overlap other added tokens in a way that changes the result:
  HF tokenizers searches for normalized added tokens after the others, fastokens for all at once.
"""

import importlib.metadata
from typing import Any, NamedTuple

from nbtrain.corpus.tokenizer.unknown import is_whole_byte_level

# Versions that were compared. All of these tokenizers versions have the same character tables.
VERSIONS = {
    "fastokens": ("0.3.5",),
    "tokenizers": ("0.22.0", "0.22.1", "0.22.2", "0.23.1", "0.23.2", "0.23.3"),
}

# fastokens' general regular expression engine treats U+180E as white space. HF tokenizers treats U+017F as an
# s where case is ignored, so that it ends a contraction.
DISPUTED = ("\u180e", "'\u017f")

# {regular expressions of a tokenizer's Split steps, in order: the tokenizers that use them}
WORDS: dict[tuple[str, ...], str] = {
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ): "GPT-4, Llama 3",
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ): "Qwen 2 and 3",
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ): "Qwen 3.5",
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ): "GPT-4o, gpt-oss",
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ): "Mistral's tekken",
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
        r"|\s+(?!\S)|\s+",
    ): "nanochat",
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ): "DeepSeek 3",
}
GPT2_WORDS = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
BYTES_ALONE = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


class Agreement(NamedTuple):
    """Whether fastokens may encode with a tokenizer, and which texts it must leave to HF tokenizers."""

    objection: str | None
    """Feature of the tokenizer that fastokens may handle differently, as a noun phrase; None without one."""
    disputed: tuple[str, ...] = ()
    """Texts on which the engines differ; a text that contains one of them is encoded with HF tokenizers."""


def agreement(document: dict[str, Any]) -> Agreement:
    """Return whether fastokens gives the same ids as HF tokenizers for a parsed tokenizer.json."""
    for name, versions in VERSIONS.items():
        if (version := importlib.metadata.version(name)) not in versions:
            return Agreement(
                f"any tokenizer, because {name} {version} was not compared (only {', '.join(versions)})"
            )
    objection = _of_model(document) or _of_normalizer(document) or _of_added_tokens(document)
    if objection:
        return Agreement(objection)
    return _of_words(document.get("pre_tokenizer"))


def _of_model(document: dict[str, Any]) -> str | None:
    model = document["model"]
    if model["type"] != "BPE":
        return f"a {model['type']} model"
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            return f"a BPE with {key}"
    if not is_whole_byte_level(document):
        return "a BPE without an entry for each byte"
    if len(set(model["vocab"].values())) < len(model["vocab"]):
        return "a vocabulary in which two entries have one id"
    return None


def _of_normalizer(document: dict[str, Any]) -> str | None:
    normalizer = document.get("normalizer")
    if normalizer is None or normalizer == {"type": "NFC"}:
        return None
    return f"the normalizer {normalizer.get('type')}"


def _of_added_tokens(document: dict[str, Any]) -> str | None:
    """Return the feature of the added tokens that fastokens may handle differently, or None.

    Special tokens do not matter, because they are encoded as text.
    """
    vocab, added = document["model"]["vocab"], document.get("added_tokens") or []
    contents = [token["content"] for token in added]
    if len(set(contents)) < len(contents) or "" in contents:
        return "added tokens that are empty or repeated"
    if not _are_numbered(added, vocab):
        return "added tokens whose ids differ from the ids that HF tokenizers assigns"
    met = [token for token in added if not token["special"]]
    if any(token[flag] for token in met for flag in ("lstrip", "rstrip", "single_word")):
        return "added tokens with lstrip, rstrip or single_word"
    normalized, others = ([one for one in added if one["normalized"] is wanted] for wanted in (True, False))
    letters, other_letters = ({*"".join(one["content"] for one in group)} for group in (normalized, others))
    if met and letters & other_letters:
        return "added tokens of which only some are normalized"
    return None


def _are_numbered(added: list[dict[str, Any]], vocab: dict[str, int]) -> bool:
    """Return whether the added tokens have the ids that HF tokenizers assigns when it reads the file.

    HF tokenizers ignores the ids in the file: added tokens that are in the vocabulary keep their ids there,
    and the others are numbered after the vocabulary.
    """
    entries = [token for token in added if token["content"] in vocab]
    others = [token["id"] for token in added if token["content"] not in vocab]
    if any(token["id"] != vocab[token["content"]] for token in entries):
        return False
    # If the vocabulary's ids have gaps, the ids after them depend on the version of tokenizers.
    has_gaps = bool(others) and max(vocab.values()) >= len(vocab)
    return others == list(range(len(vocab), len(vocab) + len(others))) and not has_gaps


def _of_words(step: dict[str, Any] | None) -> Agreement:
    steps = [step or {}]
    if steps[0].get("type") == "Sequence":
        steps = steps[0]["pretokenizers"]
    *splits, last = steps
    if not splits and _is(last, GPT2_WORDS):
        return Agreement(None)
    if splits and _is(last, BYTES_ALONE) and tuple(map(_expression, splits)) in WORDS:
        return Agreement(None, DISPUTED)
    kinds = " and ".join(str(step.get("type")) for step in steps)
    return Agreement(f"a different rule for splitting words ({kinds})")


def _is(step: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return whether a step of a tokenizer.json, such as its pre-tokenizer, has the settings in `wanted`.

    `wanted` holds settings and their values. A setting that the step lacks counts as true.
    """
    return all(step.get(key, True) == value for key, value in wanted.items())


def _expression(split: dict[str, Any]) -> str | None:
    """Return the regular expression of a Split step that makes each match a word; None for other steps."""
    kept = (split.get("behavior"), split.get("invert", False)) in (("Isolated", False), ("Removed", True))
    expression = split.get("pattern", {}).get("Regex") if split.get("type") == "Split" and kept else None
    # DeepSeek's file contains the line end characters themselves instead of escapes.
    return expression and expression.replace("\r", r"\r").replace("\n", r"\n")
