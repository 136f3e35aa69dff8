"""The complete plan: time, disk space and warnings, in all output formats."""

import json

import numpy as np
import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import dataset_dir
from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_bytes
from nbtrain.config.load import load
from nbtrain.dataset.of_run import dataset_of
from nbtrain.planner.budget.disk import DatasetSize, estimate_disk, num_checkpoints
from nbtrain.planner.picture import plan_picture
from nbtrain.planner.plan import plan
from nbtrain.planner.setup.last_job import record_of
from nbtrain.planner.time import rates
from nbtrain.planner.time.duration import estimate_duration
from tests.dataset.indexed_writer import IndexedWriter

HOUR, DAY = 3600, 86400

pytestmark = pytest.mark.usefixtures("examples")


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "share", "per_core"), [("fp32", "43%", "86"), ("bf16", "76%", "152")])
def test_a_cpu_run_is_planned_by_what_its_cores_do(monkeypatch, dtype, share, per_core):
    """The time of a CPU run follows from the measured matrix rate of this machine; at twice the rate, it is
    half as long.
    """
    config = load("gpt3-tiny", [f"precision.dtype={dtype}", "resources.cpus_per_node=4"], check=False)
    monkeypatch.setattr(rates, "matmul_flops_per_core", lambda: 200e9)
    estimate = estimate_duration(config)
    assert estimate.basis == (
        f"assumed {per_core} GFLOP/s on each of 4 cores: {share} of the 200 GFLOP/s measured on this machine "
        f"for fp32 matrix products, which is the fraction that training in {dtype} reached in the benchmarks"
    )
    monkeypatch.setattr(rates, "matmul_flops_per_core", lambda: 400e9)
    twice = estimate_duration(config).parts["steps"]
    assert twice == pytest.approx(estimate.parts["steps"] / 2)
    monkeypatch.setattr(rates, "matmul_flops_per_core", lambda: None)
    assert "of the 166 GFLOP/s assumed for fp32 matrix products" in estimate_duration(config).basis


@pytest.mark.parametrize(
    ("overrides", "tokens_per_second"),
    [
        ([], 6000),
        (
            [
                "model.num_layers=6",
                "model.hidden_size=384",
                "model.num_attention_heads=6",
                "model.seq_length=512",
                "tokenizer.vocab_size=8192",
                "precision.dtype=bf16",
            ],
            2600,
        ),
    ],
)
def test_the_benchmarks_come_out(monkeypatch, overrides, tokens_per_second):
    """On any machine, the plan reproduces docs/evidence/benchmarks.md: gpt3-tiny in fp32 and a 14M model in
    bf16 on 2 cores.
    """
    monkeypatch.setattr(rates, "matmul_flops_per_core", None)
    config = load("gpt3-tiny", [*overrides, "resources.cpus_per_node=2"], check=False)
    rate = estimate_duration(config, use_measured=False).tokens_per_second
    assert rate == pytest.approx(tokens_per_second, rel=0.02)


def test_a_gpu_run_measures_no_cpu(monkeypatch):
    """The cores are not measured for a GPU run, nor for a CPU run whose rate is configured."""
    monkeypatch.setattr(rates, "matmul_flops_per_core", None)
    assert estimate_duration(load("gpt-125m")).seconds
    directory = RunDir.named("gpt3-tiny")
    directory.path.mkdir(parents=True)
    summary = {"samples_per_second": 50.0, "measured_with": record_of(load("gpt3-tiny"))}
    files.write_json(directory.summary_json, summary)
    assert estimate_duration(load("gpt3-tiny")).tokens_per_second == pytest.approx(12_800)


@pytest.mark.parametrize(
    ("overrides", "basis"),
    [
        (["resources.gpu_type=null"], "unknown: resources.gpu_type is not set"),
        (
            ["resources.gpu_type=T4", "precision.dtype=bf16"],
            "unknown: the device table has no bf16 peak for T4",
        ),
    ],
)
def test_no_peak_no_time(overrides, basis):
    """Without a known rate of the device, the time is reported as unknown."""
    estimate = estimate_duration(load("gpt-125m", overrides, check=False))
    assert (estimate.seconds, estimate.basis) == (None, basis)


