"""Claims of a sentence about a run's checkpoints, checked against the files on disk.

    check_claims("FAILED: ... A resume continues from the checkpoint of step 40; 7 steps since ...", run)

Raises AssertionError for a claim that the files contradict, and for a sentence without any claim.
"""

import hashlib
import json
import re
from collections.abc import Callable

from nbtrain.base.run_directory.records import Heartbeat
from nbtrain.base.run_directory.rundir import RunDir

STEP = r"step ([\d,]+)"


def newest_whole(run: RunDir) -> int | None:
    """Return the step of the newest checkpoint whose files all match its manifest by
    SHA-256; None without one.
    """
    return max((step for step in run.checkpoint_steps() if _is_whole(run, step)), default=None)


def _is_whole(run: RunDir, step: int) -> bool:
    manifest = run.checkpoint_manifest(step)
    if not manifest.exists():
        return False
    entries = json.loads(manifest.read_text())["files"]
    return all(
        (manifest.parent / name).exists()
        and hashlib.sha256((manifest.parent / name).read_bytes()).hexdigest() == entry["sha256"]
        for name, entry in entries.items()
    )


def reached(run: RunDir) -> int:
    """Return the last step that rank 0 of the newest job reported."""
    job = run.newest_job()
    assert job is not None
    beat = Heartbeat.read(job.heartbeat(0))
    return (beat.step or 0) if beat else 0


def check_claims(text: str, run: RunDir) -> list[str]:
    """Assert that every claim in `text` about the run's checkpoints is true; return the claims."""
    newest, found = newest_whole(run), []
    text = " ".join(text.split())

    def claim(pattern: str, holds: Callable[[int], bool]) -> None:
        for match in re.finditer(pattern, text):
            step = int(match[1].replace(",", "")) if match.groups() else 0
            assert holds(step), f"{match[0]!r}, but the newest complete checkpoint is {newest}: {text}"
            found.append(match[0])

    claim(rf"checkpoint (?:is from|of) {STEP}", lambda step: step == newest)
    claim(rf"the newest is of {STEP}", lambda step: step == newest)
    claim(rf"at {STEP}; saved", lambda step: step == newest)
    claim(rf"before they had saved {STEP}", lambda step: newest is None or newest < step)
    claim(rf"at {STEP} before it could save", lambda step: newest is None or newest < step)
    claim(rf"at {STEP}; not saved", lambda step: newest is None or newest < step)
    claim(
        r"[Nn]o checkpoint (?:is complete|was saved)|nothing to save(?!; a resume)|starts again at step 0",
        lambda _: newest is None,
    )
    claim(r"all steps are trained and saved", lambda _: newest == reached(run))
    claim(r"; ([\d,]+) steps? since then", lambda steps: steps == reached(run) - (newest or 0))
    assert found, f"the text says nothing about a checkpoint: {text}"
    return found
