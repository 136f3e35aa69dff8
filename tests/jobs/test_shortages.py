"""A real full disk and a real lack of memory, with a tmpfs and a memory cgroup; both require root."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from nbtrain.base.hardware.cgroup import cgroup_file
from nbtrain.base.run_directory import end_kinds
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.records import ExitRecord, JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.jobs.attempt.fixes import fix_of
from nbtrain.jobs.attempt.reserve import RESERVED_BYTES, Reserve
from nbtrain.jobs.control import control
from tests.disks import mounted_disk
from tests.waiting import wait_until

pytestmark = pytest.mark.root


@pytest.fixture
def small_disk(root, tmp_path):
    """Mount a disk of 2 MiB."""
    with mounted_disk(tmp_path / "disk", "2m") as folder:
        yield folder


def test_the_reserve_is_room_for_last_words(small_disk):
    """The reserve file makes space for a final record on a full disk, and is removed at the end."""
    reserve = Reserve(small_disk, "rank")
    with pytest.raises(OSError), (small_disk / "ballast").open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
    word = small_disk / "word"
    with pytest.raises(OSError):
        word.write_bytes(b"x" * 8192)
    reserve.write(lambda: word.write_bytes(b"x" * (RESERVED_BYTES // 2)))
    assert word.stat().st_size == RESERVED_BYTES // 2
    assert not reserve.path.exists()


@pytest.mark.slow
def test_a_full_disk_is_reported(fake, start, small_disk, monkeypatch):
    """If the disk becomes full during training, the job ends as FAILED with that cause, and its records are
    complete.
    """
    from nbtrain.jobs.submission import submit as submitting

    config = fake([{"step": 7, "do": "fill"}], steps=1000, backend={"disk_wait_seconds": 0.5})
    monkeypatch.setenv("NBTRAIN_OUTPUT", str(small_disk))
    # The plan would rightly refuse 2 MiB; this test is about a disk that fills during the run.
    monkeypatch.setattr(submitting, "preflight", lambda launch, reads_data: [])
    job = start(config)
    state, cause = control.wait(job, 800)
    assert state == "FAILED"
    assert cause.startswith(
        "rank 0 failed at step 7: the disk is full: OSError: [Errno 28] No space left on device"
    )
    gave_up = "; not tried again: the disk still had no room after backend.disk_wait_seconds = 0.5 (8"
    assert gave_up in cause and " MiB is needed" in cause
    assert cause.endswith("GiB free)")
    assert ExitRecord.read(job.exit_record(0, 0)).outcome == "failed"
    assert list(job.run.path.rglob(".*.tmp")) == []


@pytest.fixture
def turns_read_only(root, tmp_path):
    """Return a folder and a function that makes it read-only, for every file that is opened afterwards."""
    folder, mounts = tmp_path / "output", []
    folder.mkdir()

    def turn():
        for arguments in (["--bind", str(folder)], ["-o", "remount,bind,ro"]):
            command = ["mount", *arguments, str(folder)]

            def mounted(command=command):
                answer = subprocess.run(command, capture_output=True)
                # A file of the job that is open for writing at this moment keeps the mount busy.
                return None if b"busy" in answer.stderr else answer

            answer = wait_until(mounted, "the folder is busy", pause_seconds=0.01)
            if answer.returncode:
                pytest.skip(f"mount is not allowed here: {answer.stderr.decode().strip()}")
            mounts.append(command)

    def turn_back():
        if mounts:
            mounts.clear()
            subprocess.run(["umount", "-l", str(folder)], check=True)

    yield folder, turn, turn_back
    turn_back()


@pytest.mark.slow
def test_output_turned_read_only_is_reported(fake, start, turns_read_only, monkeypatch, tmp_path):
    """If the output directory becomes read-only, no rank can leave a record, but the supervisor still names
    the cause.
    """
    folder, turn, turn_back = turns_read_only
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("NBTRAIN_OUTPUT", str(folder))
    job = start(fake(steps=100_000))
    wait_until(job.run.checkpoint_steps, "a checkpoint")
    wait_until(lambda: read_state(job, time.time())[0] == "RUNNING", "RUNNING")
    turn()
    state, cause = control.wait(job, 800)
    # What follows depends on which of the launcher and the ranks notices it first.
    assert state == "FAILED" and cause.startswith("the run directory is on a read-only disk; ")
    assert JobRecord.read(job.job_json).state == "RUNNING"
    # Writable again, the run resumes from its checkpoint as usual.
    turn_back()
    assert read_state(job, time.time()) == (state, cause)
    second = start(fake(steps=max(job.run.checkpoint_steps()) + 2))
    assert control.wait(second, 800)[0] == "SUCCEEDED"
    assert read_state(job, time.time())[0] == "LOST"


@pytest.fixture
def memory_group(root):
    """Create a memory cgroup of 400 MiB below this process's own, with whichever version the kernel has."""
    own = cgroup_file("memory", "memory.max", "memory.limit_in_bytes")
    if own is None:
        pytest.skip("no memory cgroup is visible here")
    group = own.parent / f"nbtrain-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / own.name).write_text(str(400 << 20))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"cgroups cannot be made here: {error}")
    yield group
    group.rmdir()


@pytest.mark.slow
def test_out_of_memory_is_no_plain_kill(fake, memory_group, workspace, tiny_data):
    """A rank that the kernel's out-of-memory killer has ended is reported as out of memory, and not only as
    killed.
    """
    config = fake([{"step": 3, "do": "devour"}], steps=1000, backend={"max_restarts": 0})
    fake_rank = str(Path(__file__).parent / "fake_rank.py")
    script = (
        "import os, pathlib, sys\n"
        "pathlib.Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))\n"
        "from nbtrain.config.load import load_resolved\n"
        "from nbtrain.jobs.submission.submit import submit\n"
        "print(submit(load_resolved(sys.argv[2]), command=(sys.argv[3],)).job_id)\n"
    )
    from nbtrain.config.load import to_yaml

    yaml = workspace / "resolved.yaml"
    yaml.write_text(to_yaml(config))
    answer = subprocess.run(
        [sys.executable, "-c", script, str(memory_group), str(yaml), fake_rank],
        capture_output=True,
        text=True,
        check=True,
    )
    job = RunDir.named(config.name).job(answer.stdout.strip())
    state, cause = control.wait(job, 800)
    # Cancelling an ended job waits for its supervisor to exit, which is the last process in the cgroup.
    assert control.cancel(job) == (state, cause)
    assert state == "FAILED"
    # The evidence is the kernel log, where it may be read, else the cgroup's count.
    counted = "the job's cgroup counts an out-of-memory kill"
    cause = re.sub(r"the kernel's log names process \d+", counted, cause)
    assert cause == (
        f"rank 0 was killed: out of host memory: the kernel killed it (SIGKILL; {counted}; at most 0.39 of "
        f"0.39 GiB were used). {fix_of(end_kinds.HOST_MEMORY, config)}; not tried again: "
        "backend.max_restarts = 0 is used up"
    )
