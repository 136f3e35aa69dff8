"""What this release does not train is refused by name, before anything is taken."""

import pytest

from nbtrain.config.load import load
from nbtrain.errors import ConfigError
from nbtrain.train.build import refuse_unsupported


@pytest.mark.parametrize(
    "run, key",
    [
        ("gpt-1-3b-4xdp-4xpp", "parallel.pipeline_parallel_size"),
        ("gpt-13b-4xdp-4xpp-4xtp", "parallel.tensor_parallel_size"),
    ],
)
def test_pipeline_and_tensor_parallelism(run, key):
    with pytest.raises(ConfigError, match=f"{key} is not trained by this release"):
        refuse_unsupported(load(run))


@pytest.mark.parametrize("run", ["gpt-tiny", "gpt-125m", "gpt-125m-4xdp", "gpt-1-3b-8xdp"])
def test_data_parallel_runs_are_trained(run):
    refuse_unsupported(load(run))


def test_a_ramp_is_trained():
    ramp = {"start_batch_size": 16, "batch_size_increment": 16, "ramp_samples": 1000}
    refuse_unsupported(load("gpt-125m", {"batch.rampup": ramp}))


def test_compile_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigError) as caught:
        refuse_unsupported(load("gpt-tiny", {"model.compile": True}))
    assert str(caught.value) == (
        "override model.compile=true: model.compile = true needs a C++ compiler on CPU, and neither $CXX nor g++ nor "
        "clang++ was found. Install one (Debian: apt-get install g++), or set compile: false."
    )


def test_compile_with_zero_3():
    with pytest.raises(ConfigError, match=r"model\.compile = true fails with parallel\.zero_stage = 3"):
        refuse_unsupported(load("gpt-125m-2xdp", {"model.compile": True, "parallel.zero_stage": 3}))
