"""Runs of one small model in any layout. Each is trained once, for half of its steps, on forked ranks."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nbtrain.base.run_directory.records import ResumeCertificate
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.weights.opened import open_checkpoint
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.load import load_resolved
from nbtrain.inference.loaded import fill, model_of
from nbtrain.model.gpt import GPT
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.names import is_adapter
from nbtrain.proof.fork_client import ForkServer
from tests.parity.cases import LLAMA
from tests.train import forked, launch

HALF, STEPS = 2, 4
BASE = {
    "model.hidden_size": 32,
    "model.hidden_dropout": 0.0,
    "model.attention_dropout": 0.0,
    "batch.global_batch_size": 8,
    "batch.train_tokens": STEPS * 8 * 32,
    "evaluation.eval_iters": 0,
}
SIZES = {
    "d": "parallel.data_parallel_size",
    "t": "parallel.tensor_parallel_size",
    "p": "parallel.pipeline_parallel_size",
    "s": "parallel.ds_sequence_parallel_size",
    "c": "parallel.context_parallel_size",
}


def layout(name: str) -> tuple[int, dict]:
    """Return the number of ranks and the overrides of a layout such as "d2 t2 z1 bf16".

    `offload` offloads the optimizer to the CPU, `llama` selects the layers of LLAMA, `squared` another
    activation function, `muon` the optimizer Muon, `sp` Megatron's sequence parallelism, and `recompute` full
    recomputation.
    """
    ranks, found = 1, dict(BASE)
    for word in name.split():
        if word[0] in SIZES and word[1:].isdigit():
            found[SIZES[word[0]]] = int(word[1:])
            ranks *= int(word[1:])
        elif word[0] == "z":
            found["parallel.zero_stage"] = int(word[1:])
        elif word == "offload":
            found["parallel.offload_optimizer.device"] = "cpu"
        elif word == "sub":
            # Several sub-groups of ZeRO 3, so that the order of their state matters.
            found["parallel.sub_group_size"] = 5000
        elif word == "micro1":
            found["batch.micro_batch_size"] = 1
        elif word == "llama":
            found |= LLAMA
        elif word == "muon":
            found["optimizer.type"] = "Muon"
        elif word == "autocast":
            found |= {"precision.dtype": "bf16", "precision.autocast": True}
        elif word == "squared":
            found["model.activation"] = "squared_relu"
        elif word == "sp":
            found["parallel.sequence_parallel"] = True
        elif word == "recompute":
            found["parallel.activation_checkpointing.granularity"] = "full"
        elif word == "pad":
            found["model.make_vocab_size_divisible_by"] = 8
        else:
            found["precision.dtype"] = word
    return ranks, found


class Place:
    """The root folder of all runs of a test module, and the server that trains them."""

    def __init__(self, root: Path, data_home: Path, server: ForkServer):
        self.root, self.data_home, self.server = root, data_home, server
        self.trained: dict[str, RunDir] = {}

    def source(self, name: str, steps: int = HALF) -> RunDir:
        """Return the run of this layout, trained to `steps`; it is trained only once."""
        key = f"{name} {steps}"
        if key not in self.trained:
            run = launch.make_run(self.root, {**layout(name)[1], "batch.max_steps": steps}, self._name(key))
            self.train(run, layout(name)[0])
            self.trained[key] = run
        return self.trained[key]

    def target(self, source: RunDir, name: str) -> RunDir:
        """Create a run in another layout, with a copy of the source's checkpoint."""
        run = launch.make_run(self.root, layout(name)[1], self._name(f"{source.name} {name}"))
        shutil.copytree(source.model, run.model)
        return run

    def train(self, run: RunDir, ranks: int) -> None:
        self._run(run, ranks, "tests.train.resaving_rank:train")

    def resave(self, run: RunDir, ranks: int, universal: Path | None = None, step: int = HALF) -> Path:
        """Load a checkpoint in the layout of the run, save it again without training, and return the saved
        checkpoint.

        The run's newest checkpoint is loaded, or the folder `universal` if it is given. `step` is the step of
        the loaded checkpoint; 0 stands for the initial weights.
        """
        to = run.path / "resaved"
        more = [str(universal)] if universal is not None else []
        self._run(run, ranks, "tests.train.resaving_rank:main", str(to), *more)
        return RunDir(to).checkpoint(step)

    def _name(self, words: str) -> str:
        return words.replace(" ", "-")

    def _run(self, run: RunDir, ranks: int, what: str, *arguments: str) -> None:
        started = forked.start(self.server, self.data_home, run, ranks, arguments, program=what)
        ended = self.server.wait(started)
        assert ended.succeeded, ended.last_output(40)


