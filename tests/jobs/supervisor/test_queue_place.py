"""The order in which jobs get devices, and when they get them. Supervisors are real processes, but start no
ranks.
"""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nbtrain.api.run import open_run
from nbtrain.base import files
from nbtrain.base.errors import ConfigError, JobError, SubmitError
from nbtrain.base.hardware.cgroup import usable_cores
from nbtrain.base.hardware.nvml import Gpu
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity
from nbtrain.base.workspace import output_root
from nbtrain.cli.__main__ import main
from nbtrain.config.load import load, load_resolved, to_yaml
from nbtrain.jobs.backends.hosts import backend as hosts_backend
from nbtrain.jobs.control.control import asked_priority, cancel
from nbtrain.jobs.machine import device_needs
from nbtrain.jobs.machine.device_needs import needs_of, warnings_here
from nbtrain.jobs.machine.machine import this_machine
from nbtrain.jobs.machine.processes import JOB_MARKER
from nbtrain.jobs.machine.queue_folder import Queue, Ticket
from nbtrain.jobs.queue import after_boot, restart
from nbtrain.jobs.queue.listing import QueueEntry, QueueList, list_queue, move, waiting_words
from nbtrain.jobs.submission import submit
from nbtrain.jobs.supervisor import queue_place
from nbtrain.jobs.supervisor.journal import Journal
from nbtrain.jobs.supervisor.queue_place import place_of
from nbtrain.jobs.supervisor.signals import SignalRequests
from tests.messages import lacks
from tests.waiting import wait_until


@pytest.mark.slow
def test_one_after_the_other_by_priority_and_age(holders, cause_of):
    """Jobs start in order of priority, and then of age. A waiting job names the jobs that hold its cores."""
    now = time.time()
    holders.start("first")
    wait_until(lambda: holders.said() == ["first +"], "the first has its cores")
    late = holders.start("late", now + 2, 0.01)
    wait_until(lambda: cause_of(late), "it waits")
    assert cause_of(late) == "waits for 2 cores; 0 are free; before it: first (RUNNING, 2 cores)"
    early = holders.start("early", now + 1, 0.01)
    wait_until(lambda: "early" in cause_of(late), "the older one comes first")
    assert cause_of(late).endswith(
        "before it: first (RUNNING, 2 cores), early (QUEUED); place 2 in the queue"
    )
    holders.start("urgent", now + 3, 0.01, **{"backend.priority": 5})
    wait_until(lambda: "urgent" in cause_of(early), "the priority counts before the age")
    assert [entry.name for entry in list_queue()] == ["first", "urgent", "early", "late"]
    assert [entry.place for entry in list_queue("r")] == [None, 1, 2]
    table = str(list_queue()).splitlines()
    assert table[1].split()[:5] == ["-", "first", "RUNNING", "2", "cores"]
    assert table[1].endswith("cpu-0, cpu-1")
    assert table[2].startswith("    1  urgent  QUEUED   2 cores         5  ")
    holders.signal("first")
    for name in ("first", "urgent", "early", "late"):
        holders.ended(name)
    order = [line.split()[0] for line in holders.said() if "+" in line]
    assert order == ["first", "urgent", "early", "late"]
    assert list_queue() == []


@pytest.mark.slow
def test_twenty_from_several_processes_never_overlap(holders):
    """If several processes queue twenty jobs at once, no two jobs ever hold the same cores, and all jobs
    finish.
    """
    names = [f"job-{number}" for number in range(20)]
    for name in names:
        holders.start(name, None, 0.01)
    for name in names:
        holders.ended(name)
    said = [line.split() for line in holders.said()]
    assert sorted(name for name, sign in said if sign == "+") == sorted(names)
    for begin, end in zip(said[::2], said[1::2], strict=True):
        assert begin == [end[0], "+"]


