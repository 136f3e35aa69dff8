"""Delete a run with all its files.

    refused      a run with an active job; a folder outside the output directory, or reached through a link;
                 a folder from which this user cannot remove files
    refused      without `force`: a run with a file that another run or a run YAML refers to, with a damaged
                 job.json, or with a LOST job whose processes could not be ended. A fine-tuned run with a
                 complete checkpoint of all its weights no longer refers to the run it started from.
    deleted      everything in the run directory; links are removed, but never the files they point to

The folder is renamed first, so that a half-deleted run is never listed. Datasets and tokenizers stay, because
runs share them.
"""

import contextlib
import glob
import logging
import os
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, JobError, NbtrainError, RecordError
from nbtrain.base.printing.report import Items, Report, Result
from nbtrain.base.run_directory import final_record
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.jobstate import ACTIVE, SUSPENDED
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir, run_folders
from nbtrain.base.text import amounts
from nbtrain.base.workspace import bundled, display, example_folders, output_root, resolve, workspace
from nbtrain.config.yaml_source import read_yaml
from nbtrain.jobs.attempt.backend import backend_of_job, status_of
from nbtrain.jobs.control.control import by_its_owner
from nbtrain.jobs.machine import processes

logger = logging.getLogger(__name__)

# Largest number of links to list.
SHOWN_LINKS = 5


@dataclass(frozen=True, repr=False)
class Deletion(Result):
    """Data that delete() removes, or has removed, with a run."""

    run: RunDir
    size_bytes: int
    checkpoints: int
    jobs: int
    exports: int
    """Models that `nbtrain export` wrote into the run directory."""
    links: tuple[str, ...]
    """Links in the run directory, as "path -> target", with paths relative to the directory."""

    def as_report(self) -> Report:
        """Return the sizes, and the links that are removed without their targets."""
        what = f"{amounts.counted(self.jobs, 'job')}, {amounts.counted(self.checkpoints, 'checkpoint')}"
        what += f", {amounts.counted(self.exports, 'exported model')}" if self.exports else ""
        links = [f"{link}: only the link is removed" for link in self.links[:SHOWN_LINKS]]
        if (more := len(self.links) - SHOWN_LINKS) > 0:
            links.append(f"and {amounts.counted(more, 'more link')}")
        return Report(f"{display(self.run.path)}: {what}, {amounts.size(self.size_bytes)}", [Items(links)])


@by_its_owner
def survey(run: RunDir, force: bool = False) -> Deletion:
    """Return the data that delete() would remove. Raises JobError if the run cannot be deleted."""
    _refuse_place(run)
    _refuse_active(run, force)
    size, links = 0, []
    for folder, names, entries in os.walk(run.path, onerror=_refuse_unreadable):
        # Renaming a run needs no write permission on its folder, so without this check the run could be
        # renamed but not deleted.
        if (names or entries) and not os.access(folder, os.W_OK | os.X_OK):
            raise _closed(Path(folder))
        for path in (Path(folder) / name for name in (*names, *entries)):
            found = path.lstat()
            size += found.st_size if not stat.S_ISDIR(found.st_mode) else 0
            if stat.S_ISLNK(found.st_mode):
                links.append(f"{path.relative_to(run.path)} -> {path.readlink()}")
    if not force:
        _refuse_referred(run)
    exports = len(list(run.export.iterdir())) if run.export.is_dir() else 0
    return Deletion(run, size, len(run.checkpoint_steps()), len(run.job_ids()), exports, tuple(sorted(links)))


@by_its_owner
def delete(run: RunDir, force: bool = False) -> Deletion:
    """Delete the run directory, after ending processes that a LOST job left running.

    With `force`, the run is deleted even if other runs or run YAMLs refer to its files. Raises JobError if
    the run cannot be deleted.
    """
    found = survey(run, force)
    with run.locked(blocking=False) as taken:
        if not taken:
            raise _active(run)
        _refuse_active(run, force)
        for job_id in run.job_ids():
            with contextlib.suppress(RecordError):
                _let_go(run.job(job_id), newest=job_id == run.job_ids()[-1], force=force)
        processes.end_marked(run.job_ids(), 0.0)
        doomed = run.path.with_name(f".{run.name}.{os.urandom(4).hex()}.deleted")
        try:
            run.path.rename(doomed)
        except OSError as error:
            raise JobError(f"{display(run.path)} cannot be deleted: {error.strerror}.") from error
    # This also removes folders that interrupted deletions of runs with this name left behind.
    for folder in run.path.parent.glob(f".{glob.escape(run.name)}.*.deleted"):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise JobError(
                f"{run.name} is no longer listed as a run, but {error.filename} could not be removed: "
                f"{error.strerror}. The remaining files are in {display(folder)}; remove this folder by hand."
            ) from error
    return found


def _refuse_place(run: RunDir) -> None:
    """Raise JobError unless the folder is a run directly in the output directory, and not a link."""
    where, root = display(run.path), output_root()
    if run.path.is_symlink():
        raise JobError(
            f"{where} is a link to {run.path.readlink()}, and nbtrain deletes nothing outside the output "
            "directory. Remove the link by hand."
        )
    if run.path.parent.resolve() != root.resolve():
        raise JobError(
            f"{where} is not in the output directory {display(root)}. Set NBTRAIN_OUTPUT to the folder "
            "that contains it, or remove it by hand."
        )
    if not run.exists():
        raise JobError(f"{where}: there is no run to delete. To list the runs, run `nbtrain runs`.")


