"""The functions of `import nbtrain as nb`, each a few lines that call other modules.

config = nb.load("gpt-tiny")
nb.prepare(config)
nb.plan(config)
run = nb.submit(config)      # a Run: a cell shows it as the live panel
run.wait()
nb.generate(run, "def ")
"""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from nbtrain.api.arguments import misused, number, text
from nbtrain.api.check import check as check
from nbtrain.api.compare import compare as compare
from nbtrain.api.evaluate import evaluate as evaluate
from nbtrain.api.generate import generate as generate
from nbtrain.api.layouts import largest as largest
from nbtrain.api.layouts import search as search
from nbtrain.api.layouts import what_if as what_if
from nbtrain.api.models import export as export
from nbtrain.api.models import export_run as export_run
from nbtrain.api.models import import_model as import_model
from nbtrain.api.not_launched import NotLaunched, not_launched
from nbtrain.api.run import Run, RunLike, open_run
from nbtrain.api.serve import serve as serve
from nbtrain.api.sweep import sweep as sweep
from nbtrain.api.twin_run import TwinRun
from nbtrain.base.errors import ConfigError, JobError, SubmitError
from nbtrain.base.printing.notebook import is_watched
from nbtrain.base.run_directory import jobstate
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import resolve
from nbtrain.config.code_file import defines
from nbtrain.config.load import Overrides
from nbtrain.config.load import load as load_config
from nbtrain.config.load.placeholders import placeholders_of, with_placeholders
from nbtrain.config.schema import RunConfig
from nbtrain.lab.parameters import check_parameters as check_parameters
from nbtrain.lab.parameters import with_source

if TYPE_CHECKING:
    from nbtrain.dataset.prepare.prepare import PrepareReport
    from nbtrain.dataset.views.baselines import Baselines, NoBaselines
    from nbtrain.dataset.views.card import BlendCard, DataCard
    from nbtrain.dataset.views.inspect import Inspection
    from nbtrain.foreign.importing import Imported
    from nbtrain.jobs.calibration.calibrate import Calibrated
    from nbtrain.jobs.calibration.calibrate_network import CalibratedNetwork
    from nbtrain.jobs.new_run import NewRun
    from nbtrain.jobs.queue.listing import QueueList
    from nbtrain.lab.widgets.launcher import LaunchForm
    from nbtrain.lab.widgets.tensorboard import TensorBoardPanel
    from nbtrain.monitor.run.pictures import ScalarsTable
    from nbtrain.monitor.run.run_view import RunView
    from nbtrain.monitor.status.run_status import RunStatus
    from nbtrain.planner.advice.advice import Advice
    from nbtrain.planner.plan import Plan
    from nbtrain.proof.reproduce import Reproduction


logger = logging.getLogger(__name__)


def load(
    run: RunLike,
    overrides: Overrides = None,
    source: str = "",
    dataset: str = "",
    placeholders: bool = False,
) -> RunConfig:
    """Load and check the configuration of a run: a YAML's path, the name of an example, or a Run.

    `source` replaces the run's text, e.g. "{kind: jsonl, path: books.jsonl.gz}"; `dataset` then names the new
    dataset and its tokenizer. With `placeholders`, an image, a volume or machines that the backend needs and
    the run does not name are filled in as REPLACE-ME. Such a run can be planned and shown, but not started.
    Raises ConfigError.
    """
    changes = with_source(overrides, source, dataset) if source or dataset else overrides
    config = load_config(run.config if isinstance(run, Run) else run, changes, check=not placeholders)
    return with_placeholders(config) if placeholders else config


def new(
    name: str,
    *texts: str | Path,
    size: str | None = None,
    gpus: int | None = None,
    gpu_type: str | None = None,
    gpus_per_node: int | None = None,
    minutes: float | None = None,
    init_from: str | None = None,
    path: str | Path | None = None,
    overwrite: bool = False,
) -> "NewRun":
    """Write a run YAML, NAME.yaml, for some text. The result prints, or shows in a cell, what was chosen.

    `texts` are files, folders and patterns: .txt, .md, .jsonl, .json, .parquet, also compressed, and Hugging
    Face dataset folders. Vocabulary, size and number of steps are chosen for this machine, or for `gpus`
    of `gpu_type`; `minutes` limits the training time, by default to 4 on CPUs. Conversations and instructions
    make it a fine-tuning run that starts from the run `init_from`. Raises DataError for text that cannot be
    read or is too short.
    """
    from nbtrain.jobs.new_run import write_new_run

    options = {"size": size, "gpus": gpus, "gpu_type": gpu_type, "gpus_per_node": gpus_per_node}
    return write_new_run(name, texts, path, overwrite, minutes=minutes, init_from=init_from, **options)


