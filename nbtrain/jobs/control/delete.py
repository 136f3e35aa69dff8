"""Deletes a run with all its files: what prevents it, what is removed, and in which order.

    refused      an active job; a folder outside the output directory, or reached by a link; a folder from
                 which this user may remove nothing; unless `force`: a run with a file that another run or a
                 run YAML names, with a damaged job.json, or with a LOST job of which something could not be
                 ended. A fine-tuned run whose complete checkpoint holds all its weights no longer needs its
                 source.
    deleted      everything in the run directory; links are removed, but never what they point to

The folder is renamed first, so that a half-deleted run is never listed. Datasets and tokenizers are shared by
runs and stay.
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

# Links that are listed, at most.
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
    """Links in the run directory, by their path relative to it, with their targets."""

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
    """Return the data that delete() would remove. Raises JobError if the run may not be deleted."""
    _refuse_place(run)
    _refuse_active(run, force)
    size, links = 0, []
    for folder, names, entries in os.walk(run.path, onerror=_refuse_unreadable):
        # Renaming a run needs no write permission on its folder: without this check the run would be renamed
        # and then could not be deleted.
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
    """Remove the run directory, after ending processes that a LOST job left running.

    `force` deletes it even if other runs or run YAMLs name its files. Raises JobError.
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
    # Also removes what an interrupted deletion of this name left.
    for folder in run.path.parent.glob(f".{glob.escape(run.name)}.*.deleted"):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise JobError(
                f"{run.name} is no longer listed as a run, but {error.filename} could not be removed: "
                f"{error.strerror}. The remaining files are in {display(folder)}."
            ) from error
    return found


def _refuse_place(run: RunDir) -> None:
    """Reject a folder that is not itself in the output directory."""
    where, root = display(run.path), output_root()
    if run.path.is_symlink():
        raise JobError(
            f"{where} is a link to {run.path.readlink()}; nbtrain deletes nothing outside the output "
            "directory. Remove the link by hand."
        )
    if run.path.parent.resolve() != root.resolve():
        raise JobError(
            f"{where} is not in the output directory {display(root)}. Set NBTRAIN_OUTPUT to the folder "
            "that contains it, or remove it by hand."
        )
    if not run.exists():
        raise JobError(f"{where}: there is no run to delete. `nbtrain runs` lists the runs.")


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
    """End what is left of a job outside the run directory: processes, scheduler objects, its final record."""
    if newest:
        # A supervisor outlives its final state by the notification that it sends.
        try:
            backend_of_job(job).finish(job, True)
        except RecordError:
            raise
        except NbtrainError as error:
            # Machines may be gone for good, and so may the configuration with their addresses.
            words = str(error).rstrip(".")
            if not force:
                raise JobError(
                    f"{words}. `nbtrain delete --force {job.run.name}` deletes the run anyway."
                ) from error
            logger.warning("%s: deleted anyway: %s.", job.run.name, words)
    if record := JobRecord.read(job.job_json):
        final_record.forget(record)


def _refuse_active(run: RunDir, force: bool) -> None:
    """Raise JobError if a job is active; a damaged record counts as ended only if `force`."""
    newest = run.newest_job()
    try:
        if newest and (state := status_of(newest)[0]) in ACTIVE:
            raise _active(run, state)
    except RecordError as error:
        if not force:
            raise JobError(
                f"{str(error).rstrip('.')}. It is therefore unknown whether a job is active. If none is, "
                f"`nbtrain delete --force {run.name}` deletes the run, and ends what runs on "
                "this machine with its marker."
            ) from error


def _active(run: RunDir, state: str = "") -> JobError:
    how = "its job is SUSPENDED (paused) and may continue" if state == SUSPENDED else "a job is active"
    return JobError(f"{display(run.path)}: {how}. `nbtrain cancel {run.name}` stops it; delete the run then.")


def _refuse_referred(run: RunDir) -> None:
    """Raise JobError that names every other run and run YAML with a path into this run."""
    if found := list(_references(run)):
        lines = "\n".join(f"  {line}" for line in found)
        raise JobError(
            f"{display(run.path)}: other configuration files refer to this run:\n{lines}\n"
            "Nothing was deleted. Change these files, or delete the run anyway: "
            f"`nbtrain delete --force {run.name}`."
        )


def _references(run: RunDir) -> Iterator[str]:
    """Yield text such as "output/b/config.yaml: data.sources.0.path = output/a/export/text.jsonl" for each
    reference.
    """
    folders = (folder for folder in run_folders(run.path.parent) if folder != run.path)
    others = (RunDir(folder).config_yaml for folder in folders)
    for path in (*sorted(others), *_own_yamls()):
        try:
            # Parsing a thousand configurations takes a minute, searching them a moment.
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
    """Return the run YAMLs of the workspace's example folders, without unchanged copies of shipped ones."""
    shipped = {path.name: path for path in bundled("examples/megatron-gpt").glob("*/*.yaml")}
    folders = [folder for folder in example_folders() if folder.is_relative_to(workspace())]
    found = sorted({path for folder in folders for path in folder.glob("*.yaml")})
    return [
        path
        for path in found
        if path.name not in shipped or path.read_bytes() != shipped[path.name].read_bytes()
    ]


def _needs_start(path: Path, config: Mapping[str, Any]) -> str | None:
    """Return why a run still reads the run that it started from, as the end of a sentence; None if it does
    not.

    `config` is the content of its config.yaml at `path`, or of a run YAML that was never submitted.
    """
    if config.get("lora") is not None:
        return ", which it reads at every start because its checkpoints hold only adapters (lora)"
    if config.get("dpo") is not None:
        return ", which is the reference of its preferences (dpo)"
    run = RunDir(path.parent)
    if not run.exists():
        return ""
    return ", and has no complete checkpoint yet" if newest_checkpoint_step(run) is None else None


def _lies_in(path: Path, folder: Path) -> bool:
    """Return whether a path is inside a folder, either as written or with its links resolved."""
    return path.is_relative_to(folder) or path.resolve().is_relative_to(folder.resolve())


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string of a run YAML with its dotted key; list items have their index as key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict | list):
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(one, f"{key}.{name}".removeprefix("."))
