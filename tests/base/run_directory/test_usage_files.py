"""Files with the resource usage of a node over time: merged points, torn lines, full disks, file sizes."""

import errno
import itertools
import json
import math
import random
import resource
import signal
import threading
import weakref
from pathlib import Path

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.records import Stamp
from nbtrain.base.run_directory.usage import FIGURES, PROCESS_FIGURES
from nbtrain.base.run_directory.usage_files import (
    MOST_SECTIONS,
    Point,
    UsageReader,
    UsageWriter,
    encoded,
    merged,
    read_sections,
)
from nbtrain.monitor.usage.usage import read_usage, usage_warnings

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


def points_of(node: Node) -> list[Point]:
    """Return the points of a node's file, in all sections."""
    return [point for section in read_sections(node.folder / "0.jsonl") for point in section.points]


def test_old_samples_are_merged_into_their_mean_and_maximum(tmp_path: Path) -> None:
    """Samples that are older than an hour are one point per minute; unknown values do not count."""
    node = Node(tmp_path)
    for number in range(90):
        node.sample(None if number % 3 == 0 else float(number))
    [section] = read_sections(tmp_path / "0.jsonl")
    assert len(section.points) == 90 and section.points[0].means == [None]
    node.sample(0.0, after=3600.0)
    [section] = read_sections(tmp_path / "0.jsonl")
    [section] = merged([section])
    # The first minute has the samples up to second 60,058: numbers 0 to 28.
    assert [point.num_samples for point in section.points] == [29, 30, 30, 1, 1]
    known = [number for number in range(29) if number % 3]
    assert section.points[0].means == [pytest.approx(sum(known) / len(known))]
    assert section.points[0].maxima == [max(known)] and section.points[0].stamp == 60_058.0
    again = [*section.points]
    assert merged([section])[0].points == again


def test_points_become_coarser_with_age(tmp_path: Path) -> None:
    """Samples for an hour, minutes for a day, ten minutes for a week, then hours; the rest is deleted."""
    node = Node(tmp_path)
    for day in (600, 30, 5, 0.5):
        node.seconds = 1e9 - day * 86400
        for number in range(1800):
            node.sample(float(number))
    node.seconds = 1e9
    node.sample(1.0)
    [section] = merged(read_sections(tmp_path / "0.jsonl"))
    counts = [0, 0, 0, 0]
    for point in section.points:
        age = (1e9 + 2 - point.stamp) / 86400
        counts[0 if age > 20 else 1 if age > 2 else 2 if age > 0.1 else 3] += 1
    assert counts[0] in (1, 2) and counts[1] in (6, 7) and counts[2] in (60, 61) and counts[3] == 1
    assert max(most for point in section.points for most in point.maxima) == 1799.0


def test_the_writer_merges_once_an_hour(tmp_path: Path) -> None:
    """The file stays small while it grows, and the reader has one history of it."""
    node = Node(tmp_path)
    for number in range(3 * 1800):
        node.sample(float(number))
    [read] = read_usage(tmp_path)
    points = read.points("replica", "cpu_cores")
    gaps = [round(after - before) for before, after in zip(points.times, points.times[1:])]
    assert gaps.count(60) >= 55 and len(points) < 3700
    assert points.times == sorted(points.times)
    assert points.times[-1] == EPOCH + node.seconds
    assert points.newest == 5399.0
    assert read.peak("replica", "cpu_cores") == 5399.0
    assert read.mean("replica", "cpu_cores") == pytest.approx(2699.5, rel=1e-3)
    thin = points.thinned(30)
    gaps = [round(after - before) for before, after in itertools.pairwise(thin.times)]
    assert len(thin) <= 30 and max(gaps) <= 600, "equal parts of the time, not of the points"
    assert max(thin.maxima) == 5399.0 and thin.times[-1] == points.times[-1]


