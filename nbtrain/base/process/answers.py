"""Request handling in a GPU-side process: read one JSON request from stdin, write JSON lines to stdout.

    answer_request(answers)    a line for each result; for an NbtrainError, the line is
                               {"kind": "error", "error": class name, "message"}

The client is jobs/gpu_side.py, which raises the same error with the same message.
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from nbtrain.base.errors import NbtrainError

Answer = dict[str, Any]


def answer_request(answers: Callable[[Answer], Iterator[Answer]]) -> int:
    """Print the results that `answers` yields for the request on stdin.

    Return the exit code of the process.
    """
    request = json.load(sys.stdin)
    try:
        for answer in answers(request):
            _say(answer)
    except NbtrainError as error:
        _say({"kind": "error", "error": type(error).__name__, "message": str(error)})
        return error.exit_code
    return 0


def _say(answer: Answer) -> None:
    # ASCII output gives the reader the same text whatever the locale of this process.
    print(json.dumps(answer), flush=True)
