"""The network of a planned run: bytes that a machine sends, the time that it waits, and what hpZ would save.

    network_use(setup, rates) -> NetworkUse     the section Network of a plan; rows of search and what-if

A ring over n ranks passes through each machine once. If each of its ranks sends V bytes (traffic.py), V bytes
leave a machine for each ring that has ranks on it. In an all-to-all, a rank sends a share to each other rank,
and only the shares for ranks on other machines leave the machine. Between two pipeline stages, every rank
sends to its counterpart in the next stage, and the bytes leave if that rank is on another machine.

A step waits for the network in the parts whose ranks are on several machines, as far as the traffic does not
overlap with computation.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.networks import USUAL_REACHED, gigabits
from nbtrain.config.arithmetic.parameters import count_layers
from nbtrain.planner.memory import estimate
from nbtrain.planner.setup.engines import ENGINES, FITTED_NETWORKS
from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.time.rates import Rates
from nbtrain.planner.time.step import StepTime, estimate_step
from nbtrain.planner.time.traffic import (
    Collective,
    block_traffic,
    boundary_bytes,
    data_traffic,
    muon_traffic,
    ranks_together,
)

# hpZ costs memory on every GPU, so it is worthwhile only if it shortens a step by at least this fraction.
PAYS_FRACTION = 0.05
# Bandwidths (bytes per second) between which HpzGain.pays_below is searched.
_SLOWEST, _FASTEST = 1e7, 1e13
# ZeRO 3 moves each parameter three times per micro batch in 16 bits: gathered for the forward pass, gathered
# for the backward pass, and its gradient scattered (stas00/ml-engineering, model-parallelism, "Inter-node
# speed requirements to use ZeRO").
RULE_OF_THUMB_BITS = 48
# Networks on which the what-if page compares a step: 25, 100, 400 and 3,200 Gb/s.
COMPARED = tuple(gigabit * 1e9 / 8 for gigabit in (25, 100, 400, 3200))


DATA_KINDS = frozenset({"weights, forward", "weights, backward", "weights", "gradients"})
"""Kinds of traffic between data-parallel ranks: the gradients, and the weights that ZeRO gathers."""


@dataclass(frozen=True, slots=True)
class HpzGain:
    """The effect of hpZ, ZeRO++'s second copy of the weights on each machine (arXiv:2306.10209)."""

    step_seconds: float
    """Seconds per step with hpZ."""
    saved: float
    """Fraction of a step that hpZ saves, relative to the step without hpZ."""
    more_bytes: int
    """Additional device memory that hpZ needs on the fullest GPU."""
    fits: bool | None
    """Whether the run fits the device memory with hpZ; None if that is not known."""
    pays_below: float | None
    """Bandwidth of the network, in bytes per second, below which hpZ saves at least PAYS_FRACTION of a step.

    0 means that hpZ does not save this fraction on any network, and infinity that it does on every network.
    """


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """Use of the network between machines in one optimizer step."""

    network: str
    """Description of the network, with its source."""
    nominal_bytes_per_second: float
    reached_bytes_per_second: float
    """Network bandwidth of a machine that collectives reach, one way."""
    sent_bytes: dict[str, float]
    """Bytes that leave one machine in a step, by kind of traffic."""
    step_seconds: float
    waiting_seconds: float
    """Seconds of the step in which ranks wait for other machines."""
    program_share: float
    """Fraction of `reached_bytes_per_second` that ZeRO's collectives in the training program reach."""
    rule_of_thumb_bytes: float | None
    """Bytes that ZeRO 3 sends per machine and micro batch, by a rule of thumb; None for other ZeRO stages.

    The rule is 48 bits x parameters / machines.
    """
    micro_batches: int
    has_hpz: bool
    hpz: HpzGain | None
    """Effect of hpZ; None if the layout cannot use it (it needs ZeRO 3 across several machines)."""

    @property
    def total_bytes(self) -> float:
        return sum(self.sent_bytes.values())

    @property
    def waiting(self) -> float:
        """Fraction of a step in which ranks wait for other machines."""
        return self.waiting_seconds / self.step_seconds

    def rows(self) -> dict[str, str]:
        """Return the rows of a plan's section Network: {name: text}."""
        kinds = ", ".join(f"{_kind_words(kind)} {gigabytes(sent)}" for kind, sent in self.sent_bytes.items())
        full_speed = self.total_bytes / self.reached_bytes_per_second
        sends = f"{gigabytes(self.total_bytes)} per step"
        if kinds:
            sends += (
                f": {kinds}; this takes {amounts.step(full_speed)} at the bandwidth that collectives reach"
            )
        if self.program_share < 1 and DATA_KINDS.intersection(self.sent_bytes):
            sends += (
                f", but DeepSpeed's ZeRO reaches only {self.program_share:.0%} of that bandwidth "
                f"({self._share_source})"
            )
        rows = {
            "network": self.network,
            "sent by a machine": sends,
            "waiting for network": f"{self.waiting:.0%} of a step, {amounts.step(self.waiting_seconds)} of "
            f"{amounts.step(self.step_seconds)}",
        }
        if self.rule_of_thumb_bytes is not None:
            rows["rule of thumb"] = (
                f"{gigabytes(self.rule_of_thumb_bytes)} per machine and micro batch ({RULE_OF_THUMB_BITS} "
                f"bits x parameters / machines); this plan has "
                f"{gigabytes(self.total_bytes / self.micro_batches)}, because a ring sends nearly every "
                "array through every machine"
            )
        if self.hpz is not None:
            rows["hpZ"] = self.hpz_words
        return rows

    @property
    def _share_source(self) -> str:
        """Clause that says on which networks program_share was fitted."""
        slow, fast = FITTED_NETWORKS
        words = f"fitted to published runs on networks of {gigabits(slow)} to {gigabits(fast)}"
        if self.nominal_bytes_per_second < slow:
            return f"{words}; on this slower network, ZeRO may reach a larger fraction"
        return words

    @property
    def hpz_words(self) -> str:
        """Clauses that say what hpZ saves or would save, and on which networks it is worthwhile.

        "" if the layout cannot use hpZ.
        """
        gain = self.hpz
        if gain is None:
            return ""
        memory = amounts.size(gain.more_bytes)
        if self.has_hpz:
            words = f"saves {gain.saved:.0%} of a step and needs {memory} more memory per GPU"
        else:
            words = f"would save {gain.saved:.0%} of a step and need {memory} more memory per GPU"
        if gain.fits is False:
            words += ", which does not fit"
        if not gain.pays_below:
            return f"{words}; hpZ is not worthwhile on any network"
        if math.isinf(gain.pays_below):
            return f"{words}; hpZ is worthwhile on every network"
        return f"{words}; hpZ is worthwhile on networks below {gigabits(gain.pays_below)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the entry `network` of plan.json."""
        gain = self.hpz
        limit = gain.pays_below if gain else None
        return {
            "network": self.network,
            "nominal_bytes_per_second": self.nominal_bytes_per_second,
            "reached_bytes_per_second": self.reached_bytes_per_second,
            "sent_bytes": self.sent_bytes,
            "step_seconds": self.step_seconds,
            "waiting_seconds": self.waiting_seconds,
            "rule_of_thumb_bytes": self.rule_of_thumb_bytes,
            "hpz": {
                "step_seconds": gain.step_seconds,
                "saved": gain.saved,
                "more_bytes": gain.more_bytes,
                "fits": gain.fits,
                "pays_below_bytes_per_second": limit if limit is None or math.isfinite(limit) else None,
            }
            if gain
            else None,
        }


