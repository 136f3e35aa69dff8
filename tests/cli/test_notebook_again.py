"""`nbtrain notebook --again`: the record in an executed notebook, and what keeps it from running again."""

from pathlib import Path

import nbformat
import pytest

from nbtrain.base import files
from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli.__main__ import main
from nbtrain.cli.notebook_again import run_again
from nbtrain.cli.notebook_runner import ExecutedNotebook
from nbtrain.config.load import load, to_yaml
from nbtrain.lab.widgets.record import RECORD, name_file, parameters_of, record_of, records_in
from tests.jobs.conftest import TINY

PARAMETERS = f'run: str = "tiny.yaml"\noverrides: str = ""\nsteps = {3}'


def a_run(workspace, name="tiny", **overrides):
    (workspace / "tiny.yaml").write_text(TINY)
    run = RunDir.named(name)
    run.path.mkdir(parents=True)
    files.write_json(run.run_json, {"schema_version": 1, "run_id": "ab" * 8, "name": name})
    files.write_text(run.config_yaml, to_yaml(load(workspace / "tiny.yaml", {"name": name, **overrides})))
    return run


def a_notebook(path, *cells, outputs=()):
    """Write a notebook whose first cell has the parameters, and whose last cell has these outputs."""
    code = [nbformat.v4.new_code_cell(cell) for cell in cells]
    code[0].metadata["tags"] = ["parameters"]
    code[-1].outputs = [nbformat.v4.new_output("display_data", data=data) for data in outputs]
    notebook = nbformat.v4.new_notebook(cells=code)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    return path


def executed(workspace, parameters=PARAMETERS, **changes):
    """Write a notebook that was executed for the run tiny, with a changed record."""
    made = record_of(a_run(workspace), {"run": "tiny.yaml", "overrides": "", "steps": 3}) | changes
    return a_notebook(workspace / "mine.ipynb", parameters, "nb.submit(run)", outputs=[{RECORD: made}])


@pytest.fixture
def papermill(monkeypatch):
    """Replace the execution of a notebook; return the calls, each with the name that its run would have."""
    calls = []

    def run(source, parameters, output):
        calls.append((dict(parameters), Path(output)))
        notebook = nbformat.read(source, as_version=4)
        for cell in notebook.cells:
            for entry in cell.get("outputs", []):
                entry["data"][RECORD]["run"] = output.parent.parent.name
        output.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, output)
        return ExecutedNotebook(output, output.with_suffix(".html"))

    monkeypatch.setattr("nbtrain.cli.notebook_again.run_notebook", run)
    return calls


def test_the_run_gets_another_name_as_long_as_the_first_one_exists(workspace, papermill):
    """The parameters are the record's, and the new notebook goes to the new run's folder. Once the run is
    gone, its name is used again.
    """
    source = executed(workspace)
    again = run_again(str(source))
    [(parameters, output)] = papermill
    assert parameters == {"run": "tiny.yaml", "overrides": "name=tiny-again", "steps": 3}
    assert output == RunDir.named("tiny-again").notebooks / "mine.ipynb"
    assert "the same" in str(again) and again.differences == []
    RunDir.named("tiny-again").run_json.write_text("{}")
    run_again(str(source))
    assert papermill[1][0]["overrides"] == "name=tiny-again-2"
    RunDir.named("tiny").run_json.unlink()
    again = run_again(str(source))
    assert papermill[2][0]["overrides"] == "" and papermill[2][1].parent.parent.name == "tiny"
    assert "the recorded run" in again.numbers and "no longer exists" in again.numbers


def test_settings_versions_and_code_that_differ_are_named(workspace, papermill):
    """The settings of both records are compared one by one, and so are versions and files of nbtrain."""
    source = executed(workspace)
    before = nbformat.read(source, as_version=4)
    record = before.cells[1].outputs[0].data[RECORD]
    record["settings"] = {**record["settings"], "model.seed": 7}
    record["versions"], record["code_sha256"] = {**record["versions"], "torch": "1.0"}, "0" * 64
    now = record_of(RunDir.named("tiny"), {})
    from nbtrain.cli.notebook_again import _differences

    found = list(_differences(record, now))
    assert found[0] == "model.seed: 7 -> 1234" and found[1].startswith("version of torch: 1.0 -> ")
    assert found[2].startswith("files of nbtrain: SHA-256 000000000000 -> ")


def test_what_cannot_run_again(workspace, papermill, capsys):
    """Each message has the file, what was found and what to do; nothing is executed."""
    missing = workspace / "no.ipynb"
    with pytest.raises(ConfigError, match=r"no\.ipynb: there is no such file"):
        run_again(str(missing))
    missing.write_text("not JSON")
    with pytest.raises(ConfigError, match=r"no\.ipynb: not a notebook"):
        run_again(str(missing))
    fresh = a_notebook(workspace / "fresh.ipynb", PARAMETERS, "nb.submit(run)")
    with pytest.raises(
        ConfigError, match=r"fresh\.ipynb: it was never executed.*`nbtrain notebook .*fresh\.ipynb`"
    ):
        run_again(str(fresh))
    notebook = nbformat.read(fresh, as_version=4)
    notebook.cells[0].execution_count = 1
    nbformat.write(notebook, fresh)
    with pytest.raises(ConfigError, match=r"fresh\.ipynb: its outputs have no record"):
        run_again(str(fresh))
    assert main(["notebook", "--again", str(fresh), "-p", "run", "x"]) == ConfigError.exit_code
    assert "omit -p" in capsys.readouterr().err
    assert papermill == []


