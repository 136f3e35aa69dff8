"""Runs over REST: the list, a single run, labels, notes and archiving, and deletion."""

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from nbtrain.base.run_directory.jobstate import RUN_MEANING
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.runs.watched_runs import root_id
from tests.end_to_end.jupyterlab import FAKE_RUN
from tests.lab.server.conftest import Server, ended_run
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def test_runs_and_a_run(server: Server, run: RunDir) -> None:
    """The list has a row for each run; the request for a single run returns its snapshot."""
    listed = server.get("runs")
    (row,) = [row for row in listed["runs"] if row["name"] == "gpt-done"]
    assert (row["state"], row["active"], row["step"], row["max_steps"]) == ("SUCCEEDED", False, 20, 20)
    assert (row["backend"], row["labels"], row["notes"], row["archived"]) == ("local", {}, "", False)
    assert row["meaning"] == RUN_MEANING["SUCCEEDED"]
    assert row["words"]["step"] == "20 / 20"
    assert row["words"]["loss"] == f"{row['loss']:.4f}"
    assert (listed["root"], listed["run_root_id"]) == ("output", root_id(server.output))
    snapshot = server.get("run/gpt-done?no_track_activity=1")
    assert list(snapshot)[-4:] == ["off", "look_again_seconds", "half_read", "failed_action"]
    assert snapshot["half_read"] is False
    assert snapshot["run_id"] == run.record()["run_id"]
    assert snapshot["curves"]["loss"]["num_points"] == 20


def test_a_comparison_goes_without_a_run_that_is_gone(server: Server, run: RunDir) -> None:
    """A comparison contains the runs that exist; for the others, the response says why they are missing."""
    found = server.get("compare?runs=gpt-done,gpt-gone,..%2Foutside")
    assert found["names"] == ["gpt-done"]
    assert found["refused"]["gpt-gone"] == "there is no run 'gpt-gone' under output."
    assert "../outside" in found["refused"]
    assert server.ask("compare?runs=").status == 422
    published = {"file": "others.yaml", "text": "345M:\n  samples/s: 59.7"}
    found = server.ask("compare", "POST", {"runs": ["gpt-done"], "published": published}).json
    assert found["published"] == ["345M"] and found["figures"]["heads"] == ["result", "gpt-done", "345M"]
    published["text"] = "345M:\n  loss: low"
    answer = server.ask("compare", "POST", {"runs": ["gpt-done"], "published": published})
    assert answer.status == 422 and answer.message.startswith("others.yaml:2: loss = low must be a number")
    assert server.ask("compare", "POST", {"runs": ["gpt-done"], "published": {"file": 1}}).status == 400


def test_settings_and_results_are_columns(server: Server, run: RunDir) -> None:
    """Without a key, the request returns the available columns; with keys, it returns these columns of each
    run. The name of a result may contain a comma.
    """
    found = server.get("columns")
    assert {"lr_schedule.lr", "MFU, mean of 100 steps"} <= set(found["known"]) and found["runs"] == {}
    found = server.get("columns?key=model.num_layers&key=tokens/s,%20mean%20of%20100%20steps&key=nothing")
    cells = found["runs"]["gpt-done"]
    assert set(cells) == {"model.num_layers", "tokens/s, mean of 100 steps"}
    assert cells["model.num_layers"]["text"] == str(cells["model.num_layers"]["value"])
    assert server.get("columns?key=model.num_layers")["runs"]["gpt-done"] == {
        "model.num_layers": cells["model.num_layers"]
    }


def test_the_loss_of_a_run_is_a_small_curve(server: Server, run: RunDir) -> None:
    """Sparklines are returned for existing runs only, and for at most as many names as a page of the list
    has.
    """
    found = server.get("sparklines?name=gpt-done&name=gpt-gone&name=..%2Foutside")["runs"]
    assert list(found) == ["gpt-done"]
    line = found["gpt-done"]
    assert (line["steps"][0], line["steps"][-1]) == (1, 20) and line["values"][0] > line["values"][-1]
    assert line["label"].startswith("loss ") and line["label"].endswith(" at step 20")
    assert server.get("sparklines") == {"runs": {}}
    assert server.ask("sparklines?" + "name=a&" * 101).status == 400


def test_what_is_noted_of_a_run(server: Server) -> None:
    """Labels, notes and the archive flag can be changed separately and appear in the list; the message about
    an invalid label shows the right form.
    """
    ended_run(server.output, "gpt-noted", 2)
    for body, changed in (
        ({"labels": {"team": "nlp", "stage": "trial"}}, {"labels": {"team": "nlp", "stage": "trial"}}),
        ({"labels": {"stage": None}}, {"labels": {"team": "nlp"}}),
        ({"notes": "higher rate"}, {"notes": "higher rate"}),
        ({"archived": True}, {"archived": True}),
    ):
        answer = server.ask("run/gpt-noted", "PATCH", body)
        assert answer.status == 200
        assert {key: answer.json[key] for key in changed} == changed
    assert answer.json == {
        "name": "gpt-noted",
        "labels": {"team": "nlp"},
        "notes": "higher rate",
        "archived": True,
    }

    def listed(query: str) -> list[str]:
        return [row["name"] for row in server.get(f"runs{query}")["runs"]]

    assert "gpt-noted" in listed("?archived=1") and "gpt-noted" not in listed("?archived=0")
    (row,) = [row for row in server.get("runs")["runs"] if row["name"] == "gpt-noted"]
    assert (row["labels"], row["notes"], row["archived"]) == ({"team": "nlp"}, "higher rate", True)
    refused = server.ask("run/gpt-noted", "PATCH", {"labels": {"a b": "x"}})
    assert refused.status == 422 and "'a b'" in refused.message
    assert server.ask("runs?archived=yes").message == "archived = 'yes' must be 0 or 1."