@pytest.mark.slow
def test_a_large_job_is_not_starved(holders, cause_of):
    """Smaller jobs that come later do not overtake a job that waits for four GPUs; a job for another GPU may
    start.
    """
    holders.machine(gpus=["0", "1", "2", "3", "9"])
    gpu = {"resources.device": "gpu", "backend.env": {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}}
    holders.start("small", **gpu)
    wait_until(lambda: holders.said() == ["small + 0"], "it has a GPU")
    large = holders.start("large", **gpu, **{"parallel.data_parallel_size": 4})
    wait_until(lambda: cause_of(large), "the large one waits")
    assert cause_of(large) == "waits for 4 GPUs; 3 are free; before it: small (RUNNING, 1 GPU)"
    later = holders.start("later", **gpu)
    wait_until(lambda: cause_of(later), "the later one waits too")
    parts = ("waits for 1 GPU; 3 are free", "small (RUNNING, 1 GPU), large (QUEUED)", "place 2 in the queue")
    assert lacks(cause_of(later), *parts) == []
    holders.start("aside", **{"resources.device": "gpu", "backend.env": {"CUDA_VISIBLE_DEVICES": "9"}})
    wait_until(lambda: "aside + 9" in holders.said(), "no job before it may have GPU 9")
    holders.signal("small")
    wait_until(lambda: "large + 0,1,2,3" in holders.said(), "the large one has all four")
    assert "later" not in str(holders.said())


@pytest.mark.slow
def test_a_killed_holder_frees_its_devices(holders, cause_of):
    """After kill -9 of a job's supervisor, its devices are free, unless processes of the job are still
    saving.
    """
    first = holders.start("first")
    wait_until(lambda: "first +" in holders.said(), "it has its cores")
    rank = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={**os.environ, JOB_MARKER: first.job_id},
    )
    holders.signal("first", signal.SIGKILL)
    second = holders.start("second")
    wait_until(lambda: cause_of(second), "it waits for the rank")
    assert cause_of(second) == "waits for 2 cores; 0 are free; before it: first (LOST, 2 cores)"
    rank.communicate(b"\n")
    wait_until(lambda: "second +" in holders.said(), "the rank is gone")
    assert [(entry.name, entry.state) for entry in list_queue()] == [("second", "RUNNING"), ("first", "LOST")]


@pytest.mark.slow
def test_a_waiting_job_is_stopped_moved_or_started_at_once(holders, cause_of):
    """TERM stops a waiting job, a new priority takes effect immediately, and at_once starts a job without
    devices.
    """
    now = time.time()
    first = holders.start("first", now)
    wait_until(lambda: "first +" in holders.said(), "it has its cores")
    for number, name in enumerate(("second", "third", "fourth"), 1):
        job = holders.start(name, now + number)
        wait_until(lambda job=job: cause_of(job), "it waits")
    holders.signal("second")
    holders.ended("second")
    third, fourth = (entry.run for entry in list_queue()[1:])
    assert third.endswith("third")
    move(job, priority=7)
    assert asked_priority(job) == 7
    assert [entry.run for entry in list_queue()[1:]] == [fourth, third]
    move(job, at_once=True)
    # Its supervisor may not have looked yet, or it may run already; it never shows what it waited for.
    [told] = [entry for entry in list_queue() if entry.run == fourth]
    words = "starts now, next to first (RUNNING, 2 cores)"
    assert (told.place, told.state, told.cause) in ((None, "QUEUED", words), (None, "RUNNING", None))
    wait_until(lambda: "fourth +" in holders.said(), "it runs next to the first")
    assert "first -" not in holders.said()
    with pytest.raises(JobError) as refused:
        move(first, priority=1)
    assert lacks(refused, f"output/first: job {first.job_id} is RUNNING ", "run `nbtrain queue`") == []
    with pytest.raises(ConfigError, match=r"^priority 2000: must be a whole number from -1000 to 1000\.$"):
        move(first, priority=2000)
    assert read_state(first, time.time())[0] == "RUNNING"


