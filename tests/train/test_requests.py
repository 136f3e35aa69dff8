"""Requests to a rank from other processes, and the outcome that the rank reports at its end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.records import ControlRequest
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.parallel.agreement import NOTHING, SAVE, STOP
from nbtrain.train.health.attempt import report_outcome
from nbtrain.train.requests import Requests


@pytest.fixture
def job(tmp_path):
    job = RunDir(tmp_path / "run").job("20261121-031500-a1b2")
    job.make_folders()
    return job


@pytest.fixture(autouse=True)
def _handler():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def ask(job, request_id, action):
    ControlRequest(request_id, action, "a test", time.time()).write(job.control_request)


def test_a_request_is_wished_until_it_is_done(job):
    """A request stays pending until it is acknowledged; after that, neither this process nor a later one
    repeats it.
    """
    requests = Requests(job, 0)
    assert requests.wish() == NOTHING
    ask(job, 1, "save")
    assert requests.wish() == requests.wish() == SAVE
    requests.acknowledge(12)
    acknowledged = files.read_json(job.control_ack)
    assert (acknowledged["request_id"], acknowledged["action"], acknowledged["step"]) == (1, "save", 12)
    assert requests.wish() == NOTHING
    assert Requests(job, 0).wish() == NOTHING
    ask(job, 2, "stop")
    assert requests.wish() == STOP


def test_other_ranks_do_not_read_the_file(job):
    ask(job, 1, "stop")
    assert Requests(job, 1).wish() == NOTHING


def test_sigterm_means_stop_on_any_rank(job):
    requests = Requests(job, 3)
    os.kill(os.getpid(), signal.SIGTERM)
    assert requests.wish() == STOP


def test_the_last_word_goes_through_the_pipe(monkeypatch):
    reader, writer = os.pipe()
    monkeypatch.setenv("NBTRAIN_EXIT_FD", str(writer))
    report_outcome("stopped", 7, "stopped at step 7")
    with os.fdopen(reader) as pipe:
        word = json.loads(pipe.read())
    said = {"outcome": "stopped", "step": 7, "message": "stopped at step 7", "detail": "", "error": ""}
    assert word == said


def test_without_a_wrapper_there_is_nobody_to_tell(monkeypatch):
    monkeypatch.delenv("NBTRAIN_EXIT_FD", raising=False)
    report_outcome("finished", 7, "finished at step 7")


@pytest.mark.slow
def test_the_last_word_arrives_where_the_log_takes_none(tmp_path):
    """A rank whose log is on a full disk still reports its error elsewhere, and exits with the matching
    code.
    """
    reader, writer = os.pipe()
    with Path("/dev/full").open("w") as full:
        failed = subprocess.run(
            [sys.executable, "-m", "nbtrain.train", str(tmp_path / "run")],
            # Unbuffered, as every rank is (jobs/machine/environment.py): otherwise Python fails
            # at exit with code 120.
            env=os.environ | {"NBTRAIN_EXIT_FD": str(writer), "NBTRAIN_JOB": "", "PYTHONUNBUFFERED": "1"},
            pass_fds=[writer],
            stdout=full,
            stderr=full,
        )
    os.close(writer)
    with os.fdopen(reader) as pipe:
        word = json.loads(pipe.read())
    assert failed.returncode == 5
    assert (word["outcome"], word["error"]) == ("failed", "JobError")
    assert "has no job" in word["message"]
