"""The example YAMLs load, pass the checks, and have the published values."""

import re

import pytest

from nbtrain.config.arithmetic.flops import (
    hardware_flops_per_token,
    megatron_deepspeed_tflops,
    model_flops_per_token,
)
from nbtrain.config.arithmetic.lr_schedule import LrSchedule
from nbtrain.config.arithmetic.parameters import count_parameters, count_stage_parameters
from nbtrain.config.batch_schedule import BatchSchedule, Rampup
from nbtrain.config.load import load, load_resolved, to_yaml
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import parse_value
from nbtrain.planner.memory import estimate_memory

from .conftest import ASCEND, EXAMPLES, LLAMA, OWN, UPSTREAM

TINY = ("gpt3-tiny", "llama-tiny")
LARGEST = ("gpt-175b", "gpt-175b-3-5t")
ALL = [path.stem for path in sorted(EXAMPLES.glob("*.yaml"))]

# name: nodes, GPUs per node, tensor, pipeline, data, ZeRO, micro, global, micro batches a step,
# checkpointing, workers, save interval, tokens, warm-up tokens, steps
GOLDEN = {
    "gpt-125m": (1, 1, 1, 1, 1, 2, 16, 256, 16, "none", 2, 100, 2.5e9, 25e6, 4_769),
    "gpt-125m-2xdp": (1, 2, 1, 1, 2, 2, 16, 256, 8, "none", 4, 100, 2.5e9, 25e6, 4_769),
    "gpt-125m-4xdp": (1, 4, 1, 1, 4, 2, 16, 256, 4, "none", 8, 100, 2.5e9, 25e6, 4_769),
    "gpt-1-3b-4xdp": (1, 4, 1, 1, 4, 2, 16, 512, 8, "full", 8, 1000, 26e9, 260e6, 24_796),
    "gpt-1-3b-8xdp": (1, 8, 1, 1, 8, 2, 16, 512, 4, "full", 16, 1000, 26e9, 260e6, 24_796),
    "gpt-1-3b-4xdp-4xpp": (2, 8, 1, 4, 4, 1, 16, 512, 8, "full", 32, 1000, 26e9, 260e6, 24_796),
    "gpt-13b-4xdp-4xpp": (2, 8, 1, 4, 4, 1, 16, 1024, 16, "full", 32, 1000, 260e9, 2.6e9, 123_978),
    "gpt-13b-4xdp-8xpp": (4, 8, 1, 8, 4, 1, 16, 1024, 16, "full", 32, 1000, 260e9, 2.6e9, 123_978),
    "gpt-13b-4xdp-4xpp-4xtp": (8, 8, 4, 4, 4, 1, 16, 1024, 16, "full", 32, 1000, 260e9, 2.6e9, 123_978),
}


def test_the_examples_are_tiny_upstreams_ascends_gpt3s_175b_and_llamas():
    """The list of examples is complete and contains no base file, because a base cannot run."""
    assert sorted(ALL) == sorted(
        [*UPSTREAM, *ASCEND, *OWN, *LLAMA, "gpt-tiny", *LARGEST, "gpt-125m-zh", *TINY]
    )


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        # transformers' parameter count for each config.json.
        ("135m", 134_515_008),
        ("360m", 361_821_120),
        ("1b", 1_235_814_400),
        ("3b", 3_212_749_824),
        ("8b", 8_030_261_248),
    ],
)
def test_llamas_have_the_parameters_of_the_published_models(size, parameters):
    """Llama examples have the published parameter counts, 20 training tokens per
    parameter, and fit their GPUs.
    """
    for name in (one for one in LLAMA if one.startswith(f"llama-{size}")):
        config = load(name)
        assert count_parameters(config).total == parameters
        assert 19.7 < config.train_tokens / parameters < 20.3
        gpus = int(name.split("-")[2].removesuffix("xdp")) if name.count("-") == 2 else 1
        assert config.world_size == gpus == config.resources.nodes * config.resources.gpus_per_node
        memory = estimate_memory(config)
        assert memory.fits, name


