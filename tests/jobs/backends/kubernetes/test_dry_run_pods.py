"""The pods of a manifest that a dry run wrote: node 0 writes the run directory, and the other nodes wait for
it.
"""

import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

from nbtrain.base.errors import ConfigError, JobError, SubmitError
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load, load_resolved, one_line
from nbtrain.jobs.backends.kubernetes.handle import KubernetesHandle
from nbtrain.jobs.control import control
from nbtrain.jobs.node.agent import Leaving
from nbtrain.jobs.node.prepared import prepared
from nbtrain.jobs.submission.dry_run import dry_run
from nbtrain.jobs.submission.submit import AGAIN
from tests.jobs.backends.kubernetes.conftest import PLAIN
from tests.jobs.conftest import FAKE_RANK
from tests.waiting import wait_until

# The agent with the fake rank as its runs' trainer.
AGENT = (
    "import sys; from nbtrain.jobs.submission import submit; submit.TRAINER = (sys.argv.pop(1),); "
    "from nbtrain.jobs.node.__main__ import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture
def volume(tmp_path, tiny_data, monkeypatch):
    """Create the volume that the pods mount; it contains the data of the tiny run and no output directory."""
    path = tmp_path / "volume"
    path.mkdir()
    (path / "data").symlink_to(tiny_data)
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(path))
    monkeypatch.delenv("NBTRAIN_DATA")
    return path


@pytest.fixture
def manifest(fake, volume, tmp_path):
    """Return a function that makes a dry run and returns the manifest: manifest({"resources.nodes": 2})."""

    def write(overrides=None):
        section = {**PLAIN, "mounts": [{"claim": "w", "mount_path": str(volume)}]}
        where = {"kind": "kubernetes", "kubernetes": {**section, "workspace_path": str(volume)}}
        config = load(fake(steps=20, backend=where, mark="$(HOME) 5%h"), overrides)
        return yaml.safe_load(dry_run(config, tmp_path / "job.yaml").read_text())

    return write


@pytest.fixture
def pod(tmp_path):
    """Return a function that starts the process of node 0's pod with the environment and command of the
    manifest: pod(manifest).
    """
    started = []

    def start(manifest):
        environment = {**os.environ, **variables_of(manifest), "JOB_COMPLETION_INDEX": "0"}
        program, *words = manifest["spec"]["trainer"]["command"]
        assert (program, words[:2]) == ("python3", ["-m", "nbtrain.jobs.node"])
        command = [sys.executable, "-c", AGENT, FAKE_RANK, *words[2:]]
        with (tmp_path / "said").open("w") as said:
            options = {"stdout": subprocess.DEVNULL, "stderr": said, "start_new_session": True}
            started.append(subprocess.Popen(command, env=environment, **options))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def prepare(monkeypatch):
    """Return a function that runs the first step of a pod's agent in this process: prepare(manifest,
    node=0).
    """

    def run(manifest, node=0, leaving=None):
        for name, value in variables_of(manifest).items():
            monkeypatch.setenv(name, value)
        return prepared(job_of(manifest), node, leaving or Leaving())

    return run


def variables_of(manifest):
    return {variable["name"]: variable["value"] for variable in manifest["spec"]["trainer"]["env"]}


def job_of(manifest):
    run_dir, job_id = manifest["spec"]["trainer"]["command"][3:5]
    return RunDir(run_dir).job(job_id)


@pytest.mark.slow
def test_kubectl_alone_takes_a_run_to_its_end(manifest, pod, prepare, volume):
    """A run that was started only with kubectl has the same records as a submitted one; the next job checks
    its settings again.
    """
    written = manifest()
    assert not (volume / "output").exists()
    # Characters that Kubernetes, pdsh and DeepSpeed's environment file would interpret.
    assert not any(mark in value for value in variables_of(written).values() for mark in "$%\n")
    job = job_of(written)
    first = pod(written)
    wait_until(lambda: job.job_json.exists() or first.poll() is not None, "node 0 writes the job")
    assert control.wait(job, 600)[0] == "SUCCEEDED"
    assert first.wait(600) == 0
    assert job.run.record()["run_id"] == written["metadata"]["labels"]["nbtrain/run-id"]
    assert JobRecord.read(job.job_json).command == [FAKE_RANK]
    name = written["metadata"]["name"]
    assert KubernetesHandle.read(job.handle_json) == KubernetesHandle("TrainJob", "research", name, "")
    config = load_resolved(job.run.config_yaml)
    assert config.backend.env["FAKE_MARK"] == "$(HOME) 5%h"
    assert read_events(job)[0]["message"] == "submitted; trains from the beginning"
    assert prepare(written), "a later pod of the same object"

    with pytest.raises(SubmitError, match=r"^output/tiny: this run has succeeded \(20 steps\)\. "):
        prepare(manifest({"checkpoint.keep_last": 3}))
    with pytest.raises(
        SubmitError, match=r"^output/tiny contains a run that was trained with other settings"
    ):
        prepare(manifest({"batch.train_tokens": 5120, "model.seed": 7, "mode": "eval"}))
    longer = manifest({"batch.train_tokens": 5120})
    with pytest.raises(SubmitError, match=r"this run has succeeded"):
        prepare(longer)
    assert job.run.job_ids() == [job.job_id], "a refused manifest leaves nothing"


