"""A fast reader for regular event files returns the same as reading record by record."""

import math
import random
from collections.abc import Callable

import pytest

from nbtrain.monitor import tfevents
from nbtrain.monitor.curves import CurveReader
from nbtrain.monitor.event_steps import Columns, Shape
from nbtrain.monitor.tfevents import ScalarReader
from tests.fuzzing import num_cases
from tests.monitor.test_tfevents import EventFile, event_pb2, record

TAGS = ("loss", "lr", "loss vs tokens", "a/very long name of a scalar", "lr vs samples")


def scalar(step: int, value: float, wall_time: float, tag: str) -> bytes:
    event = event_pb2.Event(step=step, wall_time=wall_time)
    event.summary.value.add(tag=tag, simple_value=value)
    return record(event.SerializeToString())


def regular(step: int) -> bytes:
    counts = {"loss vs tokens": 1000 * step, "lr vs samples": 8 * step}
    return b"".join(scalar(counts.get(tag, step), math.sin(step), 1e6 + step, tag) for tag in TAGS)


def written(draw: random.Random, folder) -> None:
    """Write event files as training does, also with irregularities: restarts, scalars that change, and
    NaN.
    """
    step = draw.choice([0, 100, 16_300, 2_097_100])
    for number in range(draw.randint(1, 3)):
        file = EventFile(folder, 1 + number)
        wall = 10.0 + 1000 * number
        if number and draw.random() < 0.7:
            file.purge(step := max(0, step - draw.randint(0, 40)), wall)
        content = b""
        for _ in range(draw.randint(0, 200)):
            step += draw.choice([1, 1, 1, 1, 1, 1, 5, 0, -3])
            wall += draw.choice([0.25, 0.25, 0.25, -700.0])
            for tag in TAGS:
                value = draw.choice([math.nan, math.inf, 1.0, *[draw.random()] * 9])
                count = max(0, step) * 1000 if "tokens" in tag else max(0, step)
                content += scalar(count, value, wall, tag)
            if draw.random() < 0.05:
                content += scalar(max(0, step), 1.0, wall, draw.choice(["loss", "validation"]))
            if draw.random() < 0.02:
                log = event_pb2.SessionLog(status=event_pb2.SessionLog.CHECKPOINT)
                content += record(event_pb2.Event(session_log=log).SerializeToString())
        with file.path.open("ab") as stream:
            stream.write(content[: draw.choice([None, len(content) - 7])])


def everything(reader: ScalarReader) -> object:
    # As text, in which NaN equals NaN.
    kept = {
        tag: [list(one.steps), list(one.values), list(one.wall_times)] for tag, one in reader.series.items()
    }
    return str(kept), [(state.offset, state.places) for state in reader.files.values()], reader.warnings


@pytest.mark.parametrize("seed", range(num_cases(12)))
@pytest.mark.parametrize("make", [ScalarReader, CurveReader])
def test_steps_at_once_say_what_records_say(
    seed: int, make: Callable[..., ScalarReader], tmp_path, monkeypatch
):
    """Whatever the sizes of block and curve, the fast reader gives the same points, file positions and
    warnings as reading record by record.
    """
    draw = random.Random(seed)
    written(draw, tmp_path)
    monkeypatch.setattr(tfevents, "BLOCK_BYTES", draw.choice([500, 3000, 1 << 20]))
    monkeypatch.setattr("nbtrain.monitor.curves.Curve.__init__.__defaults__", (draw.choice([4, 16, 64]),))
    tags = draw.choice([None, ["loss", "loss vs tokens"], ["lr", "validation"]])
    at_once, one_by_one = make(tmp_path, tags), make(tmp_path, tags)
    one_by_one.by_steps = False
    at_once.refresh()
    one_by_one.refresh()
    assert everything(at_once) == everything(one_by_one)


def test_most_of_a_regular_file_is_read_by_steps(tmp_path, monkeypatch):
    """Only a few of 1,000 regular steps are read record by record: the first, and steps whose number needs
    one more byte.
    """
    file = EventFile(tmp_path, 1)
    with file.path.open("ab") as stream:
        stream.write(b"".join(map(regular, range(1, 1001))))
    single = []
    one = ScalarReader._take_scalar
    monkeypatch.setattr(ScalarReader, "_take_scalar", lambda *words: single.append(words) or one(*words))
    reader = ScalarReader(tmp_path)
    reader.refresh()
    assert [len(reader.series[tag]) for tag in TAGS] == [1000] * len(TAGS)
    assert len(single) < 20 * len(TAGS)


def test_whatever_differs_ends_the_shape():
    """The fast reader stops at a record whose length differs, and a record with an invalid step number is an
    error.
    """
    content = b"".join(map(regular, range(1, 9)))
    size = len(regular(1))
    records: list = []
    reader = ScalarReader("/nowhere")
    reader._take_steps = lambda content, at, tag, found: records.append(list(found)) or at  # type: ignore
    state = tfevents._OpenFile()
    reader._take_block(reader.folder, state, content[: 2 * size])
    shape = Shape(content, records[len(TAGS)], lambda tag: tag == b"loss")
    columns, end = shape.take(content, size)
    assert end == len(content)
    assert columns == [
        Columns(b"loss", [*range(2, 9)], True, columns[0].values, tuple(1e6 + step for step in range(2, 9)))
    ]
    for at in (size * 3 + 20, size * 3 + 3):
        assert content[at] == content[at - size]
        damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        taken = shape.take(damaged, size)[1]
        assert taken == (size * 3 if at == size * 3 + 3 else len(content))
    step_at = size * 3 + 12 + 9
    assert content[step_at] == 0x10
    with pytest.raises(ValueError, match="is not the step of an event"):
        shape.take(content[:step_at] + b"\x18" + content[step_at + 1 :], size)