@pytest.mark.parametrize(
    ("name", "gpus", "gib"),
    [
        # LoRA of a 7B model fits one GPU of 80 GB, in 4 bits one of 16 GB; with ZeRO 3 several of 24 GB.
        ("qwen2-5-7b-lora", 1, 75),
        ("qwen2-5-7b-qlora", 1, 15),
        ("qwen2-5-7b-lora-4xdp", 4, 22),
        ("qwen2-5-7b-lora-8xdp", 8, 22),
        ("qwen2-5-7b-sft-8xdp", 8, 40),
    ],
)
def test_fine_tuning_of_7b_fits_the_memory_that_it_is_for(name, gpus, gib):
    """Fine-tuning examples of 7B have the published parameter count and fit their
    GPUs, with adapters or ZeRO 3.
    """
    config = load(name)
    assert (config.name, config.world_size, count_parameters(config).total) == (name, gpus, 7_615_616_512)
    assert (config.lora is None) == ("sft" in name)
    parallel = config.parallel
    recomputes = parallel.activation_checkpointing.granularity == "full"
    assert (parallel.zero_stage == 3) == (gpus > 1) == (recomputes and "qlora" not in name)
    assert estimate_memory(config).fits and estimate_memory(config).total_bytes < gib << 30


@pytest.mark.parametrize("name", TINY)
def test_the_demo_with_other_layers(name):
    """The demo with modern layers has gpt-tiny's parameter count within 3 %, the
    same data, AdamW and a cosine.
    """
    other, gpt = load(name), load("gpt-tiny")
    assert count_parameters(other).total == pytest.approx(count_parameters(gpt).total, rel=0.03)
    assert (other.data, other.tokenizer) == (gpt.data, gpt.tokenizer)
    assert other.tokens_per_step == gpt.tokens_per_step
    assert (other.train_steps, other.lr_warmup_tokens) == (600, other.train_tokens // 20)
    assert (gpt.train_steps, gpt.lr_warmup_tokens) == (400, gpt.train_tokens // 20)
    assert (other.optimizer.type, other.lr_schedule.lr_decay_style) == ("AdamW", "cosine")


@pytest.mark.parametrize("name", ALL)
def test_every_example_loads_and_checks_and_has_its_own_output_folder(name):
    """Each example has its file's name, so no two examples share an output folder."""
    assert load(EXAMPLES / f"{name}.yaml").name == name


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_resolved_example_comes_back_equal(name, tmp_path):
    """config.yaml of an example has every field, and reading it gives an equal run."""
    config = load(name)
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert load_resolved(path) == config


@pytest.mark.parametrize("name", UPSTREAM)
def test_layout_and_schedule_are_upstreams(name):
    """The nine upstream examples keep every number of their source, and its ZeRO stage where that can run."""
    config = load(name)
    found = (
        config.resources.nodes,
        config.resources.gpus_per_node,
        config.parallel.tensor_parallel_size,
        config.parallel.pipeline_parallel_size,
        config.parallel.data_parallel_size,
        config.parallel.zero_stage,
        config.batch.micro_batch_size,
        config.batch.global_batch_size,
        config.accumulation_steps,
        config.parallel.activation_checkpointing.granularity,
        config.data.num_workers,
        config.checkpoint.save_interval_steps,
        config.train_tokens,
        config.lr_warmup_tokens,
        config.train_steps,
    )
    assert found == GOLDEN[name]
    assert config.lr_decay_tokens == config.train_tokens
    assert (config.lr_schedule.min_lr, config.lr_schedule.lr_decay_style) == (1e-6, "cosine")
    assert (config.optimizer.adam_beta1, config.optimizer.adam_beta2) == (0.9, 0.95)
    assert (config.optimizer.weight_decay, config.optimizer.clip_grad) == (0.1, 1.0)
    assert (config.precision.dtype, config.precision.fp16.initial_scale_power) == ("fp16", 11)
    assert (config.evaluation.eval_interval_steps, config.evaluation.eval_iters) == (100, 10)
    assert (config.data.split, config.data.seed, config.model.seed) == ("949,50,1", 1234, 1234)
    assert config.backend.env == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("gpt-125m", (12, 768, 12, 0.021, 6e-4)),
        ("gpt-1-3b-4xdp", (24, 2048, 16, 0.013, 2e-4)),
        ("gpt-13b-4xdp-4xpp", (40, 5120, 40, 0.008, 1e-4)),
        ("gpt-175b", (96, 12288, 96, 0.006, 6e-5)),
    ],
)
def test_size_initialization_and_rate_are_the_published_ones(name, model):
    """Layers, hidden size, heads, initial standard deviation and peak learning
    rate are the published ones.
    """
    config = load(name)
    found = (
        config.model.num_layers,
        config.model.hidden_size,
        config.model.num_attention_heads,
        config.model.init_method_std,
        config.lr_schedule.lr,
    )
    assert found == model
    assert config.model.seq_length == config.model.resolved_max_position_embeddings == 2048


