"""The command `make gpu`: runs tests that need a GPU, step by step, and writes docs/evidence/gpu.md.

    python -m tests.gpu [--only memory parity] [--minutes 9] [--wheels DIR] [--copy-to DIR] [--again]
    python -m tests.gpu --list                 list what would run, without running it
    python -m tests.gpu --page                 write the page again, with today's plans; needs no GPU
    python -m tests.gpu --smoke --to DIR       every step with tiny sizes on this machine's CPU

Each step is one process of at most nine minutes. Steps that compare numbers run together; then the steps that
measure the GPU run one at a time. Each case is recorded as soon as it is done, so that after a call was
stopped, by --minutes or by a signal, the next call continues with the next case. A case is repeated if it
failed or if the code that it depends on has changed. No network is needed: the steps generate their data, and
--wheels installs packages from a folder. The exit code is 1 if a case failed or there is no GPU, and 2 if a
package is missing.
"""

import argparse
import contextlib
import datetime
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu import machine, page
from tests.gpu.cases import POISONED_EXIT, read_rows
from tests.gpu.machine import REPOSITORY, Machine
from tests.gpu.page import Results, Row, key_of
from tests.gpu.steps import BY_NAME, PAGE, STEPS, Step

WORK = REPOSITORY / "build" / "gpu"
POLL_SECONDS = 0.2
now = time.monotonic
MINUTES = 40.0
# Stops a case that ends its process every time from being started indefinitely.
RESTARTS = 20


@dataclass
class Call:
    """One call of the command `make gpu`."""

    options: argparse.Namespace
    found: Machine
    deadline: float
    command: str
    at_once: int = 1
    """Number of steps that are running now."""
    _writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def label(self) -> str:
        return self.found.label if not self.options.smoke else "CPU, tiny sizes"

    def results(self) -> dict[str, Results]:
        """Return the results on the page, with an entry for this machine."""
        known = page.read(self.options.to / "gpu.json")
        known.setdefault(self.label, Results())
        known[self.label].machine = self.found.words
        return known

    def add(self, step: Step, rows: Sequence[dict[str, Any]], complete: bool = False) -> None:
        """Write rows immediately; read the page again first, in case another call has written to it."""
        with self._writing:
            self._add(step, rows, complete)

    def _add(self, step: Step, rows: Sequence[dict[str, Any]], complete: bool) -> None:
        known = self.results()
        own = known[self.label]
        by_case = own.rows.setdefault(step.name, {})
        for row in rows:
            by_case.pop(row["name"], None)
            row = {**row, "words": without_places(row["words"])}
            measured = {"key": key_of(step), "command": self.command, "date": str(datetime.date.today())}
            by_case[row["name"]] = {**row, **measured}
        if complete:
            # Removes cases that were renamed or deleted; a complete pass has just run all others.
            own.rows[step.name] = {name: row for name, row in by_case.items() if row["key"] == key_of(step)}
            own.complete[step.name] = key_of(step)
        page.write(self.options.to, known)
        if self.options.copy_to:
            self.copy()

    def copy(self) -> None:
        """Copy the page, its data and all logs into a single file."""
        folder = self.options.copy_to
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("gpu.json", "gpu.md"):
            shutil.copyfile(self.options.to / name, folder / name)
        logs = [path for step in STEPS if (path := WORK / f"{step.name}.log").exists()]
        texts = (f"===== {path.name}\n{path.read_text(errors='replace')[-2_000_000:]}" for path in logs)
        (folder / "gpu-logs.txt").write_text("\n".join(texts))


def without_places(words: str) -> str:
    """Return a sentence without this machine's folders, which mean nothing to readers of the page."""
    for folder in (REPOSITORY, sys.prefix, Path.home()):
        words = words.replace(f"{folder}{os.sep}", "")
    return words


def rows_of(call: Call, step: Step) -> dict[str, Row]:
    """Return this machine's rows for the current code."""
    rows = call.results()[call.label].rows.get(step.name, {})
    return {name: row for name, row in rows.items() if row["key"] == key_of(step)}