def prepare(run: RunLike, overrides: Overrides = None, force: bool = False) -> "PrepareReport":
    """Make a run's tokenizer, .bin/.idx and sample indices, if missing or outdated, and report why."""
    from nbtrain.dataset.prepare.prepare import prepare as prepare_data

    return prepare_data(load(run, overrides), force=force)


def plan(run: RunLike, overrides: Overrides = None) -> "Plan":
    """Plan a run before it starts: parameters, tokens, memory by part, time and disk."""
    from nbtrain.jobs.request.initial_weights import with_new_tokens
    from nbtrain.planner.plan import plan as make_plan

    return make_plan(with_new_tokens(load(run, overrides)))


def import_run(
    *files: str | Path, overrides: Overrides = None, onto: str | None = None, program: str = ""
) -> "Imported":
    """Build a run from other programs' files: DeepSpeedJob, Kubeflow manifest, shell script, DeepSpeed JSON.

    A cell shows the run YAML. `.config` is the run, `.notes` lists what was omitted and why, and
    `.write(path)` writes the file. `overrides` add what the files lack, `onto` names the base run for a
    DeepSpeed JSON, and `program` names the version of the flags ("megatron-lm@040eac94").
    """
    from nbtrain.foreign.importing import import_files

    return import_files(files, overrides, onto, program)


def advise(run: RunLike) -> "Advice":
    """Suggest changes to a run, ranked by predicted effect, from the measurements of its newest job.

    A cell shows a table; `.use(1, "new.yaml")` writes the changed run and returns the diff.
    """
    from nbtrain.jobs.observe import observe
    from nbtrain.planner.advice.advice import advise as advise_on

    opened = open_run(run)
    return advise_on(opened.config, observe(opened.directory))


def calibrate(
    seconds: float | None = None, network: RunLike | None = None, overrides: Overrides = None
) -> "Calibrated | CalibratedNetwork":
    """Measure this machine's device, memory, disk and collectives in at most `seconds`, for later plans.

    With `network`, a run on several machines, measure all-reduce and all-gather between its machines instead,
    in a job on the run's backend. A cell shows the result as a table; `.picture()` draws it. The default is
    180 seconds, and 60 with `network`.
    """
    if network is not None:
        from nbtrain.jobs.calibration.calibrate_network import DEFAULT_SECONDS as USUAL
        from nbtrain.jobs.calibration.calibrate_network import calibrate_network

        return calibrate_network(
            load(network, overrides), number("seconds", USUAL if seconds is None else seconds)
        )
    if overrides:
        raise ConfigError("overrides change a run: name that run with network=, or omit overrides.")
    from nbtrain.jobs.calibration.calibrate import DEFAULT_SECONDS
    from nbtrain.jobs.calibration.calibrate import calibrate as measure

    return measure(number("seconds", DEFAULT_SECONDS if seconds is None else seconds))


def twin(run: RunLike, overrides: Overrides = None, submitted: bool = False) -> TwinRun:
    """Train a small run of the same layout on this machine's CPU: data, steps, checkpoint, resume, export.

    With `submitted`, the twin's first run is submitted as a job, with its checks and its supervisor. A failed
    check raises no error here: the TwinRun reports it, and its wait_if() raises JobFailed.
    """
    from nbtrain.proof.prove import run_twin

    return TwinRun(run_twin(load(run, overrides), submitted))


def reproduce(
    run: RunLike, steps: tuple[int, int] | None = None, overrides: Overrides = None
) -> "Reproduction":
    """Train some steps of a run again, here or on another machine, and compare them bit for bit.

    See Run.reproduce. A cell shows the verdict, what differs, and the losses.
    """
    return open_run(run).reproduce(steps, overrides)


@overload
def submit(
    run: RunLike,
    overrides: Overrides = ...,
    finished: str = ...,
    *,
    prepared: bool = ...,
    try_code: bool = ...,
) -> Run: ...


@overload
def submit(run: RunLike, overrides: Overrides = ..., *, dry_run: str | Path) -> Path: ...


@overload
def submit(
    run: RunLike,
    overrides: Overrides = ...,
    finished: str = ...,
    too_small: str = ...,
    prepared: bool = ...,
    *,
    try_code: bool = ...,
) -> Run | NotLaunched: ...


