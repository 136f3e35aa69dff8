"""The folder that TensorBoard reads: a link for each run, by the run's name, to its event files.

At the output root itself an entry would be named RUN/tensorboard, and the runs inside a twin's folder, which
prove its layout, would be entries too. Nothing is copied.
"""

import shutil
import tempfile
from pathlib import Path


class RunLinks:
    """Links to the event files of the runs below `root`; remove() ends them."""

    def __init__(self, root: Path):
        self.root = root.absolute()
        self.folder = Path(tempfile.mkdtemp(prefix="nbtrain-tensorboard-"))

    def refresh(self) -> None:
        """Link the runs that have event files by now, and forget those that are gone."""
        inside = self.root.resolve()
        wanted = {
            entry.name
            for entry in self.root.glob("[!.]*")
            if (entry / "tensorboard").is_dir() and (entry / "tensorboard").resolve().is_relative_to(inside)
        }
        known = {link.name for link in self.folder.iterdir()}
        for name in known - wanted:
            (self.folder / name).unlink()
        for name in wanted - known:
            (self.folder / name).symlink_to(self.root / name / "tensorboard")

    def remove(self) -> None:
        shutil.rmtree(self.folder)
