"""The checks that `nbtrain doctor` makes."""

import importlib.metadata
import subprocess
import sys

import pytest

from nbtrain.base.findings import Finding
from nbtrain.cli import doctor
from nbtrain.corpus.tokenizer.proven import VERSIONS


def levels(findings) -> dict[str, str]:
    return {finding.message: finding.level for finding in findings}


@pytest.mark.slow
def test_this_machine_passes(workspace):
    """The test machine has no errors, and the checks import neither torch nor deepspeed."""
    code = (
        "import sys; from nbtrain import cli; code = cli.main(['doctor'])\n"
        "assert not {'torch', 'deepspeed'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error " not in done.stdout
    assert "deepspeed" in done.stdout


def test_a_cuda_build_without_a_gpu_is_warned_about(monkeypatch):
    """A CUDA build of torch without a GPU is a warning; libtorch_cuda.so reveals the build."""
    cuda = [importlib.metadata.PackagePath("torch/lib/libtorch_cuda.so")]
    monkeypatch.setattr(importlib.metadata, "files", lambda name: cuda)
    found = doctor.torch_findings(gpus=0)
    assert found[1].level == "warning"
    assert (
        found[1].message
        == "a CUDA build on a machine without a GPU: it takes several GB of disk space and is slow to import"
    )
    assert "README" in found[1].fix
    assert len(doctor.torch_findings(gpus=1)) == 1


def test_a_cpu_build_beside_a_gpu_is_warned_about(monkeypatch):
    """A CPU build of torch on a machine with a GPU is a warning, because training would not use the GPU."""
    monkeypatch.setattr(importlib.metadata, "files", lambda name: [])
    assert [finding.level for finding in doctor.torch_findings(gpus=2)] == ["ok", "warning"]


def test_known_bad_versions_are_named(monkeypatch):
    """A package version with a known problem is reported with the fix."""
    monkeypatch.setattr(doctor, "installed", {"ipykernel": "7.0.1"}.get)
    (finding,) = doctor.known_bad_findings()
    row, fix = str(doctor.report_of([finding])).splitlines()
    assert row == "warning  ipykernel  7.0.1 has a known problem"
    assert fix.lstrip().startswith("-> Run `pip install -U ipykernel`")


def test_a_missing_package_is_an_error(monkeypatch):
    """Missing torch or deepspeed is an error; missing fastokens is a note."""
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    assert doctor.torch_findings(0)[0].level == "error"
    assert doctor.package_finding("deepspeed", "x").level == "error"
    found = {finding.rule: finding for finding in doctor.examine()}
    assert found["fastokens"].level == "note"
    # The engine is proven for one version only, and an installed nbtrain has no file of constraints.
    (version,) = VERSIONS["fastokens"]
    assert found["fastokens"].fix == f"pip install 'fastokens=={version}'"
    assert found["torch"].fix.startswith("pip install 'torch>=")


@pytest.mark.parametrize(
    ("folder", "why"),
    [("ro/state/queue", "{}/ro is on a read-only disk"), ("file/queue", "{}/file is not a folder")],
)
def test_a_queue_that_cannot_be_kept_is_an_error(monkeypatch, tmp_path, folder, why):
    """A home directory on a read-only disk is an error, because local jobs would be refused."""
    (tmp_path / "ro").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(doctor, "is_read_only", lambda path: path.name == "ro")
    monkeypatch.setenv("NBTRAIN_QUEUE", str(tmp_path / folder))
    finding = doctor.queue_finding()
    assert (finding.level, finding.rule) == ("error", "queue")
    assert finding.message == f"{tmp_path / folder} is not writable: {why.format(tmp_path)}"
    assert "Set NBTRAIN_QUEUE" in finding.fix
    assert doctor.disk_finding("output", tmp_path / folder).level == "error"
    monkeypatch.setenv("NBTRAIN_QUEUE", str(tmp_path / "own"))
    assert doctor.queue_finding() == Finding("ok", "queue", "", "", str(tmp_path / "own"))


def test_what_deepspeed_cannot_compile_is_named(monkeypatch):
    """A missing header is named with its package; the tools of quantization matter on GPUs only."""
    monkeypatch.setattr(doctor, "nvme_tools", lambda: {"ninja": True, "libaio's headers": False})
    monkeypatch.setattr(doctor, "quantization_tools", lambda: {"ninja": True, "nvcc": True})
    (nvme,) = doctor.extension_findings(gpus=0)
    assert (nvme.level, nvme.message) == ("note", "missing: libaio's headers")
    assert "parallel.offload_optimizer.device: nvme" in nvme.fix
    assert [finding.level for finding in doctor.extension_findings(gpus=1)] == ["note", "ok"]
