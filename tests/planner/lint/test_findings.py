"""Findings of the plan: the message, fix and cost of each rule, their order, and one list for both check and
plan.
"""

import re
from types import SimpleNamespace

import pytest

from nbtrain.base.run_directory.records import Heartbeat
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.cli.__main__ import main
from nbtrain.config.load import load
from nbtrain.config.rules.check import find_problems
from nbtrain.lab.form.fields import run_yamls
from nbtrain.planner.lint import machine
from nbtrain.planner.lint.schedule import local_checkpoints_are_few
from nbtrain.planner.plan import RULES, plan
from tests.lab.widgets.fake_run import FakeJob

HPZ = ["parallel.zero_stage=3", "parallel.zero_hpz=true"]
ON_KUBERNETES = [
    "backend.kind=kubernetes",
    "backend.kubernetes={image: a/b:1, workspace_path: /w, mounts: [{claim: c, mount_path: /w}]}",
]
TWO_MACHINES = ["resources.nodes=2", "resources.gpus_per_node=2"]


@pytest.fixture(autouse=True)
def an_empty_workspace_on_a_large_disk(workspace, monkeypatch):
    """Use an empty workspace and a large disk, so that findings do not depend on this machine."""
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**50))


def findings(run, overrides=()):
    return plan(load(run, list(overrides)), use_measured=False).findings


def finding(run, overrides, rule):
    (found,) = (one for one in findings(run, overrides) if one.rule == rule)
    return found


