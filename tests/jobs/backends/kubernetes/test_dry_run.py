"""Writing the manifest to a file, with which kubectl creates exactly what submit would create."""

import pytest
import yaml

from nbtrain.base.errors import ConfigError, SubmitError
from nbtrain.cli import __main__ as cli
from nbtrain.config.load import load
from nbtrain.jobs.submission.dry_run import dry_run
from tests.jobs.backends.kubernetes.conftest import PLAIN
from tests.jobs.backends.kubernetes.strict_schemas import errors

ON_KUBERNETES = {"kind": "kubernetes", "kubernetes": PLAIN}


def test_a_file_for_kubectl(workspace, tmp_path):
    """The manifest file is valid and contains the resources of the run; no other file is written."""
    config = load("gpt-13b-4xdp-4xpp", {"resources.cpus_per_node": 64, "backend": ON_KUBERNETES})
    path = dry_run(config, tmp_path / "job.yaml")
    manifest = yaml.safe_load(path.read_text())
    assert errors("TrainJob", manifest) == []
    trainer = manifest["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    asked = {"cpu": "64", "memory": "262144Mi", "nvidia.com/gpu": 8}
    assert trainer["resourcesPerNode"]["limits"] == asked
    assert trainer["command"][:4] == [
        *("python3", "-m", "nbtrain.jobs.node", "/workspace/output/gpt-13b-4xdp-4xpp")
    ]
    assert "#   start:   kubectl create -f THIS_FILE\n" in path.read_text()
    name = f"trainjobs.trainer.kubeflow.org {manifest['metadata']['name']} -n research"
    assert (
        f"#   watch:   kubectl get {name} --watch\n#   delete:  kubectl delete {name}\n" in path.read_text()
    )
    assert "# /workspace/output/gpt-13b-4xdp-4xpp; the other pods wait for it.\n" in path.read_text()
    assert not (workspace / "output" / config.name).exists()


def test_what_cannot_be_written_is_said(workspace, tmp_path):
    """A broken rule or a missing folder is reported before anything is written."""
    with pytest.raises(
        ConfigError, match=r"backend\.kind = local has no scheduler, .* Set backend\.kind to hosts"
    ):
        dry_run(load("gpt-125m"), tmp_path / "job.yaml")
    without = {"kind": "kubernetes", "kubernetes": {**PLAIN, "mounts": []}}
    with pytest.raises(ConfigError, match=r"must be on a volume from backend\.kubernetes\.mounts"):
        dry_run(load("gpt-125m", {"backend": without}, check=False), tmp_path / "job.yaml")
    assert not (tmp_path / "job.yaml").exists()
    with pytest.raises(SubmitError, match=r"no/job\.yaml cannot be written: No such file or directory\."):
        dry_run(load("gpt-125m", {"backend": ON_KUBERNETES}), tmp_path / "no" / "job.yaml")


def test_the_command_line_writes_it(workspace, tmp_path, capsys):
    """`nbtrain submit RUN --dry-run FILE` writes the manifest."""
    (tmp_path / "run.yaml").write_text(
        yaml.safe_dump({"extends": "gpt-125m", "name": "r", "backend": ON_KUBERNETES})
    )
    assert cli.main(["submit", str(tmp_path / "run.yaml"), "--dry-run", str(tmp_path / "job.yaml")]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'job.yaml'}: written; nothing was submitted.")
    assert yaml.safe_load((tmp_path / "job.yaml").read_text())["kind"] == "TrainJob"
