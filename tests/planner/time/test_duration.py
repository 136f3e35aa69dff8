"""Run times: the upstream examples, batch-size ramp-up, pauses, evaluation, CPU cores, and measured
throughput of an earlier job.
"""

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_bytes
from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig
from nbtrain.planner.setup.last_job import record_of
from nbtrain.planner.setup.setup import setup_of
from nbtrain.planner.time import rates
from nbtrain.planner.time.duration import bubble_fraction, estimate_duration
from nbtrain.planner.time.step import estimate_step, forward_seconds

HOUR, DAY = 3600, 86400

pytestmark = pytest.mark.usefixtures("examples")


def step_seconds(config: RunConfig) -> float:
    found = estimate_step(setup_of(config))
    assert found is not None
    return found.seconds


# --- the upstream example ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gpt-125m", 8 * HOUR),
        ("gpt-125m-2xdp", 4 * HOUR),
        ("gpt-125m-4xdp", 2 * HOUR),
        ("gpt-1-3b-4xdp", 8 * DAY),
        ("gpt-1-3b-8xdp", 4 * DAY),
    ],
)
def test_published_times_come_out(name, published):
    """Planned times are within 15 % of the published ones: about 8, 4 and 2 hours, and 8 and 4 days."""
    assert estimate_duration(load(name), engine="upstream").seconds == pytest.approx(published, rel=0.15)


def test_the_measured_step_comes_out():
    """The planned step of the 125M model with 64 sequences on one H200 is within 10 % of the measured 0.344 s
    (docs/evidence/benchmarks.md).
    """
    overrides = {
        "batch": {"micro_batch_size": 16, "global_batch_size": 64},
        "model": {"hidden_dropout": 0.0, "attention_dropout": 0.0},
        "precision.dtype": "bf16",
        "parallel.zero_stage": 1,
        "tokenizer.vocab_size": 52_000,
        "resources.gpu_type": "H200",
    }
    assert step_seconds(load("gpt-125m", overrides)) == pytest.approx(0.344, rel=0.1)


def test_the_golden_time_part_by_part():
    """The plan meets each part of the 7.56 h in the log: 4,769 steps, 48 validations of 10 batches, and 47
    pauses of 29 s.
    """
    config = load("gpt-125m")
    parts = estimate_duration(config, engine="upstream").parts
    assert list(parts) == ["steps", "validation", "test", "checkpoints"]
    assert parts["steps"] == pytest.approx(7.56 * HOUR, rel=0.1)
    assert (parts["validation"] + parts["checkpoints"]) / 48 == pytest.approx(29, rel=0.1)
    assert sum(parts.values()) == pytest.approx(7.95 * HOUR, rel=0.1)


def test_a_pipeline_of_four_does_not_reach_two_days():
    """1.3B on 16 GPUs takes more than two days with four pipeline stages, which are idle for at least 27 % of
    the time, and two days with data parallelism.
    """
    piped, plain = load("gpt-1-3b-4xdp-4xpp"), load("gpt-1-3b-8xdp")
    assert bubble_fraction(piped) > 3 / 11
    seconds = estimate_duration(piped, engine="upstream").seconds
    assert seconds is not None and seconds > 2.4 * DAY
    wide = load("gpt-1-3b-8xdp", ["parallel.data_parallel_size=16", "resources.nodes=2"])
    assert estimate_duration(wide).seconds == pytest.approx(estimate_duration(plain).seconds / 2, rel=0.1)


# --- what costs time -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt-125m", "gpt-13b-4xdp-4xpp"])
def test_recomputation_costs_time(name):
    """Full recomputation adds 20 to 33 % to the run time; selective recomputation with flash attention adds
    about 1 %.
    """
    kinds = ("none", "selective", "full")
    key = "parallel.activation_checkpointing.granularity"
    none, selective, full = (step_seconds(load(name, [f"{key}={kind}"], check=False)) for kind in kinds)
    assert 1.001 * none < selective < 1.03 * none
    assert 1.2 * none < full < 1.4 * none


