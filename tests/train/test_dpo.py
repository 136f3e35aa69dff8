"""DPO in every layout has the loss, the rewards and the weights of a run in one process."""

import json
import shutil

import numpy as np
import pytest
import torch

from nbtrain.base.run_directory.evaluation_files import EvaluationRecord, evaluation_files
from nbtrain.base.run_directory.events import read_events
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.dataset.files import DatasetFiles
from nbtrain.monitor.run.pictures import training_curves
from nbtrain.monitor.run.run_view import RunView
from nbtrain.monitor.runs.compare import compared
from tests.dataset.dataset_maker import make_tokenizer
from tests.evaluation import made
from tests.train import launch
from tests.train.layouts import HALF, STEPS, Place, beside_weights, layout
from tests.train.test_tasks import expected

pytestmark = pytest.mark.slow
DPO = {
    "dpo.beta": 0.5,
    "data.name": "pairs",
    "data.packing": "best_fit",
    "data.split": "80,20,0",
    "data.sources": [{"kind": "preference", "path": "pairs.jsonl"}],
    "evaluation.eval_iters": 1,
    "evaluation.eval_interval_steps": STEPS,
    "lr_schedule.lr": 3e-3,
    "lr_schedule.lr_warmup_tokens": 256,
}


@pytest.fixture(scope="module")
def place(fork_server, tmp_path_factory):
    home = tmp_path_factory.mktemp("data home")
    launch.make_dataset(home)
    launch.make_pairs(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBTRAIN_DATA", str(home))
        make_tokenizer("test", made.texts(40), launch.VOCAB_SIZE)
    return Place(tmp_path_factory.mktemp("runs"), home, fork_server)


def preferring(place, base, words, name="dpo", **overrides):
    """Create a DPO run in this layout that starts from another run's weights."""
    name = f"{name}-{words.replace(' ', '-')}"
    return launch.make_run(place.root, {**layout(words)[1], "init_from": base.name, **DPO, **overrides}, name)


@pytest.fixture(scope="module")
def one(place):
    """Return a function from a kind of layers to (the run with the initial weights, the DPO run in one
    process).
    """
    return beside_weights(place, lambda base, words: preferring(place, base, words))


def index(place):
    return DatasetFiles(place.data_home / "dataset" / "pairs").index_cache


def figures(run, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(run.tensorboard)).Reload()
    return [event.value for event in read.Scalars(name)]


def test_rewards_begin_at_nothing_and_grow(place, one):
    """The first loss is log 2, because the model equals its reference; after that, chosen answers become more
    likely.
    """
    _, run = one("")
    losses = launch.losses(run)
    assert losses[0] == pytest.approx(np.log(2), abs=1e-6)
    assert losses[-1] < losses[0] - 0.05
    margins, accuracies = (figures(run, f"rewards/{name}") for name in ("margins", "accuracies"))
    chosen, rejected = (figures(run, f"rewards/{name}") for name in ("chosen", "rejected"))
    assert abs(margins[0]) < 1e-5 and margins[-1] > 0.1 and accuracies[-1] > 0.8
    assert margins == pytest.approx([a - b for a, b in zip(chosen, rejected, strict=True)], abs=1e-6)
    assert figures(run, "rewards/validation accuracies")[0] > 0.6
    events = [event["message"] for event in read_events(run.newest_job())]
    assert "reference: log-probabilities of 119 pairs computed" in events


def test_readers_show_rewards_and_no_perplexity(one):
    """The readers of metrics show rewards but no perplexity, because the exponential of a preference loss has
    no meaning.
    """
    base, run = one("")
    assert RunView(run).describe().to_dict()["progress"]["validation_perplexity"] is None
    titles = [axes.get_title(loc="left") for axes in training_curves(RunView(run)).axes]
    assert titles == ["Loss", "Reward margin", "Learning rate", "Throughput"]
    figures_ = {row[0]: row[1:] for row in compared([run, base])["figures"]["rows"]}
    assert "validation perplexity" not in figures_ and "validation loss" in figures_


@pytest.mark.parametrize("words", ["z0 fp32", pytest.param("p2 z1 fp32", marks=pytest.mark.soak)])
def test_tasks_are_asked_between_pairs(words, place, one, tmp_path, monkeypatch):
    """evaluation.tasks also work during DPO, although the rows of a task have no second answer."""
    monkeypatch.setenv("NBTRAIN_DATA", str(place.data_home))
    tasks = [{"task": kind, "path": str(path)} for kind, path in made.files_in(tmp_path).items()]
    asked = {"evaluation.tasks": tasks, "tokenizer.name": "test"}
    run = preferring(place, one("")[0], words, "asked", **asked)
    place.train(run, layout(words)[0])
    assert launch.losses(run) == pytest.approx(launch.losses(one("")[1]), abs=2e-5)
    there = {one.name: one for one in (EvaluationRecord.read(path) for _, path in evaluation_files(run))}
    wanted = expected(run, STEPS)
    assert there.keys() == wanted.keys() and len(there) == len(made.QUESTIONS)
    for task, metrics in wanted.items():
        for metric, value in metrics.items():
            assert there[task].metrics[metric].value == pytest.approx(value, rel=1e-4), (task, metric)


LAYOUTS = [("t2 z1 fp32", "llama"), ("d2 z3 fp32", ""), ("p2 z1 fp32", "")]
MORE = [("t2 z1 fp32", ""), ("d2 z2 fp32", "llama"), ("p2 z1 fp32", "llama"), ("t2 p2 z1 fp32", "")]


@pytest.mark.parametrize(
    "words, kind", [*LAYOUTS, *(pytest.param(*case, marks=pytest.mark.soak) for case in MORE)]
)
def test_every_layout_is_one_process(words, kind, place, one):
    """Every layout gives the results of one process, with reference log-probabilities that it computes
    itself.
    """
    base, alone = one(kind)
    kept = index(place).with_name("kept")
    before = {path.name: np.load(path) for path in index(place).glob("*-reference.npy")}
    shutil.move(index(place), kept)
    try:
        run = preferring(place, base, f"{words} {kind}".strip())
        place.train(run, layout(words)[0])
        (made,) = index(place).glob("*-reference.npy")
        expected, found = before[made.name], np.load(made)
        assert np.isnan(found[7]).all() and np.isfinite(np.delete(found, 7, 0)).all()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    finally:
        shutil.rmtree(index(place))
        shutil.move(kept, index(place))
    assert launch.losses(run) == pytest.approx(launch.losses(alone), abs=2e-5)
    for name in ("margins", "chosen", "validation margins"):
        assert figures(run, f"rewards/{name}") == pytest.approx(figures(alone, f"rewards/{name}"), abs=1e-4)
    # Before the first steps, the order of two equal rewards is noise.
    assert figures(run, "rewards/accuracies")[-1] == figures(alone, "rewards/accuracies")[-1]
    before_, after = (CheckpointStore(each.checkpoint(STEPS)) for each in (alone, run))
    for name in before_.parameters:
        rows = launch.VOCAB_SIZE if name in ("word_embeddings.weight", "output_layer.weight") else None
        torch.testing.assert_close(after.full(name)[:rows], before_.full(name)[:rows], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("words", ["z1 fp32", pytest.param("d2 z3 bf16", marks=pytest.mark.soak)])
def test_adapters_prefer_and_a_resume_goes_on_bit_for_bit(words, place, one, fork_server):
    """With adapters, a resumed run is bit-identical, although the stored reference log-probabilities were
    deleted and are computed again.
    """
    base, _ = one("")
    lora = {"lora.rank": 4, "lora.alpha": 16.0, "lr_schedule.lr": 1e-2}
    forked = launch.ForkedRuns(fork_server, place.data_home)
    ranks = layout(words)[0]
    whole = preferring(place, base, words, name="whole", **lora)
    place.train(whole, ranks)
    cut = preferring(place, base, words, name="cut", **lora)
    assert forked.stop_at(cut, HALF, ranks) in (HALF, HALF + 1)
    texts = [event["message"] for event in read_events(cut.newest_job())]
    assert not any("computed" in text for text in texts)
    for path in index(place).glob("*-reference.npy"):
        path.unlink()
    launch.new_job(cut)
    place.train(cut, ranks)
    assert launch.trace(cut) == launch.trace(whole)
    assert figures(whole, "rewards/margins")[0] == pytest.approx(0, abs=0.02)
    assert json.loads((cut.newest_job().resume_json).read_text())["kind"] == "bit-exact"
