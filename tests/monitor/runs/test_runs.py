"""The list of runs: the row of each run, filters, and a run with damaged records."""

import json
import os
import re
import time

import pytest

from nbtrain.base import files
from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.records import (
    AttemptRecord,
    Heartbeat,
    JobRecord,
    ProcessIdentity,
    TrainingProgress,
)
from nbtrain.base.run_directory.rundir import RunDir, new_job_id
from nbtrain.cli import __main__ as cli
from nbtrain.config.load import load, to_yaml
from nbtrain.monitor.runs.run_filter import run_filter
from nbtrain.monitor.runs.runs import RunList, list_runs, shorter
from nbtrain.monitor.status import status_records
from nbtrain.monitor.status.status_records import NOTHING_SUBMITTED, read_status


def made(name, state, loss, hours=0.0, first_step=None, beat_attempt=0, step=7, labels=()):
    """Create a run whose newest job ended in `state` (or is active), submitted `hours` ago."""
    run, created = RunDir.named(name), time.time() - 3600 * hours
    job = run.job(new_job_id(created))
    job.make_folders()
    identity = {"schema_version": 1, "run_id": name, "name": name, "parent": "p"}
    files.write_json(run.run_json, {**identity, "created_at": 1.0})
    alive = ProcessIdentity.of(os.getpid())
    record = JobRecord(job.job_id, name, name, state, created, 2, "why", restarts=3, supervisor=alive)
    record.ended_at = None if state == "RUNNING" else created + 60
    record.attempts = [AttemptRecord(1, created, 2, 2, first_step=first_step)]
    record.labels = dict(labels)
    record.write(job.job_json)
    progress = TrainingProgress(10, 1000, loss=loss, validation_loss=loss + 1)
    Heartbeat(0, beat_attempt, alive, created, step, "end", created, progress).write(job.heartbeat(0))
    return run


@pytest.mark.parametrize(
    "more",
    [
        {"state": "FAILED", "labels": {"team": "nlp"}},
        {"state": "RUNNING"},
        {"state": "CANCELLED", "first_step": 5},
        {"state": "CANCELLED", "first_step": 5, "beat_attempt": 1},
        {"state": "SUCCEEDED", "first_step": 5, "step": 0},
    ],
)
def test_the_short_way_says_what_the_records_say(workspace, more):
    """The list reads the row of an ended run from one small file; it equals the row that is computed from all
    records.
    """
    run = made("one", loss=2.5, **more)
    [listed] = list_runs()
    assert listed == read_status(run, time.time())
    assert (listed.loss, listed.restarts, listed.num_jobs, listed.world_size) == (2.5, 3, 1, 2)


def test_the_short_way_is_taken_by_ended_runs_alone(workspace, monkeypatch):
    """Only ended runs are listed without reading their records; an active run is read in full, because its
    supervisor may be gone.
    """
    made("ended", "FAILED", 1.0)
    monkeypatch.setattr(
        status_records, "read_status", lambda run, now: pytest.fail(f"{run.name} was read in full")
    )
    assert [entry.name for entry in list_runs()] == ["ended"]
    made("active", "RUNNING", 1.0)
    with pytest.raises(pytest.fail.Exception, match="active was read in full"):
        list_runs()


def test_runs_are_filtered_and_sorted(workspace, capsys):
    """Runs are filtered by name, state and age. When sorting, runs without the value or with NaN come
    last.
    """
    made("gpt-a", "FAILED", 2.0, hours=1)
    made("gpt-b", "SUCCEEDED", float("nan"), hours=30)
    made("gpt-c", "CANCELLED", 1.0, hours=60)
    made("bert", "RUNNING", 3.0)

    def names(*words):
        assert cli.main(["runs", "--json", *words]) == 0
        return [entry["name"] for entry in json.loads(capsys.readouterr().out)]

    assert names() == ["bert", "gpt-a", "gpt-b", "gpt-c"]
    assert names("gpt-*", "--reverse") == ["gpt-c", "gpt-b", "gpt-a"]
    assert names("pt-b") == ["gpt-b"]
    assert names("--state", "failed,CANCELLED") == ["gpt-a", "gpt-c"]
    assert names("--state", "active") == ["bert"]
    assert names("--newer-than", "2d", "--older-than", "90m") == ["gpt-b"]
    assert names("--sort", "loss") == ["gpt-c", "gpt-a", "bert", "gpt-b"]
    assert names("--sort", "loss", "--reverse", "-n", "2") == ["bert", "gpt-a"]
    assert cli.main(["runs", "nothing"]) == 0
    assert capsys.readouterr().out == "No run matches. `nbtrain runs` lists all runs.\n"


