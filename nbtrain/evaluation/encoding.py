"""Encodes a context and its continuation, split as in lm-evaluation-harness.

Spaces at the end of the context belong to the continuation. The two are encoded together, and the
continuation is what follows as many tokens as the context alone has. An empty context is replaced by the
end-of-document token. If both are longer than the model's context, tokens are dropped from the left
(`TemplateLM._encode_pair` and `HFLM._loglikelihood_tokens` of lm-evaluation-harness 0.4.13).
"""

from nbtrain.corpus.tokenizer.tokenizer import Tokenizer


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Return (tokens of the context, tokens of the continuation)."""
    blanks = len(context) - len(context.rstrip())
    if blanks:
        context, continuation = context[:-blanks], context[-blanks:] + continuation
    if not context:
        return [tokenizer.eod_id], tokenizer.encode(continuation).tolist()
    before = tokenizer.encode(context).tolist()
    return before, tokenizer.encode(context + continuation).tolist()[len(before) :]


def fitted(context: list[int], continuation: list[int], positions: int) -> tuple[list[int], list[int]]:
    """Return the last tokens of both that fit the model. The very last token need not fit, because it is not
    read.
    """
    most = positions + 1
    continuation = continuation[-positions:]
    return context[-(most - len(continuation)) :], continuation
