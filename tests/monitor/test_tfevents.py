"""Reading scalars from event files: nbtrain's, torch's (Megatron-DeepSpeed's) and TensorBoard's."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.compat.proto import event_pb2, tensor_pb2, types_pb2
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from nbtrain.base.errors import DataError
from nbtrain.base.metrics import RESUMED
from nbtrain.monitor.tfevents import ScalarReader, Series, masked_crc32c, read_scalars

LOSS = "lm-loss-training/lm loss"


class EventFile:
    """An event file that is written record by record, at times chosen by the test."""

    def __init__(self, folder: Path, opened_at: int):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events.out.tfevents.{opened_at}.host.1.0"
        self.add(event_pb2.Event(wall_time=opened_at, file_version="brain.Event:2"))

    def add(self, event: event_pb2.Event) -> None:
        with self.path.open("ab") as stream:
            stream.write(record(event.SerializeToString()))

    def scalar(self, step: int, value: float, wall_time: float, tag: str = LOSS) -> None:
        event = event_pb2.Event(step=step, wall_time=wall_time)
        event.summary.value.add(tag=tag, simple_value=value)
        self.add(event)

    def purge(self, step: int, wall_time: float) -> None:
        """Write the event with which torch's SummaryWriter(purge_step=step) begins a file."""
        log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self.add(event_pb2.Event(step=step, wall_time=wall_time, session_log=log))


def record(content: bytes) -> bytes:
    """Write a TFRecord; the checksums are computed by TensorBoard's code."""
    length = struct.pack("<Q", len(content))
    checks = [struct.pack("<I", pywrap_tensorflow.masked_crc32c(part)) for part in (length, content)]
    return length + checks[0] + content + checks[1]


def points(series: Series) -> list[tuple[int, float]]:
    return list(zip(series.steps, series.values))


def test_reads_what_tensorboards_writer_wrote(tmp_path: Path) -> None:
    """Steps, values and wall times are read; the header of the file does not become a point."""
    writer = EventFileWriter(str(tmp_path))
    for step in (1, 2, 3):
        event = event_pb2.Event(step=step, wall_time=100.0 + step)
        event.summary.value.add(tag=LOSS, simple_value=step / 2)
        writer.add_event(event)
    writer.close()
    assert read_scalars(tmp_path) == {LOSS: Series([1, 2, 3], [0.5, 1.0, 1.5], [101.0, 102.0, 103.0])}


def test_newest_value_of_a_step_wins(tmp_path: Path) -> None:
    """If a resumed run writes a step again, its newest value counts; all other steps are kept."""
    first = EventFile(tmp_path, 100)
    for step in range(1, 6):
        first.scalar(step, 1.0, 100 + step)
    second = EventFile(tmp_path, 200)
    second.scalar(3, 2.0, 203)
    second.scalar(4, 2.0, 204)
    assert points(read_scalars(tmp_path)[LOSS]) == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 1.0)]


def test_purge_step_drops_what_an_earlier_session_wrote_from_there_on(tmp_path: Path) -> None:
    """A SessionLog START at step 3 immediately removes all points from step 3 on."""
    first = EventFile(tmp_path, 100)
    for step in range(1, 6):
        first.scalar(step, 1.0, 100 + step)
    second = EventFile(tmp_path, 200)
    second.purge(3, 200)
    assert points(read_scalars(tmp_path)[LOSS]) == [(1, 1.0), (2, 1.0)]
    second.scalar(3, 2.0, 203)
    assert points(read_scalars(tmp_path)[LOSS]) == [(1, 1.0), (2, 1.0), (3, 2.0)]


def test_purge_step_is_not_compared_with_token_counts(tmp_path: Path) -> None:
    """A purge removes only those points of the "... vs tokens" scalars that were written together with the
    purged steps.
    """
    by_tokens = f"{LOSS} vs tokens"
    first = EventFile(tmp_path, 100)
    for step in range(1, 6):
        first.scalar(step, 1.0, 100 + step)
        first.scalar(step * 4096, 1.0, 100 + step, by_tokens)
    second = EventFile(tmp_path, 200)
    second.purge(3, 200)
    second.scalar(3 * 4096, 2.0, 203, by_tokens)
    assert points(read_scalars(tmp_path)[by_tokens]) == [(4096, 1.0), (8192, 1.0), (3 * 4096, 2.0)]


def test_a_resumed_run_drops_what_was_written_after_its_checkpoint(tmp_path: Path) -> None:
    """The mark of a resume removes later points before the first new one is read; a CHECKPOINT event of
    another program does not.
    """
    first = EventFile(tmp_path, 100)
    for step in range(1, 6):
        first.scalar(step, 1.0, 100 + step)
    log = event_pb2.SessionLog(status=event_pb2.SessionLog.CHECKPOINT, checkpoint_path="model.ckpt-2")
    second = EventFile(tmp_path, 200)
    second.add(event_pb2.Event(step=2, wall_time=200, session_log=log))
    assert len(read_scalars(tmp_path)[LOSS]) == 5
    log = event_pb2.SessionLog(status=event_pb2.SessionLog.CHECKPOINT, msg=RESUMED)
    second.add(event_pb2.Event(step=3, wall_time=201, session_log=log))
    assert points(read_scalars(tmp_path)[LOSS]) == [(1, 1.0), (2, 1.0)]


