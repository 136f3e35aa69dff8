"""Parsing of Slurm's output, recorded with version 22.05 and rewritten in the format of other versions."""

import os
import time
from pathlib import Path

import pytest

from nbtrain.base.run_directory.jobstate import CANCELLED, FAILED, QUEUED, RUNNING, SUCCEEDED, SUSPENDED
from nbtrain.jobs.backends.remote_backend import EngineAway, EngineUnseen
from nbtrain.jobs.backends.slurm import engine
from nbtrain.jobs.backends.slurm.engine import (
    cancelled_for,
    cancelled_step,
    read_sacct,
    read_scontrol,
    read_sinfo,
    submitted_number,
    word_of,
)
from nbtrain.jobs.backends.slurm.states import STATES, WAITING, reason_words

RECORDS = Path(__file__).with_name("records")


def spoken(name: str) -> tuple[str | None, str]:
    """Return (state, reason) for a recorded output of scontrol."""
    word = word_of(read_scontrol((RECORDS / name).read_text()), "12")
    return word.state, word.reason


@pytest.mark.parametrize("version", ["20.11", "22.05", "23.11", "24.05", "24.11", "25.05"])
def test_every_version_says_that_a_job_runs(version: str) -> None:
    """The output of every version is parsed, also with paths and comments that contain spaces and NAME=."""
    found = read_scontrol((RECORDS / f"running-{version}.txt").read_text())
    assert found is not None
    assert (found.number, found.state, found.restarts, found.nodes) == ("12", "RUNNING", 1, "n[0-1]")
    assert word_of(found, "12").reason == "Slurm job 12 is RUNNING on n[0-1]"


def test_an_array_is_what_its_foremost_task_is() -> None:
    """An array has the state of its most advanced task, although the last line of Slurm's output may be a
    cancelled task.
    """
    assert spoken("array-running-22.05.txt") == (RUNNING, "Slurm job 12 is RUNNING on n1")
    assert spoken("array-ended-22.05.txt")[0] == CANCELLED
    assert spoken("array-waiting-22.05.txt") == (
        QUEUED,
        "Slurm job 19 waits (JobArrayTaskLimit): an earlier task of its array is still running",
    )
    assert spoken("array-suspended-22.05.txt") == (
        SUSPENDED,
        "Slurm job 12 is SUSPENDED on n1 (its processes are stopped, and its nodes may run other jobs)",
    )


def test_het_jobs_and_federations_are_read() -> None:
    """A heterogeneous job has one line for each component, and a federated job has a very large number."""
    assert spoken("het-22.05.txt") == (RUNNING, "Slurm job 12 is RUNNING on n0")
    assert spoken("federated-23.11.txt") == (RUNNING, "Slurm job 12 is RUNNING on n0")


def test_a_job_that_was_put_back_says_when_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a requeued job that is PENDING, the reason says when it will start, not that it was never
    started.
    """
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(engine.time, "time", lambda: 1_795_396_918.0)
    assert spoken("requeued-22.05.txt") == (
        QUEUED,
        "Slurm job 18 waits (BeginTime): its earliest start time has not come yet; after a requeue, it is "
        "about 2 minutes later; requeued 1 time; start estimated at 2026-11-23 01:23:58 UTC",
    )


def test_a_newer_version_says_why_a_job_waits_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of version 24.11 is parsed: planned nodes, licenses that are listed twice, and whether the
    kernel killed a step.
    """
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(engine.time, "time", lambda: 1_795_396_918.0)
    assert spoken("waiting-24.11.txt") == (
        QUEUED,
        f"Slurm job 12 waits (QOSMaxGRESPerUser): {reason_words('QOSMaxGRESPerUser')}; start estimated at "
        "2026-11-23 04:00:00 UTC",
    )
    assert spoken("ended-24.11.txt") == (
        FAILED,
        "Slurm job 12 ended as OUT_OF_MEMORY (it used more memory than it requested), exit code 0:125, "
        "OutOfMemory",
    )


GENERAL = "nbtrain does not know this reason; see `scontrol show job` and the cluster's documentation"


def numbered(words: str) -> str:
    """Return an explanation with the number of Slurm job 12 in its command."""
    return words.replace("{number}", "12")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        *WAITING.items(),
        ("ReqNodeNotAvail,_UnavailableNodes:n[1-4]", WAITING["ReqNodeNotAvail"]),
        ("ReqNodeNotAvail,_Reserved_for_maintenance", WAITING["Reserved_for_maintenance"]),
        (
            "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
            WAITING["Nodes_required_for_job_are_DOWN"],
        ),
        (
            "AssocGrpCPURunMinutesLimit",
            "the account or its user has reached the limit on cores times minutes; it starts when other jobs "
            "have ended or the limit is raised",
        ),
        (
            "QOSMaxGRESPerUser",
            "the quality of service has reached the limit on GPUs or other generic resources per user; it "
            "starts when other jobs have ended or the limit is raised",
        ),
        (
            "AssocMaxWallDurationPerJobLimit",
            "its request for run time is above the maximum per job of the account or its user; it starts "
            "only after the request or the limit is changed",
        ),
        (
            "QOSMinCpuNotSatisfied",
            "its request for cores is below the minimum of the quality of service; it starts only after the "
            "request or the limit is changed",
        ),
        ("SomethingNew", GENERAL),
    ],
)
def test_every_reason_is_said_in_words(reason: str, words: str) -> None:
    """A reason that Slurm gives is shown with an explanation; an unknown one gets a general sentence."""
    text = f"JobId=12 JobName=a JobState=PENDING Reason={reason} Dependency=(null) Restarts=0 NodeList="
    assert word_of(read_scontrol(text), "12").reason == f"Slurm job 12 waits ({reason}): {numbered(words)}"


