"""Logs, tracebacks and job pages over REST."""

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from tests.lab.server.conftest import Server
from tests.lab.widgets.fake_run import FakeJob, measure

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def failed(server: Server) -> RunDir:
    """Return a run with measured resource usage whose rank 1 failed."""
    job = FakeJob(RunDir(server.output / "gpt-failed"), steps=20, world_size=2)
    for _ in range(3):
        job.one_step()
    job.job.log(1, 0).write_text(
        "starting\nTraceback (most recent call last):\n  File x, line 1\nValueError: 100 % wrong\nafter\n"
    )
    measure(job)
    job.finish("FAILED", "rank 1 failed at step 3: ValueError: 100 % wrong", failed_rank=1)
    return job.run


def test_log_with_rank_and_offset(server: Server, run: RunDir) -> None:
    """Requesting a rank's log returns its end, and then only new text. The supervisor has a log too, and an
    unknown rank is rejected.
    """
    part = server.get("run/gpt-done/log?rank=0")
    assert part["text"].splitlines()[-1].startswith("step    20 |")
    with run.newest_job().log(0, 0).open("a") as stream:
        stream.write("one more\n")
    more = server.get(f"run/gpt-done/log?rank=0&offset={part['end_bytes']}")
    assert more["text"] == "one more\n"
    run.newest_job().supervisor_log.write_text("torchrun started\n")
    assert server.get("run/gpt-done/log?rank=supervisor")["text"] == "torchrun started\n"
    run.newest_job().node_log(3).write_text("the agent's\n")
    assert server.get("run/gpt-done/log?rank=node3")["text"] == "the agent's\n"
    for rank in ("../0", "%c2%b2", "9" * 12, "node", "0.0"):
        answer = server.ask(f"run/gpt-done/log?rank={rank}")
        assert answer.status == 400
        assert answer.message.endswith(' must be a number, "supervisor", or a machine such as "node0".')
    for query in ("offset=-1", "attempt=x", f"offset={'9' * 30}"):
        assert server.ask(f"run/gpt-done/log?{query}").status == 400


def test_raw_log_is_a_file_to_save(server: Server, run: RunDir) -> None:
    """A raw log is returned as a download, never as a page that a browser displays; a missing log is answered
    with 404.
    """
    job = run.newest_job()
    answer = server.ask("run/gpt-done/log/raw?rank=0")
    assert answer.content == job.log(0, 0).read_bytes()
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["Content-Disposition"] == (f'attachment; filename="gpt-done-{job.job_id}-0.0.log"')
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    missing = server.ask("run/gpt-done/log/raw?rank=7")
    assert (missing.status, missing.message) == (
        404,
        f"gpt-done: job {job.job_id} has no log 7.0.log yet. The log is created when its process starts.",
    )


def test_search_finds_lines_with_their_place(server: Server, failed: RunDir) -> None:
    """Each search hit has its rank, attempt and line, and the offset from which the log can be read on."""
    job = failed.newest_job()
    hits = server.get("run/gpt-failed/log/search?q=ValueError")
    assert hits["more"] is False
    (hit,) = hits["hits"]
    assert (hit["job"], hit["rank"], hit["attempt"], hit["line"]) == (job.job_id, "1", 0, 4)
    assert server.get(f"run/gpt-failed/log?rank=1&offset={hit['offset']}")["text"].startswith(hit["text"])
    assert server.get("run/gpt-failed/log/search?q=valueerror&case=0")["hits"] == [hit]
    assert server.get("run/gpt-failed/log/search?q=valueerror")["hits"] == []
    found = server.get("run/gpt-failed/log/search?q=^Value.*%25&regex=1")
    assert (found["hits"], found["complete"]) == ([{**hit, "spans": [[0, 17]]}], True)
    wrong = server.ask("run/gpt-failed/log/search?q=a(b&regex=1")
    assert wrong.status == 422 and wrong.message.startswith("'a(b' is not a regular expression: ")
    part = server.get("run/gpt-failed/log?rank=1&line=4")
    assert part["text"].splitlines()[4 - part["first_line"]] == hit["text"]
    limited = server.get("run/gpt-failed/log/search?q=loss&limit=2&rank=0")
    assert len(limited["hits"]) == 2 and limited["more"] is True
    for query in ("", "q=", "q=" + "x" * 1001, "q=x&limit=100000", "q=x&rank=-1", "q=x&case=2"):
        assert server.ask(f"run/gpt-failed/log/search?{query}").status == 400
    assert server.ask("run/gpt-failed/log/search?q=x&job=../..").status == 404


def test_last_traceback_of_the_rank_that_failed(server: Server, failed: RunDir, run: RunDir) -> None:
    """The last traceback comes from the rank that failed first, with a title; a run without a traceback says
    so.
    """
    found = server.get("run/gpt-failed/log/traceback")
    assert (found["rank"], found["title"]) == (1, "The last traceback of rank 1")
    assert found["text"].splitlines()[-1] == "ValueError: 100 % wrong"
    found = server.get("run/gpt-done/log/traceback")
    assert (found["title"], found["text"]) == ("Rank 0 has no traceback", None)


def test_the_page_of_a_job(server: Server, run: RunDir) -> None:
    """The page of the newest job is returned, or of the job with a given id, with its log. An unknown id is
    answered with 404 and the existing ids.
    """
    job_id = run.newest_job().job_id
    shown = server.get("run/gpt-done/job")
    assert (shown["job_id"], shown["active"]) == (job_id, False)
    assert server.get(f"run/gpt-done/job?job={job_id}") == shown
    assert "step    20 |" in server.get(f"run/gpt-done/log?rank=0&job={job_id}")["text"]
    charts = server.get(f"run/gpt-done/job/rank?rank=0&job={job_id}")["charts"]
    assert [chart["lines"][0]["label"] for chart in charts] in ([], ["rank 0"] * len(charts))
    for path in ("job?job=../gpt-done", "log?job=yesterday", "events?job=x"):
        answer = server.ask(f"run/gpt-done/{path}")
        assert answer.status == 404 and answer.message.endswith(f" Its jobs: {job_id}.")


def test_parts_of_a_job(server: Server, failed: RunDir) -> None:
    """Clients can request a part of a job page from a given time on, in the format of `nbtrain job
    --json`.
    """
    job_id = failed.newest_job().job_id
    assert server.get("run/gpt-failed/conditions")["conditions"][-1]["type"] == "Failed"
    assert [one["index"] for one in server.get("run/gpt-failed/replicas")["replicas"]] == [0]
    events = server.get("run/gpt-failed/events")
    assert (events["job_id"], events["state"]) == (job_id, "FAILED")
    newest = events["events"][-1]["time"]
    assert server.get(f"run/gpt-failed/events?since={newest}")["events"] == [events["events"][-1]]
    assert server.get(f"run/gpt-failed/events?since={newest + 1}")["events"] == []

    def points(query: str) -> list[float]:
        (node,) = server.get(f"run/gpt-failed/resources{query}")["resources"]
        return node["curves"]["replica"]["cpu_cores"]["times"]

    times = points("")
    assert len(times) == 10
    assert points(f"?since={times[6]}") == times[6:]
    assert (
        server.ask("run/gpt-failed/resources?since=nan").message == "since = 'nan' must be a finite number."
    )
