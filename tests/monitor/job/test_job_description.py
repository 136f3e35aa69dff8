"""The job page as text, JSON and picture, built only from files."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.errors import JobError
from nbtrain.base.files import write_json, write_text
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load, load_resolved, to_yaml
from nbtrain.monitor.job.job_records import describe_job, restart_policy
from nbtrain.monitor.job.job_tables import basics
from nbtrain.monitor.run.usage_picture import usage_figure
from tests.lab.widgets.fake_run import GIB, FakeJob, measure


def test_each_job_shows_its_own_configuration(tmp_path: Path) -> None:
    """The page of each job shows the configuration that this job had, also if the run was resumed with other
    settings.
    """
    run = RunDir(tmp_path / "gpt-fake")
    for cores in (2, 8):
        job = FakeJob(run, steps=4)
        config = to_yaml(load(load_resolved(run.config_yaml), {"resources.cpus_per_node": cores}))
        write_text(job.job.config_yaml, config)
        write_text(run.config_yaml, config)
        job.tensorboard.close()
    cores_of = [describe_job(run, job_id).requests["cpu_cores"] for job_id in run.job_ids()]
    assert sorted(cores_of) == [2.0, 8.0]
    for job_id in run.job_ids():
        assert describe_job(run, job_id).yaml == run.job(job_id).config_yaml.read_text()


@pytest.fixture
def failed(tmp_path: Path) -> FakeJob:
    """Create a job of two ranks in which rank 1 was killed in attempt 0 and failed again in attempt 1."""
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=40, world_size=2)
    job.one_step()
    ExitRecord(1, 0, time.time(), None, 9, "killed", 7, "killed by SIGKILL").write(job.job.exit_record(1, 0))
    job.supervisor_events.write("restart", "the next one starts in 5 s", reason="killed")
    job.supervisor_events.write("state", "", state="RESTARTING", cause="rank 1 was killed")
    job.job.log(1, 0).write_text("a line\n")
    job.job.log(1, 1).write_text("")
    job.record.attempt = job.record.restarts = 1
    job.supervisor_events.write("state", "", state="RUNNING")
    for rank, code in ((0, 0), (1, 3)):
        outcome, message = ("stopped", "saved") if not code else ("failed", "RuntimeError: boom")
        job.job.log(rank, 1).touch()
        ExitRecord(rank, 1, time.time(), code, None, outcome, 9, message).write(job.job.exit_record(rank, 1))
    job.record.state, job.record.cause, job.record.ended_at = "FAILED", "rank 1 failed", time.time()
    job.supervisor_events.write("state", "FAILED", state="FAILED", cause="rank 1 failed")
    job.record.write(job.job.job_json)
    job.tensorboard.close()
    measure(job)
    return job


TEXT = """\
gpt-fake FAILED: job JOB on backend local
rank 1 failed

submitted            MOMENT UTC
ended                MOMENT UTC
elapsed              0 s
size                 1 replica, 2 ranks, attempt 1, 1 restart
request per replica  none
limit per replica    4 cores, 8.0 GiB of memory
replicas             1 x worker: 1 Error
restart policy       restarts from the newest checkpoint after a failure, at most 3 times
command              python -m nbtrain.train gpt-fake FOLDER

Conditions
  TYPE        STATUS  SINCE (UTC) REASON     MESSAGE
  Submitted   True    MOMENT Submitted  the job was submitted
  Restarting  False   MOMENT Running    rank 1 was killed
  Running     False   MOMENT Failed     the ranks are training
  Failed      True    MOMENT ExitCode3  rank 1 failed

Replicas
  REPLICA   HOST  PHASE                      RESTARTS  CPU           MEMORY              MESSAGE
  worker 0  HOST  Error                   1         2.00 of 4.00  5.0 GiB of 8.0 GiB  rank 1: exit code 3: \
RuntimeError: boom
    rank 0        Stopped (on request, step 9)            1.00          2.5 GiB             saved
    rank 1        Error (step 9)                       1.00          2.5 GiB             exit code 3: \
RuntimeError: boom
                    attempt 0: Error                                                   exit code 137: \
killed by SIGKILL

