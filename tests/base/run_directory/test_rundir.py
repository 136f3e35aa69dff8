"""The run directory: paths, process identities, events, and the state of a job with a dead supervisor."""

import errno
import fcntl
import os
import resource
import stat
import subprocess
import sys
import time
from dataclasses import asdict

import pytest

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, DataError
from nbtrain.base.process.locks import locked_directory
from nbtrain.base.run_directory import jobstate, observed_state, rundir
from nbtrain.base.run_directory.events import EventWriter, read_events
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity, boot_id, host_name
from nbtrain.base.run_directory.rundir import RunDir
from tests.waiting import wait_until


@pytest.fixture
def run(workspace) -> RunDir:
    directory = RunDir.named("tiny")
    directory.path.mkdir(parents=True)
    return directory


@pytest.fixture
def job(run):
    one = run.job(rundir.new_job_id())
    one.make_folders()
    return one


def record(job, **changes) -> JobRecord:
    values = {"state": jobstate.RUNNING, "created_at": time.time(), **changes}
    return JobRecord(job_id=job.job_id, run_id="r", name="tiny", world_size=1, **values)


@pytest.mark.parametrize("name", ["../etc", "a/b", "", "A", "-a", "a" * 54, "a b", "a\n"])
def test_a_name_that_is_no_folder_is_refused(workspace, name):
    """A name that is not valid for a folder is refused, because run names become paths."""
    with pytest.raises(ConfigError, match="must be 1 to 53 lower case letters, digits and inner dashes"):
        RunDir.named(name)


def test_checkpoint_steps_are_numbers_in_order(run):
    """Checkpoint steps are sorted as numbers, and folders that are not checkpoints are ignored."""
    for name in ("global_step100", "global_step20", "global_step5.tmp", "other"):
        (run.model / name).mkdir(parents=True)
    assert run.checkpoint_steps() == [20, 100]


def test_job_ids_sort_by_time():
    """A job id starts with its time in UTC, so that ids sort by time."""
    assert rundir.new_job_id(0).startswith("19700101-000000-")
    assert rundir.new_job_id(1e9) < rundir.new_job_id(1e9 + 1)


def test_nodes_are_in_the_order_of_their_numbers(job):
    for number in (10, 2, 0):
        job.node_log(number).write_text("")
        files.write_json(job.node(number), {})
        files.write_json(job.node_exit(number, 0), {})
    assert job.node_logs() == [job.node_log(number) for number in (0, 2, 10)]
    assert job.node_records() == {number: job.node(number) for number in (0, 2, 10)}


def test_a_closed_folder_hides_no_name(run, monkeypatch):
    """An unreadable folder, such as lost+found or another user's run, does not hide the other runs."""
    files.write_json(run.run_json, {"name": "tiny"})
    (run.path.parent / "lost+found").mkdir()
    real = os.stat

    def as_user(path, *words, **more):
        if "lost+found/" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *words, **more)

    monkeypatch.setattr(os, "stat", as_user)
    assert rundir.run_names() == ["tiny"]
    assert rundir.runs_like("tny").startswith("Nearest: tiny. `nbtrain runs` lists 1 run under ")


def test_jobs_of_one_second_and_of_a_clock_that_is_behind_sort_in_order(run):
    """Jobs created in the same second, or after the clock was set back, still sort with the newest last."""
    made = []
    for _ in range(12):
        made.append(run.unused_job_id())
        run.job(made[-1]).make_folders()
    assert made == sorted(made) == run.job_ids()
    run.job(rundir.new_job_id(time.time() + 3600)).make_folders()
    run.job(last := run.unused_job_id()).make_folders()
    assert run.job_ids()[-1] == last


