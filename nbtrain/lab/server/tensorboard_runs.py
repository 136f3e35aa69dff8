"""The folder that TensorBoard reads: for each run, a link with the run's name to its event files.

If TensorBoard read the output root itself, it would name each run RUN/tensorboard, and would also show the
runs inside a twin's folder. Nothing is copied.

TensorBoard reads every run before it draws the first card: 7 to 22 s for 311 runs of 200 steps on two cores.
So the folder holds the newest runs, and a page can request the others.
"""

import shutil
import tempfile
from pathlib import Path

from nbtrain.base.run_directory.rundir import run_folders

FIRST_RUNS = 10
ALL_RUNS = "all"
"""Value of a page's ?run= that requests every run. This holds even if a run has this name."""


class RunLinks:
    """Links to the event files of the newest runs in `root`, in a folder that remove() deletes."""

    def __init__(self, root: Path):
        self.root = root.absolute()
        self.folder = Path(tempfile.mkdtemp(prefix="nbtrain-tensorboard-"))
        self.number_of_runs = 0
        """Number of runs with event files at the last refresh()."""
        self._asked: set[str] = set()

    @property
    def shown(self) -> set[str]:
        """Names of the linked runs."""
        return {link.name for link in self.folder.iterdir()}

    def ask(self, name: str) -> None:
        """Also link another run from the next refresh() on, or every run if the name is ALL_RUNS."""
        self._asked.add(name)

    def forget(self) -> None:
        """Remove all links, and from now on link only the newest runs again. Called when TensorBoard ends."""
        self._asked.clear()
        for link in self.folder.iterdir():
            link.unlink()

    def refresh(self) -> None:
        """Link the runs that have event files by now, and remove the links of runs that no longer exist.

        A linked run stays linked when newer runs come, because its cards would disappear otherwise.
        """
        inside = self.root.resolve()
        started = {
            entry.name: (entry / "tensorboard").stat().st_mtime
            for entry in run_folders(self.root)
            if (entry / "tensorboard").is_dir() and (entry / "tensorboard").resolve().is_relative_to(inside)
        }
        self.number_of_runs = len(started)
        known = self.shown
        newest = sorted(started, key=lambda name: (-started[name], name))
        wanted = set(newest if ALL_RUNS in self._asked else newest[:FIRST_RUNS])
        wanted |= started.keys() & (known | self._asked)
        for name in known - wanted:
            (self.folder / name).unlink()
        for name in wanted - known:
            (self.folder / name).symlink_to(self.root / name / "tensorboard")

    def remove(self) -> None:
        shutil.rmtree(self.folder)