Resources
  REPLICA   METRIC        LAST        MEAN       PEAK        REQUEST  LIMIT
  worker 0  CPU           2.00        1.10       2.00        -        4.00
  worker 0  memory        5.0 GiB     2.8 GiB    5.0 GiB     6.0 GiB  8.0 GiB
  worker 0  disk read     0 B/s       0 B/s      0 B/s       -        -
  worker 0  disk write    0 B/s       0 B/s      0 B/s       -        -
  worker 0  read calls    0/s         0/s        0/s         -        -
  worker 0  write calls   0/s         0/s        0/s         -        -
  worker 0  network sent  10.0 KiB/s  5.5 KiB/s  10.0 KiB/s  -        -
  worker 0  disk writes   40/s        22/s       40/s        -        -

Events, newest 2 of 5
  TIME (UTC)           TYPE    REASON   OBJECT  MESSAGE
  MOMENT  Normal  Running  job
  MOMENT  Normal  Failed   job     FAILED"""


def test_page_of_a_failed_job_as_text(failed: FakeJob) -> None:
    """The text page of a failed job lists exit codes as Kubernetes does, and resource usage next to the
    limits.
    """
    page = describe_job(failed.run)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "MOMENT", page.as_report(num_events=2).text())
    text = (
        text.replace(page.job_id, "JOB").replace(page.replicas[0].host, "HOST").replace(page.folder, "FOLDER")
    )
    assert squeezed(text) == squeezed(TEXT)


def squeezed(text: str) -> list[str]:
    """Return the lines with repeated spaces removed, because host names differ in length."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_labels_replace_no_word_of_nbtrain(failed: FakeJob) -> None:
    """A user's label does not replace a field of the page that has the same name."""
    failed.record.labels = {"backend": "x", "job": "y"}
    failed.record.write(failed.job.job_json)
    write_json(failed.job.run.run_json, {**(failed.job.run.record() or {}), "parent": "older"})
    page = describe_job(failed.job.run)
    said = page.to_dict()
    assert (said["backend"], said["job_id"], said["parent"]) == ("local", failed.job.job_id, "older")
    assert said["labels"] == {"backend": "x", "job": "y"}
    assert {"cloned from run older", "labels backend=x, job=y"} < {*squeezed(str(page))}


@pytest.mark.parametrize(
    ("changes", "taken", "words"),
    [
        ({}, None, None),
        ({"init_from": "gpt-tiny"}, None, "gpt-tiny"),
        (
            {"init_from": "gpt-tiny", "init_step": "best"},
            {"run": "gpt-tiny", "run_id": "abc", "step": 1200, "family": "gpt3"},
            "step 1,200 of gpt-tiny (run abc, chosen by init_step: best)",
        ),
        (
            {"init_from": "gpt-tiny", "init_step": 7},
            {"run": "gpt-tiny", "run_id": "abc", "step": 7},
            "step 7 of gpt-tiny (run abc)",
        ),
        ({"init_from": "folders/smol"}, {"family": "SmolLM"}, "SmolLM, folders/smol"),
        (
            {"init_from": "folders/smol", "lora": {"init_from": "adapters/mine"}},
            {"family": "SmolLM"},
            "SmolLM, folders/smol, with adapters from adapters/mine",
        ),
    ],
)
def test_a_fine_tuned_run_says_what_it_started_from(failed: FakeJob, changes, taken, words) -> None:
    """A fine-tuned run shows the checkpoint that it started from, not the newest checkpoint of the other
    run.
    """
    config = load(load_resolved(failed.run.config_yaml), changes, check=False)
    write_text(failed.job.config_yaml, to_yaml(config))
    if taken:
        write_json(failed.run.init_from_json, taken)
    page = describe_job(failed.run)
    assert page.started_from == (words or "")
    assert (f"started from {words}" in squeezed(str(page))) == bool(words)
    assert (["started from", words] in basics(page)) == bool(words)


