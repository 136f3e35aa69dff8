"""216 published training runs as setups to test the planner with: ../shared/reference/planner/cases.json.

A value that a source does not give follows one rule for its source or program, never a rule for one case:

    micro batch    with a pipeline 1, or torchtitan's default, as many micro batches as stages; without one
                   the largest of 4, 2 and 1 that divides a rank's share of the batch
    global batch   the printed batch of a data-parallel rank times the ranks, else one micro batch per rank
    ZeRO           1 (Megatron's distributed optimizer) for Megatron Core, else 0
    recomputation  full for ColossalAI (its printed TFLOP/s count it), else none
    tensor size    1, with sequence parallelism off
    fabric         as the text says, else as the device table says
    ZeRO++         as the case's words say
    stages         as even as possible, with smaller first and last stages; nanotron's own rule
    interleaving   2 if the source describes an interleaved schedule without its degree: torchtitan, Llama 3,
                   and Megatron Core with overlapped pipeline traffic, which needs an interleaved schedule
    overlap        of tensor-parallel traffic: Megatron-Bridge's default, else only if the source says so
    node           the number of GPUs per node that the source states

SOURCES lists the programs, and which sources the planner's constants are fitted to (`train`) or only tested
on (`test`). Speeds become seconds per step. Values in TFLOP/s are converted with the FLOPs that the source
counts.
"""

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from nbtrain.config.arithmetic.devices import Device, find_device, nearest_device_names
from nbtrain.config.arithmetic.flops import attention_forward, logits_forward, model_flops
from nbtrain.config.shape import Shape
from nbtrain.planner.setup.setup import Setup

CASES = Path(__file__).parents[3] / "shared/reference/planner/cases.json"
OUTSIDE = Path(__file__).parent / "published_outside.yaml"

Counted = Literal["model", "causal", "hardware"]


@dataclass(frozen=True)
class Source:
    """A source of cases, whose ids begin with `prefix` (if several prefixes match,
    the longest one decides).
    """

    prefix: str
    family: str
    """Name of the family in pictures and tables."""
    engine: str
    half: Literal["train", "test"]
    counts: Counted = "model"
    """FLOPs that a printed TFLOP/s value counts; "causal" excludes half of attention's products."""


SOURCES = (
    Source("mlm2021", "Megatron-LM, A100", "megatron-lm", "train"),
    Source("ptd-vs-zero3", "Megatron-LM, A100", "megatron-lm", "test"),
    Source("ptd-vs-zero3-175b-zero3", "ZeRO 3, A100", "megatron-deepspeed", "test"),
    Source("ptd-vs-zero3-530b-zero3", "ZeRO 3, A100", "megatron-deepspeed", "test"),
    Source("korthikanti", "Megatron-LM, A100", "megatron-lm", "train"),
    Source("mlm-2023", "Megatron-LM, A100", "megatron-lm", "test"),
    Source("mlm-h100", "Megatron Core, H100", "megatron-core", "test"),
    Source("mlmtest", "Megatron Core, H100", "megatron-core", "train"),
    Source("bridge-25.11", "Megatron-Bridge, FP8 and FP4", "megatron-bridge", "train", "causal"),
    Source("bridge-26", "Megatron-Bridge, FP8 and FP4", "megatron-bridge", "test", "causal"),
    Source("bridge-sft", "Megatron-Bridge, FP8 and FP4", "megatron-bridge", "test", "causal"),
    Source("mpt", "FSDP, Composer", "composer", "train"),
    Source("torchtitan", "FSDP, torchtitan", "torchtitan", "train"),
    Source("torchtitan-8b-64-tp8", "FSDP, torchtitan", "torchtitan", "test"),
    Source("torchtitan-8b-32-h200", "FSDP, torchtitan", "torchtitan", "test"),
    Source("torchtitan-8b-64-h200", "FSDP, torchtitan", "torchtitan", "test"),
    Source("bs-1b3", "BigScience, V100", "megatron-deepspeed", "test"),
    Source("bs-maxfit", "BigScience, V100", "megatron-lm", "train"),
    Source("bs-52b", "BigScience, V100", "megatron-deepspeed", "train"),
    Source("bs-52b-v100-meg", "BigScience, V100", "megatron-lm", "train"),
    Source("bs-52b-v100-hf", "BigScience, V100", "transformers", "train"),
    Source("bs-a100", "BigScience, A100", "megatron-deepspeed", "train"),
    Source("bs-104b", "BigScience, V100", "megatron-deepspeed", "test"),
    Source("bs-13b", "BigScience, V100", "megatron-deepspeed", "test"),
    Source("nanotron", "nanotron, H100", "nanotron", "train"),
    Source("playbook", "nanotron, H100", "nanotron", "test"),
    Source("neox", "GPT-NeoX, A100", "gpt-neox", "test"),
    Source("pythia", "GPT-NeoX, A100", "gpt-neox", "test"),
    Source("tinyllama", "Others", "litgpt", "test"),
    Source("nanogpt", "Others", "nanogpt", "test"),
    Source("opt", "Others", "metaseq", "test"),
    Source("llama3", "Others", "llama", "test"),
    Source("zerooffload", "Others", "megatron-deepspeed", "test"),
    Source("colossal", "Others", "colossalai", "test"),
    Source("ascend", "Ascend", "megatron-deepspeed", "test"),
    Source("seed", "Upstream, A100", "upstream", "train"),
)

