"""Certificates of runs whose files are written here: the chain, numbers to the last bit, and what differs."""

import copy
import json
import math
import time
from dataclasses import replace

import pytest

from nbtrain.base import files
from nbtrain.base.code_hashes import joint_sha256
from nbtrain.base.errors import JobError, RecordError
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.metrics import scalar
from nbtrain.base.run_directory.metrics_files import MetricsFile
from nbtrain.base.run_directory.records import AttemptRecord, JobRecord, Provenance
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.run.certificate import (
    certificate_problems,
    differences,
    make_certificate,
    read_certificate,
    write_certificate,
)

CODE = {"train/trainer.py": "aa", "cli/help.py": "bb"}
MADE = {
    "settings": {"model.seed": 1234, "lr_schedule.lr": 1e-3},
    "code_sha256": joint_sha256(CODE),
    "versions": {"torch": "2.13.0", "numpy": "2.4.6"},
    "device": {
        "kind": "cpu",
        "name": "AVX2",
        "threads": 1,
        "model": "CPU X",
        "vector_flags": ["avx2", "fma"],
    },
    "variables": {"NCCL_ALGO": "Ring"},
    "data": {"seed": 1, "dataset_sha256": "d" * 64, "consumed_samples": 0, "next_batch_sha256": "e" * 64},
    "data_files": {"text_document.bin": "f" * 64},
}
# 0.1 has more than nine digits in binary; the others have no digits at all.
LOSSES = {1: 0.1, 2: math.pi, 3: math.nan, 4: math.inf, 5: 0.1 + 2**-52, 6: 2.0}


def a_run(name="gpt"):
    run = RunDir.named(name)
    run.path.mkdir(parents=True)
    files.write_json(run.run_json, {"schema_version": 1, "run_id": "1" * 16, "name": name})
    files.write_json(run.code(joint_sha256(CODE)), CODE) if run.code("x").parent.mkdir() is None else None
    return run


def trained(run, losses, first_step=0, saved=(), job=None, attempt=0, **changes):
    """Add an attempt that resumed from `first_step`, with its numbers and the events of its checkpoints."""
    if job is None:
        job = run.job(run.unused_job_id())
        job.make_folders()
        JobRecord(job.job_id, "1" * 16, run.name, "SUCCEEDED", time.time(), 1).write(job.job_json)
    record = JobRecord.read(job.job_json)
    record.attempts.append(AttemptRecord(attempt, time.time(), 1, 1))
    record.write(job.job_json)
    job.provenance(attempt).parent.mkdir(exist_ok=True)
    made = {**copy.deepcopy(MADE), **changes}
    Provenance(job.job_id, attempt, first_step, **made).write(job.provenance(attempt))
    metrics, events = MetricsFile(run.tensorboard, first_step), EventWriter(job, "rank0")
    for step, loss in losses.items():
        metrics.write(step, 1.0, step, step, {scalar("loss").tag: loss, scalar("grad_norm").tag: loss / 3})
    metrics.flush()
    for step in saved:
        about = {
            "step": step,
            "files_sha256": f"files {step} of {attempt}",
            "next_batch_sha256": f"batch {step}",
        }
        events.write("checkpoint", f"checkpoint of step {step} saved", attempt=attempt, **about)
    return job


def test_numbers_are_exact_to_the_last_bit(workspace):
    """Losses and gradient norms survive metrics.jsonl and certificate.json bit for bit, NaN and Inf too."""
    run = a_run()
    trained(run, LOSSES, saved=(2, 4))
    write_certificate(run)
    read = read_certificate(run.certificate_json)
    assert read == make_certificate(run)
    assert {step: loss.hex() for step, (loss, _) in read.numbers().items()} == {
        step: loss.hex() for step, loss in LOSSES.items()
    }
    assert read.numbers()[2][1] == math.pi / 3
    json.loads(run.certificate_json.read_text(), parse_constant=pytest.fail)
    assert [link.step for link in read.checkpoints] == [2, 4] and certificate_problems(run) == []


