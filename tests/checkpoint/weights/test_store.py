"""Reading parameters by canonical name: any part of a tensor, however it was sharded when saved."""

import pytest
import torch

from nbtrain.base.errors import CheckpointError
from nbtrain.checkpoint.weights import store as checkpoint_store
from nbtrain.checkpoint.weights.store import CheckpointStore, StoredParameter, TensorPart, _Piece

ROWS, COLUMNS = 12, 8
WHOLE = torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS)


def store(partition_dim: int | None, ranks: int, cuts: int, stored: torch.Tensor = WHOLE) -> CheckpointStore:
    """Create a store of a matrix on `ranks` tensor ranks, each part split into
    `cuts` chunks of unequal length.
    """
    found = CheckpointStore.__new__(CheckpointStore)
    found.folder = "global_step4"
    found.tensor_parallel_size = ranks
    found.__dict__["parameters"] = {"w": StoredParameter("w", tuple(stored.shape), partition_dim, stage=0)}
    found._pieces = {}
    for rank in range(ranks):
        local = stored if partition_dim is None else stored.chunk(ranks, partition_dim)[rank]
        flat, pieces, start = local.reshape(-1), [], 0
        for cut in range(cuts):
            end = len(flat) if cut == cuts - 1 else start + (len(flat) // cuts) + (1 if cut % 2 else -1)
            pieces.append(_Piece(start, end - start, {"fp32": flat[start:end]}, 4.0))
            start = end
        found._pieces[0, rank] = {"w": pieces}
    return found


@pytest.mark.parametrize("ranks, cuts", [(1, 1), (1, 3), (2, 1), (2, 5), (4, 2)])
@pytest.mark.parametrize("partition_dim", [None, 0, 1])
def test_any_range_of_any_part_of_any_cut(partition_dim, ranks, cuts):
    """A read returns the same elements as slicing the whole tensor, for every sharding of writer and reader.

    A parameter that its writer did not shard can be sharded across the reader's ranks.
    """
    read = store(partition_dim, ranks, cuts)
    assert torch.equal(read.full("w"), WHOLE)
    dims = (partition_dim,) if partition_dim is not None else (None, 0, 1) if ranks == 1 else (None,)
    for dim in dims:
        for size in (1, 2, 4):
            for rank in range(size):
                part = WHOLE if dim is None else WHOLE.chunk(size, dim)[rank]
                flat = part.reshape(-1)
                for start in range(0, len(flat), 5):
                    for count in (1, 7, len(flat) - start):
                        count = min(count, len(flat) - start)
                        found = read.read("w", "fp32", TensorPart(rank, size, dim), start, count)
                        assert torch.equal(found, flat[start : start + count])


def test_more_rows_than_are_stored_end_with_the_stored_ones():
    """Only stored rows are returned: of 16 rows on two ranks, 12 are stored, and the second rank gets 4."""
    read = store(0, 1, 3)
    assert torch.equal(read.read("w", "fp32", TensorPart(0, 2, 0), rows=16), WHOLE[:8].reshape(-1))
    assert torch.equal(read.read("w", "fp32", TensorPart(1, 2, 0), rows=16), WHOLE[8:].reshape(-1))
    assert torch.equal(
        read.read("w", "fp32", TensorPart(1, 2, 0), start=5, count=40, rows=16), WHOLE[8:].reshape(-1)[5:]
    )
    # This whole range is new.
    assert len(read.read("w", "fp32", TensorPart(1, 2, 0), start=40, count=20, rows=16)) == 0
    # With fewer rows, the rest is dropped.
    assert torch.equal(read.read("w", "fp32", TensorPart(1, 2, 0), rows=10), WHOLE[5:10].reshape(-1))


def test_what_is_missing_is_named():
    read = store(0, 1, 2)
    with pytest.raises(CheckpointError, match="global_step4: holds no parameter v"):
        read.full("v")
    read._pieces[0, 0]["w"].pop(0)
    with pytest.raises(CheckpointError, match=r"w \(fp32\): the files contain only 49 of 96 elements"):
        read.full("w")


def test_a_parameter_that_was_never_stepped_has_moments_of_zero():
    assert torch.equal(store(0, 2, 2).full("w", "exp_avg"), torch.zeros(ROWS, COLUMNS))


def test_nothing_is_read_that_is_not_asked_for(monkeypatch):
    """A read touches only the requested elements, here one row of a matrix that is sharded by columns."""
    read, touched = store(1, 2, 1), []
    local = CheckpointStore._local

    def noting(self, parameter, state, rank, first, end):
        touched.append((rank, first, end))
        return local(self, parameter, state, rank, first, end)

    monkeypatch.setattr(checkpoint_store.CheckpointStore, "_local", noting)
    read.read("w", "fp32", TensorPart(1, 4, 1), start=2, count=2)
    assert touched == [(0, 4, 8)]
