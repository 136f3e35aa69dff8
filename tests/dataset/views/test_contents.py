"""Detection of dataset files that no longer match their manifest."""

import os
import re
import time

import pytest

from nbtrain.base.errors import DataError
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.views import contents
from nbtrain.dataset.views.contents import REMEMBERED, check_contents
from tests.dataset.dataset_maker import make_dataset


@pytest.fixture
def dataset(make_config, texts) -> DatasetFiles:
    config = make_config()
    make_dataset(config, texts)
    found = dataset_of(config)
    age(found.manifest_json, 0)
    return found


def age(path, seconds: float) -> None:
    """Set a file's modification time to `seconds` from now."""
    moment = time.time() + seconds
    os.utime(path, (moment, moment))


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """Record the names of the files that are read."""
    seen: list[str] = []
    sha256_of = contents.files.sha256_of

    def seeing(path):
        seen.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(contents.files, "sha256_of", seeing)
    return seen


def test_a_dataset_as_prepare_left_it_is_not_read(dataset, reads):
    check_contents(dataset)
    assert reads == [] and not (dataset.directory / REMEMBERED).exists()


def test_a_changed_file_of_the_same_size_is_told(dataset, reads):
    """Swapping two tokens is detected, although sizes and the largest id stay the same."""
    content = bytearray(dataset.bin.read_bytes())
    before = bytes(content)
    content[0:4] = content[2:4] + content[0:2]
    assert content != before
    dataset.bin.write_bytes(content)
    age(dataset.bin, 10)
    dataset.require()
    message = (
        re.escape(f"{dataset.bin.name}: this is not the file that its manifest describes. It was written on ")
        + ".*, after the manifest, and has the SHA-256 .{12}..., but the manifest records .{12}.... "
        "Restore the file, or run `nbtrain prepare RUN.yaml --force` to make the dataset again."
    )
    for _ in range(2):
        with pytest.raises(DataError, match=message):
            check_contents(dataset)
    dataset.bin.write_bytes(before)
    age(dataset.bin, 20)
    check_contents(dataset)
    assert reads == [dataset.bin.name] * 3


def test_a_copied_dataset_is_read_once(dataset, reads):
    """Files that are newer than the manifest are read once, and again only after a change."""
    age(dataset.idx, 10)
    check_contents(dataset)
    check_contents(dataset)
    assert reads == [dataset.idx.name]
    (dataset.directory / REMEMBERED).write_text("torn")
    check_contents(dataset)
    age(dataset.idx, 20)
    check_contents(dataset)
    assert reads == [dataset.idx.name] * 3