def test_a_job_says_where_its_engine_has_it(tmp_path: Path) -> None:
    """The page shows which cluster object or Slurm job runs the job, and what restarts it."""
    run = RunDir(tmp_path / "gpt-fake")
    job = FakeJob(run, steps=4)
    job.tensorboard.close()
    of_kind = {
        "kubernetes": {"kind": "TrainJob", "namespace": "team-a", "name": "gpt-fake-0a90", "uid": "12-34"},
        "slurm": {"numbers": ["401", "402"], "cluster": "alpha"},
        "hosts": {"hosts": ["node-a", "node-b"]},
    }
    found = {}
    for kind, handle in of_kind.items():
        write_json(job.job.handle_json, handle)
        changes = {"backend.kind": kind, "backend.max_restarts": 0, "backend.slurm.partition": "gpu"}
        config = load(load_resolved(run.config_yaml), changes, check=False)
        write_text(job.job.config_yaml, to_yaml(config))
        page = describe_job(run)
        found[kind] = ", ".join(f"{label} {text}" for label, text in page.place.items())
        assert page.restart_policy.startswith("does not restart: a failure ends the job")
        assert {f"{label} {text}" for label, text in page.place.items()} < {*squeezed(str(page))}
    assert found == {
        "kubernetes": "object TrainJob gpt-fake-0a90, namespace team-a, uid 12-34",
        "slurm": "Slurm job 401, 402, cluster alpha, partition gpu",
        "hosts": "hosts node-a, node-b",
    }


def test_page_as_json_holds_logs_and_thinned_curves(failed: FakeJob) -> None:
    """The JSON page contains the logs and downsampled curves in plain JSON types, and can be read after the
    run has ended.
    """
    found = describe_job(failed.run).to_dict(most_points=5)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["schema_version"], found["phase"], found["state"]) == (1, "Error", "FAILED")
    assert found["yaml"] == failed.run.config_yaml.read_text()
    [replica] = found["replicas"]
    assert replica["ranks"][1]["logs"] == [
        {"path": f"jobs/{failed.job.job_id}/logs/1.0.log", "size_bytes": 7, "attempt": 0},
        {"path": f"jobs/{failed.job.job_id}/logs/1.1.log", "size_bytes": 0, "attempt": 1},
    ]
    assert replica["ranks"][1]["use"]["memory_bytes"]["peak"] == 2.5 * GIB
    [node] = found["resources"]
    memory = node["curves"]["replica"]["memory_bytes"]
    assert memory["unit"] == "bytes"
    assert memory["max"] == [pytest.approx(number * GIB, rel=1e-5) for number in (1, 2, 3, 4, 5)]
    assert memory["mean"][0] == pytest.approx(0.75 * GIB, rel=1e-5)
    assert [round(after - memory["times"][0], 1) for after in memory["times"]] == [0, 4, 8, 12, 16]


def test_replicas_of_several_nodes_have_their_own_ranks(tmp_path: Path) -> None:
    """Each replica shows its host from the node agents' records and its ranks from the launch, also before
    there are metrics.
    """
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=40, world_size=3)
    job.one_step()
    (job.job.path / "nodes").mkdir(exist_ok=True)
    for node, host in enumerate(("alpha", "beta")):
        write_json(
            job.job.path / "nodes" / f"{node}.json", {"node": node, "host": host, "address": f"10.0.0.{node}"}
        )
        (job.job.path / "logs" / f"node{node}.log").write_text("agent\n")
    write_json(job.job.path / "control" / "launch.json", {"ranks": [2, 1]})
    word = {
        "engine": "Slurm job 4711",
        "state": "RUNNING",
        "reason": "",
        "seen": False,
        "trouble": "no route",
    }
    write_json(job.job.path / "engine.json", word)
    measure(job, node=1, ranks=(2,), gpu=True)
    page = describe_job(job.run)
    assert [
        (replica.host, replica.address, [row.rank for row in replica.ranks]) for replica in page.replicas
    ] == [
        ("alpha", "10.0.0.0", [0, 1]),
        ("beta", "10.0.0.1", [2]),
    ]
    assert [replica.phase for replica in page.replicas] == ["Running", "Running"]
    assert page.replicas[0].use == {}
    assert page.replicas[1].ranks[0].use["cpu_cores"].newest == 2.0, "one rank: the replica's figures"
    assert page.replicas[1].gpus["gpu 0"].use["gpu_memory_bytes"].limit == 80 * GIB
    assert page.replicas[1].logs[0].path.endswith("logs/node1.log")
    text = str(page)
    assert "scheduler Slurm job 4711: RUNNING (scheduler not reachable now: no route)" in squeezed(text)
    assert "worker 1  gpu 0, utilization" in text
    assert ">gpu 0, utilization</td>" in page._repr_html_()


