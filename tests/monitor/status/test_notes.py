"""Labels, notes and the archive flag of a run, which can be changed after its submission."""

import pytest

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, JobError, RecordError
from nbtrain.base.process.locks import flock_folder
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli import __main__ as cli
from nbtrain.monitor.job.job_records import describe_job
from nbtrain.monitor.runs.run_filter import run_filter
from nbtrain.monitor.runs.runs import list_runs
from nbtrain.monitor.status.notes import MOST_NOTES_CHARS, change_notes, labels_of, notes_of
from tests.lab.widgets.fake_run import FakeJob
from tests.monitor.runs.test_runs import made


def submitted_again(run, labels):
    """Submit the run again, with these labels for its newest job."""
    job = run.newest_job()
    record = JobRecord.read(job.job_json)
    record.labels = labels
    record.write(job.job_json)


def test_labels_change_over_those_of_the_submission(workspace):
    """A label that the user changed keeps its value when the run is submitted again unchanged; a new value in
    the submission replaces it.
    """
    run = made("a", "FAILED", 1.0, labels={"team": "nlp", "stage": "trial"})
    change_notes(run, labels={"team": "vision", "stage": None, "example.com/owner": "ada"})
    changed = {"team": "vision", "example.com/owner": "ada"}
    assert labels_of(run) == changed
    [listed] = list_runs(wanted=run_filter(label="team=vision,!stage"))
    assert listed.labels == changed
    submitted_again(run, {"team": "audio", "stage": "trial"})
    assert labels_of(run) == {"team": "audio", "example.com/owner": "ada"}
    change_notes(run, labels={"example.com/owner": None, "stage": "trial"})
    assert (labels_of(run), notes_of(run).labels) == ({"team": "audio", "stage": "trial"}, {})


def test_an_archived_run_is_listed_on_request_and_while_it_is_active(workspace, capsys):
    """An archived run is listed only on request or while it is active. If no run matches, the message names
    the option --archived.
    """
    ended, active = made("ended", "FAILED", 1.0, hours=1), made("active", "RUNNING", 1.0)
    for run in (ended, active):
        change_notes(run, archived=True, notes="diverged")
    [listed] = list_runs(wanted=run_filter())
    assert (listed.name, listed.archived, listed.notes) == ("active", True, "diverged")
    assert [entry.name for entry in list_runs(wanted=run_filter(archived=True))] == ["active", "ended"]
    assert cli.main(["runs", "ended"]) == 0
    assert capsys.readouterr().out == "No run matches. `nbtrain runs --archived` lists all runs.\n"
    assert cli.main(["runs", "ended", "--archived"]) == 0
    assert "ended  FAILED" in capsys.readouterr().out


def test_the_verbs(workspace, capsys):
    """The commands label, notes and archive change a run; without a value, they print the current one."""
    run = made("gpt", "FAILED", 1.0, labels={"stage": "trial"})

    def said(*words):
        assert cli.main([words[0], "gpt", *words[1:]]) == 0
        return capsys.readouterr().out

    assert said("label", "team=nlp", "stage-") == "team=nlp\n" == said("label")
    assert said("label", "team-") == "gpt has no labels.\n"
    assert said("notes") == "gpt has no notes.\n"
    assert said("notes", "two\nlines \x1b[1m") == "two\nlines \\x1b[1m\n" == said("notes")
    assert said("notes", "") == "gpt has no notes.\n"
    assert said("archive") == "gpt: archived. `nbtrain runs --archived` lists it.\n"
    assert notes_of(run).archived
    assert said("archive", "--undo") == "gpt: listed again.\n" and not notes_of(run).archived


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["team"], "label 'team' must be key=value, or key- to remove the label. Example: team=nlp stage-."),
        (["a=b", "a-"], "label 'a' appears more than once; specify each key only once."),
        (
            ["team=n lp", "-b=c"],
            "labels.team = 'n lp': must be empty, or at most 63 letters, digits, dots, dashes and "
            "underscores, and begin and end with a letter or digit.",
        ),
        (
            ["te am=nlp", f"{'a' * 320}=b"],
            "labels: the key 'te am' must be at most 63 letters, digits, dots, dashes and underscores, and "
            "begin and end with a letter or digit. A domain may come before it: example.com/team.",
        ),
    ],
)
def test_a_wrong_label_changes_nothing(workspace, capsys, words, message):
    """If one label is invalid, no label is changed, and every invalid label is reported, as in a
    submission.
    """
    run = made("gpt", "FAILED", 1.0)
    assert cli.main(["label", "gpt", "--", *words]) == 2
    assert message in capsys.readouterr().err and not run.notes_json.exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"notes": "a" * (MOST_NOTES_CHARS + 1)},
            r"notes: the text has 10,001 characters; at most 10,000 are allowed\. Shorten",
        ),
        ({"notes": "ab\ud800"}, "notes: character 3 is half of a surrogate pair"),
        ({"notes": 3}, "notes = 3 must be text"),
        ({"archived": "yes"}, "archived = 'yes' must be true or false"),
        ({"labels": ["a"]}, r"labels = \['a'\] must be a mapping, for example \{team: nlp\}"),
        ({"labels": {"a": 1}}, "labels.a = 1: must be text; write it in quotes"),
    ],
)
def test_a_wrong_value_changes_nothing(workspace, given, message):
    """An invalid value in a REST request is rejected and changes nothing."""
    run = made("gpt", "FAILED", 1.0)
    with pytest.raises(ConfigError, match=message):
        change_notes(run, **{"archived": True, **given})
    assert not run.notes_json.exists()


def test_no_run_and_a_damaged_file(workspace):
    """No file is created in a folder that is not a run; a damaged file is reported and not overwritten."""
    with pytest.raises(JobError, match=r"output/none is not a run: it has no run\.json\."):
        change_notes(RunDir.named("none"), archived=True)
    run = made("gpt", "FAILED", 1.0)
    run.notes_json.write_text("{")
    with pytest.raises(RecordError, match=r"notes\.json:1: not JSON"):
        change_notes(run, archived=True)
    [listed] = list_runs()
    assert listed.state == "DAMAGED" and "notes.json:1" in listed.cause


def test_a_change_is_made_under_a_lock(workspace, monkeypatch):
    """Changes are made under a lock, so the second of two simultaneous changes waits for the first."""
    run, write, held = made("gpt", "FAILED", 1.0), files.write_json, []

    def looked_at(path, value):
        held.append(flock_folder(run.jobs, blocking=False) is None)
        write(path, value)

    monkeypatch.setattr(files, "write_json", looked_at)
    change_notes(run, {"a": "1"})
    assert held == [True] and labels_of(run) == {"a": "1"}


def test_the_page_of_a_job_shows_them(workspace):
    """The page of the newest job shows the run's current labels; the page of an earlier job shows the labels
    of its submission.
    """
    fake = FakeJob(RunDir.named("gpt-fake"), steps=40)
    change_notes(fake.run, labels={"team": "nlp"}, notes="first line\nsecond\n", archived=True)
    text = str(describe_job(fake.run))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert {"labels team=nlp", "archived hidden in `nbtrain runs` without --archived"} < {*lines}
    assert "\nnotes\n  first line\n  second\n" in text
