"""A launch: everything that a run's next job depends on, including the machine that starts it, read once.

    read_launch(config) -> Launch       weights, data, this machine, and the memory and disk the run needs

jobs/checks/preflight.py checks a Launch, planner/plan.py plans it, and jobs/submission/job_files.py writes it
to the run directory. This module checks and writes nothing.
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
    """A run that is about to start, with everything that its next job depends on."""

    config: RunConfig
    """The configuration, in which with_new_tokens() has filled in the token rows that adapters train."""
    weights: InitialWeights
    """The weights of init_from, if the next job reads them."""
    data: RunData
    """The run's tokenizer and dataset, opened."""
    machine: Machine
    """The submitting machine, with the GPUs and cores that the run may use there.

    With backend `local`, this machine also trains.
    """
    needs: Needs
    """Memory and disk space that the run needs."""
    code: CodeFile | None = None
    """The Python file that `code` names; None if the run has no `code`."""
    code_tried: str = ""
    """PASSED, or why the file that `code` names was not tried (own_code.py); "" before the trial."""


def read_launch(config: RunConfig, weights: InitialWeights | None = None) -> Launch:
    """Read everything that a run's next job depends on.

    `weights` come from a Request, whose configuration already contains the token rows that adapters train.
    Without `weights`, the weights are read, and these token rows are filled in.
    """
    if weights is None:
        weights = read_initial_weights(config)
        config = with_new_tokens(config, weights)
    data = read_run_data(config)
    needs = needs_of(config, data.dataset)
    return Launch(config, weights, data, machine_of_run(config), needs, code_file(config))