def test_runs_are_found_by_label(workspace, capsys):
    """A run is listed only if all label filters match, in the command and in Python. Without labels, the
    column is omitted.
    """
    made("a", "FAILED", 1.0, hours=1, labels={"team": "nlp", "stage": "trial"})
    made("b", "RUNNING", 1.0, hours=2, labels={"team": "vision"})
    made("c", "FAILED", 1.0, hours=3)

    def names(*words):
        assert cli.main(["runs", "--json", *words]) == 0
        found = [entry["name"] for entry in json.loads(capsys.readouterr().out)]
        rules = [word for word in words if word != "-l"]
        assert [entry.name for entry in list_runs(wanted=run_filter(label=rules))] == found
        return "".join(found)

    assert names() == "abc"
    assert names("-l", "team=nlp") == "a"
    assert names("-l", "team") == "ab"
    assert names("-l", "!team") == "c"
    assert names("-l", "team!=nlp") == "bc"
    assert names("-l", "team, stage!=trial") == "b"
    assert names("-l", "team", "-l", "stage") == "a"
    assert [entry.labels for entry in list_runs(wanted=run_filter(label={"team": "vision"}))] == [
        {"team": "vision"}
    ]
    table = str(list_runs()).splitlines()
    assert "  LABELS                CAUSE" in table[0] and "  team=nlp,stage=trial  why" in table[1]
    assert "LABELS" not in str(list_runs(wanted=run_filter("c")))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sort": "los"}, r"sort = 'los' must be one of submitted, .* Nearest: loss\."),
        ({"states": "fialed"}, r"state = 'fialed' must be one of active, ended, QUEUED.* Nearest: FAILED\."),
        ({"newer_than": "2 days"}, r"newer_than = '2 days' must be an age such as 90s, 30m, 12h, 2d or 1w\."),
        ({"limit": -1}, r"limit = -1 must be a whole number of at least 0\."),
        (
            {"label": "a=b, team in (a,b)"},
            r"label = 'team in \(a,b\)' must be key=value, .* `in \(a, b\)`, are",
        ),
        ({"label": "a=b=c"}, r"label = 'a=b=c' must be key=value, key!=value, key or !key\."),
    ],
)
def test_a_filter_that_means_nothing_is_refused(given, message):
    """An invalid filter is rejected, and the message lists the valid words."""
    with pytest.raises(ConfigError, match=message):
        run_filter(**given)


LOST_CAUSE = (
    "its supervisor (pid 4194303) died without a message while the job was RUNNING (killed, out of memory, "
    "or "
    "the machine was restarted)"
)


@pytest.mark.parametrize(
    ("cause", "shown"),
    [
        (LOST_CAUSE, LOST_CAUSE),
        ("paused at step 3; saved", "paused at step 3; saved"),
        ("a line\n  and another", "a line and another"),
        (f"rank 0 failed; {'word ' * 40}", "rank 0 failed..."),
        (f"rank 0 failed. Lower it; {'word ' * 40}", "rank 0 failed. Lower it..."),
        ("word " * 40, "word " * 26 + "word..."),
        ("w" * 200, "w" * 137 + "..."),
    ],
)
def test_a_long_cause_keeps_its_first_sentence(cause, shown):
    """A long cause is shortened to its first sentence; a text that is cut ends with an ellipsis after a
    complete word.
    """
    assert shorter(cause) == shown


def test_a_pause_that_a_scheduler_has_not_confirmed_names_the_command_that_asks_it(workspace):
    """A job that was asked to pause and waits in a cluster's queue is listed with the command that shows
    whether it is paused, because a list asks no scheduler.
    """
    job = made("gpt", "RUNNING", 1.0).newest_job()
    record = JobRecord.read(job.job_json)
    record.state, record.backend, record.supervisor, record.cause = "QUEUED", "kubernetes", None, "saved"
    record.write(job.job_json)
    assert str(list_runs()).splitlines()[1].endswith("  saved")
    files.write_json(job.control_pause, {"pause": True, "time": time.time()})
    asks = "saved; `nbtrain status gpt` shows whether it is paused"
    assert str(list_runs()).splitlines()[1].endswith(f"  {asks}")
    # A queue of this machine reports the pause itself.
    record.backend, record.supervisor = "local", ProcessIdentity.of(os.getpid())
    record.write(job.job_json)
    assert str(list_runs()).splitlines()[1].endswith("  saved")


