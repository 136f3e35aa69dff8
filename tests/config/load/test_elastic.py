"""Running the same steps with another number of data-parallel ranks."""

import pytest

from nbtrain.config.load import load
from nbtrain.config.load.elastic import fitted

TINY = """
name: tiny
model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, seq_length: 32}
tokenizer: {name: test, vocab_size: 500}
data: {name: test}
batch: {micro_batch_size: 2, global_batch_size: 48, train_tokens: 153600}
lr_schedule: {lr: 1.0e-3}
parallel: {data_parallel_size: 8}
resources: {device: cpu}
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    return lambda **overrides: load(tmp_path / "tiny.yaml", overrides)


@pytest.mark.parametrize(
    ("devices", "size"), [(8, 8), (7, 6), (6, 6), (5, 4), (3, 3), (1, 1), (0, None), (11, 8), (100, 24)]
)
def test_the_largest_size_that_divides_the_batch(config, devices, size):
    """With 24 micro batches per step, 7 devices use 6 ranks of 4 micro batches, and 11 use 8 ranks of 3."""
    smaller = fitted(config(), [devices])
    assert (smaller and smaller.parallel.data_parallel_size) == size
    if smaller:
        assert smaller.batch.global_batch_size == 48
        assert smaller.train_steps == config().train_steps
        assert smaller.accumulation_steps * size * 2 == 48


def test_a_copy_of_the_model_is_not_cut_up(config):
    """With two stages of two tensor-parallel ranks, devices are used only in groups of four."""
    piped = config(
        **{
            "parallel.data_parallel_size": 4,
            "parallel.tensor_parallel_size": 2,
            "parallel.pipeline_parallel_size": 2,
            "batch.global_batch_size": 32,
            "batch.train_tokens": 102400,
        }
    )
    found = [fitted(piped, [devices]) for devices in (16, 15, 8, 7, 3)]
    assert [one and one.parallel.data_parallel_size for one in found] == [4, 2, 2, 1, None]


def test_a_ramps_sizes_must_divide_too(config):
    ramped = config(
        **{
            "batch.rampup": {"start_batch_size": 16, "batch_size_increment": 16, "ramp_samples": 96},
            "batch.micro_batch_size": 1,
        }
    )
    # 6 ranks divide 48, but not 16.
    assert fitted(ramped, [7]).parallel.data_parallel_size == 4


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        ([4, 4], (8, 2, 4)),
        ([4, 0], (4, 1, 4)),
        ([4, 3], (6, 2, 3)),
        ([3, 2], (4, 2, 2)),
        ([1, 0], (1, 1, 1)),
        ([0, 0], None),
    ],
)
def test_gpus_of_several_machines(config, devices, found):
    """The ranks are spread evenly over as few machines as possible."""
    there = {"resources.device": "gpu", "resources.nodes": 2, "resources.gpus_per_node": 4}
    places = {"backend.kind": "hosts", "backend.hosts.hosts": ["a", "b"]}
    smaller = fitted(config(**there, **places), devices)
    size = smaller and (
        smaller.parallel.data_parallel_size,
        smaller.resources.nodes,
        smaller.resources.gpus_per_node,
    )
    assert size == found