def test_a_job_that_waits_shows_its_replicas_and_their_image(tmp_path: Path) -> None:
    """Before any rank has reported, a waiting job lists its replicas with their ranks, phase and image."""
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=40, world_size=4)
    changes: dict[str, Any] = {
        "backend.kind": "kubernetes",
        "backend.kubernetes.image": "registry.example.com/own:1",
    }
    changes |= {"resources.nodes": 2, "resources.image": "registry.example.com/other:1"}
    config = load(load_resolved(job.run.config_yaml), changes, check=False)
    write_text(job.job.config_yaml, to_yaml(config))
    pod = {"node": 1, "created": "1", "pod": "p-1", "host": "n1", "phase": "Running", "restarts": 0}
    write_json(job.job.kubernetes_json, {"replicas": [{**pod, "exit_code": None, "reason": ""}]})
    page = describe_job(job.run)
    assert [[row.rank for row in replica.ranks] for replica in page.replicas] == [[0, 1], [2, 3]]
    assert [replica.phase for replica in page.replicas] == ["Pending", "Running"]
    assert {page.image, *(replica.image for replica in page.replicas)} == {"registry.example.com/own:1"}
    job.tensorboard.close()


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ({"reason": "DeadlineExceeded"}, "DeadlineExceeded"),
        ({"reason": "BackoffLimitExceeded"}, "BackoffLimitExceeded"),
        ({"reason": "PyTorchJobFailed"}, "ExitCode3"),
        ({"reason": "DeadlineExceeded", "status": "False"}, "ExitCode3"),
        ({"reason": "DeadlineExceeded", "type": "Suspended"}, "ExitCode3"),
        ({"reason": "-"}, "ExitCode3"),
    ],
)
def test_the_clusters_reason_of_a_failure_is_kept(failed: FakeJob, condition, reason) -> None:
    """The cluster's reason for a failure is shown unless it only repeats the state."""
    said = {"type": "Failed", "status": "True", "reason": "", "message": "", "last_change": "", **condition}
    write_json(failed.job.kubernetes_json, {"conditions": [said]})
    page = describe_job(failed.run)
    assert (page.conditions[-1].type, page.conditions[-1].reason) == ("Failed", reason)
    assert [row.phase for row in page.replicas[0].ranks] == ["Stopped", "Error"]


def test_slurms_own_word_for_the_end_is_the_reason(failed: FakeJob) -> None:
    """Slurm's final state, such as TIMEOUT, is shown as the reason, and takes precedence over the exit code
    of a killed rank.
    """
    word = {
        "engine": "Slurm job 4",
        "state": "FAILED",
        "reason": "Slurm job 4 ended as TIMEOUT",
        "seen": True,
    }
    for said, reason in (("TIMEOUT", "TIMEOUT"), ("", "ExitCode3")):
        write_json(failed.job.engine_json, {**word, "ended_as": said})
        last = describe_job(failed.run).conditions[-1]
        assert (last.type, last.reason) == ("Failed", reason)


def test_a_rank_is_succeeded_only_when_its_work_is_done(failed: FakeJob) -> None:
    """A rank that was told to stop is shown as Stopped, not Succeeded, and so is its replica."""
    for outcome, phase in (("stopped", "Stopped"), ("rollback", "Stopped"), ("finished", "Succeeded")):
        for rank in (0, 1):
            path = failed.job.exit_record(rank, 1)
            ExitRecord(rank, 1, time.time(), 0, None, outcome, 9, "saved").write(path)
        [replica] = describe_job(failed.run).replicas
        assert {replica.phase, *(row.phase for row in replica.ranks)} == {phase}


def test_an_engines_last_word_of_a_job_that_has_ended(failed: FakeJob) -> None:
    """When a job has ended, the last state that the scheduler reported, possibly RUNNING, is not shown any
    more.
    """
    word = {
        "engine": "Slurm job 4",
        "state": "RUNNING",
        "reason": "Slurm job 4 is RUNNING on n0",
        "seen": True,
    }
    write_json(failed.job.path / "engine.json", word)
    lines = squeezed(str(describe_job(failed.run)))
    assert "scheduler Slurm job 4 is RUNNING on n0 (its last report before the job's end)" in lines
    waits = {**word, "state": "QUEUED", "reason": "Slurm job 4 waits (None): Slurm says no reason"}
    write_json(failed.job.path / "engine.json", waits)
    text = str(describe_job(failed.run))
    assert "scheduler Slurm job 4: no longer queried, because the job has ended" in squeezed(text)
    assert "(None)" not in text