@pytest.mark.slow
def test_a_damaged_ticket_is_written_anew(holders, cause_of):
    """If the ticket of a waiting job is damaged, it is written again, and the job keeps its place."""
    holders.start("first")
    wait_until(lambda: holders.said() == ["first +"], "it has its cores")
    second = holders.start("second", hold_seconds=0.01)
    wait_until(lambda: cause_of(second), "it waits")
    [ticket] = (holders.queue.path / "tickets").glob(f"{second.job_id}.*")
    ticket.write_text("{")
    wait_until(lambda: [entry.place for entry in list_queue("second")] == [1], "its ticket is there again")
    holders.signal("first")
    for name in ("first", "second"):
        holders.ended(name)
    assert read_state(second, time.time())[0] == "SUCCEEDED"


def test_a_job_that_is_cancelled_while_others_are_started_again_stays_so(holders, monkeypatch):
    """Jobs that are cancelled while the first of three jobs is being restarted stay cancelled, and the third,
    which cannot be restarted, says why.
    """
    gone = ProcessIdentity(os.getpid(), 1, "another boot")
    jobs = {}
    for number, name in enumerate(("first", "second", "third")):
        jobs[name] = job = holders.job(name, 1.0 + number)
        ticket = Ticket(job.job_id, str(job.run.path), name, ["cpu-0"], 1, 0, 1.0 + number, gone, "before")
        holders.queue.write(ticket)
    started = []

    def start_again(ticket):
        started.append(ticket.name)
        for name in ("first", "second"):
            holders.queue.remove(jobs[name])
        return "no room"

    monkeypatch.setattr(restart, "start_again", start_again)
    restart.restart(holders.queue, everything=False, say=lambda line: None)
    assert started == ["first", "third"]
    assert [(ticket.name, ticket.refused) for ticket in holders.queue.tickets()] == [("third", "no room")]
    files.write_text(jobs["first"].run.config_yaml, to_yaml(holders.config("first")))
    monkeypatch.setattr(submit, "preflight", lambda launch, reads_data: [])
    monkeypatch.setattr(
        submit, "make_plan", lambda config, needs: SimpleNamespace(config=config, findings=[])
    )
    with pytest.raises(
        SubmitError, match=r"^output/first: the run was cancelled .*`nbtrain resume first`\.$"
    ):
        restart.go_on(str(jobs["first"].run.path), jobs["first"].job_id)


def test_the_next_job_is_started_once_the_one_before_stands_in_the_queue(holders, monkeypatch):
    """After a reboot, the second job is restarted only when the first is back in the queue; before that, its
    devices would seem free.
    """
    gone = ProcessIdentity(os.getpid(), 1, "another boot")
    for number, name in enumerate(("first", "second")):
        job = holders.job(name, 1.0 + number)
        holders.queue.write(
            Ticket(job.job_id, str(job.run.path), name, ["cpu-0"], 1, 0, 1.0 + number, gone, "before")
        )
    order, tickets = [], {}

    def start_again(ticket):
        order.append(ticket.name)
        successor = ticket.job.run.job("99990101-000000-0000")
        successor.make_folders()
        record = JobRecord.read(ticket.job.job_json)
        queued = {"state": "QUEUED", "supervisor": None, "created_at": time.time()}
        replace(record, job_id=successor.job_id, **queued).write(successor.job_json)
        tickets[ticket.name] = replace(ticket, job_id=successor.job_id)
        return ""

    def sleep(seconds):
        order.append("a look")
        if order[-3:] == ["a look"] * 3:
            holders.queue.write(tickets[order[-4]])

    monkeypatch.setattr(restart, "start_again", start_again)
    monkeypatch.setattr(restart.time, "sleep", sleep)
    restart.restart(holders.queue, everything=False, say=lambda line: None)
    assert order == ["first", *["a look"] * 3, "second", *["a look"] * 3]


