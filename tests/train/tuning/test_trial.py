"""A trial that DeepSpeed's autotuner starts: measured by DeepSpeed, rejected, or followed by the job."""

import base64
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nbtrain.base import files
from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.events import read_events
from nbtrain.config.load import autotune, load_resolved
from nbtrain.train.tuning import __main__ as program
from nbtrain.train.tuning.trial import trial_config
from tests.train.launch import TIMEOUT_SECONDS, make_dataset, make_run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path, {"batch.global_batch_size": 8})


def given(metrics, **more):
    """Return the JSON of a trial as the autotuner writes it, with only the stage in its ZeRO section."""
    tuned = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}, **more}
    return {"autotuning": {"enabled": True, "metric_path": str(metrics)}, **tuned}


@pytest.mark.slow
def test_a_trial_ends_when_deepspeed_has_measured_it(forked, run, tmp_path):
    """A trial trains on two ranks with the sizes in its JSON, until DeepSpeed ends it and writes its metrics.

    The log of DeepSpeed's engine shows 8 sequences in micro batches of 4 on each rank.
    """
    config = load_resolved(run.config_yaml)
    wider = {"parallel": config.parallel.model_copy(update={"data_parallel_size": 2})}
    files.write_text(run.config_yaml, program.to_yaml(config.model_copy(update=wider)))
    metrics = tmp_path / "metrics.json"
    text = base64.urlsafe_b64encode(json.dumps(given(metrics)).encode()).decode()
    ended = forked.server.run(
        *(2, "nbtrain.train.tuning.__main__:main"),
        [["--local_rank=0", str(run.path), "--deepspeed_config", text]],
        log=tmp_path / "{rank}.log",
        environment={"NBTRAIN_DATA": str(forked.data_home)},
        timeout_seconds=TIMEOUT_SECONDS,
    )
    assert ended.succeeded, ended.last_output(40)
    found = json.loads(metrics.read_text())
    assert found["throughput"] == pytest.approx(8 * 1e6 / found["latency"]) and found["FLOPS_per_gpu"] > 0
    job = run.newest_job()
    assert not list((job.path / "heartbeat").iterdir()), "a trial is not a rank of the job"
    assert [event["ended"] for event in read_events(job) if event["kind"] == "trial"] == [False, True]
    assert not list(run.checkpoint_steps())


@pytest.mark.slow
def test_what_a_trial_refuses(run):
    """A trial that is rejected prints a message with "Error", because the autotuner searches stderr for this
    word.
    """
    config = load_resolved(run.config_yaml)
    with pytest.raises(ConfigError) as caught:
        trial_config(config, {"zero_optimization": {"stage": 1}})
    assert str(caught.value) == (
        "--deepspeed_config: autotuning.enabled is not true, and without it DeepSpeed never ends a trial. "
        "Start trials with `deepspeed --autotuning tune`, which sets autotuning.enabled to true."
    )
    with pytest.raises(ConfigError, match=r"batch\.global_batch_size"):
        trial_config(config, given("m.json", train_micro_batch_size_per_gpu=3))
    script = "import sys; from nbtrain.train.tuning.__main__ import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", script, str(run.path), "--deepspeed_config", "bm9uZQ=="]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert ended.returncode == ConfigError.exit_code and ended.stderr.startswith(
        "ConfigError: --deepspeed_config bm9uZQ==: is neither the path of a JSON file nor "
        "base64-encoded JSON: "
    )


def test_after_the_tuning_a_node_becomes_the_agent_with_what_was_found(run, monkeypatch):
    """After tuning, rank 0 writes the result to the configuration, and the first rank of each node starts the
    node agent, as in a pod.
    """
    called = []
    monkeypatch.setattr(os, "execvpe", lambda *arguments: called.append(arguments))
    run.autotuning_results.mkdir()
    optimum = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}}
    files.write_json(run.autotuning_optimum, optimum)
    for name, value in {"LOCAL_RANK": "1", "RANK": "1", "CROSS_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    program.train(run, ["python3", "-m", "nbtrain.jobs.node"])
    assert called == [] and load_resolved(run.config_yaml).batch.micro_batch_size == 2
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("RANK", "0")
    program.train(run, ["python3", "-m", "nbtrain.jobs.node"])
    config = load_resolved(run.config_yaml)
    assert (config.batch.micro_batch_size, config.parallel.zero_stage) == (8, 2)
    ((name, words, environment),) = called
    assert (name, words) == ("python3", ["python3", "-m", "nbtrain.jobs.node"])
    assert environment["NBTRAIN_NODE_RANK"] == "0" and not set(program.OF_A_RANK) & set(environment)


@pytest.mark.soak
def test_deepspeeds_own_launcher_tunes_and_then_starts_the_agent(tmp_path):
    """On this machine, `deepspeed --autotuning run` tries two micro-batch sizes on one slot, 20 s each, and
    then starts the agent.
    """
    assert importlib.util.find_spec("tabulate"), "DeepSpeed's autotuner needs it: pip install tabulate"
    make_dataset(tmp_path / "data")
    run = make_run(tmp_path, {"batch.global_batch_size": 8})
    job, then = run.newest_job(), tmp_path / "then"
    given = autotune.tuner_json(load_resolved(run.config_yaml), str(run.path))
    given |= {"train_micro_batch_size_per_gpu": [2, 4], "gradient_accumulation_steps": 2}
    given["zero_optimization"]["stage"] = [1]
    files.write_json(job.autotune_json, given)
    files.write_text(job.autotune_script, autotune.SCRIPT)
    # After each trial, DeepSpeed would otherwise have pdsh call `pkill -f` on the node.
    pdsh = tmp_path / "bin" / "pdsh"
    pdsh.parent.mkdir()
    pdsh.write_text("#!/bin/sh\n")
    pdsh.chmod(0o755)
    path = f"{pdsh.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"NBTRAIN_DATA": str(tmp_path / "data"), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", str(tmp_path / "none")]
    words += ["--autotuning", "run", str(job.autotune_script), str(run.path)]
    words += ["--deepspeed_config", str(job.autotune_json), "--then", "touch", str(then)]
    ended = subprocess.run(
        words, env={**os.environ, **own, "PATH": path}, capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    assert then.exists()
    best = json.loads(run.autotuning_optimum.read_text())["train_micro_batch_size_per_gpu"]
    assert load_resolved(run.config_yaml).batch.micro_batch_size == best
    trials = sorted(one.parent.name for one in run.autotuning_results.glob("*/metrics.json"))
    assert trials == ["z1_gas2_tmbspg4", "z1_gas4_tmbspg2"]
