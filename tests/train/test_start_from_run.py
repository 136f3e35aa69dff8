"""A run that starts from another run's checkpoint has its weights in any layout, with new rows for new
tokens.
"""

import shutil

import pytest
import torch

from nbtrain.base import files
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import Provenance
from nbtrain.checkpoint.weights.opened import RunWeights
from nbtrain.checkpoint.weights.store import CheckpointStore, TensorPart
from nbtrain.config.load import load_resolved
from nbtrain.jobs.request.initial_weights import read_initial_weights, record_initial
from nbtrain.model.names import OF_VOCABULARY
from tests.train import launch
from tests.train.layouts import HALF, layout

pytestmark = pytest.mark.slow
GROWN = launch.VOCAB_SIZE + 3


def start(place, base, words, name, **overrides):
    """Create a run in this layout that starts from another run."""
    return launch.make_run(place.root, {**layout(words)[1], "init_from": base.name, **overrides}, name)


@pytest.mark.parametrize(
    "before, words",
    [
        ("t2 z1 bf16", "d2 z3 bf16"),
        ("t2 z1 bf16", "p2 z1 fp32"),
        # A separate output layer.
        ("z0 fp32 llama", "t2 z1 fp32 llama"),
        pytest.param("z0 fp32 llama", "p2 z1 fp32 llama", marks=pytest.mark.soak),
        pytest.param("z0 fp32 llama", "d2 z3 fp32 llama", marks=pytest.mark.soak),
    ],
)
def test_masters_and_new_rows(before, words, place):
    """Master weights are bit-identical to the other run's, and the row of a new token is the mean of the
    existing rows.
    """
    base = place.source(before)
    run = start(place, base, words, f"grown-{words.replace(' ', '-')}", **{"tokenizer.vocab_size": GROWN})
    notes = record_initial_of(run)
    assert notes == [
        f"init_from: the vocabulary grows from {launch.VOCAB_SIZE} to {GROWN} entries "
        "(tokenizer.vocab_size): each new row is the mean of the old rows."
    ]
    before = CheckpointStore(base.checkpoint(HALF))
    now = CheckpointStore(place.resave(run, layout(words)[0], step=0))
    assert list(before.parameters) == list(now.parameters)
    for name in before.parameters:
        rows = launch.VOCAB_SIZE if name in OF_VOCABULARY else None
        expected, found = before.full(name)[:rows], now.full(name)
        assert torch.equal(found[:rows], expected), name
        assert not now.full(name, "exp_avg").any() and now.step(name) == 0
        if rows:
            mean = expected.double().mean(0).float()
            assert torch.allclose(found[rows:GROWN], mean.expand(GROWN - rows, -1), atol=1e-7)


def record_initial_of(run):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBTRAIN_OUTPUT", str(run.path.parent))
        config = load_resolved(run.config_yaml)
        return record_initial(run, config, read_initial_weights(config))


def test_any_part_of_a_grown_vocabulary(place):
    """However the vocabulary is sharded, the rows are the same, also in a shard that contains existing and
    new rows.
    """
    weights = RunWeights(CheckpointStore(place.source("t2 z1 bf16").checkpoint(HALF)), GROWN)
    name, padded = "word_embeddings.weight", 512
    whole = weights.read(name)
    assert whole.numel() == GROWN * 32
    for size in (1, 2, 4):
        parts = [weights.read(name, "fp32", TensorPart(r, size, 0), rows=padded) for r in range(size)]
        assert torch.equal(torch.cat(parts), whole)
    pieces = [
        weights.read(name, "fp32", TensorPart(1, 2, 0), first, 777, padded) for first in range(0, 8192, 777)
    ]
    assert torch.equal(torch.cat(pieces), whole[256 * 32 :])


def test_a_resume_needs_the_other_run_no_more(place, forked):
    """The first start reads the recorded checkpoint of the other run; a resume reads only the run's own
    checkpoint.
    """
    base = place.source("z1 fp32")
    copy = shutil.copytree(base.path, base.path.with_name("copy"))
    run = launch.make_run(place.root, {**layout("z1")[1], "init_from": "copy", "batch.max_steps": 1}, "again")
    identity = files.read_json(copy / "run.json")
    files.write_json(copy / "run.json", {**identity, "name": "copy"})
    record_initial_of(run)
    known = files.read_json(run.init_from_json)
    assert (known["run"], known["step"], known["run_id"]) == ("copy", HALF, identity["run_id"])
    # A newer folder that is not a checkpoint: the recorded step is used.
    (copy / "model" / "global_step9").mkdir()
    forked.train(run)
    said = [event["message"] for event in read_events(run.newest_job()) if event["kind"] == "checkpoint"]
    assert said[0] == f"starts from copy (step {HALF} of copy, 42.5k parameters)"
    shutil.rmtree(copy)
    first = run.newest_job()
    run.config_yaml.write_text(run.config_yaml.read_text().replace("max_steps: 1", "max_steps: 2"))
    launch.new_job(run)
    forked.train(run)
    assert newest_checkpoint_step(run) == 2
    # The certificate names the weights, before and after the resume.
    for job in (first, run.newest_job()):
        assert Provenance.read(job.provenance(0)).data["initial_weights_sha256"] == known["sha256"]


def test_changed_and_damaged_checkpoints_are_refused(place, forked):
    """A checkpoint that was changed or damaged is rejected, and the rank's message becomes the reason why the
    job failed.
    """
    base = place.source("z1 fp32")
    copy = shutil.copytree(base.path, base.path.with_name("damaged"))
    run = launch.make_run(place.root, {**layout("z1")[1], "init_from": "damaged"}, "refused")
    record_initial_of(run)
    victim = next((copy / "model" / f"global_step{HALF}").glob("*optim*"))
    content = bytearray(victim.read_bytes())
    content[-2000] ^= 1
    victim.write_bytes(content)
    ended = forked.end(run)
    assert not ended.succeeded
    assert "does not have the SHA-256 in its manifest. Name another checkpoint" in ended.last_output(40)
    manifest = files.read_json(copy / "model" / f"global_step{HALF}" / "manifest.json")
    manifest["files"][victim.name]["sha256"] = "0" * 64
    files.write_json(copy / "model" / f"global_step{HALF}" / "manifest.json", manifest)
    launch.new_job(run)
    ended = forked.end(run)
    assert "has changed since the run was submitted. The checkpoint's files differ" in ended.last_output(40)
