"""Log-probabilities for clients: the model's own, before temperature, truncation and penalties."""

from typing import Any

import torch

from nbtrain.corpus.tokenizer.tokenizer import Tokenizer


def logprobs_of(
    logits: torch.Tensor, tokens: list[int | None], alternatives: int, tokenizer: Tokenizer
) -> list[dict[str, Any] | None]:
    """Return the log-probability entry of each of r tokens, from logits [r, v].

    Where `tokens` contains None, the result contains None too.

    An entry is {"id", "token", "bytes", "logprob", "top"}; "top" lists entries for the `alternatives`
    likeliest tokens at the same position.
    """
    wanted = [row for row, token in enumerate(tokens) if token is not None]
    found: list[dict[str, Any] | None] = [None] * len(tokens)
    if not wanted:
        return found
    values = logits[wanted].float().log_softmax(-1)
    ids = torch.tensor([tokens[row] for row in wanted], device=values.device)
    own = values.gather(-1, ids.unsqueeze(-1)).squeeze(-1).tolist()
    best, where = values.topk(alternatives) if alternatives else (values[:, :0], ids[:, None][:, :0])
    for row, logprob, few, few_ids in zip(wanted, own, best.tolist(), where.tolist()):
        top = [_entry(token, value, tokenizer) for token, value in zip(few_ids, few)]
        token = tokens[row]
        assert token is not None
        found[row] = {**_entry(token, logprob, tokenizer), "top": top}
    return found


def _entry(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    written = tokenizer.bytes_of(token)
    return {"id": token, "token": token_text(written), "bytes": [*written], "logprob": logprob}


def token_text(written: bytes) -> str:
    """Return a token's text.

    A token that is only part of a character is written as in OpenAI's API, such as bytes:\\xe2\\x82, so that
    different tokens stay distinct.
    """
    try:
        return written.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in written)
