"""The change that makes a run fit: it is legal, it gives the memory that the message states, and cheaper
changes come first.
"""

import re

import pytest

from nbtrain.base.text import amounts
from nbtrain.config.load import load
from nbtrain.config.load.edits import with_values
from nbtrain.planner.lint.remedies import cheapest_remedy, host_remedy
from nbtrain.planner.memory import least_memory
from nbtrain.planner.plan import plan

RECOMPUTE, MICRO = "parallel.activation_checkpointing.granularity", "batch.micro_batch_size"
ZERO, OPTIMIZER = "parallel.zero_stage", "parallel.offload_optimizer.device"
WEIGHTS = "parallel.offload_param.device"
ONE_COPY = ["parallel.pipeline_parallel_size=1", "parallel.data_parallel_size=16"]
ONE_GPU = [
    "parallel.pipeline_parallel_size=1",
    "parallel.data_parallel_size=1",
    "resources={nodes: 1, gpus_per_node: 1}",
]

# {case: (run, overrides, the keys that change)}
FIXED = {
    "recomputation": ("gpt-125m", ["resources.gpu_type=T4", "batch.micro_batch_size=32"], {RECOMPUTE}),
    "a format of 16 bits": (
        "gpt-1-3b-4xdp",
        [
            "resources.gpu_type=A30",
            "precision.dtype=fp32",
            "parallel.zero_stage=0",
            "batch.micro_batch_size=8",
        ],
        {"precision.dtype", ZERO},
    ),
    "a higher stage": ("gpt-13b-4xdp-4xpp", ONE_COPY, {ZERO}),
    "offloading": ("gpt-13b-4xdp-4xpp", ONE_GPU, {ZERO, OPTIMIZER}),
}


@pytest.mark.parametrize("what", FIXED)
def test_the_fix_gives_the_memory_that_it_promises(what):
    """With the fix applied as overrides, the run passes every rule, has 5 % headroom, and needs as much
    memory as the fix states.
    """
    run, overrides, keys = FIXED[what]
    config = load(run, overrides)
    remedy = cheapest_remedy(config, 0.1)
    assert set(remedy.changes) == keys
    after = least_memory(load(config, dict(remedy.changes)))
    assert after == remedy.memory
    assert after.total_bytes <= 0.9 * after.device_bytes
    (found,) = (one for one in plan(config, use_measured=False).findings if one.rule == "memory_fits")
    host = f", and {amounts.size(after.total_host_bytes)} of host memory" if after.total_host_bytes else ""
    assert found.fix == f"Set {remedy.words}. One rank then needs {amounts.size(after.total_bytes)}{host}."
    before = least_memory(config)
    assert found.message.startswith(
        f"The run does not fit: one rank needs {amounts.size(before.total_bytes)}, and {before.device} has "
        f"{amounts.size(before.device_bytes)}. The largest part is "
    )
    assert found.level == "error"
    assert found.cost.text == (
        f"cannot run: {amounts.size(before.total_bytes - before.device_bytes)} too little"
    )


def test_what_costs_less_comes_first():
    """Cheaper changes are suggested first: selective recomputation before full, and full recomputation before
    smaller micro batches.
    """
    tight = load("gpt-125m", ["resources.gpu_type=T4"])
    assert cheapest_remedy(tight, 0.1).changes == {RECOMPUTE: "selective"}
    recomputed = load(
        tight, [f"{RECOMPUTE}=full", "batch.micro_batch_size=256", "batch.global_batch_size=256"]
    )
    assert list(cheapest_remedy(recomputed, 0.1).changes) == [MICRO]


def test_a_tight_run_is_a_warning():
    (found,) = (
        one
        for one in plan(load("gpt-125m", ["resources.gpu_type=T4"]), use_measured=False).findings
        if one.rule == "memory_fits"
    )
    assert found.message.startswith("The run fits with less than 5 % headroom: one rank needs ")
    assert (found.level, found.cost.text) == ("warning", "costs the run, if memory runs out")


def test_more_gpus_are_the_last_change():
    """More GPUs are suggested only if the model fits on its GPUs in no layout and there is too little host
    memory for offloading.
    """
    config = load("gpt-13b-4xdp-4xpp", [*ONE_GPU, "resources.memory_per_node_bytes=30e9"])
    remedy = cheapest_remedy(config, 0.1)
    assert remedy.changes["resources.gpus_per_node"] > 1
    assert load(config, dict(remedy.changes)).world_size == remedy.changes["resources.gpus_per_node"]


def test_nothing_helps_a_model_that_no_cluster_holds():
    """No change helps if a single layer is larger than the GPU and there are at most 8 GPUs of this type."""
    config = load("gpt-175b", ["model.num_layers=16", "resources.gpu_type=T4", "model.hidden_size=98304"])
    assert cheapest_remedy(config, 0.1) is None
    (found,) = (one for one in plan(config, use_measured=False).findings if one.rule == "memory_fits")
    assert found.fix == (
        "No layout fits these GPUs. Use GPUs with more memory, more GPUs, or a smaller model."
    )