# --- disk -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "checkpoints"),
    [
        ([], 3),
        (["checkpoint.keep_last=5"], 6),
        (["checkpoint.keep_every_steps=1000"], 2 + 4 + 1),
        (["checkpoint.keep_best=true"], 2 + 1 + 1),
        (["batch.max_steps=2"], 1),
        (["batch.max_steps=150"], 2),
    ],
)
def test_checkpoints_on_disk(overrides, checkpoints):
    """The disk holds keep_last checkpoints, one that is being written, the best one and the permanent ones,
    but never more than the run writes.
    """
    assert num_checkpoints(load("gpt-125m", overrides)) == checkpoints


def test_a_checkpoint_has_14_bytes_a_parameter():
    """A checkpoint takes 14 bytes per parameter for 16-bit weights, fp32 master weights and two moments; with
    ZeRO 0 it takes 12, because there are no separate master weights.
    """
    for name, state in (("gpt-125m", 14 * 126_638_592), ("gpt3-tiny", 12 * 3_487_232)):
        config = load(name)
        assert estimate_disk(config).checkpoint_bytes == checkpoint_bytes(config)
        assert state < checkpoint_bytes(config) < state + 200_000


# --- the whole ------------------------------------------------------------------------------------


def a_dataset(tokens: int) -> None:
    """Write the manifest of a prepared dataset for the run gpt3-tiny."""
    folder = dataset_dir("python-docs-1k")
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(
        folder / "manifest.json",
        {
            "schema_version": 1,
            "json_key": "text",
            "sources": [],
            "counts": {"documents": 10, "tokens": tokens, "bytes": None, "dropped": {}},
            "vocab_size": 1024,
            "dtype": "uint16",
            "eod_id": 0,
            "tokenizer_sha256": None,
            "files": {"text_document.bin": {"bytes": 2 * tokens, "sha256": ""}},
        },
    )


def test_the_plan_of_a_prepared_dataset_counts_epochs():
    """The plan computes dataset size and epochs from the dataset's manifest, and warns if there are more than
    four epochs.
    """
    unknown = plan(load("gpt3-tiny"))
    assert (unknown.epochs, unknown.disk.dataset_bytes) == (None, None)
    a_dataset(2_000_000)
    known = plan(load("gpt3-tiny"))
    assert known.epochs == pytest.approx(1_228_800 / 1_800_000)
    assert known.disk.dataset_bytes == 4_000_000
    assert known.warnings == []
    longer = plan(load("gpt3-tiny", ["batch.train_tokens=9e6"]))
    assert (
        "The run reads its training text 5.0 times, but more than 4 passes add little (arXiv:2305.16264). "
        "Use more text, or lower train_tokens to 7,200,000, which is 4 passes."
    ) in longer.warnings


def test_epochs_are_those_of_the_idx_itself():
    """Tokens and documents are counted in the .idx file, not in the manifest; if they differ, or a file
    cannot be read, that is a finding.
    """
    config = load("gpt3-tiny", ["data.split=8,1,1"])
    pair = dataset_of(config)
    pair.directory.mkdir(parents=True)
    with IndexedWriter(pair.prefix, 1024, 0) as writer:
        for length in (99, 99, 99, 99, 99, 99, 99, 99, 299, 399):
            writer.add_document(np.ones(length, np.uint16))
    assert plan(config).sections()["Training"]["epochs"] == (
        "1,536.00; the training split has 800 of the dataset's 1,500 tokens (10 documents, counted in the "
        ".idx)"
    )
    a_dataset(1_400)
    (problem,) = [one for one in plan(config).findings if one.rule == "dataset_counts_agree"]
    assert problem.text == (
        "data/dataset/python-docs-1k/text_document.idx has 1,500 tokens in 10 documents, but manifest.json "
        "lists 1,400 tokens in 10 documents, so the files have changed since the dataset was prepared. The "
        "plan uses the counts from the .idx file. Restore the files that the manifest lists, or run `nbtrain "
        "prepare RUN.yaml --force` to build the dataset again."
    )
    assert plan(config).epochs == 1536
    a_dataset(1_500)
    assert plan(config).disk.dataset == DatasetSize(1500, 10, 800, "the .idx")
    pair.idx.write_bytes(pair.idx.read_bytes()[:-8])
    broken = plan(config)
    assert broken.disk.dataset is not None
    assert (broken.disk.dataset.basis, broken.disk.dataset.train_tokens) == ("the manifest", 1200)
    (problem,) = [one for one in broken.findings if one.rule == "dataset_counts_agree"]
    assert "text_document.idx: the file has 234 bytes, but its header counts 10 sequences" in problem.text