def assert_same(one: Path, other: Path, most_rows: int = 1 << 30, step: int = HALF) -> None:
    """Assert that two checkpoints have bit-identical master weights, moments and steps.

    Of the word embedding, only rows that both have are compared, at most `most_rows`.
    """
    before, now = CheckpointStore(one), CheckpointStore(other)
    assert sorted(before.parameters) == sorted(now.parameters)
    for name in before.parameters:
        for state in before.parameters[name].states:
            ours, theirs = now.full(name, state), before.full(name, state)
            words = name in ("word_embeddings.weight", "output_layer.weight")
            rows = min(len(ours), len(theirs), most_rows) if words else len(theirs)
            assert torch.equal(ours[:rows], theirs[:rows]), (name, state)
            assert state == "fp32" or not ours[rows:].any()
        assert now.step(name) == before.step(name) == step


def beside_weights(
    place: Place, make: Callable[[RunDir, str], RunDir]
) -> Callable[[str], tuple[RunDir, RunDir]]:
    """Return a function that trains a kind of layers and returns (the base run, a run trained from its
    weights in one process).

    make(base run, layout) creates the second run. Each run is trained once.
    """

    @functools.cache
    def of(kind: str) -> tuple[RunDir, RunDir]:
        words = f"z0 fp32 {kind}".strip()
        base = place.source(words)
        run = make(base, words)
        place.train(run, 1)
        return base, run

    return of


def assert_trains_as(alone: RunDir, run: RunDir) -> CheckpointStore:
    """Assert that a run in another layout has the losses and weights of the run of one process, and return
    its last checkpoint.
    """
    assert launch.losses(run) == pytest.approx(launch.losses(alone), abs=1e-5)
    expected, found = (CheckpointStore(each.checkpoint(STEPS)) for each in (alone, run))
    assert set(expected.parameters) == set(found.parameters)
    for name in expected.parameters:
        assert expected.full(name).any()
        torch.testing.assert_close(found.full(name), expected.full(name), rtol=1e-3, atol=1e-4)
    return found


def apart_and_merged(run: RunDir) -> tuple[GPT, GPT]:
    """Return the model of a run with adapters as it was trained, and the merged model that generates text."""
    config, store = load_resolved(run.config_yaml), open_checkpoint(run, STEPS)
    apart, merged = GPT(GPTConfig.of(config)).eval(), model_of(config).eval()
    fill(merged, store)
    with torch.no_grad():
        for name, parameter in apart.named_parameters():
            source = store.adapters if is_adapter(name) else store.base
            shape = source.parameters[name].shape
            parameter[: shape[0]] = source.read(name, "fp32").view(shape)
    return apart, merged


def assert_resumes(place: Place, forked: Any, words: str, make: Callable[[str], RunDir]) -> None:
    """Assert that a run that was stopped halfway and resumed is bit-identical to an uninterrupted run;
    make(name) creates both.
    """
    ranks = layout(words)[0]
    whole, cut = make("whole"), make("cut")
    place.train(whole, ranks)
    # Several ranks agree on a stop one step later.
    assert forked.stop_at(cut, HALF, ranks) in (HALF, HALF + 1)
    launch.new_job(cut)
    place.train(cut, ranks)
    assert launch.trace(cut) == launch.trace(whole)
    assert ResumeCertificate.read(cut.newest_job().resume_json).kind == "bit-exact"
    assert_same(whole.checkpoint(STEPS), cut.checkpoint(STEPS), step=STEPS)
