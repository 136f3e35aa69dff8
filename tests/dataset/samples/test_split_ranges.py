"""A split's sequences: one cut for a stream, one for each source of packed examples."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from nbtrain.base.errors import DataError
from nbtrain.config.load import load
from nbtrain.dataset.samples.split_ranges import split_ranges

FILES = SimpleNamespace(directory=Path("mine"), manifest_json=Path("/m.json"), idx=Path("/x.idx"))
SOURCE = "{kind: alpaca, path: x}"


def run_with(packing: str, sources: str = SOURCE):
    """Return a run whose data is split in halves of training and validation."""
    change = [f"data.sources=[{sources}]", f"data.packing={packing}", "data.split='1,1'"]
    return load("gpt-tiny", change, check=False)


def opened(*places):
    """Return a dataset whose sources hold these [first, last) sequences."""
    sources = [{"kind": "alpaca", "name": None, "sequences": place} for place in places]
    indexed = range(places[-1][1])
    return SimpleNamespace(files=FILES, manifest=SimpleNamespace(sources=sources), indexed=indexed)


def test_one_cut_or_one_in_each_source():
    """A stream is cut once; with best_fit each source is cut, and empty parts are omitted."""
    data = opened([0, 10], [10, 10], [10, 30])
    three = ", ".join([SOURCE] * 3)
    assert split_ranges(run_with("stream", three), data, "train") == [(0, 15)]
    assert split_ranges(run_with("stream", three), data, "test") == []
    assert split_ranges(run_with("best_fit", three), data, "train") == [(0, 5), (10, 20)]
    assert split_ranges(run_with("best_fit", three), data, "valid") == [(5, 10), (20, 30)]


def test_other_data_has_its_own_sources():
    """Data that the run does not train on is cut at its own sources; the run's own must be as configured."""
    config, data = run_with("best_fit"), opened([0, 10], [10, 30])
    assert split_ranges(config, data, "valid", is_own=False) == [(5, 10), (20, 30)]
    with pytest.raises(DataError, match=r"made from 2 sources, but data\.sources has 1"):
        split_ranges(config, data, "valid")
