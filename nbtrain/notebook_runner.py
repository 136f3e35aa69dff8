"""Notebooks with nobody watching: one through papermill, the demo, and JupyterLab itself.

run_notebook   parameters checked -> papermill -> executed .ipynb and .html -> the first error raised
run_demo       notebooks 01 to 05 for one run -> a summary; what is done is not done again
"""

import dataclasses
import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nbtrain import amounts, files
from nbtrain.config.load import find as find_yaml
from nbtrain.config.yaml_source import parse_value
from nbtrain.errors import ConfigError, JobError
from nbtrain.notebook_parameters import annotated_types, assigned_names
from nbtrain.rundir import RunDir
from nbtrain.workspace import bundled, display, output_root, resolve, valid_name, workspace

DEMO_NOTEBOOKS = ("01_prepare_data", "02_plan", "03_launch", "04_monitor", "05_generate")
NEED_THE_END = DEMO_NOTEBOOKS[2:]
SAMPLE_PROMPT = "Return the "


@dataclasses.dataclass(frozen=True)
class ExecutedNotebook:
    """Where an executed notebook and its page lie."""

    notebook: Path
    html: Path


def find_notebook(name: str) -> Path:
    """A notebook as typed, or one of nbtrain's own by its name."""
    typed = Path(name)
    if typed.is_file():
        return typed
    own = (workspace() / "notebooks", bundled("notebooks"))
    for folder in own:
        candidate = folder / f"{typed.stem}.ipynb"
        if candidate.is_file():
            return candidate
    known = ", ".join(sorted(path.stem for path in own[-1].glob("[0-9]*.ipynb")))
    raise ConfigError(f"{name}: no such notebook. nbtrain's own: {known}.")


def run_notebook(name: str, parameters: Mapping[str, Any], output: Path | None = None) -> ExecutedNotebook:
    """Execute a notebook with papermill; the executed notebook and its HTML are there even if a cell fails.

    Without `output` it goes to the folder of the run that the parameter `run` names. Raises ConfigError for a
    parameter that the notebook does not have and, before a folder is made for it, for a run that there is not; and
    JobError, naming the cell and ending with its error, where a cell fails.
    """
    source = find_notebook(name)
    check_parameter_names(source, parameters)
    if output is None:
        output = folder_of(parameters.get("run")) / source.name
    output.parent.mkdir(parents=True, exist_ok=True)
    from papermill.exceptions import PapermillExecutionError
    from papermill.execute import execute_notebook

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of papermill's and nbclient's own dependencies
            execute_notebook(
                str(source),
                str(output),
                parameters=dict(parameters),
                progress_bar=False,
                stdout_file=sys.stdout,
                stderr_file=sys.stderr,
                kernel_name="python3",
            )
    except PapermillExecutionError as error:
        raise JobError(
            f"{source.name}, cell {error.exec_count}: {error.ename}: {error.evalue}\n"
            f"  The executed notebook, up to the failure: {display(output)}"
        ) from error
    finally:
        html = write_html(output) if output.is_file() else output.with_suffix(".html")
    return ExecutedNotebook(output, html)


def folder_of(run: Any) -> Path:
    """Where the notebooks of a run go: its own folder where it is given by name, else the one of all others."""
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
    """Parameters as typed on a command line: text stays text where the notebook wants text, the rest is YAML."""
    types = annotated_types(_parameters_cell(find_notebook(notebook)))
    return {name: word if types.get(name) is str else parse_value(word) for name, word in words}


def check_parameter_names(source: Path, parameters: Mapping[str, Any]) -> None:
    """Raise ConfigError for a parameter that the notebook's parameters cell does not assign."""
    known = assigned_names(_parameters_cell(source))
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise ConfigError(f"{source.name} has no parameter {', '.join(unknown)}. It has: {', '.join(known)}.")