def test_zero_3_over_two_machines_is_slower_than_one_gpu():
    """48.8B with ZeRO 3 is slower per GPU on two machines of 8 GPUs than on one, because ranks wait for
    network traffic.
    """
    wide = load(
        "gpt-13b-4xdp-4xpp",
        [
            "model={num_layers: 60, hidden_size: 8192, num_attention_heads: 64}",
            "parallel={data_parallel_size: 16, pipeline_parallel_size: 1, zero_stage: 3}",
            "batch.micro_batch_size=1",
        ],
        check=False,
    )
    found = estimate_duration(wide)
    assert found.step is not None
    assert found.step.data > 0.2 * found.step.seconds
    assert "data-parallel traffic" in found.basis


def test_a_trial_takes_its_steps_only():
    """A trial with batch.max_steps takes only the time of its steps, one validation, the test and one
    checkpoint, with the learning-rate schedule of the whole run.
    """
    trial = load("gpt-125m", ["batch.max_steps=100", "checkpoint.async_save=false"])
    one = step_seconds(trial)
    step = estimate_step(setup_of(trial))
    assert step is not None
    expected = 100 * one + 2 * 10 * forward_seconds(step) + checkpoint_bytes(trial) / 0.18e9
    assert estimate_duration(trial).seconds == pytest.approx(expected)


@pytest.mark.parametrize(
    ("overrides", "batches"),
    [
        ({"mode": "perf"}, (0, 0)),
        ({"evaluation.eval_iters": 0}, (0, 0)),
        ({"data.split": "95,5,0"}, (10, 0)),
        ({"data.split": "94,5,1"}, (10, 10)),
        ({"mode": "eval", "data.split": "95,5,0"}, (10, 0)),
        ({"mode": "eval", "data.split": "94,5,1"}, (10, 10)),
    ],
)
def test_the_trainer_reads_as_many_held_out_batches(overrides, batches):
    """The plan counts as many validation and test batches as the trainer reads: none in mode perf, and no
    test without a test split, whether the run trains or evaluates.
    """
    config = load("gpt-125m", {"batch.max_steps": 100, **overrides})
    step = estimate_step(setup_of(config))
    assert step is not None
    parts = estimate_duration(config).parts
    expected = [count * forward_seconds(step) for count in batches]
    assert [parts.get(name, 0.0) for name in ("validation", "test")] == pytest.approx(expected)


def test_a_ramp_up_has_steps_of_each_size():
    """With a batch-size ramp-up, the time is the sum over steps of each size: 64 sequences for 6,400 samples,
    128 for 6,400, and then 192.
    """
    ramp = "batch.rampup={start_batch_size: 64, batch_size_increment: 64, ramp_samples: 12800}"
    config = load("gpt-125m", [ramp, "batch.global_batch_size=192"], check=False)
    sizes = [config.batch_schedule.samples_after(n + 1) - config.batch_schedule.samples_after(n)
             for n in range(config.train_steps)]  # fmt: skip
    assert set(sizes) == {64, 128, 192}
    by_size = {
        size: step_seconds(load("gpt-125m", [f"batch.global_batch_size={size}"], check=False))
        for size in set(sizes)
    }
    expected = sum(by_size[size] for size in sizes)
    assert estimate_duration(config).parts["steps"] == pytest.approx(expected)


def test_checkpoints_in_the_background_take_a_host_copy():
    """Saving in the background pauses training only for the copy to host memory at 25 GB/s, not for writing
    at 0.18 GB/s, and for writing the last checkpoint. By default, that is how a run saves if the copy fits.
    """
    waits, copies, fits, tight = (
        estimate_duration(load("gpt-125m", overrides, check=False)).parts["checkpoints"]
        for overrides in (
            ["checkpoint.async_save=false"],
            ["checkpoint.async_save=true"],
            [],
            ["resources.memory_per_node_bytes=3000000000"],
        )
    )
    size = checkpoint_bytes(load("gpt-125m"))
    assert waits == tight == pytest.approx(48 * size / 0.18e9)
    assert copies == fits == pytest.approx(48 * size / 25e9 + size / 0.18e9)


