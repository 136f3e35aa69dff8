"""Plans, configurations, checks and the launch form, over REST."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.jobs.control.control import ask_pause, asked_pause
from tests.lab.server.conftest import Server, ended_run
from tests.lab.widgets.fake_run import FakeJob

pytestmark = pytest.mark.slow


def test_plan_of_a_run(server: Server, run: RunDir) -> None:
    """A plan begins with fit, time and disk space; its tables and findings follow."""
    plan = server.get("run/gpt-done/plan")
    assert list(plan["headline"]) == ["fits", "time", "disk"]
    assert [table["title"] for table in plan["tables"]][:4] == ["Model", "Training", "Memory", "Time"]
    assert all(len(row) == len(table["heads"]) for table in plan["tables"] for row in table["rows"])
    assert all({"level", "message", "fix"} <= finding.keys() for finding in plan["findings"])


def test_config_beside_its_parents(server: Server) -> None:
    """The configuration of a clone lists the differences from its parent; if the parent is gone, the
    configuration is returned alone.
    """
    parent = ended_run(server.output, "gpt-parent", 2)
    value = server.get("run/gpt-parent/config")
    rows = {row.pop("key"): row for row in value.pop("rows")}
    assert value == {"yaml": parent.config_yaml.read_text(), "parent": None, "differences": []}
    rate = {"value": "0.001", "text": "0.001", "default": None, "origin": "", "override": False}
    assert rows["lr_schedule.lr"] == rate and rows["model.num_layers"]["value"] == "4"
    body = {"name": "gpt-child", "overrides": {"lr_schedule.lr": 5e-4}}
    assert server.ask("run/gpt-parent/clone", "POST", body).status == 201
    value = server.get("run/gpt-child/config")
    assert (value["parent"], value["differences"]) == ("gpt-parent", [["lr_schedule.lr", "0.0005", "0.001"]])
    (row,) = [row for row in value["rows"] if row["key"] == "lr_schedule.lr"]
    assert (row["value"], row["parent"]) == ("0.0005", "0.001")
    parent.config_yaml.unlink()
    assert server.get("run/gpt-child/config")["parent"] is None
    answer = server.ask("run/gpt-parent/config")
    assert (answer.status, answer.message) == (404, "output/gpt-parent/config.yaml does not exist.")


def test_check_says_all_that_stands_against_a_run(server: Server) -> None:
    """Checking a valid run returns no problems, checking an invalid run returns them, and files outside the
    workspace are not read.
    """
    assert server.ask("check", "POST", {"yaml": "gpt-tiny"}).json["works"] is True
    answer = server.ask("check", "POST", {"yaml": "gpt-tiny", "overrides": {"batch.micro_batch_size": 3}})
    assert (answer.status, answer.json["works"]) == (200, False)
    assert answer.json["findings"][0]["level"] == "error"
    assert "micro_batch_size" in answer.json["findings"][0]["message"]
    # As nb.check and `nbtrain check`: own code and start weights, too.
    for overrides, says in (
        ({"code": "/nonexistent/mine.py"}, "/nonexistent/mine.py"),
        ({"init_from": "/nonexistent/model"}, "/nonexistent/model"),
    ):
        there = server.ask("check", "POST", {"yaml": "gpt-tiny", "overrides": overrides}).json
        assert any(says in finding["message"] for finding in there["findings"])
    for verb in ("check", "submit"):
        for body in ({}, {"yaml": ""}, {"yaml": None}):
            assert server.ask(verb, "POST", body).status == 400
    answer = server.ask("check", "POST", {"yaml": "/etc/passwd"})
    assert answer.status == 422 and answer.json["kind"] == "outside_workspace"


def test_form_over_rest(server: Server) -> None:
    """The form is requested by GET, or by POST if the query is too long. Drafts are assessed, and an invalid
    draft is answered with 422.
    """
    shown = server.get("form?yaml=gpt-tiny&overrides=" + quote(json.dumps({"batch.max_steps": 40})))
    assert [change[:3] for change in shown["given"]] == [["batch.max_steps", "null", "40"]]
    assert server.ask("form", "POST", {"yaml": "gpt-tiny"}).json["yaml"] == "gpt-tiny"
    typed = {"batch.micro_batch_size": "3"}
    assessed = server.ask("form/assess", "POST", {"yaml": "gpt-tiny", "typed": typed}).json
    assert assessed["may_submit"] is False
    assert {one["key"] for one in assessed["problems"]} & {
        "batch.micro_batch_size",
        "batch.global_batch_size",
    }
    assert server.ask("form?yaml=none").status == 422
    answer = server.ask("form/assess", "POST", {"lines": 3})
    assert answer.status == 400 and answer.message.startswith("'lines' is not a key of this request;")
    assert server.ask("form/assess").status == 405


def test_submit_says_why_not(server: Server, tmp_path: Path) -> None:
    """If data is missing, submit starts nothing and returns what is missing."""
    answer = server.ask("submit", "POST", {"yaml": "gpt-tiny", "name": "gpt-unprepared"})
    assert answer.status == 409
    assert answer.message.startswith("gpt-unprepared cannot start here:")
    assert not (server.output / "gpt-unprepared").exists()


def test_submit_of_a_paused_run_with_other_settings_is_refused(server: Server) -> None:
    """Submitting a paused run with other settings is rejected as on the command line; the job does not
    change, and the message suggests a resume with these settings.
    """
    job = FakeJob(RunDir(server.output / "gpt-paused"), steps=20)
    job.one_step()
    ask_pause(job.job, True)
    request = {"yaml": "gpt-paused", "typed": {"logging.log_interval_steps": "7"}, "name": "gpt-paused"}
    answer = server.ask("submit", "POST", request)
    assert answer.status == 409
    assert "gpt-paused: its job is paused, and the submission would change its settings:" in answer.message
    assert "`nbtrain resume gpt-paused logging.log_interval_steps=7` ends the job;" in answer.message
    assert asked_pause(job.job) and job.run.job_ids() == [job.job.job_id]
    job.tensorboard.close()