@dataclass(frozen=True, slots=True)
class BetweenMachines:
    """Traffic of one machine with other machines in one optimizer step."""

    sent_bytes: dict[str, float]
    """Bytes that leave the machine, by kind of traffic. Kinds with zero bytes are omitted."""
    waiting_seconds: float
    """Seconds of the step in which ranks wait for other machines."""

    @property
    def total_bytes(self) -> float:
        return sum(self.sent_bytes.values())


def between_machines(setup: Setup, rates: Rates, step: StepTime) -> BetweenMachines:
    """Return the traffic between machines in one step; it is empty for a run on one machine."""
    sent = {kind: num_bytes for kind, num_bytes in _sent(setup, rates).items() if num_bytes > 0}
    waiting = {
        "tensor": ("tensor-parallel sums",),
        "sequence": ("Ulysses", "context parallelism"),
        "pipeline": ("pipeline",),
        "data": tuple(DATA_KINDS),
    }
    seconds = sum(
        getattr(step, part) for part, kinds in waiting.items() if any(kind in sent for kind in kinds)
    )
    return BetweenMachines(sent, seconds)


def _sent(setup: Setup, rates: Rates) -> dict[str, float]:
    per_node = max(setup.devices_per_node, 1)
    blocks = setup.accumulation_steps * (setup.shape.num_layers / setup.pipeline_parallel_size)

    def ring(collective: Collective) -> float:
        """Return the bytes that leave a machine in a collective whose ring passes through all machines.

        The result is 0 if the ranks of the collective are in one machine.
        """
        size = collective.ranks
        together = ranks_together(setup, rates, size, collective.stride)
        if together == size:
            return 0.0
        array = per_node / together * collective.factor * (size - 1) / size * collective.num_bytes
        return collective.times * array

    def all_to_all(collective: Collective) -> float:
        size = collective.ranks
        together = ranks_together(setup, rates, size, collective.stride)
        return collective.times * (per_node * (size - together) / size * collective.num_bytes)

    block = block_traffic(setup)
    sent = {
        "tensor-parallel sums": blocks * (ring(block.sums) + ring(block.shared_groups)),
        "Ulysses": blocks * all_to_all(block.ulysses),
        "context parallelism": blocks * ring(block.context),
        "pipeline": _pipeline(setup, rates),
        "Muon": all_to_all(muon_traffic(setup)),
    }
    if (data := data_traffic(setup)) is None:
        return sent
    sent["gradients"] = ring(data.gradients) + (ring(data.between_copies) if data.between_copies else 0.0)
    if data.weights is not None:
        kind = "weights, forward" if setup.zero_stage == 3 else "weights"
        sent[kind] = ring(data.weights)
    if data.weights_backward is not None:
        sent["weights, backward"] = ring(data.weights_backward)
    return sent


