"""A fixture for the views of packed sequences."""

import pytest


@pytest.fixture(autouse=True)
def short_passes(monkeypatch):
    """Pack short passes: with few examples, a pass of 1,024 samples would be hundreds of epochs."""
    monkeypatch.setattr("nbtrain.dataset.samples.packed_index.LEAST_PASS_SAMPLES", 20)
