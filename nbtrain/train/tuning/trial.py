"""A trial of DeepSpeed's autotuner: real steps of the run, until DeepSpeed has measured them and exits."""

from typing import Any, NoReturn

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load
from nbtrain.config.load.autotune import overrides_of
from nbtrain.config.schema import RunConfig
from nbtrain.parallel import startup
from nbtrain.train.build import Built, build, refuse_unsupported
from nbtrain.train.engine.batches import Batches, training_rows
from nbtrain.train.health.attempt import find_job
from nbtrain.train.health.heartbeat import HeartbeatWriter
from nbtrain.train.training_step import TrainingStep


class NoHeartbeat(HeartbeatWriter):
    """A heartbeat that counts steps and writes no file, because a trial is not a rank of the job."""

    def write(self) -> None:
        """Do nothing: no process reads the heartbeat of a trial."""


def trial_config(config: RunConfig, given: dict[str, Any]) -> RunConfig:
    """Return the run's configuration with the tuner's values and the tuner's section for DeepSpeed.

    Raises ConfigError if a rule forbids the values, or if DeepSpeed would not end the trial.
    """
    autotuning = given.get("autotuning", {})
    if autotuning.get("enabled") is not True:
        raise ConfigError(
            "--deepspeed_config: autotuning.enabled is not true, and without it DeepSpeed never ends a "
            "trial. Start trials with `deepspeed --autotuning tune`, which sets autotuning.enabled to true."
        )
    overrides = overrides_of(config, given)
    extra = overrides.get("parallel.deepspeed_extra", config.parallel.deepspeed_extra)
    overrides["parallel.deepspeed_extra"] = {**extra, "autotuning": autotuning}
    # A trial saves nothing, so it does not use checkpoints on the nodes' own disks.
    overrides["checkpoint.local_dir"] = None
    return load(config, overrides)


def run_trial(run: RunDir, config: RunConfig) -> NoReturn:
    """Train until DeepSpeed raises SystemExit. All ranks call it together."""
    refuse_unsupported(config)
    world = startup.start(config.resources.device, config.parallel.process_group_timeout_seconds)
    try:
        built = build(config, run, world, None, trains=False)
        step = TrainingStep(config, world, built, NoHeartbeat(find_job(run), world.rank, 0))
        while True:
            # A trial may have more steps than a short run, whose batches are then read again.
            with _batches(config, built, world) as batches:
                for _ in range(config.train_steps):
                    step.make(batches, logged=False)
    except SystemExit:
        # All ranks get here in the same step, because DeepSpeed ends a trial by counting steps. Only rank 0
        # writes the result.
        startup.finish()
        raise


def _batches(config: RunConfig, built: Built, world: startup.World) -> Batches:
    data, place = built.datasets, built.engine.groups.data_parallel
    rows = training_rows(
        *(built.datasets.state, config.train_steps, config.batch_schedule),
        *(config.batch.micro_batch_size, place.rank, place.size),
    )
    return Batches(data.train, rows, world.device, config.data.num_workers, data.is_masked, bool(data.names))
