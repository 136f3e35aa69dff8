"""Cost of opening the scalars of a long run: metrics.jsonl, and TensorBoard's loader on its event files.

    python tests/benchmarks/read_metrics.py [--steps 200000] [--peer-steps 2000]

Writes a run as its trainer does (train/figures/metrics_writer.py), then reads it as a panel does, with a
CurveReader, and as a notebook does, with every point. The peer is tensorboard's EventAccumulator, on a
shorter run because it checks every record in Python. Times are CPU seconds of this process, one thread.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nbtrain.base.run_directory.metrics import BY_NAME, SCALARS
from nbtrain.base.run_directory.metrics_files import MetricsFile
from nbtrain.monitor.metrics.curves import CurveReader
from nbtrain.monitor.metrics.metrics_reader import ScalarReader
from nbtrain.train.figures.metrics_writer import MetricsWriter

NAMES = [scalar.name for scalar in SCALARS if not scalar.name.startswith(("validation", "test", "reward"))]
EVERY_STEP = NAMES[:28]
VALIDATION = ("validation_loss", "validation_perplexity")
VALIDATION_STEPS, FLUSH_STEPS = 100, 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--peer-steps", type=int, default=2_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        long, short = Path(name) / "long", Path(name) / "short"
        seconds, _ = measured(lambda: write_metrics(long, options.steps))
        print(f"{options.steps:,} steps: written at {1e6 * seconds / options.steps:.0f} us a step")
        for title, make in (("panel", CurveReader), ("every point", ScalarReader)):
            reader = make(long)
            seconds, _ = measured(reader.refresh)
            points = sum(len(series) for series in reader.series.values())
            rate = f"{1e6 * seconds / points:.2f} us a point"
            print(f"  nbtrain, {title}: {points:,} points in {seconds:.2f} s, {rate}")
            seconds, _ = measured(lambda reader=reader: [reader.refresh() for _ in range(100)])
            print(f"  nbtrain, {title}: nothing new in {10 * seconds:.3f} ms")
        seconds, _ = measured(lambda: write_both(short, options.peer_steps))
        rate = f"{1e6 * seconds / options.peer_steps:.0f} us a step"
        print(f"{options.peer_steps:,} steps: both kinds of file written at {rate}")
        for title, pattern in (("metrics.jsonl", "metrics*"), ("event files", "events*")):
            num_bytes = sum(path.stat().st_size for path in short.glob(pattern))
            print(f"  {title}: {num_bytes / options.peer_steps:.0f} bytes a step")
        reader = ScalarReader(short)
        for title, work in (("nbtrain", reader.refresh), ("tensorboard", lambda: by_tensorboard(short))):
            seconds, _ = measured(work)
            print(f"  {title}: {seconds:.2f} s, {1e6 * seconds / options.peer_steps:.1f} us a step")


def write_metrics(folder: Path, steps: int) -> None:
    """Write the metrics file of a run without its event files, which take 30 times as long."""
    file = MetricsFile(folder, 0)
    for step, names, value in scalars(steps):
        tags = [BY_NAME[name].tag for name in names]
        file.write(step, 1.7e9 + step, 8192 * step, 8 * step, dict.fromkeys(tags, value))
        if step % FLUSH_STEPS == 0:
            file.flush()
    file.flush()


def write_both(folder: Path, steps: int) -> None:
    writer = MetricsWriter(folder, 0)
    for step, names, value in scalars(steps):
        writer.write(step, 8192 * step, 8 * step, **dict.fromkeys(names, value))
    writer.close()


def scalars(steps: int) -> Iterator[tuple[int, Sequence[str], float]]:
    """Yield (step, names, value) of each line."""
    for step in range(1, steps + 1):
        value = 3.0 + math.sin(step / 500) + 0.1 * math.sin(step * 1.7)
        yield step, EVERY_STEP, value
        if step % VALIDATION_STEPS == 0:
            yield step, VALIDATION, value


def by_tensorboard(folder: Path) -> int:
    """Read event files with TensorBoard's EventAccumulator, and return the number of points."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS as KIND
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={KIND: 0}).Reload()
    return sum(len(accumulator.Scalars(tag)) for tag in accumulator.Tags()["scalars"])


def measured(work: Callable) -> tuple[float, object]:
    """Return (CPU seconds, result) of a call."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


if __name__ == "__main__":
    main()