def why_to_run(call: Call, step: Step) -> str:
    """Return the reason to run the step; "" if each case passed or was impossible with the current code."""
    own, rows = call.results()[call.label], rows_of(call, step)
    if call.options.again:
        return "asked for again"
    if bad := sum(row["outcome"] in ("failed", "stopped") for row in rows.values()):
        return f"{bad} failed or stopped"
    if own.complete.get(step.name) == key_of(step):
        return ""
    if rows:
        return f"{len(rows)} cases done, the others are left"
    return "the code has changed" if own.rows.get(step.name) else "not run yet"


def run_all(call: Call, steps: Sequence[Step]) -> None:
    """Run the steps that may run together, then the others; on a CPU run all one after the other."""
    together = [step for step in steps if not step.alone and not call.options.smoke]
    if together:
        print(f"running: {', '.join(step.name for step in together)}", flush=True)
        call.at_once = len(together)
        with ThreadPoolExecutor(len(together)) as pool:
            list(pool.map(functools.partial(run, call), together))
    call.at_once = 1
    for step in steps:
        if step in together:
            continue
        if now() > call.deadline:
            print(f"{step.name}: no time is left in this call", flush=True)
        else:
            print(f"running: {step.name}", flush=True)
            run(call, step)


def run(call: Call, step: Step) -> None:
    """Run one step: first the cases that were not tried yet, then those that failed in an earlier call."""
    rows = {} if call.options.again else rows_of(call, step)
    tried = {name for name, row in rows.items() if row["outcome"] != "stopped"}
    failed = {name for name in tried if rows[name]["outcome"] == "failed"}
    deadline = min(call.deadline, now() + 60 * step.minutes)
    fresh: set[str] = set()
    for passed_over in [failed, set()] if failed else [set()]:
        for _ in range(RESTARTS):
            names, ended = _process(call, step, (tried - failed) | passed_over | fresh, deadline)
            fresh |= names
            if ended:
                break
        if now() > deadline:
            return
    call.add(step, [], complete=True)


def _process(call: Call, step: Step, done: set[str], deadline: float) -> tuple[set[str], bool]:
    """Run one process of a step; return the cases that it tried, and whether the step is finished."""
    rows, log = WORK / f"{step.name}.rows.jsonl", WORK / f"{step.name}.log"
    WORK.mkdir(parents=True, exist_ok=True)
    rows.unlink(missing_ok=True)
    told: set[str] = set()
    with log.open("ab") as stream:
        began = stream.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.worker", step.module, str(rows)],
            cwd=REPOSITORY,
            env=machine.environment(),
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        _order(process, call, step, done)
        while process.poll() is None and now() < deadline:
            time.sleep(POLL_SECONDS)
            told |= _tell_new(call, step, rows, told)
        stopped = process.poll() is None
    finally:
        _end(process)
    told |= _tell_new(call, step, rows, told)
    code, (_, begun) = process.returncode, read_rows(rows)
    if stopped:
        if begun is not None:
            words = "stopped when the time was up; the next call tries it again"
            call.add(step, [_row(begun, "stopped", words)])
        return told, True
    if code in (0, POISONED_EXIT):
        return told, code == 0
    ended = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
    with log.open("rb") as stream:
        stream.seek(began)
        lines = stream.read().decode(errors="replace").strip().splitlines()
    words = f"the process ended with {ended}: {' / '.join(line.strip() for line in lines[-3:])[-600:]}"
    print(f"{step.name}: {begun or 'start'}: FAILED: {words}", flush=True)
    call.add(step, [_row(begun or "start of the step", "failed", words)])
    # An error before the first case would occur again.
    return told | {begun or ""}, begun is None


