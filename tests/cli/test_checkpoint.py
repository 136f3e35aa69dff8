"""`nbtrain checkpoint`, on complete and on torn folders."""

import hashlib
import json
import os
import shutil
import socket

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.checkpoint_files import LocalSave, LocalSaves
from nbtrain.base.run_directory.records import AttemptRecord, JobRecord, ProcessIdentity, Rollback
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli import __main__ as cli
from nbtrain.config.load import load, to_yaml
from nbtrain.jobs import gpu_side

MANIFEST = {
    "schema_version": 2,
    "validation_loss": None,
    "evaluated_step": None,
    "created_at": 0.0,
    "consumed_samples": 80,
    "consumed_tokens": 2560,
    "layout": {
        "data_parallel_size": 2,
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 1,
        "ds_sequence_parallel_size": 1,
        "zero_stage": 1,
        "weights": "bf16",
    },
    "versions": {"nbtrain": "1.0", "torch": "2.13"},
    "parameters": {"a": {"shape": [3, 4], "group": "decay"}, "b": {"shape": [5], "group": "no_decay"}},
    "next_batch_sha256": "e" * 64,
}
ONE_RANK = {
    **MANIFEST,
    "layout": {
        "data_parallel_size": 1,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "zero_stage": 3,
        "weights": "fp32",
    },
}


@pytest.fixture
def run(workspace) -> RunDir:
    run = RunDir.named("tiny")
    run.path.mkdir(parents=True)
    files.write_json(run.run_json, {"run_id": "a", "name": "tiny"})
    return run


def write(run: RunDir, step: int, manifest: dict | None, content: bytes = b"x" * 3000, **more) -> None:
    folder = run.checkpoint(step)
    folder.mkdir(parents=True)
    (folder / "a.pt").write_bytes(content)
    if manifest is not None:
        described = {"a.pt": {"bytes": 3000, "sha256": "0" * 64}}
        files.write_json(folder / "manifest.json", {**manifest, "step": step, "files": described, **more})


