"""The summary of a profile: time by category, operators and memory, from small traces whose results are
computed by hand.
"""

import dataclasses
import xml.etree.ElementTree as ET

import pytest

from nbtrain.train.profile.picture import picture
from nbtrain.train.profile.sentences import profile_sentences
from nbtrain.train.profile.summary import TIMELINE_BARS, summarize
from nbtrain.train.profile.trace import category_of, product_flops

MAIN, GLOO, STREAM = 1, 2, 7


def event(name, ts, dur, cat="cpu_op", tid=MAIN, **args):
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "tid": tid, "args": args}


def allocation(ts, total, kind=0):
    return {
        "ph": "i",
        "name": "[memory]",
        "ts": ts,
        "args": {"Total Allocated": total, "Device Type": kind, "Bytes": 1},
    }


def on_cpu():
    """Return the trace of a step of 1,000 us, with the training thread and an all-reduce on gloo's thread."""
    return {
        "traceEvents": [
            event("ProfilerStep#2", 0, 1000, "user_annotation"),
            event("nbtrain: data", 0, 50, "user_annotation"),
            event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 40, "user_annotation"),
            event("nbtrain: forward", 50, 350, "user_annotation"),
            event("aten::linear", 100, 100),
            event("aten::addmm", 110, 80, **{"Input Dims": [[8], [4, 16], [16, 8], [], []]}),
            # Matrix products of attention count as attention.
            event("aten::scaled_dot_product_attention", 200, 100),
            event("aten::bmm", 220, 60, **{"Input Dims": [[2, 4, 8], [2, 8, 4]]}),
            event("aten::gelu", 300, 50),
            event("nbtrain: optimizer", 500, 400, "user_annotation"),
            event("Optimizer.step#AdamW.step", 600, 100, "user_annotation"),
            event("aten::mul", 800, 50),
            # Before 500, nothing else runs; from 600 on, it is hidden.
            event("gloo:all_reduce", 400, 250, "user_annotation", GLOO),
            allocation(10, 100),
            allocation(310, 5000),
            allocation(900, 300),
            allocation(950, 10**9, kind=1),
        ]
    }


def test_every_moment_of_a_step_on_a_cpu_has_one_category():
    summary = summarize(on_cpu(), "a run")
    microseconds = {name: round(own * 1e6, 3) for name, own in summary.categories.items()}
    assert microseconds == {
        "matmul": 100,
        "attention": 100,
        "norm, elementwise": 50,
        "optimizer": 150,
        "copies": 0,
        "other": 0,
        "communication": 200,
        "data": 40,
        "idle": 360,
    }
    assert sum(microseconds.values()) == 1000
    assert summary.hidden_communication_seconds == pytest.approx(50e-6)
    assert {name: round(own * 1e6) for name, own in summary.parts.items()} == {
        "data": 50,
        "forward": 350,
        "optimizer": 400,
    }


def test_operators_have_own_times_and_flops():
    """The time of aten::linear excludes the addmm inside it, and products of different shapes are listed
    separately.
    """
    operators = {operator.name: operator for operator in summarize(on_cpu()).operators}
    assert operators["aten::addmm [4, 16] x [16, 8]"].flops == 2 * 4 * 16 * 8
    own = {name: round(operator.seconds * 1e6, 2) for name, operator in operators.items()}
    assert (own["aten::addmm [4, 16] x [16, 8]"], own["aten::linear"]) == (80, 20)
    assert own["aten::scaled_dot_product_attention"] == 40
    assert operators["gloo:all_reduce"].calls == operators["aten::gelu"].calls == 1


def test_the_peak_of_memory_is_the_hosts_on_a_cpu():
    summary = summarize(on_cpu())
    assert (summary.peak_memory_bytes, summary.peak_memory_seconds) == (5000, pytest.approx(310e-6))


