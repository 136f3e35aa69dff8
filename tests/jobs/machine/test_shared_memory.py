"""A /dev/shm that is too small for the data workers is reported before launch."""

import os

from nbtrain.base.files import write_text
from nbtrain.base.findings import stops
from nbtrain.jobs.checks.preflight import preflight
from nbtrain.jobs.checks.this_machine import findings_here
from nbtrain.jobs.machine import shared_memory
from nbtrain.jobs.machine.shared_memory import free_shared_memory
from nbtrain.jobs.request.launch import read_launch

# Two semaphores more than 64 KiB hold: 8 + 2 * (3 + 2 * 2) pages of 4 KiB.
NEEDED = 22 * 4096


def test_check_and_submit_name_it(tiny, monkeypatch):
    """A /dev/shm of 64 KiB, the default in a container, is reported; a larger one is not."""
    config = tiny(**{"data.num_workers": 2})
    monkeypatch.setattr(shared_memory, "free_shared_memory", lambda: 64 << 10)
    [obstacle] = preflight(read_launch(config))
    [finding] = findings_here(config)
    assert finding == obstacle
    text = str(finding)
    assert "at least 88.0 KiB of shared memory, but /dev/shm on" in text and "has only 64.0 KiB free" in text
    assert "Set data.num_workers=0" in text and "--shm-size" in text
    assert str(obstacle).startswith("override data.num_workers=2: data.num_workers = 2 with 1 rank ")
    assert stops([finding])
    assert preflight(read_launch(tiny())) == [] and findings_here(tiny()) == []
    monkeypatch.setattr(shared_memory, "free_shared_memory", lambda: NEEDED)
    assert preflight(read_launch(config)) == [] and findings_here(config) == []


def test_the_size_that_is_named_suffices(tiny, monkeypatch):
    """The commands of the fix give more than the workers need, also if that is more than 1 GiB."""
    monkeypatch.setattr(shared_memory, "worker_shared_memory_bytes", lambda config: 5 << 29)
    [finding] = shared_memory.too_little(tiny(**{"data.num_workers": 2}), 1 << 30, "box")
    assert "size=3G /dev/shm" in finding.fix and "--shm-size=3g" in finding.fix


def test_the_room_of_a_folder(tmp_path):
    """The free space of a folder is None if it does not exist or is a file."""
    stat = os.statvfs(tmp_path)
    assert abs(free_shared_memory(tmp_path) - stat.f_bavail * stat.f_frsize) < 1 << 30
    write_text(tmp_path / "file", "")
    assert free_shared_memory(tmp_path / "absent") == free_shared_memory(tmp_path / "file") == 0
