"""Jobs in the queue from submission to end, with real supervisors; the ranks do not train."""

import json
import os
import re
import signal

import pytest

from nbtrain.base import files
from nbtrain.base.errors import SubmitError
from nbtrain.base.hardware.nvml import Gpu
from nbtrain.base.run_directory.jobstate import CANCELLED, LOST, QUEUED, SUCCEEDED, SUSPENDED
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.config.load import load_resolved
from nbtrain.jobs.attempt.backend import status_of
from nbtrain.jobs.checks import preflight
from nbtrain.jobs.control.control import cancel, pause, unpause, wait
from nbtrain.jobs.machine.machine import this_machine
from nbtrain.jobs.machine.queue_folder import Queue
from nbtrain.jobs.queue import after_boot
from nbtrain.jobs.queue.listing import list_queue, move
from nbtrain.jobs.request import launch
from nbtrain.jobs.submission.submit import resume
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
GIB = 1 << 30


def put_machine(**limits):
    queue = Queue()
    queue.make()
    queue.devices_json.write_text(json.dumps(limits))


def test_queued_paused_resumed_cancelled(fake, start, states_of):
    """The second job starts when the first is paused. When the first is resumed, it waits in the queue and is
    cancelled there.
    """
    put_machine(cores=2)
    first = start(fake(steps=100_000))
    wait_until(lambda: status_of(first)[0] == "RUNNING", "it runs")
    second = start(fake(steps=100_000).model_copy(update={"name": "second"}))
    said = "waits for 2 cores; 0 are free; before it: tiny (RUNNING, 2 cores)"
    wait_until(lambda: status_of(second) == (QUEUED, said), "it waits")
    assert pause(first)[0] == SUSPENDED
    wait_until(lambda: status_of(second)[0] == "RUNNING", "it has the cores")
    unpause(first)
    wait_until(lambda: "second (RUNNING" in (status_of(first)[1] or ""), "it queues again")
    assert status_of(first)[0] == QUEUED
    move(first, 7)
    assert pause(first)[0] == SUSPENDED
    unpause(first)
    wait_until(lambda: status_of(first)[0] == QUEUED and len(list_queue("tiny")) == 1, "it queues again")
    assert list_queue("tiny")[0].priority == 7
    attempt = JobRecord.read(first.job_json).attempts[0]
    assert cancel(first) == (CANCELLED, "stopped on request while the job waited for its devices")
    assert JobRecord.read(first.job_json).attempts == [attempt]
    assert states_of(first) == [
        "QUEUED",
        "STARTING",
        "RUNNING",
        "SUSPENDED",
        "QUEUED",
        "SUSPENDED",
        "QUEUED",
        "CANCELLED",
    ]
    again = resume(first.run, command=tuple(JobRecord.read(first.job_json).command))
    wait_until(lambda: "second (RUNNING" in (status_of(again)[1] or ""), "its successor queues")
    assert list_queue("tiny")[0].priority == 7
    assert cancel(again)[0] == CANCELLED
    cancel(second)
    wait_until(lambda: list_queue() == [], "their tickets are gone")


def test_ranks_see_the_gpus_that_their_job_holds(fake, start, monkeypatch):
    """Two jobs run at the same time, each on its own GPU; a third one with share_devices starts without
    waiting.
    """
    put_machine(gpus=["0", "1"])
    machine = this_machine()
    gpus = (Gpu("NVIDIA H200", 141 * GIB),) * 2
    monkeypatch.setattr(
        launch, "machine_of_run", lambda config: type(machine)(**{**vars(machine), "gpus": gpus})
    )
    monkeypatch.setattr(preflight, "CHECKS", (preflight.devices_suffice, preflight.data_is_whole))
    config = fake(steps=100_000)
    gpu = config.resources.model_copy(update={"device": "gpu"})
    jobs = []
    for name, share in (("one", False), ("two", False), ("three", True)):
        backend = config.backend.model_copy(update={"share_devices": share})
        jobs.append(start(config.model_copy(update={"name": name, "resources": gpu, "backend": backend})))
        wait_until(lambda: re.search(r"GPUs \S+\n", read(jobs[-1].log(0, 0))), "its rank has begun")
    assert [read(job.log(0, 0)).split("GPUs ")[1].split()[0] for job in jobs] == ["0", "1", "all"]
    assert {entry.name: entry.holds for entry in list_queue()} == {"one": ["gpu-0"], "two": ["gpu-1"]}
    for job in jobs:
        cancel(job, now=True)
    put_machine(gpus=["0"])
    two = gpu.model_copy(update={"gpus_per_node": 2})
    wide = config.parallel.model_copy(update={"data_parallel_size": 2})
    with pytest.raises(SubmitError) as refused:
        start(config.model_copy(update={"name": "four", "resources": two, "parallel": wide}))
    words = "the run needs 2 GPUs, but queue/devices.json allows only 1. Add GPUs to the list"
    assert words in str(refused.value)


def read(path):
    return path.read_text() if path.exists() else ""


def test_after_a_boot_the_jobs_go_on_in_their_order(fake, start):
    """After a reboot, running and waiting jobs are restarted in order and keep their priority; cancelled jobs
    are not.
    """
    put_machine(cores=2)
    jobs = [start(fake(steps=100_000))]
    wait_until(lambda: status_of(jobs[0])[0] == "RUNNING", "it runs")
    for name in ("second", "unwanted"):
        config = fake(steps=20).model_copy(update={"name": name})
        jobs.append(start(config))
        wait_until(lambda: status_of(jobs[-1])[1], "it waits")
    # Simulate a power failure.
    for job in reversed(jobs):
        os.kill(JobRecord.read(job.job_json).supervisor.pid, signal.SIGKILL)
    wait_until(lambda: [status_of(job)[0] for job in jobs] == [LOST] * 3, "all are lost")
    said = []
    after_boot.start_after_boot(said.append)
    assert said == []
    assert cancel(jobs[2])[0] == LOST
    for path in (Queue().path / "tickets").iterdir():
        files.write_json(path, {**files.read_json(path), "system": "before", "priority": 3})
    after_boot.start_after_boot(said.append)
    assert said == [
        "The machine was restarted. These jobs from its queue are being restarted: tiny, second. To list "
        "the queue, run `nbtrain queue`."
    ]
    again = [wait_until(lambda job=job: successor(job), "a new job") for job in jobs[:2]]
    wait_until(lambda: status_of(again[0])[0] == "RUNNING", "the first one runs again")
    wait_until(lambda: "tiny (RUNNING, 2 cores)" in (status_of(again[1])[1] or ""), "the second one waits")
    cancel(again[0])
    assert wait(again[1])[0] == SUCCEEDED
    assert load_resolved(again[0].run.config_yaml).backend.priority == 3
    assert jobs[2].run.job_ids() == [jobs[2].job_id]
    wait_until(lambda: list_queue() == [], "their tickets are gone")
    after_boot.start_after_boot(said.append)
    assert len(said) == 1


def successor(job):
    newest = job.run.newest_job()
    return newest if newest.job_id != job.job_id and newest.job_json.exists() else None
