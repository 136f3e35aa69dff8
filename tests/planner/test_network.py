"""Traffic between machines, waits and hpZ on networks of several speeds; the network that a run names."""

import datetime
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.networks import NETWORKS, find_network, gigabits
from nbtrain.config.load import load
from nbtrain.lab.widgets.what_if import static_html
from nbtrain.planner.calibration.measured_network import (
    MeasuredNetwork,
    network_path,
    place_of,
    read_networks,
    write_network,
)
from nbtrain.planner.lint.layout import network_keeps_up
from nbtrain.planner.lint.run_estimates import RunEstimates
from nbtrain.planner.plan import plan
from nbtrain.planner.search.search import search
from nbtrain.planner.search.what_if import what_if
from nbtrain.planner.setup.setup import setup_of
from nbtrain.planner.time.network_use import gigabytes, network_use, uses_on
from nbtrain.planner.time.rates import read_speed
from nbtrain.planner.time.step import estimate_step

pytestmark = pytest.mark.usefixtures("workspace")

PAGE = Path(__file__).parents[2] / "docs" / "plan.md"
# 39.5B parameters with ZeRO 3 on two machines of eight H200, four micro batches of 8 sequences on a rank.
FORTY_BILLION = {
    "model": {"num_layers": 48, "hidden_size": 8192, "num_attention_heads": 64},
    "parallel": {
        "zero_stage": 3,
        "data_parallel_size": 16,
        "pipeline_parallel_size": 1,
        "activation_checkpointing": {"granularity": "full"},
    },
    "batch": {"micro_batch_size": 8, "global_batch_size": 512},
    "resources": {"nodes": 2, "gpus_per_node": 8, "gpu_type": "H200"},
}


def forty_billion(**resources):
    overrides = {**FORTY_BILLION, "resources": {**FORTY_BILLION["resources"], **resources}}
    return load("gpt-13b-4xdp-4xpp", overrides)


def use_of(config):
    return network_use(setup_of(config), read_speed(config).rates)


def test_bytes_of_zero_3_by_hand():
    """A ring over 16 ranks sends 15/16 of the 16-bit weights twice and of the fp32 gradients once."""
    config = forty_billion(network="ib-8x400")
    use, parameters = use_of(config), plan(config, use_measured=False).parameters.total
    once = 4 * 15 / 16 * parameters
    assert use.sent_bytes == {
        "gradients": pytest.approx(4 * once),
        "weights, forward": pytest.approx(2 * once),
        "weights, backward": pytest.approx(2 * once),
    }
    assert use.rule_of_thumb_bytes == pytest.approx(48 / 8 * parameters / 2)
    assert use.reached_bytes_per_second == pytest.approx(0.8 * 400e9)


def test_tensor_and_pipeline_traffic_by_hand():
    """Tensor ranks inside a machine send nothing to others. Of two machines with a pipeline, one sends
    activations and the other their gradients; one in the middle sends both.
    """
    config = load("gpt-13b-4xdp-4xpp", {"resources.nodes": 2, "resources.gpus_per_node": 8})
    setup = setup_of(config)
    boundary = 2 * setup.tokens_per_micro_batch * setup.shape.hidden_size
    use = use_of(config)
    # Stages of four ranks: two stages on a machine, and four ranks send over its one boundary.
    assert use.sent_bytes == {"pipeline": pytest.approx(setup.accumulation_steps * 4 * boundary)}
    four = use_of(load(config, {"resources": {"nodes": 4, "gpus_per_node": 4}}))
    assert four.sent_bytes["pipeline"] == pytest.approx(2 * use.total_bytes)
    assert use.rule_of_thumb_bytes is None and use.hpz is None


