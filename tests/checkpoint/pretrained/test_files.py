"""Files written one tensor at a time equal the output of the safetensors library byte for byte."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nbtrain.checkpoint.pretrained.files import write_file, write_sharded

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def tensors_of(dtype):
    torch.manual_seed(0)
    shapes = {"z": (3,), "a.weight": (5, 7), "model.ä": (1, 2, 2), "b": (4, 4)}
    return {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("metadata", [{"format": "pt"}, {}], ids=["pt", "none"])
def test_a_file_is_that_of_the_library(dtype, metadata, tmp_path):
    tensors = tensors_of(dtype)
    save_file(tensors, tmp_path / "theirs", metadata or None)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    written = list(write_file(tmp_path / "ours", shapes, dtype, tensors.__getitem__, metadata))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert sum(written) == sum(tensor.nbytes for tensor in tensors.values())


def test_tensors_that_are_no_row_after_row_are_written_right(tmp_path):
    """A transposed view is written in row-major order, although its memory is in another order."""
    whole = torch.arange(12.0).view(3, 4).T
    list(write_file(tmp_path / "ours", {"a": (4, 3)}, torch.float32, lambda name: whole, {}))
    with safe_open(tmp_path / "ours", "pt") as read:
        assert torch.equal(read.get_tensor("a"), whole)


def test_shards_are_filled_in_order_and_indexed(tmp_path):
    """Shards are filled in order up to the size limit, and the index lists all tensors.

    A single tensor above the limit gets a shard of its own.
    """
    tensors = {"a": torch.zeros(30), "b": torch.zeros(200), "c": torch.zeros(60), "d": torch.zeros(50)}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    list(write_sharded(tmp_path, shapes, torch.float32, tensors.__getitem__, 400))
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_parameters": 340, "total_size": 1360}
    # The large shard is closed immediately, while the other file is continued.
    assert index["weight_map"] == {
        "a": "model-00002-of-00003.safetensors",
        "b": "model-00001-of-00003.safetensors",
        "c": "model-00002-of-00003.safetensors",
        "d": "model-00003-of-00003.safetensors",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)),
        "model.safetensors.index.json",
    ]


def test_nothing_is_left_of_a_file_that_fails(tmp_path):
    def fails(name):
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError):
        list(write_file(tmp_path / "ours", {"a": (2,)}, torch.float32, fails, {}))
    assert list(tmp_path.iterdir()) == []
