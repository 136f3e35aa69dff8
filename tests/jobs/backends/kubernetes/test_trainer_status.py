"""The trainerStatus of a TrainJob: its contents, within the limits of the CRD, and how it is posted."""

import math
import time
from dataclasses import replace

import pytest

from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import Heartbeat, JobRecord, ProcessIdentity, TrainingProgress
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.jobs.backends.kubernetes.trainer_status import TrainerStatus, trainer_status
from nbtrain.jobs.supervisor.journal import Journal
from nbtrain.jobs.supervisor.progress_report import ProgressReport
from tests.jobs.backends.kubernetes.conftest import CA_CERT, JOB_ID, RUN_ID, TOKEN, URL
from tests.jobs.backends.kubernetes.strict_schemas import errors

PROGRESS = TrainingProgress(
    total_steps=1000, train_tokens=4000, consumed_tokens=1999, loss=2.5, eta_seconds=90.4, checkpoint_step=400
)


def test_the_body_is_what_the_kind_takes(work_with):
    """The body contains the progress in whole percent, seconds, and metrics as text; unknown values are
    omitted.
    """
    status = trainer_status(PROGRESS, 500, now=0)
    assert status == {
        "progressPercentage": 49,
        "estimatedRemainingSeconds": 90,
        "lastUpdatedTime": "1970-01-01T00:00:00Z",
        "metrics": [
            {"name": "step", "value": "500"},
            {"name": "total_steps", "value": "1000"},
            {"name": "loss", "value": "2.5"},
            {"name": "consumed_tokens", "value": "1999"},
            {"name": "checkpoint_step", "value": "400"},
        ],
    }
    # A trial (batch.max_steps) reaches 100 % too.
    assert trainer_status(replace(PROGRESS, target_tokens=2000), 500)["progressPercentage"] == 99
    unknown = trainer_status(TrainingProgress(10, 0, eta_seconds=math.inf, loss=math.nan), 0)
    from nbtrain.jobs.backends.kubernetes.manifests.kinds import write

    for body in (status, unknown):
        assert errors("TrainJob", {**write(work_with("TrainJob")), "status": {"trainerStatus": body}}) == []


def test_no_place_to_report_to():
    """Without the operator's environment variables, or over plain HTTP, nothing is posted."""
    assert TrainerStatus.of({}) is None
    assert TrainerStatus.of({URL: "http://status", TOKEN: "/token", CA_CERT: "/ca"}) is None


def test_a_report_is_posted_with_the_token(operator):
    """A status with the token is posted every half minute; redirects are not followed, because they would
    disclose the token.
    """
    environment, posted, answers = operator
    status = TrainerStatus.of(environment)
    earlier = {name.replace("_SERVER_", "_STATUS_"): value for name, value in environment.items()}
    assert TrainerStatus.of(earlier)._url == status._url, "of builds before the release"
    assert status.due() and status.report(PROGRESS, 500) and not status.due()
    assert posted[0][0] == "Bearer secret" and posted[0][1]["trainerStatus"]["progressPercentage"] == 49
    answers += [500, 302]
    assert [status.report(PROGRESS, 502) for _ in range(2)] == [False, False]
    assert status.trouble == f"{environment[URL]}: HTTP Error 302: Found"
    assert status.report(PROGRESS, 502) and status.trouble == ""


@pytest.fixture
def journal(workspace):
    """Return the journal of a job that has a supervisor."""
    job = JobDir(RunDir.named("tiny"), JOB_ID)
    job.make_folders()
    JobRecord(JOB_ID, RUN_ID, "tiny", "RUNNING", time.time(), 1).write(job.job_json)
    return Journal(job)


def test_the_supervisor_reports_now_and_then_and_at_the_end(operator, journal):
    """The supervisor posts the status at intervals and at the end; repeated failures are reported as a single
    event.
    """
    environment, posted, answers = operator
    answers += [500, 500]
    report = ProgressReport(journal, environment)
    beats = [Heartbeat(0, 0, ProcessIdentity(1, 1, "b", "h"), 0, n, "train", 0, PROGRESS) for n in range(9)]
    report.poll(None)
    report.poll(beats[0])
    first = report._thread
    for beat in beats[1:-1]:
        report.poll(beat)
    first.join()
    report._status._next = 0.0
    report.poll(beats[1])
    report.close(beats[-1])
    steps = [body["trainerStatus"]["metrics"][0]["value"] for _, body in posted]
    assert steps == ["0", "1", "8"], "it posts the first step, the next that is due, and the last"
    assert [event["message"] for event in read_events(journal.job)] == [
        f"progress is not reported to the scheduler: {environment[URL]}: HTTP Error 500: Internal "
        "Server Error"
    ]


def test_a_place_that_cannot_be_used_is_said_once(journal):
    """An unusable address is reported once; if the variables are not set, nothing is reported."""
    ProgressReport(journal, {}).poll(None)
    assert read_events(journal.job) == []
    ProgressReport(journal, {URL: "http://status", TOKEN: "/token", CA_CERT: "/ca"}).close(None)
    why = f"{URL} is not an https address, or one of {TOKEN} and {CA_CERT} is not set"
    assert [event["message"] for event in read_events(journal.job)] == [
        f"progress is not reported to the scheduler: {why}"
    ]
