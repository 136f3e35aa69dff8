"""The function nb.sweep: plans, trains and shows a sweep."""

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from nbtrain.api.arguments import existing_path, misused
from nbtrain.base.errors import ConfigError
from nbtrain.base.printing.progress import Progress

if TYPE_CHECKING:
    from nbtrain.jobs.sweep.drive import Turn
    from nbtrain.jobs.sweep.results import SweepResults
    from nbtrain.jobs.sweep.sweep_file import SweepRun
    from nbtrain.jobs.sweep.sweep_plan import SweepPlan


def sweep(
    file: str | PathLike[str] | Mapping[str, Any],
    *,
    dry_run: bool = False,
    at_once: int | None = None,
    again: bool = False,
) -> "SweepPlan | SweepResults":
    """Train every run of a sweep to its end, and return the results: table, best setting, curves.

    `file` is a sweep's YAML (docs/sweeps.md), or its contents as a mapping. Calling nb.sweep again continues
    the sweep: runs that have ended are kept, and lost runs are resumed. `dry_run` returns the plan of all
    runs instead and starts nothing. `at_once` is the maximum number of active runs and overrides the value in
    the file. `again` resumes every failed or cancelled run once, and every run that was only evaluated and
    has steps left. Raises ConfigError for mistakes in the file and for limits that the plan exceeds.
    """
    from nbtrain.jobs.sweep.drive import drive
    from nbtrain.jobs.sweep.results import sweep_results, write_page
    from nbtrain.jobs.sweep.sweep_file import read_sweep, write_sweep
    from nbtrain.jobs.sweep.sweep_plan import plan_sweep

    if not isinstance(file, str | PathLike | Mapping):
        raise misused("file", file, 'the path of a sweep\'s YAML, e.g. "sweep.yaml", or its contents')
    if at_once is not None and (isinstance(at_once, bool) or not isinstance(at_once, int) or at_once < 1):
        raise misused("at_once", at_once, "a whole number of at least 1")
    path = write_sweep(file) if isinstance(file, Mapping) else existing_path(file)
    if not path.is_file():
        raise ConfigError(
            f"{file}: there is no such file. A sweep is a YAML file; docs/sweeps.md shows an example."
        )
    read = read_sweep(path)
    planned = plan_sweep(read, at_once)
    if dry_run:
        return planned
    planned.refuse()
    with Progress(f"sweep {read.name}", len(read.runs), "runs") as progress:

        def turn_done(turn: "Turn") -> None:
            progress.update(turn.ended - progress.done, now=turn.words)

        drive(read, at_once=at_once, again=again, say=progress.say, prepare=_prepare, turn_done=turn_done)
    results = sweep_results(read.name)
    write_page(results)
    return results


def sweep_status(name: str) -> "SweepResults":
    """Return the results so far of a sweep, given its name or its file.

    Raises JobError if the sweep was not started.
    """
    from nbtrain.jobs.sweep.results import sweep_results
    from nbtrain.jobs.sweep.sweep_file import name_in

    path = existing_path(name)
    return sweep_results(name_in(path) if path.is_file() else name)


def _prepare(run: "SweepRun") -> None:
    """Prepare the data of a sweep's run; runs with equal data settings share the result.

    Raises SubmitError if the run could not start even with its data.
    """
    from nbtrain.config.code_file import defines
    from nbtrain.dataset.prepare.prepare import prepare
    from nbtrain.jobs.submission.submit import refuse_hopeless

    refuse_hopeless(run.config)
    if not defines(run.config, "dataset"):
        prepare(run.config)
