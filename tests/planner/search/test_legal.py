"""The planner's layouts are legal exactly when the rules for a run's YAML accept them, and a layout's setup
equals its run's.
"""

import math
import random

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.deepspeed.ds_config import deepspeed_config
from nbtrain.config.load import load
from nbtrain.config.rules.check import find_problems
from nbtrain.planner.search.legal import (
    PLAIN,
    RECOMPUTATIONS,
    Cut,
    Layout,
    Options,
    Space,
    cuts,
    legal_options,
    micro_batches,
    problems,
    space_of,
)
from nbtrain.planner.setup.setup import setup_of

MACHINES = {"resources.device": "gpu", "resources.nodes": 2, "resources.gpus_per_node": 4}
KUBERNETES = {
    "backend.kind": "kubernetes",
    "resources.image": "registry.example.com/nbtrain:0.1.0",
    "backend.kubernetes.mounts": [{"claim": "work", "mount_path": "/work"}],
    "backend.kubernetes.workspace_path": "/work",
}
# Runs whose settings forbid some layouts: a ramp-up, odd sizes, FP8, FPDT, ZeRO++, a pair of blocks.
RUNS = {
    "plain": {"model.num_attention_heads": 8, "model.hidden_size": 128},
    "three heads": {"model.num_attention_heads": 3, "model.hidden_size": 96, "batch.global_batch_size": 24},
    "rampup": {"batch.rampup": {"start_batch_size": 8, "batch_size_increment": 8, "ramp_samples": 64}},
    "steps": {"batch.step_batch_size_schedule": "0:8 1K:32"},
    "fp32": {"precision.dtype": "fp32"},
    "fp8": {"precision.fp8": True, "resources.gpu_type": "H100", "model.num_attention_heads": 8},
    "fpdt": {"parallel.fpdt_chunk_tokens": 32, "model.attention_dropout": 0.0, "precision.dtype": "bf16"},
    "qwz": {"parallel.zero_quantized_weights": True},
    "hpz of 3": {"parallel.zero_hpz": True, "parallel.zero_hpz_partition_size": 3},
    "places": {
        "parallel.offload_optimizer": {"device": "nvme", "nvme_path": "/nvme", "pin_memory": True},
        "parallel.pipeline_stage_layers": [4],
    },
    "flash": {"model.attention_backend": "flash", "precision.dtype": "bf16", "model.attention_dropout": 0.1},
    "interval": {"parallel.activation_checkpointing.interval_layers": 3},
    "compiled": {"model.compile": True},
    "groups": {"model.num_attention_heads": 24, "model.num_query_groups": 6, "model.hidden_size": 192},
    "one group": {"model.num_attention_heads": 8, "model.num_query_groups": 1, "model.kv_channels": 33},
    "fp8 groups": {
        "precision.fp8": True,
        "resources.gpu_type": "H100",
        "model.num_attention_heads": 8,
        "model.num_query_groups": 2,
        "model.kv_channels": 40,
    },
    "muon": {"optimizer.type": "Muon"},
    "prescaled": {"parallel.prescale_gradients": True, "precision.dtype": "fp32"},
    "lora": {
        "model.num_attention_heads": 8,
        "model.num_query_groups": 2,
        "init_from": "a-run",
        "lora": {"rank": 4, "dropout": 0.1},
    },
    "4 bits": {
        "model.num_attention_heads": 8,
        "model.hidden_size": 256,
        "init_from": "a-run",
        "lora": {"rank": 4, "load_in_4bit": True},
    },
    "4 bits, double quantization": {
        "init_from": "a-run",
        "lora": {"rank": 4, "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    },
    "autotuned": {
        **KUBERNETES,
        "backend.kubernetes.workload": "DeepSpeedJob",
        "backend.kubernetes.autotune": "tune",
    },
    # Micro batches of up to 2 sequences: their 2 x 256 tokens of 8 bytes are one page.
    "little shared memory": {
        **KUBERNETES,
        "data.num_workers": 3,
        "backend.kubernetes.shared_memory_bytes": 4 * 4096 * (8 + 3 * (3 + 2 * 2 * 1)),
    },
    "ia3": {"init_from": "a-run", "lora": {"kind": "ia3"}},
    "dpo": {
        "init_from": "a-run",
        "dpo": {},
        "data.packing": "best_fit",
        "data.sources": [{"kind": "preference", "path": "pairs.jsonl"}],
    },
}


def space_for(name: str) -> Space:
    general = {"batch.global_batch_size": 32, "batch.micro_batch_size": 1, "precision.dtype": "bf16"}
    return space_of(load("gpt3-tiny", {**MACHINES, **general, **RUNS[name]}, check=False))


def any_layout(space: Space, draw: random.Random) -> Layout:
    """Draw a layout with sizes that a person might choose, whether legal or not."""
    sizes = [draw.choice((1, 1, 2, 3, 4, 8)) for _ in range(3)]
    context = draw.choice((1, 1, 2, 3, 4))
    rest = max(space.world_size // (math.prod(sizes) * context), 1)
    data = draw.choice((rest, rest, rest, 2))
    options = Options(
        draw.randrange(4),
        draw.random() < 0.3,
        draw.choice(RECOMPUTATIONS),
        draw.choice(("none", "none", "cpu")),
        draw.choice(("none", "none", "cpu")),
        draw.random() < 0.2,
    )
    return Layout(Cut(*sizes, data, context), draw.choice((1, 2, 3, 4, 8)), options)


@pytest.mark.parametrize("name", RUNS)
def test_a_layout_is_legal_if_and_only_if_no_rule_is_broken(name):
    """A random layout is rejected with a reason exactly if find_problems reports a problem in its run."""
    space, draw = space_for(name), random.Random(name)
    for _ in range(25):
        layout = any_layout(space, draw)
        broken = find_problems(space.run(layout, check=False))
        assert bool(problems(space, layout)) == bool(broken), (layout, problems(space, layout), broken)


@pytest.mark.parametrize("name", RUNS)
def test_the_enumeration_is_every_legal_layout(name):
    """Every layout in the enumeration passes the rules, and every random layout that is legal is in the
    enumeration.
    """
    space, draw = space_for(name), random.Random(name)
    found = {
        Layout(cut, micro, options)
        for cut, reason in cuts(space)
        if reason is None
        for options in legal_options(space, cut)
        for micro in micro_batches(space, cut)
    }
    assert found
    for layout in draw.sample(sorted(found), min(6, len(found))):
        config = space.run(layout)
        assert find_problems(config) == []
        assert space.setup(layout) == setup_of(config)
        # The engine's settings can be derived, and its three batch sizes agree.
        engine = deepspeed_config(config)
        ranks = config.parallel.data_axis_size
        micro, steps = engine["train_micro_batch_size_per_gpu"], engine["gradient_accumulation_steps"]
        assert engine["train_batch_size"] == micro * steps * ranks
    for _ in range(100):
        layout = any_layout(space, draw)
        assert (layout in found) == (not problems(space, layout)), layout


def test_the_setup_of_a_layout_is_that_of_its_run():
    """The setup that is derived from a layout equals the one from its run's YAML, for 13B: stages, padded
    vocabulary, buckets and NVMe buffers.
    """
    space = space_of(load("gpt-13b-4xdp-4xpp-4xtp", {"resources.gpu_type": "A100-80GB"}))
    for cut, micro, options in (
        (Cut(4, 4, 1, 4), 16, PLAIN),
        (Cut(1, 1, 1, 64), 1, Options(3, False, "full", "cpu", "cpu", True)),
        (Cut(1, 1, 8, 8), 2, Options(2, False, "selective", "none", "none", False)),
        (Cut(2, 4, 1, 2, 4), 4, PLAIN),
        (Cut(8, 8, 1, 1), 4, Options(1, True, "full", "cpu", "none", False)),
    ):
        layout = Layout(cut, micro, options)
        assert problems(space, layout) == []
        assert space.setup(layout) == setup_of(space.run(layout))


def test_reasons_name_the_numbers():
    """The reason for rejecting a layout contains the numbers that do not match."""
    space = space_for("three heads")
    layout = Layout(Cut(2, 1, 1, 4), 5, Options(3, True, "none", "none", "none", True))
    assert problems(space, layout) == [
        "tensor_parallel_size(2) does not divide num_attention_heads(3)",
        "ZeRO++ hpZ cannot be combined with tensor parallelism: DeepSpeed shards the second copy across "
        "consecutive ranks, but consecutive ranks are tensor-parallel ranks, whose parameters differ",
        "micro_batch_size(5) * data_parallel_size(4) does not divide every batch size (greatest common "
        "divisor 24)",
    ]
    assert Layout(Cut(4, 2, 1, 1), 2, Options(1, True, "full", "cpu", "none", False)).words == (
        "TP 4 x PP 2, SP, ZeRO 1, micro-batch 2, full recomputation, optimizer in host memory"
    )


def test_a_shape_alone_has_no_run():
    """A search space of a model shape alone, without a run, cannot write a YAML; the error says so."""
    space = Space(space_for("plain").base, 512, 128, 32)
    with pytest.raises(ConfigError, match="it cannot write a run YAML"):
        space.run(Layout(Cut(1, 1, 1, 8), 1, PLAIN))