# name: tensor, pipeline, data, layers, hidden, heads, sequence, micro, global, micro batches per step, rate,
# minimum rate
GOLDEN_ASCEND = {
    "gpt-345m-4xdp-2xpp": (1, 2, 4, 24, 1024, 16, 1024, 4, 16, 1, 1.5e-4, 1.5e-5),
    "gpt-345m-8xdp": (1, 1, 8, 24, 1024, 16, 1024, 4, 32, 1, 1.5e-4, 1.5e-5),
    "gpt-1-3b-2xdp-2xpp-2xtp": (2, 2, 2, 24, 2048, 16, 1024, 8, 32, 2, 2e-4, 2e-5),
    "gpt-2-7b-2xdp-2xpp-2xtp": (2, 2, 2, 32, 2560, 32, 2048, 8, 32, 2, 1.6e-4, 1.6e-5),
    "gpt-3-7b-2xdp-2xpp-2xtp": (2, 2, 2, 32, 3072, 32, 2048, 4, 16, 2, 1.2e-4, 1.2e-5),
}


@pytest.mark.parametrize("name", ASCEND)
def test_layout_and_schedule_are_ascends(name):
    """The Ascend example keeps every number of its source, with ZeRO 1 instead of ZeRO 0 in fp16."""
    config = load(name)
    found = (
        config.parallel.tensor_parallel_size,
        config.parallel.pipeline_parallel_size,
        config.parallel.data_parallel_size,
        config.model.num_layers,
        config.model.hidden_size,
        config.model.num_attention_heads,
        config.model.seq_length,
        config.batch.micro_batch_size,
        config.batch.global_batch_size,
        config.accumulation_steps,
        config.lr_schedule.lr,
        config.lr_schedule.min_lr,
    )
    assert found == GOLDEN_ASCEND[name]
    assert config.world_size == config.resources.gpus_per_node == 8
    assert (config.parallel.zero_stage, config.precision.dtype) == (1, "fp16")
    assert config.parallel.activation_checkpointing.granularity == "full"
    assert config.precision.fp16.initial_scale_power == 12
    assert (config.optimizer.weight_decay, config.optimizer.clip_grad) == (0.01, 1.0)
    assert config.model.hidden_dropout == config.model.attention_dropout == 0
    assert (config.train_steps, config.checkpoint.save_interval_steps) == (500_000, 100_000)
    step = config.tokens_per_step
    assert (config.lr_decay_tokens, config.lr_warmup_tokens) == (320_000 * step, 3_200 * step)
    assert (config.data.split, config.tokenizer.vocab_size) == ("949,50,1", 50_257)


@pytest.mark.parametrize(
    ("name", "golden"),
    [
        ("gpt-350m-4xdp", (24, 1024, 16, 0.018, 3e-4, 256)),
        ("gpt-760m-8xdp", (24, 1536, 16, 0.015, 2.5e-4, 256)),
        ("gpt-6-7b-4xdp-4xtp", (32, 4096, 32, 0.009, 1.2e-4, 1024)),
    ],
)
def test_the_sizes_of_gpt3_are_the_published_ones(name, golden):
    """The GPT-3 examples have the published shapes, rates and batches, and 20 tokens per parameter."""
    config = load(name)
    model = config.model
    assert golden == (
        model.num_layers,
        model.hidden_size,
        model.num_attention_heads,
        model.init_method_std,
        config.lr_schedule.lr,
        config.batch.global_batch_size,
    )
    assert config.train_tokens / count_parameters(config).total == pytest.approx(20, rel=0.01)
    assert config.lr_warmup_tokens == config.train_tokens // 100
    assert config.lr_decay_tokens == config.train_tokens


@pytest.mark.parametrize("name", ALL)
def test_every_example_fits_its_devices(name):
    """According to the planner, each example fits its GPUs, and gpt-tiny trains on this machine."""
    assert estimate_memory(load(name)).fits


def test_gpt_tiny_is_about_4m_parameters_on_the_cpu():
    """gpt-tiny has about 4M parameters and trains on the CPU."""
    config = load("gpt-tiny")
    assert count_parameters(config).total == 3_476_224
    assert (config.resources.device, config.world_size, config.data.sources[0].kind) == (
        "cpu",
        1,
        "python-docs",
    )
    assert config.model.hidden_dropout == config.model.attention_dropout == 0
    assert (config.recipe, config.optimizer.type) == ("modern", "Muon")
    assert count_parameters(load("gpt3-tiny")).total == 3_487_232