def test_the_lock_is_freed_by_death(run):
    """The run's lock excludes other holders, leaves no file, and is released when its holder dies."""
    code = (
        "import sys, time; from nbtrain.base.run_directory.rundir import RunDir\n"
        "with RunDir(sys.argv[1]).locked():\n    print('held', flush=True); time.sleep(3600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, run.path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with run.locked(blocking=False) as taken:
        assert not taken
    holder.kill()
    holder.communicate()
    with run.locked(blocking=False) as taken:
        assert taken
    assert os.listdir(run.path) == []


def test_an_identity_outlives_no_process():
    """An identity is alive only while its process runs; a zombie or a reused pid is not alive."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    identity = ProcessIdentity.of(child.pid)
    assert identity.alive()
    assert not ProcessIdentity(child.pid, identity.start_ticks + 1, identity.boot_id).alive()
    child.kill()
    wait_until(lambda: not identity.alive(), "a zombie is not alive")
    child.wait()


def test_states_of_a_dead_supervisor(job):
    """An active job is LOST if its supervisor is dead; a job in a final state keeps it."""
    gone = ProcessIdentity(2**22 + 1, 1, boot_id())
    now = time.time()
    state, cause = observed_state.observed_state(record(job, supervisor=gone), now)
    assert state == jobstate.LOST
    assert "died without a message while the job was RUNNING" in cause
    assert observed_state.observed_state(record(job, supervisor=gone, state="FAILED", cause="x"), now) == (
        "FAILED",
        "x",
    )
    alive = ProcessIdentity.of(os.getpid())
    assert observed_state.observed_state(record(job, supervisor=alive), now)[0] == jobstate.RUNNING
    queued = record(job, state=jobstate.QUEUED, created_at=now)
    assert observed_state.observed_state(queued, now + 1)[0] == jobstate.QUEUED
    assert observed_state.observed_state(queued, now + 31)[0] == jobstate.LOST


def test_a_process_of_another_host_is_neither_alive_nor_gone():
    """A process of another host counts as neither alive nor dead; a record without a host is of this host."""
    other = ProcessIdentity(2**22 + 1, 1, "its boot", "other")
    assert (other.alive(), other.elsewhere(), other.gone()) == (False, True, False)
    old = ProcessIdentity(2**22 + 1, 1, boot_id())
    assert (old.alive(), old.elsewhere(), old.gone()) == (False, False, True)
    renamed = ProcessIdentity.of(os.getpid())
    renamed.host = "its old name"
    assert (renamed.alive(), renamed.elsewhere(), renamed.gone()) == (True, False, False)
    mine = ProcessIdentity.of(os.getpid())
    assert mine.host == host_name()


def test_a_job_of_another_host_is_not_lost_because_its_pid_is_not_here(job):
    """A job on another host keeps its state while its supervisor updates job.json on the shared disk."""
    other = ProcessIdentity(2**22 + 1, 1, "its boot", "other")
    record(job, supervisor=other).write(job.job_json)
    now = job.job_json.stat().st_mtime
    assert observed_state.read_state(job, now + observed_state.SILENCE_SECONDS - 1) == ("RUNNING", None)
    assert observed_state.read_state(job, now + observed_state.SILENCE_SECONDS + 1) == (
        "LOST",
        "no sign of life from its supervisor (pid 4194305 on other) for 901 s while the job was RUNNING",
    )
    record(job, supervisor=other, state="FAILED", cause="x").write(job.job_json)
    assert observed_state.read_state(job, now + 2 * observed_state.SILENCE_SECONDS) == ("FAILED", "x")


def test_records_without_a_host_open_as_before(job):
    """Records that were written before hosts were stored can still be read."""
    identity = {"pid": os.getpid(), "start_ticks": 1, "boot_id": boot_id()}
    value = asdict(record(job)) | {"supervisor": identity}
    files.write_json(job.job_json, value)
    assert JobRecord.read(job.job_json).supervisor == ProcessIdentity(**identity)
    assert observed_state.read_state(job, time.time())[0] == "LOST"


def test_records_survive_the_disk(job):
    """job.json is read back exactly as it was written, including the process identity."""
    written = record(job, supervisor=ProcessIdentity.of(os.getpid()))
    written.write(job.job_json)
    assert JobRecord.read(job.job_json) == written
    assert observed_state.read_state(job, time.time())[0] == jobstate.RUNNING


def test_an_event_that_was_cut_or_holds_ends_of_lines_hides_no_other(job):
    """A truncated event, or a cause with unusual line ends, does not hide other events."""
    cause = "step 3: a\u2028b\u2029c\u0085d"
    first = EventWriter(job, "rank0")
    first.write("error", cause)
    with first.path.open("ab") as stream:
        stream.write('{"sequence": 1, "message": "ä'.encode()[:-1])
    EventWriter(job, "rank0").write("phase", "trained")
    events = read_events(job)
    assert [(event["sequence"], event["message"]) for event in events] == [(0, cause), (1, "trained")]


def test_events_go_on_behind_a_torn_line(job):
    """After a torn line the numbering of events continues, and only that line is lost."""
    first = EventWriter(job, "rank0")
    first.write("phase", "built", phase="build", seconds=1.5)
    with first.path.open("a") as stream:
        stream.write('{"sequence": 1, "ti')
    EventWriter(job, "rank0").write("phase", "trained")
    events = read_events(job)
    assert [(event["sequence"], event["message"]) for event in events] == [(0, "built"), (1, "trained")]
    assert events[0]["seconds"] == 1.5


def test_events_go_on_after_a_full_disk(job):
    """After the disk was full, a writer continues, and only the event that did not fit is lost."""
    writer = EventWriter(job, "supervisor")
    writer.write("state", "a")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (writer.path.stat().st_size + 20, before[1]))
    try:
        with pytest.raises(OSError):
            writer.write("state", "does not fit")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not writer.path.read_bytes().endswith(b"\n"), "a part of the line is there"
    for message in ("b", "c"):
        writer.write("state", message)
    assert [(event["sequence"], event["message"]) for event in read_events(job)] == [
        (0, "a"),
        (2, "b"),
        (3, "c"),
    ]


@pytest.fixture
def no_folder_locks(monkeypatch):
    """Simulate NFS, which refuses to lock a folder exclusively (EBADF)."""
    real = fcntl.flock

    def as_nfs(descriptor: int, how: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", as_nfs)


def test_a_lock_file_that_cannot_be_opened_says_why(tmp_path, no_folder_locks, monkeypatch):
    """A lock file that cannot be opened raises the system's error, and no file stays open."""
    real, open_at_first = os.open, set(os.listdir("/proc/self/fd"))

    def as_another_user(path, *words):
        if os.fspath(path).endswith("/.lock"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *words)

    monkeypatch.setattr(os, "open", as_another_user)
    with pytest.raises(PermissionError, match=r"\.lock"), RunDir(tmp_path).locked():
        pass
    with pytest.raises(DataError, match="cannot be created or opened: Permission denied"):
        locked_directory(tmp_path).__enter__()
    assert set(os.listdir("/proc/self/fd")) == open_at_first


def test_a_file_system_that_locks_no_folder_gets_a_lock_file(tmp_path, no_folder_locks):
    """On a file system that cannot lock folders, a lock file excludes other holders."""
    run = RunDir(tmp_path)
    with run.locked() as first, run.locked(blocking=False) as second:
        assert (first, second) == (True, False)
    with run.locked(blocking=False) as third:
        assert third
    with locked_directory(tmp_path):
        assert not run.locked(blocking=False).__enter__()
