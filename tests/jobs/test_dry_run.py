"""The text that an engine would get, for the run that the README takes from a laptop to a cluster."""

import re
from pathlib import Path

import pytest
import yaml

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.jobs.dry_run import dry_run, request_text

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def steps(workspace):
    """The configurations before and after each diff of the README's section."""
    section = README.read_text().partition("## From a laptop to a cluster")[2]
    found = [re.search(r"```yaml\n(.*?)```", section, re.DOTALL)[1].splitlines()]
    for diff in re.findall(r"```diff\n(.*?)```", section, re.DOTALL):
        lines = diff.splitlines()
        assert [line[1:] for line in lines if line[0] != "+"] == found[-1], "a diff of the file before it"
        found.append([line[1:] for line in lines if line[0] != "-"])
    path = workspace / "my-run.yaml"
    return [(path.write_text("\n".join(lines)), load(path))[1] for lines in found]


def test_the_readmes_diffs_are_what_the_engines_get(steps, workspace, tmp_path):
    """One YAML on three backends; nothing but the file is written."""
    laptop, slurm, kubernetes = steps
    with pytest.raises(ConfigError, match=r"backend\.kind = local: a dry run writes what an engine is sent"):
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
    assert not (workspace / "output").exists()
