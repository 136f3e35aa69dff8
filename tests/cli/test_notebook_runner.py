"""Notebooks whose kernel does not start or dies are retried, or reported in a
sentence without a traceback.
"""

from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient.exceptions import DeadKernelError

from nbtrain.base.errors import ConfigError, JobError
from nbtrain.cli import notebook_runner
from nbtrain.cli.notebook_runner import KERNEL_STARTS, run_notebook, typed_parameters


@pytest.fixture
def papermill(tmp_path, monkeypatch):
    """Replace papermill by a fake that ends as `ends` says, one entry per start;
    None means that all cells ran.
    """
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


@pytest.mark.slow
def test_a_kernel_that_dies_before_the_first_cell_is_started_again(papermill):
    """A kernel that dies before the first cell, because its ports are taken, is started again."""
    source, ends = papermill
    ends += [stillborn(), stillborn(), None]
    assert run_notebook(str(source), {}).notebook.is_file() and not ends


@pytest.mark.slow
def test_a_kernel_that_never_starts_or_dies_later_is_a_sentence(papermill):
    """A kernel that never starts or dies later is reported in a sentence, and no cell runs twice."""
    source, ends = papermill
    ends += [stillborn()] * KERNEL_STARTS
    with pytest.raises(JobError, match=r"one.ipynb: the kernel died before the first cell in 3 attempts"):
        run_notebook(str(source), {})
    ends += [DeadKernelError("Kernel died"), None]
    with pytest.raises(JobError, match=r"one.ipynb: the kernel died while a cell ran"):
        run_notebook(str(source), {})
    assert ends == [None]
    ends[:] = [RuntimeError("something else")]
    with pytest.raises(RuntimeError, match="something else"):
        run_notebook(str(source), {})


@pytest.mark.parametrize(
    ("output", "found"), [("report.html", "does not end in .ipynb"), ("folder.ipynb", "is a folder")]
)
def test_a_page_or_folder_is_no_place_for_the_executed_notebook(papermill, tmp_path, output, found):
    """An HTML file or a folder as the path of the executed notebook is refused before anything runs."""
    source, _ = papermill
    (tmp_path / "folder.ipynb").mkdir()
    with pytest.raises(ConfigError, match=rf"{output} {found}. Name a file "):
        run_notebook(str(source), {}, tmp_path / output)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("import torch", "Notebook does not appear to be JSON: 'import torch'"),
        ("[]", "'list' object has no attribute 'get'"),
        ("{}", "Notebook could not be converted from version 1 to version 2 because it's miss..."),
        ('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": 3}', "'int' object is not iterable"),
        ('{"nbformat": 9, "nbformat_minor": 0}', "Unsupported nbformat version 9"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_notebook(tmp_path, content, why):
    path = tmp_path / "train.py"
    path.write_text(content)
    with pytest.raises(ConfigError) as refused:
        run_notebook(str(path), {})
    assert str(refused.value).startswith(f"{path}: not a notebook ({why}")


def test_links_of_an_executed_notebook_lead_from_its_own_folder(papermill, tmp_path):
    """Relative links in an executed notebook are adapted to its folder, and expected pictures are dropped."""
    source, ends = papermill
    ends.append(None)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "config.md").write_text("# Fields\n")
    content = nbformat.read(source, as_version=4)
    text = "[fields](docs/config.md#batch), [none](docs/none.md), [site](https://example.com/a)"
    content.cells.append(nbformat.v4.new_markdown_cell(text))
    picture = nbformat.v4.new_markdown_cell("![](docs/p.png)", metadata={"tags": ["expected-picture"]})
    content.cells.append(picture)
    nbformat.write(content, source)
    executed = run_notebook(str(source), {}, tmp_path / "output" / "deep" / "out.ipynb")
    *_, last = nbformat.read(executed.notebook, as_version=4).cells
    assert last.source == (
        "[fields](../../docs/config.md#batch), [none](docs/none.md), [site](https://example.com/a)"
    )


def test_a_parameters_cell_may_hold_magics(papermill, tmp_path):
    """A parameters cell may hold magics such as `%matplotlib inline`; other invalid Python is refused."""
    source, ends = papermill
    [cell] = (content := nbformat.read(source, as_version=4)).cells
    cell.source = "%matplotlib inline\n!pip list\nhome = %env HOME\nname: str = 'a'"
    nbformat.write(content, source)
    assert typed_parameters(str(source), [("name", "1"), ("home", "2")]) == {"name": "1", "home": 2}
    ends.append(None)
    run_notebook(str(source), {"name": "b"})
    cell.source = "%matplotlib inline\nname = = 2"
    nbformat.write(content, source)
    with pytest.raises(
        ConfigError, match=r"^the parameters cell, line 2, is not valid Python \(invalid syntax\)"
    ):
        run_notebook(str(source), {"name": "b"})


def test_the_words_are_those_of_the_library():
    """The message that triggers a retry is jupyter_client's own; if it changed,
    retries would silently stop.
    """
    import inspect

    from jupyter_client import client

    assert notebook_runner.STILLBORN in inspect.getsource(client)
