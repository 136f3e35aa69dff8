"""calibrate --network without machines: what is refused, the run that measures, and the printed result."""

import threading
from dataclasses import replace

import pytest

import nbtrain as nb
from nbtrain.base.errors import ConfigError, JobError
from nbtrain.base.run_directory.records import Heartbeat
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli.__main__ import main
from nbtrain.config.load import load
from nbtrain.jobs.calibration.calibrate_network import CalibratedNetwork, calibrate_network, network_run
from nbtrain.planner.calibration.measured_network import (
    MeasuredNetwork,
    network_path,
    place_of,
    read_networks,
    write_network,
)
from nbtrain.train.calibration.network import beating
from nbtrain.train.health.heartbeat import HeartbeatWriter

TWO = {"backend": {"kind": "slurm", "slurm": {"partition": "gpu"}}, "resources.nodes": 2}


def measured(ranks=2, gather=2.0, reduce=2.0):
    """Return a network over which 1 GB took these seconds."""
    figures = [
        {"collective": kind, "bytes": size, "seconds": seconds * size / 1e9, "spread": 0.01}
        for kind, seconds in (("all_reduce", reduce), ("all_gather", gather))
        for size in (1e6, 1e9)
    ]
    return MeasuredNetwork("slurm; partition gpu; 8 x H100 a machine", "2026-11-29", 2, ranks, figures)


def test_a_run_without_a_network_is_refused(workspace):
    with pytest.raises(ConfigError, match=r"backend.kind = local, resources.nodes = 1"):
        calibrate_network(load("gpt-125m"))
    with pytest.raises(ConfigError, match="from 10 to 3600"):
        calibrate_network(load("13B", TWO), seconds=1)
    assert main(["calibrate", "batch.micro_batch_size=4"]) == 2
    assert main(["calibrate", "--seconds", "0"]) == 2
    with pytest.raises(ConfigError, match="name that run with network="):
        nb.calibrate(overrides="backend.kind=slurm")
    assert main(["calibrate", "--network", "13B", "--clock", "cpu"]) == 2


def test_a_result_that_cannot_be_stored_is_refused_before_the_job(workspace, monkeypatch):
    (workspace / "file").write_text("")
    monkeypatch.setenv("NBTRAIN_DATA", str(workspace / "file" / "data"))
    with pytest.raises(JobError, match=r"network.json cannot be written: .*Nothing was started"):
        calibrate_network(load("13B", TWO))


@pytest.mark.parametrize("name", ["gpt-13b-4xdp-4xpp", "llama-8b-16xdp", "qwen2-5-7b-lora"])
def test_the_run_that_measures_has_the_same_ranks(workspace, name):
    """The measuring run has the machines and the layout of the run, and needs no data or weights."""
    config = load(name, {"backend": TWO["backend"]})
    if config.init_from is None:
        # What needs checkpoints or many steps is of the training.
        later = {"stability.on_nan": "rollback", "profile": {"enabled": True, "wait_steps": 100}}
        config = load(config, later)
    run = network_run(config)
    assert (run.world_size, run.resources, place_of(run)) == (
        config.world_size,
        config.resources,
        place_of(config),
    )
    assert run.name == f"{name}-network" and run.mode == "perf"
    assert run.init_from is None and run.backend.max_restarts == 0


def test_the_bandwidth_by_hand():
    """A gather of 1 GB over two ranks sends 0.5 GB; an all-reduce at least 1 GB, also as a tree."""
    assert measured(gather=2.0, reduce=8.0).bytes_per_second == pytest.approx(0.25e9)
    assert measured(gather=8.0, reduce=2.0).bytes_per_second == pytest.approx(0.5e9)
    assert measured(16, gather=2.0, reduce=2.0).bytes_per_second == pytest.approx(0.5e9)
    assert measured(16, gather=1.0, reduce=2.0).bytes_per_second == pytest.approx(15 / 16 * 1e9)


def test_the_result_is_printed_and_drawn(workspace):
    network = measured()
    path = write_network(network)
    assert path == network_path() and read_networks() == {network.place: network}
    said = str(CalibratedNetwork(network, path, None))
    assert "2 ranks on 2 machines: 4 Gb/s one-way bandwidth" in said
    assert "  976.6 KiB  0.002 s, 4 Gb/s  0.002 s, 2 Gb/s\n" in said
    assert "<td" in CalibratedNetwork(network, path, None)._repr_html_()
    assert "Written to data/network.json; plans of runs on these machines use it." in said
    named = CalibratedNetwork(network, path, 50e9)
    assert "This run sets a network bandwidth of 400 Gb/s, which its plans keep using" in str(named)
    lines = named.picture().axes[0].lines
    assert [line.get_label() for line in lines] == ["all_reduce", "all_gather", "4 Gb/s, used by plans"]
    assert list(lines[0].get_ydata()) == pytest.approx([4, 4])
    path.write_text("{")
    assert read_networks() == {}


def test_measurements_that_end_together_are_all_kept(workspace):
    """Each write reads the file again under the lock of the data directory."""
    networks = [replace(measured(), place=f"place {number}") for number in range(8)]
    meeting = threading.Barrier(len(networks))

    def write(network):
        meeting.wait(600)
        write_network(network)

    threads = [threading.Thread(target=write, args=(network,)) for network in networks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_networks() == {network.place: network for network in networks}


@pytest.mark.parametrize("content", ["{", '{"schema_version": 2, "networks": {"a": {}}}', "[1]"])
def test_a_file_that_cannot_be_read_is_kept(workspace, content):
    """A damaged file, or one of another version, is not lost when a measurement is stored."""
    network_path().parent.mkdir()
    network_path().write_text(content)
    write_network(measured())
    assert list(read_networks()) == [measured().place]
    assert network_path().with_name("network.json.old").read_text() == content


def test_each_call_of_a_collective_counts_as_progress(workspace):
    """A measurement may take longer than backend.heartbeat_timeout_seconds."""
    job = RunDir.named("gpt-network").job("20261129-000000-a1b2")
    heartbeat = HeartbeatWriter(job, 0, 1)
    task = beating(lambda: "sum", heartbeat)
    assert [task(), task()] == ["sum", "sum"]
    assert Heartbeat.read(job.heartbeat(0)).progress_count > 0
