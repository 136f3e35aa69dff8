"""A server that a notebook has started: its URL and token, requests to it, and stopping it."""

import contextlib
import json
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from nbtrain.base.errors import ConfigError, NbtrainError, named_error
from nbtrain.base.printing.report import Facts, Report, Result, Sentence
from nbtrain.base.text.amounts import counted
from nbtrain.jobs.gpu_side import last_output
from nbtrain.jobs.machine.environment import supervisor_environment
from nbtrain.serving.options import ServeOptions
from nbtrain.serving.tokens import new_token

MODULE = "nbtrain.serving"
END_SECONDS = 60.0
MOST_CHARS = 200
"""Maximum number of characters quoted from a response."""
# The server is on this machine, so requests bypass the proxies configured in the environment: a proxy could
# not reach the server and must not see its token.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Server(Result):
    """A model server started by this process. It ends with `stop()` or when this process ends."""

    def __init__(self, options: ServeOptions):
        """Start the server and wait until it is ready.

        Raises NbtrainError if the server fails to start. Raises ConfigError before a process is started if
        an option cannot be written as JSON.
        """
        self.token = new_token()
        """Token that every request must send."""
        try:
            asked = json.dumps({"options": asdict(options), "token": self.token}) + "\n"
        except TypeError as error:
            raise ConfigError(f"{options}: an option has a value of the wrong type ({error}).") from None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process runs)
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=supervisor_environment(),
            text=True,
            # Interrupting the notebook's kernel must not stop the server.
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(asked)
            self._process.stdin.flush()
        try:
            answer = self._first_answer()
        except BaseException:
            self.stop()
            raise
        self.url: str = answer["url"]
        """URL of the server, such as http://127.0.0.1:8000."""
        self.name: str | None = answer["name"]
        """Name of the run, for the field `model` of a request; None if any run is served."""
        self.facts: dict[str, Any] = answer["facts"]

    def _first_answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            code = self._process.wait()
            said = last_output(self._said)
            raise NbtrainError(f"the server ended with code {code}. Its last output:\n{said}")
        answer = json.loads(line)
        if answer["kind"] == "error":
            raise named_error(answer)
        return answer

    @property
    def base_url(self) -> str:
        """Base URL for OpenAI's client."""
        return f"{self.url}/v1"

    @property
    def is_running(self) -> bool:
        """Whether the server's process is running."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Stop the server. It lets running requests continue for the grace period, then unloads the model."""
        with contextlib.suppress(BrokenPipeError, OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._said.close()

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the response, for example post("/completions", {"prompt": "def "}).

        This is meant for a quick test; otherwise use OpenAI's client with base_url and token. Raises
        NbtrainError if the server refuses the request or does not respond.
        """
        with self._request(path, body) as answer:
            return json.loads(answer.read())

    def post_all(self, path: str, bodies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Send several requests at the same time, as several clients would, and return their responses."""
        with ThreadPoolExecutor(max(len(bodies), 1)) as clients:
            return list(clients.map(lambda body: self.post(path, body), bodies))

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Send a request and yield the chunks of its streamed response as they arrive."""
        with self._request(path, {**body, "stream": True}) as answer:
            for line in answer:
                content = line.decode().removeprefix("data: ").strip()
                if line.startswith(b"data: ") and content != "[DONE]":
                    chunk = json.loads(content)
                    if "error" in chunk:
                        raise NbtrainError(chunk["error"]["message"])
                    yield chunk

    def _request(self, path: str, body: Mapping[str, Any]) -> Any:
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(self.base_url + path, json.dumps(body).encode(), headers)
        try:
            return _OPENER.open(request)
        except urllib.error.HTTPError as error:
            with error:
                raise NbtrainError(_said_by(error)) from None
        except urllib.error.URLError as error:
            raise NbtrainError(f"{self.url} does not respond: {error.reason}.") from None

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def as_report(self) -> Report:
        """Return a report of the model, the URL, the token and the limits."""
        if not self.is_running:
            return Report("", [Sentence("the server has ended")])
        facts = self.facts
        texts = counted(facts["max_batch"], "text")
        shown = {
            "model": f"{self.name}, step {facts['step']}, {facts['dtype']} on {facts['device']}",
            "base_url": self.base_url,
            "api_key": self.token,
            "at once": f"{texts}, each with at most {facts['positions']:,} tokens",
            "chat template": facts["chat_template"],
            "a page to try it": f"{self.url}/?token={self.token}",
        }
        return Report("", [Facts(shown)])


def _said_by(error: urllib.error.HTTPError) -> str:
    """Return the server's error message, or the status and the start of the response if it has none."""
    text = error.read().decode(errors="replace")
    try:
        return json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"{error.url}: the server responded with status {error.code}: {text[:MOST_CHARS].strip()}"
