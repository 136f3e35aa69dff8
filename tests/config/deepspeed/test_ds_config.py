"""DeepSpeed's configuration as derived from a run."""

import json

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.deepspeed.ds_config import KNOWN_KEYS, deepspeed_config
from nbtrain.config.load import load


def config_of(**overrides):
    return load(
        "gpt-125m-2xdp", {key.replace("__", "."): value for key, value in overrides.items()}, check=False
    )


def test_batch_clipping_and_zero_come_from_the_run():
    derived = deepspeed_config(config_of())
    assert derived["train_batch_size"] == 256
    assert derived["train_micro_batch_size_per_gpu"] == 16
    assert derived["gradient_accumulation_steps"] == 8
    assert derived["gradient_clipping"] == 1.0
    assert derived["zero_optimization"]["stage"] == 2
    assert "optimizer" not in derived


@pytest.mark.parametrize(
    "dtype, autocast, enabled",
    [("fp32", False, None), ("bf16", True, None), ("bf16", False, "bf16"), ("fp16", False, "fp16")],
)
def test_precision(dtype, autocast, enabled):
    """The model does its own autocast, so DeepSpeed gets fp32; 16-bit weights get gradient sums in fp32."""
    derived = deepspeed_config(config_of(precision__dtype=dtype, precision__autocast=autocast))
    assert [key for key in ("bf16", "fp16") if key in derived] == ([enabled] if enabled else [])
    assert derived.get("data_types") == ({"grad_accum_dtype": "fp32"} if enabled else None)
    assert derived["communication_data_type"] == "fp32"


def test_zero_0_with_16_bit_weights_is_refused():
    """ZeRO 0 with 16-bit weights is refused, because DeepSpeed would silently use a wrong bias correction."""
    with pytest.raises(ConfigError) as caught:
        deepspeed_config(config_of(parallel__zero_stage=0, precision__dtype="bf16"))
    assert str(caught.value) == (
        "override parallel.zero_stage=0: parallel.zero_stage = 0 with 16-bit weights (precision.dtype = "
        "bf16) trains incorrectly in DeepSpeed. Set zero_stage: 1, which costs nothing, or precision.dtype: "
        "fp32."
    )


def test_extra_keys_are_added_and_collisions_refused():
    extra = {"zero_optimization": {"round_robin_gradients": True}, "memory_breakdown": True}
    derived = deepspeed_config(config_of(parallel__deepspeed_extra=extra))
    assert derived["zero_optimization"]["round_robin_gradients"] is True
    assert derived["zero_optimization"]["stage"] == 2
    assert derived["memory_breakdown"] is True
    with pytest.raises(ConfigError) as caught:
        deepspeed_config(config_of(parallel__deepspeed_extra={"zero_optimization": {"stage": 3}}))
    assert str(caught.value).endswith(
        "parallel.deepspeed_extra sets zero_optimization.stage, which nbtrain derives as 2. Remove the key, "
        "and change the field of the run from which nbtrain derives it."
    )


KEYS_READ = """
import deepspeed.runtime.config as runtime

class Keys:
    def __init__(self, of): self.of = of
    def __contains__(self, key): return key in self.of
    def __iter__(self): return dict.__iter__(self.of)

class Noting(dict):
    read = set()
    def __contains__(self, key): self.read.add(key); return super().__contains__(key)
    def __getitem__(self, key): self.read.add(key); return super().__getitem__(key)
    def get(self, key, default=None): self.read.add(key); return super().get(key, default)
    def keys(self): return Keys(self)

runtime.DeepSpeedConfig(Noting(train_batch_size=1))
print("read", *sorted(Noting.read))
"""


@pytest.mark.slow
def test_the_known_keys_are_those_that_deepspeed_reads(ask_deepspeed):
    """The known keys equal those that DeepSpeed reads, as recorded by a mapping that it is given."""
    [keys] = [line for line in ask_deepspeed(KEYS_READ) if line.startswith("read ")]
    assert keys.split()[1:] == sorted(KNOWN_KEYS)