def _order(process: subprocess.Popen, call: Call, step: Step, done: set[str]) -> None:
    order = {
        "device": "cpu" if call.options.smoke else "gpu",
        "at_once": call.at_once,
        "gpus": call.found.gpus,
        "gpu_name": call.found.gpu_name,
        "folder": str(WORK / step.name),
        "done": sorted(done),
    }
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(order).encode())
        process.stdin.close()
    except BrokenPipeError:
        # It ended before it read its input: its exit code and its log say why.
        pass


def _end(process: subprocess.Popen) -> None:
    """End every process of the step, which runs in its own session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tell_new(call: Call, step: Step, rows: Path, told: set[str]) -> set[str]:
    """Record and print the new rows; return their names."""
    new = [row for row in read_rows(rows)[0] if row["name"] not in told]
    if new:
        call.add(step, new)
    for row in new:
        outcome = "FAILED" if row["outcome"] == "failed" else row["outcome"]
        print(f"{row['seconds']:7.1f} s  {step.name}  {row['name']}  {outcome}: {row['words']}", flush=True)
    return {row["name"] for row in new}


def _row(name: str, outcome: str, words: str) -> dict[str, Any]:
    return {"name": name, "outcome": outcome, "words": words, "values": {}, "seconds": 0.0}


def chosen(options: argparse.Namespace) -> Iterator[Step]:
    for step in STEPS:
        if not options.only or step.name in options.only:
            yield step


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(BY_NAME), help="these steps")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="of the whole call; default %(default)g"
    )
    parser.add_argument("--list", action="store_true", help="say what is to be run, and why; run nothing")
    parser.add_argument("--page", action="store_true", help="write gpu.md again from gpu.json; run nothing")
    parser.add_argument("--again", action="store_true", help="try also what has passed")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels that are installed without a network")
    parser.add_argument("--to", type=Path, default=PAGE.parent, help="folder of gpu.md and gpu.json")
    parser.add_argument("--copy-to", type=Path, help="a folder that gets gpu.md, gpu.json and the logs too")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on the CPU; needs --to")
    options = parser.parse_args(arguments)
    if options.smoke and options.to == PAGE.parent:
        parser.error("--smoke needs --to: results of a CPU do not belong in docs/evidence/gpu.md")
    if not options.minutes > 0:
        parser.error(f"--minutes {options.minutes:g}: must be more than 0")
    return options


def command_of(options: argparse.Namespace) -> str:
    """Return the command as a reader would type it, without this machine's folders."""
    words = ["python -m tests.gpu", *(["--smoke"] if options.smoke else [])]
    words += [f"--only {' '.join(options.only)}"] if options.only else []
    words += [f"--minutes {options.minutes:g}"] if options.minutes != MINUTES else []
    return " ".join([*words, *(["--again"] if options.again else [])]) if len(words) > 1 else "make gpu"


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    began = now()
    if options.page:
        page.write(options.to, page.read(options.to / "gpu.json"))
        return 0
    try:
        if options.wheels:
            machine.install(options.wheels)
        if lacking := machine.missing():
            print(
                f"missing: {', '.join(lacking)}. Install them (pip install {' '.join(lacking)}), or give "
                "their wheels with --wheels DIR."
            )
            return 2
        found = machine.look()
    except OSError as error:
        print(error)
        return 2
    call = Call(options, found, began + 60 * options.minutes, command_of(options))
    if not found.gpus and not options.smoke:
        if not (options.to / "gpu.json").exists():
            page.write(options.to, {})
        torch = found.versions["torch"]
        print(
            f"torch {torch} sees no GPU here: nothing was run. --smoke --to DIR runs every step on the CPU."
        )
        return 1
    for words in machine.left_out():
        print(words)
    print(found.words, flush=True)
    left = []
    for step in chosen(options):
        reason = why_to_run(call, step)
        print(f"{step.name}: {reason or 'done'}", flush=True)
        left += [step] if reason else []
    if not options.list:
        run_all(call, left)
    rows = [row for step in chosen(options) for row in rows_of(call, step).values()]
    failed = sum(row["outcome"] == "failed" for row in rows)
    print(f"{len(rows)} cases, {failed} failed; {options.to / 'gpu.md'}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
