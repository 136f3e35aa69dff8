"""Run a notebook without JupyterLab: check its parameters, execute it, and save it with an HTML page."""

import dataclasses
import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, JobError, JobFailed
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import bundled, display, output_root, resolve, valid_name, workspace
from nbtrain.cli.kernel_encryption import kernel_encryption
from nbtrain.config.load import find as find_yaml
from nbtrain.config.yaml_source import parse_value
from nbtrain.lab.parameters import annotated_types, assigned_names
from nbtrain.lab.widgets.record import name_file
from nbtrain.lab.widgets.watched import noted_unfinished

# On a machine that trains on every core, a kernel may need minutes to start. papermill's default is one
# minute.
KERNEL_START_SECONDS = 600
# Jupyter chooses a kernel's ports before the kernel binds them, so another process may take them first.
KERNEL_STARTS = 3
STILLBORN = "Kernel died before replying"
"""Part of the error that nbclient and jupyter_client raise for a kernel that died before its first cell."""
EXPECTED_PICTURE = "expected-picture"
"""Tag of a cell with a picture of the output expected from the cell above, for notebooks without outputs."""
# The relative target in [text](target) and ![text](target), without a "#fragment".
RELATIVE_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|[/#])[^)\s#]+")


@dataclasses.dataclass(frozen=True)
class ExecutedNotebook:
    """The files of an executed notebook."""

    notebook: Path
    html: Path
    unfinished: str | None = None
    """How to continue the run that the notebook waited for, if it was stopped before its end; else None."""


def find_notebook(name: str) -> Path:
    """Return the notebook file `name`, or nbtrain's own notebook of that name. Raises ConfigError."""
    typed = Path(name)
    if typed.is_file():
        return typed
    own = (workspace() / "notebooks", bundled("notebooks"))
    for folder in own:
        candidate = folder / f"{typed.stem}.ipynb"
        if candidate.is_file():
            return candidate
    known = ", ".join(sorted(path.stem for path in own[-1].glob("[0-9]*.ipynb")))
    raise ConfigError(f"{name}: no such notebook. nbtrain's own notebooks are {known}.")


def run_notebook(name: str, parameters: Mapping[str, Any], output: Path | None = None) -> ExecutedNotebook:
    """Execute a notebook with papermill, and write the result and its HTML page even if a cell fails.

    Without `output`, they are written to the folder of the run that the parameter `run` names. Before
    anything is written, raises ConfigError for a parameter that the notebook does not have, an `output` that
    does not end in .ipynb, or a run that does not exist. If a cell fails, raises JobError with the cell and
    its error, or JobFailed if a failed job is the cause.
    """
    source = find_notebook(name)
    check_parameter_names(source, parameters)
    # The HTML page is written next to `output`, with the suffix .html.
    if output is not None and (output.suffix != ".ipynb" or output.is_dir()):
        found = "is a folder" if output.is_dir() else "does not end in .ipynb"
        raise ConfigError(
            f"{output} {found}. Name a file that ends in .ipynb for the executed notebook; its HTML page is "
            "written next to it."
        )
    if output is None:
        output = folder_of(parameters.get("run")) / source.name
    output.parent.mkdir(parents=True, exist_ok=True)
    import nbformat
    from papermill.exceptions import PapermillExecutionError

    try:
        _execute(source, output, parameters)
    except PapermillExecutionError as error:
        kind = JobFailed if error.ename == JobFailed.__name__ else JobError
        # If the run was stopped, the last cell fails on purpose, which is not an error here.
        if kind is JobError or noted_unfinished(nbformat.read(output, as_version=4)) is None:
            raise kind(
                f"{source.name}, cell {error.exec_count}: {error.ename}: {error.evalue}\n"
                f"  The executed notebook, up to the failure: {display(output)}"
            ) from error
    finally:
        html = output.with_suffix(".html")
        if output.is_file():
            _settle(output, source.parent)
            html = write_html(output)
    return ExecutedNotebook(output, html, noted_unfinished(nbformat.read(output, as_version=4)))


def _execute(source: Path, output: Path, parameters: Mapping[str, Any]) -> None:
    """Run all cells with papermill. Raises JobError if the kernel does not start or dies."""
    from nbclient.exceptions import DeadKernelError
    from papermill.execute import execute_notebook
    from traitlets.config import Config

    streams = {"stdout_file": sys.stdout, "stderr_file": sys.stderr, "progress_bar": False}
    limits = {"kernel_name": "python3", "start_timeout": KERNEL_START_SECONDS}
    config = Config({"KernelManager": kernel_encryption()})
    for left in reversed(range(KERNEL_STARTS)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # from dependencies of papermill and nbclient
                execute_notebook(
                    str(source), str(output), dict(parameters), config=config, **limits, **streams
                )
            return
        except DeadKernelError as error:
            raise JobError(
                f"{source.name}: the kernel died while a cell ran: it was killed, or the machine ran out of "
                f"memory.\n  The executed notebook, up to the failure: {display(output)}"
            ) from error
        except RuntimeError as error:
            if STILLBORN not in str(error):
                raise
            if not left:
                raise JobError(
                    f"{source.name}: the kernel died before the first cell in {KERNEL_STARTS} attempts. Its "
                    f"output is above; run `{sys.executable} -m ipykernel_launcher` to start a kernel by "
                    "hand."
                ) from error


def _settle(output: Path, folder: Path) -> None:
    """Adapt the text of an executed notebook, which was written for `folder`, to the folder of `output`.

    Relative links are rewritten, except links whose target does not exist. Pictures of expected outputs are
    removed, because the notebook now has real outputs.
    """
    import nbformat

    def moved(link: re.Match[str]) -> str:
        target = folder / link[0]
        return os.path.relpath(target, output.parent) if target.exists() else link[0]

    content = nbformat.read(output, as_version=4)
    content.cells = [cell for cell in content.cells if EXPECTED_PICTURE not in cell.metadata.get("tags", [])]
    for cell in content.cells:
        if cell.cell_type == "markdown":
            cell.source = RELATIVE_LINK.sub(moved, cell.source)
    name_file(content, display(output))
    files.write_text(output, nbformat.writes(content))


def folder_of(run: Any) -> Path:
    """Return the folder for executed notebooks.

    If `run` is a run's name, it is notebooks/ in the directory of that run; if `run` is a path or None, it is
    notebooks/ in the output directory. Raises ConfigError if `run` names neither a run nor a run YAML.
    """
    others = output_root() / "notebooks"
    if run is None:
        return others
    if isinstance(run, str) and valid_name(run):
        directory = RunDir.named(run)
        if not directory.exists():
            find_yaml(run)
        return directory.notebooks
    if not (isinstance(run, str) and any(RunDir(folder).exists() for folder in (resolve(run), run))):
        find_yaml(run)
    return others


def typed_parameters(notebook: str, words: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Parse parameters from the command line: as text if the notebook annotates them as str, else as YAML."""
    types = annotated_types(_parameters_cell(find_notebook(notebook)))
    parameters: dict[str, Any] = {}
    for name, word in words:
        try:
            parameters[name] = word if types.get(name) is str else parse_value(word)
        except ValueError as error:
            raise ConfigError(f"parameter {shortened(name)} = {shortened(word)}: {error}") from error
    return parameters


def check_parameter_names(source: Path, parameters: Mapping[str, Any]) -> None:
    """Raise ConfigError for a parameter that the notebook's parameters cell does not assign."""
    known = assigned_names(_parameters_cell(source))
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise ConfigError(
            f"{source.name} has no parameter {', '.join(unknown)}. Its parameters are {', '.join(known)}."
        )


def read_notebook(source: Path) -> Any:
    """Return a notebook (nbformat). Raises ConfigError if the file is not one."""
    import nbformat

    try:
        notebook = nbformat.read(source, as_version=4)
        if not isinstance(notebook.cells, list):
            raise TypeError("cells is not a list")
        return notebook
    except (ValueError, KeyError, TypeError, AttributeError, nbformat.ValidationError) as error:
        # If the JSON is not a notebook, nbformat only says which part is missing or has the wrong type.
        why = shortened(str(error).partition("\n")[0])
        raise ConfigError(f"{source}: not a notebook ({why}): name a file that ends in .ipynb.") from None


def _parameters_cell(source: Path) -> str:
    cells = read_notebook(source).cells
    tagged = [cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    if not tagged:
        raise ConfigError(
            f"{source.name} has no cell tagged `parameters`. Add this tag to the cell that assigns the "
            "notebook's parameters."
        )
    return tagged[0]


def write_html(notebook: Path) -> Path:
    """Write an executed notebook as one HTML page that needs no network, and return its path.

    The state of the widgets is omitted: with it, nbconvert would load a widget manager from a CDN and show
    nothing offline; without the state, it shows the static picture that every nbtrain widget includes.
    """
    import nbformat
    from nbconvert import HTMLExporter

    from nbtrain.lab.export import without_folded_sources, without_widgets

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content = nbformat.read(notebook, as_version=4)
        without_widgets(content)
        without_folded_sources(content)
        exporter = HTMLExporter()
        # Otherwise the page would load these libraries from a CDN.
        exporter.mathjax_url = exporter.require_js_url = ""
        exporter.mermaid_js_url = exporter.mermaid_layout_elk_js_url = ""
        exporter.embed_images = True
        page, _ = exporter.from_notebook_node(content, {"metadata": {"path": str(notebook.parent)}})
    html = notebook.with_suffix(".html")
    files.write_text(html, page)
    return html