def test_a_notebook_that_was_edited_after_it_ran(workspace, papermill):
    """Another parameter in the cell, another one in papermill's cell, and a damaged record are refused."""
    source = executed(workspace, PARAMETERS.replace("steps = 3", "steps = 4"))
    with pytest.raises(
        ConfigError, match=r"mine\.ipynb, cell 1: steps = 4, but the run tiny was started with 3"
    ):
        run_again(str(source))
    notebook = nbformat.read(source, as_version=4)
    injected = nbformat.v4.new_code_cell(
        "# Parameters\nsteps = 3\n", metadata={"tags": ["injected-parameters"]}
    )
    notebook.cells.insert(1, injected)
    nbformat.write(notebook, source)
    run_again(str(source))
    injected.source = '# Parameters\nsteps = 3\noverrides = "model.seed=1"\n'
    nbformat.write(notebook, source)
    with pytest.raises(ConfigError, match=r"cell 2: overrides = 'model.seed=1', but .* with ''"):
        run_again(str(source))
    notebook.cells[-1].outputs[0].data[RECORD]["run_id"] = None
    nbformat.write(notebook, source)
    with pytest.raises(
        ConfigError, match="the record of its run was changed: run_id is NoneType and must be str"
    ):
        run_again(str(source))


def test_damaged_records_in_outputs(workspace, papermill):
    """Text under the type of a record is ignored, and a record without its hash is refused."""
    source = a_notebook(workspace / "mine.ipynb", PARAMETERS, "nb.submit(run)", outputs=[{RECORD: "text"}])
    with pytest.raises(ConfigError, match=r"mine\.ipynb: it was never executed"):
        run_again(str(source))
    notebook = nbformat.read(executed(workspace), as_version=4)
    del notebook.cells[-1].outputs[0].data[RECORD]["settings_sha256"]
    nbformat.write(notebook, source)
    with pytest.raises(ConfigError, match="settings_sha256 is NoneType and must be str"):
        run_again(str(source))
    assert papermill == []


def test_a_parameter_that_a_cell_replaced_keeps_the_value_of_papermill(workspace, papermill):
    """With `run = nb.load(run)` the record has no `run`: the value is the one in papermill's cell, and not
    the default.
    """
    made = record_of(a_run(workspace), {"overrides": "", "steps": 3})
    source = a_notebook(workspace / "mine.ipynb", PARAMETERS, "nb.submit(run)", outputs=[{RECORD: made}])
    notebook = nbformat.read(source, as_version=4)
    injected = nbformat.v4.new_code_cell('run = "other.yaml"', metadata={"tags": ["injected-parameters"]})
    notebook.cells.insert(1, injected)
    nbformat.write(notebook, source)
    run_again(str(source))
    assert papermill[0][0] == {"run": "other.yaml", "overrides": "name=tiny-again", "steps": 3}


def test_cells_that_open_the_same_run_again(workspace):
    """The run of the record is still here, and is not called gone."""
    record = record_of(a_run(workspace), {})
    from nbtrain.cli.notebook_again import _numbers

    assert _numbers(record, record).startswith("not compared: the cells opened the existing run tiny")


def test_a_notebook_without_the_parameter_overrides(workspace, papermill):
    """Without it the run cannot have another name: the message says how to make room."""
    made = record_of(a_run(workspace), {"run": "tiny.yaml"})
    source = a_notebook(
        workspace / "mine.ipynb", 'run = "tiny.yaml"', "nb.submit(run)", outputs=[{RECORD: made}]
    )
    with pytest.raises(
        ConfigError, match=r"no parameter `overrides`.* the run tiny still exists.*nbtrain delete tiny"
    ):
        run_again(str(source))


def test_parameters_are_the_values_in_the_kernel():
    """The first cell that ran names them, papermill's cell changes them; only JSON values are kept."""
    cells = ["", "a: str = 'x'\nb = 1\nc = object()", "# Parameters\na = 'y'", "z = 3"]
    names = {"In": cells, "a": "y", "b": 1, "c": object(), "z": 3}
    assert parameters_of(names) == {"a": "y", "b": 1}
    assert parameters_of({"In": ["", "this is no Python"]}) == {}


def test_the_saved_notebook_names_itself(workspace):
    """The line that runs a notebook again has its file, and the notebook's metadata lists the runs."""
    notebook = nbformat.read(executed(workspace), as_version=4)
    name_file(notebook, "output/tiny/notebooks/mine.ipynb")
    [record] = records_in(notebook)
    assert record["again"] == "nbtrain notebook --again output/tiny/notebooks/mine.ipynb"
    assert notebook.cells[-1].outputs[0].data["text/plain"].endswith(record["again"])
    about = {"run": "tiny", "run_id": "ab" * 8, "settings_sha256": record["settings_sha256"]}
    assert notebook.metadata["nbtrain"] == {"runs": [{**about, "again": record["again"]}]}
