"""Profiles that a run wrote to output/<run>/profiling, for display or printing.

A training run with profile.enabled writes them: for each timeline a text page (.txt), its data (.json) and a
picture (.svg).
"""

import html
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.rundir import RunDir

_PAGE = re.compile(r"rank(\d+)\.step(\d+)\.txt")


@dataclass(frozen=True)
class Profile:
    """A cycle of the profiler on one rank. A cell shows it as a picture, print() as text."""

    page: Path
    rank: int
    step: int
    """Last step of the cycle."""

    @cached_property
    def data(self) -> dict[str, Any]:
        """Read seconds by category and by part, the most expensive operators, and the memory over time."""
        return files.read_json(self.page.with_suffix(".json")) or {}

    @property
    def words_html(self) -> str:
        """Sentences about the profile, as an HTML list."""
        rows = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in self.data.get("words", []))
        return f"<ul>{rows}</ul>" if rows else ""

    @property
    def picture(self) -> Path:
        return self.page.with_suffix(".svg")

    @property
    def timeline(self) -> Path:
        """Timeline for https://ui.perfetto.dev, which reads it in the browser, or chrome://tracing."""
        return self.page.with_name(f"{self.page.stem}.trace.json.gz")

    def __str__(self) -> str:
        return self.page.read_text(encoding="utf-8")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.words_html + self._repr_svg_()

    def _repr_svg_(self) -> str:
        return self.picture.read_text(encoding="utf-8")


class Profiles(list[Profile]):
    """Profiles of a run, by step and rank. A cell shows all pictures, print() all texts."""

    def __str__(self) -> str:
        return "\n".join(str(profile) for profile in self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(
            f"<details{' open' if number == 0 else ''}><summary>rank {profile.rank}, up to step "
            f"{profile.step}: {html.escape(profile.page.name)}</summary>{profile.words_html}"
            f"{profile._repr_svg_()}</details>"
            for number, profile in enumerate(self)
        )


def profiles(run: RunDir) -> Profiles:
    """Return the profiles of a run. Raises DataError, which says how to create one, if there are none."""
    found = [(_PAGE.fullmatch(path.name), path) for path in run.profiling.glob("rank*.txt")]
    all_of_it = [Profile(path, int(match[1]), int(match[2])) for match, path in found if match]
    if not all_of_it:
        raise DataError(
            f"{run.path} has no profile: set profile.enabled=true and train; by default the steps 2 to 4 and "
            "7 to 9 of the job are profiled."
        )
    return Profiles(sorted(all_of_it, key=lambda profile: (profile.step, profile.rank)))