def test_slower_networks_wait_longer_and_gain_more_from_hpz():
    uses = [use_of(forty_billion(network_bytes_per_second=gb * 10**9 // 8)) for gb in (25, 100, 400, 3200)]
    assert len({use.total_bytes for use in uses}) == 1
    waits = [use.waiting for use in uses]
    assert waits == sorted(waits, reverse=True) and waits[0] > 0.9 and waits[-1] < 0.1
    saved = [use.hpz.saved for use in uses]
    assert saved == sorted(saved, reverse=True)
    limit = uses[0].hpz.pays_below
    assert all(use.hpz.pays_below == pytest.approx(limit, rel=1e-3) for use in uses)
    # On both sides of the limit, hpZ is on that side of 5 %.
    for factor, pays in ((0.95, True), (1.05, False)):
        there = use_of(forty_billion(network_bytes_per_second=int(factor * limit)))
        assert (there.hpz.saved >= 0.05) is pays
    on = use_of(load(forty_billion(network="ethernet-100"), {"parallel.zero_hpz": True}))
    assert on.step_seconds == pytest.approx(uses[1].hpz.step_seconds)
    assert "weights, backward" not in on.sent_bytes


def quoted_networks():
    """Return the cells of each row of the table in docs/plan.md, by its network."""
    rows = re.findall(r"^\| ([\d,]+ Gb/s) \| (.+) \|$", PAGE.read_text(), flags=re.M)
    return {network: cells.split(" | ") for network, cells in rows}


def test_the_table_of_networks_in_the_docs_is_what_the_plan_says():
    config = forty_billion(network="ib-8x400")
    found = uses_on(setup_of(config), read_speed(config).rates)
    uses = {gigabits(use.nominal_bytes_per_second): use for use in found}
    quoted = {
        network: [cell.replace(" %", "%") for cell in cells] for network, cells in quoted_networks().items()
    }
    assert {network: cells[:3] for network, cells in quoted.items()} == {
        network: [amounts.step(use.step_seconds), f"{use.waiting:.0%}", f"{use.hpz.saved:.0%}"]
        for network, use in uses.items()
    }
    text = " ".join(PAGE.read_text().split())
    use = uses["100 Gb/s"]
    left = use.total_bytes - use.sent_bytes["weights, backward"]
    assert f"sends {gigabytes(use.total_bytes)} from each machine in a step" in text
    assert f"so that {gigabytes(left)} remain" in text


def test_the_search_ranks_for_the_network():
    """On a slow network a pipeline is first; ZeRO 3 over both machines is not. The docs quote the first."""
    slow, fast = (search(forty_billion(network=name)).best for name in ("ethernet-25", "ib-8x400"))
    for best, network in ((slow, "25 Gb/s"), (fast, "3,200 Gb/s")):
        assert quoted_networks()[network][3] == f"{best.layout.words}: {amounts.step(best.seconds)}"
    assert slow.seconds > fast.seconds
    assert slow.layout.cut.pipeline > 1 and slow.layout.options.zero_stage < 3


def test_a_slow_network_is_found_with_its_price():
    planned = plan(forty_billion(network="ethernet-100"), use_measured=False)
    found = next(finding for finding in planned.findings if finding.rule == "network_keeps_up")
    assert found.message.startswith("Ranks wait for the network between machines for ")
    assert "ethernet-100: 100 Gb/s, one way, of which 80% is reached" in found.message
    assert 0.5 * planned.duration.seconds < 3600 * found.cost.hours < planned.duration.seconds
    fast = plan(forty_billion(network="ib-8x400"), use_measured=False)
    assert not [finding for finding in fast.findings if finding.rule == "network_keeps_up"]
    assert planned.duration.seconds > 5 * fast.duration.seconds
    assert "worthwhile on networks below" in planned.sections()["Network"]["hpZ"]


def test_the_price_of_a_slow_network_is_that_of_the_network_alone():
    """GPUs that were measured four times slower than the table do not make the network more expensive."""
    config = forty_billion(network="ethernet-100")
    planned = plan(config, use_measured=False)
    rates = planned.speed.rates
    rates = replace(rates, matmul_flops={dtype: flops / 4 for dtype, flops in rates.matmul_flops.items()})
    speed = replace(planned.speed, rates=rates)
    use = network_use(speed.setup, rates)
    estimates = RunEstimates(config, planned.memory, planned.duration, planned.disk, planned.cost, speed, use)
    (found,) = network_keeps_up(estimates)
    fast = replace(rates, across=replace(rates.inside, bytes_per_second=math.inf))
    saved = 1 - estimate_step(speed.setup, fast).seconds / use.step_seconds
    assert found.cost.hours == pytest.approx(saved * planned.duration.seconds / 3600)


def test_the_default_is_assumed_and_says_so():
    assumed = use_of(forty_billion())
    assert assumed.network.startswith("3,200 Gb/s, one way") and "assumed" in assumed.network
    assert assumed.reached_bytes_per_second == pytest.approx(0.73 * 400e9)
    reached = use_of(forty_billion(network="efa-3200", network_reached_fraction=0.9))
    assert reached.reached_bytes_per_second == pytest.approx(0.9 * 400e9)


def test_a_measured_network_is_used_unless_the_run_names_one():
    places = {"kind": "hosts", "hosts": {"hosts": ["a", "b"]}}
    config = load(forty_billion(), {"backend": places})
    today = datetime.date.today()
    figures = [
        {"collective": "all_gather", "bytes": size, "seconds": size * 15 / 16 / 3e9 + 1e-4}
        for size in (4096, 1 << 30)
    ]
    write_network(MeasuredNetwork(place_of(config), today.isoformat(), 2, 16, figures))
    use = use_of(config)
    assert use.reached_bytes_per_second == pytest.approx(3e9, rel=1e-3)
    assert use.network.startswith(f"24 Gb/s reached, one way, measured on {today} over 2 machines")
    named = use_of(load(config, {"resources.network": "ib-8x400"}))
    assert named.reached_bytes_per_second == pytest.approx(320e9)
    elsewhere = use_of(load(config, {"backend.hosts.hosts": ["a", "c"]}))
    assert elsewhere.network.partition("; ")[2].startswith("assumed for ")
    # A fraction is of the assumed bandwidth. Other networks reach the usual fraction, not all of theirs.
    fraction = use_of(load(config, {"resources.network_reached_fraction": 0.5}))
    assert (
        fraction.network.partition("; ")[2].startswith("assumed for ")
        and fraction.reached_bytes_per_second == 200e9
    )
    others = uses_on(setup_of(config), read_speed(config).rates)
    assert [other.reached_bytes_per_second * 8 / 1e9 for other in others] == pytest.approx(
        [20, 80, 320, 2560]
    )
    old = (today - datetime.timedelta(days=200)).isoformat()
    write_network(MeasuredNetwork(place_of(config), old, 2, 16, figures))
    assert use_of(config).network.partition("; ")[2].startswith("assumed for ")


@pytest.mark.parametrize(
    "damage",
    [
        {"date": "yesterday"},
        {"date": None},
        {"figures": []},
        {"figures": [{"collective": "all_gather", "bytes": 4096}]},
        {"figures": [{"collective": "all_gather", "bytes": 4096, "seconds": 0}]},
        {"figures": [{"collective": "all_gather", "bytes": 4096, "seconds": math.nan}]},
        {"ranks": "16"},
    ],
)
def test_a_damaged_measurement_is_not_used(damage):
    config = load(forty_billion(), {"backend": {"kind": "hosts", "hosts": {"hosts": ["a", "b"]}}})
    figures = [{"collective": "all_gather", "bytes": 4096, "seconds": 1e-4}]
    write_network(MeasuredNetwork(place_of(config), datetime.date.today().isoformat(), 2, 16, figures))
    content = json.loads(network_path().read_text())
    content["networks"][place_of(config)].update(damage)
    network_path().write_text(json.dumps(content))
    assert use_of(config).network.partition("; ")[2].startswith("assumed for ")
    network_path().write_text(json.dumps({**content, "networks": [1]}))
    assert read_networks() == {}


def test_the_table_of_networks():
    assert len({network.name for network in NETWORKS}) == len(NETWORKS)
    assert find_network("EFA-400").bytes_per_second == 50e9
    assert find_network("ib-4x200").bytes_per_second == 100e9
    assert find_network("efa-3200").bytes_per_second == find_network("ib-8x400").bytes_per_second == 400e9
    assert all(0.8 <= network.reached <= 0.85 and network.source for network in NETWORKS)


def test_a_wrong_network_is_refused():
    with pytest.raises(ConfigError, match=r"resources.network = infiniband\n.*not in the network table"):
        load("gpt-125m", ["resources.network=infiniband"])
    with pytest.raises(ConfigError, match="Nearest: ib-8x400"):
        load("gpt-125m", ["resources.network=ib-8x40"])
    with pytest.raises(ConfigError, match="both set the bandwidth"):
        load("gpt-125m", ["resources.network=efa-400", "resources.network_bytes_per_second=5e10"])
    with pytest.raises(ConfigError, match="but with device: cpu no bandwidth is assumed"):
        load("gpt-125m", ["resources.device=cpu", "resources.network_reached_fraction=0.5"])


def test_the_what_if_page_changes_the_network():
    """The page has the network as a control, the plan's rows, and the step on four networks."""
    page = what_if(forty_billion(network="ib-8x400"))
    slow = page.changed("network", "ethernet-25")
    assert (page.network, slow.network) == ("ib-8x400", "ethernet-25")
    assert slow.layout == page.layout
    shown = slow.shown()
    use = use_of(forty_billion(network="ethernet-25"))
    assert ["waiting for network", use.rows()["waiting for network"]] in shown["rows"]
    bars = shown["networks"]
    assert [bar["label"] for bar in bars] == ["25 Gb/s", "100 Gb/s", "400 Gb/s", "3,200 Gb/s"]
    assert sum(seconds for _, seconds, _ in bars[0]["parts"]) == pytest.approx(use.step_seconds)
    assert bars[0]["total"].endswith(f"{use.waiting:.0%} waiting; hpZ saves {use.hpz.saved:.0%}")
    assert slow.changed("network", "assumed").network == "assumed"
    with pytest.raises(ConfigError, match="not in the network table"):
        page.changed("network", "carrier-pigeon")
    html = static_html(shown)
    assert "The same step on other networks" in html and "hpZ saves" in html
