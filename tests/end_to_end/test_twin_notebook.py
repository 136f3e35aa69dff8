"""papermill runs 03_launch in twin mode: data, supervisor, steps, resume, another layout, export.

The uninterrupted run of each twin goes through preflight, supervisor and wrappers as usual. One of
the nine upstream runs is tested here, and all nine in `make soak`. tests/proof/test_prove.py covers twins
of other layouts, without notebook and supervisor.
"""

import warnings
from pathlib import Path

import pytest

from nbtrain.api.run import open_run
from nbtrain.base import files
from nbtrain.base.run_directory.jobstate import SUCCEEDED
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.config.load import load
from nbtrain.proof.small_sections import STEPS

from ..config.conftest import UPSTREAM

pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "03_launch.ipynb"
HERE = "gpt-125m"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Create a workspace that all nine runs share, so that their data is prepared once."""
    folder = tmp_path_factory.mktemp("twins of notebooks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBTRAIN_WORKSPACE", str(folder))
        patch.delenv("NBTRAIN_OUTPUT", raising=False)
        patch.delenv("NBTRAIN_DATA", raising=False)
        yield folder


def execute(output: Path, **parameters: str):
    from papermill.execute import execute_notebook

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from papermill's own dependencies
        return execute_notebook(
            str(NOTEBOOK), str(output), parameters=parameters, progress_bar=False, start_timeout=900
        )


@pytest.mark.parametrize(
    "name",
    [HERE, *(pytest.param(name, id=f"{name}-soak", marks=pytest.mark.soak) for name in UPSTREAM)],
)
def test_the_twin_of_each_upstream_run_passes(home, tmp_path, name):
    """The twin of each upstream run passes with at most 8 ranks; the notebook keeps
    the table and the picture.
    """
    executed = execute(tmp_path / "out.ipynb", run=name, mode="twin")
    shown = [output for cell in executed.cells for output in cell.get("outputs", [])]
    text = "\n".join(str(output.get("text", "")) + str(output.get("data", "")) for output in shown)
    assert f"Twin of {name}: PASSED" in text
    assert "data:image/png;base64," in text

    run = open_run(f"{name}-twin")
    report = files.read_json(run.directory.path / "twin.json")
    assert report["passed"] and report["ranks"] == min(load(name).world_size, 8)
    assert {check["outcome"] for check in report["checks"]} == {"passed"}
    assert {"data", "train", "resume", "layout", "precision", "reshape", "export", "export fp32"} == {
        check["name"] for check in report["checks"]
    }
    # The supervisor wrote this and the summary, as for any job.
    record = JobRecord.read(run.job.job_json)
    assert record is not None and record.state == SUCCEEDED and record.command == ["-m", "nbtrain.train"]
    assert run.summary()["steps"] == STEPS
