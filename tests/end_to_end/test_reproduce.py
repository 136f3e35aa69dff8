"""Steps of the demo reproduced in a second clone, by the commands that a user types; and its notebook again.

A clone is a copy of the package, the notebooks and the examples in a separate folder, with separate data.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys

import nbformat
import pytest

from nbtrain.lab.widgets.record import records_in
from tests.end_to_end.test_demo import A_TENTH

pytestmark = pytest.mark.soak

OPTIMIZER = "train/engine/optimizer.py"
COPIED = ("nbtrain", "notebooks", "examples")


class Clone:
    """A clone of the repository, in which commands run."""

    def __init__(self, folder, repository):
        self.folder = folder
        for name in COPIED:
            shutil.copytree(repository / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))

    def run(self, *words, code=0, **variables):
        """Run `nbtrain WORDS` in the clone, and return its output."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NBTRAIN_")}
        environment |= {"PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1", **variables}
        environment["NBTRAIN_QUEUE"] = str(self.folder / "queue")
        done = subprocess.run(
            [sys.executable, "-m", "nbtrain.cli", *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def reproduce(self, *words, code=0, **variables):
        return json.loads(self.run("reproduce", "gpt-tiny", *words, "--json", code=code, **variables))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The first clone, in which notebook 03 has trained a tenth of the demo: 120 steps, saved every 40."""
    from tests.conftest import REPOSITORY

    clone = Clone(tmp_path_factory.mktemp("first"), REPOSITORY)
    overrides = shlex.join([*A_TENTH, "checkpoint.keep_last=3"])
    clone.run("notebook", "03_launch", "-p", "run", "gpt-tiny", "-p", "overrides", overrides)
    return clone


@pytest.fixture
def second(first, tmp_path, repository):
    """A second clone, to which the run's directory was copied; its data has to be prepared."""
    clone = Clone(tmp_path / "second", repository)
    shutil.copytree(first.folder / "output" / "gpt-tiny", clone.folder / "output" / "gpt-tiny")
    return clone


def test_steps_of_the_demo_are_bit_exact_in_a_second_clone(first, second):
    """A window in the middle, from the checkpoint before it, through submit, supervisor and torchrun."""
    assert "matches certificate.json." in first.run("certify", "gpt-tiny")
    made = second.reproduce("--steps", "60:90")
    print(made["headline"], "in", round(made["seconds"], 1), "s")
    assert (made["verdict"], made["started_from_step"], made["compared_steps"]) == ("bit-exact", 40, 50)
    assert made["tensors_step"] == 80 and made["different_tensors"] == [] and made["differences"] == []
    whole = second.reproduce("--steps", "0:40")
    assert (whole["verdict"], whole["tensors_step"], whole["compared_steps"]) == ("bit-exact", 40, 40)
    folder = second.folder / "output" / "gpt-tiny-reproduced"
    assert b"</svg>" in (folder / "reproduction.svg").read_bytes()


def test_a_file_of_nbtrain_that_changed_is_named_with_the_first_step_and_the_tensors(second):
    """Another epsilon in the optimizer's file: the file, the step and the tensors at the next checkpoint."""
    path = second.folder / "nbtrain" / OPTIMIZER
    text = path.read_text()
    assert "settings.adam_eps" in text
    path.write_text(text.replace("settings.adam_eps", "settings.adam_eps * 2", 1))
    made = second.reproduce("--steps", "80:120", code=7)
    # The first steps may round to the same losses.
    assert made["verdict"] == "differs" and 81 <= made["first_different_step"] <= 120
    assert [(found["kind"], found["name"]) for found in made["differences"]] == [("file", OPTIMIZER)]
    assert made["tensors_step"] == 120 and len(made["different_tensors"]) > 10


def test_another_kind_of_processor_is_reported(second):
    """With torch's kernels for a processor without vector instructions, the device is named and nothing
    fails, whether or not a bit differs.
    """
    made = second.reproduce("--steps", "80:84", "backend.env={ATEN_CPU_CAPABILITY: default}")
    assert made["passed"] and made["verdict"] in ("bit-exact", "other hardware")
    assert "name" in [found["name"] for found in made["differences"] if found["kind"] == "device"]


def test_the_notebook_runs_again_and_its_run_is_bit_exact(first):
    """`nbtrain notebook --again` trains the run of the executed notebook again, under another name."""
    executed = first.folder / "output" / "gpt-tiny" / "notebooks" / "03_launch.ipynb"
    before = executed.read_bytes()
    said = first.run("notebook", "--again", str(executed))
    assert "bit-exact: losses and gradient norms of 120 steps are equal" in said
    again = first.folder / "output" / "gpt-tiny-again" / "notebooks" / "03_launch.ipynb"
    [record] = records_in(nbformat.read(again, 4))
    assert record["run"] == "gpt-tiny-again" and executed.read_bytes() == before
    assert "The run matches" in first.run(
        "certify",
        "gpt-tiny-again",
        "--against",
        str(first.folder / "output" / "gpt-tiny" / "certificate.json"),
    )
