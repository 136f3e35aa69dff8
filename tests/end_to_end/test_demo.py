"""The demo as `make demo` runs it: gpt-tiny from data to text in notebooks 01 to 05, and 00.

A smaller model and a tenth of the tokens are set by overrides, which every record of the run keeps. The demo
at full length, as in the README, and a second call are part of `make soak`.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from nbtrain.api.run import open_run
from nbtrain.cli.demo import DEMO_NOTEBOOKS, DemoSummary
from nbtrain.cli.notebook_runner import run_notebook
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
@pytest.mark.parametrize(
    "overrides, steps, below_unigram_nats, is_whole",
    [
        pytest.param(A_TENTH, 120, 0.1, False, id="a tenth"),
        pytest.param((), 400, 2.0, True, id="whole", marks=pytest.mark.soak),
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
    assert f"\nbigram model     {base.bigram_nats:.4f} (add-k, the same tokens)\n" in summary
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
    assert "bigram model - (add-k, the same tokens)" in lines
    assert "unigram entropy -" in lines
    assert "speed 900 tokens/s" in lines