def test_ranks_that_still_save_keep_their_devices_when_their_job_is_resumed(holders):
    """If a supervisor was killed with -9 and its job is resumed, ranks that are still saving keep their
    devices.
    """
    gone = ProcessIdentity(os.getpid(), 1, "another boot")
    job, queue = holders.job("first", 1.0), holders.queue
    ticket = Ticket(job.job_id, str(job.run.path), "first", ["cpu-0"], 1, 0, 1.0, gone, "", holds=["cpu-0"])
    queue.write(ticket)
    job.run.job("99990101-000000-0000").make_folders()
    marked = {**os.environ, JOB_MARKER: job.job_id}
    waits = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=marked) as rank:
        # Just after exec, a process has no environment yet.
        assert rank.stdout.readline()
        assert (queue.lost(), queue.tickets()) == ([], [ticket])
        rank.communicate(b"\n")
    assert (queue.lost(), queue.tickets()) == ([], [])


def test_causes_are_of_the_order_that_is_shown(holders, cause_of):
    """The cause of a waiting job names the jobs before it in the displayed order, which a new priority
    changes immediately.
    """
    alive, jobs, now = ProcessIdentity.of(os.getpid()), {}, time.time()
    for number, name in enumerate(("qa", "qb", "qc")):
        jobs[name] = job = holders.job(name, now)
        ticket = Ticket(
            job.job_id, str(job.run.path), name, ["cpu-0", "cpu-1"], 2, 0, float(number), alive, ""
        )
        ticket.holds = ["cpu-0"] if name == "qa" else []
        holders.queue.write(ticket)
    assert cause_of(jobs["qb"]) == ""
    move(jobs["qc"], priority=9)
    said = "waits for 2 cores; 1 is free; before it: qa (QUEUED, 1 core)"
    assert [(entry.name, entry.cause) for entry in list_queue()[1:]] == [
        ("qc", said),
        ("qb", f"{said}, qc (QUEUED); place 2 in the queue"),
    ]


def test_cores_are_threads_times_ranks(holders):
    """A job gets all cores by default; resources.cpus_per_node or OMP_NUM_THREADS reduces the number."""
    holders.machine(cores=8)

    def count(**overrides):
        return needs_of(holders.config("one", **overrides), holders.queue)[1]

    all_of_it = min(8, cores := usable_cores())
    assert count() == all_of_it
    assert count(**{"resources.cpus_per_node": 1}) == 1
    assert count(**{"backend.env": {"OMP_NUM_THREADS": "1"}}) == 1
    ranks = {"parallel.data_parallel_size": 2, "backend.env": {"OMP_NUM_THREADS": "1"}}
    assert count(**ranks) == min(2, cores)
    assert count(**{"parallel.data_parallel_size": 64}) == all_of_it


def test_threads_of_the_shell_that_are_not_used_are_named(holders, monkeypatch):
    """If the shell's OMP_NUM_THREADS is not used, that is reported with a fix, unless it makes no
    difference.
    """
    holders.machine(cores=8)
    cores = min(8, usable_cores())
    asked = {"resources.cpus_per_node": cores, "parallel.data_parallel_size": cores}
    config = holders.config("one", **asked)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert warnings_here(config, holders.queue, this_machine()) == []
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    mark = "s" if cores > 1 else ""
    (said,) = warnings_here(config, holders.queue, this_machine())
    numbers = f"(resources.cpus_per_node: {cores} core{mark} for {cores} rank{mark})"
    parts = ("each rank has 1 thread ", numbers, " this shell's OMP_NUM_THREADS=3 is not used")
    assert lacks(said, *parts, "set backend.env.OMP_NUM_THREADS=3") == []
    theirs = holders.config("one", **asked, **{"backend.env": {"OMP_NUM_THREADS": "3"}})
    assert warnings_here(theirs, holders.queue, this_machine()) == []
    assert warnings_here(holders.config("one"), holders.queue, this_machine()) == []


