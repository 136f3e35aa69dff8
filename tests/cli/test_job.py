"""`nbtrain job`, which prints the page of a run's job."""

import json
from pathlib import Path

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli import __main__ as cli
from tests.lab.widgets.fake_run import FakeJob


@pytest.mark.slow
def test_job_prints_its_page(workspace: Path, capsys: pytest.CaptureFixture) -> None:
    """A job page is printed as text, JSON, YAML or a picture; earlier jobs are selected by id."""
    job = FakeJob(RunDir.named("gpt-fake"), steps=4)
    job.one_step()
    job.finish("SUCCEEDED", "all tokens are done and saved")
    picture = workspace / "resources.svg"
    assert cli.main(["job", "gpt-fake", "--picture", str(picture)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"gpt-fake SUCCEEDED: job {job.job.job_id} on backend local\n")
    assert said.err == f"{picture}\n" and picture.read_text().startswith("<?xml")
    assert cli.main(["job", "gpt-fake", "--json", "--job", job.job.job_id]) == 0
    assert json.loads(capsys.readouterr().out)["conditions"][-1]["type"] == "Succeeded"
    assert cli.main(["job", "gpt-fake", "--yaml"]) == 0
    assert capsys.readouterr().out == job.run.config_yaml.read_text()
    assert cli.main(["job", "gpt-fake", "--job", "yesterday"]) == 5
    assert "gpt-fake has no job 'yesterday'. Its jobs:" in capsys.readouterr().err
    assert cli.main(["job", "gpt-fake", "-n", "-1"]) == 2
    assert capsys.readouterr().err == "ConfigError: --events -1: must be at least 0.\n"
