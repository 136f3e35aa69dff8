"""Profiles in output/<run>/profiling, for display in a notebook or as text.

A run with profile.enabled writes three files for each profiled timeline: a text page (.txt), its data (.json)
and a picture (.svg).
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.printing.report import Code, Fold, InNotebook, InText, Items, Picture, Report, Result
from nbtrain.base.run_directory.rundir import RunDir

_PAGE = re.compile(r"rank(\d+)\.step(\d+)\.txt")


@dataclass(frozen=True, repr=False)
class Profile(Result):
    """One profiler cycle on one rank. A notebook shows a picture, print() a page of text."""

    page: Path
    rank: int
    step: int
    """Last step of the profiler cycle."""

    @cached_property
    def data(self) -> dict[str, Any]:
        """Contents of the JSON file: seconds by category and part, slowest operators, memory over time."""
        return files.read_json(self.page.with_suffix(".json")) or {}

    @property
    def picture(self) -> Path:
        return self.page.with_suffix(".svg")

    @property
    def timeline(self) -> Path:
        """Path of the timeline, which https://ui.perfetto.dev and chrome://tracing can open."""
        return self.page.with_name(f"{self.page.stem}.trace.json.gz")

    def as_report(self) -> Report:
        """Return a report: the text page or, in a notebook, a few sentences and the picture."""
        title = f"profile of rank {self.rank}, up to step {self.step}"
        page = InText(Code(self.page.read_text(encoding="utf-8").rstrip("\n"), indent=""))
        return Report(
            "",
            [
                page,
                InNotebook(Items(self.data.get("words", []))),
                Picture(self._svg, title, has_tooltips=True),
            ],
        )

    def _svg(self) -> bytes:
        return self.picture.read_bytes()


class Profiles(Result, list[Profile]):
    """All profiles of a run, ordered by step and rank. A notebook shows pictures, print() shows text."""

    def as_report(self) -> Report:
        """Return a report: all text pages or, in a notebook, a collapsible section for each profile."""
        folds = [
            Fold(
                f"rank {profile.rank}, up to step {profile.step}: {profile.page.name}",
                profile.as_report().blocks,
                is_open=number == 0,
            )
            for number, profile in enumerate(self)
        ]
        return Report("", [*(InText(profile.as_report()) for profile in self), *folds])


def profiles(run: RunDir) -> Profiles:
    """Return a run's profiles. Raises DataError, which explains how to create one, if there are none."""
    found = [(_PAGE.fullmatch(path.name), path) for path in run.profiling.glob("rank*.txt")]
    all_of_it = [Profile(path, int(match[1]), int(match[2])) for match, path in found if match]
    if not all_of_it:
        raise DataError(
            f"{run.path} has no profile. Set profile.enabled=true and train the run; by default, steps 3 to "
            "5 and 8 to 10 of the job are profiled."
        )
    return Profiles(sorted(all_of_it, key=lambda profile: (profile.step, profile.rank)))