def test_what_is_asked_for_and_is_not_here_is_said(holders, capsys, monkeypatch):
    """If a run requests more cores or memory than the machine has, the message contains both numbers and a
    fix.
    """
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = usable_cores()
    most = {"resources.cpus_per_node": cores, "resources.memory_per_node_bytes": 1 << 30}
    assert warnings_here(holders.config("one", **most), holders.queue, this_machine()) == []
    more = {"resources.cpus_per_node": cores + 6, "resources.memory_per_node_bytes": 9 * 10**15}
    said, memory = warnings_here(holders.config("one", **more), holders.queue, this_machine())
    has = f"{cores} core{'s' * (cores > 1)}"
    assert re.match(rf"cpus_per_node = {cores + 6}, but \S+ has only {has} for this run\.", said)
    assert f"Set resources.cpus_per_node: {cores} or null" in said
    assert re.match(
        r"memory_per_node_bytes = 9,0{3},.* is 8185\.5 TiB, but \S+ has .*may not fit on this machine\. Set",
        memory,
    )
    for elsewhere in ({"resources.device": "gpu"}, {"backend.kind": "slurm"}):
        assert warnings_here(holders.config("one", **more, **elsewhere), holders.queue, this_machine()) == []
    assert main(["check", "gpt-tiny", *(f"{key}={value}" for key, value in more.items())]) == 0
    shown = capsys.readouterr().out
    assert said.partition(". ")[0] in shown and memory.partition(". ")[0] in shown


@pytest.mark.slow
def test_a_job_of_hosts_takes_the_first_gpus_of_this_machine(holders, cause_of):
    """A job on hosts that include this machine uses its first GPUs, and waits until they are free."""
    hosts = {"backend.kind": "hosts", "resources.nodes": 2, "parallel.data_parallel_size": 4}
    gpu = {"resources.device": "gpu", "backend.env": {"CUDA_VISIBLE_DEVICES": "1,0,2"}}
    gpu["resources.gpus_per_node"] = 2
    here, elsewhere = ["203.0.113.1", "127.0.0.1"], ["203.0.113.1", "203.0.113.2"]
    for names, slots in ((here, ["gpu-1", "gpu-0"]), (elsewhere, [])):
        config = holders.config("far", **hosts, **gpu, **{"backend.hosts.hosts": names})
        assert needs_of(config, holders.queue) == (slots, len(slots))
    config = holders.config("far", **hosts, **{"resources.device": "cpu", "backend.hosts.hosts": here})
    assert needs_of(config, holders.queue) == ([], 0)
    holders.machine(gpus=["0", "1", "2"])
    holders.start("near", **{"resources.device": "gpu", "backend.env": {"CUDA_VISIBLE_DEVICES": "0"}})
    wait_until(lambda: holders.said() == ["near + 0"], "the local job has GPU 0")
    far = holders.start("far", hold_seconds=0.01, **hosts, **gpu, **{"backend.hosts.hosts": here})
    wait_until(lambda: cause_of(far), "the job of hosts waits")
    assert cause_of(far) == "waits for 2 GPUs; 1 is free; before it: near (RUNNING, 1 GPU)"
    holders.signal("near")
    holders.ended("far")
    assert "far + 1,0" in holders.said()


