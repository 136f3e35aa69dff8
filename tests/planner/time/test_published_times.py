"""Times that the upstream example publishes, next to the plan of the same run."""

import json

import pytest

from nbtrain.config.load import load
from nbtrain.planner.plan import plan
from nbtrain.planner.time.published_times import DAY, HOUR, PUBLISHED, published_time
from tests.config.conftest import UPSTREAM

pytestmark = pytest.mark.usefixtures("workspace")

GOLDEN = {
    "gpt-125m": 8 * HOUR,
    "gpt-125m-2xdp": 4 * HOUR,
    "gpt-125m-4xdp": 2 * HOUR,
    "gpt-1-3b-4xdp": 8 * DAY,
    "gpt-1-3b-8xdp": 4 * DAY,
    "gpt-1-3b-4xdp-4xpp": 2 * DAY,
    "gpt-13b-4xdp-4xpp": None,
    "gpt-13b-4xdp-8xpp": None,
    "gpt-13b-4xdp-4xpp-4xtp": None,
}


def test_each_of_the_nine_runs_has_its_published_time():
    assert {time.run: time.seconds for time in PUBLISHED.values()} == GOLDEN
    assert sorted(GOLDEN) == sorted(UPSTREAM)
    for name in UPSTREAM:
        found = published_time(load(name))
        assert found is not None and found.run == name


def test_a_run_is_recognized_by_its_numbers():
    """Another name, device or precision is still the published run; other work or another layout is not."""
    same = load("gpt-125m", ["name=mine", "resources.gpu_type=H100", "precision.dtype=bf16"])
    found = published_time(same)
    assert found is not None and found.run == "gpt-125m"
    others = ("batch.train_tokens=5e9", "batch.global_batch_size=512", "model.num_layers=10")
    partial = ("batch.max_steps=10", "mode=perf", "mode=eval")
    for override in (*others, *partial):
        assert published_time(load("gpt-125m", [override])) is None, override
    assert published_time(load("gpt-125m", ["lora.rank=8"], check=False)) is None
    assert published_time(load("gpt-125m-zh")) is not None
    assert published_time(load("gpt-350m-4xdp")) is None


def test_the_published_time_stands_beside_the_plan_with_the_reason():
    """8 hours were measured with another program, whose plan on this GPU is 8.0 h; nbtrain's is 5.3 h."""
    found = plan(load("gpt-125m"), use_measured=False)
    assert found.published is not None and found.published.planned_seconds is not None
    assert found.published.planned_seconds == pytest.approx(8 * HOUR, rel=0.02)
    words = found.sections()["Time"]["upstream"]
    assert words.startswith("about 8 h on 1 A100 PCIe 40GB (t9k/examples, deepspeed/megatron-gpt, README.md)")
    assert "is planned to take 8.0 h on A100-40GB" in words
    assert "move each byte of activations 22 times per step (nbtrain's kernels: 7 times)" in words
    assert "steps 7.6 h (nbtrain: 5.1 h)" in words
    assert "training waits while checkpoints are written" in words and "(nbtrain: 13 s)" in words
    assert words.endswith("on A100-PCIe-40GB, nbtrain is planned to take 6.1 h")
    assert words in str(found)
    assert "about 8 h on 1 A100 PCIe 40GB" in found._repr_html_()
    entry = json.loads(json.dumps(found.to_dict()["published"]))
    assert entry["published"]["seconds"] == 8 * HOUR and entry["words"] == words


def test_a_time_that_its_file_cannot_have_is_explained():
    words = plan(load("gpt-1-3b-4xdp-4xpp"), use_measured=False).sections()["Time"]["upstream"]
    assert "requests ZeRO 2 with a pipeline, which DeepSpeed rejects" in words
    blank = plan(load("gpt-13b-4xdp-4xpp"), use_measured=False).sections()["Time"]["upstream"]
    assert blank.startswith("no time is published for 16 A100 80GB")


def test_without_a_known_gpu_only_the_published_time_is_shown():
    found = plan(load("gpt-125m", ["resources.gpu_type=null"]), use_measured=False)
    assert found.published is not None and found.published.planned_seconds is None
    assert (
        found.published.words
        == "about 8 h on 1 A100 PCIe 40GB (t9k/examples, deepspeed/megatron-gpt, README.md)"
    )