# {case: (run, overrides, rule, key, message, fix, cost)}: rules without an estimate of memory or time in
# their messages.
FOUND = {
    "a device that no table knows": (
        "gpt-125m",
        ["resources.gpu_type=null"],
        "memory_fits",
        "resources.gpu_type",
        "The GPU type is not set, so the plan cannot tell whether the run fits its memory.",
        "Set resources.gpu_type.",
        "",
    ),
    "host memory in GiB": (
        "gpt-13b-4xdp-4xpp",
        ["resources.memory_per_node_bytes=256"],
        "host_memory_is_in_bytes",
        "resources.memory_per_node_bytes",
        "resources.memory_per_node_bytes = 256 is only 256 B, but training needs a machine with more than "
        "256.0 MiB.",
        "If you mean 256 GiB, set memory_per_node_bytes: 274877906944.",
        "cannot run",
    ),
    "host memory in MiB": (
        "gpt-13b-4xdp-4xpp",
        ["resources.memory_per_node_bytes=65536"],
        "host_memory_is_in_bytes",
        "resources.memory_per_node_bytes",
        "resources.memory_per_node_bytes = 65536 is only 64.0 KiB, but training needs a machine with more "
        "than 256.0 MiB.",
        "If you mean 65,536 MiB, set memory_per_node_bytes: 68719476736.",
        "cannot run",
    ),
    "preferences with dropout": (
        "gpt-tiny-preferences",
        ["model.hidden_dropout=0.1", "lora={rank: 4, dropout: 0.05}"],
        "preferences_have_no_dropout",
        "model.hidden_dropout",
        "dpo compares the model with a reference that is computed without dropout, but this run sets "
        "model.hidden_dropout = 0.1 and lora.dropout = 0.05. Rewards and margins then contain dropout "
        "noise, even before the first step.",
        "Set model.hidden_dropout: 0 and lora.dropout: 0.",
        "costs a worse model",
    ),
    "a copy of fewer ranks than a machine has": (
        "gpt-125m-4xdp",
        [*HPZ, "parallel.zero_hpz_partition_size=2"],
        "hpz_stays_inside_a_machine",
        "parallel.zero_hpz_partition_size",
        "parallel.zero_hpz_partition_size is 2, but a machine has 4 ranks, so each copy of the parameters is "
        "split across only 2 of the machine's ranks.",
        "Set parallel.zero_hpz_partition_size: 4, or null.",
        "costs memory or traffic that hpZ should save",
    ),
    "a copy across machines": (
        "gpt-125m-4xdp",
        [*HPZ, *TWO_MACHINES, "parallel.zero_hpz_partition_size=4"],
        "hpz_stays_inside_a_machine",
        "parallel.zero_hpz_partition_size",
        "parallel.zero_hpz_partition_size is 4, but a machine has 2 ranks, so parameters are still gathered "
        "across machines.",
        "Set parallel.zero_hpz_partition_size: 2, or null.",
        "costs memory or traffic that hpZ should save",
    ),
    "a copy on one machine": (
        "gpt-125m-4xdp",
        HPZ,
        "hpz_stays_inside_a_machine",
        "parallel.zero_hpz",
        "parallel.zero_hpz is true, but the run uses one machine, where the second copy of the parameters "
        "needs memory and saves no traffic.",
        "Set parallel.zero_hpz: false.",
        "costs memory without a benefit",
    ),
    "quantized gradients on one machine": (
        "gpt-125m-4xdp",
        ["parallel.zero_stage=3", "parallel.zero_quantized_gradients=true"],
        "quantized_gradients_cross_machines",
        "parallel.zero_quantized_gradients",
        "parallel.zero_quantized_gradients has no effect on one machine, because DeepSpeed quantizes "
        "gradients only between machines.",
        "Set parallel.zero_quantized_gradients: false.",
        "",
    ),
    "keys that are more than the heads": (
        "gpt-125m",
        [
            "parallel.context_parallel_size=4",
            "resources={gpus_per_node: 4, gpu_type: V100-PCIe-32GB}",
            "precision.dtype=fp16",
        ],
        "sequences_are_shared_the_faster_way",
        "parallel.context_parallel_size",
        "Each sequence is split across 4 ranks, which spend 37% of a step exchanging tokens. A step takes "
        "5.82 s with context_parallel_size(4), and would take 5.1 s with ds_sequence_parallel_size(4).",
        "Set parallel.ds_sequence_parallel_size: 4 and parallel.context_parallel_size: 1.",
        "costs 59 min, 4 GPU hours",
    ),
    "FPDT's chunks are small": (
        "gpt-125m",
        ["parallel.fpdt_chunk_tokens=512", "precision.dtype=bf16", "model.attention_dropout=0"],
        "fpdt_chunks_are_large_enough",
        "parallel.fpdt_chunk_tokens",
        "GPUs wait for FPDT's chunks for 71% of each step. A chunk of 512 tokens is computed faster than "
        "PCIe, at 25 GB/s, moves it to and from host memory.",
        "Set parallel.fpdt_chunk_tokens: 2048, which lowers the wait to 0%.",
        "costs 14 h, 14 GPU hours, 22 USD",
    ),
    "a high learning rate": (
        "gpt-125m",
        ["lr_schedule.lr=1.2e-2"],
        "learning_rate_suits_size",
        "lr_schedule.lr",
        "lr(0.012) is 20 times 0.0006, the usual learning rate for 126.6M parameters and 524.3k tokens per "
        "step (GPT-3's table, arXiv:2005.14165, table 2.1, scaled by the square root of the batch). A "
        "learning rate this high often makes the loss diverge.",
        "Set lr_schedule.lr: 0.0006.",
        "costs the run, if the loss diverges",
    ),
    "a warm-up that is longer than the run": (
        "gpt-125m",
        ["batch.train_tokens=2.5e7", "batch.max_steps=10", "lr_schedule.lr_warmup_tokens=1e8"],
        "warmup_ends_before_the_run",
        "lr_schedule.lr_warmup_tokens",
        "The warm-up of 100,000,000 tokens does not end before the run of 25,000,000 tokens: the learning "
        "rate reaches only 25 % of lr(0.0006).",
        "Set lr_schedule.lr_warmup_tokens: 2500000 (10.0% of the run), or train for longer.",
        "costs a worse model",
    ),
    "tokens a thousand times too few": (
        "gpt-125m",
        ["batch.train_tokens=2.5e6"],
        "tokens_suit_the_size",
        "batch.train_tokens",
        "2.5M tokens for 126.6M parameters are 0.02 tokens per parameter. About 20 are usual "
        "(arXiv:2203.15556).",
        "If you meant another unit, set batch.train_tokens: 2500000000. 20 tokens per parameter are 2.53B "
        "tokens.",
        "costs a model that has learned little",
    ),
    "tokens a thousand times too many": (
        "gpt-125m",
        ["batch.train_tokens=2.5e12"],
        "tokens_suit_the_size",
        "batch.train_tokens",
        "2.5T tokens for 126.6M parameters are 19,741 tokens per parameter. About 20 are usual "
        "(arXiv:2203.15556), and few runs use thousands.",
        "If you meant another unit, set batch.train_tokens: 2500000000. 20 tokens per parameter are 2.53B "
        "tokens.",
        "costs time on more text than the model can use",
    ),
    "a low learning rate": (
        "gpt-125m",
        ["lr_schedule.lr=3e-5"],
        "learning_rate_suits_size",
        "lr_schedule.lr",
        "lr(3e-05) is only 1/20 of 0.0006, the usual learning rate for 126.6M parameters and 524.3k tokens "
        "per step (GPT-3's table, arXiv:2005.14165, table 2.1, scaled by the square root of the batch). A "
        "model learns little at this learning rate.",
        "Set lr_schedule.lr: 0.0006.",
        "costs a worse model",
    ),
    "the learning rate of a small model for a large one": (
        "gpt-13b-4xdp-4xpp",
        ["lr_schedule.lr=2e-3"],
        "learning_rate_suits_size",
        "lr_schedule.lr",
        "lr(0.002) is 20 times 0.0001, the usual learning rate for 12.9B parameters and 2.1M tokens per step "
        "(GPT-3's table, arXiv:2005.14165, table 2.1, scaled by the square root of the batch). A learning "
        "rate this high often "
        "makes the loss diverge.",
        "Set lr_schedule.lr: 0.0001.",
        "costs the run, if the loss diverges",
    ),
    "a warm-up of a million tokens": (
        "gpt-13b-4xdp-4xpp",
        ["lr_schedule.lr_warmup_tokens=1e6"],
        "warmup_is_long_enough",
        "lr_schedule.lr_warmup_tokens",
        "The warm-up takes 1 step of 123,978 (0.00038 % of the run). With fewer than 100 warm-up steps, the "
        "loss may fail to decrease.",
        "Set lr_schedule.lr_warmup_tokens: 2600e6. That is 1.0% of the run.",
        "costs the run, if the loss diverges",
    ),
    "a warm-up of one step": (
        "gpt-13b-4xdp-4xpp",
        ["lr_schedule={lr_warmup_tokens: null, lr_warmup_steps: 1}"],
        "warmup_is_long_enough",
        "lr_schedule.lr_warmup_steps",
        "The warm-up takes 1 step of 123,978 (0.00081 % of the run). With fewer than 100 warm-up steps, the "
        "loss may fail to decrease.",
        "Set lr_schedule.lr_warmup_tokens: 2600e6 instead of lr_warmup_steps. That is 1.0% of the run.",
        "costs the run, if the loss diverges",
    ),
    "no warm-up": (
        "gpt-13b-4xdp-4xpp",
        ["lr_schedule.lr_warmup_tokens=null"],
        "warmup_is_long_enough",
        "lr_schedule.lr_warmup_tokens",
        "There is no warm-up in a run of 123,978 steps. With fewer than 100 warm-up steps, the loss may "
        "fail to decrease.",
        "Set lr_schedule.lr_warmup_tokens: 2600e6. That is 1.0% of the run.",
        "costs the run, if the loss diverges",
    ),
    "min_lr after the end": (
        "gpt-125m",
        ["lr_schedule.lr_decay_tokens=3e9"],
        "decay_reaches_its_end",
        "lr_schedule.lr_decay_tokens",
        "The learning rate does not reach min_lr, because lr_decay_tokens(3,000,000,000) is more than "
        "train_tokens(2,500,000,000).",
        "To decay over the whole run, set lr_schedule.lr_decay_tokens to 2500000000 or to null.",
        "costs a worse model",
    ),
    "min_lr after the end, by steps": (
        "gpt-125m",
        ["lr_schedule={lr_decay_tokens: null, lr_decay_steps: 320000}"],
        "decay_reaches_its_end",
        "lr_schedule.lr_decay_steps",
        "The learning rate does not reach min_lr, because lr_decay_steps(320,000 = 167,772,160,000 tokens) "
        "is more than train_tokens(2,500,000,000).",
        "To decay over the whole run, set lr_decay_steps: null, or set lr_schedule.lr_decay_tokens: "
        "2500000000 instead of lr_decay_steps.",
        "costs a worse model",
    ),
    "billions without their zeros": (
        "gpt-125m",
        ["batch.train_tokens=300", "lr_schedule={lr_warmup_tokens: null, lr_decay_tokens: null}"],
        "training_is_longer_than_a_step",
        "batch.train_tokens",
        "train_tokens(300) lasts for only one step, because a step trains on 524,288 tokens.",
        "If you mean billions, set train_tokens: 300e9; for millions, set 300e6.",
        "costs a run that learns almost nothing",
    ),
    "a batch larger than the training": (
        "gpt-125m",
        ["batch.train_tokens=500000", "lr_schedule={lr_warmup_tokens: null, lr_decay_tokens: null}"],
        "training_is_longer_than_a_step",
        "batch.train_tokens",
        "train_tokens(500,000) lasts for only one step, because a step trains on 524,288 tokens.",
        "For more steps, lower batch.global_batch_size, or raise train_tokens.",
        "costs a run that learns almost nothing",
    ),
    "a fixed loss scale": (
        "gpt-125m",
        ["precision.fp16.loss_scale=4096"],
        "fp16_scale_can_move",
        "precision.fp16.loss_scale",
        "With fp16 and the fixed loss_scale(4096), any gradient above 65504 / 4096 = 15.9922 becomes Inf, "
        "and the scale is never lowered.",
        "Set precision.fp16.loss_scale: 0 to use a dynamic scale that is halved after overflows "
        "(initial_scale_power, loss_scale_window, hysteresis).",
        "costs the run, if a gradient overflows",
    ),
    "fp16 where bf16 is": (
        "gpt-125m",
        [],
        "bf16_needs_no_scale",
        "precision.dtype",
        "The run uses fp16, but on A100-40GB bf16 is as fast, has the range of fp32 and needs no loss scale.",
        "Set precision.dtype: bf16, unless you must reproduce the numbers of an fp16 run.",
        "",
    ),
    "32 loader workers a rank": (
        "gpt-13b-4xdp-4xpp",
        [],
        "loaders_have_cores",
        "data.num_workers",
        "num_workers(32) starts 256 data workers for the 8 ranks of a machine, but cpus_per_node is 16.",
        "Set data.num_workers: 1; reading samples needs only a fraction of a core.",
        "costs time in which ranks wait for samples",
    ),
    "32 loader workers a rank, on cores that are not known": (
        "gpt-13b-4xdp-4xpp",
        ["resources.cpus_per_node=null"],
        "loaders_have_cores",
        "data.num_workers",
        "num_workers(32) starts 256 data workers for the 8 ranks of a machine. resources.cpus_per_node is "
        "not set; machines usually have up to 28 hardware threads per GPU.",
        "Set data.num_workers: 2, which is enough for most runs, or set resources.cpus_per_node so that the "
        "plan can check the number of workers.",
        "",
    ),
    "a permanent checkpoint every 1,000 steps": (
        "gpt-13b-4xdp-4xpp",
        ["checkpoint.keep_every_steps=1000"],
        "checkpoints_fit_the_disk",
        "checkpoint.keep_every_steps",
        "keep_every_steps(1,000) in a run of 123,978 steps keeps up to 124 checkpoints of 170.7 GiB, "
        "including the one that is being written. In total, this is 20.7 TiB.",
        "Set checkpoint.keep_every_steps: 13000 to keep 9 checkpoints, or use a disk with 20.7 TiB of free "
        "space.",
        "costs 20.7 TiB",
    ),
    "twenty checkpoints": (
        "gpt-13b-4xdp-4xpp",
        ["checkpoint.keep_last=20"],
        "checkpoints_fit_the_disk",
        "checkpoint.keep_last",
        "keep_last(20) keeps up to 21 checkpoints of 170.7 GiB, including the one that is being written. "
        "In total, this is 3.5 TiB.",
        "Set checkpoint.keep_last: 10, or use a disk with 3.5 TiB of free space.",
        "costs 3.5 TiB",
    ),
    "a best checkpoint that is rarely looked for": (
        "gpt-125m-4xdp",
        ["checkpoint.keep_best=true", "checkpoint.save_interval_steps=150"],
        "best_is_looked_for_often",
        "checkpoint.keep_best",
        "checkpoint.keep_best can keep only checkpoints of steps with a validation, but with "
        "save_interval_steps(150) and eval_interval_steps(100) a step has both a checkpoint and "
        "a validation only every 300 steps.",
        "Set save_interval_steps to a multiple of eval_interval_steps.",
        "",
    ),
    "a folder of offloading that is not here": (
        "gpt-125m-4xdp",
        [
            "parallel.zero_stage=3",
            "parallel.offload_param.device=nvme",
            "parallel.offload_param.nvme_path=/no/such/folder",
        ],
        "nvme_folder_is_here",
        "parallel.offload_param.nvme_path",
        "parallel.offload_param.nvme_path = /no/such/folder does not exist on this machine. The run starts "
        "only if the folder exists on the machine that trains.",
        "Create the folder on that machine, or set parallel.offload_param.nvme_path to an existing folder.",
        "",
    ),
    "more hosts than nodes": (
        "gpt-tiny",
        ["backend.kind=hosts", "backend.hosts.hosts=[a, b]"],
        "no_host_stays_unused",
        "backend.hosts.hosts",
        "backend.hosts.hosts lists 2 machines, but resources.nodes is 1, so the run does not use b.",
        "Set resources.nodes: 2 and parallel.data_parallel_size: 2 and batch.micro_batch_size: 4 to use all "
        "machines, or remove the unused machines.",
        "costs idle machines",
    ),
    "threads that nbtrain would count": (
        "gpt-tiny",
        ["backend.env={OMP_NUM_THREADS: '3'}"],
        "variables_have_one_owner",
        "backend.env.OMP_NUM_THREADS",
        "backend.env.OMP_NUM_THREADS = 3 overrides the value that nbtrain would set: the cores of a machine "
        "divided by its ranks.",
        "",
        "",
    ),
    "a variable that debug sets otherwise": (
        "gpt-tiny",
        ["backend.debug=nccl", "backend.env={NCCL_DEBUG: WARN}"],
        "variables_have_one_owner",
        "backend.env.NCCL_DEBUG",
        "backend.env.NCCL_DEBUG = WARN overrides INFO, the value from backend.debug.",
        "Remove one of the two settings.",
        "",
    ),
    "GPUs that the queue chooses among": (
        "gpt-125m",
        ["backend.env={CUDA_VISIBLE_DEVICES: '0,1'}"],
        "variables_have_one_owner",
        "backend.env.CUDA_VISIBLE_DEVICES",
        "backend.env.CUDA_VISIBLE_DEVICES = 0,1: nbtrain chooses the run's GPUs from this list.",
        "",
        "",
    ),
    "GPUs that Slurm has given to others": (
        "gpt-125m",
        ["backend.kind=slurm", "backend.env={CUDA_VISIBLE_DEVICES: '0'}"],
        "variables_have_one_owner",
        "backend.env.CUDA_VISIBLE_DEVICES",
        "backend.env.CUDA_VISIBLE_DEVICES = 0: on every node, ranks see these GPUs instead of the GPUs that "
        "Slurm assigned to the job.",
        "Remove the variable, and let Slurm choose the GPUs.",
        "",
    ),
    "another maker's GPU": (
        "gpt-125m",
        ["resources.gpu_type=MI300X"],
        "device_trains_here",
        "resources.gpu_type",
        "resources.gpu_type = MI300X is a device from AMD. nbtrain can plan for this device, but trains "
        "only on NVIDIA GPUs and CPUs.",
        "To train with nbtrain, set another gpu_type.",
        "costs the run, because nbtrain cannot train on this device",
    ),
    "a name of another size": (
        "gpt-175b",
        ["name=gpt-1-3t", "model.num_layers=120"],
        "name_says_its_size",
        "name",
        "The name gpt-1-3t contains the size 1.3T or 3T, but the model has 218,106,224,640 parameters "
        "(218.1B).",
        "Correct the sizes of the model, or rename the run.",
        "costs the training of a wrong model, if the name is right",
    ),
    "a time-out in milliseconds": (
        "gpt-125m",
        ["parallel.process_group_timeout_seconds=600000"],
        "timeout_is_in_seconds",
        "parallel.process_group_timeout_seconds",
        "process_group_timeout_seconds(600000) is 6.9 d: if a rank dies, the other ranks wait that long "
        "before the run ends.",
        "If you mean 600000 milliseconds, set process_group_timeout_seconds: 600. The default is 600.",
        "costs idle GPUs after a rank is lost",
    ),
    "a time-out in minutes": (
        "gpt-125m",
        ["parallel.process_group_timeout_seconds=30"],
        "timeout_is_in_seconds",
        "parallel.process_group_timeout_seconds",
        "process_group_timeout_seconds(30) is 30 s: a checkpoint that takes longer ends the run.",
        "If you mean 30 minutes, set process_group_timeout_seconds: 1800. The default is 600.",
        "costs the run, if a checkpoint is slow",
    ),
    "pods that end before they have saved": (
        "gpt-125m",
        [*ON_KUBERNETES, "backend.shutdown_timeout_seconds=6"],
        "pods_have_time_to_save",
        "backend.shutdown_timeout_seconds",
        "shutdown_timeout_seconds(6) gives ranks 6 s to save when their pod is terminated, but a save takes "
        "10 s (planned: 1.7 GiB per node at 171.7 MiB/s). Kubernetes kills a pod 36 s after it asks the "
        "pod to stop (terminationGracePeriodSeconds).",
        "Set backend.shutdown_timeout_seconds: 20, which is 2 times the duration of a save.",
        "costs all steps since the previous checkpoint whenever a pod is terminated",
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_a_finding_says_what_why_where_and_what_it_costs(what):
    """Each finding has exactly this message, fix and cost, in a run that passes all rules of
    config/rules/.
    """
    run, overrides, rule, key, message, fix, cost = FOUND[what]
    found = finding(run, overrides, rule)
    assert (found.key, found.message, found.fix, found.cost.text) == (key, message, fix, cost)
    assert found.place == load(run, overrides).where(key)


def test_every_rule_finds_something_in_a_case():
    """Every rule that can produce a finding does so in some case of this file, so that its message is
    tested.
    """
    computed = {"memory_fits", "host_memory_fits", "bubble_is_small", "validations_are_few"}
    computed |= {
        "data_traffic_is_hidden",
        "network_keeps_up",  # tests/planner/test_network.py
        "fragmentation_leaves_room",
        "sequence_ranks_hold_all_weights",
        "full_saves_more_than_selective",
    }
    computed |= {"model_is_made_in_host_memory", "checkpoints_are_few", "tensor_ranks_share_a_machine"}
    computed |= {
        "saves_fit_interruptions",  # tests/planner/budget/test_interruptions.py
        "limits_hold",  # tests/planner/budget/test_limits.py
        "tokens_match_a_published_length",  # tests/planner/budget/test_wikipedias.py
        "a_checkpoint_comes_before_the_end",
        "dataset_is_not_repeated_too_often",
        "dataset_counts_agree",
        "tokenizer_is_of_this_text",  # tests/dataset/prepare/test_own_tokenizer.py
        "decay_ends_with_the_run",
        "local_checkpoints_are_apart",
        "local_checkpoints_are_few",
        "own_blocks_are_counted",  # tests/jobs/request/test_own_code.py
    }
    assert {rule.__name__ for rule in RULES} <= {case[2] for case in FOUND.values()} | computed


@pytest.mark.parametrize(
    ("run", "overrides", "rule"),
    [
        ("gpt-125m", ["resources.memory_per_node_bytes=268435456"], "host_memory_is_in_bytes"),
        ("gpt-13b-4xdp-4xpp-4xtp", [], "tensor_ranks_share_a_machine"),
        ("gpt-125m-4xdp", [*HPZ, *TWO_MACHINES], "hpz_stays_inside_a_machine"),
        # No other way: 3 heads.
        (
            "gpt-125m",
            [
                "parallel.context_parallel_size=2",
                "model={num_attention_heads: 3, hidden_size: 768}",
                "resources={gpus_per_node: 2, gpu_type: V100-PCIe-32GB}",
                "precision.dtype=fp16",
            ],
            "sequences_are_shared_the_faster_way",
        ),
        (
            "gpt-125m-4xdp",
            ["parallel.zero_stage=3", "parallel.zero_quantized_gradients=true", *TWO_MACHINES],
            "quantized_gradients_cross_machines",
        ),
        ("gpt-125m", ["lr_schedule.lr=2.4e-3"], "learning_rate_suits_size"),
        ("gpt-125m", ["lr_schedule.lr=6.5e-5"], "learning_rate_suits_size"),
        # A batch of one sequence: a learning rate that the table gives for 256 sequences is not called high.
        (
            "gpt-125m",
            ["batch={micro_batch_size: 1, global_batch_size: 1}", "lr_schedule.lr=6e-4"],
            "learning_rate_suits_size",
        ),
        ("gpt-125m", ["lr_schedule={lr_warmup_tokens: null, lr_warmup_steps: 100}"], "warmup_is_long_enough"),
        ("gpt-tiny", ["lr_schedule.lr_warmup_tokens=null"], "warmup_is_long_enough"),
        ("gpt-125m", ["lr_schedule.lr_decay_tokens=2.5e9"], "decay_reaches_its_end"),
        ("gpt-125m", ["batch.train_tokens=7.5e9"], "decay_ends_with_the_run"),
        ("gpt-125m", ["batch.train_tokens=1.5e7"], "tokens_suit_the_size"),
        ("gpt-125m", ["batch.train_tokens=1.2e12"], "tokens_suit_the_size"),
        ("gpt-125m", ["precision.dtype=bf16", "precision.fp16.loss_scale=4096"], "fp16_scale_can_move"),
        ("gpt-125m", ["resources.gpu_type=V100-32GB"], "bf16_needs_no_scale"),
        ("gpt-13b-4xdp-4xpp", ["data.num_workers=2"], "loaders_have_cores"),
        (
            "gpt-13b-4xdp-4xpp",
            ["resources.cpus_per_node=null", "data.num_workers=28"],
            "loaders_have_cores",
        ),
        ("gpt-13b-4xdp-4xpp", [], "checkpoints_fit_the_disk"),
        ("gpt-tiny", ["checkpoint.keep_last=100"], "checkpoints_fit_the_disk"),
        (
            "gpt-125m-4xdp",
            ["checkpoint.keep_best=true", "checkpoint.save_interval_steps=200"],
            "best_is_looked_for_often",
        ),
        ("gpt-125m", ["name=a-run-1b", "model.num_layers=140"], "name_says_its_size"),
        ("gpt-125m", ["name=gpt2-xl"], "name_says_its_size"),
        ("gpt-125m", ["name=llama-2-125m"], "name_says_its_size"),
        ("gpt-125m", ["parallel.process_group_timeout_seconds=86400"], "timeout_is_in_seconds"),
        ("gpt-125m", ["parallel.process_group_timeout_seconds=60"], "timeout_is_in_seconds"),
        ("gpt-125m", ["checkpoint.save_interval_steps=4768"], "a_checkpoint_comes_before_the_end"),
        ("gpt-tiny", ["checkpoint.save_interval_steps=600"], "a_checkpoint_comes_before_the_end"),
        ("gpt-125m", ["evaluation.eval_interval_steps=100"], "validations_are_few"),
        # Pretrained weights continue with little data.
        ("qwen2-5-7b-lora", ["batch.train_tokens=1000000"], "tokens_suit_the_size"),
    ],
)
def test_what_just_passes_is_no_finding(run, overrides, rule):
    assert rule not in {one.rule for one in findings(run, overrides)}


def test_pods_that_end_before_they_have_saved(workspace):
    """On Kubernetes only, a finding compares the pod's grace period with the longest measured save."""
    rule, limit = "pods_have_time_to_save", "backend.shutdown_timeout_seconds"
    short = [*ON_KUBERNETES, f"{limit}=6"]
    for overrides in ([*ON_KUBERNETES, f"{limit}=20"], [f"{limit}=6"], [*short, "mode=perf"]):
        assert rule not in {one.rule for one in findings("gpt-125m", overrides)}
    job = FakeJob(RunDir.named("gpt-125m"), steps=40)
    job.one_step()
    beat = Heartbeat.read(job.job.heartbeat(0))
    beat.progress.save_seconds = 75.0
    beat.write(job.job.heartbeat(0))
    (measured,) = [one for one in plan(load("gpt-125m", ON_KUBERNETES)).findings if one.rule == rule]
    assert (
        "a save takes 1 min 15 s (the longest save that this run has measured). Kubernetes kills a pod 90 s"
        in (measured.message)
    )
    assert "shutdown_timeout_seconds: 150," in measured.fix
    job.tensorboard.close()


def test_local_checkpoints_on_the_disk_of_the_others(workspace):
    """The finding that local checkpoints share a disk with the output is reported for local runs, but not for
    Slurm jobs on other machines.
    """
    folder, rule = workspace / "local", "local_checkpoints_are_apart"
    found = finding("gpt-tiny", [f"checkpoint.local_dir={folder}"], rule)
    assert (found.level, found.message, found.fix) == (
        "warning",
        f"checkpoint.local_dir = {folder} is on the same file system as output, so every checkpoint is "
        "written to this file system twice.",
        "Set local_dir to a folder on each node's own disk, or set checkpoint.local_dir: null.",
    )
    # The interval goes with the folder: a rule refuses it alone.
    interval = "checkpoint.local_save_interval_steps"
    more = finding("gpt-tiny", [f"checkpoint.local_dir={folder}", f"{interval}=3"], rule)
    assert more.fix.endswith(f" or set checkpoint.local_dir: null and {interval}: null.")
    overrides = [f"checkpoint.local_dir={folder}", "backend.kind=slurm"]
    assert rule not in {one.rule for one in findings("gpt-tiny", overrides)}


def test_the_share_of_time_of_a_finding_is_its_cost():
    """A finding about lost time gives its cost in hours, GPU hours and money of the whole run, here for a
    pipeline bubble of 19 %.
    """
    run = load("gpt-13b-4xdp-4xpp")
    result = plan(run, use_measured=False)
    bubble = result.duration.bubble_fraction
    found = finding("gpt-13b-4xdp-4xpp", [], "bubble_is_small")
    assert found.cost.hours == pytest.approx(bubble * result.duration.seconds / 3600)
    assert found.cost.gpu_hours == pytest.approx(16 * found.cost.hours)
    price = result.cost.money * bubble
    assert found.cost.text.endswith(f" GPU hours, {price:,.0f} USD")
    assert found.message == (
        f"Pipeline stages are idle for {bubble:.0%} of each step. With 16 micro batches (m) and 4 stages (p) "
        "of equal cost, (p - 1) / (m + p - 1) = 16% of the computing time is idle."
    )
    after = plan(load(run, ["batch.micro_batch_size=4"]), use_measured=False).duration.bubble_fraction
    assert found.fix == (
        f"Set batch.micro_batch_size: 4, which lowers the idle share to {after:.0%}. A larger "
        "global_batch_size or fewer stages also shrink the bubble."
    )
    assert bubble > 0.1 > after


def test_a_bubble_without_smaller_micro_batches_names_the_stages():
    overrides = ["batch.micro_batch_size=1", "batch.global_batch_size=4"]
    found = finding("gpt-345m-4xdp-2xpp", overrides, "bubble_is_small")
    assert (found.key, found.fix) == (
        "parallel.pipeline_parallel_size",
        "Set a larger batch.global_batch_size, or use fewer pipeline stages.",
    )
    assert found.message.endswith(
        "With 1 micro batch (m) and 2 stages (p) of equal cost, (p - 1) / (m + p - 1) = 50% of the "
        "computing time is idle."
    )
    unknown = [*overrides, "resources.gpu_type=null"]
    found = finding("gpt-345m-4xdp-2xpp", unknown, "bubble_is_small")
    assert found.message.startswith("Pipeline stages are idle for 50% of each step. ")
    assert found.cost.text == "costs idle time"


def test_a_bubble_of_unequal_stages_says_so():
    found = finding("gpt-13b-4xdp-4xpp", ["model.num_layers=41"], "bubble_is_small")
    assert (
        "The stages have 11 and 10 layers. With 16 micro batches (m) and 4 stages (p) of equal cost, only "
        "(p - 1) / (m + p - 1) = 16% of" in (found.message)
    )
    assert found.fix.endswith(" 41 layers do not divide evenly among 4 stages; 40 or 44 layers would.")


def test_a_rate_that_is_at_its_end_for_most_of_the_run():
    found = finding("gpt-125m", ["batch.train_tokens=2.5e10"], "decay_ends_with_the_run")
    assert found.message == (
        "The learning rate stays at min_lr(1e-06) for 90.0% of the run, because "
        "lr_decay_tokens(2,500,000,000) is only 10.0% of train_tokens(25,000,000,000)."
    )
    assert found.fix == (
        "To decay over the whole run, set lr_schedule.lr_decay_tokens to 25000000000 or to null."
    )
    assert found.cost.text.startswith("costs 2.0 d, ")


@pytest.mark.parametrize("unit, amount", [("samples", 100_000), ("steps", 500)])
def test_a_decay_that_is_too_short_is_named_in_its_own_unit(unit, amount):
    """A learning-rate decay that is too short is reported in the unit in which it was set, and each of the
    suggested fixes removes the finding.
    """
    given = [f"lr_schedule={{lr_decay_tokens: null, lr_decay_{unit}: {amount}, lr_warmup_tokens: null}}"]
    found = finding("gpt-125m", given, "decay_ends_with_the_run")
    tokens = amount * 2048 if unit == "samples" else amount * 524_288
    assert found.key == f"lr_schedule.lr_decay_{unit}"
    assert (
        f"for {1 - tokens / 2.5e9:.1%} of the run, because lr_decay_{unit}({amount:,} = {tokens:,} tokens) "
        "is only " in (found.message)
    )
    assert found.fix == (
        f"To decay over the whole run, set lr_decay_{unit}: null, or set lr_schedule.lr_decay_tokens: "
        f"2500000000 instead of lr_decay_{unit}."
    )
    without = f"lr_schedule.lr_decay_{unit}=null"
    for fixed in ([without], [without, "lr_schedule.lr_decay_tokens=2500000000"]):
        assert "decay_ends_with_the_run" not in [
            one.rule for one in plan(load("gpt-125m", given + fixed)).findings
        ]


def test_pauses_of_more_than_a_tenth_of_the_time():
    """Pauses that take more than a tenth of the run time are reported; with the suggested interval they take
    a tenth.
    """
    for overrides, rule, part, message in (
        (
            ["evaluation.eval_interval_steps=10"],
            "validations_are_few",
            "validation",
            "Validations take {share:.0%} of the time, with a forward pass of 10 batches after every 10 "
            "steps.",
        ),
        (
            ["checkpoint.save_interval_steps=2", "checkpoint.async_save=false"],
            "checkpoints_are_few",
            "checkpoints",
            "Checkpoints take {share:.0%} of the time: 1.7 GiB is written after every 2 steps.",
        ),
    ):
        duration = plan(load("gpt-125m", overrides), use_measured=False).duration
        found = finding("gpt-125m", overrides, rule)
        share = duration.parts[part] / duration.seconds
        assert found.message == message.format(share=share)
        assert found.cost.hours == pytest.approx(duration.parts[part] / 3600)
        interval = re.match(
            rf"Set {found.key}: (\d+), so that (validations|checkpoints) take 10%", found.fix
        )[1]
        after = plan(load("gpt-125m", [*overrides, f"{found.key}={interval}"]), use_measured=False).duration
        assert 0.08 < after.parts[part] / after.seconds < 0.105


def test_a_run_without_a_checkpoint_on_its_way():
    overrides = ["checkpoint.save_interval_steps=5000"]
    found = finding("gpt-125m", overrides, "a_checkpoint_comes_before_the_end")
    seconds = plan(load("gpt-125m", overrides), use_measured=False).duration.seconds
    assert found.message == (
        "save_interval_steps(5,000) writes no checkpoint before the last of 4,769 steps. A failure "
        f"before that step loses up to {amounts.duration(seconds)} of training."
    )
    assert found.fix == "Set checkpoint.save_interval_steps: 476."
    # The nodes' own disks hold checkpoints, from which a run resumes unless a disk is lost.
    local = ["checkpoint.local_dir=/local", "checkpoint.local_save_interval_steps=100"]
    found = finding("gpt-125m", [*overrides, *local], found.rule)
    assert (
        "writes no checkpoint to the run directory before the last of 4,769 steps. A failure that loses a"
        in (found.message)
    )


def test_local_checkpoints_that_hold_the_training_up():
    """Frequent saves on the nodes' disks are reported, and the fix is an interval that the rules
    accept.
    """
    key, rule = "checkpoint.local_save_interval_steps", "local_checkpoints_are_few"
    local = ["checkpoint.local_dir=/local", "checkpoint.async_save=false", f"{key}=1"]
    local += ["batch.global_batch_size=64"]
    found = finding("gpt-125m", [*local, "checkpoint.save_interval_steps=1000"], rule)
    enough = int(re.match(rf"Set {key}: (\d+), so that these checkpoints take 10% of the time", found.fix)[1])
    assert enough > 1 and found.cost.hours > 0
    mended = [*local, "checkpoint.save_interval_steps=1000", f"{key}={enough}"]
    assert rule not in {one.rule for one in findings("gpt-125m", mended)}


OFTEN = ["checkpoint.save_interval_steps=2", "checkpoint.async_save=false"]
ON_NVME = {"device": "nvme", "nvme_path": "/nvme"}

# {case: (run, overrides, rule, fix)}: advice that the run's other settings limit.
FOLLOWED = {
    "a rate below min_lr": (
        "gpt-tiny",
        ["lr_schedule.lr=0.5", "lr_schedule.min_lr=0.05"],
        "learning_rate_suits_size",
        "Set lr_schedule.lr: 0.0001 and min_lr: 1e-05.",
    ),
    "a warm-up of 100 steps, rounded up": (
        "gpt-1-3b-4xdp",
        ["lr_schedule.lr_warmup_tokens=1e6", "batch.train_tokens=5e9"],
        "warmup_is_long_enough",
        "Set lr_schedule.lr_warmup_tokens: 110e6. That is 2.1% of the run.",
    ),
    "saves next to kept checkpoints": (
        "gpt-125m",
        [*OFTEN, "checkpoint.keep_every_steps=400"],
        "checkpoints_are_few",
        None,
    ),
    "saves next to validations of the best": (
        "gpt-125m",
        [*OFTEN, "checkpoint.keep_best=true", "evaluation.eval_interval_steps=2"],
        "checkpoints_are_few",
        None,
    ),
    "a save on the way of a long run with kept checkpoints": (
        "gpt-125m",
        ["checkpoint.save_interval_steps=5000", "checkpoint.keep_every_steps=5000"],
        "a_checkpoint_comes_before_the_end",
        "Set checkpoint.save_interval_steps: 500.",
    ),
}


@pytest.mark.parametrize("what", FOLLOWED)
def test_a_run_that_follows_a_fix_is_legal_and_loses_the_finding(what):
    """The changes that a fix names pass every rule, and the finding does not come again."""
    run, overrides, rule, fix = FOLLOWED[what]
    found = finding(run, overrides, rule)
    assert fix in (None, found.fix)
    said = re.match(r"Set ((?:[a-z_.]+: [^ ,:]+(?: and )?)+)", found.fix)[1].rstrip(".")
    section = said.partition(".")[0]
    keys = [change.split(": ") for change in said.split(" and ")]
    changes = [f"{key if '.' in key else f'{section}.{key}'}={value}" for key, value in keys]
    assert rule not in {one.rule for one in findings(run, [*overrides, *changes])}


def test_advice_that_the_rules_refuse_is_not_given():
    """State on NVMe is not saved in the background, and a fine-tuning may have a lower learning rate."""
    nvme = {
        "parallel.zero_stage": 3,
        "parallel.offload_optimizer": ON_NVME,
        "checkpoint.save_interval_steps": 2,
        "resources.memory_per_node_bytes": None,
    }
    (found,) = (
        one
        for one in plan(load("gpt-125m", nvme), use_measured=False).findings
        if one.rule == "checkpoints_are_few"
    )
    assert "async_save" not in found.fix
    # A run of two steps has no place for fewer checkpoints.
    short = ["batch.train_tokens=null", "batch.train_steps=2", "checkpoint.save_interval_steps=1"]
    rules = {one.rule for one in findings("gpt-125m", [*short, "checkpoint.async_save=true"])}
    assert "checkpoints_are_few" not in rules
    low = ["init_from=gpt-125m-4xdp", "lr_schedule.lr=1e-6", "lr_schedule.min_lr=0"]
    assert "learning_rate_suits_size" not in {one.rule for one in findings("gpt-125m", low)}


def test_local_saves_are_not_made_rarer_than_the_others():
    """A slow local disk: the interval for a tenth of the time is longer than save_interval_steps, which the
    rules refuse.
    """
    overrides = ["checkpoint.local_dir=/local", "checkpoint.local_save_interval_steps=10"]
    config = load("gpt-125m", [*overrides, "checkpoint.save_interval_steps=20"])
    duration = SimpleNamespace(parts={"local checkpoints": 50.0}, seconds=100.0)
    estimates = SimpleNamespace(config=config, duration=duration, share=lambda fraction: None)
    (found,) = local_checkpoints_are_few(estimates)
    assert found.fix == (
        "Set checkpoint.local_save_interval_steps: null. Even without it, a checkpoint is written to the "
        "local disks every 20 steps (save_interval_steps)."
    )


def test_the_length_without_repetition_is_in_the_unit_of_the_run():
    overrides = ["batch.train_tokens=null", "batch.train_steps=2e6"]
    found = finding("gpt-125m", overrides, "dataset_is_not_repeated_too_often")
    assert found.key == "batch.train_steps"
    assert (
        match := re.match(r"Use more text, or lower train_steps to ([\d,]+), which is 4 passes", found.fix)
    )
    assert int(match[1].replace(",", "")) < 2e6


def test_tensor_ranks_are_not_told_of_more_ranks_than_they_have():
    """Four tensor ranks on machines of six GPUs: six ranks divide the 48 heads, and are more than four."""
    overrides = ["resources.nodes=8", "resources.gpus_per_node=6", "parallel.data_parallel_size=3"]
    overrides += ["batch.global_batch_size=1536", "model.num_attention_heads=48", "model.hidden_size=6144"]
    config = load("gpt-13b-4xdp-4xpp-4xtp", overrides)
    (found,) = (
        one for one in plan(config, use_measured=False).findings if one.rule == "tensor_ranks_share_a_machine"
    )
    assert re.match(r"Set parallel.tensor_parallel_size: 3, 2 or 1, ", found.fix)


def test_a_run_of_one_step_has_no_place_for_a_checkpoint_on_its_way():
    overrides = ["model.seq_length=1000000", "resources.gpu_type=null"]
    rules = [one.rule for one in findings("gpt-tiny", overrides)]
    assert "training_is_longer_than_a_step" in rules and "a_checkpoint_comes_before_the_end" not in rules


def test_zero_3_that_waits_for_its_weights_is_told_of_larger_micro_batches():
    """If ZeRO 3 waits for weights, as with 48.8B on two machines, the finding suggests a larger micro batch
    that fits in memory.
    """
    overrides = ["parallel={zero_stage: 3, pipeline_parallel_size: 1, data_parallel_size: 16}"]
    overrides += ["model={num_layers: 48, hidden_size: 9216, num_attention_heads: 72}"]
    found = finding("gpt-13b-4xdp-4xpp", [*overrides, "batch.micro_batch_size=1"], "data_traffic_is_hidden")
    before = plan(load("gpt-13b-4xdp-4xpp", [*overrides, "batch.micro_batch_size=1"]), use_measured=False)
    step = before.duration.step
    assert found.message == (
        f"Ranks wait for data-parallel traffic for {step.data / step.seconds:.0%} of each step, with ZeRO 3 "
        "across 16 ranks and 64 micro batches of 1 sequence per step."
    )
    size = int(found.fix.removeprefix("Set batch.micro_batch_size: ").split(".")[0])
    after = plan(
        load("gpt-13b-4xdp-4xpp", [*overrides, f"batch.micro_batch_size={size}"]), use_measured=False
    )
    assert size > 1 and after.memory.fits and after.duration.step.seconds < step.seconds
    assert f"takes {after.duration.step.seconds:.3g} s instead of {step.seconds:.3g} s." in found.fix


def test_tensor_ranks_on_two_machines_cost_time():
    overrides = ["resources.nodes=32", "resources.gpus_per_node=2"]
    found = finding("gpt-13b-4xdp-4xpp-4xtp", overrides, "tensor_ranks_share_a_machine")
    assert found.message == (
        "tensor_parallel_size(4) splits layers across machines of 2 GPUs each, so every layer waits for the "
        "network. A100-80GB GPUs exchange 300 GB/s inside a machine, but only 25.0 GB/s per GPU between "
        "machines (12 times less)."
    )
    assert found.fix == (
        "Set parallel.tensor_parallel_size: 2 or 1, with more pipeline stages or data-parallel ranks."
    )
    apart = plan(load("gpt-13b-4xdp-4xpp-4xtp", overrides), use_measured=False).duration
    together = plan(load("gpt-13b-4xdp-4xpp-4xtp"), use_measured=False).duration
    assert 0 < found.cost.hours < apart.seconds / 3600
    assert apart.seconds > together.seconds


def test_one_batch_is_no_batches():
    often = ["evaluation.eval_iters=1", "evaluation.eval_interval_steps=1"]
    assert (
        "a forward pass of 1 batch after every step."
        in finding("gpt-tiny", often, "validations_are_few").message
    )


def test_a_full_disk_is_named(monkeypatch):
    """A disk that is too full is reported only for a run on one machine, because that may be this machine."""
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**30))
    found = finding("gpt-125m", [], "checkpoints_fit_the_disk")
    assert re.fullmatch(
        r"keep_last\(2\) keeps up to 3 checkpoints of 1.7 GiB, including the one that is being written. "
        r"In total, this is 5.0 GiB, but .* has only 1.0 GiB free.",
        found.message,
    )
    assert found.level == "warning"
    assert "checkpoints_fit_the_disk" not in {one.rule for one in findings("gpt-13b-4xdp-4xpp")}


