"""Requests that the REST routes reject: without credentials, from foreign pages, with paths outside the
output directory, or too large.
"""

import http.client
import json
import re
import shutil
from urllib.parse import urlsplit

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.lab.server.extension import ROUTES
from nbtrain.lab.server.requests import MOST_BODY_BYTES
from tests.end_to_end.jupyterlab import TOKEN
from tests.lab.server.conftest import Server, ended_run

pytestmark = pytest.mark.slow

METHODS = ("get", "post", "patch", "delete")


def routes() -> list[tuple[str, str]]:
    """Return (method, path) of every route."""
    found = []
    for pattern, handler in ROUTES.items():
        path = pattern.replace("([^/]+)", "gpt-done").replace("(?:stop|cancel)", "stop").replace("\\.", ".")
        path = re.sub(r"\((\w+)\|[^)]*\)", r"\1", path)
        found += [(method.upper(), path) for method in METHODS if method in handler.__dict__]
    return found


@pytest.mark.parametrize("token", [None, "wrong"])
def test_nobody_without_credentials_gets_anything(server: Server, run: RunDir, token: str | None) -> None:
    """Without a token or with a wrong one, every route responds with 403 or the login page, and has no
    effect.
    """
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    for method, path in routes():
        answer = server.ask(path, method, b"{}" if method != "GET" else None, token=token)
        assert answer.status == 403 or b"Password or token" in answer.content, (method, path)
        for content in (b"schema_version", b"job_id", b"nbt-head", b"data-address", b"tokens/s"):
            assert content not in answer.content
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_what_changes_something_needs_the_xsrf_token(server: Server, run: RunDir) -> None:
    """Requests that change something are rejected if a foreign page sends them with the user's cookie, and
    accepted with the XSRF header of Jupyter's own pages.
    """
    opener, xsrf = server.browser()
    changing = [(method, path) for method, path in routes() if method != "GET"]
    assert len(changing) >= 6
    for method, path in changing:
        for headers in ({}, {"X-XSRFToken": "wrong"}):
            answer = server.ask(path, method, b"{}", token=None, opener=opener, **headers)
            assert answer.status == 403, (method, path)
    answer = server.ask("run/gpt-done/stop", "POST", token=None, opener=opener, **{"X-XSRFToken": xsrf})
    assert (answer.status, answer.json["state"]) == (200, "SUCCEEDED")
    answer = server.ask("run/gpt-done/stop", token=None, opener=opener)
    assert (answer.status, answer.message) == (
        405,
        "this address does not support the HTTP method of the request.",
    )


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e",
        "gpt-done%2f..%2f..",
        "gpt-done%00",
        ".",
        "~root",
    ],
)
def test_no_name_leads_out_of_the_root(server: Server, run: RunDir, path: str) -> None:
    """A path in the name of a run, the id of a job or a rank gives no access to files outside the output
    directory.
    """
    assert server.ask(f"run/{path}").status == 404
    assert server.ask(f"run/gpt-done/job?job={path}").status == 404
    assert server.ask(f"run/gpt-done/log?rank={path}").status == 400
    assert server.ask("run/gpt-done/clone", "POST", {"name": path}).status == 422