def test_a_copy_that_is_written_slowly_delays_the_next_save():
    config = load("gpt-125m", ["checkpoint.save_interval_steps=2"])
    size, found = checkpoint_bytes(config), estimate_duration(config).parts
    saves, between = 2385, found["steps"] / 2385
    assert size / 0.18e9 > between
    late = size / 0.18e9 - between
    expected = saves * size / 25e9 + (saves - 1) * late + size / 0.18e9
    assert found["checkpoints"] == pytest.approx(expected)


def test_checkpoints_on_the_nodes_disks():
    """Saving to the nodes' own disks pauses training at 3 GB/s. The shared volume (0.18 GB/s) adds time only
    for the last checkpoint, or if a copy takes longer than the save interval.
    """
    local = [
        "checkpoint.local_dir=/nvme",
        "checkpoint.local_save_interval_steps=10",
        "checkpoint.async_save=false",
    ]
    config = load("gpt-125m", local, check=False)
    found = estimate_duration(config)
    parts, size = found.parts, checkpoint_bytes(config)
    assert parts["checkpoints"] == pytest.approx(48 * size / 3e9 + size / 0.18e9)
    assert found.local_save_seconds == pytest.approx(size / 3e9)
    assert found.save_seconds == pytest.approx(size / 3e9 + size / 0.18e9), "in the run directory"
    assert parts["local checkpoints"] == pytest.approx((476 - 47) * size / 3e9)
    slow = load("gpt-125m", [*local, "checkpoint.local_copy_bytes_per_second=1000000"], check=False)
    late = size / 1e6 - parts["steps"] / 48
    assert estimate_duration(slow).parts["checkpoints"] == pytest.approx(
        48 * size / 3e9 + 47 * late + size / 1e6
    )


def test_an_evaluation_takes_a_third_of_its_steps():
    """Evaluation reads eval_iters batches in validation and as many in the test, each in a third of the time
    of a training step.
    """
    config = load("gpt-125m", ["mode=eval", "evaluation.eval_iters=6"], check=False)
    step = estimate_step(setup_of(config))
    assert step is not None
    assert estimate_duration(config).seconds == pytest.approx(12 * forward_seconds(step))
    assert forward_seconds(step) == pytest.approx(step.compute / 3 + step.host)


def test_an_unknown_device_has_no_time():
    """For an unknown device, the time is None, with the reason."""
    unknown = estimate_duration(load("gpt-125m", ["resources.gpu_type=null"], check=False))
    assert unknown.seconds is None and unknown.basis == "unknown: resources.gpu_type is not set"
    v100 = ["resources.gpu_type=V100-32GB", "precision.dtype=bf16"]
    assert (
        estimate_duration(load("gpt-125m", v100, check=False)).basis
        == "unknown: the device table has no bf16 peak for V100-32GB"
    )


# --- a machine's cores ---------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "share"), [("fp32", 0.43), ("bf16", 0.76), ("fp16", 0.43)])
def test_the_rate_of_cores(monkeypatch, dtype, share):
    """The throughput of a CPU run is computed from the number of cores, the format's efficiency, and the rate
    of a core: 100 GFLOP/s if measured, and 166 GFLOP/s by default.
    """
    config = load("gpt3-tiny", ["resources.cpus_per_node=3", f"precision.dtype={dtype}"], check=False)
    monkeypatch.setattr(rates, "matmul_flops_per_core", lambda: 100e9)
    model = config.model
    flops = 72 * model.num_layers * model.hidden_size**2 + 12 * model.num_layers * 256 * model.hidden_size
    flops += 6 * config.padded_vocab_size * model.hidden_size
    measured_cores = estimate_duration(config).tokens_per_second
    assert measured_cores == pytest.approx(3 * share * 100e9 / flops, rel=1e-9)
    assumed = estimate_duration(config, use_measured=False).tokens_per_second
    assert assumed == pytest.approx(3 * share * 166e9 / flops, rel=1e-9)


