"""The demo as `make demo` runs it: gpt-tiny from data to text in notebooks 01 to 05, and 00.

`make test` trains twelve steps and runs the cells of all these notebooks without kernels. `make soak` has the
demo at full length, as in the README, and a tenth of it with overrides, which every record of the run keeps.
"""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nbtrain.api.run import open_run
from nbtrain.cli import __main__ as cli
from nbtrain.cli import demo as demo_command
from nbtrain.cli.demo import DEMO_NOTEBOOKS, DemoSummary
from nbtrain.cli.notebook_runner import ExecutedNotebook, find_notebook, run_notebook
from nbtrain.dataset.views.baselines import baselines
from nbtrain.lab.widgets.record import records_in
from nbtrain.monitor.run.certificate import certificate_problems, read_certificate

if TYPE_CHECKING:
    import nbformat

# A tenth of the tokens in 120 steps of 1,024, an eighth of the layers' parameters, an eighth of the text.
A_TENTH = (
    "model.num_layers=2",
    "model.hidden_size=128",
    "model.num_attention_heads=2",
    "model.seq_length=128",
    "data.sources=[{kind: python-docs, max_bytes: 1_000_000}]",
    "batch.train_tokens=122_880",
    "batch.micro_batch_size=8",
    "batch.global_batch_size=8",
    "lr_schedule.lr_warmup_tokens=6_144",
    "checkpoint.save_interval_steps=40",
    "evaluation.eval_interval_steps=40",
)
# Twelve steps of 512 tokens of random words.
TWELVE_STEPS = (
    "model.num_layers=2",
    "model.hidden_size=64",
    "model.num_attention_heads=2",
    "model.seq_length=64",
    "tokenizer.name=mock",
    "tokenizer.vocab_size=512",
    "data.name=mock",
    "data.sources=[{kind: mock}]",
    "batch.train_tokens=6_144",
    "batch.micro_batch_size=8",
    "batch.global_batch_size=8",
    "lr_schedule.lr_warmup_tokens=512",
    "evaluation.eval_iters=1",
)


