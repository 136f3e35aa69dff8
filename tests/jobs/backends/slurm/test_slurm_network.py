"""`nbtrain calibrate --network` through a real Slurm cluster of two nodes, and a plan that uses it."""

from pathlib import Path

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli.__main__ import main
from nbtrain.config.load import load
from nbtrain.planner.calibration.measured_network import place_of, read_networks
from nbtrain.planner.plan import plan
from tests.clusters import slurm
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.soak]
END_SECONDS = 300.0

SETTINGS = [
    "backend.kind=slurm",
    "backend.slurm.partition=main",
    "backend.slurm.time_limit_seconds=600",
    "resources.device=cpu",
    "resources.nodes=2",
    "parallel.data_parallel_size=2",
    "batch.micro_batch_size=4",
]


def test_the_network_of_two_slurm_nodes_is_measured_and_plans_use_it(
    cluster: slurm.SlurmCluster,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command submits a job of two nodes, waits for it, prints both collectives and stores the place."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    assert main(["calibrate", "--network", "gpt-tiny", "--seconds", "15", *SETTINGS]) == 0
    printed = capsys.readouterr().out
    assert "2 ranks on 2 machines" in printed and "all_gather" in printed and "all_reduce" in printed
    config = load("gpt-tiny", SETTINGS)
    [network] = read_networks().values()
    assert network.place == place_of(config) == "slurm; partition main; 1 x CPUs a machine"
    assert (network.nodes, network.ranks) == (2, 2)
    planned = plan(config)
    assert planned.network is not None
    assert planned.network.network.endswith("over 2 machines (data/network.json)")
    # The job that measured has two nodes and has left the queue.
    [_job] = RunDir.named("gpt-tiny-network").job_ids()
    wait_until(lambda: cluster.call("squeue", "-h") == "", "an empty queue", END_SECONDS)
    elsewhere = plan(load(config, {"backend.slurm.partition": "urgent"}))
    assert elsewhere.network is not None and "network.json" not in elsewhere.network.network
