"""Scalars from event files of other programs: torch's (Megatron-DeepSpeed's) and TensorBoard's."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.compat.proto import event_pb2, tensor_pb2, types_pb2
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from nbtrain.base.errors import DataError
from nbtrain.monitor.metrics import event_files
from nbtrain.monitor.metrics.event_files import read_event_files
from nbtrain.monitor.metrics.series import Series

LOSS = "lm-loss-training/lm loss"


class EventFile:
    """An event file of another program, written record by record, with times that the test chooses."""

    def __init__(self, folder: Path, opened_at: int):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events.out.tfevents.{opened_at}.host.1.0"
        self.add(event_pb2.Event(wall_time=opened_at, file_version="brain.Event:2"))

    def add(self, event: event_pb2.Event) -> None:
        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        checks = [struct.pack("<I", pywrap_tensorflow.masked_crc32c(part)) for part in (length, content)]
        with self.path.open("ab") as stream:
            stream.write(length + checks[0] + content + checks[1])

    def scalar(self, step: int, value: float, wall_time: float, tag: str = LOSS) -> None:
        event = event_pb2.Event(step=step, wall_time=wall_time)
        event.summary.value.add(tag=tag, simple_value=value)
        self.add(event)

    def purge(self, step: int, wall_time: float) -> None:
        """Write the event that torch's SummaryWriter(purge_step=step) writes first."""
        log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self.add(event_pb2.Event(step=step, wall_time=wall_time, session_log=log))


def points(series: Series) -> list[tuple[int, float]]:
    return list(zip(series.steps, series.values))


def test_reads_what_tensorboards_writer_wrote(tmp_path: Path) -> None:
    """Steps, values and wall times are read; the file's header is not a point."""
    writer = EventFileWriter(str(tmp_path))
    for step in (1, 2, 3):
        event = event_pb2.Event(step=step, wall_time=100.0 + step)
        event.summary.value.add(tag=LOSS, simple_value=step / 2)
        writer.add_event(event)
    writer.close()
    assert read_event_files(tmp_path) == {LOSS: Series([1, 2, 3], [0.5, 1.0, 1.5], [101.0, 102.0, 103.0])}


def test_newest_value_of_a_step_wins(tmp_path: Path) -> None:
    """A step that a resumed run writes again has its newest value; other steps are kept."""
    second = EventFile(tmp_path, 200)
    first = EventFile(tmp_path, 100)
    for step in range(1, 6):
        first.scalar(step, 1.0, 100 + step)
    second.scalar(3, 2.0, 203)
    second.scalar(4, 2.0, 204)
    assert points(read_event_files(tmp_path)[LOSS]) == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 1.0)]


def test_purge_step_drops_what_an_earlier_session_wrote_from_there_on(tmp_path: Path) -> None:
    """A SessionLog START at step 3 drops steps 3 and later, and of "... vs tokens" what belongs to them."""
    by_tokens = f"{LOSS} vs tokens"
    first = EventFile(tmp_path, 100)
    for step in range(1, 6):
        first.scalar(step, 1.0, 100 + step)
        first.scalar(step * 4096, 1.0, 100 + step, by_tokens)
    second = EventFile(tmp_path, 200)
    second.purge(3, 200)
    assert points(read_event_files(tmp_path)[LOSS]) == [(1, 1.0), (2, 1.0)]
    second.scalar(3, 2.0, 203)
    second.scalar(3 * 4096, 2.0, 203, by_tokens)
    found = read_event_files(tmp_path)
    assert points(found[LOSS]) == [(1, 1.0), (2, 1.0), (3, 2.0)]
    assert points(found[by_tokens]) == [(4096, 1.0), (8192, 1.0), (3 * 4096, 2.0)]


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path: Path, damage: str) -> None:
    """A record that is cut off or damaged ends the reading of its file with a warning that says where."""
    file = EventFile(tmp_path, 100)
    file.scalar(1, 1.0, 101)
    size = file.path.stat().st_size
    file.scalar(2, 2.0, 102)
    content = bytearray(file.path.read_bytes())
    content[size + 20] ^= 1
    file.path.write_bytes(content if damage == "changed" else content[:-3])
    EventFile(tmp_path, 200).scalar(3, 3.0, 203)
    with pytest.warns(
        UserWarning,
        match=rf"{file.path.name}: only {size:,} of [\d,]+ bytes were read, because the next record",
    ):
        found = read_event_files(tmp_path)
    assert points(found[LOSS]) == [(1, 1.0), (3, 3.0)]


def test_tensor_scalars_are_read_and_other_summaries_are_not(tmp_path: Path) -> None:
    """Scalars stored as tensors of rank 0 (TensorBoard 2) are read; text, histograms and images are not."""
    file = EventFile(tmp_path, 100)
    event = event_pb2.Event(step=1, wall_time=101)
    value = event.summary.value.add(tag="float")
    value.tensor.CopyFrom(tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=[0.5]))
    value = event.summary.value.add(tag="double content")
    value.tensor.CopyFrom(
        tensor_pb2.TensorProto(dtype=types_pb2.DT_DOUBLE, tensor_content=struct.pack("<d", 0.25))
    )
    value = event.summary.value.add(tag="text")
    value.tensor.CopyFrom(tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[b"zero_stage 1"]))
    value = event.summary.value.add(tag="histogram")
    value.tensor.CopyFrom(tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=[1.0, 2.0]))
    value.tensor.tensor_shape.dim.add(size=2)
    file.add(event)
    found = read_event_files(tmp_path)
    assert {tag: series.values for tag, series in found.items()} == {"float": [0.5], "double content": [0.25]}


def test_folder_without_events_is_refused_with_the_ones_that_have_some(tmp_path: Path) -> None:
    """A folder without event files is refused, and the message names subfolders that have some."""
    EventFile(tmp_path / "output" / "gpt" / "tensorboard", 100)
    with pytest.raises(DataError) as caught:
        read_event_files(tmp_path / "output")
    assert str(caught.value) == (
        f"{tmp_path}/output contains no TensorBoard event file (*tfevents*). "
        "These subfolders do: gpt/tensorboard."
    )


def test_a_large_folder_shows_its_progress(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(event_files, "_QUIET_BYTES", 10)
    EventFile(tmp_path, 100).scalar(1, 1.0, 101)
    read_event_files(tmp_path)
    assert capsys.readouterr().err.startswith(f"reading event files of {tmp_path.name}: ")


@pytest.mark.slow
def test_reading_loads_neither_torch_nor_tensorflow_and_says_nothing(tmp_path: Path) -> None:
    """Reading in a fresh process imports neither torch nor TensorFlow and prints nothing to stderr."""
    EventFile(tmp_path, 100).scalar(1, 1.0, 101)
    code = (
        "import sys; from pathlib import Path\n"
        "from nbtrain.monitor.metrics.event_files import read_event_files\n"
        "print(len(read_event_files(Path(sys.argv[1]))))\n"
        "print([name for name in ('torch', 'tensorflow', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("1\n[]\n", "")
