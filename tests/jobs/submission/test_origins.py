"""Where each setting of a run was set, kept over its jobs."""

from pathlib import Path

from nbtrain.base.files import write_json, write_text
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load, load_resolved, to_yaml
from nbtrain.jobs.submission.origins import origins
from tests.lab.widgets.fake_run import FakeJob, run_config


def test_a_resumed_run_keeps_where_its_settings_were_set(tmp_path: Path) -> None:
    """A line of the YAML, or an override; a default has no place, and a resume adds its own overrides."""
    path, run = tmp_path / "gpt.yaml", RunDir(tmp_path / "output" / "gpt")
    write_text(path, to_yaml(run_config("gpt", 20)))
    line = path.read_text().split("\n").index("  seed: 1234") + 1
    first = load(path, ["lr_schedule.lr=5e-4"])
    found = origins(first, run)
    assert found["model.seed"].endswith(f"gpt.yaml:{line}")
    assert found["lr_schedule.lr"] == "override lr_schedule.lr=0.0005"
    job = FakeJob(run, 20)
    write_text(run.config_yaml, to_yaml(first))
    write_json(job.job.origins_json, {key: found[key] for key in ("model.seed", "lr_schedule.lr")})
    job.tensorboard.close()
    again = load(load_resolved(run.config_yaml), ["logging.log_interval_steps=2"])
    assert origins(again, run) == {
        "model.seed": found["model.seed"],
        "lr_schedule.lr": found["lr_schedule.lr"],
        "logging.log_interval_steps": "override logging.log_interval_steps=2",
    }
