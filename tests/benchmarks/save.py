"""Seconds of a checkpoint's file on the disk, next to torch.save, and the pause of training for a checkpoint.

    python tests/benchmarks/save.py [--old FOLDER] [--rounds 12] [--bytes 536870912] [--pauses 5]

The file holds fp32 tensors of 64 MiB. nbtrain writes it as one of a checkpoint: hashed, synced, renamed,
and its folder synced. torch.save writes it to its path, which is then synced. Each program is a process of
its own that keeps the tensors; they write in turn, each time a new file.

The pauses are those that the trainer reports for a GPT of 91M parameters in fp32, with one rank and a
checkpoint after each step: as the plan decides for this machine (the default), written at once, and in the
background (checkpoint.async_save).

`--old` is the root of another version of this repository, such as an unpacked `git archive`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).absolute().parents[2]
# Answers each line, a path, with (wall seconds, CPU seconds) of writing a file there.
WRITER = """
import os, sys, time
from pathlib import Path
import torch
state = {str(number): torch.randn(1 << 24) for number in range(int(sys.argv[2]) >> 26)}
if sys.argv[1] == "torch.save":
    def write(path):
        torch.save(state, path)
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())
else:
    try:
        from nbtrain.checkpoint.files.torch_files import write_file
    except ModuleNotFoundError:  # before 2026-11-28
        from nbtrain.checkpoint.torch_files import write_file
    write = lambda path: write_file(path, state)
for line in sys.stdin:
    path = Path(line.strip())
    os.sync()
    before = time.perf_counter(), time.process_time()
    write(path)
    print(time.perf_counter() - before[0], time.process_time() - before[1], flush=True)
    path.unlink()
"""
TRAIN = """
import json, sys
from pathlib import Path
from tests.train import launch
root, way, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if not (root / "data").is_dir():
    launch.make_dataset(root / "data", vocab_size=8192)
sizes = {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12}
changes = {f"model.{key}": value for key, value in sizes.items()}
changes |= {"batch.train_tokens": steps * 4 * 32, "tokenizer.vocab_size": 8192, "parallel.zero_stage": 0}
changes |= {"checkpoint.save_interval_steps": 1, "checkpoint.keep_last": 1}
if way != "by default":
    changes["checkpoint.async_save"] = way == "background"
run = launch.make_run(root, changes, way.replace(" ", "-"))
if way == "by default":
    # What the supervisor of a job writes into the record of an attempt.
    from nbtrain.planner.memory import saving_here
    job = run.newest_job()
    record, saving = launch.JobRecord.read(job.job_json), saving_here(launch.load_resolved(run.config_yaml))
    print(saving.words, file=sys.stderr)
    record.attempts[-1].async_save = saving.in_background
    record.write(job.job_json)
launch.wait(launch.start(run, root / "data", OMP_NUM_THREADS="2"), run)
events = [event for job in run.job_ids() for event in launch.read_events(run.job(job))]
saved = [event for event in events if event["kind"] == "checkpoint" and "stall_seconds" in event]
print(json.dumps([[event["bytes"], event["stall_seconds"], event["seconds"]] for event in saved]))
"""


# Other versions may have no default that depends on the machine.
WAYS = ("by default", "at once", "background")


class Writer:
    """A process that writes a file for each line that it gets."""

    def __init__(self, kind: str, tree: Path, size_bytes: int):
        self.kind, self.seconds, self.cpu_seconds = kind, [], []
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, kind, str(size_bytes)],
            env={**os.environ, "PYTHONPATH": str(tree)},
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def write(self, path: Path) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(path, file=self.process.stdin, flush=True)
        wall, cpu = map(float, self.process.stdout.readline().split())
        self.seconds.append(wall)
        self.cpu_seconds.append(cpu)


def files(trees: dict[str, Path], options: argparse.Namespace, folder: Path) -> None:
    """Print a row for each program that writes the file."""
    writers = [
        Writer(kind, tree, options.bytes) for kind, tree in {**trees, "torch.save": REPOSITORY}.items()
    ]
    for writer in writers:
        # The first file also pays for imports.
        writer.write(folder / "file.pt")
    for writer in writers:
        writer.seconds.clear(), writer.cpu_seconds.clear()
    for number in range(options.rounds):
        for writer in writers[number % len(writers) :] + writers[: number % len(writers)]:
            writer.write(folder / "file.pt")
    print(f"\n{options.bytes / 2**20:,.0f} MiB, {options.rounds} rounds, load {os.getloadavg()[0]:.1f}\n")
    print("| program | s | least to most | CPU s | relative to torch.save, median of rounds |")
    print("| --- | --- | --- | --- | --- |")
    for writer in writers:
        each = [own / peer for own, peer in zip(writer.seconds, writers[-1].seconds, strict=True)]
        print(
            f"| {writer.kind} | {statistics.median(writer.seconds):.3f} | {min(writer.seconds):.3f} to "
            f"{max(writer.seconds):.3f} | {statistics.median(writer.cpu_seconds):.3f} | "
            f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f}) |"
        )
        writer.process.kill()
        writer.process.wait()


def pauses(trees: dict[str, Path], options: argparse.Namespace, folder: Path) -> None:
    """Print a row for each way to save a checkpoint while training."""
    print("\n| program | checkpoint | pause, s per GB | least to most | first | until it counts, s per GB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kind, tree in trees.items():
        for way in WAYS if kind == "nbtrain" else WAYS[1:]:
            ended = subprocess.run(
                [sys.executable, "-c", TRAIN, str(folder / kind), way, str(options.pauses + 1)],
                env={**os.environ, "PYTHONPATH": str(tree)},
                cwd=tree,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            # The first one also allocates buffers.
            first, *saved = json.loads(ended.stdout.splitlines()[-1])
            paused = [stall / size * 1e9 for size, stall, _ in saved]
            whole = [seconds / size * 1e9 for size, _, seconds in saved]
            print(
                f"| {kind} | {way}, {saved[0][0] / 1e9:.2f} GB | {statistics.median(paused):.2f} | "
                f"{min(paused):.2f} to {max(paused):.2f} | {first[1] / first[0] * 1e9:.2f} | "
                f"{statistics.median(whole):.2f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", type=Path, help="the root of another version of this repository")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--bytes", type=int, default=512 << 20)
    parser.add_argument("--pauses", type=int, default=5, help="checkpoints of each kind; 0 leaves them out")
    options = parser.parse_args()
    trees = {"nbtrain": REPOSITORY}
    if options.old:
        trees["old"] = options.old.resolve()
    with tempfile.TemporaryDirectory() as folder:
        files(trees, options, Path(folder))
        if options.pauses:
            pauses(trees, options, Path(folder))


if __name__ == "__main__":
    main()