def shown_without_a_kernel(name: str, parameters: Mapping[str, Any]) -> str:
    """Run the cells of a notebook in this process and return what their last expressions show."""
    cells = json.loads(find_notebook(name).read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    shown = []
    for number, source in enumerate(sources):
        *before, last = ast.parse(source).body
        is_value = isinstance(last, ast.Expr)
        exec(compile(ast.Module(before if is_value else [*before, last], []), name, "exec"), names)
        value = eval(compile(ast.Expression(last.value), name, "eval"), names) if is_value else None
        shown += [] if value is None else [repr(value), getattr(value, "_repr_html_", str)()]
        if number == 0:  # papermill puts the given parameters after this cell
            names |= parameters
    return "\n".join(filter(None, shown))


@pytest.mark.slow
def test_the_demo_of_twelve_steps(workspace, monkeypatch, capsys):
    """The demo runs the cells of its notebooks in order, from the data to a text; the summary has the run's
    figures, a second call repeats nothing, and notebook 00 takes up the same run.
    """
    shown: dict[str, str] = {}

    def run_here(name: str, parameters: Mapping[str, Any], output: Path) -> ExecutedNotebook:
        assert name not in shown
        shown[name] = shown_without_a_kernel(name, parameters)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.touch()
        return ExecutedNotebook(output, output.with_suffix(".html"))

    monkeypatch.setattr(demo_command, "run_notebook", run_here)
    command = ["demo", "gpt-tiny", *TWELVE_STEPS]
    assert cli.main(command) == 0
    summary = capsys.readouterr().out
    run = open_run("gpt-tiny")
    assert (run.state, run.summary()["steps"]) == ("SUCCEEDED", 12)
    assert f"\nvalidation loss  {run.summary()['last_validation_loss']:.4f}\n" in summary
    assert f"\nbigram model     {baselines(run.config).bigram_nats:.4f} (add-k smoothing)\n" in summary
    assert re.search(r"speed +[\d,]+ tokens/s", summary) and "Return the " in summary
    assert list(shown) == list(DEMO_NOTEBOOKS) and all(f"{name}.ipynb" in summary for name in shown)
    assert "ok: sha256 of all 2 files matches the manifest" in shown["01_prepare_data"]
    assert "fits: yes, " in shown["02_plan"] and "Layouts of gpt-tiny on 16 x A100" in shown["02_plan"]
    assert "Run('gpt-tiny'" in shown["03_launch"] and "SUCCEEDED" in shown["04_monitor"]
    assert "Return the " in shown["05_generate"] and " tokens, maximum length, score " in shown["05_generate"]

    assert cli.main(command) == 0
    assert "\nvalidation loss  " in capsys.readouterr().out
    jobs = run.directory.job_ids()
    whole = shown_without_a_kernel("00_quickstart", {"overrides": shlex.join(TWELVE_STEPS)})
    assert "SUCCEEDED" in whole and "Return the " in capsys.readouterr().out
    assert run.directory.job_ids() == jobs and len(jobs) == 1
    certificate = read_certificate(run.directory.certificate_json)
    assert certificate.steps == list(range(1, 13)) and certificate_problems(run.directory) == []


def demo(workspace, overrides) -> str:
    """Run `nbtrain demo` in an empty home directory and return its output."""
    home = workspace / "home"
    home.mkdir(exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-m", "nbtrain.cli", "demo", *(["gpt-tiny", *overrides] if overrides else [])],
        env={**environment, "HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def texts(notebook: "nbformat.NotebookNode") -> str:
    """Return all text that an executed notebook shows, and assert that its last outputs are static."""
    outputs = [cell["outputs"] for cell in notebook.cells if cell.get("outputs")]
    assert outputs, "it shows nothing"
    assert not any("widget-view" in kind for one in outputs[-1] for kind in one.get("data", {}))
    return "\n".join(
        str(text)
        for cell in outputs
        for one in cell
        for text in (one.get("text", ""), *one.get("data", {}).values())
    )


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    "overrides, steps, below_unigram_nats, is_whole",
    [
        pytest.param(A_TENTH, 120, 0.1, False, id="a tenth"),
        pytest.param((), 400, 2.0, True, id="whole"),
    ],
)
def test_the_demo_trains_a_model_that_knows_its_text(
    workspace, overrides, steps, below_unigram_nats, is_whole
):
    """The demo's losses are well below unigram and bigram loss, and its notebooks and HTML pages exist.

    A second call of the whole demo repeats nothing.
    """
    summary = demo(workspace, overrides)
    run = open_run("gpt-tiny")
    base = baselines(run.config)
    loss = run.summary()["last_validation_loss"]
    assert run.state == "SUCCEEDED"
    assert run.summary()["steps"] == steps
    assert loss <= base.unigram_entropy_nats - below_unigram_nats
    assert loss < base.bigram_nats or not is_whole
    assert f"\nvalidation loss  {loss:.4f}\n" in summary
    assert f"\nbigram model     {base.bigram_nats:.4f} (add-k smoothing)\n" in summary
    assert re.search(r"speed +[\d,]+ tokens/s", summary)

    import nbformat  # with jsonschema, which takes seconds; every test process collects this file

    folder, shown = run.directory.notebooks, {}
    for name in DEMO_NOTEBOOKS:
        executed = nbformat.read(folder / f"{name}.ipynb", 4)
        shown[name] = texts(executed)
        # The overrides are in the executed notebook.
        assert any(
            f"overrides = {json.dumps(shlex.join(overrides))}" in cell.source for cell in executed.cells
        )
        page = (folder / f"{name}.html").read_text()
        # Documents of the data contain addresses as text; a browser fetches only those in attributes.
        body = re.sub(r"<a [^>]*>", "", page).partition("<body")[2]
        assert not re.findall(r"<[^>]+(?:src|href)=[\"']?https?://[^>]*>", body), f"{name} needs a network"
        assert name in summary
    assert "SUCCEEDED" in shown["03_launch"]
    [record] = records_in(nbformat.read(folder / "03_launch.ipynb", 4))
    assert (record["run"], record["run_id"]) == ("gpt-tiny", run.directory.run_id)
    assert record["parameters"]["overrides"] == shlex.join(overrides)
    assert record["again"] == "nbtrain notebook --again output/gpt-tiny/notebooks/03_launch.ipynb"
    assert record["again"] in (folder / "03_launch.html").read_text()
    certificate = read_certificate(run.directory.certificate_json)
    assert certificate.steps == list(range(1, steps + 1)) and certificate_problems(run.directory) == []
    assert certificate.parts[0].provenance.settings == record["settings"]
    assert "image/png" in (folder / "04_monitor.ipynb").read_text()
    assert "Return the " in shown["05_generate"] and "mean log-probability" in shown["05_generate"]

    jobs = run.directory.job_ids()
    if is_whole:
        before = {path: path.stat().st_mtime_ns for path in run.directory.path.rglob("*") if path.is_file()}
        again = demo(workspace, overrides)
        assert f"\nvalidation loss  {loss:.4f}\n" in again
        after = {path: path.stat().st_mtime_ns for path in run.directory.path.rglob("*") if path.is_file()}
        assert after == before, "the second call wrote over something"

    whole = run_notebook("00_quickstart", {"run": "gpt-tiny", "overrides": shlex.join(overrides)})
    assert "Return the " in texts(nbformat.read(whole.notebook, 4))
    assert run.directory.job_ids() == jobs


def test_a_summary_of_data_too_small_to_validate_on():
    """If the data is too small for validation, the summary shows dashes for the missing values."""
    end = {"steps": 4, "loss": 5.25, "samples_per_second": 9.0}
    config = SimpleNamespace(model=SimpleNamespace(seq_length=100))
    run = SimpleNamespace(name="tiny", state="SUCCEEDED", unfinished=None, config=config, summary=lambda: end)
    summary = DemoSummary(run, None, "def", [], 3.0)
    lines = [" ".join(line.split()) for line in str(summary).splitlines()]
    assert "training loss 5.2500 nats per token" in lines
    assert "bigram model - (add-k smoothing)" in lines
    assert "unigram entropy -" in lines
    assert "speed 900 tokens/s" in lines
