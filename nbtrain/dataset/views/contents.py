"""Checks that a dataset's files still match its manifest, without reading them every time.

The manifest is written last, so a file with a later time was written or copied after it. Such a file is read
once to compare its SHA-256, and .contents.json in the same folder records its size and time, which makes the
next check cheap. DatasetFiles.require() compares only sizes.
"""

import contextlib
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.printing.progress import Progress
from nbtrain.base.text.amounts import moment
from nbtrain.base.workspace import display
from nbtrain.dataset.blend import BlendFiles
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.manifest import DatasetManifest

REMEMBERED = ".contents.json"


def check_contents(dataset: DatasetFiles, manifest: DatasetManifest | None = None) -> None:
    """Raise DataError if a file of the dataset, or of a dataset in its blend, does not match its manifest.

    Pass the folder's manifest as `manifest` if it has already been read.
    """
    if isinstance(dataset, BlendFiles):
        for entry in dataset.entries:
            check_contents(entry.files)
        return
    manifest = manifest or dataset.own_manifest()
    if manifest is None or dataset.bin.name not in manifest.files:
        return
    if not (young := _younger_files(dataset, manifest)):
        return
    with Progress(f"read {dataset.directory.name}", sum(path.stat().st_size for path in young), "B") as bar:
        for path in young:
            stat, recorded = path.stat(), manifest.files[path.name]["sha256"]
            found = files.sha256_of(path)
            if found != recorded:
                raise DataError(
                    f"{display(path)}: this is not the file that its manifest describes. It was written on "
                    f"{moment(stat.st_mtime)}, after the manifest, and has the SHA-256 {found[:12]}..., but "
                    f"the manifest records {recorded[:12]}.... Restore the file, or run "
                    "`nbtrain prepare RUN.yaml --force` to make the dataset again."
                )
            bar.update(stat.st_size)
    # If the folder cannot be written, the files are read again the next time.
    with contextlib.suppress(OSError):
        read = {path.name: _identity(path, manifest) for path in young}
        files.write_json(dataset.directory / REMEMBERED, {**_remembered(dataset), **read})


def _younger_files(dataset: DatasetFiles, manifest: DatasetManifest) -> list[Path]:
    """Return the files that are newer than the manifest and have not been read since they were written."""
    since = dataset.manifest_json.stat().st_mtime_ns
    paths = [dataset.directory / name for name in sorted(manifest.files)]
    young = [path for path in paths if path.stat().st_mtime_ns > since]
    remembered = _remembered(dataset) if young else {}
    return [path for path in young if remembered.get(path.name) != _identity(path, manifest)]


def _identity(path: Path, manifest: DatasetManifest) -> list[int | str]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, manifest.files[path.name]["sha256"]]


def _remembered(dataset: DatasetFiles) -> dict[str, list[int | str]]:
    with contextlib.suppress(ValueError):  # An incomplete file counts as none.
        value = files.read_json(dataset.directory / REMEMBERED)
        if isinstance(value, dict):
            return value
    return {}