def test_the_list_tells_which_are_whole_and_why_others_are_not(run, capsys):
    write(run, 10, ONE_RANK)
    write(run, 20, MANIFEST, validation_loss=3.25, evaluated_step=20)
    write(run, 1000, MANIFEST, content=b"x" * 7, validation_loss=3.25, evaluated_step=20)
    write(run, 2000, None)
    assert cli.main(["checkpoint", "list", "tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "step size layout validation loss state",
        "10 2.9 KiB 1 rank, ZeRO 3, fp32 complete",
        "20 2.9 KiB data 2 x tensor 4, ZeRO 1, bf16 3.2500 complete",
        "1,000 7 B data 2 x tensor 4, ZeRO 1, bf16 incomplete: a.pt has 7 bytes, but manifest.json lists "
        "3,000",
        "2,000 2.9 KiB incomplete: manifest.json is missing: the save was interrupted",
    ]
    assert cli.main(["checkpoint", "list", "tiny", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [checkpoint["step"] for checkpoint in listed] == [10, 20, 1000, 2000]
    assert listed[1]["problem"] is None and listed[1]["validation_loss"] == 3.25


def test_a_manifest_that_is_no_json_is_told(run, capsys):
    write(run, 10, ONE_RANK)
    run.checkpoint_manifest(10).write_text("{")
    assert cli.main(["checkpoint", "list", "tiny"]) == 0
    assert "incomplete: manifest.json is not JSON" in capsys.readouterr().out


def test_what_is_gone_from_this_host_is_not_promised(run, tmp_path, capsys):
    local, host = tmp_path / "local", socket.gethostname()
    run.config_yaml.write_text(to_yaml(load("gpt-tiny", [f"checkpoint.local_dir={local}"])))
    LocalSaves([LocalSave(12, "id12", [host], "20261121-031500-a1b2", 0, 0.0)]).keep(run)
    assert cli.main(["checkpoint", "list", "tiny"]) == 0
    assert capsys.readouterr().out.endswith(
        f"Step 12 was saved only on the disks of {host} (checkpoint.local_dir) and is no longer on this "
        f"host, {host}. A resume starts from the beginning.\n"
    )
    write(run, 4, None)
    assert cli.main(["checkpoint", "list", "tiny"]) == 0
    assert capsys.readouterr().out.endswith("A resume finds no complete checkpoint to continue from.\n")
    shutil.rmtree(run.checkpoint(4))
    (local / "tiny-a" / "global_step12").mkdir(parents=True)
    assert cli.main(["checkpoint", "list", "tiny"]) == 0
    assert "to continue from it, resume on the same nodes." in capsys.readouterr().out


def test_no_checkpoint(run, capsys):
    assert cli.main(["checkpoint", "list", "tiny"]) == 0
    assert capsys.readouterr().out == "tiny has no checkpoint yet.\n"
    LocalSaves([LocalSave(12, "id12", ["node-a"], "20261121-031500-a1b2", 0, 0.0)]).keep(run)
    assert cli.main(["checkpoint", "list", "tiny"]) == 0
    assert capsys.readouterr().out == (
        "tiny has no checkpoint in output/tiny/model.\n"
        "The checkpoint of step 12 is only on the local disks of node-a (checkpoint.local_dir): to continue "
        "from it, resume on the same nodes.\n"
    )
    assert cli.main(["checkpoint", "inspect", "tiny"]) == 4
    assert "contains no complete checkpoint" in capsys.readouterr().err


def test_every_step_that_stays_on_the_nodes_is_listed_with_its_hosts(run, capsys):
    """Steps that are only on the nodes' disks are listed with their hosts, up to local_keep_last.

    Steps that a rollback invalidated are omitted.
    """
    run.config_yaml.write_text(
        to_yaml(load("gpt-tiny", ["checkpoint.local_dir=/nvme", "checkpoint.local_keep_last=4"]))
    )
    first, second = "20261121-031500-a1b2", "20261121-041500-a1b2"
    saves = [LocalSave(step, f"id{step}", ["a", "b"], first, 0, 0.0, step == 20) for step in range(14, 25, 2)]
    LocalSaves([*saves, LocalSave(26, "id26", ["b"], second, 0, 0.0)]).keep(run)
    write(run, 20, ONE_RANK)
    assert cli.main(["checkpoint", "list", "tiny"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1:-1] == [
        "20 2.9 KiB 1 rank, ZeRO 3, fp32 complete",
        "22 only on the disks of a, b",
        "24 only on the disks of a, b",
        "26 only on the disks of b",
    ]
    assert cli.main(["checkpoint", "list", "tiny", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(checkpoint["step"], checkpoint["hosts"]) for checkpoint in listed] == [
        (20, []),
        (22, ["a", "b"]),
        (24, ["a", "b"]),
        (26, ["b"]),
    ]
    Rollback(first, 0, 0.0, 25, 20, 0, 1, "NaN").append(run.rollbacks_json)
    assert cli.main(["checkpoint", "list", "tiny", "--json"]) == 0
    assert [checkpoint["step"] for checkpoint in json.loads(capsys.readouterr().out)] == [20, 26]


def test_inspect_tells_where_the_training_stood(run, capsys):
    """inspect shows the step and progress of a checkpoint, by default of the newest complete one."""
    write(run, 20, MANIFEST, validation_loss=3.25, evaluated_step=15)
    write(run, 30, None)
    assert cli.main(["checkpoint", "inspect", "tiny"]) == 0
    said = capsys.readouterr().out
    for words in (
        "output/tiny/model/global_step20: 2.9 KiB in 1 file",
        "step 20, 80 samples, 2,560 tokens",
        "data 2 x tensor 4, ZeRO 1, bf16",
        "17 in 2 tensors",
        "AdamW (exp_avg, exp_avg_sq): decay 12 parameters in 1 tensor, no_decay 5 parameters in 1 tensor\n",
        "3.2500, at step 15",
        "e" * 64,
    ):
        assert words in said
    by_muon = {"c": {"shape": [6, 2], "group": "matrices"}, "d": {"shape": [2, 2], "group": "matrices"}}
    write(run, 25, {**MANIFEST, "parameters": {**MANIFEST["parameters"], **by_muon}})
    assert cli.main(["checkpoint", "inspect", "tiny", "--step", "25"]) == 0
    by_adamw = (
        "AdamW (exp_avg, exp_avg_sq): decay 12 parameters in 1 tensor, no_decay 5 parameters in 1 tensor"
    )
    assert (
        f"Muon (momentum_buffer): matrices 16 parameters in 2 tensors; {by_adamw}" in capsys.readouterr().out
    )
    assert cli.main(["checkpoint", "inspect", "tiny", "--step", "30"]) == 4
    assert "the save was interrupted" in capsys.readouterr().err


def test_verify_during_a_save(run, capsys, monkeypatch):
    """A checkpoint that the running job is saving or removing is not reported as
    damaged; an older torn one is.
    """
    whole = {"a.pt": {"bytes": 3000, "sha256": hashlib.sha256(b"x" * 3000).hexdigest()}}
    for step in (10, 20, 30, 40):
        write(run, step, MANIFEST if step == 20 else None)
    files.write_json(run.checkpoint_manifest(20), {**MANIFEST, "step": 20, "files": whole})
    now = run.checkpoint(40).stat().st_mtime
    os.utime(run.checkpoint(30), (now - 100, now - 100))
    job = run.job("20260101-000000-ab12")
    job.path.mkdir(parents=True)
    attempt = AttemptRecord(attempt=1, started_at=now - 50, world_size=1, data_parallel_size=1)
    record = JobRecord(
        job_id=job.path.name,
        run_id="a",
        name="tiny",
        state="RUNNING",
        created_at=now,
        world_size=1,
        supervisor=ProcessIdentity.of(os.getpid()),
        attempts=[attempt],
    )
    record.write(job.job_json)
    assert cli.main(["checkpoint", "verify", "tiny"]) == 4
    said = capsys.readouterr()
    assert [" ".join(line.split()) for line in said.out.splitlines()] == [
        "10 not compared: it is being removed by the running job",
        "20 valid: 1 file compared by SHA-256",
        "30 not valid: manifest.json is missing: the save was interrupted",
        "40 not compared: it is being saved by the running job",
    ]
    assert "1 of 4 checkpoints is not valid" in said.err
    assert cli.main(["checkpoint", "list", "tiny"]) == 0
    assert "incomplete: it is being saved by the running job" in capsys.readouterr().out

    def removed(path):
        """Remove the checkpoint while its files are being read, as pruning by the job does."""
        shutil.rmtree(run.checkpoint(20))
        raise FileNotFoundError(path)

    monkeypatch.setattr(files, "sha256_of", removed)
    assert cli.main(["checkpoint", "verify", "tiny", "--step", "20"]) == 0
    assert "not compared: it was removed by the running job" in capsys.readouterr().out


def test_verify_reads_everything(run, capsys):
    """verify reads every file: it finds a changed byte although all sizes are right,
    and lists every checkpoint.
    """
    content = b"x" * 3000
    whole = {"a.pt": {"bytes": 3000, "sha256": hashlib.sha256(content).hexdigest()}}
    for step in (10, 20, 30):
        write(run, step, MANIFEST)
        files.write_json(run.checkpoint_manifest(step), {**MANIFEST, "step": step, "files": whole})
    assert cli.main(["checkpoint", "verify", "tiny"]) == 0
    (run.checkpoint(20) / "a.pt").write_bytes(b"y" + content[1:])
    (run.checkpoint(30) / "a.pt").write_bytes(b"y")
    capsys.readouterr()
    assert cli.main(["checkpoint", "verify", "tiny"]) == 4
    said = capsys.readouterr()
    assert [" ".join(line.split()) for line in said.out.splitlines()] == [
        "10 valid: 1 file compared by SHA-256",
        "20 not valid: the SHA-256 of a.pt differs from the manifest",
        "30 not valid: a.pt has 1 byte, but manifest.json lists 3,000",
    ]
    assert said.err.endswith(
        "output/tiny/model: 2 of 3 checkpoints are not valid; a resume uses the newest complete checkpoint.\n"
    )
    assert cli.main(["checkpoint", "verify", "tiny", "--step", "10"]) == 0
    assert cli.main(["checkpoint", "verify", "tiny", "--step", "11"]) == 4
    said = capsys.readouterr().err
    assert "has no checkpoint from step 11" in said and "`nbtrain checkpoint list " in said


def test_universal_asks_the_gpu_side(run, capsys, monkeypatch):
    """`checkpoint universal` starts a GPU-side process with an absolute path, and
    shows a bar and a result line.
    """
    asked = []

    def stream(package, request):
        asked.append((package, request))
        yield {"kind": "note", "message": "checkpoint global_step30 is not used: torn"}
        yield {"kind": "progress", "done": 17, "total": 17}
        yield {
            "kind": "end", "folder": str(run.path / "universal" / "global_step20"), "step": 20,
            "parameters": 2, "bytes": 2048, "seconds": 3.0,
        }  # fmt: skip

    monkeypatch.setattr(gpu_side, "stream", stream)
    monkeypatch.chdir(run.path)
    assert cli.main(["checkpoint", "universal", "tiny", "--step", "20", "--to", "there"]) == 0
    ((package, request),) = asked
    assert package == "nbtrain.checkpoint.universal"
    assert request == {"run_dir": str(run.path), "step": 20, "to": str(run.path / "there")}
    said = capsys.readouterr()
    assert (
        said.out == "output/tiny/universal/global_step20: written from step 20 in 3 s; 2 tensors, 2.0 KiB.\n"
    )
    assert "checkpoint global_step30 is not used: torn" in said.err
