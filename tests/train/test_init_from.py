"""A run that starts from a transformers folder has the same losses as transformers in its first steps, in any
layout.
"""

import json
import shutil

import pytest
import torch

from nbtrain.base import files
from nbtrain.base.run_directory.events import read_events
from nbtrain.checkpoint.weights.folder_weights import FolderWeights
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.load import load, load_resolved, to_yaml
from nbtrain.jobs.request.initial_weights import read_initial_weights, record_initial
from nbtrain.model.names import OF_VOCABULARY
from nbtrain.pretrained.model import open_model
from tests.pretrained import made
from tests.train import launch
from tests.train.layouts import Place, layout

pytestmark = pytest.mark.slow
STEPS = 3


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a function from a kind and format to (folder, transformers model); each is created once."""
    pytest.importorskip("transformers")
    root, found = tmp_path_factory.mktemp("models"), {}

    def folder(kind, dtype=None):
        key = (kind, dtype)
        if key not in found:
            path = root / f"{kind}-{dtype}".replace(".", "-")
            # Several files, so that a rank needs more than one.
            found[key] = (path, made.write_model(path, kind, dtype, max_shard_size="60KB"))
        return found[key]

    return folder


def overrides_of(folder, words: str) -> dict:
    """Return the overrides of a layout that starts from a folder."""
    described = open_model(folder).described
    return {
        **layout(words)[1],
        **{f"model.{key}": value for key, value in described.fields.items()},
        "model.hidden_dropout": 0.0,
        "model.attention_dropout": 0.0,
        "init_from": str(folder),
        "tokenizer.vocab_size": described.vocab_size,
        "model.make_vocab_size_divisible_by": 8,
        "batch.global_batch_size": 8,
        "batch.train_tokens": STEPS * 8 * 32,
        "lr_schedule.lr_warmup_tokens": 8 * 32,
        "parallel.stage3_param_persistence_threshold": 0,
    }


@pytest.fixture(scope="module")
def expected(folders, data_home, tmp_path_factory):
    """Return a function from a kind to the losses that transformers computes."""
    found = {}

    def losses(kind):
        if kind not in found:
            folder, _ = folders(kind)
            run = launch.make_run(tmp_path_factory.mktemp("oracle"), overrides_of(folder, "z0"))
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("NBTRAIN_DATA", str(data_home))
                found[kind] = made.losses_of(made.make_model(kind), load_resolved(run.config_yaml))
        return found[kind]

    return losses


CASES = [("qwen3-odd", "z0"), *(("qwen3", words) for words in ("t2 z1", "p2 z1", "d2 z3", "s2 z2"))]
# Three groups of queries cannot be sharded across two tensor ranks.
MORE = [
    *(("qwen3-odd", words) for words in ("p2 z1", "d2 z3", "s2 z2")),
    *(("llama", words) for words in ("z0", "t2 z1", "p2 z1", "d2 z3", "s2 z2", "d2 t2 z3", "d2 p2 z1")),
    *(("gpt2", words) for words in ("z0", "d2 z2", "d2 z3", "s2 z2", "t2 p2 z1")),
    *(("llama-tied", words) for words in ("p2 z1", "t2 p2 z1", "d2 z3")),
    *((kind, "t2 z1") for kind in ("mistral-full", "smollm3-windows", "qwen2", "llama-yarn")),
    *((kind, "d2 z3") for kind in ("mistral", "smollm3", "llama-odd", "qwen2-windows", "qwen3-windows")),
    *((kind, "s2 z2") for kind in ("mistral-full", "llama-llama3", "llama-biases")),
    *((kind, "c2 z2") for kind in ("qwen3-odd", "qwen2-windows", "gpt2")),
]


@pytest.mark.parametrize(
    "kind, words",
    [
        *(pytest.param(*case, id=" ".join(case)) for case in CASES),
        *(pytest.param(*case, id=" ".join(case), marks=pytest.mark.soak) for case in MORE),
    ],
)
def test_the_first_losses_are_those_of_transformers(kind, words, folders, expected, forked, tmp_path):
    """In fp32, the first losses equal the losses of transformers, which compares the weights and their
    updates.
    """
    run = launch.make_run(tmp_path, overrides_of(folders(kind)[0], words))
    forked.train(run, layout(words)[0])
    assert launch.losses(run) == pytest.approx(expected(kind), abs=1e-5)
    said = [event["message"] for event in read_events(run.newest_job()) if event["kind"] == "checkpoint"]
    assert said[0].startswith(f"starts from {folders(kind)[0]} (")


MASTERS = ["d2 z3 bf16", "t2 z1 fp16", "p2 z1 bf16", "z1 autocast"]
MORE_MASTERS = [
    "z0 fp32",
    "d2 z2 bf16 offload",
    "z3 bf16 sub",
    "t2 p2 z1 bf16",
    "s2 z3 fp16",
    "d2 t2 z3 bf16",
]


@pytest.mark.parametrize(
    "words", [*MASTERS, *(pytest.param(words, marks=pytest.mark.soak) for words in MORE_MASTERS)]
)
def test_masters_have_the_file_s_own_precision(words, folders, fork_server, data_home, tmp_path):
    """The master weights are bit-identical to the fp32 values in the folder; the model uses rounded
    copies.
    """
    folder, _ = folders("llama")
    place = Place(tmp_path, data_home, fork_server)
    run = launch.make_run(tmp_path, overrides_of(folder, words))
    store = CheckpointStore(place.resave(run, layout(words)[0], step=0))
    read = FolderWeights(open_model(folder), made.VOCAB_SIZE)
    assert list(store.parameters) == list(read.parameters)
    for name, parameter in read.parameters.items():
        rows = made.VOCAB_SIZE if name in OF_VOCABULARY else None
        expected = read.read(name).view(parameter.shape)
        assert torch.equal(store.full(name)[:rows], expected), name
        assert torch.equal(store.weights(name)[:rows], expected.to(store.dtype)), name
        assert not store.full(name, "exp_avg").any() and store.step(name) == 0


def record_initial_of(run):
    config = load_resolved(run.config_yaml)
    return record_initial(run, config, read_initial_weights(config))


def test_a_resume_does_not_look_at_the_folder_again(folders, forked, expected, tmp_path):
    """A resume reads only the run's own checkpoint, so the folder may have been deleted."""
    source, _ = folders("llama")
    folder = shutil.copytree(source, tmp_path / "folder")
    run = launch.make_run(tmp_path, {**overrides_of(folder, "z1"), "batch.max_steps": 2})
    assert record_initial_of(run) == []
    forked.train(run)
    shutil.rmtree(folder)
    config = load_resolved(run.config_yaml)
    files.write_text(run.config_yaml, to_yaml(load(config, {"batch.max_steps": None})))
    launch.new_job(run)
    forked.train(run)
    assert launch.losses(run) == pytest.approx(expected("llama"), abs=1e-5)


def test_a_folder_that_has_changed_since_is_refused(folders, forked, tmp_path):
    """If the folder has changed since the submission, it is rejected, and the rank's message becomes the
    reason why the job failed.
    """
    source, _ = folders("llama")
    folder = shutil.copytree(source, tmp_path / "folder")
    run = launch.make_run(tmp_path, overrides_of(folder, "z1"))
    record_initial_of(run)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.1}))
    ended = forked.end(run)
    assert not ended.succeeded
    assert "has changed since the run was submitted. Its config.json" in ended.last_output(40)