ZERO_3 = {"parallel.zero_stage": 3}
OFFLOAD = {
    **ZERO_3,
    "parallel.offload_optimizer": {"device": "cpu", "pin_memory": True},
    "parallel.offload_param": {"device": "nvme", "nvme_path": "/nvme", "buffer_count": 6},
}
# Overrides of gpt-125m-2xdp -> the resulting keys of DeepSpeed's configuration; None: absent.
DERIVED = {
    "Ulysses' ranks are data ranks to DeepSpeed": (
        {"parallel.data_parallel_size": 1, "parallel.ds_sequence_parallel_size": 2},
        {"train_batch_size": 512, "gradient_accumulation_steps": 16, "train_micro_batch_size_per_gpu": 16},
    ),
    "a pipeline sends whole activations and recomputes by itself": (
        {"parallel.pipeline_parallel_size": 2, "parallel.zero_stage": 1},
        {
            "pipeline.pipe_partitioned": False,
            "pipeline.grad_partitioned": False,
            "pipeline.activation_checkpoint_interval": 0,
            "zero_optimization.overlap_comm": False,
            "train_batch_size": 256,
        },
    ),
    "no pipeline, no block for it": ({}, {"pipeline": None, "zero_optimization.overlap_comm": True}),
    "one rank has nothing to send": (
        {"parallel.data_parallel_size": 1},
        {"zero_optimization.overlap_comm": False},
    ),
    "DeepSpeed's throughput, which waits for the device, is off": (
        {},
        {"timers.throughput": {"enabled": False}},
    ),
    "nothing is offloaded unless asked": (
        {},
        {
            "zero_optimization.offload_optimizer": None,
            "zero_optimization.offload_param": None,
            "zero_force_ds_cpu_optimizer": False,
        },
    ),
    "offloading keeps torch's AdamW": (
        OFFLOAD,
        {
            "zero_optimization.offload_optimizer": {"device": "cpu", "pin_memory": True},
            # 52,096 x 768 over two ranks: the word embeddings are the largest parameter.
            "zero_optimization.offload_param": {
                "device": "nvme",
                "pin_memory": False,
                "nvme_path": "/nvme/gpt-125m-2xdp",
                "buffer_count": 6,
                "buffer_size": 20_004_864,
            },
            "zero_force_ds_cpu_optimizer": False,
        },
    ),
    "ZeRO++ by field": (
        {
            **ZERO_3,
            "parallel.zero_hpz": True,
            "parallel.zero_quantized_weights": True,
            "parallel.zero_quantized_gradients": True,
        },
        {
            "zero_optimization.zero_hpz_partition_size": 2,
            "zero_optimization.zero_quantized_weights": True,
            "zero_optimization.zero_quantized_gradients": True,
        },
    ),
    "no second copy unless asked": ({}, {"zero_optimization.zero_hpz_partition_size": 1}),
    "sizes of ZeRO 3": (
        {
            **ZERO_3,
            "parallel.sub_group_size": 1000,
            "parallel.stage3_max_live_parameters": 2000,
            "parallel.stage3_prefetch_bucket_size": 3000,
            "parallel.stage3_param_persistence_threshold": 4000,
        },
        {
            "zero_optimization.sub_group_size": 1000,
            "zero_optimization.stage3_max_live_parameters": 2000,
            "zero_optimization.stage3_prefetch_bucket_size": 3000,
            "zero_optimization.stage3_param_persistence_threshold": 4000,
        },
    ),
    "how gradients travel": (
        {
            "parallel.communication_data_type": "bf16",
            "parallel.reduce_scatter": False,
            "parallel.contiguous_gradients": False,
        },
        {
            "communication_data_type": "bf16",
            "zero_optimization.reduce_scatter": False,
            "zero_optimization.contiguous_gradients": False,
        },
    ),
    "division beforehand": (
        {"parallel.zero_stage": 0, "precision.dtype": "fp32", "parallel.prescale_gradients": True},
        {"prescale_gradients": True, "zero_optimization.overlap_comm": False},
    ),
    "DeepSpeed's own reports": (
        {"parallel.wall_clock_breakdown": True, "parallel.steps_per_print": 10},
        {"wall_clock_breakdown": True, "steps_per_print": 10, "timers.throughput": {"enabled": True}},
    ),
    "a fixed loss scale": (
        {"precision.fp16.loss_scale": 128.0},
        {"fp16.loss_scale": 128.0, "fp16.enabled": True},
    ),
}


@pytest.mark.parametrize("case", DERIVED)
def test_each_field_becomes_its_key(case):
    overrides, expected = DERIVED[case]
    derived = deepspeed_config(load("gpt-125m-2xdp", overrides, check=False))
    for key, value in expected.items():
        section, _, name = key.rpartition(".")
        assert (derived.get(section, {}) if section else derived).get(name) == value, key


@pytest.mark.slow
def test_deepspeed_knows_every_key(ask_deepspeed):
    """DeepSpeed's own classes accept the derived configuration; its ZeRO section
    would reject unknown keys.
    """
    configurations = {
        case: deepspeed_config(load("gpt-125m-2xdp", overrides, check=False))
        for case, (overrides, _) in DERIVED.items()
    }
    answers = json.loads(ask_deepspeed(ASK_DEEPSPEED, json.dumps(list(configurations.values())))[-1])
    for derived, answer in zip(configurations.values(), answers, strict=True):
        assert answer["stage"] == derived["zero_optimization"]["stage"]
        assert answer["reduce_bucket_size"] == derived["zero_optimization"]["reduce_bucket_size"]


ASK_DEEPSPEED = """
import json, sys
from deepspeed.runtime.config import DeepSpeedConfig
answers = []
for derived in json.load(sys.stdin):
    # One process is asked, which is not the run's number of data-parallel ranks.
    micro_batch = derived["train_micro_batch_size_per_gpu"]
    derived["train_batch_size"] = micro_batch * derived["gradient_accumulation_steps"]
    zero = DeepSpeedConfig(derived).zero_config
    answers.append({"stage": int(zero.stage), "reduce_bucket_size": zero.reduce_bucket_size})
print(json.dumps(answers))
"""


@pytest.mark.parametrize(
    ("run", "overrides", "elements"),
    [
        ("gpt-125m", [], 121 * 2**20),  # 126,638,592 parameters
        (
            "gpt-125m",
            ["parallel.reduce_bucket_size=1000000", "parallel.allgather_bucket_size=1000000"],
            1_000_000,
        ),
        ("gpt-1-3b-4xdp", [], 500_000_000),
        # The fullest of four stages, 413,036,544 parameters: every rank has the same sizes.
        ("gpt-1-3b-4xdp-4xpp", [], 394 * 2**20),
    ],
)
def test_a_bucket_is_as_large_as_asked_but_no_larger_than_the_model(run, overrides, elements):
    """A bucket has the configured size, but at most the model's, because DeepSpeed allocates it in full."""
    zero = deepspeed_config(load(run, overrides, check=False))["zero_optimization"]
    assert (zero["reduce_bucket_size"], zero["allgather_bucket_size"]) == (elements, elements)
