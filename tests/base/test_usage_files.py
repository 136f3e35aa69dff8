"""Files with the resource usage of a node over time: levels, torn frames, full disks, and file sizes."""

import itertools
import math
from pathlib import Path

import pytest

from nbtrain.base.records import Stamp
from nbtrain.base.usage import FIGURES, LEVELS, PROCESS_FIGURES
from nbtrain.base.usage_files import UsageWriter, listed, read_segment
from nbtrain.monitor.usage import read_usage

EPOCH = 1_800_000_000.0


class Node:
    """A node whose clock is set by the test."""

    def __init__(self, folder: Path, node: int = 0, boot: str = "boot-1", seconds: float = 60_000.0):
        self.folder, self.node, self.boot, self.seconds = folder, node, boot, seconds
        self.clock_error = 0.0
        self.writer = UsageWriter(folder, node)

    def sample(self, cores: float | None, after: float = 2.0, subject: str = "replica") -> None:
        self.seconds += after
        self.writer.add(
            {subject: {"cpu_cores": cores}},
            {"limits": 1},
            Stamp(self.boot, self.seconds),
            EPOCH + self.seconds + self.clock_error,
        )


def test_each_level_keeps_means_and_maxima(tmp_path: Path) -> None:
    """One minute of two-second samples becomes one point of the next level, with its mean and maximum."""
    node = Node(tmp_path)
    for number in range(90):
        node.sample(None if number % 3 == 0 else float(number))
    node.writer.close()
    levels = {level: read_segment(path) for _, level, path in listed(tmp_path)}
    assert [len(levels[level].stamps) for level in range(4)] == [90, 4, 1, 1]
    # The first period has the samples up to second 60,058: numbers 0 to 28.
    known = [number for number in range(29) if number % 3]
    assert levels[1].means[0] == pytest.approx(sum(known) / len(known))
    assert levels[1].maxima[0] == max(known)
    known = [number for number in range(90) if number % 3]
    assert levels[3].means[0] == pytest.approx(sum(known) / len(known))
    assert levels[3].maxima[0] == 89
    assert math.isnan(levels[0].means[0])


def test_the_reader_takes_the_finest_that_is_there(tmp_path: Path) -> None:
    """The reader uses the finest level that exists for each time: points every ten minutes, then every
    minute, then 2 s.
    """
    node = Node(tmp_path)
    for number in range(3 * 1800):
        node.sample(float(number))
    [read] = read_usage(tmp_path)
    points = read.points("replica", "cpu_cores")
    gaps = [round(after - before) for before, after in zip(points.times, points.times[1:])]
    assert min(gaps) == 2 and gaps.count(60) >= 55 and len(points) < 2300
    assert points.times == sorted(points.times)
    assert points.times[-1] == EPOCH + node.seconds
    assert points.newest == 5399.0
    assert read.peak("replica", "cpu_cores") == 5399.0
    assert read.mean("replica", "cpu_cores") == pytest.approx(2700, rel=0.02)
    thin = points.thinned(30)
    gaps = [round(after - before) for before, after in itertools.pairwise(thin.times)]
    assert len(thin) <= 30 and max(gaps) <= 600, "equal parts of the time, not of the points"
    assert max(thin.maxima) == 5399.0 and thin.times[-1] == points.times[-1]


def test_a_torn_or_damaged_frame_does_not_count_and_a_new_owner_goes_on(tmp_path: Path) -> None:
    """A frame that a kill tore or a power cut zeroed is skipped, and a new writer continues after it."""
    node = Node(tmp_path)
    for number in range(5):
        node.sample(float(number))
    [path] = [path for _, level, path in listed(tmp_path) if level == 0]
    with path.open("r+b") as file:
        content = file.read()
        file.seek(len(content) - 2 * 16)
        file.write(bytes(16))
        file.truncate(len(content) - 3)
    (tmp_path / "0.7.0.bin").write_bytes(b'{"format": "nbtr')
    again = Node(tmp_path, seconds=node.seconds)
    again.sample(7.0)
    assert (tmp_path / "0.8.0.bin").exists(), "numbers continue after the existing ones"
    [read] = read_usage(tmp_path)
    assert read.points("replica", "cpu_cores").means == [0.0, 1.0, 2.0, 7.0]


