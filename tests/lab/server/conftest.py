"""A Jupyter Server with nbtrain's extension, which all tests of this folder share, and a finished run."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from tests.end_to_end.jupyterlab import TOKEN, jupyter_server
from tests.lab.server.described import check_answer
from tests.lab.widgets.fake_run import FakeJob


@dataclass
class Answer:
    """Response to a request: status, headers and body."""

    status: int
    content: bytes
    headers: Any
    address: str

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def message(self) -> str:
        return self.json["message"]


@dataclass
class Server:
    """A running Jupyter Server, and methods that send requests to it."""

    base: str
    output: Path
    environment: dict[str, str]

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: Any = None,
        token: str | None = TOKEN,
        opener: Any = None,
        **headers: str,
    ) -> Answer:
        """Send a request to nbtrain/<path>, or to another path if it begins with a slash.

        The response of an nbtrain route must be described in openapi.yaml.
        """
        answer = self._ask(path, method, body, token, opener, headers)
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        if not path.startswith("/") and answer.status != 405 and "/login" not in answer.address:
            check_answer(method, path, answer.status, kind, answer.json if "json" in kind else None)
        return answer

    def _ask(
        self, path: str, method: str, body: Any, token: str | None, opener: Any, headers: dict[str, str]
    ) -> Answer:
        if token:
            headers["Authorization"] = f"token {token}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        address = self.base + (path[1:] if path.startswith("/") else f"nbtrain/{path}")
        request = urllib.request.Request(address, body, method=method, headers=headers)
        opener = opener or urllib.request.build_opener()
        try:
            with opener.open(request, timeout=600) as response:
                return Answer(response.status, response.read(), response.headers, response.url)
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read(), error.headers, address)

    def get(self, path: str) -> Any:
        """Return the JSON of a GET request that must succeed."""
        answer = self.ask(path)
        assert answer.status == 200, answer.content
        return answer.json

    def browser(self) -> tuple[Any, str]:
        """Log in and return (opener with the cookies of the browser session, its XSRF token)."""
        cookies = CookieJar()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
        opener.open(f"{self.base}login?token={TOKEN}", timeout=600).close()
        return opener, next(cookie.value for cookie in cookies if cookie.name == "_xsrf")


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("server")
    with jupyter_server(root, "jupyter_server", NBTRAIN_WORKSPACE=str(root)) as (base, environment):
        yield Server(base, root / "output", environment)


@pytest.fixture(scope="package")
def run(server: Server) -> RunDir:
    """Return a run that has succeeded."""
    return ended_run(server.output, "gpt-done")


def ended_run(output: Path, name: str, steps: int = 20) -> RunDir:
    """Return a run of two ranks that has succeeded."""
    job = FakeJob(RunDir(output / name), steps=steps, world_size=2)
    for _ in range(steps):
        job.one_step()
    job.finish("SUCCEEDED", f"all {steps * 1024:,} tokens are done and saved")
    return job.run
