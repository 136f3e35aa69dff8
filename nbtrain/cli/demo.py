"""`nbtrain demo`: the notebooks of gpt-tiny in order, headless, and a summary of what came out."""

import dataclasses
import hashlib
import json
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbtrain.api.run import open_run
from nbtrain.base import amounts, files
from nbtrain.base.rundir import RunDir
from nbtrain.base.workspace import display
from nbtrain.cli.notebook_runner import ExecutedNotebook, find_notebook, run_notebook

DEMO_NOTEBOOKS = ("01_prepare_data", "02_plan", "03_launch", "04_monitor", "05_generate")
NEED_THE_END = DEMO_NOTEBOOKS[2:]
SAMPLE_PROMPT = "Return the "


def run_demo(run: str, overrides: list[str]) -> "DemoSummary":
    """Prepare, plan, launch, watch and generate one run by its notebooks, then sum up."""
    from nbtrain.api import verbs as api

    started = time.monotonic()
    config = api.load(run, overrides)
    folder = RunDir.named(config.name).notebooks
    done_record = folder / "demo.json"
    parameters = {"run": run, "overrides": shlex.join(overrides)}
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
        if name not in NEED_THE_END or not open_run(config).unfinished:
            files.write_json(done_record, {**done, name: key})
    return demo_summary(open_run(config), executed, time.monotonic() - started)


def demo_key(source: Path, parameters: Mapping[str, Any], config: str) -> str:
    """A hash of all that an executed notebook depends on; it runs again when the hash changes."""
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
    """None if the data is too small to have baselines."""
    bigram_nats: float | None
    tokens_per_second: float | None
    sample: str
    executed: list[ExecutedNotebook]
    seconds: float
    unfinished: str | None = None
    """The warning before the figures, if the run did not come to its end; else None."""

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
    from nbtrain.api import verbs as api
    from nbtrain.dataset.look.baselines import Baselines, baselines

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
