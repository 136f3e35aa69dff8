"""The list of runs: what is said of each, and of one whose records are damaged."""

from nbtrain.cli import __main__ as cli
from nbtrain.monitor.runs import list_runs, runs_table


def test_a_damaged_run_does_not_hide_the_others(workspace):
    """It is listed as DAMAGED with the file and line; the whole one stands beside it."""
    for name, record in (("whole", '{"schema_version": 1, "run_id": "ab"}'), ("torn", '{"schema_ver')):
        (workspace / "output" / name).mkdir(parents=True)
        (workspace / "output" / name / "run.json").write_text(record)
    found = {entry.name: (entry.state, entry.cause) for entry in list_runs()}
    path = workspace / "output" / "torn" / "run.json"
    assert found == {
        "whole": ("NEW", None),
        "torn": ("DAMAGED", f"{path}:1: not JSON: Unterminated string starting at"),
    }
    assert "torn   DAMAGED  -" in runs_table(list_runs())


def test_the_status_of_a_damaged_run_is_a_message(workspace, capsys):
    """The file is named; no traceback."""
    (workspace / "output" / "torn").mkdir(parents=True)
    (workspace / "output" / "torn" / "run.json").write_text("{")
    assert cli.main(["status", "torn"]) == 1
    assert "torn/run.json:1: not JSON: Expecting property name" in capsys.readouterr().err


def test_a_list_of_runs_shows_as_a_table(workspace):
    """print(nb.runs()) and a cell that ends in it say what `nbtrain runs` says."""
    assert repr(list_runs()) == runs_table([])
