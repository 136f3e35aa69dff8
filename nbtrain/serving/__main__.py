"""`python -m nbtrain.serving`: the server process that nb.serve starts. It ends when its stdin is closed.

The process reads one JSON object from stdin, {"options": fields of ServeOptions, "token"}. It then prints one
line, as soon as the server is ready or has failed to start:

    {"kind": "ready", "url", "name", "facts"}
    {"kind": "error", "error", "message"}
"""

import json
import sys
from dataclasses import asdict

from nbtrain.base.errors import NbtrainError
from nbtrain.base.process.signals import hear_signals
from nbtrain.serving.options import ServeOptions
from nbtrain.serving.server import Ready, serve


def main() -> int:
    """Serve until stdin ends."""
    request = json.loads(sys.stdin.readline())

    def say(kind: str, **more: object) -> None:
        print(json.dumps({"kind": kind, **more}), flush=True)

    def when_ready(ready: Ready) -> None:
        say("ready", **asdict(ready))

    def until() -> None:
        sys.stdin.read()

    def note(message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    try:
        return serve(ServeOptions(**request["options"]), request["token"], when_ready, note, until)
    except NbtrainError as error:
        say("error", error=type(error).__name__, message=str(error))
        return error.exit_code


if __name__ == "__main__":
    hear_signals()
    sys.exit(main())