# The program of a source that SOURCES does not list, by the first pattern in its text.
PROGRAMS = (
    (r"bridge|nemo", "megatron-bridge"),
    (r"megatron-deepspeed|bigscience|bloom|mt-nlg", "megatron-deepspeed"),
    (r"neox|pythia", "gpt-neox"),
    (r"mcore|megatron-core|megatron core", "megatron-core"),
    (r"megatron", "megatron-lm"),
    (r"torchtitan", "torchtitan"),
    (r"foundry|mosaic|composer", "composer"),
    (r"nanotron|playbook", "nanotron"),
    (r"colossal", "colossalai"),
    (r"nanogpt|modded", "nanogpt"),
    (r"metaseq|fairscale|opt-", "metaseq"),
    (r"litgpt|lit-gpt|tinyllama", "litgpt"),
    (r"trainer|transformers|hugging|peft|accelerate", "transformers"),
    (r"fsdp", "torchtitan"),
    (r"deepspeed|zero", "megatron-deepspeed"),
)

# A source's name for a device, and its row in the device table.
DEVICES = {
    "A100-SXM-80GB": "A100-80GB",
    "A100-SXM-40GB": "A100-40GB",
    "A100-PCIe-40GB": "A100-PCIe-40GB",
    "H100-SXM-80GB": "H100",
    "H100-SXM-96GB-HBM2e (500 W cap)": "H100-96GB-HBM2e",
    "H200-SXM-141GB": "H200",
    "V100-SXM2-32GB": "V100-32GB",
    "V100-SXM2-16GB": "V100-16GB",
    "V100-32GB": "V100-32GB",
    "B200": "B200",
    "GB200": "GB200",
    "GB300": "GB300",
    "Ascend 910 (generation not stated)": "Ascend-910A",
}
# Gb/s of one network card by the name of its generation.
CARDS = {
    "FDR": 56, "EDR": 100, "HDR100": 100, "HDR": 200, "HDR200": 200, "NDR200": 200, "NDR": 400, "XDR": 800,
}  # fmt: skip
_RATE = re.compile(r"(\d+(?:\.\d+)?) ?-?(Gb/?s|Gbps|Gbit/s|GbE|GigE|Tb/s|Tbps|GB/s|TB/s)")
_GIGABITS = {"T": 1000, "G": 1}
# Words for ZeRO++ and its three parts (arXiv:2306.10209).
ZEROPP = re.compile(r"zero\+\+|zero-?pp\b", re.I)
_WITHOUT_ZEROPP = r"baseline|(without|before) zero\+\+|zero(pp|\+\+)\S*-(zero-?3|z3|plain|off|base)\b"
ZEROPP_PARTS = {"qwz": r"qwz|quantized.weight", "hpz": r"hpz", "qgz": r"qgz|quantized.gradient"}


@dataclass(frozen=True)
class Published:
    """A case: its setup, and the results that its source reports."""

    id: str
    source: Source
    setup: Setup
    raw: dict[str, Any]
    """The case as read from the file."""
    step_seconds: float | None
    """Seconds per step, from whichever speed the source reports; None if it reports none."""
    given: str
    """The published value from which step_seconds is computed, in the source's unit."""

    @property
    def fits(self) -> bool:
        """Whether the run fitted; False if the source reports that it ran out of memory."""
        return bool(self.raw["result"]["fits"])


def load_cases(path: Path = CASES) -> list[Published]:
    """Return all cases of the file; every point of a series becomes a case."""
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return [published for case in cases for published in _read(case)]


