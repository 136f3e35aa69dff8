"""Encoding of a context and its continuation, with the same result as in lm-evaluation-harness.

Spaces at the end of the context belong to the continuation. Context and continuation are encoded together. If
the context alone has n tokens, the continuation is everything after the first n tokens. A text begins with
the tokenizer's prefix, such as Llama 2's <s>. An empty context is replaced by the tokenizer's bos_token, or
by the end-of-document token. If both together are longer than the model's context, tokens are dropped from
the left (`TemplateLM._encode_pair`, `TemplateLM.loglikelihood`, `HFLM.tok_encode` and
`HFLM._loglikelihood_tokens` in lm-evaluation-harness 0.4.13).
"""

from nbtrain.corpus.tokenizer.tokenizer import Tokenizer


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Encode a context and its continuation; return (token ids of the context, of the continuation)."""
    blanks = len(context) - len(context.rstrip())
    if blanks:
        context, continuation = context[:-blanks], context[-blanks:] + continuation
    if not context:
        prefix, ids = [prefix_of(tokenizer)], tokens_of(tokenizer, continuation, add_special_tokens=False)
        return prefix, ids[1:] if ids[:1] == prefix else ids
    before = tokens_of(tokenizer, context)
    return before, tokens_of(tokenizer, context + continuation)[len(before) :]


def prefix_of(tokenizer: Tokenizer) -> int:
    """Return the id of the token that replaces an empty context, as in HFLM: BOS, or else end of document."""
    return tokenizer.eod_id if tokenizer.bos_id is None else tokenizer.bos_id


def tokens_of(tokenizer: Tokenizer, text: str, add_special_tokens: bool | None = None) -> list[int]:
    """Return the token ids of a text, encoded as by HFLM.tok_encode.

    The tokenizer's prefix, such as Llama 2's <s>, is added with add_special_tokens=True, and by default
    (None) unless the text already begins with it. If the tokenizer has no prefix, special tokens in the text
    are encoded as ordinary text.
    """
    before = tokenizer.before_text
    if not before:
        return tokenizer.encode(text).tolist()
    if add_special_tokens is None:
        add_special_tokens = not text.startswith(tokenizer.decode([prefix_of(tokenizer)]))
    ids = tokenizer.encode_with_special(text)
    return [*before, *ids] if add_special_tokens else ids


def fitted(context: list[int], continuation: list[int], positions: int) -> tuple[list[int], list[int]]:
    """Return (context, continuation), truncated from the left so that both together fit the model.

    Together they may have one token more than the model has positions, because the last token is only
    predicted.
    """
    most = positions + 1
    continuation = continuation[-positions:]
    return context[-(most - len(continuation)) :], continuation
