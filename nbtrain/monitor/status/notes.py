"""A user's additions to a submitted run in notes.json: labels, notes, and whether it is archived.

    change_notes(RunDir, labels={"team": "nlp", "stage": None}, notes="…", archived=True)  ->  RunNotes

The file belongs to the user's verbs (`nbtrain label`, `notes`, `archive`, REST); no job reads it.
A run has the labels that its newest job was submitted with, and over them the changes made since then.
"""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nbtrain.base.errors import ConfigError, JobError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.process.locks import flock_folder
from nbtrain.base.run_directory.records import JobRecord, Record
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import display, the_workspace

# A page of text: a list of runs reads it with each line.
MOST_NOTES_CHARS = 10_000


@dataclass
class Relabelled(Record):
    """A label that the user changed after submission."""

    value: str | None
    """New value; None if the label was removed."""
    submitted: str | None
    """Value that the newest job had at the time. If a later job is submitted with another value, that value
    counts.
    """


@dataclass
class RunNotes(Record):
    """Contents of notes.json."""

    labels: dict[str, Relabelled] = field(default_factory=dict)
    notes: str = ""
    archived: bool = False
    """Whether `nbtrain runs` omits the run while none of its jobs is active."""
    changed_at: float | None = None

    def applied(self, submitted: Mapping[str, str]) -> dict[str, str]:
        """Return the labels of a run whose newest job was submitted with `submitted`."""
        found = dict(submitted)
        for key, change in self.labels.items():
            if submitted.get(key) != change.submitted:
                continue
            if change.value is None:
                found.pop(key, None)
            else:
                found[key] = change.value
        return found


def notes_of(run: RunDir) -> RunNotes:
    """Read a run's notes; without notes.json they are empty. Raises RecordError for a damaged file."""
    return RunNotes.read(run.notes_json) or RunNotes()


def labels_of(run: RunDir) -> dict[str, str]:
    """Return the current labels of a run."""
    return notes_of(run).applied(_submitted(run))


def own_labels_of(run: RunDir) -> dict[str, str]:
    """Return a run's current labels as `labels:` of a copy, without those from its backend's section."""
    from nbtrain.config.load import load_resolved

    config = load_resolved(run.config_yaml)
    given = config.backend.kubernetes.labels if config.backend.kind == "kubernetes" else {}
    return {key: value for key, value in notes_of(run).applied(config.all_labels).items() if key not in given}


def change_notes(
    run: RunDir,
    labels: Mapping[str, str | None] | None = None,
    notes: str | None = None,
    archived: bool | None = None,
) -> RunNotes:
    """Change the given fields. None keeps a field; as the value of a label, None removes the label.

    Raises ConfigError if a label does not have the form that submit requires, the notes are too long, or a
    value has the wrong type, and JobError if there is no such run; then nothing is changed.
    """
    if not run.exists():
        raise JobError(f"{display(run.path)} is not a run: it has no run.json. {the_workspace()}")
    problems = _problems(labels or {}, notes, archived)
    refuse((Finding("error", "notes", key, "", words, cost=FATAL) for key, words in problems), ConfigError)
    run.jobs.mkdir(exist_ok=True)
    # The run's own lock is held as long as a job is active.
    descriptor = flock_folder(run.jobs, blocking=True)
    assert descriptor is not None, "a blocking lock is taken"
    try:
        found, submitted = notes_of(run), _submitted(run)
        wanted = found.applied(submitted)
        for key, value in (labels or {}).items():
            if value is None:
                wanted.pop(key, None)
            else:
                wanted[key] = value
        found.labels = {
            key: Relabelled(wanted.get(key), submitted.get(key))
            for key in sorted({*wanted, *submitted})
            if wanted.get(key) != submitted.get(key)
        }
        found.notes = found.notes if notes is None else notes
        found.archived = found.archived if archived is None else archived
        found.changed_at = time.time()
        found.write(run.notes_json)
    finally:
        os.close(descriptor)
    return found


def label_changes(words: list[str]) -> dict[str, str | None]:
    """Return {key: value} for key=value, and {key: None} for key-. Raises ConfigError."""
    found: dict[str, str | None] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals and not word.endswith("-"):
            raise ConfigError(
                f"label {shortened(word)!r} must be key=value, or key- to remove it, e.g. team=nlp stage-."
            )
        key = key if equals else word[:-1]
        if key in found:
            raise ConfigError(f"label {shortened(key)!r} is given twice; give each key once.")
        found[key] = value if equals else None
    return found


def _submitted(run: RunDir) -> dict[str, str]:
    """Return the labels with which the newest job was submitted, or with which the first job will be."""
    job = run.newest_job()
    if job and (record := JobRecord.read(job.job_json)):
        return record.labels
    if not run.config_yaml.exists():
        return {}
    from nbtrain.config.load import load_resolved

    return load_resolved(run.config_yaml).all_labels


def _problems(
    labels: Mapping[str, str | None], notes: str | None, archived: bool | None
) -> Iterator[tuple[str, str]]:
    """Yield (field, broken rule) for the user's additions to a run."""
    # A list of runs, which reads notes too, must not load the schema.
    from nbtrain.config.sections.labels import label_problem

    if not isinstance(labels, Mapping):
        yield "labels", f"labels = {shortened(repr(labels))} must be a mapping, e.g. {{team: nlp}}."
    else:
        for key, value in labels.items():
            if words := label_problem(key, value):
                yield f"labels.{key}", words
    if archived is not None and not isinstance(archived, bool):
        yield "archived", f"archived = {shortened(repr(archived))} must be true or false."
    if notes is None:
        return
    if not isinstance(notes, str):
        yield "notes", f"notes = {shortened(repr(notes))} must be text."
        return
    if len(notes) > MOST_NOTES_CHARS:
        yield (
            "notes",
            f"notes: has {len(notes):,} characters; the field takes at most {MOST_NOTES_CHARS:,}. "
            "Shorten them, or put a longer text into a file of the run's notebooks/.",
        )
    try:
        notes.encode()
    except UnicodeEncodeError as error:
        yield (
            "notes",
            f"notes: character {error.start + 1} is half of a surrogate pair, which no UTF-8 file holds; "
            "leave it out.",
        )
