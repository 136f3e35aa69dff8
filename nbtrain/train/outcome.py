"""The rank's last word to its wrapper: one JSON object through the pipe whose number is in
NBTRAIN_EXIT_FD."""

import json
import os


def report(outcome: str, step: int | None, message: str, detail: str = "") -> None:
    """outcome, step, message and detail as in records.ExitRecord; a rank cannot report that it was killed.

    Without a wrapper this does nothing: the message is in the log.
    """
    number = os.environ.get("NBTRAIN_EXIT_FD")
    if number is None:
        return
    word = {"outcome": outcome, "step": step, "message": message, "detail": detail}
    with os.fdopen(int(number), "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps(word) + "\n")