def test_counts_of_tokens_and_samples_are_passed_over_if_nobody_asks(tmp_path: Path) -> None:
    """Scalars over tokens or samples are skipped without parsing, unless they are requested."""
    file = EventFile(tmp_path, 100)
    file.scalar(4096, 1.0, 101, f"{LOSS} vs tokens")
    file.scalar(4, 1.0, 101, f"{LOSS} vs samples")
    file.scalar(1, 1.0, 101)
    reader = ScalarReader(tmp_path, [LOSS])
    assert reader.refresh()
    assert not reader.refresh()
    assert list(reader.series) == [LOSS]
    assert set(read_scalars(tmp_path)) == {LOSS, f"{LOSS} vs tokens", f"{LOSS} vs samples"}


def test_late_points_of_a_purged_session_do_not_come_back(tmp_path: Path) -> None:
    """Points that an earlier process flushes after the new session has begun are ignored."""
    first = EventFile(tmp_path, 100)
    first.scalar(1, 1.0, 101)
    second = EventFile(tmp_path, 200)
    second.purge(2, 200)
    reader = ScalarReader(tmp_path)
    assert reader.refresh()
    first.scalar(2, 1.0, 102)
    assert not reader.refresh()
    assert points(reader.series[LOSS]) == [(1, 1.0)]


def test_refresh_reads_only_what_was_appended(tmp_path: Path) -> None:
    """A refresh reads only appended data, and returns whether there were new points or files."""
    file = EventFile(tmp_path, 100)
    reader = ScalarReader(tmp_path)
    assert not reader.refresh()
    file.scalar(1, 1.0, 101)
    assert reader.refresh()
    assert not reader.refresh()
    EventFile(tmp_path, 200).scalar(2, 2.0, 202)
    assert reader.refresh()
    assert points(reader.series[LOSS]) == [(1, 1.0), (2, 2.0)]


@pytest.mark.parametrize("missing_bytes", [1, 5, 20, 60])
def test_truncated_tail_waits_for_its_end(tmp_path: Path, missing_bytes: int) -> None:
    """A partly written record is neither a point nor an error; it is read once it is complete."""
    file = EventFile(tmp_path, 100)
    file.scalar(1, 1.0, 101)
    file.scalar(2, 2.0, 102)
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-missing_bytes])
    reader = ScalarReader(tmp_path)
    reader.refresh()
    assert points(reader.series[LOSS]) == [(1, 1.0)]
    file.path.write_bytes(whole)
    assert reader.refresh()
    assert points(reader.series[LOSS]) == [(1, 1.0), (2, 2.0)]
    assert reader.warnings == []


def test_damaged_file_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    """At damaged bytes, reading of the file stops with a warning; points before them and other files are
    kept.
    """
    file = EventFile(tmp_path, 100)
    file.scalar(1, 1.0, 101)
    size = file.path.stat().st_size
    with file.path.open("ab") as stream:
        stream.write(bytes(range(64)))
    EventFile(tmp_path, 200).scalar(2, 2.0, 202)
    reader = ScalarReader(tmp_path)
    reader.refresh()
    reader.refresh()
    assert points(reader.series[LOSS]) == [(1, 1.0), (2, 2.0)]
    assert reader.warnings == [
        f"{file.path.name}: the length of a record fails its check at byte {size}; "
        "everything before it is shown."
    ]


def test_tensor_scalars_are_read_and_other_summaries_are_not(tmp_path: Path) -> None:
    """Scalars stored as tensors of rank 0, as TensorBoard 2 does, are read; texts, histograms and images are
    not.
    """
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
    found = read_scalars(tmp_path)
    assert {tag: series.values for tag, series in found.items()} == {"float": [0.5], "double content": [0.25]}


def test_tags_choose(tmp_path: Path) -> None:
    """Only the scalars whose tags are requested are kept."""
    file = EventFile(tmp_path, 100)
    file.scalar(1, 1.0, 101)
    file.scalar(1, 2.0, 101, "grad-norm/grad-norm")
    assert list(read_scalars(tmp_path, ["grad-norm/grad-norm"])) == ["grad-norm/grad-norm"]


def test_folder_without_events_is_refused_with_the_ones_that_have_some(tmp_path: Path) -> None:
    """A folder without event files is an error, and the message names subfolders that contain some."""
    EventFile(tmp_path / "output" / "gpt" / "tensorboard", 100)
    with pytest.raises(DataError) as caught:
        read_scalars(tmp_path / "output")
    assert str(caught.value) == (
        f"{tmp_path}/output: holds no TensorBoard event file (*tfevents*). "
        "These folders below it do: gpt/tensorboard."
    )
    with pytest.raises(DataError, match="no such folder"):
        read_scalars(tmp_path / "nowhere")
    assert not ScalarReader(tmp_path / "nowhere").refresh()


def test_check_is_tensorboards() -> None:
    """The checksum of a record's length equals the one that TensorBoard computes."""
    for length in (0, 1, 97, 2**33):
        content = struct.pack("<Q", length)
        assert masked_crc32c(content) == pywrap_tensorflow.masked_crc32c(content)


def test_reading_loads_neither_torch_nor_tensorflow_and_says_nothing(tmp_path: Path) -> None:
    """Reading in a new process imports neither torch nor TensorFlow, and prints nothing to stderr."""
    EventFile(tmp_path, 100).scalar(1, 1.0, 101)
    code = (
        "import sys\n"
        "from nbtrain.monitor.tfevents import read_scalars\n"
        "print(len(read_scalars(sys.argv[1])))\n"
        "print([name for name in ('torch', 'tensorflow', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("1\n[]\n", "")
