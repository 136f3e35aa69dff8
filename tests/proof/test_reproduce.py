"""Windows of a tiny run's steps, trained again in another workspace and compared bit for bit."""

import hashlib
import json
import math
import shutil

import pytest

from nbtrain.base import files
from nbtrain.base.code_hashes import joint_sha256
from nbtrain.base.errors import CheckpointError, ConfigError, DataError, SubmitError
from nbtrain.base.run_directory.metrics import scalar
from nbtrain.base.run_directory.records import JobRecord, Provenance
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import resolve
from nbtrain.cli.reproduce import window_of
from nbtrain.config.load import load, load_resolved, to_yaml
from nbtrain.config.load.attempt import attempt_record
from nbtrain.config.load.effect import settings_with_effect
from nbtrain.config.load.elastic import fitted
from nbtrain.jobs.request.initial_weights import read_initial_weights, record_initial
from nbtrain.monitor.run.certificate import (
    CertifiedPart,
    certificate_problems,
    make_certificate,
    write_certificate,
)
from nbtrain.proof.folder import end_job, new_job
from nbtrain.proof.reproduce import PICTURE, REPRODUCTION_JSON, _config, reproduce
from tests.jobs.conftest import TINY

pytestmark = pytest.mark.slow

STEPS = 12
SETTINGS = {"name": "original", "batch.train_tokens": STEPS * 8 * 16, "checkpoint.keep_last": 2}


def forked(server):
    """Return a function that trains a run from its checkpoint on a forked rank, and returns its job."""

    def train(config, start=0):
        run = RunDir.named(config.name)
        job = new_job(run, config, "original", server.pid)
        ended = server.run(
            config.world_size,
            "nbtrain.train.__main__:main",
            [str(run.path)],
            log=job.path / "logs" / "{rank}.0.log",
            environment={"NBTRAIN_JOB": job.job_id},
        )
        assert ended.succeeded, ended.last_words(40)
        end_job(job, None)
        return job

    return train


