"""The REST half in a real Jupyter Server: who may ask, what comes back, and a stop that stops."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.rundir import RunDir
from nbtrain.lab.ui.script import panel_script
from nbtrain.monitor.snapshot import SNAPSHOT_KEYS
from tests.end_to_end.jupyterlab import TOKEN, jupyter_server
from tests.lab.widgets.fake_run import FakeJob

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]
FAKE_RUN = REPOSITORY / "tests" / "lab" / "widgets" / "fake_run.py"


@dataclass
class Server:
    """A running Jupyter Server with nbtrain's half."""

    base: str
    output: Path

    def request(
        self, path: str, method: str = "GET", token: str | None = TOKEN, opener: Any = None, **headers: str
    ) -> tuple[int, Any]:
        """(status, JSON or bytes)."""
        if token:
            headers["Authorization"] = f"token {token}"
        request = urllib.request.Request(self.base + path, method=method, headers=headers)
        opener = opener or urllib.request.build_opener()
        try:
            with opener.open(request, timeout=120) as response:
                status, content = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("server")
    with jupyter_server(root, "jupyter_server", NBTRAIN_WORKSPACE=str(root)) as (base, _):
        yield Server(base, root / "output")


@pytest.fixture(scope="module")
def run(server: Server) -> RunDir:
    """A run that has succeeded."""
    job = FakeJob(RunDir(server.output / "gpt-done"), steps=20, world_size=2)
    for _ in range(20):
        job.one_step()
    job.finish("SUCCEEDED", "all 20,480 tokens are done and saved")
    return job.run


def test_runs_and_a_run(server: Server, run: RunDir) -> None:
    """The list has a line for each run; a run is its snapshot."""
    status, listed = server.request("nbtrain/runs")
    assert status == 200
    assert [(entry["name"], entry["state"], entry["step"]) for entry in listed["runs"]] == [
        ("gpt-done", "SUCCEEDED", 20)
    ]
    status, snapshot = server.request("nbtrain/run/gpt-done?no_track_activity=1")
    assert status == 200
    assert tuple(snapshot) == SNAPSHOT_KEYS
    assert snapshot["run_id"] == run.record()["run_id"]
    assert snapshot["curves"]["loss"]["num_points"] == 20


def test_log_with_rank_and_offset(server: Server, run: RunDir) -> None:
    """The end of a rank's log, then only what is new; the supervisor has one too; a wrong rank fails."""
    _, part = server.request("nbtrain/run/gpt-done/log?rank=0")
    assert part["text"].splitlines()[-1].startswith("step    20 |")
    with run.newest_job().log(0, 0).open("a") as stream:
        stream.write("one more\n")
    _, more = server.request(f"nbtrain/run/gpt-done/log?rank=0&offset={part['end_bytes']}")
    assert more["text"] == "one more\n"
    run.newest_job().supervisor_log.write_text("torchrun started\n")
    assert server.request("nbtrain/run/gpt-done/log?rank=supervisor")[1]["text"] == "torchrun started\n"
    status, answer = server.request("nbtrain/run/gpt-done/log?rank=../0")
    assert (status, answer) == (
        400,
        {"message": 'rank = \'../0\' must be a number, "supervisor" or "node0".'},
    )
    run.newest_job().node_log(3).write_text("the agent's\n")
    assert server.request("nbtrain/run/gpt-done/log?rank=node3")[1]["text"] == "the agent's\n"
    assert server.request("nbtrain/run/gpt-done/log?offset=-1")[0] == 400


def test_the_page_of_a_job(server: Server, run: RunDir) -> None:
    """The newest job, or one by its id, with its log; another id is 404 with the ids that there are."""
    job_id = run.newest_job().job_id
    status, shown = server.request("nbtrain/run/gpt-done/job")
    assert (status, shown["job_id"], shown["active"]) == (200, job_id, False)
    assert server.request(f"nbtrain/run/gpt-done/job?job={job_id}")[1] == shown
    assert "step    20 |" in server.request(f"nbtrain/run/gpt-done/log?rank=0&job={job_id}")[1]["text"]
    for path in ("job?job=../gpt-done", "log?job=yesterday"):
        status, answer = server.request(f"nbtrain/run/gpt-done/{path}")
        assert status == 404 and answer["message"].endswith(f"; there are: {job_id}.")


