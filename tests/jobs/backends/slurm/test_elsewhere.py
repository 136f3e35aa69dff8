"""A Slurm job, seen from a machine that has the run directory but no Slurm: messages, and never a
traceback.
"""

import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.errors import JobError, SubmitError
from nbtrain.base.run_directory.jobstate import (
    CANCELLED,
    FAILED,
    QUEUED,
    RUNNING,
    STARTING,
    SUCCEEDED,
    SUSPENDED,
)
from nbtrain.base.run_directory.node_records import Ask, EngineWord
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.cli import __main__ as cli
from nbtrain.config.load import load, to_yaml
from nbtrain.jobs.backends.slurm.backend import BACKEND, SlurmHandle
from nbtrain.jobs.request.request import active_job
from nbtrain.jobs.submission.job_files import write_identity
from nbtrain.monitor.job.job_records import describe_job
from tests.jobs.conftest import TINY
from tests.waiting import wait_until

AWAY = "scontrol is not installed on this machine"
WAITS = "Slurm job 12 waits (Resources): the nodes that it needs are busy"


@pytest.fixture
def job(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    """Create a job of the run `tiny` as if it had been submitted on another machine, with no programs in
    PATH.
    """
    monkeypatch.setenv("PATH", str(workspace))
    (workspace / "tiny.yaml").write_text(TINY)
    config = load(workspace / "tiny.yaml", {"backend.kind": "slurm"})
    run = RunDir.named("tiny")
    run.path.mkdir(parents=True)
    write_identity(run)
    run.config_yaml.write_text(to_yaml(config))
    job = run.job("20260101-120000-abcd")
    job.make_folders()
    job.config_yaml.write_text(to_yaml(config))
    SlurmHandle(["12"]).write(job.handle_json)
    return job


@pytest.fixture
def become(job: JobDir) -> Callable[..., None]:
    """Return a function that sets the job's records: become(state, Slurm's state, its reason, seconds of
    silence).
    """

    def become(state: str, said: str | None = None, reason: str = "", silent: float = 0, **more: Any) -> None:
        record = JobRecord(job.job_id, "id", "tiny", state, time.time() - 500, 4, backend="slurm")
        if state != QUEUED:
            record.supervisor = ProcessIdentity(7, 1, "other boot", "node0")
        record.write(job.job_json)
        word = EngineWord(said, reason, time.time() - 120, engine="Slurm job 12", **more)
        word.write(job.engine_json)
        for path, age in ((job.engine_json, 0.0), (job.job_json, silent)):
            os.utime(path, (time.time() - age, time.time() - age))

    return become


@pytest.fixture
def supervisor(job: JobDir) -> Iterator[list[str]]:
    """Play a supervisor on another host that obeys control/ask.json; the list contains the requests it has
    read.
    """
    asked: list[str] = []
    ended = threading.Event()

    def serve() -> None:
        while not ended.wait(0.05):
            ask = Ask.read(job.control_ask)
            if ask and len(asked) < ask.number:
                asked.append(ask.action)
                record = JobRecord.read(job.job_json)
                if record and ask.action.startswith("stop"):
                    record.state, record.cause = CANCELLED, "stopped on request at step 7; saved"
                    record.write(job.job_json)

    thread = threading.Thread(target=serve)
    thread.start()
    yield asked
    ended.set()
    thread.join()


@pytest.mark.parametrize(
    ("state", "said", "reason", "silent", "shown"),
    [
        (
            QUEUED,
            QUEUED,
            WAITS,
            400,
            f"tiny QUEUED\n||{WAITS} (queried 2 min ",
        ),
        (
            QUEUED,
            CANCELLED,
            "Slurm job 12 ended as CANCELLED",
            400,
            "tiny CANCELLED\n||Slurm job 12 ended as CA",
        ),
        (STARTING, RUNNING, "", 3, "tiny STARTING\n||Slurm job 12: RUNNING (queried 2 min "),
        (RUNNING, RUNNING, "", 3, "tiny RUNNING\n"),
        (RUNNING, SUSPENDED, "Slurm job 12 is SUSPENDED", 400, "tiny SUSPENDED\n||Slurm job 12 is SUSPENDED"),
        (RUNNING, QUEUED, WAITS, 400, f"tiny QUEUED\n||{WAITS}"),
        (
            RUNNING,
            FAILED,
            "Slurm job 12 ended as NODE_FAIL",
            400,
            "tiny LOST\nits supervisor has been silent",
        ),
        (RUNNING, None, "", 400, "Slurm job 12 is no longer known"),
        (SUCCEEDED, RUNNING, "", 400, "tiny SUCCEEDED"),
    ],
)
def test_status_reads_what_others_have_heard(
    become: Callable[..., None],
    capsys: pytest.CaptureFixture,
    state: str,
    said: str | None,
    reason: str,
    silent: float,
    shown: str,
) -> None:
    """All commands that only read show the same state, and leave the recorded output of Slurm unchanged."""
    become(state, said, reason, silent)
    assert cli.main(["status", "tiny"]) == 0
    text = capsys.readouterr().out
    for part in shown.split("||"):
        assert part in text
    seen = next(word for word in text.split() if word.isupper())
    for verb in (["runs"], ["job", "tiny"], ["logs", "tiny"], ["status", "tiny", "--json"]):
        assert cli.main(verb) == 0
        said_here = capsys.readouterr().out
        assert verb[0] == "logs" or seen.lower() in said_here.lower()
    assert EngineWord.read(RunDir.named("tiny").newest_job().engine_json).seen


def test_an_engine_that_did_not_answer_is_a_flag(
    become: Callable[..., None], capsys: pytest.CaptureFixture
) -> None:
    """If Slurm did not respond, the status shows the last known state with a note."""
    become(RUNNING, RUNNING, silent=3, seen=False, trouble="Unable to contact slurm controller")
    assert cli.main(["status", "tiny"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("tiny RUNNING\n")
    assert "Slurm job 12: RUNNING (scheduler not reachable now: Unable to contact slurm controller)" in text


def test_a_running_job_is_reached_by_its_folder(
    become: Callable[..., None], supervisor: list[str], capsys: pytest.CaptureFixture
) -> None:
    """Save and cancel work without Slurm, because the supervisor reads control/ask.json."""
    become(RUNNING, RUNNING)
    assert cli.main(["save", "tiny"]) == 0
    assert capsys.readouterr().out == "tiny: will save after the current step.\n"
    assert cli.main(["resume", "tiny"]) == 0
    assert capsys.readouterr().out.startswith("tiny: job 20260101-120000-abcd is RUNNING. ")
    wait_until(lambda: supervisor, "the supervisor has read no request")
    assert cli.main(["cancel", "tiny"]) == 0
    assert capsys.readouterr().out.startswith("tiny: CANCELLED. `nbtrain resume tiny` starts from the begin")
    assert supervisor == ["save", "stop"]


@pytest.mark.parametrize("state", [QUEUED, RUNNING])
def test_what_only_slurm_can_do_is_refused(
    become: Callable[..., None], capsys: pytest.CaptureFixture, state: str
) -> None:
    """Cancelling a queued or suspended job needs Slurm, so it is rejected on this machine; the request is
    kept.
    """
    become(state, SUSPENDED if state == RUNNING else QUEUED, silent=400)
    assert cli.main(["cancel", "tiny"]) == JobError.exit_code
    assert capsys.readouterr().err == (
        "JobError: output/tiny: the scheduler cannot end job 20260101-120000-abcd now: scontrol is "
        "not installed on this machine. The stop request is kept; try again when the scheduler responds.\n"
    )


@pytest.mark.parametrize(("state", "seen_as"), [(RUNNING, "Lost"), (QUEUED, "Failed")])
def test_slurms_word_for_the_end_is_the_reason(become: Callable[..., None], state: str, seen_as: str) -> None:
    """If the supervisor has vanished or was never started, Slurm's final state is the reason."""
    become(state, FAILED, "Slurm job 12 ended as NODE_FAIL", silent=400, ended_as="NODE_FAIL")
    last = describe_job(RunDir.named("tiny")).conditions[-1]
    assert (last.type, last.status, last.reason) == (seen_as, True, "NODE_FAIL")


def test_a_lost_job_cannot_be_resumed_here(
    become: Callable[..., None], capsys: pytest.CaptureFixture
) -> None:
    """Without Slurm, a lost job cannot be resumed, and nothing is written."""
    become(RUNNING, FAILED, "Slurm job 12 ended as NODE_FAIL", silent=400)
    for verb in (["resume", "tiny"], ["clone", "tiny", "other"]):
        assert cli.main(verb) == SubmitError.exit_code
        said = capsys.readouterr().err
        assert (
            "Slurm: sinfo is not installed on this machine. Submit from a machine that can reach the" in said
        )
    assert RunDir.named("tiny").job_ids() == ["20260101-120000-abcd"]
    assert cli.main(["cancel", "tiny"]) == 0
    assert capsys.readouterr().out.startswith("tiny: LOST. ")


def test_nobody_has_asked_yet(job: JobDir, become: Callable[..., None]) -> None:
    """Before Slurm has been queried for the first time, its state is unknown, and reading the status writes
    nothing.
    """
    become(QUEUED)
    job.engine_json.unlink()
    assert BACKEND.engine_word(job) is None
    assert BACKEND.status(job) == (QUEUED, None)
    assert not job.engine_json.exists()


# sbatch accepts the job, and its caller dies before it reads the number.
TAKES_AND_KILLS = """#!/bin/bash
/bin/sed -n 's/^#SBATCH --comment=/13|/p' "$2" > {folder}/taken
kill -9 $PPID
"""
LISTS = """#!/bin/bash
[ -e {folder}/taken ] || exit 0
echo "12|nbtrain/tiny/20250101-120000-abcd"; read -r line < {folder}/taken; echo "$line"
"""
SHOWS = """#!/bin/bash
[ "$4" = 13 ] || {{ echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }}
echo "JobId=13 JobName=nbtrain-tiny JobState=PENDING Reason=Priority Restarts=0 Comment=$(<{folder}/comment)"
"""


def test_a_job_whose_submission_was_killed_is_found_by_its_comment(
    job: JobDir, become: Callable[..., None], workspace: Path
) -> None:
    """A job whose submission was killed is found by the comment of its Slurm job: it is shown, joined and
    cancelled, and never submitted twice.
    """
    cancels = '#!/bin/bash\necho "$@" > {folder}/cancelled\n'
    scripts = {"sbatch": TAKES_AND_KILLS, "squeue": LISTS, "scontrol": SHOWS, "scancel": cancels}
    for name, text in scripts.items():
        (workspace / name).write_text(text.format(folder=shlex.quote(str(workspace))))
        (workspace / name).chmod(0o755)
    (workspace / "comment").write_text(f"nbtrain/tiny/{job.job_id}")
    job.handle_json.unlink()
    become(QUEUED)
    child = os.fork()
    if child == 0:
        try:
            BACKEND.submit(job)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 9
    assert (workspace / "taken").read_text() == f"13|nbtrain/tiny/{job.job_id}\n"
    assert SlurmHandle.read(job.handle_json) == SlurmHandle([], asked=True)
    state, cause = BACKEND.status(job)
    assert state == QUEUED and cause.startswith("Slurm job 13 waits (Priority): ")
    assert SlurmHandle.read(job.handle_json) == SlurmHandle(["13"])
    assert active_job(job.run).job_id == job.job_id
    assert BACKEND.cancel(job, now=False)
    assert (workspace / "cancelled").read_text() == "13\n"