def submit(
    run: RunLike,
    overrides: Overrides = None,
    finished: str = "refuse",
    too_small: str = "refuse",
    prepared: bool = True,
    dry_run: str | Path | None = None,
    try_code: bool = True,
) -> Run | NotLaunched | Path:
    """Start a run as a detached job, join it if it is active, or resume it if it ended early.

    A run that was trained to its end is refused with SubmitError. With finished="open", this run is opened
    instead, provided that `run` has the settings of one of its jobs, so that a notebook can be run twice.

    If the machine is too small, SubmitError is raised; with too_small="explain", a NotLaunched is returned
    instead, unless something else is also wrong. Missing data is refused; with prepared=False, it is prepared
    first. If torch is installed here, the run's own Python file (`code`) is first tried with one step of a
    two-layer model, unless try_code=False.

    With `dry_run`, nothing is submitted: Slurm's batch script, the Kubernetes manifest or the commands for
    hosts are written to this file.
    """
    from nbtrain.jobs.checks.existing_run import is_not_finished, refuse_submission, was_trained_with
    from nbtrain.jobs.queue.after_boot import start_after_boot
    from nbtrain.jobs.request.request import read_request, read_run
    from nbtrain.jobs.submission.submit import refuse_hopeless
    from nbtrain.jobs.submission.submit import submit as submit_job

    if finished not in ("refuse", "open"):
        raise SubmitError(f'finished = {finished!r} must be "refuse" or "open".')
    if too_small not in ("refuse", "explain"):
        raise SubmitError(f'too_small = {too_small!r} must be "refuse" or "explain".')
    config = load(run, overrides)
    if dry_run is not None:
        from nbtrain.jobs.submission.dry_run import dry_run as write_request

        return write_request(config, dry_run)
    start_after_boot(say=print)
    directory = RunDir.named(config.name)
    if directory.exists() and directory.newest_job():
        existing = Run(directory)
        is_opened = finished == "open" and existing.state == jobstate.SUCCEEDED
        # If the job only evaluated an earlier step, mode: full continues training.
        if is_opened and (config.mode != "full" or read_run(directory).finished_config is not None):
            if was_trained_with(directory, config):
                return _noted(existing)
            refuse_submission(read_request(config), is_not_finished)
        if existing.state in jobstate.ACTIVE:
            # An active job has already passed these checks, and uses the memory that they would look for.
            return _noted(Run(submit_job(config).run))
    try:
        if not prepared and not defines(config, "dataset"):
            refuse_hopeless(config)
            prepare(config)
        return _noted(Run(submit_job(config, tries_code=try_code).run))
    except SubmitError as error:
        lacking = {finding.lacks for finding in error.findings if finding.lacks != "data"}
        if too_small == "explain" and lacking == {"resource"}:
            return not_launched(config, [str(finding) for finding in error.findings])
        raise


def _noted(run: Run) -> Run:
    """Store a record of the run in the outputs of the notebook, if one made this call. Return the run."""
    from nbtrain.lab.widgets.record import note_record

    note_record(run.directory)
    return run


def launch(run: RunLike, mode: str = "full", dry_run: bool = False) -> Run | NotLaunched | TwinRun:
    """Submit the run (mode "full") or train its twin ("twin"), as notebooks 03 and 06 do.

    An active run is joined, and a finished run is opened. If this machine is too small or cannot reach the
    backend's scheduler, the result is a NotLaunched with the reason and the text that the scheduler would
    receive. With `dry_run`, or if the run has placeholders (see nb.load), nothing is submitted, and the
    result is a NotLaunched too. `dry_run` with mode "twin" raises ConfigError, because a twin trains here.
    """
    if mode not in ("full", "twin"):
        raise ConfigError(
            f'mode = {mode!r} must be "full" or "twin". The setting `mode` of a run (perf, eval) is changed '
            'by an override: {"mode": "perf"}.'
        )
    if mode == "twin" and dry_run:
        raise ConfigError(
            'mode = "twin" trains on this machine, dry_run = True submits nothing: set dry_run = False, or '
            'mode = "full".'
        )
    if mode == "twin":
        return twin(run, submitted=True)
    from nbtrain.jobs.checks.preflight import preflight
    from nbtrain.jobs.request.launch import read_launch

    config = load(run)
    if dry_run or placeholders_of(config):
        # Only checks of this machine: no scheduler is queried.
        here = preflight(read_launch(config)) if config.backend.kind == "local" else []
        return not_launched(config, [str(problem) for problem in here if problem.lacks == "resource"])
    return submit(run, finished="open", too_small="explain", prepared=False)


def runs(
    name: str = "",
    state: str | Sequence[str] = (),
    newer_than: str | float | None = None,
    older_than: str | float | None = None,
    sort: str = "submitted",
    reverse: bool = False,
    limit: int | None = None,
    label: str | Mapping[str, str] | Sequence[str] = (),
    archived: bool = False,
) -> "list[RunStatus]":
    """List the runs in the output directory, newest first; in a cell, the table stays live.

    `name` is a part of the name or a pattern (gpt-*); `state` is e.g. "failed", "active" or a list; ages are
    "12h", "2d" or seconds since the submission; `sort` is submitted, ended, name, state, step, loss,
    validation or restarts; `label` is {"team": "nlp"} or rules: "team=nlp,stage!=trial"; `archived` includes
    archived runs.
    """
    from nbtrain.api.shown_runs import shown_runs
    from nbtrain.monitor.runs.run_filter import run_filter

    wanted = run_filter(name, state, newer_than, older_than, sort, reverse, limit, label, archived)
    return shown_runs(wanted)


