"""The wrapper of a rank, tested with real child processes that run one line of Python, also when parent
processes die.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nbtrain.base.run_directory.records import ExitRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir, new_job_id
from nbtrain.jobs.machine import processes
from tests.waiting import wait_until

# Every test starts real children.
pytestmark = pytest.mark.slow

SAY = (
    "import json, os; pipe = os.fdopen(int(os.environ['NBTRAIN_EXIT_FD']), 'w'); "
    "pipe.write(json.dumps({word})); pipe.close(); "
)


@pytest.fixture
def job(workspace):
    job = JobDir(RunDir(workspace / "output" / "run"), new_job_id())
    job.make_folders()
    return job


@pytest.fixture
def wrap(job):
    """Return a function that starts the wrapper of rank 3, attempt 1, for a line of Python: wrap(code)."""
    started = []

    def wrap(*command: str):
        environment = {
            **os.environ,
            "RANK": "3",
            "NBTRAIN_ATTEMPT": "1",
            "NBTRAIN_RUN_DIR": str(job.run.path),
            "NBTRAIN_JOB": job.job_id,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "nbtrain.jobs.attempt.rank_wrapper", *command], env=environment
        )
        started.append(process)
        return process

    yield wrap
    for process in started:
        process.kill()
        process.wait()
    processes.end_marked([job.job_id], 0.0)


def python(code, **word):
    return sys.executable, "-c", (SAY.format(word=repr(word)) if word else "") + code


def end_of(job, process):
    code = process.wait(600)
    return code, ExitRecord.read(job.exit_record(3, 1))


def test_a_finished_rank(job, wrap):
    """The record of a finished rank contains its report and the exit code from the kernel, and the rank's log
    its output.
    """
    code, record = end_of(job, wrap(*python("print('hello')", outcome="finished", step=5, message="done")))
    assert code == 0
    assert (record.rank, record.attempt, record.outcome, record.exit_code, record.signal) == (
        3,
        1,
        "finished",
        0,
        None,
    )
    assert (record.step, record.message) == (5, "done")
    assert job.log(3, 1).read_text() == "hello\n"


@pytest.mark.parametrize(
    ("code", "word", "expected"),
    [
        (
            "raise SystemExit(7)",
            {},
            ("failed", 7, None, "exit code 7 without a report; see the end of its log"),
        ),
        ("pass", {}, ("failed", 0, None, "exit code 0 without a report; see the end of its log")),
        (
            "raise SystemExit(1)",
            {"outcome": "finished", "message": "done"},
            ("failed", 1, None, "exit code 1 after it reported 'finished': done"),
        ),
        (
            "os.kill(os.getpid(), 11)",
            {"outcome": "finished", "message": "done"},
            ("killed", None, 11, "killed by SIGSEGV after it reported 'finished': done"),
        ),
        ("import os; os.kill(os.getpid(), 9)", {}, ("killed", None, 9, "killed by SIGKILL")),
        (
            # A request for its stacks, while it was ending.
            "import os, signal; os.kill(os.getpid(), signal.SIGUSR2)",
            {"outcome": "failed", "message": "connection closed by peer"},
            ("failed", None, 12, "connection closed by peer"),
        ),
        (
            # Its peers closed their connections while it was ending.
            "import os; os.kill(os.getpid(), 6)",
            {"outcome": "failed", "message": "no room"},
            ("failed", None, 6, "no room"),
        ),
        (
            "raise SystemExit(4)",
            {"outcome": "failed", "message": "no room", "error": "CheckpointError"},
            ("failed", 4, None, "no room"),
        ),
    ],
)
def test_the_kernel_wins_over_the_word(job, wrap, code, word, expected):
    """The exit code from the kernel takes precedence over the rank's report."""
    returned, record = end_of(job, wrap(*python(code, **word)))
    assert returned == 1
    assert (record.outcome, record.exit_code, record.signal, record.message) == expected
    assert (record.said, record.error) == (word.get("outcome", ""), word.get("error", ""))