# --- an earlier job's rate -----------------------------------------------------------------------


def finished(config: RunConfig, samples_per_second: float = 50.0) -> None:
    """Write summary.json of a finished run as the supervisor does."""
    directory = RunDir.named(config.name)
    directory.path.mkdir(parents=True, exist_ok=True)
    summary = {"samples_per_second": samples_per_second, "measured_with": record_of(config)}
    files.write_json(directory.summary_json, summary)


def test_the_same_setup_takes_the_measured_rate():
    """If the same setup has been run before, the plan uses its measured throughput unchanged."""
    config = load("gpt3-tiny")
    finished(config)
    found = estimate_duration(config)
    assert found.tokens_per_second == pytest.approx(50 * 256)
    assert found.basis == "12,800 tokens/s, measured by this run's last job"
    assert found.parts["steps"] == pytest.approx(1_228_800 / 12_800)
    assert "assumed" in estimate_duration(config, use_measured=False).basis


def test_a_slow_run_has_a_rate_too():
    """A measured throughput of half a sample per second is used. A throughput of 0, from a job without a
    complete step, is ignored.
    """
    config = load("gpt3-tiny")
    finished(config, 0.5)
    assert estimate_duration(config).tokens_per_second == pytest.approx(128)
    finished(config, 0.0)
    assert "assumed" in estimate_duration(config).basis


def test_another_model_does_not_take_the_measured_rate_as_it_is():
    """The throughput of one model is not used for another model whose planned steps take 150 times as
    long.
    """
    finished(load("gpt3-tiny"))
    large = estimate_duration(load("gpt3-tiny", ["model.num_layers=48", "model.hidden_size=1024"]))
    assert "assumed" in large.basis
    assert large.tokens_per_second is not None and large.tokens_per_second < 100


def test_a_near_match_is_scaled_and_says_so():
    """For a similar model with twice as many blocks, the measured throughput is scaled by the ratio of the
    two plans, and the plan says so.
    """
    tiny = load("gpt3-tiny")
    finished(tiny)
    near = load("gpt3-tiny", [f"model.num_layers={2 * tiny.model.num_layers}"])
    both = [estimate_duration(config, use_measured=False).tokens_per_second for config in (near, tiny)]
    assert both[0] and both[1]
    found = estimate_duration(near)
    assert found.tokens_per_second == pytest.approx(50 * 256 * both[0] / both[1], rel=1e-6)
    ratio = both[0] / both[1]
    assert found.basis == (
        "12,800 tokens/s, measured by this run's last job with different settings (num_layers), times "
        f"{ratio:.3g}, the ratio of both setups' planned rates"
    )


def test_adapters_are_named_by_their_section():
    """A note about adapters names the section of the YAML, not the planner's internal fields."""
    finished(load("gpt3-tiny"))
    adapted = load("gpt3-tiny", {"lora.rank": 8, "init_from": "a-run"})
    assert "this run's last job with different settings (lora), times" in estimate_duration(adapted).basis


@pytest.mark.parametrize("key", ["machine", "setup"])
def test_a_rate_of_another_machine_is_not_used(key):
    """A throughput that was measured on another machine or with another version of the planner is not
    used.
    """
    config = load("gpt3-tiny")
    finished(config)
    path = RunDir.named("gpt3-tiny").summary_json
    summary = files.read_json(path)
    summary["measured_with"][key] = "another" if key == "machine" else {"engine": "nbtrain"}
    files.write_json(path, summary)
    assert "assumed" in estimate_duration(config).basis


def test_a_rate_of_another_gpu_is_not_used():
    """A throughput that was measured on an A100 is not used for an H100."""
    finished(load("gpt-125m"))
    assert "measured" in estimate_duration(load("gpt-125m")).basis
    assert "measured by" not in estimate_duration(load("gpt-125m", ["resources.gpu_type=H100"])).basis