def _refuse_unreadable(error: OSError) -> None:
    if isinstance(error, PermissionError):
        raise _closed(Path(error.filename)) from error


def _closed(folder: Path) -> JobError:
    """Return the error for a folder from which this user cannot remove anything."""
    uid = folder.stat().st_uid
    owner = files.user_name(uid)
    fix = f"Ask {owner}, or use that account."
    if uid == os.geteuid():
        fix = f"Make it writable: `chmod u+rwx {shlex.quote(str(folder))}`."
    return JobError(
        f"{display(folder)} belongs to {owner}, and you are not allowed to remove anything from it. "
        f"Nothing was deleted. {fix}"
    )


def _let_go(job: JobDir, newest: bool, force: bool) -> None:
    """Remove what a job left outside the run directory: processes, scheduler objects and its final record.

    With `newest`, raises JobError if the job's machines cannot be reached; with `force`, only logs a warning.
    """
    if newest:
        # A supervisor may still be sending a notification after it has written the job's final state.
        try:
            backend_of_job(job).finish(job, True)
        except RecordError:
            raise
        except NbtrainError as error:
            # The machines, or the configuration with their addresses, may no longer exist.
            words = str(error).rstrip(".")
            if not force:
                raise JobError(
                    f"{words}. `nbtrain delete --force {job.run.name}` deletes the run anyway."
                ) from error
            logger.warning("%s: deleted anyway: %s.", job.run.name, words)
    if record := JobRecord.read(job.job_json):
        final_record.forget(record)


def _refuse_active(run: RunDir, force: bool) -> None:
    """Raise JobError if a job is active, or if its record is damaged and `force` is False."""
    newest = run.newest_job()
    try:
        if newest and (state := status_of(newest)[0]) in ACTIVE:
            raise _active(run, state)
    except RecordError as error:
        if not force:
            raise JobError(
                f"{str(error).rstrip('.')}. It is therefore unknown whether a job is active. If no job is "
                f"active, run `nbtrain delete --force {run.name}`: it deletes the run and ends its processes "
                "on this machine."
            ) from error


def _active(run: RunDir, state: str = "") -> JobError:
    how = "its job is SUSPENDED (paused) and may continue" if state == SUSPENDED else "a job is active"
    return JobError(
        f"{display(run.path)}: {how}. Stop it with `nbtrain cancel {run.name}`, then delete the run."
    )


def _refuse_referred(run: RunDir) -> None:
    """Raise JobError if another run or a run YAML refers to this run; the message lists the references."""
    if found := list(_references(run)):
        lines = "\n".join(f"  {line}" for line in found)
        raise JobError(
            f"{display(run.path)}: other configuration files refer to this run:\n{lines}\n"
            "Nothing was deleted. Change these files, or run "
            f"`nbtrain delete --force {run.name}` to delete the run anyway."
        )


def _references(run: RunDir) -> Iterator[str]:
    """Yield a line of text for each reference to this run from another run or a run YAML.

    For example, "output/b/config.yaml: data.sources.0.path = output/a/export/text.jsonl".
    """
    folders = (folder for folder in run_folders(run.path.parent) if folder != run.path)
    others = (RunDir(folder).config_yaml for folder in folders)
    for path in (*sorted(others), *_own_yamls()):
        try:
            # Parsing a thousand configurations takes a minute; searching their text takes a moment.
            if run.name not in path.read_text(errors="replace"):
                continue
            value = read_yaml(path).value
        except (OSError, ConfigError, RecordError):
            continue
        for key, text in _texts(value):
            is_start = key == "init_from" and (text == run.name or _lies_in(resolve(text), run.path))
            if is_start and (why := _needs_start(path, value)) is not None:
                yield f"{display(path)}: starts from {text}{why}"
            elif not is_start and "/" in text and _lies_in(resolve(text), run.path):
                yield f"{display(path)}: {key} = {text}"


def _own_yamls() -> list[Path]:
    """Return the run YAMLs in the workspace's example folders, except unchanged copies of shipped files."""
    shipped = {path.name: path for path in bundled("examples/megatron-gpt").glob("*/*.yaml")}
    folders = [folder for folder in example_folders() if folder.is_relative_to(workspace())]
    found = sorted({path for folder in folders for path in folder.glob("*.yaml")})
    return [
        path
        for path in found
        if path.name not in shipped or path.read_bytes() != shipped[path.name].read_bytes()
    ]


def _needs_start(path: Path, config: Mapping[str, Any]) -> str | None:
    """Return why a run still needs the run it started from, as the end of a sentence.

    Returns None if it no longer needs that run, and "" if it has not started yet. `config` is the content of
    `path`: the run's config.yaml, or a run YAML that was never submitted.
    """
    if config.get("lora") is not None:
        return ", which it reads at every start because its checkpoints contain only adapters (lora)"
    if config.get("dpo") is not None:
        return ", which is the reference model of its preference training (dpo)"
    run = RunDir(path.parent)
    if not run.exists():
        return ""
    return ", and has no complete checkpoint yet" if newest_checkpoint_step(run) is None else None


def _lies_in(path: Path, folder: Path) -> bool:
    """Return whether a path is inside a folder, either as written or with its links resolved."""
    return path.is_relative_to(folder) or path.resolve().is_relative_to(folder.resolve())


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) for every string in a run YAML; a list item's key is its index."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict | list):
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(one, f"{key}.{name}".removeprefix("."))