def test_a_long_traceback_fits_through_the_pipe(job, wrap):
    """A traceback longer than the 64 KiB of a pipe is read completely, because the wrapper reads while the
    rank writes.
    """
    code = (
        "import json, os; pipe = os.fdopen(int(os.environ['NBTRAIN_EXIT_FD']), 'w'); "
        "pipe.write(json.dumps({'outcome': 'failed', 'message': 'no room', 'detail': 'x' * 300_000})); "
        "pipe.close()"
    )
    _, record = end_of(job, wrap(*python(code)))
    assert (record.outcome, record.message, len(record.detail)) == ("failed", "no room", 12_000)


def test_a_command_that_does_not_exist(job, wrap):
    """If the command does not exist, a record is still written."""
    code, record = end_of(job, wrap("/no/such/program"))
    assert code == 1
    assert record.outcome == "failed"
    assert record.message.startswith("cannot start: [Errno 2]")


def test_a_worker_that_holds_the_pipe_does_not_hold_the_record(job, wrap):
    """A forked child that outlives the rank and keeps the pipe open does not delay the rank's record."""
    code = "import os, time; time.sleep(3600) if os.fork() == 0 else None"
    began = time.monotonic()
    _, record = end_of(job, wrap(*python(code)))
    assert time.monotonic() - began < 600
    assert record.exit_code == 0


def test_signals_are_passed_on_once(job, wrap, tmp_path):
    """If the launcher sends TERM to the wrapper's whole process group, the rank receives it once."""
    log = tmp_path / "noted"
    code = (
        "import signal, time, pathlib\n"
        f"noted = pathlib.Path({str(log)!r})\n"
        "count = []\n"
        "signal.signal(signal.SIGTERM, lambda *a: count.append(1))\n"
        "noted.write_text('ready')\n"
        "while not count: time.sleep(0.01)\n"
        "time.sleep(0.3)\n"
        "noted.write_text(str(len(count)))\n"
    )
    process = wrap(*python(code))
    wait_until(lambda: log.exists() and log.read_text() == "ready", "the rank is not ready")
    process.send_signal(signal.SIGTERM)
    process.wait(600)
    assert log.read_text() == "1"


def test_a_dead_wrapper_takes_its_rank_along(job, wrap):
    """After kill -9 of the wrapper, the kernel kills its rank too; otherwise the end of the rank would not be
    recorded.
    """
    process = wrap(*python("import time; time.sleep(3600)"))
    wait_until(lambda: processes.marked_pids([job.job_id], "NBTRAIN_EXIT_FD"), "the rank")
    process.kill()
    process.wait()
    wait_until(lambda: not processes.marked_pids([job.job_id]), "its end")


def test_a_dead_parent_ends_the_rank_in_order(job):
    """After kill -9 of the launcher, the kernel sends TERM to the wrapper, which passes it on to the rank."""
    environment = {
        **os.environ,
        "RANK": "3",
        "NBTRAIN_ATTEMPT": "1",
        "NBTRAIN_RUN_DIR": str(job.run.path),
        "NBTRAIN_JOB": job.job_id,
    }
    rank = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *a: sys.exit(5)); "
        "print('ready', flush=True); time.sleep(3600)"
    )
    launcher = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-m', 'nbtrain.jobs.attempt.rank_wrapper', sys.executable, "
        f"'-c', {rank!r}])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", launcher], env=environment)
    log = job.log(3, 1)
    wait_until(lambda: log.exists() and "ready" in log.read_text(), "its handler")
    process.kill()
    process.wait()
    record = wait_until(lambda: ExitRecord.read(job.exit_record(3, 1)), "the record")
    assert record.exit_code == 5


def test_it_starts_without_the_notebook_side():
    """The wrapper and the launcher import only the standard library, because they start with every rank."""
    code = (
        "import sys, json, nbtrain.jobs.attempt.rank_wrapper, nbtrain.jobs.node.rank_launcher\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules} - "
        "set(sys.stdlib_module_names))))"
    )
    answer = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(processes.__file__).parents[3])},
        check=True,
    )
    assert set(json.loads(answer.stdout)) <= {"__main__", "nbtrain", "__mp_main__"}
