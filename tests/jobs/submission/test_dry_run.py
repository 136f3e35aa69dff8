"""The file that a scheduler would get, for the run that docs/cluster.md moves from a laptop to a cluster."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

import nbtrain as nb
from nbtrain.api.check import check
from nbtrain.base import files
from nbtrain.base.errors import ConfigError, SubmitError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli.__main__ import main
from nbtrain.config.load import load, to_yaml
from nbtrain.config.load.changes import changes_between
from nbtrain.config.load.one_line import RUN_YAML
from nbtrain.foreign.importing import import_files
from nbtrain.jobs.submission.dry_run import dry_run, request_text

PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"


@pytest.fixture
def places(workspace):
    """Return {heading: configuration}: the YAML on the page, and the YAML after each of the page's three
    diffs.
    """
    page = PAGE.read_text()
    plain = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1]
    found = {"plain": plain}
    for where, diff in re.findall(r"\*\*On (?:a )?(\w+)\*\*[^`]*```diff\n(.*?)```", page, re.DOTALL):
        lines = diff.splitlines(keepends=True)
        assert "".join(line[1:] for line in lines if line[0] != "+") == plain, "a diff of the one YAML"
        found[where] = "".join(line[1:] for line in lines if line[0] != "-")
    path = workspace / "my-run.yaml"
    return {where: (path.write_text(text), load(path))[1] for where, text in found.items()}


def test_the_diffs_of_the_page_are_what_the_engines_get(places, workspace, tmp_path):
    """With each diff on the page, a dry run writes the right file for the scheduler, and nothing else."""
    assert list(places) == ["plain", "laptop", "Slurm", "Kubernetes"]
    laptop, slurm, kubernetes = places["laptop"], places["Slurm"], places["Kubernetes"]
    assert changed(places["plain"], laptop) == {"backend.priority", "resources.cpus_per_node"}
    assert {config.train_steps for config in places.values()} == {400}
    assert all(check(config).works for config in places.values())
    with pytest.raises(
        ConfigError, match=r"backend\.kind = local has no scheduler, .* Set backend\.kind to hosts"
    ):
        dry_run(laptop, tmp_path / "none")
    (tmp_path / "link").symlink_to("my-run.sbatch")
    script = dry_run(slurm, tmp_path / "link").read_text().splitlines()
    assert (tmp_path / "link").is_symlink()
    assert script[0] == "#!/bin/bash"
    assert script[1].startswith("# Run my-run, job ")
    options = [line.removeprefix("#SBATCH ") for line in script if line.startswith("#SBATCH")]
    for option in ("--nodes=2", "--gres=gpu:4", "--partition=gpu", "--time=1-00:00:00"):
        assert option in options
    first = next(number for number, line in enumerate(script) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in script[first:]), "sbatch reads no further"
    assert script[-1].startswith("exec ") and "nbtrain.jobs.supervisor --foreground" in script[-1]
    trainer = yaml.safe_load(request_text(kubernetes))["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 4)
    assert trainer["image"] == "registry.example.com/nbtrain:0.1.0"
    for config in (slurm, kubernetes):
        assert RUN_YAML not in request_text(config), "what `nbtrain submit` sends has its run on the disk"
        assert RUN_YAML in dry_run(config, tmp_path / "alone").read_text()
    assert not (workspace / "output").exists()


def test_a_dry_run_is_written_to_the_current_folder(places, workspace, monkeypatch):
    """A relative path starts at the current folder, in Python and on the command line, and ~ at the home
    folder.
    """
    here = workspace / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(workspace))
    assert nb.submit(places["Slurm"], dry_run="mine.sbatch") == here / "mine.sbatch"
    files.write_text(workspace / "my-run.yaml", to_yaml(places["Slurm"]))
    assert main(["submit", "my-run.yaml", "--dry-run", "mine2.sbatch"]) == 0
    assert sorted(path.name for path in here.iterdir()) == ["mine.sbatch", "mine2.sbatch"]
    assert nb.submit(places["Slurm"], dry_run="~/mine.sbatch") == workspace / "mine.sbatch"
    with pytest.raises(ConfigError, match="is not the path of a file to write"):
        nb.submit(places["Slurm"], dry_run="")


@pytest.mark.parametrize(("where", "name"), [("Slurm", "again.sbatch"), ("Kubernetes", "again.yaml")])
def test_a_dry_run_is_imported_as_its_run(places, workspace, tmp_path, where, name):
    """The file of a dry run imports as the run that wrote it. What `nbtrain submit` sends needs the run
    directory.
    """
    path = dry_run(places[where], tmp_path / name)
    assert import_files([path]).config == places[where]
    assert import_files([path], ["model.seed=7"]).config.model.seed == 7
    assert check(path).works
    path.write_text(request_text(places[where]))
    with pytest.raises(ConfigError, match=r"nbtrain wrote this file for the run my-run\. The run's"):
        import_files([path])
    run = RunDir.named("my-run")
    run.path.mkdir(parents=True)
    run.config_yaml.write_text(to_yaml(places[where]))
    assert import_files([path]).config == places[where]


@pytest.mark.parametrize("where", ["Slurm", "Kubernetes"])
def test_only_a_dry_run_is_overwritten(places, workspace, tmp_path, where):
    """A dry run overwrites only an empty file or an earlier dry run, but never the run's YAML or another
    file.
    """
    before = (workspace / "my-run.yaml").read_bytes()
    (tmp_path / "link").symlink_to(workspace / "my-run.yaml")
    (tmp_path / "notes").write_text("# job list\nwritten by nbtrain.\n")
    for path in (workspace / "my-run.yaml", tmp_path / "link", tmp_path / "notes"):
        with pytest.raises(SubmitError, match=f"{path} already exists .* Choose another file, or delete"):
            dry_run(places[where], path)
    assert (workspace / "my-run.yaml").read_bytes() == before
    (tmp_path / "new").touch()
    first = dry_run(places[where], tmp_path / "new").read_text()
    assert dry_run(places[where], tmp_path / "new").read_text() != "" != first


def test_a_dry_run_warns_of_pods_that_cannot_save_in_time(places, tmp_path, caplog):
    """A dry run warns if the grace period of pods, which it writes to the file, is too short for saving."""
    config = load(places["Kubernetes"], {"backend.shutdown_timeout_seconds": 0.01})
    dry_run(config, tmp_path / "short.yaml")
    [said] = [record.getMessage() for record in caplog.records]
    assert "shutdown_timeout_seconds(0.01) gives ranks " in said
    assert "Set backend.shutdown_timeout_seconds: " in said
    caplog.clear()
    dry_run(load(config, {"backend.shutdown_timeout_seconds": 600}), tmp_path / "long.yaml")
    assert caplog.records == []


def changed(before, after):
    return {change.key for change in changes_between(before, after)}


def test_a_batch_script_for_sbatch_alone_is_no_shell_script(places, workspace, tmp_path):
    """A batch script that is started outside of an allocation does nothing except print how to start it."""
    script = dry_run(places["Slurm"], tmp_path / "my-run.sbatch")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    answer = subprocess.run(["bash", script], capture_output=True, text=True, env=environment)
    assert answer.returncode != 0
    assert answer.stderr.endswith("SLURM_JOB_ID: is not set: start this file with sbatch\n")
    assert "--output=" not in script.read_text(), "the folder of its logs is not there yet"
    assert not (workspace / "output").exists()
