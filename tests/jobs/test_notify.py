"""The notification at the end of a job: what the program and the address receive, and what is reported if
they fail.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from nbtrain.base import files
from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import RunDir, new_job_id
from nbtrain.config.rules.check import check_config
from nbtrain.config.sections.notify_section import NotifyConfig
from nbtrain.jobs.checks.preflight import SHARED_CHECKS, notification_is_possible
from nbtrain.jobs.notify import notify
from nbtrain.jobs.request.launch import read_launch
from nbtrain.jobs.supervisor.journal import Journal
from nbtrain.jobs.supervisor.supervise import send_notifications

SUMMARY = {"name": "tiny", "state": "FAILED", "cause": "rank 0 failed"}


def python(code):
    return [sys.executable, "-c", code]


@pytest.fixture
def server(monkeypatch):
    """Start a server on the loopback interface that stores what it receives in `bodies`; its address is in
    $HOOK.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(self.server.status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.bodies, server.status = [], 200
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.server_port}/services/s3cret")
    yield server
    server.shutdown()
    server.server_close()


def test_the_program_reads_the_summary(tmp_path):
    """The program gets its arguments unchanged, and the summary as JSON on stdin."""
    code = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    config = NotifyConfig(command=[*python(code), str(tmp_path / "a; b")])
    assert list(notify(config, SUMMARY)) == [(True, "notify.command has run")]
    assert json.loads((tmp_path / "a; b").read_text()) == SUMMARY


def test_only_the_states_that_were_asked_for_are_reported():
    config = NotifyConfig(command=["no-such-program"], states=["SUCCEEDED"])
    assert list(notify(config, SUMMARY)) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            python("print('first'); print('no route to https://me:s3cret@host/x\\n'); raise SystemExit(3)"),
            "ended with exit code 3: no route to https://***@host/x",
        ),
        (["no-such-program"], "did not start: [Errno 2] No such file or directory: 'no-such-program'"),
        (
            ["sh", "-c", "sleep 600 & wait"],
            "took more than notify.timeout_seconds = 0.3 and was killed",
        ),
    ],
)
def test_a_program_that_fails_is_reported(command, said):
    """If a program fails, its last line is reported; if it does not end, it is killed with its child
    processes.
    """
    config = NotifyConfig(command=command, timeout_seconds=0.3 if command[0] == "sh" else 60.0)
    assert list(notify(config, SUMMARY)) == [(False, f"notify.command {said}")]


def test_the_address_gets_the_summary(server):
    """The summary is sent to the address. A redirect counts as a failure, and no message contains the
    address.
    """
    config = NotifyConfig(url_variable="HOOK")
    assert list(notify(config, SUMMARY)) == [(True, "the address in HOOK has received the summary")]
    server.status = 302
    assert list(notify(config, SUMMARY)) == [(False, "the address in HOOK answered with status 302")]
    assert server.bodies == [SUMMARY, SUMMARY]


def test_an_address_that_cannot_be_reached_is_reported(monkeypatch):
    """If the address cannot be reached, that is reported without the address."""
    config = NotifyConfig(url_variable="HOOK")
    for address, said in (
        ("http://127.0.0.1:1/s3cret", "cannot be reached: Connection refused"),
        ("http://[s3cret/", "cannot be reached: ValueError"),
        ("file:///etc/passwd", "is missing, or does not begin with https:// or http://"),
    ):
        monkeypatch.setenv("HOOK", address)
        assert list(notify(config, SUMMARY)) == [(False, f"the address in HOOK {said}")]


def test_a_failure_is_an_event_and_no_change_of_the_end(tiny, workspace):
    """If the notification fails, an event is recorded; the state and cause of the job do not change."""
    job = RunDir.named("tiny").job(new_job_id())
    job.make_folders()
    JobRecord(job.job_id, "id", "tiny", "SUCCEEDED", time.time(), 1, "done").write(job.job_json)
    files.write_json(job.run.summary_json, {"state": "SUCCEEDED"})
    journal = Journal(job)
    journal.config = tiny(**{"notify.command": ["false"]})
    send_notifications(journal)
    journal.config = tiny(**{"notify.command": ["true"]})
    send_notifications(journal)
    job.run.summary_json.write_text("{")
    send_notifications(journal)
    said = [(event["kind"], event["message"]) for event in read_events(job)]
    assert said[:2] == [
        ("warning", "notify.command ended with exit code 1"),
        ("notification", "notify.command has run"),
    ]
    assert said[2][1].startswith("no notification was sent: RecordError: ")
    record = JobRecord.read(job.job_json)
    assert (record.state, record.cause) == ("SUCCEEDED", "done")


def test_secrets_have_no_place_in_the_command(tiny):
    """A command that contains secrets is rejected, because config.yaml would show them."""
    for argument in ("https://me:s3cret@host/x", "https://host/x?token=s3cret", "ghp_0123456789abcdef"):
        with pytest.raises(ConfigError, match=r"notify\.command: entry 1 looks like a secret") as refused:
            check_config(tiny(**{"notify.command": ["curl", argument]}))
        assert "s3cret" not in str(refused.value)


def test_what_cannot_work_is_refused_before_launch(tiny, monkeypatch):
    """A program that does not exist or a variable that is not set is reported before launch."""
    monkeypatch.delenv("HOOK", raising=False)
    config = tiny(**{"notify.command": ["no-such-program"], "notify.url_variable": "HOOK"})
    first, second = map(str, notification_is_possible(read_launch(config)))
    assert "notify.command: the program 'no-such-program' was not found. Set its path" in first
    assert "the environment variable HOOK must be set here to an address" in second
    for kind, found in (("hosts", 2), ("slurm", 2), ("kubernetes", 0)):
        elsewhere = config.model_copy(update={"backend": config.backend.model_copy(update={"kind": kind})})
        assert notification_is_possible in SHARED_CHECKS
        assert len(list(notification_is_possible(read_launch(elsewhere)))) == found
    monkeypatch.setenv("HOOK", "https://host/s3cret")
    assert list(notification_is_possible(read_launch(tiny(**{"notify.url_variable": "HOOK"})))) == []
    monkeypatch.setenv("HOOK", "https://me:secret@host/path")
    [found] = notification_is_possible(read_launch(tiny(**{"notify.url_variable": "HOOK"})))
    assert "the address in HOOK has a user name before its @" in str(found)
    assert "secret@" not in str(found)