def load_outside(path: Path = OUTSIDE) -> list[Published]:
    """Return the published runs of published_outside.yaml, which are not among the cases."""
    sizes = {"tp": 1, "pp": 1, "vpp": None, "cp": 1, "sp": None, "zero": None, "offload": None}
    found = []
    for source in yaml.safe_load(path.read_text(encoding="utf-8"))["sources"]:
        for case in source["cases"]:
            run = {"recompute": None, **source["run"], **case.get("run", {})}
            texts = {"source": source["source"], "note": source.get("note", ""), "given_in_source": ""}
            case = {**texts, **run, **case}
            case["gpus"] = {"fabric": None, **case["gpus"]}
            case["parallel"] = {**sizes, **case["parallel"]}
            case["result"] = {"fits": True, **case["result"]}
            found += _read(case)
    return found


def source_of(case: dict[str, Any]) -> Source:
    """Return the source with the longest matching prefix of the case's id, or a new
    source made from its text.
    """
    known = [source for source in SOURCES if case["id"].startswith(source.prefix)]
    if known:
        return max(known, key=lambda source: len(source.prefix))
    text = f"{case['id']} {case.get('source', '')} {case.get('note', '')}".lower()
    engine = next((engine for pattern, engine in PROGRAMS if re.search(pattern, text)), "megatron-deepspeed")
    if engine == "megatron-lm" and case["gpus"]["kind"].startswith(("H", "B", "GB", "MI")):
        engine = "megatron-core"
    return Source(case["id"], "Not in the file", engine, "test")


def _read(case: dict[str, Any]) -> list[Published]:
    source = source_of(case)
    points = [case] if "series" not in case["result"] else _points(case)
    return [_published(point, source) for point in points]