def test_host_memory_against_a_machine():
    """If a run needs 621 GiB of host memory on a machine with 30 GiB, the error states the sum for the
    machine and a change that fits.
    """
    overrides = ["checkpoint.async_save=true", "resources.memory_per_node_bytes=1e9"]
    config = load("gpt-125m-4xdp", overrides)
    assert host_remedy(config).changes == {"checkpoint.async_save": False}
    (found,) = (one for one in plan(config, use_measured=False).findings if one.rule == "host_memory_fits")
    memory = least_memory(config)
    needed = 4 * memory.total_host_bytes
    assert found.message == (
        f"Host memory is too small: the 4 ranks of a machine need {amounts.size(needed)} "
        f"({amounts.size(memory.total_host_bytes)} each), but resources.memory_per_node_bytes is 953.7 MiB "
        "(238.4 MiB for each rank). The largest part is snapshot."
    )
    assert found.fix == "Set checkpoint.async_save: false. One rank then needs no extra host memory."
    assert found.cost == type(found.cost)(True, num_bytes=needed - 4 * memory.host_bytes)


def test_pinned_state_may_go_back_to_the_device():
    offload = {"device": "cpu", "pin_memory": True}
    overrides = {"parallel.zero_stage": 2, "parallel.offload_optimizer": offload}
    config = load("gpt-125m-4xdp", {**overrides, "resources.memory_per_node_bytes": 1e9})
    assert host_remedy(config).changes == {
        "parallel.offload_optimizer.device": "none",
        "parallel.offload_optimizer.pin_memory": False,
    }


def test_host_memory_that_no_change_saves():
    """If the model fits on its GPU only by offloading, only NVMe can reduce the host memory. If the rest then
    fits, the fix names every setting that NVMe requires.
    """

    def fix_of(config):
        (found,) = (one for one in plan(config).findings if one.rule == "host_memory_fits")
        return found.fix

    overrides = [*ONE_GPU, f"{ZERO}=3", f"{OPTIMIZER}=cpu", f"{WEIGHTS}=cpu"]
    config = load("gpt-13b-4xdp-4xpp", [*overrides, "resources.memory_per_node_bytes=100e9"])
    assert host_remedy(config) is None
    needed = amounts.size(least_memory(config).total_host_bytes)
    nvme = {
        f"parallel.offload_{what}.{key}": value
        for what in ("optimizer", "param")
        for key, value in (("device", "nvme"), ("nvme_path", "/nvme"))
    }
    words = " and ".join(f"{key}: {value}" for key, value in nvme.items())
    assert fix_of(config) == (
        f"Use machines with {needed} of memory, or use more machines. Or set {words}, replacing /nvme "
        "with a folder on a local NVMe disk."
    )
    assert not [one for one in plan(load(config, nvme)).findings if one.rule == "host_memory_fits"]
    small = load(config, {"resources.memory_per_node_bytes": 30e9})
    assert fix_of(small) == f"Use machines with {needed} of memory, or use more machines."
    assert [one for one in plan(load(small, nvme)).findings if one.rule == "host_memory_fits"]


def test_nvme_is_named_only_where_the_rules_allow_it():
    """Initial weights are not read into state on NVMe, and a pipeline has no ZeRO 3."""
    overrides = [*ONE_GPU, f"{ZERO}=3", f"{OPTIMIZER}=cpu", f"{WEIGHTS}=cpu"]
    overrides += ["resources.memory_per_node_bytes=100e9", "init_from=another-run"]
    config = load("gpt-13b-4xdp-4xpp", overrides)
    (found,) = (one for one in plan(config, use_measured=False).findings if one.rule == "host_memory_fits")
    assert found.fix.endswith(", or use more machines.")


def test_a_cpu_is_not_called_a_gpu():
    overrides = ["resources.memory_per_node_bytes=300e6", "checkpoint.async_save=false"]
    config = load("gpt-tiny", [*overrides, "model.hidden_size=4096", "model.num_layers=48"])
    (found,) = (one for one in plan(config, use_measured=False).findings if one.rule == "memory_fits")
    assert found.fix == "No layout fits this machine. Use a machine with more memory, or a smaller model."


def test_sequence_ranks_are_no_shards_of_the_weights():
    overrides = ["parallel.pipeline_parallel_size=1", "parallel.ds_sequence_parallel_size=4"]
    config = load("gpt-13b-4xdp-4xpp", overrides)
    result = plan(config, use_measured=False)
    (found,) = (one for one in result.findings if one.rule == "sequence_ranks_hold_all_weights")
    state = result.memory.states_bytes
    assert found.message == (
        "ds_sequence_parallel_size(4) splits the tokens of a sequence, but not the weights. With "
        "zero_stage(1), each of the 4 ranks holds the same weights and gradients. Each rank needs "
        f"{amounts.size(state)} for model state."
    )
    assert found.fix == (
        "Set parallel.zero_stage: 3, which shards weights, gradients and optimizer state across "
        "data-parallel ranks, including the ranks across which each sequence is split."
    )
    overrides = ["parallel.pipeline_parallel_size=2", "parallel.ds_sequence_parallel_size=2"]
    piped = load("gpt-13b-4xdp-4xpp", [*overrides, "resources.gpu_type=A100-40GB"])
    (found,) = (
        finding
        for finding in plan(piped, use_measured=False).findings
        if finding.rule == "sequence_ranks_hold_all_weights"
    )
    assert found.fix == (
        "Use a smaller ds_sequence_parallel_size and a larger tensor_parallel_size or "
        "pipeline_parallel_size, which shard the weights."
    )