@pytest.mark.parametrize(
    ("kept", "changes"),
    [
        (["checkpoint.keep_last=9"], "checkpoint.keep_last: 5"),
        (["checkpoint.keep_last=9", "checkpoint.keep_best=true"], "checkpoint.keep_last: 4"),
        (["checkpoint.keep_last=9", "checkpoint.keep_every_steps=2500"], "checkpoint.keep_last: 4"),
        (["checkpoint.keep_every_steps=500"], "checkpoint.keep_every_steps: null"),
        (
            ["checkpoint.keep_last=9", "checkpoint.keep_every_steps=500"],
            "checkpoint.keep_last: 5 and checkpoint.keep_every_steps: null",
        ),
    ],
)
def test_the_checkpoints_that_a_full_disk_holds(kept, changes, monkeypatch):
    """The fix keeps as many checkpoints of 1.7 GiB as 11 GiB hold, and the finding is gone with it."""
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: SimpleNamespace(free=11 * 2**30))
    rule, kept = "checkpoints_fit_the_disk", ["checkpoint.save_interval_steps=100", *kept]
    found = finding("gpt-125m", kept, rule)
    assert found.fix.startswith(f"Set {changes}, or use a disk with ")
    fixed = [change.replace(": ", "=") for change in changes.split(" and ")]
    assert rule not in {one.rule for one in findings("gpt-125m", [*kept, *fixed])}