def test_no_reason_of_slurm_is_without_words() -> None:
    """Every reason of version 22.05 (from the strings in its library) and of newer versions has an
    explanation.
    """
    reasons = (RECORDS / "reasons.txt").read_text().split()
    assert len(reasons) > 150
    assert [reason for reason in reasons if reason_words(reason) == GENERAL] == []


@pytest.mark.parametrize("state", STATES)
def test_every_state_has_its_place_and_its_words(state: str) -> None:
    """Every state of Slurm maps to a job state, and has an explanation unless it is self-explanatory."""
    ours, words = STATES[state]
    text = f"JobId=12 JobName=a JobState={state} Reason=NonZeroExitCode Restarts=0 ExitCode=1:0 NodeList=n0"
    word = word_of(read_scontrol(text), "12")
    assert word.state == ours
    assert word.ended_as == (state if ours == FAILED else "")
    assert bool(words) == (state not in ("PENDING", "RUNNING", "COMPLETED"))
    beside = f" ({words})" if words else ""
    assert (
        word.reason
        == {
            QUEUED: f"Slurm job 12 waits ({state}): {numbered(words)}"
            if words
            else "Slurm job 12 waits (NonZeroExitCode): its exit code is not 0",
            RUNNING: f"Slurm job 12 is {state} on n0{beside}",
            SUSPENDED: f"Slurm job 12 is {state} on n0{beside}",
            SUCCEEDED: "Slurm job 12 is COMPLETED on n0",
            FAILED: f"Slurm job 12 ended as {state}{beside}, exit code 1:0, NonZeroExitCode",
            CANCELLED: f"Slurm job 12 ended as {state}{beside}, exit code 1:0, NonZeroExitCode",
        }[ours]
    )


def test_a_state_of_a_newer_slurm_is_not_guessed() -> None:
    """A state that only a newer Slurm has is treated as unknown."""
    text = "JobId=12 JobName=a JobState=DREAMING Reason=None Restarts=0 ExitCode=0:0 NodeList="
    assert word_of(read_scontrol(text), "12").state is None


@pytest.mark.parametrize(
    ("text", "state", "said"),
    [
        ("12|COMPLETED|0:0|n[0-1]|nbtrain-tiny\n", "COMPLETED", SUCCEEDED),
        ("12|CANCELLED by 1000|0:15|n0|nbtrain-tiny\n", "CANCELLED", CANCELLED),
        ("12|OUT_OF_ME+|0:125|n0|nbtrain-tiny\n", "OUT_OF_MEMORY", FAILED),
        ("12|NODE_FAIL|0:0|n0|nbtrain-tiny\n12|RUNNING|0:0|n1|nbtrain-tiny\n", "RUNNING", RUNNING),
        ("12+0|RUNNING|0:0|n0|nbtrain-tiny\n12+1|RUNNING|0:0|n1|nbtrain-tiny\n", "RUNNING", RUNNING),
        (
            "12|NODE_FAIL|0:0|n0|nbtrain-tiny\n12|REQUEUED|0:0|None assigned|nbtrain-tiny\n",
            "REQUEUED",
            QUEUED,
        ),
        (
            "12_1|TIMEOUT|0:0|n0|nbtrain-tiny\n12_[2-3%1]|PENDING|0:0|None assigned|nbtrain-tiny\n",
            "PENDING",
            QUEUED,
        ),
    ],
)
def test_accounting_is_read(text: str, state: str, said: str) -> None:
    """With -D, sacct prints a line for each start of a requeued job, and one for each task of an array."""
    found = read_sacct(text)
    assert found is not None and found.state == state
    assert word_of(found, "12").state == said


def test_an_empty_answer_is_no_job() -> None:
    """If sacct prints nothing or only a warning, the job is unknown."""
    assert read_sacct("") is None
    assert read_sacct("Slurm accounting storage is disabled\n") is None
    assert read_scontrol("slurm_load_jobs error: Invalid job id specified\n") is None
    assert word_of(None, "12").state is None


def test_nodes_of_partitions_are_counted() -> None:
    """Nodes are counted by partition: a + after a number means nodes of different sizes, and GPUs have a
    type, a number and sockets.
    """
    text = (
        "gpu*|n0|64|515000|gpu:a100:8(S:0-1)\ngpu*|n1|64+|515000+|gpu:2,shard:16\ndebug|n0|64|515000|(null)\n"
    )
    places = read_sinfo(text)
    assert [(place.name, place.default, place.node, place.cpus, place.gpus) for place in places] == [
        ("gpu", True, "n0", 64, 8),
        ("gpu", True, "n1", 64, 2),
        ("debug", False, "n0", 64, 0),
    ]
    assert places[0].memory_bytes == 515000 * 2**20