def _points(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the points of a series as cases.

    The points are data-parallel sizes, or tensor-parallel sizes with the largest batch that fits.
    """
    series, points = case["result"]["series"], []
    if "gpus" in series:
        for count, rate in zip(series["gpus"], series["tokens_per_s_per_gpu"]):
            points.append(_point(case, f"dp{count}", count, {"dp": count}, {}, rate))
        return points
    for kind, parallel in (("no_sp", {"sp": False}), ("sp", {"sp": True})):
        rates, batches = series[f"{kind}_tokens_per_s_per_gpu"], series[f"{kind}_max_batch"]
        for tensor, rate, batch in zip(series["tp"], rates, batches):
            layout = {"tp": tensor, **parallel}
            size = {"micro": batch, "global": batch}
            points.append(_point(case, f"{kind}-tp{tensor}", tensor, layout, size, rate))
    return points


def _point(
    case: dict[str, Any], name: str, count: int, layout: dict[str, Any], batch: dict[str, Any], rate: float
) -> dict[str, Any]:
    return {
        **case,
        "id": f"{case['id']}-{name}",
        "gpus": {**case["gpus"], "count": count},
        "parallel": {**case["parallel"], **layout},
        "batch": {**case["batch"], **batch},
        "result": {"tokens_per_s_per_gpu": rate, "fits": True},
    }


def _published(case: dict[str, Any], source: Source) -> Published:
    setup = setup_of_case(case, source)
    given, seconds = _step_seconds(case["result"], setup, source)
    return Published(case["id"], source, setup, case, seconds, given)


def setup_of_case(case: dict[str, Any], source: Source) -> Setup:
    """Return the setup of a case, with missing values filled by the rules at the top of this file."""
    gpus, parallel, text = case["gpus"], case["parallel"], case["precision"].lower()
    stages, data = parallel["pp"], parallel["dp"] or 1
    micro, whole = _batch(case["batch"], stages, data, source.engine)
    recompute = case["recompute"] or ("full" if source.engine == "colossalai" else "none")
    selective = recompute.startswith(("selective", "core", "mlp"))
    zero = parallel["zero"]
    if zero is None:
        zero = 1 if source.engine == "megatron-core" else 0
    offload = parallel["offload"] or ""
    overlaps = "overlap of DP, TP, PP on" in case["given_in_source"]
    interleaved = overlaps or source.engine == "llama" or parallel["vpp"] is not None
    virtual = parallel["vpp"] if isinstance(parallel["vpp"], int) else 2 if interleaved and stages > 1 else 1
    shape = shape_of_case(case)
    fp4 = "fp4" in text
    return Setup(
        shape=shape,
        engine=source.engine,
        device=device_of_case(gpus["kind"]),
        nodes=-(-gpus["count"] // gpus["per_node"]),
        devices_per_node=min(gpus["per_node"], gpus["count"]),
        fabric_bytes_per_second=fabric_of_case(gpus),
        micro_batch_size=micro,
        global_batch_size=whole,
        tensor_parallel_size=parallel["tp"] or 1,
        pipeline_parallel_size=stages,
        virtual_stages=virtual,
        stage_layers=_stages(shape, stages, source),
        context_parallel_size=parallel["cp"] or 1,
        data_parallel_size=data,
        sequence_parallel=bool(parallel["sp"]),
        deterministic=_is_deterministic(case),
        overlap_tensor=overlaps or source.engine == "megatron-bridge" or "async TP" in case.get("note", ""),
        zero_stage=zero,
        **zeropp_of_case(case),
        offload_optimizer="cpu" if "optimizer" in offload else "none",
        offload_param="cpu" if "parameters" in offload else "none",
        communication_dtype=_communication_dtype(text, source.engine),
        dtype="fp16" if text == "fp16" else "bf16",
        autocast=text.startswith("amp_") or "autocast" in text,
        fp8="fp8" in text,
        fp4=fp4,
        recompute="selective" if selective else "none" if recompute.startswith("none") else "full",
        recomputes_mlp=recompute == "mlp",
        keeps_scores=_keeps_scores(case["attention"] or ""),
        compiled=bool(case.get("compile")) or source.engine == "nanogpt",
    )


def shape_of_case(case: dict[str, Any]) -> Shape:
    """Return the model of a case. LLaMA-like models (RMSNorm) have no biases; all others have them."""
    model = case["model"]
    rms = model["norm"] == "rmsnorm"
    return Shape(
        num_layers=model["layers"],
        hidden_size=model["hidden"],
        num_attention_heads=model["heads"],
        ffn_hidden_size=model["ffn"],
        padded_vocab_size=model["vocab"],
        seq_length=model["seq"],
        num_query_groups=model["kv_heads"],
        kv_channels=model["hidden"] // model["heads"],
        learned_positions=model["seq"] if model["pos"] == "learned" else 0,
        gated=model["gated"],
        rmsnorm=rms,
        bias=not rms,
        tied=model["tied"],
        parallel_residual=model.get("parallel_residual", False),
    )


@functools.cache
def device_of_case(kind: str) -> Device:
    """Return the row of the device table, or the row with the most similar name if
    the kind is not in DEVICES.
    """
    bare = re.sub(r"-?SXM\d?|\s.*", "", kind)
    names = (DEVICES.get(kind, kind), bare, bare.rpartition("-")[0], *nearest_device_names(bare))
    device = next((found for name in names if (found := find_device(name))), None)
    assert device is not None, f"the device table has no row like {kind}"
    return device


def _batch(batch: dict[str, Any], stages: int, data: int, engine: str) -> tuple[int, int]:
    """Return micro batch and global batch."""
    whole = batch["global"]
    if whole is None and batch.get("printed_batch_per_dp"):
        whole = batch["printed_batch_per_dp"] * data
    if stages > 1 and batch.get("printed_batch_per_dp"):
        return 1, whole
    micro = batch["micro"]
    if micro is None:
        share = whole // data if whole else 4
        several = max(share // stages, 1) if engine == "torchtitan" else 1
        micro = several if stages > 1 else next(size for size in (4, 2, 1) if share % size == 0)
    return micro, whole or micro * data


def _stages(shape: Shape, stages: int, source: Source) -> tuple[int, ...]:
    if source.engine == "nanotron":
        return _nanotron_stages(shape, stages)
    rest, more = divmod(shape.num_layers, stages)
    # The middle stages take the blocks that do not divide evenly.
    first = (stages - more) // 2
    return tuple(rest + (first <= stage < first + more) for stage in range(stages))


def _nanotron_stages(shape: Shape, stages: int) -> tuple[int, ...]:
    """Return the blocks of each stage as nanotron assigns them (src/nanotron/models/base.py, build_model).

    A stage takes blocks until their cost, summed from the first block, exceeds its share of the whole cost:
    the first stages have more than their share.
    """
    block = shape.attention_weights + shape.mlp_weights
    costs = [block] * shape.num_layers + [shape.output_weights]
    layers, summed = [0] * stages, 0
    stage = 0
    for number, cost in enumerate(costs):
        summed += cost
        layers[stage] += number < shape.num_layers
        if summed * stages > sum(costs) * (stage + 1):
            stage += 1
    return tuple(layers)


def fabric_of_case(gpus: dict[str, Any]) -> float | None:
    """Return the bytes per second of a machine's network, one way; None if the case does not state it.

    "8x 400 Gb/s", "Omni-Path 4x100Gb/s" and "8x HDR" are cards of a machine, "400 Gb/s per GPU" is one card
    for each GPU, and any other rate is the machine's.
    """
    pieces = re.split(r"[,;+()]", gpus["fabric"] or "")
    text = ", ".join(piece for piece in pieces if not re.search("NVLink|NVSwitch|PCIe|intra", piece))
    rates = [
        float(number) * _GIGABITS[unit[0]] * (8 if "B" in unit[1:2] else 1)
        for number, unit in _RATE.findall(text.replace("GbE", "Gb/s").replace("GigE", "Gb/s"))
    ]
    named = [rate for name, rate in CARDS.items() if re.search(rf"\b{name}\b", text)]
    if not rates and not named:
        return None
    card = rates[0] if rates else float(named[0])
    counted = re.search(r"(\d+) ?[x\u00d7] ?", text)
    if counted and (int(counted[1]) > 1 or not re.search(r"(per|/|each) ?GPU", text)):
        cards = int(counted[1])
    else:
        cards = gpus["per_node"] if re.search(r"(per|/|each) ?GPU", text) else 1
    return cards * card / 8 * 1e9


def zeropp_of_case(case: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a setup for ZeRO++: what the layout names, else what the case's words say.

    ZeRO++ without the names of its parts is all three. A case that calls itself a baseline has none.
    """
    parallel = case["parallel"]
    words = " ".join(str(case.get(key) or "") for key in ("id", "note", "precision", "given_in_source"))
    words += " ".join(f" {key} {value}" for key, value in parallel.items() if value)
    found = {part for part, pattern in ZEROPP_PARTS.items() if re.search(pattern, words, re.I)}
    if not found and ZEROPP.search(words):
        found = set(ZEROPP_PARTS)
    if parallel["zero"] != 3 or re.search(_WITHOUT_ZEROPP, words, re.I):
        found = set()
    size = re.search(r"hpz(?:_partition)?(?:_size)?[ =:]*(\d+)", words, re.I)
    return {
        "quantized_weights": "qwz" in found,
        "quantized_gradients": "qgz" in found,
        "hpz_size": (int(size[1]) if size else case["gpus"]["per_node"]) if "hpz" in found else 1,
    }


def _keeps_scores(attention: str) -> bool:
    """Return whether the attention kernel writes all scores to memory, judged by its name."""
    return "no flash" in attention or "softmax" in attention


def _communication_dtype(precision: str, engine: str) -> Literal["fp32", "bf16", "fp16"]:
    """Return the format in which gradients are sent; Megatron-Bridge's recipes set
    grad_reduce_in_fp32=False.
    """
    if precision == "fp16":
        return "fp16"
    return "bf16" if "pure" in precision or engine == "megatron-bridge" else "fp32"


def _is_deterministic(case: dict[str, Any]) -> bool:
    """Return whether the case's text says that attention is deterministic."""
    text = f"{case['attention'] or ''} {case.get('note') or ''}"
    return bool(re.search(r"(?<!non)(?<!non-)deterministic", text))


def hardware_flops(shape: Shape) -> float:
    """Return FLOPs per token with each block's recomputed forward pass: 96 B s L h^2 (1 + s/6h + V/16Lh)."""
    return model_flops(shape) + (model_flops(shape) - 3 * logits_forward(shape)) / 3


def counted_flops(shape: Shape, counts: Counted) -> float:
    """Return FLOPs per token as the source counts them."""
    if counts == "hardware":
        return hardware_flops(shape)
    causal = 1.5 * shape.num_layers * attention_forward(shape) if counts == "causal" else 0.0
    return model_flops(shape) - causal


def _step_seconds(result: dict[str, Any], setup: Setup, source: Source) -> tuple[str, float | None]:
    """Return the published value and the seconds per step that it gives.

    A measured rate takes precedence over a value computed from FLOPs.
    """
    tokens = setup.tokens_per_step / setup.world_size
    if rate := result.get("tokens_per_s_per_gpu"):
        return f"{rate:,.0f} tokens/s/GPU", tokens / rate
    if seconds := result.get("step_s"):
        return f"{seconds:g} s/step", seconds
    if rate := result.get("samples_per_s"):
        return f"{rate:g} samples/s", setup.global_batch_size / rate
    for key, counts in (("model_tflops_per_gpu", source.counts), ("hardware_tflops_per_gpu", "hardware")):
        if rate := result.get(key):
            return f"{rate:g} TFLOP/s ({counts})", tokens * counted_flops(setup.shape, counts) / rate / 1e12
    if percent := result.get("mfu_percent"):
        peak = setup.device.peak(setup.dtype) if setup.device else None
        assert peak is not None
        return f"{percent:g} % MFU", tokens * model_flops(setup.shape) / (percent / 100 * peak)
    return "", None