def on_gpu():
    """Return the trace of two steps of 500 us on a GPU: compute kernels on one stream and NCCL on another,
    launched before they run.
    """

    def kernel(name, ts, dur, correlation, cat="kernel", stream=STREAM):
        return event(name, ts, dur, cat, stream, **{"External id": correlation, "correlation": correlation})

    def launch(ts, correlation):
        return event("cudaLaunchKernel", ts, 1, "cuda_runtime", correlation=correlation)

    return {
        "traceEvents": [
            event("ProfilerStep#2", 0, 500, "user_annotation"),
            event("ProfilerStep#3", 500, 500, "user_annotation"),
            event("nbtrain: optimizer", 300, 100, "user_annotation"),
            event("aten::mm", 10, 5, **{"External id": 1, "Input Dims": [[1000, 1000], [1000, 1000]]}),
            launch(12, 1),
            kernel("nvjet_hsh_128x256_64x4", 100, 200, 1),
            event("aten::_scaled_dot_product_flash_attention", 20, 5, **{"External id": 2}),
            launch(22, 2),
            kernel("void pytorch_flash::flash_fwd_kernel<...>", 300, 100, 2),
            event("aten::add", 310, 5, **{"External id": 3}),
            # An addition, but launched in the optimizer's part.
            launch(312, 3),
            kernel("void at::native::vectorized_elementwise_kernel<4, add>", 400, 50, 3),
            launch(30, 4),
            # 100 us hidden by the matmul, 50 us alone.
            kernel("ncclDevKernel_AllReduce_Sum_bf16", 200, 100, 4, stream=8),
            kernel("ncclDevKernel_AllReduce_Sum_bf16", 450, 50, 5, stream=8),
            kernel("Memcpy HtoD (Pinned -> Device)", 600, 20, 6, "gpu_memcpy"),
            kernel("void at::native::elementwise_kernel<gelu>", 700, 30, 7),
            allocation(100, 7, kind=0),
            allocation(200, 2 * 10**9, kind=1),
        ]
    }


def test_every_moment_of_a_step_on_a_gpu_has_one_category():
    """Each moment of a step on a GPU belongs to exactly one category; communication hidden behind computation
    is listed separately.
    """
    summary = summarize(on_gpu())
    assert (summary.device, summary.steps) == ("cuda", 2)
    microseconds = {name: round(own * 1e6, 3) for name, own in summary.categories.items()}
    assert microseconds == {
        "matmul": 200,
        "attention": 100,
        "norm, elementwise": 30,
        "optimizer": 50,
        "copies": 20,
        "other": 0,
        "communication": 50,
        "data": 0,
        "idle": 550,
    }
    assert summary.hidden_communication_seconds == pytest.approx(100e-6)
    assert summary.operators[0].name == "aten::mm [1000, 1000] x [1000, 1000]"
    assert summary.operators[0].flops == summary.flops == 2e9
    assert (summary.peak_memory_bytes, summary.peak_memory_seconds) == (2 * 10**9, pytest.approx(200e-6))


def test_the_page():
    page = str(summarize(on_gpu(), "a run, rank 0, steps 3 to 4")).splitlines()
    assert page[0] == "a run, rank 0, steps 3 to 4 | cuda | 2 steps, 0.001 s, 0.5 ms a step"
    assert page[1] == "A step takes 0.5 ms. The largest shares are idle 55%, matmul 20%, attention 10%."
    assert page[page.index("where the time goes") + 1] == "  matmul             0.0002 s  20.0%  ########"
    assert "and 0.0001 s of communication hidden by computation" in page
    assert "matrix products: 0.002 TFLOP, 2 TFLOP/s over the steps" in page
    assert page[-1] == "memory: peak 1.9 GiB, 0.2 ms after the first step's start"


def test_the_words():
    """The text says what makes a step slow and when memory peaks, and omits what is not in the trace."""
    assert profile_sentences(dataclasses.asdict(summarize(on_cpu()))) == [
        "A step takes 1 ms. The largest shares are idle 36%, communication 20%, optimizer 15%.",
        "On the host's clock, the phases take optimizer 40%, forward 35%, data 5%; 20% is outside of all "
        "phases.",
        "For 36% of the time no operator runs: Python works between the operators. Larger micro-batches make "
        "this share smaller.",
        "Communication holds the steps up for 20% of the time, and 20% of all communication is hidden by "
        "computation.",
        "The costliest operator is gloo:all_reduce: 25% of the time in 1 call.",
        "Memory peaks at 4.9 KiB, in the forward pass in step 1 of the profile.",
    ]
    trace = {"traceEvents": [event("ProfilerStep#2", 0, 100, "user_annotation"), event("aten::mm", 0, 95)]}
    assert profile_sentences(dataclasses.asdict(summarize(trace))) == [
        "A step takes 0.1 ms. The largest shares are matmul 95%, idle 5%.",
        "The costliest operator is aten::mm: 95% of the time in 1 call.",
    ]


