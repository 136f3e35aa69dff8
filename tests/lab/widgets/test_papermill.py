"""A notebook executed by papermill, and its HTML, show all outputs of a run offline and without a widget."""

import json
from pathlib import Path

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from tests.lab.widgets.fake_run import FakeJob

pytestmark = pytest.mark.slow


def test_executed_notebook_and_its_html_show_complete_pictures(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The panel of a run, the form, TensorBoard and the curves are static HTML and PNG, and no widget hides
    them.
    """
    import nbformat
    import papermill
    from nbconvert import HTMLExporter

    job = FakeJob(RunDir.named("gpt-fake"), steps=20)
    for _ in range(20):
        job.one_step()
    job.finish("SUCCEEDED", "all 20,480 tokens are done and saved")
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(source)
            for source in (
                'import nbtrain as nb\n\nrun = nb.open_run("gpt-fake")\nrun',
                'nb.launcher("gpt-tiny")',
                "nb.tensorboard(run)",
                "run.curves()",
            )
        ]
    )
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, workspace / "in.ipynb")
    papermill.execute_notebook(
        str(workspace / "in.ipynb"), str(workspace / "out.ipynb"), progress_bar=False, cwd=str(workspace)
    )

    executed = json.loads((workspace / "out.ipynb").read_text())
    bundles = [[set(output["data"]) for output in cell["outputs"]] for cell in executed["cells"]]
    page = {"text/html", "text/plain"}
    assert bundles == [[page | {"image/png"}], [page], [page], [{"image/png", "text/plain"}]]

    content = nbformat.read(workspace / "out.ipynb", as_version=4)
    html, _ = HTMLExporter().from_notebook_node(content)
    for words in (
        "all 20,480 tokens are done and saved",
        "20 / 20",
        "data:image/svg+xml;base64,",
        "Plan of gpt-tiny",
        "nbtrain tensorboard gpt-fake",
    ):
        assert words in html
    assert html.count("data:image/png;base64,") >= 2
