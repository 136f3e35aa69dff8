"""`nbtrain calibrate --network` over two hosts with a limited link: the limit within 10 %, and a plan that
follows.

The hosts are network namespaces, and tc limits what each sends (tests/clusters/hosts.py).
"""

from pathlib import Path

import pytest

from nbtrain.config.load import load
from nbtrain.jobs.calibration.calibrate_network import calibrate_network
from nbtrain.planner.plan import plan
from tests.clusters import hosts

pytestmark = [pytest.mark.slow, pytest.mark.soak]
SECONDS = 20.0


def test_the_limit_of_a_link_is_measured_and_plans_follow(pair: hosts.HostPair, workspace: Path) -> None:
    """100 and 400 Mb/s are reported within 10 %; a step's wait for gradients is in proportion."""
    places = {"hosts": list(hosts.NAMES), "ssh_config": str(pair.ssh_config)}
    config = load(
        "gpt-tiny",
        {
            "backend": {"kind": "hosts", "hosts": places},
            "resources": {"device": "cpu", "nodes": 2},
            "parallel.data_parallel_size": 2,
            "batch.micro_batch_size": 4,
        },
    )
    waits = []
    for megabits in (100, 400):
        for name in hosts.NAMES:
            pair.limit(name, f"{megabits}mbit")
        result = calibrate_network(config, SECONDS)
        assert result.network.bytes_per_second == pytest.approx(megabits * 1e6 / 8, rel=0.1), str(result)
        assert len(result.picture().axes[0].lines) == 3
        planned = plan(config)
        assert planned.network is not None
        assert planned.network.reached_bytes_per_second == result.network.bytes_per_second
        assert "measured on" in planned.network.network
        waits.append(planned.network.waiting_seconds)
    assert waits[0] == pytest.approx(4 * waits[1], rel=0.2)
