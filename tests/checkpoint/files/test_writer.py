"""Checkpoint files are written by a thread from a copy of the live state, hashed, and errors are reported."""

import collections
import hashlib
import resource
import sys
import threading
from pathlib import Path

import pytest
import torch

from nbtrain.base.errors import CheckpointError
from nbtrain.checkpoint.files.torch_files import load_file, write_file
from nbtrain.checkpoint.files.writer import BackgroundSave, CheckpointWriter
from nbtrain.parallel.startup import prepare_deepspeed


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def small_disk():
    """Limit the files of this process to 64 KiB, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_size_and_hash_are_those_of_the_file(tmp_path):
    path = tmp_path / "mp_rank_00_model_states.pt"
    # Large and small tensors, views of one storage, and a large piece that is not a tensor.
    large = torch.arange(1_000_000)
    more = {"more": [large, torch.ones(3), (large[5:],), torch.zeros(600_000)], "words": "ab" * 1_000_000}
    entry = write_file(path, {"weight": torch.arange(100_000), "step": 3, **more})
    assert entry == {"bytes": path.stat().st_size, "sha256": sha256(path)}
    assert torch.equal(load_file(path)["weight"], torch.arange(100_000))
    assert load_file(path, mmap=True)["step"] == 3


def test_of_a_view_only_its_part_is_written(tmp_path):
    """Only the viewed part of a tensor is written, although ZeRO's weights are views of one flat buffer."""
    flat = torch.arange(1_000_000, dtype=torch.float32)
    writer = CheckpointWriter()
    writer.create(None)
    writer.save({"first": flat[:1000], "second": flat[1000:3000]}, str(tmp_path / "a.pt"))
    assert writer.described["a.pt"]["bytes"] < 20_000
    assert torch.equal(load_file(tmp_path / "a.pt")["second"], flat[1000:3000])


class Scaler:
    """An object whose state changes over time, like DeepSpeed's loss scaler."""

    def __init__(self):
        self.cur_scale = 2.0


def test_a_copy_holds_nothing_of_the_live_state(tmp_path):
    """A file contains the state at save(), whatever changes later in weights, views, counts and objects."""
    flat = torch.arange(5000, dtype=torch.float32)
    parameter = torch.nn.Parameter(flat[1000:2000])
    scaler = Scaler()
    live = {
        "module": collections.OrderedDict(weight=parameter),
        "groups": [flat, {"step": torch.tensor(7.0)}],
        "nested": ({"names": ["a"]}, scaler),
    }
    writer = CheckpointWriter(background=True)
    writer.create(None)
    writer.save(live, str(tmp_path / "a.pt"))
    writer.wait_for_copies()
    expected = flat.clone()
    with torch.no_grad():
        flat.zero_()
        live["groups"][1]["step"] += 1
    live["nested"][0]["names"].append("b")
    scaler.cur_scale = 4.0
    writer.write_copies()
    with torch.serialization.safe_globals([Scaler]):
        found = load_file(tmp_path / "a.pt")
    assert torch.equal(found["module"]["weight"], expected[1000:2000])
    assert torch.equal(found["groups"][0], expected)
    assert found["groups"][1]["step"] == 7
    assert found["nested"][0]["names"] == ["a"] and found["nested"][1].cur_scale == 2.0


@pytest.mark.slow
def test_a_process_without_deepspeed_reads_its_objects_and_does_not_write_them(tmp_path, monkeypatch):
    prepare_deepspeed("cpu")
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    scaler = DynamicLossScaler(65536.0, 1000, 1.0, 2, False)
    state = {"address": fragment_address(3, 4), "scaler": scaler, "stage": ZeroStageEnum(1)}
    write_file(tmp_path / "a.pt", state)
    monkeypatch.delitem(sys.modules, "deepspeed")
    found = load_file(tmp_path / "a.pt")
    assert (found["address"].numel, found["address"].start) == (3, 4)
    assert vars(found["scaler"]) == vars(scaler) and found["stage"].values == (1,)
    assert "deepspeed" not in sys.modules
    with pytest.raises(TypeError, match="import DeepSpeed"):
        write_file(tmp_path / "b.pt", found)


def test_memory_of_copies_is_taken_once(tmp_path):
    writer = CheckpointWriter(background=True)
    places = []
    for value in (1.0, 2.0):
        writer.create(None)
        writer.save({"weight": torch.full((1000,), value)}, str(tmp_path / f"{value}.pt"))
        places.append(writer._copies[0][1]["weight"].data_ptr())
        writer.write_copies()
    assert places[0] == places[1]
    assert [load_file(tmp_path / f"{value}.pt")["weight"][0] for value in (1.0, 2.0)] == [1.0, 2.0]


def test_a_full_disk_is_reported_in_the_systems_words(tmp_path, small_disk):
    """A full disk is reported with the system's message, and no incomplete file is left."""
    with pytest.raises(CheckpointError, match=r"a\.pt: could not be written: .*File too large"):
        write_file(tmp_path / "a.pt", {"weight": torch.zeros(100_000)})
    assert list(tmp_path.iterdir()) == []


def background(folder: Path, rank: int, size: int, publish, weight=1000) -> BackgroundSave:
    folder.mkdir(exist_ok=True)
    writer = CheckpointWriter(background=True)
    writer.create(None)
    writer.save({"weight": torch.zeros(weight)}, str(folder / f"rank{rank}.pt"))
    return BackgroundSave(writer, folder, rank, size, publish)


def test_it_is_published_when_every_rank_has_written(tmp_path):
    """Rank 0 publishes the checkpoint, with all ranks' files, once every rank has
    reported that it has written.
    """
    folder, published, done = tmp_path / "global_step4", [], threading.Event()

    def publish(shares):
        published.append(shares)
        done.set()

    first = background(folder, 0, 2, publish)
    assert first.is_written(60)
    assert first.error is None
    assert not done.wait(0.3)
    second = background(folder, 1, 2, publish)
    assert first.wait_published() is None and second.wait_published() is None
    (shares,) = published
    assert shares == {
        rank: {
            f"rank{rank}.pt": {
                "bytes": (folder / f"rank{rank}.pt").stat().st_size,
                "sha256": sha256(folder / f"rank{rank}.pt"),
            }
        }
        for rank in (0, 1)
    }


def test_nobody_waits_for_a_rank_that_cannot_write(tmp_path, small_disk):
    published = []
    failed = background(tmp_path / "step", 1, 2, published.append, weight=100_000)
    assert failed.is_written(60)
    assert "File too large" in failed.error
    waiting = background(tmp_path / "step", 0, 2, published.append)
    assert waiting.is_written(60)
    assert waiting.error is None
    waiting.cancel()
    assert waiting.wait_published() is None
    assert published == []


def test_what_goes_wrong_at_publishing_is_reported_too(tmp_path):
    def publish(shares):
        raise OSError(28, "No space left on device")

    saving = background(tmp_path / "step", 0, 1, publish)
    assert saving.wait_published() == "[Errno 28] No space left on device"
