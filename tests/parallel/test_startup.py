"""How training starts and ends on a rank, as far as one process can show."""

import pytest
import torch.distributed as dist

from nbtrain.parallel import startup


@pytest.mark.parametrize(("ranks", "barriers"), [(1, 0), (2, 1)])
def test_a_gpu_alone_waits_for_nobody(monkeypatch, ranks, barriers):
    """A single GPU skips the barrier, because NCCL would write a warning of three lines to each log."""
    waited = []
    monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(dist, "barrier", lambda: waited.append("barrier"))
    startup.wait_for_all()
    assert len(waited) == barriers


@pytest.mark.parametrize(
    ("given", "compiled"),
    [("9.0a", "9.0"), ("8.0 9.0a", "8.0 9.0"), ("8.6;10.0f+PTX", "8.6;10.0+PTX"), ("9.0", "9.0")],
)
def test_deepspeed_gets_architectures_without_letters(given, compiled):
    assert startup.without_letters(given) == compiled