def test_what_slurm_prints_need_not_be_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output that is not UTF-8 is read; commands run in the environment of the caller unless another one is
    given.
    """
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nprintf '12|caf\\351 %s' \"$SLURM_JOB_ID\"\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert engine.call("squeue") == "12|caf\ufffd 7"
    assert engine.call("squeue", environment={}) == "12|caf\ufffd "


def test_a_machine_without_a_slurm_conf_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that has only Slurm's client packages, one sentence reports that slurm.conf is missing."""
    sinfo = tmp_path / "sinfo"
    sinfo.write_text(f"#!/bin/sh\ncat {RECORDS / 'no-configuration-22.05.txt'} >&2\nexit 1\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(EngineAway) as away:
        engine.call("sinfo")
    assert str(away.value) == (
        "sinfo finds no cluster: there is no slurm.conf at $SLURM_CONF or in /etc/slurm"
    )


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ("13\n", ("13", "")),
        ("13;east\n", ("13", "east")),
        ("----\n   Welcome to 2 clusters\n--> Verifying valid submit host (login1)...OK\n13\n", ("13", "")),
        ("Welcome\nSubmitted batch job 13\n", ("13", "")),
        ("Submitted batch job 13 on cluster east\nGood bye\n", ("13", "east")),
        ("sbatch: queued\n", ("", "")),
    ],
)
def test_the_number_is_found_in_what_a_wrapped_sbatch_prints(printed: str, found: tuple[str, str]) -> None:
    """The job's number is found next to the banner of a site's own sbatch, with and without --parsable."""
    assert submitted_number(printed) == found


LOG = """\
slurmstepd-n0: error: *** JOB 12 ON n0 CANCELLED AT 2026-11-29T08:00:56 DUE TO PREEMPTION ***
2026-11-29 08:01:10 UTC state: RUNNING
slurmstepd-n0: error: *** STEP 12.0 ON n0 CANCELLED AT 2026-11-29T08:02:00 ***
"""


OTHER_JOB = "*** JOB 13 ON n0 CANCELLED AT 2026-11-29T08:03:00 DUE TO PREEMPTION ***"


@pytest.mark.parametrize(
    ("added", "since", "why"),
    [
        ("", 0, "PREEMPTION"),
        ("", 10, None),
        ("*** JOB 12 ON n0 CANCELLED AT 2026-11-29T08:03:00 ***", 10, ""),
        ("*** JOB 12 ON n0 CANCELLED AT 2026-11-29T08:03:00 DUE TO TIME LIMIT ***", 10, "TIME LIMIT"),
        ("*** JOB 12 ON n0 CANCELLED AT 2026-11-29T08:03:00 DUE TO JOB REQUEUE ***", 10, "JOB REQUEUE"),
        (OTHER_JOB, 10, None),
    ],
)
def test_slurmstepd_says_why_it_ends_the_batch_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: str, since: int, why: str | None
) -> None:
    """The newest line about this job since the attempt began counts, not one of a step or of another job."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    log = tmp_path / "supervisor.log"
    log.write_text(f"{LOG}{added}\n")
    # 2026-11-29 08:00:56 UTC
    assert cancelled_for(log, "12", 1_795_939_256.0 + since) == why
    assert cancelled_for(tmp_path / "none", "12", 0.0) is None
    assert cancelled_step(log, "12", 1_795_939_256.0 + since) == ("0" if added in ("", OTHER_JOB) else "")


@pytest.fixture
def slurm_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide scontrol and sbatch that TERM ends as often as the file `ends` says; return the folder."""
    text = """#!/bin/sh
echo "$0" >> {folder}/calls
if [ "$(wc -l < {folder}/calls)" -le "$(cat {folder}/ends)" ]; then kill -TERM $$; fi
echo answer
"""
    for name in ("scontrol", "sbatch"):
        (tmp_path / name).write_text(text.format(folder=tmp_path))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def test_a_command_that_only_reads_is_called_again_after_a_signal(slurm_command: Path) -> None:
    """Slurm signals every process of a preempted job, and so also the scontrol that asks about it."""
    (slurm_command / "ends").write_text("2")
    assert engine.call("scontrol", "show", "job", "-o", "12") == "answer\n"
    assert len((slurm_command / "calls").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "calls"), [(("scontrol", "show", "config"), engine.READ_TRIES), (("sbatch", "a"), 1)]
)
def test_a_command_that_a_signal_ends_gave_no_answer(
    slurm_command: Path, arguments: tuple[str, ...], calls: int
) -> None:
    """A command that changes something is called once: a second sbatch would be a second job."""
    (slurm_command / "ends").write_text("9")
    with pytest.raises(EngineUnseen, match=f"{arguments[0]} was ended by SIGTERM"):
        engine.call(*arguments)
    assert len((slurm_command / "calls").read_text().splitlines()) == calls
