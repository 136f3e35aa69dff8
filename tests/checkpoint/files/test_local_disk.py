"""A node's own disk, and which of its checkpoints may be used; no ranks are started."""

import hashlib
import shutil
import time

import pytest
import torch

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.run_directory.checkpoint_files import LocalSave, LocalSaves
from nbtrain.base.run_directory.records import Rollback
from nbtrain.checkpoint.files import copier, local_disk
from nbtrain.checkpoint.files.local_disk import LocalDisk, Part, note_local, note_resumed
from nbtrain.checkpoint.local_resume import Candidate, _why_void
from nbtrain.parallel.startup import World
from tests.train import launch

JOB = "20261121-031500-a1b2"


@pytest.fixture
def disk(tmp_path, monkeypatch) -> LocalDisk:
    """Return the disk of the second of two nodes with two ranks each, as the node's first rank sees it."""
    run = launch.make_run(
        tmp_path, {"checkpoint.local_dir": f"{tmp_path}/{{node}}", "checkpoint.keep_last": 1}
    )
    monkeypatch.setenv("GROUP_RANK", "1")

    def gathered(mine):
        host, root, _ = mine
        return [(host, root.replace(f"{tmp_path}/1", f"{tmp_path}/0"), 0)] * 2 + [mine] * 2

    monkeypatch.setattr(local_disk, "gather_objects", gathered)
    config = launch.load_resolved(run.config_yaml)
    return LocalDisk(config, run, World(2, 4, 0, torch.device("cpu")), JOB, 1)


def part(disk: LocalDisk, step: int, rank: int = 2, **changes) -> Part:
    """Write one rank's part, a file of 4 bytes, to the disk."""
    folder = disk.checkpoint(step)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{rank}.pt").write_bytes(b"made")
    described = {f"{rank}.pt": {"bytes": 4, "sha256": hashlib.sha256(b"made").hexdigest()}}
    made = Part(rank, 4, step, f"id{step}", JOB, 1, [0, rank, 0], described)
    for name, value in changes.items():
        setattr(made, name, value)
    disk.write_part(made)
    return made


def test_who_shares_the_disk(disk, tmp_path):
    """Ranks with the same folder on the same host share a disk, and the first of them acts for all."""
    run_id = disk.run.record()["run_id"]
    assert disk.root == tmp_path / "1" / f"tiny-{run_id}"
    assert (disk.ranks_here, disk.nodes, disk.lead_of, disk.is_lead) == ([2, 3], 2, [0, 0, 2, 2], True)


def test_a_part_without_a_record_or_of_another_size_does_not_count(disk):
    """A part without a record, or of another size than its record says, does not count."""
    whole = part(disk, 4)
    part(disk, 8)
    (disk.checkpoint(8) / "2.pt").write_bytes(b"mad")
    (disk.checkpoint(12)).mkdir()
    part(disk, 16)
    (disk.checkpoint(16) / "parts" / "2.json").write_text("{")
    assert list(disk.parts()) == [whole]
    disk.prune([8])
    assert disk.steps() == [8]


def test_a_disk_that_takes_nothing_is_said_in_words(disk, monkeypatch):
    """A disk without space or write permission is reported in a sentence and not raised."""
    free = shutil.disk_usage("/")._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    said = disk.make_room(4)
    assert said.startswith(f"{disk.host}: {disk.root}: a node's part of a checkpoint needs ")
    assert said.endswith(", but only 976.6 KiB is free")
    shutil.rmtree(disk.root)
    disk.root.write_text("a file")
    assert disk.make_room(4) == f"{disk.host}: {disk.root}: File exists"


def test_whole_over_all_nodes():
    """A checkpoint is complete if the nodes together have every rank's part, or if one
    part is complete by itself.
    """
    parts = {rank: Part(rank, 4, 8, "id", JOB, 1, [0, rank, 0], {"x": {}}) for rank in range(4)}
    holders = {0: [0], 1: [0], 2: [2], 3: [2]}
    assert Candidate(8, "id", parts, holders).missing() == ""
    holders[3] = []
    candidate = Candidate(8, "id", parts, holders)
    assert candidate.missing() == "the files of rank 3 are not on any node"
    parts[2].is_whole = True
    assert candidate.missing() == "" and candidate.chosen() == {2: parts[2]}


def test_what_must_not_be_used_although_it_is_whole(disk):
    """A complete checkpoint is not used after a rollback, after a resume from another,
    or once its copy was deleted.
    """
    run = disk.run
    candidate = Candidate(8, "id8", {2: part(disk, 8)}, {2: [2]})
    assert _why_void(run, candidate) == ""
    note_local(disk, 8, "id8", copied=False)
    # The later end of an older step's copy does not change that.
    note_local(disk, 6, "id6", copied=True)
    assert [(one.step, one.copied) for one in LocalSaves.of(run).saves] == [(6, True), (8, False)]
    note_local(disk, 8, "id8", copied=True)
    assert _why_void(run, candidate) == "its copy global_step8 was removed from the run directory"
    run.checkpoint(8).mkdir(parents=True)
    assert _why_void(run, candidate) == ""
    note_resumed(run, 6, JOB, 2)
    assert [one.step for one in LocalSaves.of(run).saves] == [6]
    assert _why_void(run, candidate) == "the run has since continued from another checkpoint"
    Rollback(JOB, 1, 0.0, 9, 6, 1, 2, "NaN").append(run.rollbacks_json)
    assert _why_void(run, candidate) == "the run was rolled back after this save"


def test_a_resume_from_an_older_step_forgets_newer_ones(disk):
    """A resume from an older step removes newer steps from the list; a new save of the
    same step replaces the old.
    """
    LocalSaves([LocalSave(step, f"old{step}", ["a"], JOB, 0, 0.0) for step in (4, 8, 12)]).keep(disk.run)
    note_local(disk, 8, "new8", copied=False)
    assert [one.save_id for one in LocalSaves.of(disk.run).saves] == ["old4", "new8"]


def test_the_view_leads_to_what_is_here_and_else_to_the_run_directory(disk):
    """The view links to sound local files, and to the run directory for damaged
    files and other saves' files.
    """
    part(disk, 8)
    (disk.checkpoint(8) / "0.pt").write_bytes(b"rotten")
    view = disk.view(8, ["2.pt", "0.pt"], {"2.pt"})
    assert (view / "2.pt").resolve() == disk.checkpoint(8) / "2.pt"
    assert (view / "0.pt").readlink() == disk.run.checkpoint(8) / "0.pt"


def test_a_copy_is_hashed_and_paced(tmp_path, monkeypatch):
    """A copy is hashed and rate-limited; if the source differs from its record, no file is left."""
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(b"x" * 3000)
    expected = {"bytes": 3000, "sha256": hashlib.sha256(b"x" * 3000).hexdigest()}
    slept: list[float] = []
    monkeypatch.setattr(copier, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    copier.copy_file(source, target, expected, copier.Pace(1000))
    assert target.read_bytes() == source.read_bytes()
    assert len(slept) == 3 and sum(slept) > 2
    target.unlink()
    with pytest.raises(CheckpointError, match="does not have the SHA-256 in its record"):
        copier.copy_file(source, target, {**expected, "sha256": "0" * 64}, copier.Pace(None))
    assert files.read_json(target) is None and len(list(tmp_path.glob(".b*"))) == 0
