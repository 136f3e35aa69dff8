"""`make parity`: every combination of parallelism on up to 8 CPU ranks; writes docs/evidence/parity.md.

    python -m tests.parity.matrix [--only parity autotp resume reshape] [--folder build/parity] [--at-once 2]
                                  [--match fp16] [--ulysses | --context] [--page]

Results are kept in --folder under the hash of the sources, so that an interrupted run continues. Once all
cases are done, the page is written. With --ulysses, only layouts that combine Ulysses with tensor or pipeline
parallelism are run, and docs/evidence/parity-ulysses.md is written. With --context, only layouts with context
parallelism are run, and docs/evidence/parity-context.md is written. With --match only cases whose names
contain the text are run, and no page is written. With --page nothing is run: the page is written from the
results that are there, and says how many are missing. Exits with 1 if a deviation is larger than allowed.
"""

import argparse
import itertools
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.proof import fork_client
from nbtrain.proof.fork_client import ForkServer
from tests.parity import page
from tests.parity.cases import Case, is_cut_both_ways, parity_cases, shares_context
from tests.parity.reshaping import (
    first_half,
    reshape_cases,
    reshape_cases_all,
    reshape_cases_bf16,
    reshape_cases_muon,
    reshaped,
)
from tests.parity.resuming import resume_cases, resumed
from tests.parity.runner import Job, RunFailed, Runner, exceeds, make_datasets
from tests.parity.sources import (
    PARITY,
    PARITY_CONTEXT,
    PARITY_ULYSSES,
    REPOSITORY,
    sources_sha256,
    stamp,
)

TABLES = ("parity", "autotp", "resume", "reshape")
AUTOTP = [Case(tp=2), Case(tp=4), Case(tp=2, dp=2), Case(tp=2, dp=2, zero=2), Case(tp=2, dp=2, zero=3)]

Record = dict[str, Any]
"""{table, name, ok, seconds, found or error}."""


class Results:
    """A file of JSON lines with the results for one version of the sources."""

    def __init__(self, folder: Path):
        self.path = folder / f"results-{sources_sha256()[:16]}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.records: dict[tuple[str, str], Record] = {}
        for line in lines:
            record = json.loads(line)
            # A case that failed is run again.
            if record["ok"]:
                self.records[record["table"], record["name"]] = record

    def add(self, record: Record) -> None:
        self.records[record["table"], record["name"]] = record
        with self.path.open("a") as stream:
            stream.write(json.dumps(record) + "\n")

    def of(self, table: str, entries: Iterable["Entry"]) -> list[Record]:
        """Return the results of these entries of a table, in their order; missing ones are left out."""
        keys = ((table, name) for name, _ in entries)
        return [self.records[key] for key in keys if key in self.records]


def parity_job(runner: Runner, case: Case) -> Job[Record]:
    found = yield from runner.parity(case)
    shutil.rmtree(runner.run_dir(case.name).model)
    more = exceeds(found, case)
    return {
        "ok": not more,
        "found": asdict(found),
        "error": more,
        "ranks": case.ranks,
        "precision": case.precision,
    }


def autotp_job(runner: Runner, case: Case) -> Job[Record]:
    if not runner.run_dir(case.name).path.exists():
        yield from runner.train(runner.make_run(case, case.name), case)
    loss, norm = yield from runner.autotp(case)
    ok = loss <= case.tolerance.loss and norm <= case.tolerance.grad_norm
    return {"ok": ok, "found": {"loss": loss, "grad_norm": norm}, "error": "" if ok else "deviates"}


def resume_job(runner: Runner, case: Case) -> Job[Record]:
    found = yield from resumed(runner, case)
    for end in ("straight", "cut"):
        shutil.rmtree(runner.run_dir(f"{case.name}-{end}").model)
    return {"ok": True, "found": asdict(found), "error": "", "ranks": case.ranks}


def reshape_job(runner: Runner, origin: Case, target: Case) -> Job[Record]:
    found = yield from reshaped(runner, _first_of(runner, origin), target)
    return {
        "ok": True,
        "found": asdict(found),
        "error": "",
        "from": origin.layout,
        "to": target.layout,
        "kind": origin.precision
        + (f", model {origin.model}" if origin.model != "gpt" else "")
        + (", Muon" if origin.optimizer == "muon" else ""),
    }