def test_a_job_of_hosts_goes_on_after_a_boot_of_its_supervisors_machine(holders, monkeypatch):
    """When the supervisor's machine reboots, a job on hosts is LOST, frees the GPU, and is then resumed once
    with the same settings.
    """
    gpu = {"resources.device": "gpu", "backend.env": {"CUDA_VISIBLE_DEVICES": "0"}}
    far = {"backend.kind": "hosts", "backend.hosts.hosts": ["127.0.0.1"], **gpu}
    holders.machine(gpus=["0"])
    job = holders.start("far", **far)
    wait_until(lambda: holders.said() == ["far + 0"], "it has the GPU")
    holders.signal("far", signal.SIGKILL)
    record, ticket = JobRecord.read(job.job_json), holders.queue.ticket(job)
    assert (record.state, ticket.holds) == ("RUNNING", ["gpu-0"])
    record.supervisor = ticket.supervisor = replace(record.supervisor, boot_id="an earlier one")
    record.write(job.job_json)
    holders.queue.write(replace(ticket, system="an earlier one", priority=4))
    job.run.config_yaml.write_text(to_yaml(holders.config("far", **far)))
    assert read_state(job, time.time())[0] == "LOST"
    resumed, said = [], []

    def resume(run, overrides, command, wanted):
        resumed.append((run.name, load(load_resolved(run.config_yaml), overrides, check=False), wanted()))
        successor = run.job("99990101-000000-0000")
        successor.make_folders()
        record.write(successor.job_json)
        resumed.append(wanted())

    monkeypatch.setattr(submit, "resume", resume)
    monkeypatch.setattr(restart, "start_again", lambda ticket: restart.go_on(ticket.run, ticket.job_id))
    restart.restart(holders.queue, False, said.append)
    [(name, config, wanted), again] = resumed
    assert (name, config.backend.kind, config.backend.priority) == ("far", "hosts", 4)
    assert (wanted, again, said) == (True, False, ["far: restarted"])
    restart.restart(holders.queue, False, said.append)
    assert (len(resumed), holders.queue.tickets()) == (2, [])
    holders.start("near", hold_seconds=0.01, **gpu)
    wait_until(lambda: "near + 0" in holders.said(), "its GPU is free", 60)


def test_a_full_disk_of_the_queue_is_waited_for(holders, cause_of, monkeypatch):
    """If the disk is full when the queue writes a ticket or locks devices, it waits, with nothing locked."""
    full = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    journal, said = Journal(holders.job("one")), []
    write, lock_slot = Queue.write, Queue.lock_slot
    set_cause = journal.set_cause
    monkeypatch.setattr(journal, "set_cause", lambda words: (said.append(words), set_cause(words)))
    troubles = {"write": iter((full, None, full)), "lock": iter((None, full))}

    def fails(what, act):
        if trouble := next(troubles[what], None):
            raise trouble
        return act()

    monkeypatch.setattr(Queue, "write", lambda *given: fails("write", lambda: write(*given)))
    monkeypatch.setattr(Queue, "lock_slot", lambda *given: fails("lock", lambda: lock_slot(*given)))
    monkeypatch.setattr(queue_place, "LATER_POLL_SECONDS", 0.01)
    monkeypatch.setattr(queue_place, "POLL_SECONDS", 0.01)
    mine = place_of(journal, config := holders.config("one"))
    assert mine.wait(SignalRequests(), config) is None
    assert said == ["waits for disk space for the queue (queue: Disk quota exceeded)"] * 3
    assert (cause_of(journal.job), holders.queue.ticket(journal.job).holds) == (said[0], ["cpu-0", "cpu-1"])
    mine.give_up()
    assert (holders.queue.tickets(), "NBTRAIN_CORES" in os.environ) == ([], False)


@pytest.mark.parametrize("backend", ["local", "hosts"])
def test_a_lost_job_that_is_cancelled_is_not_started_again(holders, backend, monkeypatch):
    """A lost job that is cancelled, even from another machine, is not restarted after a reboot."""
    far = {"backend.kind": "hosts", "backend.hosts.hosts": ["127.0.0.1"]} if backend == "hosts" else {}
    job, gone = holders.job("one", 1.0, backend), ProcessIdentity(os.getpid(), 1, "another boot")
    files.write_text(job.run.config_yaml, to_yaml(holders.config("one", **far)))
    replace(JobRecord.read(job.job_json), state="RUNNING", supervisor=gone).write(job.job_json)
    holders.queue.write(Ticket(job.job_id, str(job.run.path), "one", ["cpu-0"], 1, 0, 1.0, gone, "before"))
    if backend == "hosts":
        monkeypatch.setattr(hosts_backend, "end_lost", lambda *asked: ["an answer"])
        monkeypatch.setattr(hosts_backend, "why", lambda answer: "127.0.0.1: does not answer")
        with pytest.raises(
            JobError, match=r"is LOST, and its remaining processes could not be ended: 127\.0\.0\.1"
        ):
            cancel(job)
        assert holders.queue.tickets() == []
    else:
        with monkeypatch.context() as second_machine:
            second_machine.setenv("NBTRAIN_QUEUE", "queue of the second machine")
            assert cancel(job, now=True)[0] == "LOST"
        assert len(holders.queue.tickets()) == 1
    monkeypatch.setattr(restart, "start_again", lambda ticket: pytest.fail("started again"))
    restart.restart(holders.queue, everything=True, say=lambda line: None)
    assert holders.queue.tickets() == []


