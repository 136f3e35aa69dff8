"""Reading metrics.jsonl while it grows: restarts, incomplete and damaged lines, NaN."""

import json
import math
import random
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from nbtrain.base.run_directory.metrics_files import EXACT_TAGS, MetricsFile, metrics_files
from nbtrain.monitor.metrics import metrics_reader
from nbtrain.monitor.metrics.curves import CurveReader
from nbtrain.monitor.metrics.metrics_reader import ScalarReader
from nbtrain.monitor.metrics.series import Series
from tests.fuzzing import num_cases

LOSS = "lm-loss-training/lm loss"
NORM = "grad-norm/grad-norm"


def write(folder: Path, steps, value: float = 1.0, resumed_from_step: int = 0) -> MetricsFile:
    file = MetricsFile(folder, resumed_from_step)
    add(file, steps, value)
    return file


def add(file: MetricsFile, steps, value: float = 1.0, tag: str = LOSS) -> None:
    for step in steps:
        file.write(step, 1000.0 + step, 64 * step, step, {tag: value})
    file.flush()


def read(folder: Path) -> dict[str, Series]:
    reader = ScalarReader(folder)
    reader.refresh()
    return reader.series


def points(series: Series) -> list[tuple[int, float]]:
    return list(zip(series.steps, series.values))


def test_lines_are_strict_json_with_every_value(tmp_path: Path) -> None:
    """A line has step, time, tokens, samples and scalars by tag; NaN and infinities are strings."""
    file = MetricsFile(tmp_path, 0, 999.0)
    values = {LOSS: 0.1, NORM: math.nan, "a/up": math.inf, "a/down": -math.inf, "a/count": 2**40 + 1}
    file.write(1, 1000.25, 64, 2, values)
    file.flush()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    head, line = (json.loads(text, parse_constant=refuse) for text in lines)
    assert head == {"format": "nbtrain metrics", "version": 1, "resumed_from_step": 0, "wall_time": 999.0}
    assert line == {"step": 1, "wall_time": 1000.25, "tokens": 64, "samples": 2} | {
        LOSS: 0.1,
        NORM: "NaN",
        "a/up": "Infinity",
        "a/down": "-Infinity",
        "a/count": 2**40 + 1,
    }
    found = read(tmp_path)
    assert math.isnan(found[NORM].last) and found["a/up"].last == math.inf
    assert (found["a/down"].last, found["a/count"].last) == (-math.inf, 2.0**40 + 1)
    assert found[LOSS].wall_times == [1000.25]
    assert found[NORM].gaps.ranges == [[1, 1]]


def test_a_float32_survives_and_losses_are_exact(tmp_path: Path) -> None:
    """Nine digits identify each float32. Loss and gradient norm, which may be doubles, keep all digits."""
    import numpy as np

    values = np.random.default_rng(0).random(1000, dtype=np.float32) * np.float32(1e-3)
    doubles = np.random.default_rng(1).random(1000)
    file = MetricsFile(tmp_path, 0)
    for step, (value, double) in enumerate(zip(values.tolist(), doubles.tolist(), strict=True)):
        file.write(step, 0.0, 0, 0, {"a/float32": value, LOSS: value, NORM: double})
    file.flush()
    found = read(tmp_path)
    assert (np.array(found["a/float32"].values, dtype=np.float32) == values).all()
    assert (np.array(found[LOSS].values) == values).all() and (np.array(found[NORM].values) == doubles).all()


def test_a_resume_drops_what_is_trained_again(tmp_path: Path) -> None:
    """A new start drops the steps after its checkpoint at once, and late lines of the writer before it."""
    first = write(tmp_path, range(1, 6))
    reader = ScalarReader(tmp_path)
    assert reader.refresh()
    second = write(tmp_path, [], resumed_from_step=2)
    assert [path.name for _, path in metrics_files(tmp_path)] == ["metrics.jsonl", "metrics.2.jsonl"]
    assert reader.refresh()
    assert points(reader.series[LOSS]) == [(1, 1.0), (2, 1.0)]
    add(first, [6, 7])
    assert not reader.refresh()
    add(second, [3, 4], 2.0)
    assert reader.refresh()
    write(tmp_path, [2], 3.0, resumed_from_step=1)
    assert reader.refresh()
    expected = [(1, 1.0), (2, 3.0)]
    assert points(reader.series[LOSS]) == points(read(tmp_path)[LOSS]) == expected