def _pipeline(setup: Setup, rates: Rates) -> float:
    """Return the bytes of activations and gradients that a machine sends to adjacent pipeline stages.

    A machine in the middle of a pipeline sends activations to the next machine and gradients to the previous
    machine. If there are only two machines, one sends activations and the other gradients. With v model
    chunks per rank (interleaved), a micro batch passes through all machines v times.
    """
    stages, interleaved = setup.pipeline_parallel_size, setup.virtual_stages
    ranks = setup.world_size // stages
    together = ranks_together(setup, rates, stages, ranks)
    if together == stages:
        return 0.0
    times = 2 * interleaved if math.ceil(stages / together) > 2 else 2 * interleaved - 1
    crossing = min(max(setup.devices_per_node, 1), ranks)
    return times * setup.accumulation_steps * crossing * boundary_bytes(setup)


def network_use(setup: Setup, rates: Rates | None) -> NetworkUse | None:
    """Return how a step of this setup uses the network.

    The result is None on one machine, or if the device's rates are not known.
    """
    if setup.nodes == 1 or rates is None:
        return None
    step = estimate_step(setup, rates)
    if step is None:
        return None
    between = between_machines(setup, rates, step)
    thumb = None
    if setup.zero_stage == 3:
        shape = setup.shape
        parameters = count_layers(shape, shape.num_layers, first=True, last=True, tensor=1).total
        thumb = RULE_OF_THUMB_BITS / 8 * parameters / setup.nodes
    reached = rates.across.bytes_per_second
    return NetworkUse(
        network=rates.network or f"{gigabits(reached)} reached, one way, {rates.source}",
        nominal_bytes_per_second=reached / rates.network_reached,
        reached_bytes_per_second=reached,
        sent_bytes=between.sent_bytes,
        step_seconds=step.seconds,
        waiting_seconds=between.waiting_seconds,
        program_share=ENGINES[setup.engine].zero_share if setup.zero_stage and setup.on_gpu else 1.0,
        rule_of_thumb_bytes=thumb,
        micro_batches=setup.accumulation_steps,
        has_hpz=setup.hpz_size > 1,
        hpz=hpz_gain(setup, rates),
    )