def test_the_stage_that_is_named_goes_with_the_run():
    """torch.compile does not go with ZeRO 3: the finding names the highest stage that does."""
    overrides = ["parallel.pipeline_parallel_size=1", "parallel.ds_sequence_parallel_size=4"]
    compiled = load("gpt-13b-4xdp-4xpp", [*overrides, "model.compile=true"])
    found = {one.rule: one.fix for one in plan(compiled, use_measured=False).findings}
    assert found["sequence_ranks_hold_all_weights"] == (
        "Set parallel.zero_stage: 2, which shards gradients and optimizer state across data-parallel ranks, "
        "including the ranks across which each sequence is split."
    )
    assert found["model_is_made_in_host_memory"].startswith("Shard the model across more tensor or pipeline")


def test_selective_is_not_the_smaller_recomputation():
    config = load(
        "gpt-125m", ["resources.gpu_type=T4", "batch.micro_batch_size=32", f"{RECOMPUTE}=selective"]
    )
    result = plan(config, use_measured=False)
    (found,) = (one for one in result.findings if one.rule == "full_saves_more_than_selective")
    kept = result.memory.parts["activations"]
    full = least_memory(with_values(config, {RECOMPUTE: "full"})).parts["activations"]
    assert found.message == (
        f"Selective recomputation keeps {amounts.size(kept)} of activations, while full recomputation would "
        f"keep only {amounts.size(full)}. Selective recomputation is faster, but needs more memory "
        "(arXiv:2205.05198, section 5)."
    )
    assert found.cost.num_bytes == kept - full > 0


def test_the_model_is_made_in_host_memory_first():
    """Eight ranks that each initialize a complete 13B model exceed a machine of 256 GiB; with ZeRO 3, each
    rank initializes only its shard.
    """
    config = load("gpt-13b-4xdp-4xpp", [*ONE_COPY, f"{ZERO}=2"])
    result = plan(config, use_measured=False)
    (found,) = (one for one in result.findings if one.rule == "model_is_made_in_host_memory")
    each = result.memory.initial_host_bytes
    assert found.message == (
        "Each rank first creates its part of the model in host memory: the 8 ranks of a machine need "
        f"{amounts.size(each)} each, {amounts.size(8 * each)} together, but resources.memory_per_node_bytes "
        "is only 256.0 GiB."
    )
    assert found.fix == (
        "Set parallel.zero_stage: 3, which shards each parameter as it is created, or use machines with "
        f"{amounts.size(8 * each)} of memory."
    )
    better = plan(load(config, {ZERO: 3}), use_measured=False).findings
    assert "model_is_made_in_host_memory" not in {one.rule for one in better}
    assert found.cost.num_bytes == 8 * each - 2**38 > 0


def test_the_stage_may_not_suffice_where_the_model_is_made():
    """The fix names the host memory that the shards need if ZeRO 3 alone does not fit; one rank is no
    ranks.
    """
    config = load("gpt-13b-4xdp-4xpp", [*ONE_COPY, f"{ZERO}=2", "resources.memory_per_node_bytes=8e9"])
    rule = "model_is_made_in_host_memory"
    (found,) = (one for one in plan(config, use_measured=False).findings if one.rule == rule)
    (after,) = (one for one in plan(load(config, {ZERO: 3})).findings if one.rule == rule)
    words = re.search(r"use machines with ([\d.]+ GiB) of memory\.$", found.fix)[1]
    assert found.fix.startswith("Set parallel.zero_stage: 3, ") and " and use machines with " in found.fix
    assert after.fix.endswith(f"or use machines with {words} of memory.")
    alone = load("gpt-13b-4xdp-4xpp", [*ONE_GPU, "resources.memory_per_node_bytes=16e9"])
    (found,) = (one for one in plan(alone, use_measured=False).findings if one.rule == rule)
    assert "each machine has one rank, which needs " in found.message


def test_a_device_that_is_there_counts_in_place_of_the_runs_own():
    """The GPU that was detected takes precedence over the configured one, as in preflight."""
    config = load("gpt-125m", ["batch.micro_batch_size=32"])
    there = 15 * 2**30
    remedy = cheapest_remedy(config, 0.1, there)
    assert remedy.changes and remedy.memory.total_bytes <= 0.9 * there
