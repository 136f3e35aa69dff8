"""Decodes generated tokens to a stream of text, in which each complete character appears once."""

from collections.abc import Sequence

from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.corpus.tokenizer.unfinished import REPLACEMENT


class TextStream:
    """Decodes tokens to text: `add(token)` returns the new text, and all pieces together follow `prompt`.

    A character that no token completes is never returned. Bytes that are not UTF-8 are returned as U+FFFD.
    Each token is decoded together with the tokens of the previous piece, because its text depends on them:
    SentencePiece puts the space between words into the second word and drops the very first space.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()):
        self._tokenizer = tokenizer
        self._before = list(prompt)
        self._new: list[int] = []
        self._shown = tokenizer.decode_finished(self._before)[0]
        self.prompt_chars = len(self._shown)
        """Number of characters in the prompt's text: the position where the new text begins."""

    def add(self, token: int) -> str:
        """Return the text that `token` completes; "" while its character still lacks bytes."""
        self._new.append(token)
        text, is_unfinished = self._decoded()
        piece = text[len(self._shown) :]
        if is_unfinished:
            self._shown = text
            return piece
        if text.endswith(REPLACEMENT):
            # A run of bytes with an error becomes U+FFFD as a whole, so later tokens are decoded without it.
            self._before, self._shown = [], ""
        elif (alone := self._tokenizer.decode(self._new)) and not alone.endswith(REPLACEMENT):
            self._before, self._shown = self._new, alone
        else:
            self._before, self._shown = self._before + self._new, text
        self._new = []
        return piece

    def _decoded(self) -> tuple[str, bool]:
        text, is_unfinished = self._tokenizer.decode_finished(self._before + self._new)
        if text.startswith(self._shown):
            return text, is_unfinished
        # The new bytes are invalid and have turned the preceding run into U+FFFD.
        self._before, self._shown = [], ""
        return self._tokenizer.decode_finished(self._new)