@pytest.mark.slow
def test_a_run_that_has_trained_is_resumed_and_another_job_in_the_way_is_named(manifest, prepare):
    """A second manifest of the run is rejected while the job of the first is active; afterwards it resumes
    the run.
    """
    older, written, newer = manifest(), manifest(), manifest()
    ids = sorted([older, written, newer], key=lambda manifest: job_of(manifest).job_id)
    older, written, newer = ids
    assert prepare(written)
    job = job_of(written)
    with pytest.raises(SubmitError) as refused:
        prepare(newer)
    assert str(refused.value) == (
        f"output/tiny: its job {job.job_id} is QUEUED, and a run can have only one job at a time. Wait until "
        f"that job ends, or run `nbtrain cancel tiny`; then {AGAIN}."
    )
    record = JobRecord.read(job.job_json)
    record.state = "FAILED"
    record.write(job.job_json)
    with pytest.raises(SubmitError) as refused:
        prepare(older)
    assert str(refused.value) == (
        f"output/tiny: the submitted file starts job {job_of(older).job_id}, but the run has a newer job, "
        f"{job.job_id}, and only the newest job may train. To continue the run, {AGAIN}."
    )
    assert not job_of(older).path.exists()
    checkpoint = job.run.checkpoint(15)
    checkpoint.mkdir()
    (checkpoint / "manifest.json").write_text('{"schema_version": 2, "files": {}}')
    assert prepare(newer)
    assert read_events(job_of(newer))[0]["message"] == "submitted; trains from the checkpoint of step 15"
    run_id = job.run.record()["run_id"]
    assert run_id == written["metadata"]["labels"]["nbtrain/run-id"]
    assert JobRecord.read(job_of(newer).job_json).run_id == run_id


@pytest.mark.slow
def test_the_other_nodes_wait_for_node_0(manifest, prepare, monkeypatch):
    """The other nodes wait for node 0 for at most node_timeout_seconds, or until they are asked to exit."""
    written = manifest({"resources.nodes": 2, "parallel.data_parallel_size": 2})
    job = job_of(written)
    assert prepare(written, 1, Leaving(signal=15)) is False
    clock = itertools.count(0.0, 50.0)
    now = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None)
    monkeypatch.setattr("nbtrain.jobs.node.prepared.time", now)
    with pytest.raises(JobError) as late:
        prepare(written, 1)
    assert str(late.value) == (
        f"{job.job_json}, which node 0 writes, does not exist after 120 s (backend.node_timeout_seconds). "
        "See the log of node 0's pod for the reason; if node 0 has written the file, put the output folder "
        "on a volume that all pods mount."
    )
    assert prepare(written, 0) and prepare(written, 1)


@pytest.mark.slow
def test_without_data_on_the_volume_the_pod_says_so_and_writes_nothing(manifest, pod, volume, tmp_path):
    """If the volume has no data, the pod prints submit's message, exits with code 1, and writes nothing."""
    written = manifest()
    (volume / "data").unlink()
    assert pod(written).wait(600) == 1
    said = (tmp_path / "said").read_text()
    missing = "Run `nbtrain prepare RUN.yaml` to make what is missing."
    assert said == (
        "nbtrain agent: tiny cannot start here:\n"
        f"  data/tokenizer/mock/manifest.json: no such file: the tokenizer is not ready. {missing}\n"
        f"  data/dataset/mock/text_document.bin: no such file. {missing}\n"
        f"The pods read data from {volume}/data: prepare it on a machine that mounts this folder. Nothing "
        "was started and nothing written.\n"
    )
    assert not (volume / "output").exists()


def test_a_run_that_no_manifest_may_hold_is_refused(manifest, monkeypatch):
    """A run whose configuration has a password in an address, or a text too long for an environment variable,
    is rejected.
    """
    with pytest.raises(ConfigError) as refused:
        manifest({"backend.env": {"HTTPS_PROXY": "http://me:pass@proxy:3128"}})
    assert str(refused.value) == (
        "override backend.env: backend.env has a URL with a user name, password or query, which may be "
        "a secret. The files of a dry run would show the secret. Remove that part of the URL, or submit the "
        "run without a dry run."
    )
    with pytest.raises(SubmitError) as refused:
        manifest({"backend.kubernetes": {"workload": "DeepSpeedJob", "autotune": "tune"}})
    assert str(refused.value) == (
        "override backend.kubernetes.autotune=tune: backend.kubernetes.autotune = tune needs a script that "
        "`nbtrain submit` writes into the job's folder, so kubectl alone cannot start this run. Submit the "
        "run with `nbtrain submit`, or set backend.kubernetes.autotune=none."
    )
    monkeypatch.setattr(one_line, "MOST_CHARS", 100)
    with pytest.raises(
        ConfigError, match=r"^tiny: the resolved run has [0-9,]+ characters, but an environment "
    ):
        manifest()
