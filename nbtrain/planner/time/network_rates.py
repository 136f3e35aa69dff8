"""The network between a run's machines: named by the run, else measured, else assumed.

named      resources.network or network_bytes_per_second: bandwidth times the fraction that is reached;
           network_reached_fraction alone: that fraction of the assumed bandwidth
measured   by `nbtrain calibrate --network` where the run's ranks would be (calibration/measured_network.py)
assumed    the network of a usual machine with this type of GPU (rates.py); CPUs: gloo's own rate (cores.py)
"""

from dataclasses import replace

from nbtrain.config.arithmetic.networks import gigabits
from nbtrain.config.schema import RunConfig
from nbtrain.planner.calibration.measured_network import measured_network, source_of
from nbtrain.planner.setup.setup import network_of
from nbtrain.planner.time.rates import Link, Rates


def with_network(rates: Rates, config: RunConfig, use_measured: bool) -> Rates:
    """Return `rates` with the network between the run's machines; unchanged on one machine."""
    if config.resources.nodes == 1:
        return rates
    fabric, reached = network_of(config.resources)
    if fabric is not None:
        assert reached is not None
        name = f"{config.resources.network}: " if config.resources.network else ""
        words = f"{name}{gigabits(fabric)}, one way, of which {reached:.0%} are reached"
        across = rates.across
        if config.resources.device == "cpu":
            # A rank sends no faster than gloo does inside a machine.
            most = rates.inside.bytes_per_second * config.ranks_per_node
            across = replace(across, bytes_per_second=min(fabric * reached, most))
        return replace(rates, across=across, network=words, network_reached=reached)
    # A fraction that the run names is of the bandwidth that is assumed.
    measured = measured_network(config) if use_measured and reached is None else None
    if measured is None:
        return rates
    across = Link(measured.bytes_per_second, rates.across.ramp_bytes, measured.latency_seconds)
    words = f"{gigabits(measured.bytes_per_second)} reached, one way, {source_of(measured)}"
    return replace(rates, across=across, network=words, network_reached=1.0)