def test_a_lost_run_says_how_it_goes_on(workspace, monkeypatch):
    """A lost run shows how to resume it, even if its cause is long."""
    run = made("gpt", "RUNNING", 1.0)
    job = run.newest_job()
    record = JobRecord.read(job.job_json)
    record.supervisor = ProcessIdentity(os.getpid(), 1, "another boot")
    record.write(job.job_json)
    line = str(list_runs()).splitlines()[1]
    assert line.endswith(", or the machine was restarted); `nbtrain resume gpt` continues the run")
    # A resume of a run that only measured is refused without the mode.
    run.config_yaml.write_text(to_yaml(load("gpt-tiny", {"name": "gpt", "mode": "perf"}, check=False)))
    line = str(list_runs()).splitlines()[1]
    assert line.endswith(", or the machine was restarted); `nbtrain resume gpt mode=perf` measures again")


def test_a_folder_that_is_being_deleted_is_no_run(workspace):
    """A folder that is being deleted, whose name begins with a dot, is not a run."""
    (workspace / "output" / ".gone.12.deleted").mkdir(parents=True)
    (workspace / "output" / ".gone.12.deleted" / "run.json").write_text("{}")
    assert list_runs() == []


def test_a_damaged_run_does_not_hide_the_others(workspace):
    """A damaged run is listed as DAMAGED with the file and line; all other runs are listed normally.

    A folder without a run.json is not listed; one whose run.json has no run_id is called no run.
    """
    whole = '{"schema_version": 1, "run_id": "ab"}'
    for name, record in (("whole", whole), ("torn", '{"schema_ver'), ("nameless", '{"name": "x"}')):
        (workspace / "output" / name).mkdir(parents=True)
        (workspace / "output" / name / "run.json").write_text(record)
    (workspace / "output" / "no-run").mkdir()
    found = {entry.name: (entry.state, entry.cause) for entry in list_runs()}
    path = workspace / "output" / "torn" / "run.json"
    nameless = "output/nameless/run.json has no run_id, so the folder is not a run."
    assert found["nameless"][1].endswith("Move the folder out of the output directory.")
    found["nameless"] = (found["nameless"][0], found["nameless"][1].partition(" Move")[0][-len(nameless) :])
    assert found == {
        "nameless": ("DAMAGED", nameless),
        "whole": NOTHING_SUBMITTED,
        "torn": ("DAMAGED", f"{path}:1: not JSON: Unterminated string starting (column 2)"),
    }
    assert re.search(r"\ntorn +DAMAGED +-", str(list_runs()))


def test_the_status_of_a_damaged_run_is_a_message(workspace, capsys):
    """The status of a damaged run is a message that names the file, and not a traceback."""
    (workspace / "output" / "torn").mkdir(parents=True)
    (workspace / "output" / "torn" / "run.json").write_text("{")
    assert cli.main(["status", "torn"]) == 1
    assert "torn/run.json:1: not JSON: Expecting property name" in capsys.readouterr().err


def test_a_list_of_runs_shows_as_a_table(workspace):
    """print(nb.runs()) and a notebook cell that ends in nb.runs() show the same table as `nbtrain runs`."""
    assert repr(list_runs()) == str(RunList())


@pytest.mark.parametrize(("closed", "mode"), [(".", 0o700), ("run.json", 0o600), ("jobs", 0o700)])
def test_a_run_of_another_user_is_listed_with_its_owner(open_output, another_user, closed, mode, capsys):
    """A run of another user is listed with its owner."""
    for name in ("mine", "theirs"):
        (open_output / name / "jobs").mkdir(parents=True)
        (open_output / name / "run.json").write_text('{"schema_version": 1, "run_id": "ab"}')
    path = (open_output / "theirs" / closed).resolve()
    path.chmod(mode)
    # Imports first: the other user may not be allowed to read this Python's files.
    assert cli.main(["status", "mine"]) == 0
    with another_user():
        found = {entry.name: (entry.state, entry.cause) for entry in list_runs()}
        assert cli.main(["status", "theirs"]) == 1
    assert found["mine"] == NOTHING_SUBMITTED
    state, cause = found["theirs"]
    assert state == "DAMAGED"
    assert cause.startswith(f"{path}")
    assert "Permission denied" in cause
    assert cause.endswith("belongs to root.")
    assert "belongs to root" in capsys.readouterr().err