def test_gpt_175b_counts_the_ramp():
    """GPT 175B has 500,000 steps including the ramp, a decay over 430,000, and a warm-up of 0.001 of that."""
    config = load("gpt-175b")
    assert (config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size) == (8, 16)
    assert (config.batch.micro_batch_size, config.batch.global_batch_size) == (1, 1536)
    assert config.train_steps == 500_000
    schedule = BatchSchedule(1536, 2048, 1, Rampup(16, 16, 5_859_375))
    assert config.train_tokens == schedule.tokens_after(500_000) == 1_522_572_394_496
    assert config.lr_decay_tokens == schedule.tokens_after(430_000) == 1_302_371_434_496
    assert config.lr_warmup_tokens == config.lr_decay_tokens // 1000


def test_gpt_175b_of_3_5_trillion_tokens_is_upstreams_length():
    """The example's table of sizes has 3.5T tokens for 175B, 20 a parameter, and the schedule of its runs."""
    config, script = load("gpt-175b-3-5t"), load("gpt-175b")
    assert config.train_tokens == config.lr_decay_tokens == 3_500_000_000_000
    assert config.train_tokens / count_parameters(config).total == pytest.approx(20, rel=0.01)
    assert (config.lr_warmup_tokens, config.lr_schedule.min_lr) == (35_000_000_000, 1e-6)
    assert config.model == script.model and config.precision == script.precision
    assert config.world_size == config.resources.nodes * config.resources.gpus_per_node == 1024


# --- golden parameter counts: layers, hidden, heads, sequence, vocabulary, tensor, count ----------

SIZES = {
    "125M": (12, 768, 12, 2048, 52_000, 1, 126_638_592),
    "345M": (24, 1024, 16, 1024, 50_257, 1, 354_871_296),
    "350M": (24, 1024, 16, 2048, 50_257, 1, 355_919_872),
    "760M": (24, 1536, 16, 2048, 50_257, 1, 760_372_224),
    "1.3B": (24, 2048, 16, 2048, 52_000, 1, 1_319_489_536),
    "2.7B": (32, 2560, 32, 2048, 50_257, 1, 2_651_673_600),
    "3.7B": (32, 3072, 32, 2048, 50_257, 1, 3_785_988_096),
    "6.7B": (32, 4096, 32, 2048, 50_257, 1, 6_658_596_864),
    "13B": (40, 5120, 40, 2048, 52_000, 1, 12_862_801_920),
    "175B": (96, 12288, 96, 2048, 50_257, 8, 174_615_846_912),
}


def sized(layers: int, hidden: int, heads: int, seq: int, vocabulary: int, tensor: int) -> RunConfig:
    return load(
        "gpt-125m",
        {
            "model": {
                "num_layers": layers,
                "hidden_size": hidden,
                "num_attention_heads": heads,
                "seq_length": seq,
                "max_position_embeddings": seq,
            },
            "tokenizer.vocab_size": vocabulary,
            "parallel.tensor_parallel_size": tensor,
            "resources.gpus_per_node": tensor,
        },
    )


@pytest.mark.parametrize("size", SIZES)
def test_parameter_counts_are_the_published_ones(size):
    """Every size of the GPT-3 family has the published number of parameters, exactly."""
    *shape, expected = SIZES[size]
    assert count_parameters(sized(*shape)).total == expected


@pytest.mark.parametrize("name", ["gpt-1-3b-4xdp-4xpp", "gpt-13b-4xdp-4xpp-4xtp", "gpt-175b"])
def test_the_ranks_together_hold_the_model_and_the_copies(name):
    """All ranks together have the model, the second copy of tied embeddings, and
    what tensor ranks replicate.
    """
    config = load(name)
    tensor, stages = config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size
    model, hidden = config.model, config.model.hidden_size
    held = tensor * sum(count_stage_parameters(config, stage).total for stage in range(stages))
    copies = config.padded_vocab_size * hidden
    # Two row-parallel biases and four LayerNorm vectors per layer, the positions, the final LayerNorm.
    repeated = (6 * hidden * model.num_layers + 2048 * hidden + 2 * hidden) * (tensor - 1)
    assert held == count_parameters(config).total + copies + repeated


# --- golden FLOPs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples_per_second", "logged"), [(44.780, 84.02), (44.803, 84.06), (44.855, 84.16)]
)
def test_the_logged_formula_gives_the_logged_figures(samples_per_second, logged):
    """Megatron-DeepSpeed's formula gives the TFLOP/s in the example's log: 125M on one A100."""
    assert megatron_deepspeed_tflops(load("gpt-125m"), samples_per_second) == pytest.approx(logged, abs=0.005)


