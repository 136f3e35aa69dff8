"""Two sections of docs/evidence/plan-accuracy.md: the upstream example's times, and a published LoRA run.

The LoRA run fine-tuned Falcon 180B on 8 A100-80GB with DeepSpeed's ZeRO 3, adapters and flash attention: 15
thousand instructions in 3 epochs, batch 64, sequences of 2048. It took 153 minutes.
"""

from pathlib import Path

from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.arithmetic.parameters import count_layers
from nbtrain.config.load import load
from nbtrain.config.shape import Shape
from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.time.duration import DurationEstimate, estimate_duration
from nbtrain.planner.time.published_times import DAY, HOUR, PUBLISHED
from nbtrain.planner.time.step import estimate_step

RUNS = Path(__file__).parents[2] / "examples/megatron-gpt/training"
TIMES = {time.run: time.seconds for time in PUBLISHED.values() if time.seconds is not None}

FALCON = Shape(
    num_layers=80, hidden_size=14848, num_attention_heads=232, ffn_hidden_size=4 * 14848,
    padded_vocab_size=65024, seq_length=2048, num_query_groups=8, kv_channels=64, bias=False,
    parallel_residual=True,
)  # fmt: skip
SAMPLES, EPOCHS, BATCH, MINUTES = 15_000, 3, 64, 153
# Instructions of about 200 tokens (databricks-dolly-15k: 12 MB at 4 bytes a token), packed into sequences of
# 2048. That the published run packed them is concluded from its time, not read.
PACKED = 1_500


def upstream(name: str, *overrides: str) -> DurationEstimate:
    """Return the planned duration of an upstream example run, without measurements of this machine."""
    return estimate_duration(
        load(str(RUNS / f"{name}.yaml"), list(overrides)), use_measured=False, engine="upstream"
    )


def falcon(micro_batch_size: int = 4) -> Setup:
    """Return the LoRA run, with published.py's rule for a micro batch that is not stated."""
    return Setup(
        FALCON,
        engine="transformers",
        device=find_device("A100-80GB"),
        devices_per_node=8,
        data_parallel_size=8,
        zero_stage=3,
        micro_batch_size=micro_batch_size,
        global_batch_size=BATCH,
        recompute="full",
        lora_rank=64,
        communication_dtype="bf16",
    )


def falcon_minutes(sequences: int, micro_batch_size: int = 4) -> float:
    """Return the planned minutes of 3 epochs over this many sequences."""
    step = estimate_step(falcon(micro_batch_size))
    assert step is not None
    return sequences * EPOCHS / BATCH * step.seconds / 60


def section() -> list[str]:
    """Return the lines of the two sections."""
    lines = [
        "## The upstream example",
        "",
        "| run | published | planned | steps | validation and test | checkpoints |",
    ]
    lines.append("| --- " * 6 + "|")
    for name, published in TIMES.items():
        plan = upstream(name)
        assert plan.seconds is not None
        unit, word = (DAY, "d") if published >= DAY else (HOUR, "h")
        held_out = plan.parts["validation"] + plan.parts["test"]
        shown = (plan.parts["steps"], held_out, plan.parts["checkpoints"])
        parts = " | ".join(f"{seconds / unit:.2f} {word}" for seconds in shown)
        row = f"{published / unit:g} {word} | {plan.seconds / unit:.2f} {word} | {parts}"
        lines.append(f"| {name} | {row} |")
    piped = upstream("gpt-1-3b-4xdp-4xpp")
    wide = upstream("gpt-1-3b-8xdp", "parallel.data_parallel_size=16", "resources.nodes=2")
    assert piped.step is not None and wide.seconds is not None
    lines += [
        "",
        "The published log of 125M reports 7.95 h: 4,769 steps of 5.71 s are 7.56 h, and 47 pauses of 29 s "
        "are 0.38 h. In a pause, 10 validation batches take 19 s, a third of a step each, and a checkpoint "
        "of 1.8 GB takes 10 s.",
        "",
        "The published time for 1.3B on 16 GPUs, 2 days, cannot come from the file next to it. The file "
        "contradicts itself: it has a pipeline of 4 stages and requests ZeRO 2, with which DeepSpeed refuses "
        "a pipeline. With ZeRO 1, its 8 micro-batches for 4 stages leave a bubble of "
        f"{piped.bubble_fraction:.0%} (3/11 = 27 % if all stages took equal time), so that 16 GPUs are far "
        "from twice as fast as 8. The 2 days are half of the time of 8 GPUs. A run with 16 data-parallel "
        "ranks and no pipeline would take about as long "
        f"({wide.seconds / DAY:.1f} d).".replace("% (", " % ("),
        "",
        "## A published LoRA run",
        "",
        f"Falcon 180B ({count_layers(FALCON, 80, True, True, 1).total / 1e9:.1f}B parameters here), adapters "
        f"of rank 64, ZeRO 3 on 8 A100-80GB: {MINUTES} minutes for {EPOCHS} epochs of 15 thousand samples in "
        f"batches of {BATCH} sequences of 2,048. If each sample were a whole sequence, every GPU would need "
        f"{_flops_per_gpu() / 1e15:.1f} PFLOP/s for the forward pass, its recomputation and half of the "
        "backward pass, four times the peak of an A100, and "
        f"the plan would be {falcon_minutes(SAMPLES):,.0f} minutes. The samples are instructions of "
        "about 200 "
        f"tokens. Packed into full sequences they are about {PACKED:,}, for which the plan is "
        f"{falcon_minutes(PACKED):.0f} minutes ({falcon_minutes(PACKED) / MINUTES - 1:+.0%}), or "
        f"{falcon_minutes(PACKED, 2):.0f} with micro-batches of 2, because ZeRO 3 gathers the weights for "
        "each of them.".replace("%)", " %)"),
        "",
    ]
    return lines


def _flops_per_gpu() -> float:
    """Return the FLOP/s per GPU that the published time requires if every sample has 2048 tokens."""
    parameters = count_layers(FALCON, 80, True, True, 1).total
    return 6 * parameters * SAMPLES * EPOCHS * 2048 / (MINUTES * 60 * 8)
