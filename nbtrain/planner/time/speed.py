"""The speed of a run: its setup, the rates of its devices and links, and the measurements of its last job.

    read_speed(config) -> Speed         from the tables, this machine's calibration and the run directory

duration.py estimates the run's time from a Speed; the plan's other parts and its rules read the same one.
"""

from dataclasses import dataclass, replace

from nbtrain.base.run_directory.checkpoint_files import measured_save_seconds
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.schema import RunConfig
from nbtrain.planner.calibration.cpu_rate import matmul_flops_per_core
from nbtrain.planner.setup.measured import Measured, measured_rate
from nbtrain.planner.setup.setup import Setup, setup_of
from nbtrain.planner.time.calibrated_rates import calibrated_rates
from nbtrain.planner.time.cores import rates_of_cores
from nbtrain.planner.time.network_rates import with_network
from nbtrain.planner.time.rates import Rates, rates_of_setup


@dataclass(frozen=True)
class Speed:
    """Everything that decides how fast a run trains."""

    setup: Setup
    rates: Rates | None
    """Rates of its devices and links, with this machine's measurements where they apply; None if the device
    is not known.
    """
    table_rates: Rates | None
    """The rates without anything measured on this machine, and so equal on every machine."""
    last_job: Measured | None = None
    """Measurements of the run's last job; None if there are none for its devices."""
    save_seconds: float = 0.0
    """Seconds of the longest save that the run has measured; 0 if there was none."""


def read_speed(
    config: RunConfig,
    use_measured: bool = True,
    engine: str = "nbtrain",
    last_job: bool = True,
    setup: Setup | None = None,
) -> Speed:
    """Read what decides the speed of a run.

    Without `use_measured` nothing is read, and the answer is the same on every machine; `last_job=False`
    ignores only the run's last job. `engine` is the program that trains, a key of setup/engines.py. `setup`
    is the run's, if it has been made already.
    """
    setup = setup or setup_of(config)
    trained = replace(setup, engine=engine)
    on_cpu = config.resources.device == "cpu"
    is_known = setup.device is not None and setup.device.peak(config.precision.dtype) is not None
    rates = rates_of_cores(config, None) if on_cpu else rates_of_setup(setup) if is_known else None
    table_rates = rates and with_network(rates, config, use_measured=False)
    if not use_measured:
        return Speed(trained, table_rates, table_rates)
    measured = measured_rate(config, setup) if last_job else None
    if on_cpu and measured is None:
        rates = rates_of_cores(config, matmul_flops_per_core())
    rates = rates and with_network(calibrated_rates(rates, setup), config, use_measured=True)
    saved = measured_save_seconds(RunDir.named(config.name))
    return Speed(trained, rates, table_rates, measured, saved)
