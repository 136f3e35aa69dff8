"""The demo, as `make demo` runs it: gpt-tiny from data to text, and again.

With a tenth of its tokens, by overrides, which every record of the run keeps. At its full length, as the
README has it, the demo is a part of `make soak`.
"""

import os
import re
import subprocess
import sys
import time

import pytest

from nbtrain.api.run import open_run
from nbtrain.cli.demo import DemoSummary
from nbtrain.dataset.look.baselines import baselines

# A tenth of the tokens in 120 steps of 1,024.
A_TENTH = (
    "batch.train_tokens=122_880",
    "batch.micro_batch_size=4",
    "batch.global_batch_size=4",
    "lr_schedule.lr_warmup_tokens=6_144",
    "checkpoint.save_interval_steps=40",
    "evaluation.eval_interval_steps=40",
)


def demo(workspace, overrides) -> str:
    """What `nbtrain demo` says; the empty home holds nothing that could help."""
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, steps, below_unigram_nats, is_below_bigram",
    [
        pytest.param(A_TENTH, 120, 0.1, False, id="a tenth"),
        pytest.param((), 600, 1.3, True, id="whole", marks=pytest.mark.soak),
    ],
)
def test_the_demo_trains_a_model_that_knows_its_text(
    workspace, overrides, steps, below_unigram_nats, is_below_bigram
):
    """Losses well under unigram and bigram, the pages are there, and a second call redoes nothing."""
    summary = demo(workspace, overrides)
    run = open_run("gpt-tiny")
    base = baselines(run.config)
    loss = run.summary()["last_validation_loss"]
    assert run.state == "SUCCEEDED"
    assert run.summary()["steps"] == steps
    assert loss <= base.unigram_entropy_nats - below_unigram_nats
    assert loss < base.bigram_nats or not is_below_bigram
    launched = (run.directory.notebooks / "03_launch.ipynb").read_text()
    assert f'overrides = \\"{" ".join(overrides)}\\"' in launched, (
        "what was changed is in the executed notebook"
    )
    assert f"validation loss    {loss:.4f}" in summary
    assert f"bigram model       {base.bigram_nats:.4f}" in summary
    assert re.search(r"speed +[\d,]+ tokens/s", summary)
    for name in ("01_prepare_data", "02_plan", "03_launch", "04_monitor", "05_generate"):
        page = (run.directory.notebooks / f"{name}.html").read_text()
        # Documents of the data hold addresses as text; what a browser fetches stands in attributes.
        body = re.sub(r"<a [^>]*>", "", page).partition("<body")[2]
        assert not re.findall(r"<[^>]+(?:src|href)=[\"']?https?://[^>]*>", body), f"{name} needs a network"
        assert name in summary

    jobs = run.directory.job_ids()
    before = {path: path.stat().st_mtime_ns for path in run.directory.path.rglob("*") if path.is_file()}
    started = time.monotonic()
    again = demo(workspace, overrides)
    print(f"second call: {time.monotonic() - started:.1f} s")
    assert f"validation loss    {loss:.4f}" in again
    assert run.directory.job_ids() == jobs
    after = {path: path.stat().st_mtime_ns for path in run.directory.path.rglob("*") if path.is_file()}
    assert after == before, "the second call wrote over something"


def test_a_summary_of_data_too_small_to_validate_on():
    """What there is none of is a dash."""
    summary = DemoSummary("tiny", "SUCCEEDED", 4, 5.25, None, None, None, 900.0, "def", [], 3.0)
    lines = [" ".join(line.split()) for line in str(summary).splitlines()]
    assert "training loss 5.2500 nats per token" in lines
    assert "bigram model - (add-k, the same tokens)" in lines
    assert "unigram entropy -" in lines
