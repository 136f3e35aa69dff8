"""Log-probabilities of tokens for readers: of the model itself, before temperature, cuts and penalties."""

from typing import Any

import torch

from nbtrain.corpus.tokenizer.tokenizer import Tokenizer


def logprobs_of(
    logits: torch.Tensor, tokens: list[int | None], alternatives: int, tokenizer: Tokenizer
) -> list[dict[str, Any] | None]:
    """For logits [r, v] the entry of each of r tokens; None stands for a token that is not wanted.

    {"id", "token", "bytes", "logprob", "top": the likeliest in its place, as such entries}
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
    return {"id": token, "token": shown(written), "bytes": [*written], "logprob": logprob}


def shown(written: bytes) -> str:
    """A token's text; the bytes of a part of a character as OpenAI writes them, so that no two are alike."""
    try:
        return written.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in written)