def test_a_disk_that_holds_no_two_checkpoints(monkeypatch):
    """Fewer checkpoints than the newest one and the one being written cannot be kept."""
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2 * 2**30))
    assert finding("gpt-125m", [], "checkpoints_fit_the_disk").fix == "Use a disk with 5.0 GiB of free space."


def test_permanent_checkpoints_that_are_few_already():
    """Every 500 steps, nine of 4,769 are kept: a sparser interval would be the run's own."""
    found = finding("gpt-125m-zh", ["checkpoint.keep_every_steps=500"], "checkpoints_fit_the_disk")
    assert found.fix.startswith("Set checkpoint.keep_every_steps: null, or ")


# --- the list ---


def full_card(micro: int, *more: str) -> list[str]:
    return [
        f"batch={{micro_batch_size: {micro}, global_batch_size: {micro}}}",
        "resources.gpu_type=A100-40GB",
        *more,
    ]


def test_fragmentation_is_named_before_it_ends_a_run():
    """A run that uses 90 % of its GPU's memory gets a note if it fits with the usual reserve, but not with 15
    % lost to fragmentation.
    """
    found = finding("gpt-125m", full_card(49), "fragmentation_leaves_room")
    assert (found.level, found.key) == ("note", "backend.env")
    assert found.message == (
        "The run may run out of memory because of fragmentation. If 15 % of torch's memory is in segments "
        "too small to use, which is the average of eight models (arXiv:2401.08156), one rank needs 40.3 "
        "GiB, but A100-40GB has 39.6 GiB."
    )
    assert found.fix == (
        "Set PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True in backend.env, so that the allocator joins "
        "free segments."
    )
    assert found.cost.text == "costs the run, if memory runs out"


