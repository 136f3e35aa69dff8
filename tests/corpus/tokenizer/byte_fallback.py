"""A small BPE with ByteFallback, like LLaMA's: SentencePiece words, with other characters as bytes."""

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers

from nbtrain.corpus.tokenizer.folder import adopt
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer

EOD = "</s>"


def byte_fallback_tokenizer(folder: Path) -> Tokenizer:
    """Save the tokenizer in `folder`; its vocabulary is the characters of "hello", a space, and all bytes."""
    words = ["<unk>", EOD, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"helo"]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u2581", "hello")]
    words += ["".join(merge) for merge in merges]
    vocab = {word: place for place, word in enumerate(words)}
    made = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    folder.mkdir(parents=True)
    made.save(str(folder / "brought.json"))
    adopt(folder / "brought.json", EOD, folder)
    return Tokenizer.load(folder)