def test_deleting_asks_for_the_name(server: Server) -> None:
    """Deletion must be confirmed with the run's name; then all files are removed, and the run disappears from
    the list.
    """
    run = RunDir(server.output / "gpt-doomed")
    # Its supervisor must have ended, because deleting ends it.
    steps = ["--steps", "2", "--step-seconds", "0"]
    subprocess.run([sys.executable, str(FAKE_RUN), str(run.path), *steps], check=True)
    for query in ("", "?confirm=gpt-done"):
        answer = server.ask(f"run/gpt-doomed{query}", "DELETE")
        assert answer.status == 400 and "must be the run's name, gpt-doomed" in answer.message
    assert run.exists()
    answer = server.ask("run/gpt-doomed?confirm=gpt-doomed", "DELETE")
    assert answer.status == 200
    assert answer.json["deleted"].startswith("output/gpt-doomed: 1 job, 0 checkpoints, ")
    assert not run.path.exists()
    assert server.ask("run/gpt-doomed").status == 404
    assert server.ask("run/gpt-doomed?confirm=gpt-doomed", "DELETE").status == 404


@pytest.mark.parametrize("name", ["none", "..", "%2e%2e%2fetc", "GPT", "a" * 54])
def test_name_that_is_no_run_is_not_found(server: Server, run: RunDir, name: str) -> None:
    """An unknown or invalid name is answered with 404 and a message, and no name gives access to files
    outside the output directory.
    """
    parts = ("", "/log", "/log/raw", "/log/search?q=x", "/log/traceback", "/job", "/events")
    for part in parts:
        assert server.ask(f"run/{name}{part}").status == 404
    for action in ("save", "stop", "cancel", "pause", "resume", "clone"):
        assert server.ask(f"run/{name}/{action}", "POST").status == 404
    answer = server.ask("run/none")
    assert answer.json == {"message": "there is no run 'none' under output.", "kind": "no_run"}


def test_body_is_checked(server: Server, run: RunDir) -> None:
    """Unknown keys, wrong types and invalid JSON in a request body are reported."""
    for body, message in (
        ({"notes": 3}, "notes = 3 must be text."),
        ({"archived": "yes"}, 'archived = "yes" must be true or false.'),
        ({"tags": []}, "'tags' is not a key of this request; its keys are: labels, notes, archived."),
        ([], "the body of the request must be a JSON object."),
        (b"{", "the body of the request is not JSON: send a JSON object."),
        (b"[" * 100_000, "the body of the request is not JSON: send a JSON object."),
    ):
        answer = server.ask("run/gpt-done", "PATCH", body)
        assert (answer.status, answer.message) == (400, message)


def test_json_without_nan(server: Server) -> None:
    """A loss that is not finite is null in the list and in the run, because JSON has no NaN."""
    losses = {"gpt-nan": float("nan"), "gpt-inf": float("inf"), "gpt-minus-inf": float("-inf")}
    for name, loss in losses.items():
        beat = ended_run(server.output, name, 2).newest_job().heartbeat(0)
        value = json.loads(beat.read_text())
        value["progress"]["loss"] = loss
        beat.write_text(json.dumps(value))

    def strictly(content: bytes) -> Any:
        def refuse(word: str) -> None:
            raise AssertionError(word)

        return json.loads(content, parse_constant=refuse)

    listed = strictly(server.ask("runs").content)["runs"]
    assert {row["name"]: row["loss"] for row in listed if row["name"] in losses} == dict.fromkeys(losses)
    for name in losses:
        progress = strictly(server.ask(f"run/{name}").content)["progress"]
        assert (progress["step"], progress["loss"]) == (2, None)


def test_a_damaged_run_and_a_folder_that_is_no_run_say_so(server: Server) -> None:
    """The list and the page of a run.json without run_id name the file; a folder without one has no page."""
    for name, record in (("nameless", '{"name": "x"}'), ("torn", '{"schema_ver')):
        (server.output / name).mkdir()
        (server.output / name / "run.json").write_text(record)
    (server.output / "no-run").mkdir()

    def both() -> dict | None:
        listed = {row["name"]: row for row in server.get("runs")["runs"]}
        return listed if {"nameless", "torn"} <= listed.keys() else None

    # The server answers with the last list for a moment.
    listed = wait_until(both, "the damaged runs are not listed")
    assert listed is not None
    assert listed["nameless"]["state"] == listed["torn"]["state"] == "DAMAGED" and "no-run" not in listed
    answer = server.ask("run/nameless")
    assert answer.status == 404
    assert answer.message.startswith("output/nameless/run.json has no run_id, so the folder is not a run.")
    answer = server.ask("run/torn")
    assert answer.status == 409 and "torn/run.json:1: not JSON" in answer.message
    answer = server.ask("run/no-run")
    assert answer.status == 404 and answer.message.startswith("there is no run 'no-run'")
    for name in ("nameless", "torn", "no-run"):
        shutil.rmtree(server.output / name)
