"""A notebook whose kernel does not start, or dies: another try, or a sentence in place of a traceback."""

from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient.exceptions import DeadKernelError

from nbtrain.base.errors import JobError
from nbtrain.cli import notebook_runner
from nbtrain.cli.notebook_runner import KERNEL_STARTS, run_notebook


@pytest.fixture
def papermill(tmp_path, monkeypatch):
    """Papermill whose kernels come to the ends in `ends`, one for each start; None: all cells run."""
    monkeypatch.setenv("NBTRAIN_OUTPUT", str(tmp_path / "output"))
    cell = nbformat.v4.new_code_cell("run = None", metadata={"tags": ["parameters"]})
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "one.ipynb")
    ends: list[Exception | None] = []

    def execute(source: str, output: str, *_: object, config: object, **__: object) -> None:
        # Without encryption every user of the machine can read a notebook's outputs at its kernel's ports.
        assert KernelManager(config=config).transport_encryption == "auto"
        Path(output).write_bytes(Path(source).read_bytes())
        if error := ends.pop(0):
            raise error

    monkeypatch.setattr("papermill.execute.execute_notebook", execute)
    return tmp_path / "one.ipynb", ends


def stillborn() -> RuntimeError:
    return RuntimeError("Kernel died before replying to kernel_info")


def test_a_kernel_that_dies_before_the_first_cell_is_started_again(papermill):
    """Its ports were taken meanwhile; nothing has run, so that nothing runs twice."""
    source, ends = papermill
    ends += [stillborn(), stillborn(), None]
    assert run_notebook(str(source), {}).notebook.is_file() and not ends


@pytest.mark.slow
def test_a_kernel_that_never_starts_or_dies_later_is_a_sentence(papermill):
    """A cell is not run a second time."""
    source, ends = papermill
    ends += [stillborn()] * KERNEL_STARTS
    with pytest.raises(JobError, match=r"one.ipynb: its kernel died before the first cell, 3 times"):
        run_notebook(str(source), {})
    ends += [DeadKernelError("Kernel died"), None]
    with pytest.raises(JobError, match=r"one.ipynb: its kernel died while a cell ran"):
        run_notebook(str(source), {})
    assert ends == [None]
    ends[:] = [RuntimeError("something else")]
    with pytest.raises(RuntimeError, match="something else"):
        run_notebook(str(source), {})


def test_the_words_are_those_of_the_library():
    """Another wording would end the tries in silence."""
    import inspect

    from jupyter_client import client

    assert notebook_runner.STILLBORN in inspect.getsource(client)