def test_the_right_figure_is_six_per_cent_above_the_logged_one():
    """The correct value is 89.5 TFLOP/s, 28.7 % MFU; the log's 84.0 counts only 3/4 of the logits' FLOPs."""
    config = load("gpt-125m")
    right = model_flops_per_token(config) * 44.780 * 2048 / 1e12
    assert right == pytest.approx(89.52, abs=0.01)
    assert right / 312 == pytest.approx(0.287, abs=0.0005)
    assert right / megatron_deepspeed_tflops(config, 44.780) == pytest.approx(1.0655, abs=0.0005)


@pytest.mark.parametrize("name", ["gpt-125m", "gpt-13b-4xdp-4xpp"])
def test_model_flops_are_the_closed_formula(name):
    """Model FLOPs are 72 L h^2 (1 + s / 6h + V / 12Lh) per token, with or without recomputation."""
    config = load(name)
    layers, hidden = config.model.num_layers, config.model.hidden_size
    closed = 72 * layers * hidden**2
    closed *= 1 + 2048 / (6 * hidden) + 52_096 / (12 * layers * hidden)
    assert model_flops_per_token(config) == pytest.approx(closed, rel=1e-12)


def test_recomputation_adds_one_forward_pass_of_the_layers():
    """Hardware FLOPs equal model FLOPs without checkpointing; with it they add the layers' forward pass."""
    plain = load("gpt-125m")
    assert hardware_flops_per_token(plain) == model_flops_per_token(plain)
    recomputed = load("gpt-125m", ["parallel.activation_checkpointing.granularity=full"])
    layers = 12 * (24 * 768**2 + 4 * 2048 * 768)
    assert hardware_flops_per_token(recomputed) == model_flops_per_token(plain) + layers
    # Flash attention keeps no scores, so nothing is recomputed.
    selective = "parallel.activation_checkpointing.granularity=selective"
    assert hardware_flops_per_token(load("gpt-125m", [selective])) == model_flops_per_token(plain)
    core = 12 * 4 * 2048 * 768
    keeping = load("gpt-125m", [selective, "model.attention_backend=math"])
    assert hardware_flops_per_token(keeping) == model_flops_per_token(plain) + core
    assert megatron_deepspeed_tflops(recomputed, 44.78) == pytest.approx(
        megatron_deepspeed_tflops(plain, 44.78) * 4 / 3
    )


# --- golden learning rates ------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "logged"), [(3920, 4.7586175149639084e-05), (3930, 4.652419139289811e-05)])
def test_the_logged_learning_rates_come_out_to_the_last_digit(step, logged):
    """The learning rate of step n is the rate at the tokens before that step: (n - 1) x 524,288."""
    config = load("gpt-125m")
    assert LrSchedule.of(config).learning_rate(config.batch_schedule.tokens_after(step - 1)) == logged


def test_every_example_names_its_schema_for_the_editor():
    """The first line of every YAML, bases included, refers to docs/run.schema.json relative to the file."""
    for path in EXAMPLES.rglob("*.yaml"):
        first = path.read_text().splitlines()[0]
        marker, _, target = first.partition("$schema=")
        assert marker == "# yaml-language-server: "
        assert (path.parent / target).resolve() == EXAMPLES.parents[2] / "docs" / "run.schema.json"


def test_every_number_of_an_upstream_example_has_its_source():
    """Each line that sets a number has a comment with its source, except in the demo."""
    files = [path for path in EXAMPLES.rglob("*.yaml") if path.stem != "gpt-tiny"]
    bare = [
        f"{path.name}:{number}: {line}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if isinstance(_scalar(line), int | float) and "#" not in line
    ]
    # The source of the ramp's three numbers is on the line of `rampup:`.
    ramp = ("start_batch_size", "batch_size_increment", "ramp_samples")
    assert [line for line in bare if not any(word in line for word in ramp)] == []


def test_no_example_names_an_image():
    """No example sets an image, because only an image with nbtrain can run;
    notebook 06 shows how to set it.
    """
    files = [
        path for kind in ("training", "finetuning") for path in EXAMPLES.parent.glob(f"{kind}/**/*.yaml")
    ]
    assert len(files) > len(ALL)
    assert [path.name for path in files if re.search(r"^ *image:", path.read_text(), re.MULTILINE)] == []


def _scalar(line: str) -> object:
    value = parse_value(line)
    inner = next(iter(value.values()), None) if isinstance(value, dict) else None
    return None if isinstance(inner, bool) else inner
