"""A launch: everything that the next job of a run reads, and the machine that starts it, read once.

    read_launch(config) -> Launch       weights, data, this machine, and what the run needs of it

jobs/checks/preflight.py checks a Launch, planner/plan.py plans it, and jobs/submission/job_files.py writes it
into the run directory.
Nothing is checked here, and nothing written.
"""

from dataclasses import dataclass

from nbtrain.config.code_file import CodeFile, code_file
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.of_run import RunData, read_run_data
from nbtrain.jobs.machine.device_needs import machine_of_run
from nbtrain.jobs.machine.machine import Machine
from nbtrain.jobs.request.initial_weights import InitialWeights, read_initial_weights, with_new_tokens
from nbtrain.planner.plan import Needs, needs_of


@dataclass(frozen=True)
class Launch:
    """A run that is to start, with everything that its next job depends on."""

    config: RunConfig
    """The configuration, with the token rows filled in that adapters train (with_new_tokens)."""
    weights: InitialWeights
    """The weights of init_from, if the next job reads them."""
    data: RunData
    """The run's tokenizer and dataset, opened."""
    machine: Machine
    """The machine that submits, with the GPUs and cores that the run may get on it; with backend `local`, the
    one that trains.
    """
    needs: Needs
    """Memory and disk that the run needs."""
    code: CodeFile | None = None
    """The Python file that `code` names."""
    code_tried: str = ""
    """The result of its trial (own_code.py); "" before the trial."""


def read_launch(config: RunConfig, weights: InitialWeights | None = None) -> Launch:
    """Read what the next job depends on. `weights` come from a Request, whose configuration is complete;
    without them they are read, and the token rows that adapters train are filled in.
    """
    if weights is None:
        weights = read_initial_weights(config)
        config = with_new_tokens(config, weights)
    data = read_run_data(config)
    needs = needs_of(config, data.dataset)
    return Launch(config, weights, data, machine_of_run(config), needs, code_file(config))
