"""The CPU variant of every step that trains, and the process that waits for its order."""

import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from tests.gpu import memory, offload, parity, run_ahead, trained, zeropp
from tests.gpu.cases import Finding, Impossible, Place
from tests.gpu.machine import NEEDED, OPTIONAL, REPOSITORY
from tests.gpu.trained import Trained, TrainingFailed, Trainings

# Packages of pyproject.toml that nothing here imports, by the names of their modules.
NOT_NEEDED = {
    "argcomplete": "argcomplete",
    "ipywidgets": "ipywidgets",
    "jupyterlab": "jupyterlab",
    "matplotlib": "matplotlib",
    "papermill": "papermill",
    "anywidget": "anywidget",
    "fastokens": "fastokens",
    "jupyter-server-proxy": "jupyter_server_proxy",
    "loky": "loky",
    "nvidia-ml-py": "pynvml",
    "orjson": "orjson",
    "prometheus-client": "prometheus_client",
    "safetensors": "safetensors",
    "starlette": "starlette",
    "tokenizers": "tokenizers",
    "tree-sitter": "tree_sitter",
    "tree-sitter-bash": "tree_sitter_bash",
    "urllib3": "urllib3",
    "uvicorn": "uvicorn",
    "xxhash": "xxhash",
}
HIDES = f"""
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(NOT_NEEDED.values())}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (hidden)", name=name)

sys.meta_path.insert(0, Hidden())
"""


def test_every_dependency_is_needed_or_not():
    """Every dependency in pyproject.toml is in one of the two lists in this file."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    names = {re.match(r"[\w-]+", entry)[0] for entry in project["dependencies"]}
    assert names - set(NOT_NEEDED) <= set(NEEDED.values())
    assert not set(NOT_NEEDED.values()) & set(NEEDED) and set(OPTIONAL) & set(NEEDED) == set()


@pytest.mark.slow
def test_a_rank_trains_with_what_is_needed_and_nothing_else(tmp_path):
    """A waiting process can train with all unneeded packages hidden, while its memory is measured."""
    (tmp_path / "hides").mkdir()
    (tmp_path / "hides" / "sitecustomize.py").write_text(HIDES)
    trainings = Trainings(Place("cpu", folder=tmp_path))
    [(name, overrides), _] = memory.wanted(False)
    paths = os.pathsep.join([str(tmp_path / "hides"), str(REPOSITORY)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)
        found = memory.find(trainings, name, overrides)
        assert found.outcome == "passed", found.words


class Forked(Trainings):
    """Runs trainings in forked ranks, which have torch already loaded."""

    server = None

    def train(self, run, watch="", device=None):
        order = self.order(run, watch)
        ended = self.server.run(
            1, "tests.gpu.warm:obey", [order, "cpu"], log=order["log"], sys_path=[REPOSITORY]
        )
        assert ended.succeeded, ended.last_output(30)
        return Trained(run, json.loads(Path(order["answer"]).read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("step", [parity, run_ahead], ids=lambda step: step.__name__)
def test_on_a_cpu_every_step_finds_something(step, fork_server, tmp_path, monkeypatch):
    """With tiny sizes on a CPU, no case fails, and each impossible case gives a reason."""
    monkeypatch.setattr(Forked, "server", fork_server)
    monkeypatch.setattr(step, "Trainings", Forked)
    outcomes = {}
    for case in step.cases(Place("cpu", folder=tmp_path)):
        try:
            found = case.find()
        except Impossible as reason:
            found = Finding("impossible", str(reason))
        outcomes[case.name] = found.outcome
        assert found.outcome != "failed" and (found.outcome == "passed" or found.words), found
    assert "passed" in outcomes.values()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "steps"), [(1, (memory, parity, run_ahead, offload, zeropp)), (8, (zeropp,))]
)
def test_on_a_gpu_every_run_is_legal(gpus, steps, tmp_path, monkeypatch):
    """The configuration of each case loads and can be planned, which is checked here without a GPU."""
    made = []

    def train(self, run, watch="", device=None):
        made.append(run)
        raise Impossible("made")

    monkeypatch.setattr(Trainings, "train", train)
    monkeypatch.setattr(Trainings, "train_on_all", train)
    # Nothing reads them.
    monkeypatch.setattr(trained.launch, "make_dataset", lambda *arguments: None)
    for step in (offload, zeropp):
        monkeypatch.setattr(step, "extensions_can_be_built", lambda launch: [])
    names = []
    for step in steps:
        place = Place("gpu", gpus, "NVIDIA H200", tmp_path / step.__name__)
        place.folder.mkdir()
        for case in step.cases(place):
            names.append(f"{step.__name__}: {case.name}")
            if not case.name.startswith("kernels"):
                with pytest.raises(Impossible, match=r"^made$"):
                    case.find()
    assert len(names) == len(set(names)) and len(names) == len(made) + 2
    assert sum("memory: 1.3b" in name for name in names) == (13 if memory in steps else 0)


def test_a_run_that_fails_says_why(tmp_path):
    """A failed run is reported with the line that names the error, not with torchrun's own lines."""
    log = tmp_path / "log"
    log.write_text(
        'Traceback (most recent call last):\n  File "x.py", line 1\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    )
    assert (
        trained._error_of(log, 1) == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    )
    log.write_text("a\nb\n")
    assert trained._error_of(log, -9) == "exit code -9: a / b"
    assert trained._error_of(tmp_path / "none", 1) == "exit code 1: nothing was said"


def test_too_few_gpus_are_no_failure(tmp_path):
    trainings = Trainings(Place("gpu", 1, "NVIDIA H200", tmp_path))
    with pytest.raises(Impossible, match="needs 2 GPUs, and this machine has 1"):
        trainings.train_on_all(None, 2)


def test_out_of_memory_is_right_if_the_plan_said_so(tmp_path, monkeypatch):
    def train(self, run, watch=""):
        raise TrainingFailed("torch.OutOfMemoryError: CUDA out of memory.")

    monkeypatch.setattr(Trainings, "train", train)
    place = Place("gpu", 1, "NVIDIA A10", tmp_path)
    wanted = dict(memory.wanted(True))
    big, small = (
        memory.find(Trainings(place), name, wanted[name])
        for name in ("1.3b, micro 8, none", "125m, micro 8, full")
    )
    assert (big.outcome, small.outcome) == ("passed", "failed")
    with pytest.raises(Impossible, match=r"not on this GPU: override precision\.dtype=bf16"):
        old = Place("gpu", 1, "Tesla T4", tmp_path)
        memory.find(Trainings(old), "125m, micro 8, full", wanted["125m, micro 8, full"])
    assert big.words.startswith("out of memory; the plan says that") and big.words.endswith("does not fit")