def test_two_equal_trainings_have_one_hash_and_one_number_changes_it(workspace):
    """The hash does not depend on the run's name and jobs; a change in one number changes the chain from the
    next checkpoint on.
    """
    one, two, other = a_run("one"), a_run("two"), a_run("other")
    trained(one, LOSSES, saved=(2, 4, 6))
    trained(two, LOSSES, saved=(2, 4, 6))
    trained(other, {**LOSSES, 3: 3.0}, saved=(2, 4, 6))
    ours, same, changed = map(make_certificate, (one, two, other))
    assert ours.sha256 == same.sha256 != changed.sha256 and differences(ours, same) == []
    equal = [
        link.chain_sha256 == own.chain_sha256 for link, own in zip(ours.checkpoints, changed.checkpoints)
    ]
    assert equal == [True, False, False]
    [difference] = differences(ours, changed)
    assert difference.name == "step 3" and "loss 3.0" in difference.now


def test_a_later_attempt_replaces_the_steps_after_its_checkpoint(workspace):
    """Steps, numbers and checkpoints of an attempt that failed count up to the checkpoint that the next one
    loaded; the same continuation leaves the hash as it is.
    """
    straight, cut = a_run("straight"), a_run("cut")
    trained(straight, LOSSES, saved=(2, 4, 6))
    job = trained(cut, {1: 0.1, 2: math.pi, 3: 9.0}, saved=(2, 3))
    position = {**MADE["data"], "consumed_samples": 2, "next_batch_sha256": "0" * 64}
    rest = {step: loss for step, loss in LOSSES.items() if step > 2}
    trained(cut, rest, 2, (4, 6), job, attempt=1, data=position)
    made, expected = make_certificate(cut), make_certificate(straight)
    assert [(part.first_step, part.last_step) for part in made.parts] == [(0, 2), (2, 6)]
    assert [link.step for link in made.checkpoints] == [2, 4, 6]
    assert made.losses == expected.losses and made.part_of(2) is made.parts[0]
    # The files of the fabricated checkpoints name their attempt.
    assert made.checkpoints[0] == expected.checkpoints[0] and made.checkpoints[1] != expected.checkpoints[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": {"model.seed": 7, "lr_schedule.lr": 1e-3}}, "model.seed: 1234 -> 7"),
        ({"versions": {"torch": "2.14.0", "numpy": "2.4.6"}}, "version of torch: 2.13.0 -> 2.14.0"),
        ({"device": {**MADE["device"], "model": "CPU Y"}}, "device model: CPU X -> CPU Y"),
        (
            {"device": {**MADE["device"], "vector_flags": ["amx_bf16", "avx2", "fma"]}},
            "device vector flags: none -> amx_bf16",
        ),
        ({"variables": {}}, "environment variable NCCL_ALGO: Ring -> none"),
        ({"data": {**MADE["data"], "seed": 2}}, "data: seed: 1 -> 2"),
        (
            {"data_files": {"text_document.bin": "0" * 64}},
            f"data: text_document.bin: {'f' * 12} -> {'0' * 12}",
        ),
    ],
)
def test_what_differs_is_named(workspace, changes, words):
    """A changed seed, library, processor, data order or file of the data is named with both values."""
    one, two = a_run("one"), a_run("two")
    trained(one, LOSSES)
    trained(two, LOSSES, **changes)
    ours, theirs = make_certificate(one), make_certificate(two)
    assert [str(difference) for difference in differences(ours, theirs)] == [words]
    assert ours.sha256 != theirs.sha256