def test_the_fix_of_fragmentation_keeps_what_the_allocator_was_told():
    env = "backend.env={PYTORCH_ALLOC_CONF: 'max_split_size_mb:512,expandable_segments:False'}"
    found = finding("gpt-125m", full_card(49, env), "fragmentation_leaves_room")
    assert found.fix.startswith(
        "Set PYTORCH_ALLOC_CONF: max_split_size_mb:512,expandable_segments:True in backend"
    )


@pytest.mark.parametrize(
    "overrides",
    [
        full_card(48),
        # Does not fit at all, which another rule reports.
        full_card(56),
        full_card(49, "backend.env={PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True'}"),
        full_card(49, "backend.env={PYTORCH_ALLOC_CONF: 'max_split_size_mb:512,expandable_segments:true'}"),
    ],
)
def test_no_word_of_fragmentation_where_there_is_room_or_the_fix(overrides):
    assert "fragmentation_leaves_room" not in {one.rule for one in findings("gpt-125m", overrides)}


def test_a_broken_rule_is_a_finding_too():
    """A rule that the configuration breaks becomes a finding with the place and key of its message, so that
    one list contains everything.
    """
    for overrides, key in (
        (["batch.global_batch_size=250"], "batch.global_batch_size"),
        (["parallel.deepspeed_extra.fp16={enabled: true}"], "parallel.deepspeed_extra.fp16"),
        (["model.ffn_hidden_size=3080", "precision.fp8=true"], "precision.fp8"),
    ):
        made = find_problems(load("gpt-125m-4xdp", overrides, check=False))
        places = ("override ", "gpt-125m-4xdp.yaml:")
        assert any(one.key == key and one.place.startswith(places) for one in made), made
        assert all(one.level == "error" and one.cost.fatal for one in made)