def test_a_start_before_the_first_checkpoint_starts_over(tmp_path: Path) -> None:
    write(tmp_path, [1, 2])
    write(tmp_path, [1], 9.0)
    assert points(read(tmp_path)[LOSS]) == [(1, 9.0)]


def test_ten_starts_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for step in range(11):
        write(tmp_path, [step + 1], float(step), resumed_from_step=step)
    assert [number for number, _ in metrics_files(tmp_path)] == [*range(1, 12)]
    assert read(tmp_path)[LOSS].values == [float(step) for step in range(11)]


def test_refresh_reads_only_what_was_appended(tmp_path: Path, monkeypatch) -> None:
    """A refresh parses only appended lines, and returns whether there were new points."""
    reader = ScalarReader(tmp_path / "tensorboard")
    assert not reader.refresh(), "a folder that does not exist has no points"
    file = write(tmp_path / "tensorboard", range(1, 100))
    assert reader.refresh() and not reader.refresh()
    parsed = []
    parse = metrics_reader.parsed
    monkeypatch.setattr(metrics_reader, "parsed", lambda line: parsed.append(line) or parse(line))
    add(file, [100])
    assert reader.refresh() and not reader.refresh()
    assert len(parsed) == 1 and len(reader.series[LOSS]) == 100


@pytest.mark.parametrize("missing_bytes", [1, 5, 40])
def test_an_incomplete_line_waits_for_its_end(tmp_path: Path, missing_bytes: int) -> None:
    """A line without its end is neither a point nor an error, even if it is complete JSON."""
    write(tmp_path, [1, 2])
    path = tmp_path / "metrics.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-missing_bytes])
    reader = ScalarReader(tmp_path)
    assert reader.refresh() and not reader.refresh()
    assert points(reader.series[LOSS]) == [(1, 1.0)] and reader.behind_bytes == 0
    path.write_bytes(content)
    assert reader.refresh()
    assert points(reader.series[LOSS]) == [(1, 1.0), (2, 1.0)]
    assert reader.warnings == []


def test_a_header_that_is_still_written_waits(tmp_path: Path) -> None:
    write(tmp_path, [1])
    path = tmp_path / "metrics.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:20])
    reader = ScalarReader(tmp_path)
    assert not reader.refresh() and reader.warnings == []
    path.write_bytes(content)
    assert reader.refresh() and reader.warnings == []


@pytest.mark.parametrize(
    "damage",
    [
        b"\0" * 50,
        b'{"step": 2, "wall',
        b'{"step": 2.5, "wall_time": 1.0}',
        b'{"step": 2, "wall_time": 1.0, "a/b": null}',
        b'{"step": 2, "wall_time": 1.0, "a/b": "1.5"}',
        b'{"step": 2, "wall_time": "NaN"}',
        b"[2, 1.0]",
    ],
)
def test_a_damaged_line_is_reported_and_the_others_are_read(tmp_path: Path, damage: bytes) -> None:
    """A line that holds something else is skipped with a warning that says where; all other lines count."""
    write(tmp_path, [1])
    path = tmp_path / "metrics.jsonl"
    before = path.stat().st_size
    line = json.dumps({"step": 3, "wall_time": 1003.0, LOSS: 3.0}).encode()
    path.write_bytes(path.read_bytes() + damage + b"\n" + line + b"\n")
    reader = ScalarReader(tmp_path)
    reader.refresh()
    assert points(reader.series[LOSS]) == [(1, 1.0), (3, 3.0)]
    assert reader.warnings == [
        f"metrics.jsonl: skipped 1 line without valid JSON scalars, the first at byte {before}; "
        "all other lines are shown."
    ]


def test_a_file_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, [1])
    path = tmp_path / "metrics.2.jsonl"
    path.write_text('{"format": "nbtrain metrics", "version": 2, "resumed_from_step": 0}\n')
    (tmp_path / "metrics.3.jsonl").write_text(json.dumps({"step": 4, "wall_time": 1.0, LOSS: 1.0}) + "\n")
    reader = ScalarReader(tmp_path)
    reader.refresh()
    assert points(reader.series[LOSS]) == [(1, 1.0)]
    assert reader.warnings == [
        f"metrics.{number}.jsonl is not shown: the first line is not a header of version 1."
        for number in (2, 3)
    ]


