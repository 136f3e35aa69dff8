"""CPU seconds of commands that a user waits for, as whole processes, next to grep and to an older version.

    python tests/benchmarks/commands.py [--old FOLDER] [--rounds 9] [--only status logs ...]
                                        [--points 1000000 2000000] [--log-bytes 1000000000]

`--old` is the root of another version of this repository, such as an unpacked `git archive`; it runs with the
same Python and packages, in turn with this one. Seconds are user and system time of the process and its
children; the table has the median, the least and the most of all rounds. Modules are compiled in advance, as
pip does. The run of status and logs has 60 steps; that of curves has 20 scalars at each step.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nbtrain.base.run_directory.rundir import RunDir
from tests.benchmarks.list_runs import cpu_seconds
from tests.benchmarks.server_cost import make_long_run
from tests.lab.widgets.fake_run import FakeJob

REPOSITORY = Path(__file__).parents[2]
STEPS = 60
NEEDLE = "out of memory"
LINE = "step {:>9,} | tokens 41.0k | loss 3.1415 | lr 0.001 | 5,104 tokens/s | memory 512.0 MiB\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", type=Path, help="the root of another version of this repository")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="commands that begin with one of these")
    parser.add_argument("--points", type=int, nargs="*", default=[1_000_000, 2_000_000])
    parser.add_argument("--log-bytes", type=int, default=1_000_000_000)
    options = parser.parse_args()
    versions = {"this version": REPOSITORY} | ({"old": options.old.resolve()} if options.old else {})
    print("| command | program | CPU s, median | least to most | relative to this version |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for command, peer in commands(folder / "output", options):
            call = [sys.executable, "-P", "-m", "nbtrain", *command]
            programs = {
                version: (call, environment(folder, version, root)) for version, root in versions.items()
            }
            programs |= {title: (words, dict(os.environ)) for title, words in peer.items()}
            compare(" ".join(command).replace(name, "."), programs, options.rounds)


def commands(output: Path, options: argparse.Namespace) -> Iterator[tuple[list[str], dict[str, list[str]]]]:
    """Yield (command, {title: its peer}), and write the runs that each needs before."""

    def is_wanted(word: str) -> bool:
        return not options.only or any(word.startswith(start) for start in options.only)

    bare = {"an empty Python process": [sys.executable, "-c", "pass"]}
    job = FakeJob(RunDir(output / "short"), STEPS)
    for _ in range(STEPS):
        job.one_step()
    job.finish("SUCCEEDED", "done")
    for words in (["status", "short"], ["logs", "short"], ["check", "gpt-tiny"], ["plan", "175B"]):
        if is_wanted(words[0]):
            yield words, bare
    for points in options.points if is_wanted("curves") else ():
        make_long_run(output / f"long-{points}", points)
        yield ["curves", f"long-{points}", "-o", str(output.parent / "curves.png")], {}
    if options.log_bytes and is_wanted("grep"):
        log = write_log(RunDir(output / "logged"), options.log_bytes)
        yield ["logs", "logged", "--grep", NEEDLE], {"grep -F": ["grep", "-F", NEEDLE, str(log)]}


def write_log(run: RunDir, num_bytes: int) -> Path:
    """Write a run whose log has this size, and the needle in its last line."""
    job = FakeJob(run, 1)
    job.one_step()
    job.finish("SUCCEEDED", "done")
    path = job.job.log(0, 0)
    with path.open("w", encoding="utf-8") as stream:
        for step in range(num_bytes // len(LINE.format(0))):
            stream.write(LINE.format(step))
        stream.write(f"RuntimeError: {NEEDLE}\n")
    return path


def environment(folder: Path, version: str, root: Path) -> dict[str, str]:
    """Return the environment of a version's commands: its modules, compiled in a folder of its own."""
    variables = {**os.environ, "PYTHONPATH": str(root), "NBTRAIN_WORKSPACE": str(folder)}
    variables |= {"NBTRAIN_OUTPUT": str(folder / "output"), "NBTRAIN_QUEUE": str(folder / "queue")}
    variables |= {"PYTHONPYCACHEPREFIX": str(folder / "compiled" / version), "MPLCONFIGDIR": str(folder)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    return variables


def compare(title: str, programs: dict[str, tuple[list[str], dict[str, str]]], rounds: int) -> None:
    """Run the programs in turn, and print a row of each; the first call of each is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(rounds + 1):
        for name, (command, variables) in programs.items():
            measured = cpu_seconds(command, variables)
            if number:
                seconds[name].append(measured)
    ours = statistics.median(next(iter(seconds.values())))
    for name, values in seconds.items():
        median = statistics.median(values)
        spread = f"{min(values):.3f} to {max(values):.3f}"
        print(f"| {title} | {name} | {median:.3f} | {spread} | {median / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()
