"""Step `speed`: tests/benchmarks/train_gpu.py with each contender in a separate call, compared with the plan.

A measurement passes if it completes. Its message says whether the target was reached.
"""

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from nbtrain.base import files
from nbtrain.config.arithmetic.devices import find_device
from tests.gpu.cases import Case, Finding, Impossible, Place
from tests.gpu.machine import REPOSITORY

SCRIPT = "tests/benchmarks/train_gpu.py"
LIMIT_SECONDS = 300.0
TARGETS = {"125m": 0.45, "1.3b": 0.50}
# The bare loop first, since ours is compared with it.
CONTENDERS = {"bare": "bare loop", "ours": "nbtrain", "transformers": "transformers"}


def cases(place: Place) -> Iterator[Case]:
    """Yield both sizes: all contenders uncompiled, then ours compiled."""
    if not place.on_gpu:
        for kind in ("bare", "ours"):
            yield Case(f"smoke, {CONTENDERS[kind]}", functools.partial(_find, place, "smoke", kind, []))
        return
    for size in TARGETS:
        for kind, words in CONTENDERS.items():
            yield Case(f"{size}, {words}", functools.partial(_find, place, size, kind, []))
    for size in TARGETS:
        yield Case(
            f"{size}, nbtrain, compiled", functools.partial(_find, place, size, "ours", ["--compiled"])
        )


def _find(place: Place, size: str, kind: str, flags: list[str]) -> Finding:
    if kind == "transformers" and find_spec("transformers") is None:
        raise Impossible("transformers is not installed")
    command = [sys.executable, SCRIPT, "--contender", kind, "--sizes", *([] if size == "smoke" else [size])]
    command += ["smoke", "--smoke", "--steps", "4"] if size == "smoke" else []
    # Its own limit comes first, so that it ends its ranks itself.
    command += ["--timeout", f"{LIMIT_SECONDS - 60:g}"]
    if device := find_device(place.gpu_name):
        command += ["--gpu-type", device.name]
    done = subprocess.run(
        [*command, *flags],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    print(done.stdout + done.stderr, flush=True)
    if done.returncode:
        raise RuntimeError((done.stdout + done.stderr).strip()[-500:])
    figures = json.loads(done.stdout.splitlines()[-1])
    kept = place.folder / "speed.json"
    known = files.read_json(kept) or {}
    known[f"{size} {kind}{' '.join(flags)}"] = figures
    files.write_json(kept, known)
    return finding(size, kind, figures, known.get(f"{size} bare"))


def finding(size: str, kind: str, figures: dict[str, Any], bare: dict[str, Any] | None) -> Finding:
    """Return the row of one contender."""
    rate = figures["tokens_per_second"]
    values = dict.fromkeys(("tokens/s", "planned", "MFU", "of the matrix rate", "of a bare loop"), "")
    values["tokens/s"] = f"{rate:,.0f}"
    if bare and kind != "bare":
        values["of a bare loop"] = f"{rate / bare['tokens_per_second']:.3f}"
    words = [f"{figures['step_seconds']:.3f} s a step"]
    if figures["peak_bytes"]:
        words.append(f"peak {figures['peak_bytes'] / 2**30:.1f} GiB")
    if kind == "ours":
        share = figures["matmul_fraction"]
        values["of the matrix rate"] = f"{share:.1%} of {figures['measured_matmul_flops'] / 1e12:.0f} TFLOP/s"
        values["MFU"] = f"{figures['mfu']:.1%}" if figures["mfu"] else ""
        if planned := figures["planned_tokens_per_second"]:
            values["planned"] = f"{planned:,.0f} ({planned / rate - 1:+.0%})"
        if size in TARGETS:
            word = "reached" if share >= TARGETS[size] else "missed"
            words.append(f"target {TARGETS[size]:.0%} of the matrix rate {word}")
    return Finding("passed", ", ".join(words), values)