def test_when_each_phase_ran():
    """Phases have their times in seconds from the first step; if there are too many, those with the shortest
    gaps are merged.
    """
    summary = summarize(on_cpu())
    micro = {
        name: [tuple(round(at * 1e6) for at in bar) for bar in bars]
        for name, bars in summary.timeline.items()
    }
    assert micro == {"data": [(0, 50)], "forward": [(50, 400)], "optimizer": [(500, 900)]}
    assert summarize(on_gpu()).step_ends == pytest.approx([500e-6, 1000e-6])
    steps = [event("ProfilerStep#2", 0, 10_000, "user_annotation")]
    # 1,000 phases, with a gap of 5 after every second one and of 1 after the others.
    begins = [10 * (number // 2) + 4 * (number % 2) for number in range(1000)]
    steps += [event("nbtrain: forward", begin, 3, "user_annotation") for begin in begins]
    [bars] = summarize({"traceEvents": steps}).timeline.values()
    assert len(bars) == TIMELINE_BARS
    assert [round(at * 1e6, 3) for at in bars[1]] == [10, 17]


def test_a_trace_without_a_whole_step_is_refused():
    with pytest.raises(ValueError, match="no complete step"):
        summarize({"traceEvents": [event("aten::mm", 0, 1)]})


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matmul"),
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>", "matmul"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<..FusedAdamMathFunctor<float, "
            "4>>",
            "optimizer",
        ),
        ("void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>", "norm, elementwise"),
        ("triton_per_fused_native_layer_norm_3", "norm, elementwise"),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<float>>", "norm, elementwise"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "communication"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("gloo:all_gather", "communication"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("_BlockedBackwardBackward", "attention"),
        ("aten::embedding", "other"),
    ],
)
def test_category_of(name, category):
    assert category_of(name) == category


@pytest.mark.parametrize(
    ("name", "dims", "flops"),
    [
        ("aten::mm", [[4, 16], [16, 8]], 2 * 4 * 16 * 8),
        ("aten::addmm", [[8], [4, 16], [16, 8], [], []], 2 * 4 * 16 * 8),
        ("aten::bmm", [[3, 4, 16], [3, 16, 8]], 2 * 3 * 4 * 16 * 8),
        ("aten::baddbmm", [[3, 4, 8], [3, 4, 16], [3, 16, 8], [], []], 2 * 3 * 4 * 16 * 8),
        (
            "aten::_scaled_dot_product_flash_attention",
            [[2, 3, 5, 8], [2, 3, 7, 8], [2, 3, 7, 8]],
            4 * 6 * 5 * 7 * 8,
        ),
        (
            "aten::_scaled_dot_product_flash_attention_backward",
            [[2, 3, 5, 8], [2, 3, 5, 8], [2, 3, 7, 8], [2, 3, 7, 8]],
            10 * 6 * 5 * 7 * 8,
        ),
        ("aten::_scaled_dot_product_attention_math", [[2, 3, 5, 8], [2, 3, 7, 8], [2, 3, 7, 8]], 0),
        ("aten::add", [[4, 4], [4, 4]], 0),
        ("aten::mm", [], 0),
    ],
)
def test_flops_by_shapes(name, dims, flops):
    assert product_flops(event(name, 0, 1, **{"Input Dims": dims})) == flops


def test_the_picture_is_well_formed_and_tells_every_share():
    trace = on_gpu()
    trace["traceEvents"].append(event("a<b> & 'c' \"d\"", 800, 90, "kernel", STREAM))
    drawn = picture(dataclasses.asdict(summarize(trace, "<run> & co")))
    root = ET.fromstring(drawn)
    texts = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    assert texts[0] == "<run> & co"
    assert {"The phases of the steps, by the host's clock", "optimizer", "0.5 ms", "1 ms"} <= set(texts)
    assert "matmul 20.0%" in texts and "Memory, peak 1.9 GiB" in texts
    assert any("a<b> & 'c'" in text for text in texts)
