"""`nbtrain calibrate --network RUN`: measure the network between a run's machines, through the run's backend.

A job on the run's backend (hosts, slurm or kubernetes) runs nbtrain.train.calibration.network instead of the
trainer, on as many ranks as the run has. It needs no data, and its run directory is output/<run>-network/.
The result is stored for these machines (planner/calibration/measured_network.py), and plans of runs on them
use it.
"""

import datetime
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, JobError
from nbtrain.base.printing.report import Report, Result, Sentence
from nbtrain.base.run_directory.jobstate import SUCCEEDED
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.workspace import display, suffixed_name
from nbtrain.config.arithmetic.networks import gigabits
from nbtrain.config.load import load, load_resolved
from nbtrain.config.load.derived import without_inherited
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.control.control import cancel, wait
from nbtrain.jobs.submission.submit import submit
from nbtrain.planner.calibration.measured_network import (
    MeasuredNetwork,
    network_path,
    place_of,
    write_network,
)
from nbtrain.planner.calibration_view import network_blocks, network_picture
from nbtrain.planner.setup.setup import network_of

logger = logging.getLogger(__name__)

LEAST_SECONDS, MOST_SECONDS, DEFAULT_SECONDS = 10.0, 3600.0, 60.0


@dataclass(frozen=True, repr=False)
class CalibratedNetwork(Result):
    """Result of a calibration between machines, shown as a table when printed or in a notebook cell."""

    network: MeasuredNetwork
    path: Path
    named_bytes_per_second: float | None
    """Bandwidth in the run's configuration; None if the configuration sets no bandwidth.

    The run's plans use this bandwidth instead of the measured bandwidth.
    """

    def as_report(self) -> Report:
        """Return the measured network, and the path to which the measurement was written."""
        where = f"Written to {display(self.path)}; plans of runs on these machines use it."
        if self.named_bytes_per_second is not None:
            where = (
                f"Written to {display(self.path)}. This run sets a network bandwidth of "
                f"{gigabits(self.named_bytes_per_second)}, which its plans keep using. To plan with the "
                "measurement, set resources.network and resources.network_bytes_per_second to null."
            )
        return Report(f"Network of {self.network.place}", [*network_blocks(self.network), Sentence(where)])

    def to_dict(self) -> dict[str, Any]:
        network = self.network
        return {
            "place": network.place,
            "date": network.date,
            "nodes": network.nodes,
            "ranks": network.ranks,
            "bytes_per_second": network.bytes_per_second,
            "latency_seconds": network.latency_seconds,
            "figures": network.figures,
        }

    def picture(self) -> Any:
        """Return a Matplotlib figure of the bus bandwidth of each measured collective by message size."""
        return network_picture(self.network)


def calibrate_network(config: RunConfig, seconds: float = DEFAULT_SECONDS) -> CalibratedNetwork:
    """Measure the network between a run's machines in about `seconds`, and store the result for plans.

    Raises ConfigError if the run uses one machine or `seconds` is out of bounds, SubmitError if the job
    cannot start, and JobError if the job fails or its result cannot be stored.
    """
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise ConfigError(f"seconds = {seconds:g} must be from {LEAST_SECONDS:g} to {MOST_SECONDS:g}.")
    if config.backend.kind == "local" or config.resources.nodes == 1:
        raise ConfigError(
            f"{config.name} has no network between machines: backend.kind = {config.backend.kind}, "
            f"resources.nodes = {config.resources.nodes}. Choose a run with at least 2 nodes on hosts, slurm "
            "or kubernetes. To measure this machine, run `nbtrain calibrate`."
        )
    _refuse_unwritable(network_path())
    command = ("-m", "nbtrain.train.calibration.network", "--seconds", f"{seconds:g}")
    job = submit(network_run(config), command=command, reads_data=False)
    # submit() may have returned an earlier measurement that is still active, perhaps on other machines.
    place = place_of(load_resolved(job.run.config_yaml))
    try:
        state, cause = wait(job, on_change=lambda state, cause: logger.info("%s: %s", job.run.name, state))
    except KeyboardInterrupt:
        cancel(job)
        raise
    record = _record(job) if state == SUCCEEDED else None
    if record is None:
        why = f"{state}: {cause}" if cause else state
        raise JobError(
            f"{job.run.name}: nothing was measured, because the job is {why}. To see the "
            f"ranks' output, run `nbtrain logs {job.run.name}`."
        )
    today = datetime.date.today().isoformat()
    network = MeasuredNetwork(place, today, record["nodes"], record["ranks"], record["figures"])
    return CalibratedNetwork(network, write_network(network), network_of(config.resources)[0])


def network_run(config: RunConfig) -> RunConfig:
    """Return the run that measures, with the same machines, ranks and backend, but no data or checkpoints."""
    return load(
        without_inherited(config),
        {
            "name": suffixed_name(config.name, "network"),
            "mode": "perf",
            "init_from": None,
            "lora": None,
            "dpo": None,
            "data.sources": [{"kind": "mock"}],
            "data.blend": [],
            "evaluation.tasks": [],
            "backend.max_restarts": 0,
            "backend.elastic": False,
            # These settings avoid policies that need checkpoints.
            "stability.on_nan": "stop",
            "stability.on_loss_spike": "ignore",
        },
    )


def _refuse_unwritable(path: Path) -> None:
    """Raise JobError if the result cannot be written to `path`; called before a job is started."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise JobError(
            f"{display(path)} cannot be written: {error.strerror}. Nothing was started. Make the data "
            "directory writable, or set NBTRAIN_DATA to another folder."
        ) from error


def _record(job: JobDir) -> dict[str, Any] | None:
    return files.read_json(job.network_json)
