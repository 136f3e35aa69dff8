"""Prepares the samples of a run from its sources, running only the steps that are missing.

    download -> extract (costly sources) -> tokenizer -> encode (.bin/.idx) -> index (of each split)

A step is skipped if the manifest of the existing data names the same inputs, never because a file exists.
Data prepared for other inputs is not replaced, because runs refer to it by hash: choose another name, or
pass force=True. Data from an interrupted `nbtrain prepare` has no manifest and is not used, but its complete
parts are reused.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from nbtrain.base.errors import DataError
from nbtrain.base.printing.progress import Say
from nbtrain.base.process.locks import locked_directory
from nbtrain.base.workspace import display, tokenizer_dir
from nbtrain.config.schema import RunConfig
from nbtrain.corpus import sentences
from nbtrain.corpus.documents import dedup
from nbtrain.corpus.documents.cleaning import Cleaner
from nbtrain.corpus.documents.corpus import Corpus
from nbtrain.corpus.documents.extract import extracted
from nbtrain.corpus.requested_settings import place_of_setting
from nbtrain.corpus.tokenizer.folder import read_manifest
from nbtrain.corpus.tokenizer.markers import markers_sentence
from nbtrain.corpus.tokenizer.prepare import is_trained, prepare_tokenizer
from nbtrain.dataset.blend import BlendFiles, OpenBlend
from nbtrain.dataset.ends import doubtful_ends
from nbtrain.dataset.files import DatasetFiles, OpenDataset
from nbtrain.dataset.of_run import dataset_of, open_dataset, refuse_own_dataset
from nbtrain.dataset.prepare.dataset import prepare_dataset
from nbtrain.dataset.prepare.inputs import check_same_inputs, gone_sources
from nbtrain.dataset.prepare.workers import ChosenWorkers
from nbtrain.dataset.views.browser import Browser
from nbtrain.dataset.views.prepare_report import EXAMPLE_TOKENS, NUM_EXAMPLES, PrepareReport, Step, split_rows

logger = logging.getLogger(__name__)

StepName = Literal["download", "extract", "tokenizer", "encode", "index"]
STEPS = get_args(StepName)


def prepare(config: RunConfig, force: bool = False, through: StepName = "index") -> PrepareReport:
    """Prepare the run's missing data (tokenizer, .bin/.idx, indices), up to and including the step `through`.

    `force` prepares everything again, even with other settings. A tokenizer is kept only if the user supplied
    it, or if other datasets are encoded with it. Runs that refer to the old dataset by its hash will then
    refuse to resume.

    Raises DataError for an unreadable source, an empty corpus, data prepared with other settings, or damaged
    files.
    """
    refuse_own_dataset(config)
    report = PrepareReport(config.name)
    dataset = dataset_of(config)
    wanted = STEPS[: STEPS.index(through) + 1]
    try:
        with locked_directory(dataset.directory):
            dataset.remove_leftovers()
            opened = None
            if isinstance(dataset, BlendFiles):
                named = [f"{entry.name or entry.prefix} {entry.weight:g}" for entry in config.data.blend]
                with _step(report, "encode") as say:
                    dataset.check_tokenizer(config, dataset.manifest())
                    say("used", f"a blend of existing datasets: {', '.join(named)}")
                _report_ends(config, dataset)
            else:
                with ChosenWorkers(config) as workers:
                    opened = _prepare_text(config, dataset, report, workers, force, wanted)
            if "index" in wanted:
                with _step(report, "index") as say:
                    report.splits = _prepare_indices(config, opened or open_dataset(config), say)
    except OSError as error:
        raise DataError(
            f"{display(Path(error.filename or dataset.directory))}: {error.strerror or error}. Free up "
            "space, or set NBTRAIN_DATA to a writable folder. Finished work is kept: run the command again."
        ) from error
    finally:
        # If nothing was written, remove the empty folder, because it would look like a dataset.
        with contextlib.suppress(OSError):
            dataset.directory.rmdir()
    return report


def _prepare_text(
    config: RunConfig,
    dataset: DatasetFiles,
    report: PrepareReport,
    workers: ChosenWorkers,
    force: bool,
    wanted: tuple[str, ...],
) -> OpenDataset | None:
    """Run the steps from download to encode. Return the dataset, or None if encode is not to be run."""
    data = config.data
    manifest = dataset.manifest()
    is_needed = bool(data.sources) and (force or manifest is None or not is_trained(config))
    if is_needed and "encode" in wanted:
        _check_packages(config)
    # A finished dataset no longer needs its sources, which may have been removed to free the disk.
    gone = () if is_needed else gone_sources(config)
    corpus = Corpus.open(
        data.sources, place_of_setting(config, "data.sources"), tuple(data.extra_json_keys), gone
    )
    for name, work in (("download", _download), ("extract", partial(_extract, workers))):
        concerned = any(getattr(reader, f"is_{name}ed") for reader in corpus.readers)
        if name not in wanted or not (concerned or name == wanted[-1]):
            continue
        with _step(report, name) as say:
            if not concerned:
                say("kept", f"no source of this run has to be {name}ed")
            elif is_needed:
                corpus = work(corpus, force, say)
            else:
                if name == "extract" == wanted[-1] and manifest is not None:
                    # The encode step, which rejects other settings, will not run, so they are checked here.
                    check_same_inputs(config, dataset, manifest, corpus)
                say("kept", "the tokenizer and the dataset exist, so no source has to be read")
    if "tokenizer" in wanted:
        with _step(report, "tokenizer") as say:
            loaded = prepare_tokenizer(config, corpus, force, say)
        if is_needed and (found := markers_sentence(config)) is not None:
            logger.warning("%s: %s %s", place_of_setting(config, "data.sources"), *found)
    if "encode" not in wanted:
        return None
    with _step(report, "encode") as say:
        opened = prepare_dataset(config, dataset, manifest, corpus, loaded, workers, force, say)
    report.dataset, report.manifest = dataset.directory, opened.manifest
    if opened.loss_mask is not None:
        if config.data.packing is None and config.data.resolved_packing == "stream":
            logger.info(
                "data.packing is not set, so it is stream: the examples are concatenated and cut into "
                "samples, and a cut may fall inside an example. To keep each example complete and separate "
                "from the others, set data.packing=best_fit."
            )
        examples = Browser(config, loaded=loaded).spread(NUM_EXAMPLES, EXAMPLE_TOKENS)
        report.examples = [example.to_dict() for example in examples[:NUM_EXAMPLES]]
    return opened


def _report_ends(config: RunConfig, blend: BlendFiles) -> None:
    """Warn about a blend's pairs without a manifest whose documents do not end in the blend's EOD token."""
    manifest, tokenizer = blend.manifest(), read_manifest(tokenizer_dir(config.tokenizer.name))
    eod_id = manifest.eod_id if manifest else None
    if eod_id is None and tokenizer is not None:
        eod_id = tokenizer["eod_id"]
    for entry in blend.entries:
        brought = not entry.is_named and entry.files.idx.is_file() and entry.files.own_manifest() is None
        if brought and (doubt := doubtful_ends(entry.open(None).indexed, eod_id)):
            logger.warning("%s", doubt)


def _check_packages(config: RunConfig) -> None:
    """Raise DataError if encoding lacks a package, before hours of extraction and tokenizer training."""
    data = config.data
    Cleaner(data.cleaning)
    if data.cleaning.near_dedup.enabled:
        dedup.rensa_version()
    if data.split_sentences:
        sentences.check_dependencies()


@contextlib.contextmanager
def _step(report: PrepareReport, name: str) -> Iterator[Say]:
    """Time one step and add it to the report. The `with` block must call say(action, reason) once."""
    begun = time.perf_counter()
    said: list[str] = []
    yield lambda action, reason: said.extend((action, reason))
    action, reason = said
    report.steps.append(Step(name, action, reason, time.perf_counter() - begun))
    logger.info("%s: %s: %s", name, action, reason)


def _download(corpus: Corpus, force: bool, say: Say) -> Corpus:
    notes = [reader.download() for reader in corpus.readers if reader.is_downloaded]
    made = [note for note in notes if note]
    say("made" if made else "kept", "; ".join(made) or "everything is already on this disk")
    return corpus


def _extract(workers: ChosenWorkers, corpus: Corpus, force: bool, say: Say) -> Corpus:
    readers, actions, reasons = [], [], []
    for reader in corpus.readers:
        if reader.is_extracted:
            reader, action, why = extracted(reader, partial(workers.choose, is_slow=True), force)
            actions.append(action)
            reasons.append(why)
        readers.append(reader)
    say("made" if "made" in actions else "kept", "; ".join(reasons))
    return Corpus(readers, corpus.where)


def _prepare_indices(config: RunConfig, opened: OpenDataset | OpenBlend, say: Say) -> list[dict[str, Any]]:
    # Imported here: encoding tokens does not need it.
    from nbtrain.dataset.samples.build import build_datasets, refuse_without_loss

    index_cache = opened.files.index_cache
    before = set(index_cache.glob("*.json"))
    datasets = build_datasets(config, opened=opened)
    refuse_without_loss(config, datasets)
    made = len(set(index_cache.glob("*.json")) - before)
    if made:
        verb = "was" if made == 1 else "were"
        say("made", f"{made} of the indices of train, valid and test {verb} missing from index-cache/")
    else:
        say("kept", "index-cache/ has the indices for this dataset, split, seed and training length")
    return split_rows(datasets)