def test_no_link_leads_out_of_the_root(server: Server, run: RunDir, tmp_path) -> None:
    """A run that is a symlink to another place is not listed, and symlinks inside a run are followed only
    within the run.
    """
    secret = tmp_path / "secret"
    ended_run(tmp_path, "secret", 2)
    (secret / "words").write_text("a secret\n")
    (server.output / "gpt-link").symlink_to(secret)
    assert "gpt-link" not in [row["name"] for row in server.get("runs")["runs"]]
    for part in ("", "/log", "/job", "/log/raw", "/log/search?q=secret"):
        answer = server.ask(f"run/gpt-link{part}")
        assert answer.status == 403
        assert answer.message == (
            "output/gpt-link leads out of the output root output, and the server shows nothing outside "
            "it. Move the files there, or start the server with NBTRAIN_OUTPUT set to their folder."
        )
    assert server.ask("run/gpt-link?confirm=gpt-link", "DELETE").status == 403

    trap = ended_run(server.output, "gpt-trap", 2)
    job = trap.newest_job()
    for place in (job.log(5, 0), job.heartbeat(0), trap.config_yaml, trap.tensorboard, job.path / "logs"):
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        place.symlink_to(secret / "words")
        for part in ("", "/log?rank=5", "/job", "/log/raw?rank=5", "/log/search?q=secret", "/log/traceback"):
            answer = server.ask(f"run/gpt-trap{part}")
            assert answer.status == 403, (place, part)
            assert b"a secret" not in answer.content
        place.unlink()
    assert (secret / "words").read_text() == "a secret\n"

    inner = ended_run(server.output, "gpt-inner", 2)
    inner.newest_job().log(1, 0).symlink_to(run.newest_job().log(0, 0))
    assert "step    20 |" in server.get("run/gpt-inner/log?rank=1")["text"]


def test_script_in_a_label_note_or_log_line_is_text(server: Server) -> None:
    """Script code in a label, note or log line is returned unchanged, as JSON that no browser displays as a
    page.
    """
    script = "<script>alert(1)</script>"
    run = ended_run(server.output, "gpt-script", 2)
    with run.newest_job().log(0, 0).open("a") as stream:
        stream.write(f"{script}\n")
    assert server.ask("run/gpt-script", "PATCH", {"notes": script}).json["notes"] == script
    refused = server.ask("run/gpt-script", "PATCH", {"labels": {script: "x"}})
    assert refused.status == 422
    answers = [
        refused,
        server.ask("runs"),
        server.ask(f"run/{script.replace('/', '%2f').replace('<', '%3c').replace('>', '%3e')}"),
        server.ask("run/gpt-script"),
        server.ask("run/gpt-script/log"),
        server.ask("run/gpt-script/log/search?q=alert"),
        server.ask("run/gpt-script/clone", "POST", {"name": script}),
    ]
    for answer in answers:
        assert answer.headers["Content-Type"].startswith("application/json")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert script in json.dumps(answer.json)


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Server, run: RunDir) -> None:
    """A body that is too large is rejected because of its Content-Length, or as soon as too many bytes were
    received; the server continues.
    """
    for method, path in (("PATCH", "run/gpt-done"), ("POST", "run/gpt-done/clone")):
        answer = server.ask(path, method, b" " * (MOST_BODY_BYTES + 1))
        assert (answer.status, answer.message) == (
            413,
            "the request body has 1,048,577 bytes; at most 1,048,576 (1.0 MiB) are allowed.",
        )
    assert server.ask("run/gpt-done", "PATCH", b"{}" + b" " * (MOST_BODY_BYTES - 2)).status == 200
    address = urlsplit(server.base)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=600)
    headers = {"Authorization": f"token {TOKEN}", "Transfer-Encoding": "chunked"}
    pieces = (b" " * 65_536 for _ in range(17))
    connection.request("PATCH", f"{address.path}nbtrain/run/gpt-done", pieces, headers, encode_chunked=True)
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read())["message"].endswith(
        "more bytes than the 1,048,576 (1.0 MiB) that are allowed."
    )
    connection.close()
    assert server.get("runs")["runs"]


def test_a_look_is_no_activity(server: Server, run: RunDir) -> None:
    """Polling by a panel does not count as activity that keeps an idle server running, but an action of the
    user does.
    """
    server.ask("/api/contents")
    before = server.get("/api/status?no_track_activity=1")["last_activity"]
    for method, path in routes():
        if method == "GET":
            server.ask(path)
    assert server.get("/api/status?no_track_activity=1")["last_activity"] == before
    server.ask("run/gpt-done/stop", "POST")
    assert server.get("/api/status?no_track_activity=1")["last_activity"] > before