def test_whole_numbers_are_exact_and_others_have_six_digits(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for value in (float(2**40 + 1), 1 / 3, 1e-9, math.inf):
        node.sample(value)
    assert [point.means for point in points_of(node)] == [[2**40 + 1], [0.333333], [1e-9], [None]]


@pytest.mark.parametrize("torn", [b'{"at":60012.0,"me', b"\0\0\0\0", b'{"at":60012.0,"mean":[1.0]}'])
def test_a_line_that_was_cut_off_does_not_count_and_a_new_owner_continues(
    tmp_path: Path, torn: bytes
) -> None:
    """A line without its end is skipped, and so is a header; a new owner continues after it."""
    node = Node(tmp_path)
    for number in range(5):
        node.sample(float(number))
    with (tmp_path / "0.jsonl").open("ab") as stream:
        stream.write(torn)
    assert [point.means for point in points_of(node)] == [[0], [1], [2], [3], [4]]
    again = Node(tmp_path, seconds=node.seconds)
    again.sample(7.0)
    [read] = read_usage(tmp_path)
    assert read.points("replica", "cpu_cores").means == [0.0, 1.0, 2.0, 3.0, 4.0, 7.0]
    assert (tmp_path / "0.jsonl").read_bytes().count(b"mean") == 6


def test_a_file_of_another_version_has_no_points(tmp_path: Path) -> None:
    (tmp_path / "0.jsonl").write_text('{"format": "nbtrain usage", "version": 2}\n{"at": 1.0, "mean": []}\n')
    assert read_sections(tmp_path / "0.jsonl") == [] and read_usage(tmp_path) == []
    assert usage_warnings(tmp_path) == [
        "resources/0.jsonl: 1 section in format version 2 is not shown, because this version of nbtrain "
        "reads only format version 1."
    ]
    with (tmp_path / "0.jsonl").open("a") as stream:
        stream.write('{"format": "nbtrain usage", "version": 1}\n')
    [warning] = usage_warnings(tmp_path)
    assert "2 sections are not shown: some headers are damaged, others name format version 2" in warning
    assert read_sections(tmp_path / "1.jsonl") == []


def test_a_reader_parses_appended_lines_only_and_a_replaced_file_again(tmp_path: Path) -> None:
    """A file that was replaced by one with other content is read from its start, whatever its size."""
    node, parsed = Node(tmp_path), []
    reader = UsageReader(tmp_path / "0.jsonl", lambda line: parsed.append(line) or json.loads(line))
    values = lambda: [point.means[0] for section in reader.sections for point in section.points]  # noqa: E731
    node.sample(1.0)
    assert reader.refresh() and values() == [1] and len(parsed) == 2
    assert not reader.refresh()
    node.sample(2.0)
    assert reader.refresh() and values() == [1, 2] and len(parsed) == 3
    assert read_usage(tmp_path)[0].points("replica", "cpu_cores").means == [1.0, 2.0]
    text = (tmp_path / "0.jsonl").read_text()
    files.write_text(tmp_path / "0.jsonl", text.replace('"mean":[2]', '"mean":[5]'))
    assert reader.refresh() and values() == [1, 5] and len(parsed) == 6
    [usage] = read_usage(tmp_path)
    assert usage.points("replica", "cpu_cores").means == [1.0, 5.0]
    # Requests that are answered at once share no points, and these are freed with the answer.
    freed = weakref.ref(usage)
    del usage
    assert freed() is None
    (tmp_path / "0.jsonl").unlink()
    assert reader.refresh() and values() == [] and not reader.refresh()


@pytest.mark.parametrize(
    "damage",
    [
        {"columns": [["replica"]]},
        {"columns": 5},
        {"columns": None},
        {"time": "now"},
        {"stamp": None},
    ],
)
def test_a_damaged_header_costs_only_its_section(tmp_path: Path, damage: dict) -> None:
    """A header with values of other types is skipped with the points after it, and so is a damaged point."""
    node = Node(tmp_path)
    node.sample(1.0)
    path = tmp_path / "0.jsonl"
    head = json.loads(path.read_bytes().splitlines()[0])
    with path.open("a") as stream:
        stream.write('{"at":"soon","mean":[1]}\n{"at":1,"samples":0,"mean":[1],"max":[1]}\n')
        stream.write(json.dumps(head | damage) + '\n{"at":1,"mean":[9]}\n')
    Node(tmp_path, seconds=node.seconds).sample(2.0)
    [read] = read_usage(tmp_path)
    assert read.points("replica", "cpu_cores").means == [1.0, 2.0]


def test_order_is_that_of_writing_whatever_the_clock_says(tmp_path: Path) -> None:
    """Frames are read in the order of writing, even after the clock was set back or the machine rebooted."""
    node = Node(tmp_path)
    node.sample(1.0)
    node.clock_error = -7200.0
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


def test_a_disk_that_takes_nothing_costs_samples_and_no_file(tmp_path: Path) -> None:
    """A folder that cannot be written loses samples and keeps existing ones; later samples have a header."""
    node = Node(tmp_path / "resources")
    node.sample(1.0)
    (tmp_path / "resources").rename(tmp_path / "aside")
    (tmp_path / "resources").write_text("in the way")
    for number in range(200):
        node.sample(float(number))
    (tmp_path / "resources").unlink()
    (tmp_path / "aside").rename(tmp_path / "resources")
    node.sample(5.0)
    assert [path.name for path in (tmp_path / "resources").iterdir()] == ["0.jsonl"]
    [read] = read_usage(tmp_path / "resources")
    assert read.points("replica", "cpu_cores").means == [1.0, 5.0]


def test_a_full_disk_cuts_a_line_off_and_the_next_ones_count(tmp_path: Path) -> None:
    """With a limit on the size of files, a sample is written in part; later samples are complete again."""
    node = Node(tmp_path)
    node.sample(1.0)
    size = (tmp_path / "0.jsonl").stat().st_size
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limit[1]))
        node.sample(2.0)
        node.sample(3.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "0.jsonl").stat().st_size == size + 10
    node.sample(4.0)
    assert [point.means for point in points_of(node)] == [[1], [4]]


