"""A user's additions to a submitted run, stored in notes.json: labels, notes and the archived flag.

    change_notes(RunDir, labels={"team": "nlp", "stage": None}, notes="…", archived=True)  ->  RunNotes

Only the user's commands (`nbtrain label`, `notes`, `archive`) and the REST API write the file; jobs do not
read it. A run has the labels that its newest job was submitted with, plus the changes made since then.
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

# Maximum length of the notes, because a list of runs reads the notes of every run.
MOST_NOTES_CHARS = 10_000


@dataclass
class Relabelled(Record):
    """A change that the user made to a label after submission."""

    value: str | None
    """New value; None if the label was removed."""
    submitted: str | None
    """Value that the newest job had at the time of the change; None if it did not have the label.

    If a later job is submitted with another value, the change no longer applies.
    """


@dataclass
class RunNotes(Record):
    """The contents of notes.json."""

    labels: dict[str, Relabelled] = field(default_factory=dict)
    notes: str = ""
    archived: bool = False
    """Whether `nbtrain runs` hides the run, except while a job is active."""
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
    """Read a run's notes; empty if there is no notes.json. Raises RecordError if the file is damaged."""
    return RunNotes.read(run.notes_json) or RunNotes()


def labels_of(run: RunDir) -> dict[str, str]:
    """Return the current labels of a run."""
    return notes_of(run).applied(_submitted(run))


def own_labels_of(run: RunDir) -> dict[str, str]:
    """Return a run's current labels for the `labels:` of a copy, without those from backend.kubernetes."""
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
    """Change the given fields and return the new notes. None keeps a field; a label with None is removed.

    If an error is raised, nothing is changed. Raises ConfigError if a label does not have the form that
    submit requires, if the notes are too long, or if a value has the wrong type. Raises JobError if the run
    does not exist.
    """
    if not run.exists():
        raise JobError(f"{display(run.path)} is not a run: it has no run.json. {the_workspace()}")
    problems = _problems(labels or {}, notes, archived)
    refuse((Finding("error", "notes", key, "", words, cost=FATAL) for key, words in problems), ConfigError)
    run.jobs.mkdir(exist_ok=True)
    # Lock the jobs folder, because an active job holds the lock of the run directory.
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
    """Parse label changes: key=value becomes {key: value}, and key- becomes {key: None}.

    Raises ConfigError for any other form and for duplicate keys.
    """
    found: dict[str, str | None] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals and not word.endswith("-"):
            raise ConfigError(
                f"label {shortened(word)!r} must be key=value, or key- to remove the label. Example: "
                "team=nlp stage-."
            )
        key = key if equals else word[:-1]
        if key in found:
            raise ConfigError(f"label {shortened(key)!r} appears more than once; specify each key only once.")
        found[key] = value if equals else None
    return found


def _submitted(run: RunDir) -> dict[str, str]:
    """Return the labels that the newest job was submitted with, or that the first job will have."""
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
    """Yield (field, message) for each invalid addition."""
    # Import the schema only here: listing runs reads notes too and must stay fast.
    from nbtrain.config.sections.labels import label_problem

    if not isinstance(labels, Mapping):
        yield "labels", f"labels = {shortened(repr(labels))} must be a mapping, for example {{team: nlp}}."
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
            f"notes: the text has {len(notes):,} characters; at most {MOST_NOTES_CHARS:,} are allowed. "
            "Shorten it, or put a longer text into a file in the run's notebooks/ folder.",
        )
    try:
        notes.encode()
    except UnicodeEncodeError as error:
        yield (
            "notes",
            f"notes: character {error.start + 1} is half of a surrogate pair and cannot be written as "
            "UTF-8. Remove it.",
        )