def _parameters_cell(source: Path) -> str:
    import nbformat

    cells = nbformat.read(source, as_version=4).cells
    tagged = [cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    if not tagged:
        raise ConfigError(f"{source.name} has no cell tagged `parameters`.")
    return tagged[0]


def write_html(notebook: Path) -> Path:
    """The executed notebook as one page that needs no network.

    The widgets' state is left out: with it, nbconvert would load a widget manager from a CDN and show
    nothing offline; without it, it shows the static picture that every widget of ours carries.
    """
    import nbformat
    from nbconvert import HTMLExporter

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content = nbformat.read(notebook, as_version=4)
        content.metadata.pop("widgets", None)
        for cell in content.cells:
            for output in cell.get("outputs", []):
                data = output.get("data", {})
                if "text/html" in data or "image/png" in data:
                    data.pop("application/vnd.jupyter.widget-view+json", None)
        exporter = HTMLExporter()
        # Libraries that nbconvert's page would load from a CDN, where its reader has a network.
        exporter.mathjax_url = exporter.require_js_url = ""
        exporter.mermaid_js_url = exporter.mermaid_layout_elk_js_url = ""
        page, _ = exporter.from_notebook_node(content)
    html = notebook.with_suffix(".html")
    files.write_text(html, page)
    return html


def run_demo(run: str, overrides: list[str]) -> "DemoSummary":
    """Prepare, plan, launch, watch and generate one run by its notebooks, then sum up."""
    from nbtrain import api

    started = time.monotonic()
    config = api.load(run, overrides)
    folder = RunDir.named(config.name).notebooks
    done_record = folder / "demo.json"
    parameters = {"run": run, "overrides": " ".join(overrides)}
    executed = []
    for name in DEMO_NOTEBOOKS:
        key = demo_key(find_notebook(name), parameters, config.model_dump_json())
        # Read anew each time: a run's first submission makes the folder.
        done = (files.read_json(done_record) or {}) if done_record.exists() else {}
        output = folder / f"{name}.ipynb"
        if done.get(name) == key and output.is_file():
            print(f"{name}: done before, {display(output)}", file=sys.stderr)
            executed.append(ExecutedNotebook(output, output.with_suffix(".html")))
            continue
        print(f"{name}: running", file=sys.stderr, flush=True)
        executed.append(run_notebook(name, parameters, output))
        # What was seen of a run that did not come to its end is looked at again once it has.
        if name not in NEED_THE_END or not api.open_run(config).unfinished:
            files.write_json(done_record, {**done, name: key})
    return demo_summary(api.open_run(config), executed, time.monotonic() - started)


def demo_key(source: Path, parameters: Mapping[str, Any], config: str) -> str:
    """What an executed notebook depends on; a change of any part runs it again."""
    text = json.dumps([files.sha256_of(source), dict(parameters), config])
    return hashlib.sha256(text.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class DemoSummary:
    """What `make demo` says last."""

    name: str
    state: str
    steps: int
    loss: float | None
    validation_loss: float | None
    unigram_entropy_nats: float | None
    """None where the data is too small to have baselines."""
    bigram_nats: float | None
    tokens_per_second: float | None
    sample: str
    executed: list[ExecutedNotebook]
    seconds: float
    unfinished: str | None = None
    """What there is to know before the figures of a run that did not come to its end."""

    def __str__(self) -> str:
        def figure(value: float | None, form: str) -> str:
            return "-" if value is None else format(value, form)

        notebooks = "\n".join(f"    {display(one.notebook)}   {one.html.name}" for one in self.executed)
        sample = "\n".join(f"    {line}" for line in self.sample.splitlines())
        first = self.unfinished or f"{self.name}: {self.state} after {amounts.counted(self.steps, 'step')}"
        return f"""
{first} ({self.seconds:.0f} s for this call)

  training loss      {figure(self.loss, ".4f")} nats per token
  validation loss    {figure(self.validation_loss, ".4f")}
  bigram model       {figure(self.bigram_nats, ".4f")}   (add-k, the same tokens)
  unigram entropy    {figure(self.unigram_entropy_nats, ".4f")}
  speed              {figure(self.tokens_per_second, ",.0f")} tokens/s

  a sample:
{sample}

  executed notebooks and their pages:
{notebooks}

  JupyterLab on the notebooks:  make lab      (or: nbtrain lab)
"""


def demo_summary(run: Any, executed: list[ExecutedNotebook], seconds: float) -> DemoSummary:
    """The figures of a finished run, its baselines and a sample."""
    from nbtrain import api
    from nbtrain.data.baselines import Baselines, baselines

    end = run.summary()
    found = baselines(run.config, too_small="explain")
    base = found if isinstance(found, Baselines) else None
    sequence = run.config.model.seq_length
    samples_per_second = end.get("samples_per_second")
    return DemoSummary(
        name=run.name,
        state=run.state,
        steps=end.get("steps", 0),
        loss=end.get("loss"),
        validation_loss=end.get("last_validation_loss"),
        unigram_entropy_nats=base.unigram_entropy_nats if base else None,
        bigram_nats=base.bigram_nats if base else None,
        tokens_per_second=samples_per_second * sequence if samples_per_second else None,
        sample=api.generate(run, SAMPLE_PROMPT, max_new_tokens=60),
        executed=executed,
        seconds=seconds,
        unfinished=run.unfinished,
    )


# docs/network.md says what each would contact. Options given behind `nbtrain lab` come later and win.
LAB_STAYS_AT_HOME = (
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
)


def lab_command(rest: list[str]) -> list[str]:
    """JupyterLab on the workspace: loopback, token, opened at the notebooks, asking no server for news or updates."""
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={workspace()}",
        "--LabApp.default_url=/lab/tree/notebooks/00_quickstart.ipynb",
        *LAB_STAYS_AT_HOME,
    ]
    if os.geteuid() == 0:
        command.append("--allow-root")
    return [*command, *rest]


def open_lab(rest: list[str]) -> int:
    """Become JupyterLab; does not return."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    command = lab_command(rest)
    os.execve(command[0], command, environment)
