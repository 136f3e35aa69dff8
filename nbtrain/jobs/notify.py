"""The notification at a job's end: a program that reads summary.json, or an address to which it is posted.

    notify(config.notify, summary) -> iterator of (whether it succeeded, a sentence about it)

Program and address get the same JSON object, and each has at most notify.timeout_seconds; no error is raised.
The sentences never contain the address, because the path and query of such addresses are secret.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any

from nbtrain.base.text.addresses import text_without_secrets
from nbtrain.base.text.terminal import shortened
from nbtrain.base.version import __version__
from nbtrain.base.workspace import resolved_program
from nbtrain.config.sections.notify_section import SCHEMES, NotifyConfig

# Bytes at the end of the output of a failed program that are searched for the line to report.
OUTPUT_BYTES = 4096


def notify(config: NotifyConfig, summary: dict[str, Any]) -> Iterator[tuple[bool, str]]:
    """Run the program, then post to the address; yield (whether it succeeded, a sentence) for each.

    Nothing is sent if the job's state is not one of notify.states.
    """
    if summary["state"] not in config.states:
        return
    body = json.dumps(summary).encode()
    if config.command:
        went_wrong = _run(config.command, body, config.timeout_seconds)
        yield not went_wrong, f"notify.command {went_wrong or 'has run'}"
    if config.url_variable:
        went_wrong = _posted(os.environ.get(config.url_variable, ""), body, config.timeout_seconds)
        yield (
            not went_wrong,
            f"the address in {config.url_variable} {went_wrong or 'has received the summary'}",
        )


def _run(command: list[str], body: bytes, seconds: float) -> str:
    """Run the program in a separate session; return what went wrong, or "" if it succeeded."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                [resolved_program(command[0]), *command[1:]],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return f"did not start: {error}"
        try:
            process.communicate(body, seconds)
        except subprocess.TimeoutExpired:
            # The whole process group is killed, because a script may wait for a child.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"took more than notify.timeout_seconds = {seconds:g} and was killed"
        if process.returncode == 0:
            return ""
        output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT_BYTES))
        lines = output.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    said = f": {shortened(text_without_secrets(last))}" if last else ""
    return f"ended with exit code {process.returncode}{said}"


def _posted(address: str, body: bytes, seconds: float) -> str:
    """Post to the address; return what went wrong, or "" if it succeeded."""
    found = [f"did not answer within notify.timeout_seconds = {seconds:g}"]

    def post() -> None:
        found[0] = _post(address, body, seconds)

    # A socket's own timeout never expires if the server sends a byte now and then.
    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0]


def _post(address: str, body: bytes, seconds: float) -> str:
    if not address.startswith(SCHEMES):
        return "is missing, or does not begin with https:// or http://"
    headers = {"Content-Type": "application/json", "User-Agent": f"nbtrain/{__version__}"}
    try:
        request = urllib.request.Request(address, body, headers, method="POST")
        with urllib.request.build_opener(_WithoutRedirects).open(request, timeout=seconds):
            return ""
    except urllib.error.HTTPError as error:
        return f"answered with status {error.code}"
    except TimeoutError:
        return f"did not answer within notify.timeout_seconds = {seconds:g}"
    except urllib.error.URLError as error:
        reason = error.reason
        words = reason.strerror if isinstance(reason, OSError) else ""
        return f"cannot be reached: {words or type(reason).__name__}"
    except (OSError, HTTPException, ValueError) as error:
        # The library's message may quote the address.
        return f"cannot be reached: {type(error).__name__}"


class _WithoutRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that rejects redirects, because a redirected POST would become a GET without the summary."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None