def test_a_changed_file_of_nbtrain_is_named(workspace):
    """Files of nbtrain that differ are named; a list of code that was edited is refused."""
    one, two = a_run("one"), a_run("two")
    edited = {**CODE, "train/trainer.py": "cc", "train/new.py": "dd"}
    files.write_json(two.code(joint_sha256(edited)), edited)
    trained(one, LOSSES)
    trained(two, LOSSES, code_sha256=joint_sha256(edited))
    found = differences(make_certificate(one), make_certificate(two))
    assert list(map(str, found)) == [
        "nbtrain file train/trainer.py: aa -> cc",
        "nbtrain file train/new.py: none -> dd",
    ]
    files.write_json(two.code(joint_sha256(edited)), CODE)
    with pytest.raises(RecordError, match="was changed"):
        make_certificate(two)


def test_numbers_and_settings_that_were_edited_afterwards_are_found(workspace):
    """certificate.json tells if a loss or a setting was edited after the training."""
    run = a_run()
    job = trained(run, LOSSES, saved=(2, 4))
    write_certificate(run)
    path = run.tensorboard / "metrics.jsonl"
    path.write_text(path.read_text().replace(repr(math.pi), "3.0", 1))
    [problem] = certificate_problems(run)
    assert "step 2: loss 3.141592653589793" in problem and "loss 3.0" in problem
    record = Provenance.read(job.provenance(0))
    replace(record, settings={**record.settings, "model.seed": 5}).write(job.provenance(0))
    assert "model.seed: 1234 -> 5" in certificate_problems(run)[0]
    for text in ('{"run": 1}', "{", "[1]"):
        run.certificate_json.write_text(text)
        with pytest.raises(RecordError, match="is not a run's certificate"):
            certificate_problems(run)


@pytest.mark.parametrize(
    "changes", [{"losses": [0.1] * len(LOSSES)}, {"losses": ["x"] * len(LOSSES)}, {"parts": []}]
)
def test_a_certificate_that_was_edited_by_hand_is_refused(workspace, changes):
    """A number that is not hexadecimal, or a certificate without parts, is named instead of a traceback."""
    run = a_run()
    trained(run, LOSSES)
    write_certificate(run)
    files.write_json(run.certificate_json, {**files.read_json(run.certificate_json), **changes})
    with pytest.raises(RecordError, match="is not a run's certificate: "):
        read_certificate(run.certificate_json)


def test_what_changed_without_a_number_is_found(workspace):
    """An event of a checkpoint that is gone, and an edit of the hash itself, are differences too."""
    run = a_run()
    job = trained(run, LOSSES, saved=(2, 4))
    write_certificate(run)
    written = files.read_json(run.certificate_json)
    files.write_json(run.certificate_json, {**written, "sha256": "0" * 64})
    [problem] = certificate_problems(run)
    assert "the run's SHA-256 differs: 000000000000 in the file, " in problem
    files.write_json(run.certificate_json, written)
    path = job.events / "rank0.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    [problem] = certificate_problems(run)
    assert "certificate.json: the chain of hashes differs, first at the checkpoint of step 4" in problem


@pytest.mark.parametrize("losses", [{}, {5: 7.0}])
def test_a_job_that_continues_the_run_is_no_difference(workspace, losses):
    """A later job, which may still be active, replaces the steps after its checkpoint, with other settings;
    the steps before it are compared.
    """
    run = a_run()
    trained(run, LOSSES, saved=(2, 4))
    write_certificate(run)
    trained(run, losses, first_step=4, settings={"model.seed": 1234, "lr_schedule.lr": 5e-4})
    assert max(make_certificate(run).steps) == max(losses, default=4) and certificate_problems(run) == []
    path = run.tensorboard / "metrics.jsonl"
    path.write_text(path.read_text().replace(repr(math.pi), "3.0", 1))
    [problem] = certificate_problems(run)
    assert "step 2: loss 3.141592653589793" in problem


def test_a_run_without_a_step_has_no_certificate(workspace):
    """Before the first step nothing is written, and a request says why."""
    run = a_run()
    write_certificate(run)
    assert not run.certificate_json.exists()
    with pytest.raises(JobError, match="has not trained a step yet"):
        make_certificate(run)