def test_a_replaced_folder_is_read_again(tmp_path: Path) -> None:
    """If files are removed or shorter than before, another run has this folder, and the old curves end."""
    write(tmp_path, range(1, 10))
    reader = ScalarReader(tmp_path)
    reader.refresh()
    (tmp_path / "metrics.jsonl").unlink()
    assert reader.refresh() and reader.series == {}
    write(tmp_path, [1], 5.0)
    assert reader.refresh() and points(reader.series[LOSS]) == [(1, 5.0)]


def test_a_file_of_another_run_that_is_longer_is_read_from_its_start(tmp_path: Path) -> None:
    """A run that was deleted and made again between two looks is known by its header, not by its size."""
    write(tmp_path, range(1, 4))
    reader = ScalarReader(tmp_path)
    assert reader.refresh()
    (tmp_path / "metrics.jsonl").unlink()
    write(tmp_path, range(1, 10), 5.0)
    assert reader.refresh()
    assert points(reader.series[LOSS]) == [(step, 5.0) for step in range(1, 10)] and reader.warnings == []


def test_a_full_disk_cuts_a_line_off_and_the_next_flush_ends_it(tmp_path: Path) -> None:
    """With a limit on the size of files, a line is written in part; the next flush loses and repeats none."""
    file = write(tmp_path, [1])
    size = (tmp_path / "metrics.jsonl").stat().st_size
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limit[1]))
        for step in (2, 3):
            with pytest.raises(OSError, match="too large"):
                add(file, [step])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "metrics.jsonl").stat().st_size == size + 10
    add(file, [4])
    reader = ScalarReader(tmp_path)
    reader.refresh()
    assert points(reader.series[LOSS]) == [(step, 1.0) for step in (1, 2, 3, 4)] and reader.warnings == []


def test_tags_choose(tmp_path: Path) -> None:
    """Only the requested tags are kept."""
    file = write(tmp_path, [1])
    add(file, [1], 2.0, NORM)
    reader = ScalarReader(tmp_path, [NORM])
    assert reader.refresh() and list(reader.series) == [NORM]


@pytest.mark.parametrize("seed", range(num_cases(8)))
@pytest.mark.parametrize("make", [ScalarReader, CurveReader])
def test_blocks_of_lines_give_the_points_of_single_lines(
    seed: int, make: Callable[..., ScalarReader], tmp_path: Path, monkeypatch
) -> None:
    """Irregular lines in blocks of any size give the same points as lines that are put one by one."""
    draw = random.Random(seed)
    monkeypatch.setattr(
        "nbtrain.monitor.metrics.curves.Curve.__init__.__defaults__", (draw.choice([4, 16, 64]),)
    )
    written, step = [], 0
    for number in range(draw.randint(1, 3)):
        step = max(0, step - draw.randint(0, 40)) if number else 0
        written = [point for point in written if point[1] <= step]
        file = MetricsFile(tmp_path, step)
        for _ in range(draw.randint(0, 200)):
            step += draw.choice([1, 1, 1, 1, 1, 5])
            wall_time = 10.0 + step + 1000 * number
            tags = draw.choice([[LOSS, NORM], [LOSS, NORM], [LOSS, NORM], [LOSS], ["a/b"]])
            values = {tag: draw.choice([math.nan, math.inf, 1.0, *[draw.random()] * 9]) for tag in tags}
            file.write(step, wall_time, 64 * step, step, values)
            for tag, value in values.items():
                kept = value if tag in EXACT_TAGS else float(f"{value:.9g}")
                written.append((tag, step, kept, wall_time))
        file.flush()
    one_by_one = make(tmp_path)
    for tag, *point in written:
        one_by_one.series.setdefault(tag, one_by_one._points()).put(*point)
    monkeypatch.setattr(metrics_reader, "BLOCK_BYTES", draw.choice([50, 500, 3000, 1 << 20]))
    in_blocks = make(tmp_path)
    while in_blocks.refresh(draw.choice([None, 1e-9])) or in_blocks.behind_bytes:
        pass

    def everything(reader: ScalarReader) -> str:
        # As text, in which NaN equals NaN.
        return str(
            {
                tag: [list(series.steps), list(series.values), list(series.wall_times)]
                for tag, series in sorted(reader.series.items())
                if len(series)
            }
        )

    assert everything(in_blocks) == everything(one_by_one)
    assert in_blocks.warnings == []
