"""`nbtrain demo`: run the notebooks of gpt-tiny in order without JupyterLab, and sum up the results."""

import dataclasses
import hashlib
import json
import shlex
import sys
import time
from typing import TYPE_CHECKING

from nbtrain.api.run import Run, open_run
from nbtrain.base import files
from nbtrain.base.errors import SubmitError
from nbtrain.base.printing.report import Code, Facts, Items, Report, Result, Sentence
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.cli.notebook_runner import ExecutedNotebook, find_notebook, run_notebook

if TYPE_CHECKING:
    from nbtrain.config.schema import RunConfig
    from nbtrain.dataset.views.baselines import Baselines

LAUNCH = "03_launch"
DEMO_NOTEBOOKS = ("01_prepare_data", "02_plan", LAUNCH, "04_monitor", "05_generate")
NEED_THE_END = DEMO_NOTEBOOKS[2:]
SAMPLE_PROMPT = "Return the "


def run_demo(run: str, overrides: list[str]) -> "DemoSummary":
    """Execute the demo's notebooks for one run (prepare, plan, launch, monitor, generate); return a summary.

    Raises SubmitError if the launch notebook did not launch the run.
    """
    from nbtrain.api import verbs as api

    started = time.monotonic()
    config = api.load(run, overrides)
    folder = RunDir.named(config.name).notebooks
    done_record = folder / "demo.json"
    parameters = {"run": run, "overrides": shlex.join(overrides)}
    executed = []
    for name in DEMO_NOTEBOOKS:
        # The hash covers everything that an executed notebook depends on: if it changes, the notebook runs
        # again.
        text = json.dumps([files.sha256_of(find_notebook(name)), parameters, config.model_dump_json()])
        key = hashlib.sha256(text.encode()).hexdigest()
        # Read the record again for each notebook, because the folder that holds it is created when the run is
        # first submitted.
        done = (files.read_json(done_record) or {}) if done_record.exists() else {}
        output = folder / f"{name}.ipynb"
        if done.get(name) == key and output.is_file():
            print(f"{name}: already executed, {display(output)}", file=sys.stderr)
            executed.append(ExecutedNotebook(output, output.with_suffix(".html")))
            continue
        print(f"{name}: running", file=sys.stderr, flush=True)
        executed.append(run_notebook(name, parameters, output))
        if name == LAUNCH and not RunDir.named(config.name).exists():
            raise SubmitError(f"{why_not(config)}\nThe executed notebook: {display(output)}")
        # Notebooks that show results are executed again once the run has finished.
        if name not in NEED_THE_END or not open_run(config).unfinished:
            files.write_json(done_record, {**done, name: key})
    return demo_summary(open_run(config), executed, time.monotonic() - started)


def why_not(config: "RunConfig") -> str:
    """Return a message with the reasons why notebook 03 did not launch the run.

    The notebook shows these reasons and ends without an error, so `nbtrain demo` has to report them.
    """
    from nbtrain.jobs.checks.preflight import preflight
    from nbtrain.jobs.request.launch import read_launch

    found = "".join(f"\n  - {problem}" for problem in preflight(read_launch(config)))
    return f"{config.name} was not launched, so there is nothing to watch or to generate from.{found}"


@dataclasses.dataclass(frozen=True, repr=False)
class DemoSummary(Result):
    """The summary that `nbtrain demo` prints at its end."""

    run: Run
    base: "Baselines | None"
    """Losses of the baselines; None if the data is too small for them."""
    sample: str
    executed: list[ExecutedNotebook]
    seconds: float

    def as_report(self) -> Report:
        """Return the run's losses, the baselines' losses, a sample, and the executed notebooks."""

        def figure(value: float | None, form: str = ".4f") -> str:
            return "-" if value is None else format(value, form)

        run, end = self.run, self.run.summary()
        speed = end.get("samples_per_second")
        speed = speed and speed * run.config.model.seq_length
        # If the run has not finished, the title is a warning.
        made = amounts.counted(end.get("steps", 0), "step")
        first = run.unfinished or f"{run.name}: {run.state} after {made}"
        losses = {
            "training loss": f"{figure(end.get('loss'))} nats per token",
            "validation loss": figure(end.get("last_validation_loss")),
            "bigram model": f"{figure(getattr(self.base, 'bigram_nats', None))} (add-k smoothing)",
            "unigram entropy": figure(getattr(self.base, "unigram_entropy_nats", None)),
            "speed": f"{figure(speed or None, ',.0f')} tokens/s",
        }
        notebooks = [f"{display(executed.notebook)}   {executed.html.name}" for executed in self.executed]
        blocks = [
            Facts(losses),
            Code(self.sample, "a sample:"),
            Items(notebooks, "executed notebooks, and their HTML pages:"),
            Sentence("Run `nbtrain lab` to open the notebooks in JupyterLab."),
        ]
        return Report(f"{first} ({self.seconds:.0f} s for this call)", blocks)


def demo_summary(run: "Run", executed: list[ExecutedNotebook], seconds: float) -> DemoSummary:
    """Return the summary of a run, with its baselines and a generated sample."""
    from nbtrain.api import verbs as api
    from nbtrain.dataset.views.baselines import Baselines, baselines

    found = baselines(run.config, too_small="explain")
    base = found if isinstance(found, Baselines) else None
    return DemoSummary(run, base, api.generate(run, SAMPLE_PROMPT, max_new_tokens=60), executed, seconds)