def test_a_damaged_manifest_is_no_reason_to_have_no_plan():
    """With a damaged manifest, the plan treats the dataset as unknown; prepare and preflight report the
    damage.
    """
    folder = dataset_dir("python-docs-1k")
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{")
    assert plan(load("gpt3-tiny")).epochs is None


@pytest.mark.parametrize("run", ["gpt3-tiny", "gpt-125m-2xdp", "gpt-13b-4xdp-4xpp-4xtp", "gpt-175b"])
def test_a_plan_is_text_html_and_json(run):
    """A plan has the same numbers in text, HTML and JSON, and reading plan.json returns an equal plan."""
    result = plan(load(run))
    value = result.to_dict()
    assert json.loads(json.dumps(value)) == value
    assert value["parameters"]["total"] == result.parameters.total
    assert value["memory"]["total_bytes"] == sum(value["memory"]["parts"].values())
    for figure in (
        f"{result.parameters.total:,}",
        amounts.size(result.memory.total_bytes),
        result.duration.basis,
    ):
        assert figure in str(result)
        assert figure.replace("'", "&#x27;") in result._repr_html_()
    assert str(result).splitlines()[0] == f"Plan of {run}"


def test_the_plan_says_how_the_model_is_cut_and_what_leaves_the_device():
    """The plan lists the layers of each stage, Ulysses as a factor, and the parts that are in host memory and
    on NVMe.
    """
    piped = str(plan(load("gpt-1-3b-4xdp-4xpp")))
    assert "data(4) * pipeline(4) * tensor(1) = 16 processes, ZeRO 1, fp16" in piped
    assert "6 + 6 + 7 + 5 layers" in piped
    ulysses = [
        "parallel.data_parallel_size=2",
        "parallel.ds_sequence_parallel_size=2",
        "parallel.zero_stage=3",
        "parallel.offload_optimizer.device=cpu",
        "parallel.offload_param.device=nvme",
        "parallel.offload_param.nvme_path=/nvme",
    ]
    shown = plan(load("gpt-125m-4xdp", ulysses))
    assert shown.layout == "data(2) * pipeline(1) * tensor(1) * sequence(2) = 4 processes, ZeRO 3, fp16"
    quarter = 126_638_592 // 4
    assert f"  {amounts.size(2 * quarter)} per rank\n" in str(shown)
    parts = f"gradients {amounts.size(8 * quarter)}, master copy {amounts.size(4 * quarter)}, "
    assert f"{parts}optimizer {amounts.size(8 * quarter)}, buffers" in str(shown)
    assert shown.to_dict()["memory"]["nvme_bytes"] == 2 * quarter


def test_tokens_a_step_stand_as_an_equation():
    """The tokens of a step are shown as an equation with the value of each factor."""
    assert plan(load("gpt-125m-2xdp")).batch_equation == (
        "16 micro batch x 2 data parallel x 8 accumulation x 2048 tokens = 524,288 tokens per step"
    )


@pytest.mark.slow
def test_the_picture_shows_every_part_and_the_schedule():
    """The picture is a PNG with a bar for each of the stages that need the most memory, with all parts above
    zero, and the peak learning rate.
    """
    result = plan(load("gpt-175b"))
    figure = plan_picture(result)
    memory, schedule, batch = figure.axes
    labels = [text.get_text().rsplit(maxsplit=2)[0] for text in memory.get_legend().get_texts()]
    assert labels == [part.replace("_", " ") for part, value in result.memory.parts.items() if value]
    bars = [text.get_text() for text in memory.get_yticklabels()]
    assert len(bars) == 8 and bars[-1] == f"stage {result.memory.stage}"
    first = [bar for bar in memory.patches if bar.get_y() > len(bars) - 1.5]
    used = sum(bar.get_width() for bar in first if bar.get_facecolor()[3])
    assert used == pytest.approx(result.memory.total_bytes / 2**30)
    # Free memory ends at the device's memory.
    assert sum(bar.get_width() for bar in first) == pytest.approx(result.memory.device_bytes / 2**30)
    drawn = schedule.get_lines()[0].get_ydata()
    assert max(drawn) == pytest.approx(6e-5, rel=0.01)
    assert drawn[-1] == pytest.approx(6e-6)
    sizes = batch.get_lines()[0].get_ydata()
    assert (sizes[0], sizes[-1]) == (16, 1536)
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_the_legend_names_parts_that_only_other_stages_have():
    """The legend lists the parts of all stages: for 13B, the first stage needs the most, but the logits are
    on the last.
    """
    memory = plan_picture(plan(load("gpt-13b-4xdp-4xpp"))).axes[0]
    labels = [text.get_text() for text in memory.get_legend().get_texts()]
    assert labels[-1] == "logits, other stages"


def test_the_picture_has_a_bar_of_host_memory():
    """If there are offloaded states or a snapshot, host memory has a bar with its own limit; otherwise it has
    none.
    """
    run = load(
        "gpt-1-3b-4xdp",
        {
            "parallel.zero_stage": 2,
            "parallel.offload_optimizer.device": "cpu",
            "checkpoint.async_save": True,
            "resources.memory_per_node_bytes": 128 * 2**30,
        },
    )
    memory = plan(run, use_measured=False).memory
    axes = plan_picture(plan(run, use_measured=False)).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["host", "GPU"]
    bars = [bar for bar in axes.patches if bar.get_y() < -1]
    assert sum(bar.get_width() for bar in bars) == pytest.approx(memory.total_host_bytes / 2**30)
    assert all(bar.get_hatch() for bar in bars) and not any(
        bar.get_hatch() for bar in axes.patches if bar not in bars
    )
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    on_host = [f"host: {part.replace('_', ' ')} " for part, size in memory.host_parts.items() if size]
    assert [label for label in labels if label.startswith("host")] == [
        label + amounts.size(size)
        for label, size in zip(on_host, filter(None, memory.host_parts.values()), strict=True)
    ]
    limits = {line.get_xdata()[0]: list(line.get_ydata()) for line in axes.get_lines()}
    assert limits == {32.0: [-1.5, -0.5], memory.device_bytes / 2**30: [-0.5, 0.6]}
    assert axes.get_title(loc="left").endswith(
        f"\nHost memory of one rank: {amounts.size(memory.total_host_bytes)} of 32.0 GiB"
    )
    waits = load("gpt-1-3b-4xdp", {"checkpoint.async_save": False})
    plain = plan_picture(plan(waits, use_measured=False)).axes[0]
    assert plain.get_yticklabels() == [] and "host" not in plain.get_title(loc="left")


@pytest.mark.parametrize(
    "overrides, expected",
    [
        ([], "0.0006 after a warm-up of 25M tokens, then cosine to 1e-06 at 2.5B tokens"),
        (
            ["lr_schedule.lr_decay_style=WSD", "lr_schedule.lr_wsd_decay_tokens=250e6"],
            "0.0006 after a warm-up of 25M tokens, then WSD (exponential over the last 250M) to 1e-06 at "
            "2.5B tokens",
        ),
        (
            ["lr_schedule.lr_decay_style=constant", "lr_schedule.lr_warmup_tokens=0"],
            "0.0006, then constant",
        ),
    ],
)
def test_the_learning_rate_in_words(overrides, expected):
    assert plan(load("gpt-125m", overrides)).learning_rate == expected


def test_limits_of_a_job_are_reported():
    limited = plan(load("gpt-125m", ["batch.exit_interval_steps=1000", "batch.exit_duration_minutes=90"]))
    assert limited.job_limits == "stops at every multiple of 1,000 steps and after 90 minutes"
    assert f"  {limited.job_limits}\n" in str(limited)
    assert plan(load("gpt-125m")).job_limits == ""


def test_an_evaluation_makes_no_step_and_no_checkpoint():
    """An evaluation run (mode: eval) has no steps and no checkpoints: 10 validation batches and 10 test
    batches, each in a third of the time of a training step.
    """
    evaluation, one_step = (
        plan(load("gpt-125m", {"mode": "eval"})),
        plan(load("gpt-125m", ["batch.max_steps=1"])),
    )
    training = evaluation.sections()["Training"]
    assert training["steps"] == "none (mode: eval); 10 batches of validation data and 10 batches of test data"
    untested = plan(load("gpt-125m", {"mode": "eval", "data.split": "95,5,0"}))
    assert untested.sections()["Training"]["steps"] == "none (mode: eval); 10 batches of validation data"
    assert untested.duration.seconds == pytest.approx(evaluation.duration.seconds / 2)
    assert evaluation.disk.num_checkpoints == 0
    assert evaluation.duration.seconds == pytest.approx(20 / 3 * one_step.duration.parts["steps"], rel=0.01)