def queue(name: str = "", restart: bool = False) -> "QueueList":
    """List jobs that hold or wait for this machine's devices, in order, filtered by a part of the name.

    With `restart`, jobs whose supervisor was killed or lost in a reboot are first started again.
    `run.queue(priority=...)` changes a run's position in the queue.
    """
    from nbtrain.jobs.machine.queue_folder import Queue
    from nbtrain.jobs.queue.listing import list_queue

    if restart:
        from nbtrain.jobs.queue.restart import restart as start_again

        start_again(Queue(), everything=True, say=print)
    return list_queue(name=text("name", name))


def launcher(run: str | None = None, overrides: Overrides = None, mode: str = "full") -> "LaunchForm":
    """Open the launch form: pick a YAML, edit it, see checks and plan, submit. `overrides` are applied first.

    The next cell can use the edited settings: `form.config`, and `form.mode` for launch.
    """
    from nbtrain.lab.widgets.launcher import LaunchForm

    return LaunchForm(run or "gpt-tiny", overrides, mode)


def tensorboard(run: RunLike | None = None) -> "TensorBoardPanel":
    """Show the live TensorBoard panel of a run, or of every run in the output directory."""
    from nbtrain.lab.widgets.tensorboard import TensorBoardPanel

    return TensorBoardPanel(open_run(run).view if run is not None else None)


def data_card(data: "str | RunConfig | Run", tokenizer: str | None = None) -> "DataCard | BlendCard":
    """Return the data card of a dataset, given by its run, its name or the prefix of any .bin/.idx pair.

    In a live notebook you can browse its documents. `tokenizer` is the name or path of the tokenizer that
    decodes them; None uses the tokenizer of the dataset's manifest.
    """
    from nbtrain.dataset.views.card import data_card as make_card

    target = _data_of(data)
    if tokenizer is not None and not isinstance(tokenizer, str | os.PathLike):
        raise misused("tokenizer", tokenizer, "the name or path of a tokenizer, or None")
    card = make_card(target, tokenizer)
    if not is_watched():
        return card
    from nbtrain.lab.widgets.data_browser import live

    return live(card)


def verify(data: "str | RunConfig | Run") -> "Inspection":
    """Check every byte of a dataset, named as for data_card. Raises DataError at the first error."""
    from nbtrain.dataset.views.inspect import verify as verify_data

    return verify_data(_data_of(data))


def _data_of(data: "str | RunConfig | Run") -> "str | os.PathLike[str] | RunConfig":
    if isinstance(data, Run):
        return data.config
    if not isinstance(data, str | os.PathLike | RunConfig):
        expected = "a Run, a RunConfig, the name of a run or a dataset, or the prefix of a .bin/.idx"
        raise misused("data", data, expected)
    if isinstance(data, RunConfig):
        return data
    from nbtrain.dataset.of_run import data_named

    return data_named(os.fspath(data))


def baselines(run: RunLike, too_small: str = "refuse") -> "Baselines | NoBaselines":
    """Return the losses that a run's model should beat: unigram and bigram counts on its validation tokens.

    Raises DataError for data that is not prepared, too short or a blend. With too_small="explain", the result
    for short data and blends is a NoBaselines with the reason instead.
    """
    from nbtrain.dataset.views.baselines import baselines as of_config

    return of_config(load(run), too_small)


def curves(source: "RunLike") -> Any:
    """Plot loss, perplexity, learning rate and throughput of a run or a folder of event files."""
    from nbtrain.monitor.run.pictures import training_curves

    return training_curves(_events_of(source))


def plan_picture(run: "RunLike | Plan") -> Any:
    """Plot a plan, or the plan of a run: memory by part, batch size and learning rate."""
    from nbtrain.planner.picture import plan_picture as draw
    from nbtrain.planner.plan import Plan

    return draw(run if isinstance(run, Plan) else plan(run))


def deepspeed_config(run: "RunLike") -> dict[str, Any]:
    """Return the DeepSpeed configuration of a run, which is derived from the run YAML."""
    from nbtrain.config.deepspeed.ds_config import deepspeed_config as derive

    return derive(load(run))


def scalars(source: "RunLike") -> "ScalarsTable":
    """Return the newest value of every scalar of a run, or of any folder of event files."""
    from nbtrain.monitor.run.pictures import scalars_table

    return scalars_table(_events_of(source))


def _events_of(source: RunLike) -> "RunView | str":
    try:
        return open_run(source).view
    except JobError:
        if isinstance(source, str | Path) and (folder := resolve(source)).is_dir():
            return str(folder)
        raise