def on_network(rates: Rates, bytes_per_second: float) -> Rates:
    """Return `rates` with another network, whose bandwidth is reached to the same fraction."""
    across = replace(rates.across, bytes_per_second=bytes_per_second * rates.network_reached)
    words = f"{gigabits(bytes_per_second)}, one way, of which {rates.network_reached:.0%} is reached"
    return replace(rates, across=across, network=words)


def uses_on(setup: Setup, rates: Rates | None, networks: tuple[float, ...] = COMPARED) -> list[NetworkUse]:
    """Return how a step would use each of several networks, given by their bytes per second.

    The result is [] on one machine, or if the device's rates are not known.
    """
    if setup.nodes == 1 or rates is None:
        return []
    if rates.network_reached == 1.0:
        # A measured bandwidth (or gloo's) is what collectives reach. Bandwidths in `networks` are nominal.
        # Collectives reach the usual fraction of them.
        rates = replace(rates, network_reached=USUAL_REACHED)
    found = [network_use(setup, on_network(rates, network)) for network in networks]
    return [use for use in found if use is not None]


def hpz_gain(setup: Setup, rates: Rates) -> HpzGain | None:
    """Return what hpZ saves in a step; None if weights are not gathered across several machines."""
    tensor = setup.tensor_parallel_size
    copies = setup.devices_per_node // tensor
    if setup.zero_stage != 3 or setup.pipeline_parallel_size > 1 or copies < 2:
        return None
    if ranks_together(setup, rates, setup.zero_size, tensor) == setup.zero_size:
        return None
    without, with_hpz = replace(setup, hpz_size=1), replace(setup, hpz_size=copies)

    def saved(network: float) -> float:
        """Return the fraction of a step that hpZ saves on a network of these bytes per second."""
        there = on_network(rates, network)
        before, after = estimate_step(without, there), estimate_step(with_hpz, there)
        assert before is not None and after is not None
        return 1 - after.seconds / before.seconds

    after = estimate_step(with_hpz, rates)
    assert after is not None
    memory, larger = estimate(without), estimate(with_hpz)
    return HpzGain(
        step_seconds=after.seconds,
        saved=saved(rates.across.bytes_per_second / rates.network_reached),
        more_bytes=larger.total_bytes - memory.total_bytes,
        fits=larger.fits,
        pays_below=_limit(saved),
    )


def _limit(saved: Any) -> float:
    """Return the bandwidth, in bytes per second, of the fastest network on which hpZ is worthwhile.

    hpZ is worthwhile if it saves PAYS_FRACTION of a step; `saved` is a function that returns the saved
    fraction for a bandwidth. The result is 0 if hpZ is worthwhile on no network, and infinity if hpZ is
    worthwhile even on a network with the bandwidth _FASTEST.
    """
    if saved(_FASTEST) >= PAYS_FRACTION:
        return math.inf
    # The search goes from fast to slow networks. hpZ saves more on slow networks, but on the slowest ones the
    # gradients, which hpZ does not affect, dominate.
    networks = list(_networks())
    paying = next((at for at, network in enumerate(networks) if saved(network) >= PAYS_FRACTION), None)
    if paying is None:
        return 0.0
    slow, fast = networks[paying], networks[paying - 1] if paying else _FASTEST
    for _ in range(12):
        middle = math.sqrt(slow * fast)
        slow, fast = (middle, fast) if saved(middle) >= PAYS_FRACTION else (slow, middle)
    return slow


def _networks() -> Iterator[float]:
    network = _FASTEST
    while network > _SLOWEST:
        network /= 2
        yield network


def _kind_words(kind: str) -> str:
    """Return a kind of traffic as readable text: "weights for the forward pass" for "weights, forward"."""
    what, _, passed = kind.partition(", ")
    return f"{what} for the {passed} pass" if passed else what


def gigabytes(num_bytes: float) -> str:
    """Format bytes in decimal units, as networks count them."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if num_bytes >= unit:
            value = num_bytes / unit
            return f"{value:,.3g} {name}" if value < 1000 else f"{value:,.0f} {name}"
    return f"{num_bytes:,.0f} bytes"