def _first_of(runner: Runner, origin: Case) -> RunDir:
    return runner.run_dir(f"{origin.name}-first")


Entry = tuple[str, tuple[Case, ...]]
"""(name of a result, its case; a reshaped run has two)."""


def entries_of(table: str) -> Iterator[Entry]:
    """Yield the results of a table, in order; the pairs of a reshaped layout follow one another."""
    if table == "reshape":
        for cases in (
            reshape_cases(),
            reshape_cases_bf16(),
            reshape_cases_all(),
            reshape_cases_muon(),
        ):
            for origin, target in itertools.permutations(cases, 2):
                yield f"{origin.name} -> {target.name}", (origin, target)
        return
    for case in {"parity": parity_cases, "autotp": lambda: AUTOTP, "resume": resume_cases}[table]():
        yield case.name, (case,)


def jobs_of(table: str, runner: Runner, entries: Iterable[Entry]) -> Iterator[tuple[str, Job[Record]]]:
    """Yield (name, job) of each entry."""
    if table != "reshape":
        job = {"parity": parity_job, "autotp": autotp_job, "resume": resume_job}[table]
        for name, (case,) in entries:
            yield name, job(runner, case)
        return
    for origin, pairs in itertools.groupby(entries, key=lambda entry: entry[1][0]):
        # It must be trained before its checkpoint is loaded.
        for name, found in runner.finish([(origin.name, first_half(runner, origin))]):
            if isinstance(found, str):
                raise RunFailed(f"{name}: {found}")
        for name, (_, target) in pairs:
            yield name, reshape_job(runner, origin, target)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "build" / "parity")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--match", default="", help="a part of the name")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--ulysses", action="store_true", help="Ulysses with tensor or pipeline parallelism")
    kinds.add_argument("--context", action="store_true", help="context parallelism")
    parser.add_argument("--page", action="store_true", help="write the page from the results so far")
    options = parser.parse_args()
    results = Results(options.folder)
    entries = {table: list(entries_of(table)) for table in TABLES}
    evidence, head = PARITY, page.HEAD
    if options.ulysses or options.context:
        is_of_kind = is_cut_both_ways if options.ulysses else shares_context
        for table, every in entries.items():
            entries[table] = [entry for entry in every if any(map(is_of_kind, entry[1]))]
        if options.ulysses:
            evidence, head = PARITY_ULYSSES, page.HEAD_ULYSSES
        else:
            evidence, head = PARITY_CONTEXT, page.HEAD_CONTEXT
    failed = 0
    if not options.page:
        failed = run(results, {table: entries[table] for table in options.only}, options)
        if options.match:
            return min(failed, 1)
    found = {table: results.of(table, every) for table, every in entries.items()}
    wanted = sum(map(len, entries.values()))
    evidence.page.write_text(page.text(head, found, stamp(evidence), wanted))
    print(f"{evidence.page}: written; {failed} failed")
    return min(failed, 1)


def run(results: Results, entries: dict[str, list[Entry]], options: argparse.Namespace) -> int:
    """Run the entries of each table that have no result yet, and return how many failed."""
    # A timeout on a busy machine is not a failure of the case.
    fork_client.START_SECONDS = 1200.0
    runs, failed = options.folder / "runs", 0
    shutil.rmtree(runs, ignore_errors=True)
    make_datasets(runs / "data")
    with ForkServer() as server:
        runner = Runner(server, runs, runs / "data")
        for table, every in entries.items():
            left = [
                entry
                for entry in every
                if (table, entry[0]) not in results.records and options.match in entry[0]
            ]
            started = time.monotonic()
            for name, found in runner.finish(jobs_of(table, runner, left), options.at_once):
                record = {"ok": False, "error": found} if isinstance(found, str) else found
                record = {"table": table, "name": name, "seconds": time.monotonic() - started, **record}
                results.add(record)
                failed += not record["ok"]
                what = "ok" if record["ok"] else f"FAILED {record['error']}"
                print(f"{record['seconds']:7.1f} s  {table}  {name}  {what}", flush=True)
    shutil.rmtree(runs)
    return failed


if __name__ == "__main__":
    sys.exit(main())
