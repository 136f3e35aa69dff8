"""Processing parts in jobs of a real Slurm cluster with two nodes; part of `make soak`."""

import shutil
import tempfile
import threading
import time
from pathlib import Path

import pytest

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import data_home, dataset_dir
from nbtrain.dataset.prepare.prepare import prepare
from tests.clusters import slurm
from tests.conftest import skip_or_fail
from tests.dataset.conftest import content
from tests.dataset.prepare.test_dask import needs_dask

pytestmark = pytest.mark.soak
WORKERS = {"kind": "dask", "cluster": "slurm", "num_workers": 2, "memory_bytes": 2_000_000_000}


@pytest.fixture
def cluster(monkeypatch):
    """Start a Slurm cluster of two nodes, and make this process use its commands."""
    needs_dask()
    if why := slurm.missing():
        skip_or_fail("NBTRAIN_REQUIRE_SLURM", why)
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    running = slurm.SlurmCluster(folder).start()
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    yield running
    assert running.call("squeue", "-h") == "", "jobs of workers were left behind"
    running.stop()
    shutil.rmtree(folder)


@pytest.fixture
def home(workspace, tmp_path, monkeypatch):
    """Create a data directory whose path is allowed in a job script."""
    monkeypatch.setenv("NBTRAIN_DATA", str(tmp_path / "data"))


def made(config):
    return content(dataset_dir(config.data.name))


def end_first_job(cluster, ended):
    """Cancel the first worker job once a shard exists, as a preemption does."""
    while not ended.is_set() and not list(dataset_dir("small").rglob(".encode/*")):
        time.sleep(0.05)
    for number in cluster.call("squeue", "-h", "-t", "R", "-o", "%i").split()[:1]:
        cluster.call("scancel", number)


@pytest.mark.usefixtures("home", "small_parts")
def test_a_job_of_workers_is_lost_and_the_bytes_are_the_same(cluster, make_config):
    """If one of two worker jobs is cancelled, the other one or a new job finishes with the same bytes."""
    config = make_config(data={"workers": {**WORKERS, "wait_minutes": 5.0}})
    ended = threading.Event()
    killer = threading.Thread(target=end_first_job, args=(cluster, ended))
    killer.start()
    try:
        assert prepare(config).manifest.counts["documents"] == 120
    finally:
        ended.set()
        killer.join()
    there = made(config)
    assert list((data_home() / "slurm-workers").glob("certificates-*")) == []
    shutil.rmtree(data_home())
    prepare(make_config())
    assert there == made(config) and len(there) == 2


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"slurm": {"partition": "nope"}},
            r"^data\.workers: Slurm rejected a worker job: sbatch: error: invalid partition specified"
            r": nope .*Change data\.workers\.slurm or data\.workers\.memory_bytes, then run "
            r"the command again\. Finished work is kept",
        ),
        (
            {"memory_bytes": 100_000_000_000},
            r"^data\.workers: Slurm rejected a worker job: sbatch: error: Memory specification can ",
        ),
        (
            {"slurm": {"partition": "closed"}, "wait_minutes": 0.2},
            r"had no worker for 12 s \(data\.workers\.wait_minutes = 0\.2\)\. Start workers, or check the "
            r"queue\. squeue reports for the worker jobs: \d+ PENDING \(PartitionDown\), \d+ PENDING "
            r"\(PartitionDown\)",
        ),
    ],
)
def test_why_there_is_no_worker(cluster, make_config, settings, words):
    """If no worker starts, Slurm's own reason is reported without a traceback, before the time limit."""
    with pytest.raises(DataError, match=words):
        prepare(make_config(data={"workers": {**WORKERS, **settings}}))