@pytest.fixture(scope="module")
def original(fork_server, tiny_data, tmp_path_factory):
    """Train the run in a separate workspace: 12 steps with checkpoints of 8 and 12 left of 4, 8 and 12."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("WORKSPACE", folder), ("OUTPUT", folder / "output"), ("DATA", tiny_data)):
            patch.setenv(f"NBTRAIN_{name}", str(value))
        (folder / "tiny.yaml").write_text(TINY)
        forked(fork_server)(load(folder / "tiny.yaml", SETTINGS))
        run = RunDir.named("original")
        write_certificate(run)
    return run


@pytest.fixture
def copied(original, workspace, tiny_data, monkeypatch):
    """Copy the run into a second workspace with the same data; compare tensors in this process."""
    from nbtrain.checkpoint.weights import differences

    monkeypatch.setenv("NBTRAIN_DATA", str(tiny_data))
    monkeypatch.setattr("nbtrain.proof.reproduce.stream", lambda _, request: differences.answers(request))
    shutil.copytree(original.path, workspace / "copies" / "original")
    return RunDir(workspace / "copies" / "original")


def contents(run):
    """Return {file: its hash} of a run directory."""
    return {
        str(path.relative_to(run.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.path.rglob("*"))
        if path.is_file()
    }


def test_a_window_is_bit_exact_in_a_second_workspace(original, copied, fork_server, monkeypatch):
    """The steps after 8 are trained again from the checkpoint, on data that is prepared there. Nothing is
    written into the run.
    """
    monkeypatch.delenv("NBTRAIN_DATA")
    before = contents(copied)
    made = reproduce(copied, (9, STEPS), train=forked(fork_server))
    assert (made.verdict, made.started_from_step, made.compared_steps) == ("bit-exact", 8, 4)
    assert made.differences == [] and made.notes == [] and made.passed
    assert (made.tensors_step, made.different_tensors) == (STEPS, []) and made.compared_tensors > 30
    assert made.resume.startswith("resume from step 8 is bit-exact")
    assert made.curves["loss"] == made.curves["loss_before"] and made.curves["step"] == [9, 10, 11, 12]
    assert contents(copied) == before and certificate_problems(copied) == []
    target = RunDir.named("original-reproduced")
    written = json.loads((target.path / REPRODUCTION_JSON).read_text())
    assert written["headline"] == "steps 9 to 12, trained again, are bit-exact"
    assert b"</svg>" in (target.path / PICTURE).read_bytes()
    assert [path.name for path in target.path.rglob("*.tmp")] == []
    # The chains agree where both have a checkpoint, files included.
    ours, theirs = make_certificate(original).checkpoint(12), make_certificate(target).checkpoint(12)
    assert ours.next_batch_sha256 == theirs.next_batch_sha256


def test_a_changed_seed_is_named_with_the_first_step_and_the_tensors(copied, fork_server):
    """From the beginning with another seed, the first step already differs, and so do tensors at the next
    checkpoint that both have.
    """
    made = reproduce(copied, (0, 8), ["model.seed=7"], train=forked(fork_server))
    assert (made.verdict, made.first_different_step, made.passed) == ("differs", 1, False)
    assert list(map(str, made.differences)) == ["model.seed: 1234 -> 7"]
    assert made.tensors_step == 8 and made.different_tensors[0]["different"] > 0
    text = str(made)
    for part in ("model.seed: 1234 -> 7", "differ first at step 1", "elements differ, by"):
        assert part in text


def test_a_changed_library_and_file_are_named_although_the_bits_are_equal(copied, fork_server):
    """Another version, another file of nbtrain and an edited config.yaml are named next to the verdict."""
    path = next(copied.jobs.glob("*/provenance/0.json"))
    record = Provenance.read(path)
    hashes = files.read_json(copied.code(record.code_sha256))
    hashes["train/trainer.py"] = "0" * 64
    record.versions["torch"], record.code_sha256 = "2.12.0", joint_sha256(hashes)
    record.write(path)
    files.write_json(copied.code(record.code_sha256), hashes)
    text = copied.config_yaml.read_text()
    assert "lr: 0.001\n" in text
    copied.config_yaml.write_text(text.replace("lr: 0.001\n", "lr: 0.002\n"))
    made = reproduce(copied, train=forked(fork_server))
    assert (made.verdict, made.first_step, made.last_step) == ("bit-exact", 8, STEPS)
    named = "\n".join(map(str, made.differences))
    assert "version of torch: 2.12.0 -> " in named and "nbtrain file train/trainer.py: 000000000000" in named
    assert "lr_schedule.lr = 0.002, but these steps were trained with 0.001" in made.notes[0]
    assert "certificate.json: nbtrain file train/trainer.py" in made.notes[1]


def test_another_kind_of_processor_is_reported_and_not_failed(copied, fork_server):
    """If only the processor differs, another last bit is reported; with another seed it is a failure."""
    path = next(copied.jobs.glob("*/provenance/0.json"))
    record = Provenance.read(path)
    record.device["model"] = "another processor"
    record.write(path)
    tag, metrics = scalar("loss").tag, copied.tensorboard / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    [line] = [line for line in lines if line.get("step") == 10 and tag in line]
    line[tag] = math.nextafter(line[tag], 0)
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = reproduce(copied, (8, 11), train=forked(fork_server))
    assert (made.verdict, made.passed, made.first_different_step) == ("other hardware", True, 10)
    assert made.tensors_step is None and 0 < made.largest_loss_difference < 1e-14
    [difference] = made.differences
    assert str(difference).startswith("device model: another processor -> ")
    seeded = reproduce(copied, (8, 11), ["model.seed=7"], train=forked(fork_server))
    assert seeded.verdict == "differs"


def test_the_beginning_of_a_run_starts_from_the_weights_that_it_recorded(
    original, copied, workspace, fork_server
):
    """The other run may have trained on since then: its newest checkpoint is another one. A recorded one that
    was changed is refused before anything is trained.
    """
    base, child = RunDir.named("base"), RunDir.named("child")
    shutil.copytree(original.path, base.path)
    newer = base.checkpoint(12).rename(workspace / "newer")
    (workspace / "tiny.yaml").write_text(TINY)
    config = load(
        workspace / "tiny.yaml", {"name": "child", "init_from": "base", "batch.train_tokens": 4 * 8 * 16}
    )
    child.path.mkdir()
    record_initial(child, config, read_initial_weights(config))
    forked(fork_server)(config)
    newer.rename(base.checkpoint(12))
    made = reproduce(child, (0, 4), train=forked(fork_server))
    assert (made.verdict, made.tensors_step, made.different_tensors) == ("bit-exact", 4, [])
    assert made.differences == [] and made.notes == []
    assert load_resolved(RunDir.named("child-reproduced").config_yaml).init_step == 8
    # An override still names another checkpoint.
    other = reproduce(child, (0, 4), ["init_step=12"], train=forked(fork_server))
    assert other.verdict == "differs"
    named = {difference.name for difference in other.differences}
    assert named == {"init_step", "initial_weights_sha256"}
    path = base.checkpoint_manifest(8)
    manifest = files.read_json(path)
    next(iter(manifest["files"].values()))["sha256"] = "0" * 64
    files.write_json(path, manifest)
    shutil.rmtree(RunDir.named("child-reproduced").path)
    with pytest.raises(CheckpointError, match="global_step8 has changed since the run was submitted"):
        reproduce(child, (0, 4), train=forked(fork_server))
    shutil.rmtree(base.checkpoint(8))
    with pytest.raises(CheckpointError, match=r"init_from: .*global_step8: .* steps: 12"):
        reproduce(child, (0, 4), train=forked(fork_server))
    assert not RunDir.named("child-reproduced").path.exists()


@pytest.mark.parametrize("steps", [(0, 13), (5, 5), (7, 3), (-1, 3)])
def test_a_window_that_the_run_does_not_have(copied, steps):
    """The message has the rule and the last step that was trained."""
    with pytest.raises(ConfigError, match=r"0 <= A < B <= 12"):
        reproduce(copied, steps)


def test_windows_on_the_command_line():
    """A:B is two whole numbers."""
    assert window_of("10:20") == (10, 20) and window_of(None) is None
    for text in ("10", "a:b", "1:2:3", "-1:3", "10:"):
        with pytest.raises(ConfigError, match="must be A:B"):
            window_of(text)


def test_a_checkpoint_that_was_changed_is_refused(copied):
    """The manifest's hashes must agree with the chain, and nothing is written before that."""
    path = copied.checkpoint_manifest(8)
    manifest = files.read_json(path)
    next(iter(manifest["files"].values()))["sha256"] = "0" * 64
    files.write_json(path, manifest)
    with pytest.raises(CheckpointError, match=r"global_step8: manifest\.json was changed"):
        reproduce(copied, (8, 12))
    assert not RunDir.named("original-reproduced").path.exists()