def test_samples_are_kept_if_a_disk_has_no_room_for_a_merged_file(tmp_path: Path, monkeypatch) -> None:
    """A merge that fails is tried again after an hour of samples, and samples are appended meanwhile."""
    Node(tmp_path).sample(1.0)
    tries = []

    def full(path: Path, content: str) -> None:
        tries.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("nbtrain.base.files.write_text", full)
    node = Node(tmp_path, seconds=60_002.0)
    for number in range(20):
        node.sample(float(number))
    assert tries == [tmp_path / "0.jsonl"]
    assert [point.means for point in points_of(node)] == [[1], *([number] for number in range(20))]


def test_a_sample_during_a_slow_merge_is_kept(tmp_path: Path, monkeypatch) -> None:
    """A sampler that a slow disk blocks in its merge does not drop what the next sampler writes."""
    Node(tmp_path).sample(1.0)
    node, write_text = Node(tmp_path, seconds=60_002.0), files.write_text
    next_sampler = threading.Thread(target=lambda: node.sample(3.0, after=0.0, subject="rank 1"))

    def slow(path: Path, content: str) -> None:
        monkeypatch.undo()
        next_sampler.start()
        # Without a lock, the other thread ends here.
        next_sampler.join(0.1)
        write_text(path, content)

    monkeypatch.setattr("nbtrain.base.files.write_text", slow)
    node.sample(2.0)
    next_sampler.join()
    assert [section.columns[0][0] for section in read_sections(tmp_path / "0.jsonl")] == [
        "replica",
        "replica",
        "rank 1",
    ]
    assert [point.means for point in points_of(node)] == [[1], [2], [3]]


def test_a_file_that_another_host_has_just_replaced_is_read_again(tmp_path: Path, monkeypatch) -> None:
    """NFS 3 answers ESTALE once after a merge on another host."""
    Node(tmp_path).sample(1.0)
    opened, answers = Path.open, [OSError(errno.ESTALE, "Stale file handle")]

    def stale(path: Path, *arguments):
        if answers:
            raise answers.pop()
        return opened(path, *arguments)

    monkeypatch.setattr(Path, "open", stale)
    [section] = read_sections(tmp_path / "0.jsonl")
    assert not answers and len(section.points) == 1


def test_a_job_that_restarts_for_ever_keeps_few_sections(tmp_path: Path) -> None:
    for number in range(70):
        Node(tmp_path, boot=f"boot-{number}").sample(1.0)
    assert len(read_sections(tmp_path / "0.jsonl")) == MOST_SECTIONS + 1
    for _ in range(5):
        node = Node(tmp_path, boot="boot-last")
        node.sample(1.0)
    assert len(read_sections(tmp_path / "0.jsonl")) == MOST_SECTIONS + 1


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 8])
def test_a_month_of_64_ranks_is_under_160_MB(ranks: int) -> None:
    """64 nodes with one rank, and 8 nodes with 8, each with a GPU and all values, fit in 160 MB a month.

    One node's points are encoded with the longest numbers, just before the hourly merge: hours, ten minutes
    of the last week, minutes of the last day, and the samples of two hours.
    """
    node_figures = [name for name in FIGURES if not name.startswith(("read_", "write_", *GPU_FIGURES))]
    subjects = {"node": node_figures, "replica": PROCESS_FIGURES}
    subjects |= {f"rank {rank}": PROCESS_FIGURES for rank in range(ranks) if ranks > 1}
    subjects |= {f"gpu {rank}": GPU_FIGURES for rank in range(ranks)}
    num_columns = sum(map(len, subjects.values()))
    chance, end = random.Random(0), 30 * 86400.0
    ages = [3600.0 * n for n in range(30 * 24, 7 * 24, -1)] + [600.0 * n for n in range(7 * 144, 144, -1)]
    ages += [60.0 * number for number in range(1440, 60, -1)]
    size = 0
    for age in ages:
        means = [chance.uniform(0, 1e9) for _ in range(num_columns)]
        size += len(encoded(Point(end - age, 30, means, [2 * value for value in means])))
    for number in range(2 * 1800):
        values = [chance.uniform(0, 1e9) for _ in range(num_columns)]
        size += len(encoded(Point(end + 2 * number, 1, values, values)))
    assert size * 64 / ranks < 160e6


GPU_FIGURES = (
    *("gpu_fraction", "gpu_memory_bytes", "temperature_celsius", "power_watts", "sm_clock_mhz"),
    "tensor_fraction",
)
