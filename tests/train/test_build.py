"""A model that this machine cannot train is rejected with the name of the field, before it is built."""

import pytest
import torch

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.parallel.startup import World
from nbtrain.train.build import refuse_backend, refuse_unsupported


@pytest.mark.parametrize("run", ["gpt-tiny", "gpt-125m-4xdp", "gpt-1-3b-4xdp-4xpp", "gpt-13b-4xdp-4xpp-4xtp"])
def test_every_layout_is_trained(run):
    refuse_unsupported(load(run))


def test_an_attention_backend_that_torch_cannot_give_is_refused():
    """An attention backend that torch does not support on this machine is rejected, with the field and
    torch's message.
    """
    config = load("gpt-tiny", {"model.attention_backend": "flash", "model.attention_dropout": 0.0})
    # check.py refuses what it can know in advance; the device is only visible here.
    config = config.model_copy(update={"model": config.model.model_copy(update={"attention_dropout": 0.1})})
    with pytest.raises(ConfigError) as caught:
        refuse_backend(config, World(0, 1, 0, torch.device("cpu")))
    message = str(caught.value)
    assert message.startswith(
        "override model.attention_backend=flash: model.attention_backend = flash cannot be used on cpu"
    )
    assert message.endswith("Set attention_backend: auto.")
    refuse_backend(load("gpt-tiny", {"model.attention_backend": "math"}), World(0, 1, 0, torch.device("cpu")))


def test_a_ramp_is_trained():
    ramp = {"start_batch_size": 16, "batch_size_increment": 16, "ramp_samples": 1000}
    refuse_unsupported(load("gpt-125m", {"batch.rampup": ramp}))


def test_compile_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigError) as caught:
        refuse_unsupported(load("gpt-tiny", {"model.compile": True}))
    assert str(caught.value) == (
        "override model.compile=true: model.compile = true needs a C++ compiler on CPU, and neither $CXX nor "
        "g++ nor clang++ was found. Install one (Debian: apt-get install g++), or set compile: false."
    )
