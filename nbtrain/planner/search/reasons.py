"""Reasons for a layout's settings, in the order in which practitioners decide.

    precision, recomputation, ZeRO, hpZ, offloading, Ulysses or context parallelism (if used), replicas (DP)

Each reason compares the layout, in numbers, with the same layout and a weaker technique: how much memory the
other layout would need, or how much faster or slower its step would be.
"""

from typing import NamedTuple

from nbtrain.base.text import amounts
from nbtrain.planner.search.legal import RECOMPUTATIONS, Cut, Layout, Options, problems
from nbtrain.planner.search.search import OFFLOADS, ROOMY_FRACTION, ScoredLayout, SearchResult, score


class Reason(NamedTuple):
    """The reason for one decision about a layout; `topic` names the decision, such as "ZeRO"."""

    topic: str
    words: str


def reasons(result: SearchResult, one: ScoredLayout) -> list[Reason]:
    """Explain every decision of a ranked layout, in the order in which practitioners decide."""
    return [
        Reason("precision", _precision(one)),
        Reason("recomputation", _recomputation(result, one)),
        Reason("ZeRO", _zero(result, one)),
        Reason("hpZ", _hpz(result, one)),
        Reason("offloading", _offloading(result, one)),
        *([Reason("sequences", _sequences(result, one))] if one.layout.cut.sharing > 1 else []),
        Reason("replicas", _replicas(result, one)),
    ]


def _precision(one: ScoredLayout) -> str:
    setup = one.setup
    peak = setup.device.peak(setup.dtype) if setup.device else None
    device = setup.device.name if setup.device else "the device"
    rate = f" at {peak / 1e12:g} TFLOP/s" if setup.device and peak else ""
    scale = ", and bf16 needs no loss scaling" if setup.dtype == "bf16" else ""
    return f"{setup.dtype}: {device} computes matrix products in {setup.dtype}{rate}{scale}"


def _recomputation(result: SearchResult, one: ScoredLayout) -> str:
    options = one.layout.options
    activations = amounts.size(one.memory.parts.get("activations", 0))
    if options.recompute == "none":
        return f"none, because all activations fit ({activations} on the fullest rank)"
    weaker = RECOMPUTATIONS[RECOMPUTATIONS.index(options.recompute) - 1]
    return (
        f"{options.recompute}: {_without(result, one, options._replace(recompute=weaker), f'with {weaker}')}"
    )


def _zero(result: SearchResult, one: ScoredLayout) -> str:
    options, cut = one.layout.options, one.layout.cut
    stage, ranks = options.zero_stage, cut.data * cut.sharing
    if ranks == 1 and stage > 1:
        held = "gradients" if options.offload_param == "none" else "gradients and weights"
        lower = options._replace(zero_stage=stage - 1, hpz=False, offload_param="none")
        with_lower = _without(result, one, lower, f"with stage {stage - 1}")
        return f"stage {stage}, which also keeps the only replica's {held} in host memory: {with_lower}"
    if ranks == 1:
        return f"stage {stage}: with one replica, nothing can be sharded"
    if stage == 0:
        higher = options._replace(zero_stage=1)
        return f"stage 0, which shards nothing: {_without(result, one, higher, 'with stage 1')}"
    if stage == 1:
        most = "; with a pipeline, higher stages are not allowed" if cut.pipeline > 1 else ""
        return (
            f"stage {stage}: the optimizer state is sharded across {ranks} ranks without extra traffic{most}"
        )
    lower = options._replace(zero_stage=stage - 1, hpz=False, offload_param="none")
    return f"stage {stage}: {_without(result, one, lower, f'with stage {stage - 1}')}"


def _hpz(result: SearchResult, one: ScoredLayout) -> str:
    options = one.layout.options
    base = result.space.base
    if options.zero_stage < 3:
        return "off: only ZeRO 3 gathers weights"
    if base.nodes == 1:
        return "off: all ranks are on one machine"
    if options.hpz:
        return f"on: {_without(result, one, options._replace(hpz=False), 'without it')}"
    return f"off: {_without(result, one, options._replace(hpz=True), 'with a second copy on each machine')}"


def _offloading(result: SearchResult, one: ScoredLayout) -> str:
    options = one.layout.options
    places = (options.offload_optimizer, options.offload_param)
    if places not in OFFLOADS or places == OFFLOADS[0]:
        return "none: model states fit on the device"
    weaker = OFFLOADS[OFFLOADS.index(places) - 1]
    changed = options._replace(offload_optimizer=weaker[0], offload_param=weaker[1])
    what = "optimizer and weights" if options.offload_param != "none" else "optimizer"
    host = amounts.size(one.memory.total_host_bytes)
    known = one.memory.host_bytes
    have = f" of {amounts.size(known)}" if known is not None else ""
    without = _without(result, one, changed, "with less offloading")
    return f"{what} in host memory ({host}{have} per rank): {without}"


def _sequences(result: SearchResult, one: ScoredLayout) -> str:
    cut = one.layout.cut
    ours, theirs, other = "Ulysses", "context parallelism", cut._replace(ulysses=1, context=cut.ulysses)
    if cut.context > 1:
        ours, theirs, other = theirs, ours, cut._replace(ulysses=cut.context, context=1)
    found = _without(result, one, one.layout.options, f"with {theirs}", other)
    return f"{ours} splits each sequence across {cut.sharing} ranks: {found}"


def _replicas(result: SearchResult, one: ScoredLayout) -> str:
    cut = one.layout.cut
    parts = cut.parts
    more = [other for other in result.ranked if other.layout.cut.data > cut.data]
    if parts == 1:
        return f"{cut.data}, one per GPU, because the model is not divided"
    head = f"{cut.data}, each divided across {parts} GPUs"
    if not more:
        return f"{head}; no layout with more replicas fits"
    fastest = min(more, key=lambda other: other.seconds)
    gain = fastest.seconds / one.seconds - 1
    change = f"{gain:.0%} slower" if gain >= 0 else f"{-gain:.0%} faster"
    if fastest.headroom < ROOMY_FRACTION:
        change += f", with only {fastest.headroom:.0%} of the device memory left"
    return (
        f"{head}; the fastest layout with more replicas has {fastest.layout.cut.data} "
        f"({fastest.layout.words}) and is {change}"
    )


def _without(
    result: SearchResult, one: ScoredLayout, options: Options, words: str, cut: Cut | None = None
) -> str:
    """Compare a layout with the same layout with other options or another cut, in a clause.

    The clause begins with `words`. It says that the trainer rejects the other layout, that the other layout
    does not fit, or how its time and memory differ.
    """
    other = Layout(cut or one.layout.cut, one.layout.micro_batch_size, options)
    if broken := problems(result.space, other):
        return f"{words}, the trainer rejects the layout ({broken[0]})"
    weaker = score(result.space, other)
    memory = weaker.memory
    if not memory.fits:
        have = amounts.size(memory.device_bytes or 0)
        return f"{words}, a rank needs {amounts.size(memory.total_bytes)}, but has {have}"
    if not weaker.fits:
        have = amounts.size(memory.host_bytes or 0)
        return f"{words}, a rank needs {amounts.size(memory.total_host_bytes)} of host memory, but has {have}"
    gain = weaker.seconds / one.seconds - 1
    if abs(gain) < 0.0005:
        change = "a step takes the same time"
    else:
        change = f"a step takes {abs(gain):.1%} {'longer' if gain > 0 else 'less time'}"
    only = "only " if weaker.headroom < ROOMY_FRACTION else ""
    return f"{words}, {change} and {only}{weaker.headroom:.0%} of the device memory is left"