@pytest.mark.parametrize(
    ("backend", "overrides", "has_place"),
    [
        ("local", {}, True),
        ("local", {"backend.share_devices": True}, False),
        ("hosts", {"backend.kind": "hosts", "backend.hosts.hosts": ["127.0.0.1"]}, True),
        ("hosts", {"backend.kind": "hosts", "backend.hosts.hosts": ["203.0.113.1"]}, False),
        ("slurm", {"backend.kind": "slurm"}, False),
    ],
)
def test_who_takes_a_place(holders, backend, overrides, has_place):
    """Jobs on this machine wait in its queue, and so do jobs on hosts that use its GPUs."""
    gpu = {"resources.device": "gpu", "backend.env": {"CUDA_VISIBLE_DEVICES": "0"}}
    journal = Journal(holders.job("one"))
    journal.record.backend = backend
    assert (place_of(journal, holders.config("one", **gpu, **overrides)) is not None) == has_place


def test_a_folder_that_cannot_be_made(workspace, monkeypatch):
    """If the queue's folder cannot be created, the message names the setting to change, and nothing is
    written.
    """
    (workspace / "file").touch()
    monkeypatch.setenv("NBTRAIN_QUEUE", "file/queue")
    with pytest.raises(SubmitError) as refused:
        Queue().make()
    fixes = ("Set NBTRAIN_QUEUE to a folder that you own", "backend.share_devices=true")
    assert lacks(refused, "file/queue cannot be used", ": Not a directory.", *fixes) == []


def test_devices_json_that_is_none(holders):
    """An invalid devices.json, which users write by hand, is rejected with a clear message."""
    holders.machine(cores=0)
    with pytest.raises(JobError) as refused:
        needs_of(holders.config("one"), holders.queue)
    example = '{"gpus": ["0", "1"], "cores": 6}'
    assert lacks(refused, "queue/devices.json: ", example, "at least 1", "remove the file.") == []


@pytest.mark.parametrize(
    ("visible", "listed", "slots"),
    [
        ("0,1,2,3", None, ["gpu-GPU-a", "gpu-GPU-b"]),
        ("1,5,0", None, ["gpu-GPU-b"]),
        ("GPU-x,0", None, []),
        (None, ["7", "1", "GPU-b", "0"], ["gpu-GPU-b", "gpu-GPU-a"]),
        ("1,2", ["0", "1", "2"], ["gpu-GPU-b"]),
    ],
)
def test_gpus_that_the_machine_does_not_have_are_no_slots(holders, monkeypatch, visible, listed, slots):
    """A nonexistent GPU in CUDA_VISIBLE_DEVICES hides those after it, as in CUDA; one in devices.json is
    skipped.
    """
    monkeypatch.setattr(device_needs, "driver_gpus", lambda: (Gpu("G", 1, "GPU-a"), Gpu("G", 1, "GPU-b")))
    holders.machine(**({"gpus": listed} if listed else {}))
    environment = {"backend.env": {"CUDA_VISIBLE_DEVICES": visible}} if visible else {}
    config = holders.config("one", **{"resources.device": "gpu", **environment})
    assert needs_of(config, holders.queue) == (slots, 1)