def test_check_and_plan_give_one_list(capsys):
    """check and plan show the same findings, in text, HTML and JSON."""
    found = findings("gpt-13b-4xdp-4xpp")
    assert [one.rule for one in found] == [
        "dataset_is_not_repeated_too_often",
        "bubble_is_small",
        "loaders_have_cores",
        "bf16_needs_no_scale",
    ]
    assert main(["check", "gpt-13b-4xdp-4xpp"]) == 0
    printed = capsys.readouterr().out
    lines = [line for one in found for line in one.lines()]
    assert printed == (
        "gpt-13b-4xdp-4xpp: valid; 4 findings, most expensive first:\n" + "\n".join(lines) + "\n"
    )
    assert lines[6:9] == [
        "warning, costs time in which ranks wait for samples: gpt-13b-4xdp-4xpp.yaml:16: data.num_workers",
        "  num_workers(32) starts 256 data workers for the 8 ranks of a machine, but cpus_per_node is 16.",
        "  Set data.num_workers: 1; reading samples needs only a fraction of a core.",
    ]
    result = plan(load("gpt-13b-4xdp-4xpp"), use_measured=False)
    assert result.warnings == [one.text for one in found[:3]]
    assert [one["rule"] for one in result.to_dict()["findings"]] == [one.rule for one in found]
    assert f"  - {found[1].label}: {found[1].text}" in str(result)
    assert found[1].fix in result._repr_html_()