def test_order_is_that_of_writing_whatever_the_clock_says(tmp_path: Path) -> None:
    """Frames are read in the order of writing, even after the clock was set back or the machine rebooted."""
    node = Node(tmp_path)
    node.sample(1.0)
    node.clock_error = -7200.0
    node.writer.close()
    node.writer = UsageWriter(tmp_path, 0)
    node.sample(2.0)
    after = Node(tmp_path, boot="boot-2", seconds=30.0)
    after.sample(3.0)
    after.sample(4.0, subject="rank 1")
    [read] = read_usage(tmp_path)
    points = read.points("replica", "cpu_cores")
    assert points.means == [1.0, 2.0, 3.0]
    assert points.times[1] - points.times[0] == 2.0, "times of one boot are by its own stamps"
    assert read.subjects() == ["rank 1", "replica"]
    assert read.points("rank 1", "cpu_cores").means == [4.0]
    assert len(read.points("gpu 0", "power_watts")) == 0


def test_a_disk_that_takes_nothing_costs_frames_and_no_file(tmp_path: Path) -> None:
    """While nothing can be written, samples are lost; existing frames are kept, and no empty file appears."""
    node = Node(tmp_path / "resources")
    node.sample(1.0)
    node.writer.close()
    kept = sorted(path.name for path in (tmp_path / "resources").iterdir())
    (tmp_path / "resources").rename(tmp_path / "aside")
    (tmp_path / "resources").write_text("in the way")
    for number in range(200):
        node.sample(float(number))
    (tmp_path / "resources").unlink()
    (tmp_path / "aside").rename(tmp_path / "resources")
    node.sample(5.0)
    assert set(kept) < {path.name for path in (tmp_path / "resources").iterdir()}
    [read] = read_usage(tmp_path / "resources")
    assert read.points("replica", "cpu_cores").means == [1.0, 5.0]


@pytest.mark.slow
def test_a_job_that_restarts_for_ever_keeps_few_files(tmp_path: Path) -> None:
    for number in range(70):
        node = Node(tmp_path, seconds=1000.0 * number)
        node.sample(1.0)
        node.writer.close()
    assert len(list(tmp_path.iterdir())) == 64 * len(LEVELS)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 8])
def test_a_month_of_64_ranks_is_under_100_MB(tmp_path: Path, ranks: int) -> None:
    """A month of usage of 64 ranks fits in 100 MB, on 64 nodes with one GPU each or on 8 nodes with 8.

    Only one node is written: a sample every ten minutes, every minute on the last day, and every two seconds
    in the last hour. Every level then has as many frames as with a sample every two seconds throughout.
    """
    node_figures = [name for name in FIGURES if not name.startswith(("read_", "write_", *GPU_FIGURES))]
    subjects = {"node": node_figures, "replica": PROCESS_FIGURES}
    subjects |= {f"rank {rank}": PROCESS_FIGURES for rank in range(ranks) if ranks > 1}
    subjects |= {f"gpu {rank}": GPU_FIGURES for rank in range(ranks)}
    writer = UsageWriter(tmp_path, 0)
    coarse = [600.0 * number for number in range(29 * 144)]
    minutes = [coarse[-1] + 60.0 * number for number in range(1, 1381)]
    seconds = [minutes[-1] + 2.0 * number for number in range(1, 1801)]
    for at in coarse + minutes + seconds:
        sample = {subject: dict.fromkeys(names, at % 97) for subject, names in subjects.items()}
        writer.add(sample, {"host": "node-0"}, Stamp("boot", at), EPOCH + at)
    writer.close()
    files = {level: [path for _, one, path in listed(tmp_path) if one == level] for level in range(4)}
    frames = {level: sum(len(read_segment(path).stamps) for path in files[level]) for level in files}
    assert frames[0] >= 1800 and frames[1] >= 1440 and frames[2] >= 4315 and frames[3] >= 239
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size * 64 / ranks == pytest.approx({1: 86.5e6, 8: 51.7e6}[ranks], rel=0.02)
    [read] = read_usage(tmp_path)
    times = read.points("replica", "cpu_cores").times
    assert times[-1] - times[0] > 29.9 * 86400


GPU_FIGURES = (
    *("gpu_fraction", "gpu_memory_bytes", "temperature_celsius", "power_watts", "sm_clock_mhz"),
    "tensor_fraction",
)