@pytest.mark.parametrize("name", ["none", "..", "%2e%2e%2fetc", "GPT", "a" * 54])
def test_name_that_is_no_run_is_not_found(server: Server, run: RunDir, name: str) -> None:
    """No name leads out of the output root, and a wrong one is 404 with words."""
    for path in (f"nbtrain/run/{name}", f"nbtrain/run/{name}/log", f"nbtrain/run/{name}/job"):
        assert server.request(path)[0] == 404
    assert server.request(f"nbtrain/run/{name}/stop", "POST")[0] == 404
    assert server.request("nbtrain/run/none")[1]["message"].startswith("there is no run 'none' under ")


@pytest.mark.parametrize(
    "path",
    [
        "nbtrain/runs",
        "nbtrain/run/gpt-done",
        "nbtrain/run/gpt-done/log",
        "nbtrain/run/gpt-done/job",
        "nbtrain/static/panel.js",
        "nbtrain/tensorboard/",
    ],
)
def test_nobody_without_credentials_sees_anything(server: Server, run: RunDir, path: str) -> None:
    """Without a token or cookie: 403, or the login page; never content."""
    status, content = server.request(path, token=None)
    words = content if isinstance(content, bytes) else json.dumps(content).encode()
    assert status == 403 or b"Password or token" in words
    assert not any(
        content in words for content in (b"schema_version", b"job_id", b"nbt-head", b"data-address")
    )


def test_stop_needs_the_xsrf_token_with_a_cookie(server: Server, run: RunDir) -> None:
    """A foreign page that rides on the cookie is refused; the panel's own header is accepted."""
    cookies = CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
    opener.open(f"{server.base}login?token={TOKEN}", timeout=120).close()
    xsrf = next(cookie.value for cookie in cookies if cookie.name == "_xsrf")
    path = "nbtrain/run/gpt-done/stop"
    assert server.request(path, "POST", token=None, opener=opener)[0] == 403
    status, answer = server.request(path, "POST", token=None, opener=opener, **{"X-XSRFToken": xsrf})
    assert (status, answer["state"]) == (200, "SUCCEEDED")
    assert server.request(path, token=None, opener=opener)[0] == 405


def test_stop_ends_a_running_job(server: Server) -> None:
    """If the job ends at once, the answer says how; the job's process is gone."""
    folder = server.output / "gpt-stopped"
    job = subprocess.Popen(
        [sys.executable, str(FAKE_RUN), str(folder), "--steps", "4000", "--step-seconds", "0.05"]
    )
    try:
        deadline = time.monotonic() + 600
        while not list(folder.glob("jobs/*/heartbeat/0.json")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert server.request("nbtrain/run/gpt-stopped")[1]["state"] == "RUNNING"
        status, answer = server.request("nbtrain/run/gpt-stopped/stop", "POST")
        assert (status, answer["state"]) == (200, "CANCELLED")
        assert answer["cause"].startswith("stopped on request after step ")
        assert job.wait(300) == 0
    finally:
        job.kill()
        job.wait()


def test_a_look_is_no_activity(server: Server, run: RunDir) -> None:
    """Polling a panel does not keep an idle server alive; stopping a job is something that a person does."""
    server.request("api/contents")
    before = server.request("api/status")[1]["last_activity"]
    for path in ("nbtrain/runs", "nbtrain/run/gpt-done", "nbtrain/run/gpt-done/log"):
        server.request(path)
    assert server.request("api/status?no_track_activity=1")[1]["last_activity"] == before


def test_script_and_tensorboard_page(server: Server) -> None:
    """The script is the widget's own; the page frames the proxied TensorBoard below the prefix."""
    status, script = server.request("nbtrain/static/panel.js")
    assert (status, script.decode()) == (200, panel_script())
    status, page = server.request("nbtrain/tensorboard/")
    assert status == 200
    assert b'data-address="/user/x/tensorboard/"' in page


def test_launcher_has_the_tile(server: Server) -> None:
    """jupyter-server-proxy knows TensorBoard, opens our page in a JupyterLab tab, and shows the icon."""
    _, info = server.request("server-proxy/servers-info")
    (tile,) = [entry for entry in info["server_processes"] if entry["name"] == "tensorboard"]
    assert tile["launcher_entry"]["title"] == "TensorBoard"
    assert tile["launcher_entry"]["path_info"] == "nbtrain/tensorboard/"
    assert tile["new_browser_tab"] is False
    status, icon = server.request("server-proxy/icon/tensorboard")
    assert status == 200
    assert icon.startswith(b"<svg")