def test_other_data_is_refused_by_name(copied):
    """A dataset with other contents is named by its files and sources, and is not prepared again."""
    path = next(copied.jobs.glob("*/provenance/0.json"))
    record = Provenance.read(path)
    names = [name for name in record.data_files if name.endswith(".bin")]
    record.data["dataset_sha256"], record.data_files[names[0]] = "0" * 64, "1" * 64
    record.write(path)
    with pytest.raises(DataError, match=rf"is not the one .*\n  data: {names[0]}: 111111111111 -> "):
        reproduce(copied, (8, 12))
    assert not RunDir.named("original-reproduced").path.exists()


def test_a_window_whose_beginning_has_no_record(copied):
    """Without the provenance of the first steps, they are not trained with the settings of later ones."""
    path = next(copied.jobs.glob("*/provenance/0.json"))
    record = Provenance.read(path)
    record.first_step = 4
    record.write(path)
    with pytest.raises(ConfigError, match=r"steps 2:8 would be trained from step 0.* up to step 4 were"):
        reproduce(copied, (2, 8))


def test_the_copy_of_the_code_file_is_used(copied, workspace):
    """The file of `code` may be gone or changed: the run's copy trains the steps again, and a change is
    noted.
    """
    path = next(copied.jobs.glob("*/provenance/0.json"))
    record = Provenance.read(path)
    record.settings["code"] = "mine.py"
    record.write(path)
    text = copied.config_yaml.read_text()
    assert "code: null\n" in text
    copied.config_yaml.write_text(text.replace("code: null\n", "code: mine.py\n"))
    copy = copied.own_code / "mine.py"
    copy.parent.mkdir()
    copy.write_text("def on_step(step, model):\n    pass\n")
    part = make_certificate(copied).parts[0]
    config, notes = _config(copied, part, STEPS, "other", None, [])
    assert config.code == "copies/original/own_code/mine.py" and notes == []
    for name in ("mine.py", "changed.py"):
        (workspace / name).write_text("def on_step(step, model):\n    model.eval()\n")
    config, notes = _config(copied, part, STEPS, "other", None, [])
    assert resolve(config.code) == copy and "mine.py has changed since the run was submitted" in notes[0]
    config, notes = _config(copied, part, STEPS, "other", ["code=changed.py"], [])
    assert "changed.py" in config.code and notes == []


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    "devices, layout",
    [([4, 0], (4, 1, 4)), ([2, 2], (4, 2, 2)), ([3, 0], (2, 1, 2))],
)
def test_steps_of_fewer_gpus_are_trained_again_on_as_many(workspace, devices, layout, recorded):
    """backend.elastic trained them with fewer replicas than config.yaml has; a record of an older version
    does not name the machines, and then as few as possible are used.
    """
    gpus = {
        "name": "shrunk",
        "precision.dtype": "bf16",
        "parallel": {"data_parallel_size": 8, "zero_stage": 1},
        "batch": {"micro_batch_size": 1},
        "resources": {"device": "gpu", "nodes": 2, "gpus_per_node": 4},
        "backend": {"kind": "hosts", "hosts": {"hosts": ["a", "b"]}, "elastic": True},
        "backend.env": {"NBTRAIN_FAULTS": "[]", "MKL_CBWR": "AVX2"},
        "labels": {"sweep": "lr"},
        "notify.command": ["say"],
    }
    (workspace / "tiny.yaml").write_text(TINY)
    whole, run = load(workspace / "tiny.yaml", gpus), RunDir(workspace / "copies" / "shrunk")
    run.path.mkdir(parents=True)
    files.write_text(run.config_yaml, to_yaml(whole))
    smaller = fitted(whole, devices)
    attempt = attempt_record(smaller, 0)
    job = run.job("20260101-000000-a1b2")
    job.path.mkdir(parents=True)
    assert attempt.nodes == layout[1]
    if not recorded:
        attempt.nodes = None
        layout = (layout[0], -(-layout[0] // 4), min(layout[0], 4))
    JobRecord(job.job_id, "1" * 32, run.name, "FAILED", 0.0, 8, attempts=[attempt]).write(job.job_json)
    settings, data = settings_with_effect(smaller), {"dataset_sha256": "0" * 64}
    made = Provenance(job.job_id, 0, 4, settings, "0" * 64, {}, {"kind": "gpu", "name": "H200"}, {}, data, {})
    config, notes = _config(run, CertifiedPart(4, 8, made), 8, "again", None, [])
    resources = config.resources
    assert (config.world_size, resources.nodes, resources.gpus_per_node) == layout
    assert config.batch.global_batch_size == 8 and len(notes) == 1
    # Neither the labels of the run's sweep nor a fault that was injected into it belong to this one.
    assert (config.labels, config.notify.command, dict(config.backend.env)) == ({}, [], {"MKL_CBWR": "AVX2"})
    assert "now has parallel.data_parallel_size = 8, but these steps were trained with" in notes[0]
    # Overrides come last.
    local = {"backend.kind": "local", "resources.nodes": 1, "resources.gpus_per_node": layout[0]}
    config, _ = _config(run, CertifiedPart(4, 8, made), 8, "again", local, [])
    assert config.resources.gpus_per_node == layout[0]


def test_a_reproduction_does_not_replace_itself(copied, workspace):
    """The shortened name of the reproduction may be the name of the run that is read."""
    target = workspace / "output" / ("a" * 42 + "-reproduced")
    shutil.copytree(copied.path, target)
    with pytest.raises(ConfigError, match="is itself a reproduction and would be replaced"):
        reproduce(RunDir(target), (8, 12))


def test_settings_that_changed_within_the_window(copied, original):
    """A window across a resume with other settings is refused, with the step and both sides."""
    job = copied.newest_job()
    record, provenance = files.read_json(job.job_json), Provenance.read(job.provenance(0))
    record["attempts"].append({**record["attempts"][0], "attempt": 1})
    files.write_json(job.job_json, record)
    provenance.attempt, provenance.first_step = 1, 8
    provenance.settings["lr_schedule.lr"] = 5e-4
    provenance.write(job.provenance(1))
    with pytest.raises(ConfigError, match=r"step 8 with lr_schedule.lr: 0.001 -> 0.0005.*--steps 0:8, or"):
        reproduce(copied, (4, 12))


def test_a_run_of_the_same_name_is_never_removed(copied):
    """The folder of a reproduction is replaced, but never the folder of an ordinary run."""
    target = RunDir.named("original-reproduced")
    target.path.mkdir(parents=True)
    files.write_json(target.run_json, {"schema_version": 1, "run_id": "a", "name": target.name})
    with pytest.raises(SubmitError, match="is not a reproduction but an ordinary run"):
        reproduce(copied, (8, 12))