def test_a_run_that_cannot_work_is_not_called_right(capsys):
    """A run that passes all rules but cannot work is not called valid: the exit code is 2, as for an invalid
    field.
    """
    assert main(["check", "gpt-13b-4xdp-4xpp", "resources.gpu_type=T4", "precision.dtype=fp16"]) == 2
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"gpt-13b-4xdp-4xpp: cannot work; \d findings, most expensive first:", first)
    assert second.startswith("error, cannot run: ")


def test_a_run_without_findings_has_one_line(capsys):
    assert main(["check", "gpt-tiny"]) == 0
    assert capsys.readouterr().out == "gpt-tiny: valid.\n"


# Findings on the shipped runs: upstream's own choices, which its files keep. bf16_needs_no_scale is checked
# apart.
SHIPPED = {
    "bubble_is_small": {
        "gpt-1-3b-2xdp-2xpp-2xtp",
        "gpt-175b-3-5t",
        "gpt-1-3b-4xdp-4xpp",
        "gpt-13b-4xdp-4xpp",
        "gpt-13b-4xdp-4xpp-4xtp",
        "gpt-13b-4xdp-8xpp",
        "gpt-2-7b-2xdp-2xpp-2xtp",
        "gpt-3-7b-2xdp-2xpp-2xtp",
        "gpt-345m-4xdp-2xpp",
    },
    "loaders_have_cores": {
        "gpt-1-3b-4xdp",
        "gpt-1-3b-4xdp-4xpp",
        "gpt-1-3b-8xdp",
        "gpt-125m-2xdp",
        "gpt-125m-4xdp",
        "gpt-13b-4xdp-4xpp",
        "gpt-13b-4xdp-4xpp-4xtp",
        "gpt-13b-4xdp-8xpp",
    },
    "warmup_is_long_enough": {"gpt-125m", "gpt-125m-2xdp", "gpt-125m-4xdp", "gpt-125m-zh"},
    "checkpoints_fit_the_disk": {"gpt-175b", "gpt-175b-3-5t"},
    "saves_fit_interruptions": {"gpt-175b"},
    "tokens_match_a_published_length": {"gpt-175b", "gpt-345m-8xdp", "gpt-3-7b-2xdp-2xpp-2xtp"},
    # 4.2B to 5.1B tokens of the English Wikipedia, as the plan estimates them before it is downloaded.
    "dataset_is_not_repeated_too_often": {
        *(f"gpt-1-3b-{layout}" for layout in ("4xdp", "4xdp-4xpp", "8xdp")),
        *(f"gpt-13b-{layout}" for layout in ("4xdp-4xpp", "4xdp-4xpp-4xtp", "4xdp-8xpp")),
        "gpt-6-7b-4xdp-4xtp",
        *(
            f"llama-{size}{ranks}"
            for size in ("1b", "3b", "8b")
            for ranks in ("", "-4xdp", "-8xdp", "-16xdp")
        ),
    },
}


@pytest.mark.slow
def test_the_shipped_runs_have_known_findings(monkeypatch):
    """With 1 TiB of free disk space, the shipped runs have only known findings, about choices of the upstream
    examples.
    """
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**40))
    found = {run: {one.rule for one in findings(run)} - {"bf16_needs_no_scale"} for run in run_yamls()}
    expected = {run: {rule for rule, runs in SHIPPED.items() if run in runs} for run in found}
    assert found == expected