@pytest.mark.slow
def test_the_command_line(holders, cause_of, capsys):
    """`nbtrain queue` lists jobs as text or JSON, moves a job, and reports missing arguments."""
    assert main(["queue"]) == 0
    assert capsys.readouterr().out == "No job on this machine has devices or waits for devices.\n"
    holders.start("first")
    wait_until(lambda: holders.said() == ["first +"], "it has its cores")
    second = holders.start("second")
    wait_until(lambda: cause_of(second), "it waits")
    assert main(["queue", "second", "--priority", "-4", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [(entry["name"], entry["place"], entry["priority"]) for entry in entries] == [
        ("first", None, 0),
        ("second", 1, -4),
    ]
    assert entries[0]["holds"] == ["cpu-0", "cpu-1"]
    assert open_run("second").queue(priority=7)[1].priority == 7
    with pytest.raises(ConfigError, match=r"^priority 'x': must be a whole number from -"):
        open_run("second").queue(priority="x")
    assert main(["queue", "second"]) == 2
    assert main(["queue", "--now"]) == 2
    without_change, without_run = capsys.readouterr().err.splitlines()
    assert lacks(without_change, "ConfigError: ", "--priority N or --now", "`nbtrain queue`") == []
    assert (
        lacks(without_run, "ConfigError: ", "need a run, for example `nbtrain queue RUN --priority 5`") == []
    )


def test_a_cause_that_the_table_cuts_stands_below_it():
    """A cause that is too long for the table is printed in full below it, because its end says what to do."""
    cause = f"could not be restarted: {'x' * 100}. Do this."
    run = str(output_root() / "first")
    entry = QueueEntry(None, "first", run, "id", "LOST", "1 core", [], 0, 0.0, cause)
    *_, row, blank, whole = str(QueueList([entry])).split("\n")
    assert row.endswith("xxx...")
    assert (blank, whole) == ("", f"first: {cause}")


def test_a_job_of_another_workspace_is_named_with_its_folder(holders, tmp_path, monkeypatch):
    """A job of another workspace is listed with its folder, because the same name may be a run in this
    workspace.
    """

    def ticket(name):
        job, me = holders.job(name), ProcessIdentity.of(os.getpid())
        return Ticket(job.job_id, str(job.run.path), name, ["gpu-0"], 1, 0, 0.0, me, "")

    mine, near = ticket("mine"), ticket("near")
    monkeypatch.setenv("NBTRAIN_OUTPUT", str(tmp_path / "theirs"))
    far = replace(ticket("far"), holds=["gpu-0"])
    said = waiting_words(mine, [far], [near], 0)
    theirs = f"far of another workspace, {tmp_path}/theirs/far (QUEUED, 1 GPU)"
    assert said == f"waits for 1 GPU; 0 are free; before it: {theirs}, near (QUEUED); place 2 in the queue"
    monkeypatch.delenv("NBTRAIN_OUTPUT")
    entries = [
        QueueEntry(1, job.name, job.run, job.job_id, "QUEUED", "1 GPU", [], 0, 0.0, None)
        for job in (far, mine)
    ]
    assert str(QueueList(entries)).endswith(f"\n\nfar is a run of another workspace: {tmp_path}/theirs/far")


def test_a_queue_that_cannot_be_looked_at_is_said(holders):
    """If the queue cannot be read, that is reported, and the command continues."""
    said = []
    after_boot.start_after_boot(said.append)
    assert said == []
    (holders.queue.path / "tickets").rmdir()
    after_boot.start_after_boot(said.append)
    assert said == [], "no job has ever queued"
    (holders.queue.path / "tickets").touch()
    after_boot.start_after_boot(said.append)
    (warning,) = said
    assert (
        lacks(warning, "queue: ", "cannot be read", "its jobs are not restarted", ": Not a directory") == []
    )
