"""Seconds of commands that a user waits for, as whole processes, next to grep and to an older version.

    python tests/benchmarks/commands.py [--old FOLDER] [--rounds 9] [--only status logs ...]
                                        [--points 1000000 2000000] [--log-bytes 1000000000]

`--old` is the root of another version of this repository, such as an unpacked `git archive`; it runs with the
same Python and packages, in turn with this one. CPU seconds are user and system time of the process and its
children; the table has the median, the least and the most of all rounds, and the median of the elapsed time.
Modules are compiled in advance, as pip does. status and logs read a run of 60 steps, and curves one
with 20 scalars at each step; the model of generate and serve has 6 layers of width 384. serve is measured
until it says that it listens; its CPU seconds include its end.
"""

import argparse
import contextlib
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.list_runs import cpu_seconds

REPOSITORY = Path(__file__).absolute().parents[2]
NEEDLE = "out of memory"
LINE = "step {:>9,} | tokens 41.0k | loss 3.1415 | lr 0.001 | 5,104 tokens/s | memory 512.0 MiB\n"
# Each version writes the runs that it reads, because the files of a run may differ between versions.
SHORT = """
import sys, time
from pathlib import Path
from tests.lab.widgets.fake_run import FakeJob, RunDir
job = FakeJob(RunDir(Path(sys.argv[1])), 60)
for _ in range(60):
    job.one_step()
at, records = time.time(), sys.modules[type(job.record).__module__]
job.record.attempts.append(records.AttemptRecord(0, at - 60, 1, 1, running_at=at - 50, ended_at=at))
job.finish("SUCCEEDED", "done")
"""
LONG = """
import sys
from pathlib import Path
from tests.benchmarks.server_cost import make_long_run
make_long_run(Path(sys.argv[1]), int(sys.argv[2]))
"""
SAVED = """
import sys
from tests.inference.saved import save_run
sizes = {"model.num_layers": 6, "model.hidden_size": 384, "model.num_attention_heads": 6}
save_run(sys.argv[1].rpartition("/")[2], {**sizes, "model.seq_length": 256}, std=0.05)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", type=Path, help="the root of another version of this repository")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--only", nargs="+", metavar="WORD", help="status, logs, check, plan, curves, grep, generate, serve"
    )
    parser.add_argument("--points", type=int, nargs="*", default=[1_000_000, 2_000_000])
    parser.add_argument("--log-bytes", type=int, default=1_000_000_000)
    options = parser.parse_args()
    old = options.old and options.old.resolve()
    print("| command | program | CPU s, median | least to most | relative to this version | elapsed s |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        # `python -m` in a command's own processes would find this version in the current folder.
        versions = [Version("this version", REPOSITORY, Path(name) / "this")]
        if old:
            versions.append(Version("old", old, Path(name) / "old"))
        for command, peer in commands(versions, options):
            programs = {version.title: (version.call(command), version.variables) for version in versions}
            programs |= {title: (words, dict(os.environ)) for title, words in peer.items()}
            compare(
                " ".join(command[:2] + [word for word in command[2:3] if word[0] == "-"]), programs, options
            )


class Version:
    """A version of nbtrain: its modules, compiled in a separate folder, and its runs."""

    def __init__(self, title: str, root: Path, folder: Path):
        self.title, self.output = title, folder / "output"
        self.output.mkdir(parents=True)
        (folder / "data").mkdir()  # where a plan keeps the rate of this machine's cores
        variables = {"PYTHONPATH": str(root), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
        variables |= {"NBTRAIN_WORKSPACE": str(folder), "NBTRAIN_OUTPUT": str(self.output)}
        variables |= {"NBTRAIN_QUEUE": str(folder / "queue"), "MPLCONFIGDIR": str(folder)}
        self.variables = {**os.environ, **variables}
        self.variables.pop("PYTHONDONTWRITEBYTECODE", None)

    def call(self, command: list[str]) -> list[str]:
        words = [word.replace("OUTPUT", str(self.output)) for word in command]
        return [sys.executable, "-P", "-m", "nbtrain", *words]

    def write(self, code: str, name: str, *arguments: object) -> None:
        words = [sys.executable, "-P", "-c", code, str(self.output / name), *map(str, arguments)]
        subprocess.run(words, env=self.variables, check=True)

    def write_log(self, name: str, num_bytes: int) -> Path:
        """Write a run whose log has this size, and the needle in its last line."""
        self.write(SHORT, name)
        (path,) = (self.output / name).glob("jobs/*/logs/0.0.log")
        with path.open("w", encoding="utf-8") as stream:
            for step in range(num_bytes // len(LINE.format(0))):
                stream.write(LINE.format(step))
            stream.write(f"RuntimeError: {NEEDLE}\n")
        return path


def commands(
    versions: list[Version], options: argparse.Namespace
) -> Iterator[tuple[list[str], dict[str, list[str]]]]:
    """Write the runs that each command needs, and yield (command, {title: its peer})."""

    def is_wanted(word: str) -> bool:
        return not options.only or word in options.only

    bare = {"an empty Python process": [sys.executable, "-c", "pass"]}
    for version in versions:
        version.write(SHORT, "short")
    for words in (["status", "short"], ["logs", "short"], ["check", "gpt-tiny"], ["plan", "175B"]):
        if is_wanted(words[0]):
            yield words, bare
    for points in options.points if is_wanted("curves") else ():
        name = f"{points:,}-points".replace(",", "-")
        for version in versions:
            version.write(LONG, name, points)
        yield ["curves", name, "-o", "OUTPUT/curves.png"], {}
    torch = {"a process that imports torch": [sys.executable, "-c", "import torch"]}
    models = (["generate", "saved", "-n", "64", "--prompt", "the model"], ["serve", "saved", "--port", "0"])
    models = tuple(words for words in models if is_wanted(words[0]))
    for version in versions if models else ():
        version.write(SAVED, "saved")
    for words in models:
        yield words, torch
    if options.log_bytes and is_wanted("grep"):
        logs = [version.write_log("logged", options.log_bytes) for version in versions]
        yield ["logs", "logged", "--grep", NEEDLE], {"grep -F": ["grep", "-F", NEEDLE, str(logs[0])]}


def compare(
    title: str, programs: dict[str, tuple[list[str], dict[str, str]]], options: argparse.Namespace
) -> None:
    """Run the programs in turn, and print a row of each; the first call of each is not counted."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for number in range(options.rounds + 1):
        for name, (command, variables) in programs.items():
            measured = (
                start_seconds(command, variables) if "serve" in command else run_seconds(command, variables)
            )
            if number:
                seconds[name].append(measured)
    ours = statistics.median(cpu for cpu, _ in next(iter(seconds.values())))
    for name, values in seconds.items():
        cpu = [one for one, _ in values]
        median, elapsed = statistics.median(cpu), statistics.median(one for _, one in values)
        spread = f"{min(cpu):.3f} to {max(cpu):.3f}"
        row = f"{title} | {name} | {median:.3f} | {spread} | {median / ours:.2f} | {elapsed:.2f}"
        print(f"| {row} |", flush=True)


def run_seconds(command: list[str], variables: dict[str, str]) -> tuple[float, float]:
    """Return the CPU seconds and the elapsed seconds of a process."""
    begin = time.perf_counter()
    return cpu_seconds(command, variables), time.perf_counter() - begin


def start_seconds(command: list[str], variables: dict[str, str]) -> tuple[float, float]:
    """Return the CPU seconds of a server from its start to its end, and the seconds until it listens."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith("a page to try it") for line in process.stdout)
        elapsed = time.perf_counter() - begin
        process.send_signal(signal.SIGTERM)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, elapsed


if __name__ == "__main__":
    main()