@pytest.mark.slow
def test_picture_has_lines_of_request_and_limit(failed: FakeJob) -> None:
    """The picture has a chart for each measured resource. A limit is drawn as a line, or given in the title
    if it is far above the curve.
    """
    page = describe_job(failed.run)
    figure = usage_figure(page)
    charts = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_visible()}
    assert list(charts) == [
        *("CPU", "Memory", "Network", "Disk", "Disk operations of the node"),
        "Life of the job",
    ]
    memory = charts["Memory"]
    assert memory.get_legend_handles_labels()[1] == ["all ranks", "rank 0", "rank 1", "limit"]
    assert list(memory.get_lines()[-1].get_ydata()) == [8 * GIB, 8 * GIB]
    assert list(memory.get_lines()[0].get_ydata())[-1] == 5 * GIB
    page.limits["memory_bytes"] = 4096 * GIB
    titles = [axes.get_title(loc="left") for axes in usage_figure(page).axes]
    assert "Memory, limit 4.0 TiB" in titles


def test_a_job_that_is_not_there(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "gpt-fake")
    run.path.mkdir()
    with pytest.raises(JobError, match=r"has no job yet\. Run `nbtrain submit gpt-fake` to start one\."):
        describe_job(run)
    job = FakeJob(run, steps=4)
    with pytest.raises(JobError, match=rf"has no job 'x'\. Its jobs: {job.job.job_id}\."):
        describe_job(run, "x")
    assert usage_figure(describe_job(run)).texts[-1].get_text() == "no measurements"
    job.tensorboard.close()


def test_what_deepspeeds_autotuner_found(failed, workspace):
    """For jobs that only run DeepSpeed's autotuner, its result is shown."""
    assert "autotuner  " not in str(describe_job(failed.job.run))
    failed.record.autotune = "tune"
    failed.record.write(failed.job.job_json)
    text = str(describe_job(failed.job.run))
    assert "\nDeepSpeed's autotuner  no trial finished; see stderr.log and stdout.log of each" in text


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ({"kind": "hosts", "max_restarts": 1}, "at most 1 time"),
        ({"kind": "slurm"}, "; Slurm: requeued when a node fails"),
        ({"kind": "slurm", "slurm.requeue": False, "slurm.resubmissions": 2}, "; Slurm: 2 resubmissions"),
        ({"kind": "kubernetes", "kubernetes.workload": "MPIJob"}, "; pods: Never"),
        ({"kind": "kubernetes", "kubernetes.workload": "PyTorchJob"}, "; pods: ExitCode"),
        ({"kind": "kubernetes"}, "; pods: as set by the runtime torch-distributed"),
    ],
)
def test_who_restarts_what(backend: dict[str, Any], words: str) -> None:
    """The page says who restarts the job on each backend, and how often, including the defaults of a
    Kubernetes manifest.
    """
    changes = {f"backend.{key}": value for key, value in backend.items()}
    assert restart_policy(load("gpt-tiny", changes, check=False)).endswith(words)


@pytest.mark.parametrize("state", ["RUNNING", "SUCCEEDED"])
def test_the_last_condition_is_as_old_as_the_end(tmp_path: Path, state: str) -> None:
    """The last condition of an ended job changed when the job ended; the last condition of a running job has
    the current time.
    """
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=4)
    job.supervisor_events.path.unlink()
    job.record.state, job.record.ended_at = state, None if state == "RUNNING" else 1234.5
    job.record.write(job.job.job_json)
    job.tensorboard.close()
    now = time.time() + 5
    page = describe_job(job.run, now=now)
    assert page.conditions[-1].last_change == (now if state == "RUNNING" else 1234.5)


@pytest.mark.parametrize(
    ("logs", "beats", "attempt"), [((), None, 0), ((0, 2), None, 2), ((0,), 1, 1), ((0, 3), 1, 3)]
)
def test_a_rank_is_shown_in_its_newest_attempt(
    tmp_path: Path, logs: tuple[int, ...], beats: int | None, attempt: int
) -> None:
    """Each rank is shown in its newest attempt, which is found by its heartbeat or its first log."""
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=4)
    job.one_step()
    path = job.job.heartbeat(0)
    if beats is None:
        path.unlink()
    else:
        replace(Heartbeat.read(path), attempt=beats).write(path)
    for number in logs:
        job.job.log(0, number).write_text("a line")
    job.tensorboard.close()
    [rank] = describe_job(job.run).replicas[0].ranks
    assert rank.attempt == attempt
