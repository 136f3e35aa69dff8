"""The search for a layout: ranked and rejected layouts, their reasons, the table, and the YAML of a chosen
layout.

tests/benchmarks/search.py measures its speed.
"""

import json

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.arithmetic.flops import model_flops
from nbtrain.config.load import load
from nbtrain.config.rules.check import find_problems
from nbtrain.config.shape import Shape
from nbtrain.planner.memory import estimate, estimate_memory
from nbtrain.planner.search.legal import PLAIN, Cut, Layout, cuts, legal_options, micro_batches, space_of
from nbtrain.planner.search.reasons import reasons
from nbtrain.planner.search.search import ROOMY_FRACTION, _some, run_on, score, search, try_cut, why_not
from nbtrain.planner.search.search_picture import spread
from nbtrain.planner.search.search_results import FoundLayouts, against
from nbtrain.planner.setup.setup import setup_of
from nbtrain.planner.time.step import estimate_step


@pytest.fixture(scope="module")
def small() -> FoundLayouts:
    """Search layouts for 1.3B on two machines of 8 GPUs."""
    return FoundLayouts(search("1.3B", 16, 8, "A100-40GB"))


@pytest.fixture(scope="module")
def large() -> FoundLayouts:
    """Search layouts for 13B on one machine, where few of them fit."""
    return FoundLayouts(search("13B", 8, 8, "A100-40GB"))


def test_every_ranked_layout_is_legal_and_its_figures_are_those_of_its_run(small):
    """In a sample of ranked layouts, each passes the rules, and its memory and time equal the plan of its
    run.
    """
    for one in small.result.ranked[:: len(small) // 12]:
        config = small.result.space.run(one.layout)
        assert find_problems(config) == []
        assert estimate_memory(config).parts == one.memory.parts
        step = estimate_step(setup_of(config))
        assert step is not None and step.seconds == one.seconds
        assert one.fits and one.headroom_bytes == one.memory.device_bytes - one.memory.total_bytes
        setup = setup_of(config)
        flops = model_flops(setup.shape) * setup.tokens_per_step
        assert one.mfu == pytest.approx(flops / one.seconds / 16 / 312e12)  # an A100's bf16 peak


def test_the_ranking_is_by_time_and_headroom(small, large):
    """Layouts are ranked by step time; differences below a few percent count as equal, and a layout with
    little headroom ranks as if it were slower.
    """
    for found in (small, large):
        raised = [one.seconds * (1 + max(ROOMY_FRACTION - one.headroom, 0)) for one in found.result.ranked]
        highest = 0.0
        for value in raised:
            assert value > highest / 1.011
            highest = max(highest, value)
    assert any(0 <= one.headroom < ROOMY_FRACTION for one in large.result.ranked)


@pytest.mark.slow
def test_pruning_leaves_out_nothing_faster():
    """Pruning removes no layout that would win: among all legal layouts of 1.3B on 4 GPUs, none is faster
    with the same headroom.
    """
    space = space_of(run_on("1.3B", 4, None, "A100-40GB"))
    found = search("1.3B", 4, None, "A100-40GB")
    best = found.best
    assert best is not None
    cuts = {one.layout.cut for one in found.ranked}
    every = [
        score(space, Layout(cut, micro, options))
        for cut in cuts
        for options in legal_options(space, cut)
        for micro in micro_batches(space, cut)
    ]
    fitting = [one for one in every if one.fits]
    assert len(fitting) > len(found.ranked)
    assert min(one.cost[0] for one in fitting) == best.cost[0]


def test_stronger_measures_are_tried_only_if_the_weaker_one_is_tight():
    """Stronger recomputation or offloading is tried only if the weaker variant of the same layout left little
    headroom.
    """
    space = space_of(run_on("1.3B", 8, None, "A100-40GB"))
    tried = list(try_cut(space, Cut(1, 1, 1, 8)))
    by_size: dict[tuple[int, int, bool], list[float]] = {}
    for one in tried:
        options = one.layout.options
        key = (options.zero_stage, one.layout.micro_batch_size, options.hpz)
        by_size.setdefault(key, []).append(one.headroom if one.fits else -1.0)
    assert any(len(headrooms) > 1 for headrooms in by_size.values())
    for headrooms in by_size.values():
        assert all(headroom < ROOMY_FRACTION for headroom in headrooms[:-1])


def test_a_layout_that_is_given_up_early_does_not_fit(large):
    """The search ends an estimate where it exceeds the GPU. The whole estimate says the same of each
    layout.
    """
    space = large.result.space
    tried = [one for cut, reason in cuts(space) if reason is None for one in try_cut(space, cut)]
    assert any(one.estimated is None for one in tried) and any(one.fits for one in tried)
    for one in tried:
        memory = estimate(one.setup)
        assert one.memory == memory
        assert one.fits == (bool(memory.fits) and memory.fits_host is not False)


def test_reasons_are_in_the_order_of_the_field(small, large):
    """Each layout has reasons for its precision, recomputation, ZeRO stage, hpZ, offloading and replicas, in
    this order.
    """
    topics = ["precision", "recomputation", "ZeRO", "hpZ", "offloading", "replicas"]
    for found in (small, large):
        for one in found.result.ranked[:20]:
            shares = ["sequences"] if one.layout.cut.sharing > 1 else []
            topics_of_one = [*topics[:5], *shares, *topics[5:]]
            assert [reason.topic for reason in reasons(found.result, one)] == topics_of_one
    words = dict(small.why(1))
    assert words["precision"].startswith("bf16: A100-40GB ") and " at 312 TFLOP/s" in words["precision"]
    offloaded = next(one for one in large.result.ranked if one.layout.options.offload_optimizer == "cpu")
    text = dict(reasons(large.result, offloaded))["offloading"]
    assert text.startswith("optimizer in host memory (") and " a rank needs " in text and "39.6 GiB" in text


def test_a_faster_layout_with_more_replicas_is_named_with_its_headroom():
    """For 13B on 64 GPUs, the reason says that 64 replicas would be faster but would leave almost no
    headroom.
    """
    found = FoundLayouts(search("13B", 64, 8, "A100-80GB"))
    words = dict(found.why(1))["replicas"]
    more = [one for one in found.result.ranked if one.layout.cut.data > found[1].layout.cut.data]
    fastest = min(more, key=lambda one: one.seconds)
    assert fastest.layout.words in words
    assert words.endswith("of the device memory left") == (fastest.headroom < ROOMY_FRACTION)


def test_the_reasons_against_refused_layouts_name_rule_or_need(large):
    """The reason for a rejected layout is the broken rule with its numbers, or the missing memory."""
    refused = large.result.refused
    assert {one.kind for one in refused} == {"rule", "memory", "unneeded"}
    texts = [one.reason for one in refused]
    assert any(text.startswith("ZeRO 2 cannot be combined with pipeline parallelism: ") for text in texts)
    memory = next(one for one in refused if one.kind == "memory" and one.words.endswith(": all layouts"))
    assert " needs " in memory.reason and " too much; the largest part is " in memory.reason
    estimated = sum(one.count for one in refused if one.kind == "memory") + len(large)
    assert estimated == large.result.estimated


def test_why_not_answers_for_any_layout(small):
    """why_not explains any layout: it breaks a rule, needs too much memory, is slower, uses a technique it
    does not need, or is the best.
    """
    result = small.result
    assert small.why_not(tensor_parallel_size=3).startswith(
        "The trainer rejects this layout: it uses 15 GPUs, but"
    )
    big = Layout(Cut(1, 1, 1, 16), 32, PLAIN)
    assert why_not(result, big).startswith("This layout does not fit: it needs ")
    assert " ranked layouts are better." in why_not(result, result.ranked[5].layout)
    needless = result.ranked[0].layout
    needless = needless._replace(options=needless.options._replace(recompute="full", offload_optimizer="cpu"))
    assert why_not(result, needless).endswith("because it uses a technique that it does not need.")
    assert why_not(result, result.ranked[0].layout) == "This is the best layout."
    with pytest.raises(ConfigError, match=r"'tp' is not a setting of why_not.* tensor_parallel_size,"):
        small.why_not(tp=3)


def test_context_parallelism_is_found_where_ulysses_cannot_shard_the_heads():
    """With 5 heads, neither tensor parallelism nor Ulysses gives each of two ranks as many; 16 GPUs share 8
    sequences of a batch by context parallelism.
    """
    changes = {"model.num_attention_heads": 5, "model.kv_channels": 128, "model.attention_dropout": 0.0}
    changes |= {"batch.global_batch_size": 8, "parallel.pipeline_parallel_size": 1}
    found = FoundLayouts(search("1.3B", 16, 8, "A100-80GB", changes))
    cut = found[1].layout.cut
    assert cut.tensor == cut.ulysses == 1 < cut.context
    assert dict(found.why(1))["sequences"] == (
        f"context parallelism splits each sequence across {cut.context} ranks: with Ulysses, the trainer "
        f"rejects the layout (ds_sequence_parallel_size({cut.context}) does not divide "
        "num_attention_heads(5))"
    )
    assert "context parallelism cannot be combined with Ulysses" in found.why_not(
        context_parallel_size=2, ds_sequence_parallel_size=2
    )


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"zero_stage": 7}, "zero_stage = 7 must be one of 0, 1, 2, 3."),
        ({"zero_stage": True}, "zero_stage = True must be one of 0, 1, 2, 3."),
        ({"recompute": "some"}, "recompute = 'some' must be one of none, selective, full."),
        ({"tensor_parallel_size": "8"}, "tensor_parallel_size = '8' must be a whole number of at least 1."),
        ({"data_parallel_size": 0}, "data_parallel_size = 0 must be a whole number of at least 1."),
    ],
)
def test_why_not_refuses_values_that_no_layout_has(small, wanted, message):
    """why_not rejects a value of the wrong type or outside the range, instead of saying that the layout does
    not fit.
    """
    with pytest.raises(ConfigError) as caught:
        small.why_not(**wanted)
    assert str(caught.value) == message


def test_use_writes_a_run_that_loads(small, tmp_path):
    """`use` writes a YAML that extends the preset's run and states the reason; when it is loaded, it has the
    chosen layout.
    """
    path = small.use(2, tmp_path / "chosen.yaml")
    text = path.read_text()
    assert text.startswith("# Written by `nbtrain search`: layout 2 of ")
    assert "#   offloading: " in text and "extends: gpt-1-3b-4xdp\n" in text
    config = load(path)
    assert config.name == "chosen" and config.world_size == 16
    assert setup_of(config) == small[2].setup
    with pytest.raises(ConfigError, match="already exists"):
        small.use(1, path)
    with pytest.raises(
        ConfigError, match=r"layout number 0 does not exist: .* gpt-1-3b-4xdp .* numbered from 1"
    ):
        small.use(0, path)
    with pytest.raises(
        ConfigError, match=r"the file name becomes the run's name, but 'my run' must be 1 to 53"
    ):
        small.use(1, tmp_path / "my run.yaml")
    assert not (tmp_path / "my run.yaml").exists()


def test_table_html_json_and_picture(small, large):
    """Text, HTML and JSON contain the same rows, and the picture marks the same layouts."""
    assert small.rows()[0][-1] == "-" and against(small.result, small[1]) == "-"
    assert not any("-0.0%" in row[-1] for row in (*small.rows(), *large.rows()))
    text, page, record = str(small), small._repr_html_(), json.loads(json.dumps(small.to_dict()))
    for row, layout in zip(small.rows(), record["layouts"], strict=True):
        assert row[1] in text and row[1] in page
        assert layout["step_seconds"] == pytest.approx(sum(layout["step_parts"].values()))
        assert list(layout["reasons"]) == [
            "precision",
            "recomputation",
            "ZeRO",
            "hpZ",
            "offloading",
            "replicas",
        ]
    assert "Why number 1" in text and "<details>" in page
    assert len(record["refused"]) == len(small.result.refused)
    assert str(small.refused(every=True)).count("\n  - ") == len(small.result.refused)
    assert small.refused()._repr_html_().count("<li ") == len(small.refusals()) <= 9
    labels = [text.get_text() for text in small.picture().axes[0].texts]
    assert {str(number) for number in range(1, 4)} <= set(labels)
    assert any(label.startswith("A100-40GB: ") for label in labels)


@pytest.mark.slow
def test_no_two_numbers_of_the_picture_overlap(small):
    """The numbers in the picture are below all points and do not overlap, even if the best layouts are close
    to each other.
    """
    figure = small.picture()
    figure.draw_without_rendering()
    axes = figure.axes[0]
    numbers = [text for text in axes.texts if text.get_text().isdigit()]
    assert sorted(int(text.get_text()) for text in numbers) == list(range(1, small.top + 1))
    fastest = min(one.seconds for one in small.result.ranked)
    assert all(text.get_position()[1] < fastest for text in numbers)
    places = sorted(text.get_position()[0] for text in numbers)
    pixels = axes.transData.transform([(place, fastest) for place in places])[:, 0]
    # Two digits of 8 points at 100 dots an inch.
    assert min(pixels[1:] - pixels[:-1]) > 13


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ([1, 5, 9], [1, 5, 9]),
        ([5, 5, 5], [4, 5, 6]),
        ([0, 5, 5.5, 9], [0, 4.75, 5.75, 9]),
        ([4.4, 5, 5.6, 5.6], [3.65, 4.65, 5.65, 6.65]),
        ([], []),
    ],
)
def test_numbers_are_moved_apart_around_their_mean(wanted, places):
    assert spread(wanted, 1.0) == pytest.approx(places)


def test_one_gpu_is_helped_by_the_stages_that_offload():
    """On one GPU, ZeRO 2 has nothing to shard, but it keeps the gradients in host memory, so that 13B fits in
    40 GB.
    """
    given = {"resources.memory_per_node_bytes": 500e9}
    result = search("13B", 1, None, "A100-40GB", given)
    best = result.best
    assert best and best.layout.options.zero_stage == 2 and best.layout.options.offload_optimizer == "cpu"
    reasons = {reason.topic: reason.words for reason in FoundLayouts(result).why(1)}
    assert reasons["ZeRO"].startswith(
        "stage 2, which also keeps the only replica's gradients in host memory: with"
    )
    assert all(
        one.layout.options.offload_optimizer == "cpu"
        for one in result.ranked
        if one.layout.options.zero_stage > 1
    )


def test_zero_0_is_not_said_to_shard():
    """In fp32, ZeRO 0 may be the fastest: it shards no optimizer state, and is compared with ZeRO 1."""
    result = search("gpt-125m", 8, None, "A100-80GB", {"precision.dtype": "fp32"})
    assert result.best and result.best.layout.options.zero_stage == 0
    words = dict(FoundLayouts(result).why(1))["ZeRO"]
    assert words.startswith("stage 0, which shards nothing: with stage 1, a step takes ")


def test_nothing_fits():
    """If nothing fits, as for 175B on one machine, each kind of layout states the missing memory, and a hint
    follows.
    """
    found = FoundLayouts(search("175B", 8, 8, "A100-40GB"))
    assert len(found) == 0 and found.best is None
    assert "No layout fits." in str(found) and "run `nbtrain largest`" in str(found)
    assert "host memory is not known; set resources.memory_per_node_bytes" in str(found)
    assert "nb.largest" in found._repr_html_()
    assert found.picture().axes[0].texts[0].get_text() == "no layout fits"
    with pytest.raises(ConfigError, match="found 0 layouts that fit"):
        found.why(1)


def test_the_gpus_are_named_or_refused():
    """Unknown GPU types, CPU runs, and numbers of GPUs that do not fill machines are rejected with a fix."""
    for arguments, words in (
        (("gpt-tiny", 8, None, "A100-81GB"), "GPU type 'A100-81GB' is not in the device table. Nearest: "),
        (("gpt-tiny", 8), "gpt-tiny does not specify a GPU type. Pass one, e.g. --gpu-type"),
        (("gpt-tiny", None, None, "H100"), "gpt-tiny is a run on CPUs. .* give the number of GPUs"),
        (("1.3B", 12, 8), r"gpus = 12 must be a multiple of gpus_per_node\(8\)\. Nearest: 8, 16\."),
        (("1.3B", 0), "gpus = 0 must be at least 1."),
        (("1.3B", 8, 0), "gpus_per_node = 0 must be at least 1."),
        (("1.3B", 8, 8, "H100-80GB"), "'H100-80GB' is not in the device table. Nearest: H100"),
        (("1.3B", 8, 8, ""), "GPU type '' is not in the device table."),
        (("14B", 8), "14B: no preset has this size. Nearest: 13B. Presets: 125M, 135M, 345M, "),
    ):
        with pytest.raises(ConfigError, match=words):
            search(*arguments)


def test_the_number_format_follows_the_gpu_and_the_override():
    """The number format is bf16 if the GPU supports it and fp16 otherwise, unless an override sets it."""
    assert run_on("1.3B", 8, None, "A100-40GB").precision.dtype == "bf16"
    assert run_on("1.3B", 8, None, "V100-32GB").precision.dtype == "fp16"
    assert run_on("1.3B", 8, None, "A100-40GB", ["precision.dtype=fp16"]).precision.dtype == "fp16"
    assert run_on("1.3B", 8, None, "A100-40GB", keep_format=True).precision.dtype == "fp16"


def test_a_run_that_no_layout_mends_is_refused():
    """If a rule is broken that no layout can satisfy, the error is reported before the search."""
    with pytest.raises(ConfigError, match=r"lr_schedule.min_lr = 1"):
        search("1.3B", 8, None, "A100-40GB", {"lr_schedule.min_lr": 1.0})


def test_limits_of_kubernetes_exclude_layouts():
    """Layouts that the rules of backend.kubernetes refuse are excluded with the reason, instead of the whole
    search: micro batches that shared memory cannot hold, and model parallelism under DeepSpeed's autotuner.
    """
    kubernetes = {
        "backend.kind": "kubernetes",
        "resources.image": "registry.example.com/nbtrain:0.1.0",
        "backend.kubernetes.mounts": [{"claim": "work", "mount_path": "/work"}],
        "backend.kubernetes.workspace_path": "/work",
    }
    memory = {"backend.kubernetes.shared_memory_bytes": 2_000_000, "data.num_workers": 1}
    found = search("1.3B", 8, gpu_type="A100-80GB", overrides={**kubernetes, **memory})
    assert {one.layout.micro_batch_size for one in found.ranked} == {1, 2}
    reason = "the data workers (data.num_workers = 1) of the 8 ranks of a pod prefetch 2457600 bytes"
    [group] = [one for one in found.refused if reason in one.reason]
    assert group.words.startswith("micro-batch 4; micro-batch 8")
    tuned = {"backend.kubernetes.workload": "DeepSpeedJob", "backend.kubernetes.autotune": "tune"}
    found = search("13B", 8, gpu_type="A100-40GB", overrides={**kubernetes, **tuned})
    assert {one.layout.cut for one in found.ranked} == {Cut(1, 1, 1, 8)}
    assert any("needs tensor_parallel_size: 1, but the size is 2" in one.reason for one in found.refused)
    # Shared memory that holds no micro batch at all is the reason why no layout is legal.
    memory["backend.kubernetes.shared_memory_bytes"] = 200_000
    found = search("1.3B", 8, gpu_type="A100-80GB", overrides={**kubernetes, **memory})
    assert not found.ranked and any("prefetch 884736 bytes" in one.reason for one in found.refused)


def test_a_shape_is_searched_without_a_run(tmp_path):
    """A model shape that the trainer does not support yet, here like LLaMA, can be searched without a run; it
    has no YAML to write.
    """
    shape = Shape(32, 4096, 32, 11008, 32000, 4096, 8, 128, gated=True, rmsnorm=True, bias=False, tied=False)
    found = FoundLayouts(search(shape, 16, 8, "H100", batch=256))
    assert len(found) and found.to_dict()["layouts"][0]["run_seconds"] is None
    with pytest.raises(ConfigError, match="it cannot write a run YAML"):
        found.use(1, tmp_path / "run.yaml")
    with pytest.raises(ConfigError, match="a model shape does not specify GPUs"):
        search(shape)


def test_a_calibration_of_this_machine_is_used(monkeypatch):
    """The rates of a calibration of this machine replace those in the table, for a step and for the whole
    run.
    """
    from dataclasses import replace

    from nbtrain.planner.search import search as module

    tabled = FoundLayouts(search("1.3B", 4, None, "A100-40GB"))

    def doubled(rates, setup):
        return replace(rates, matmul_flops={dtype: 2 * flops for dtype, flops in rates.matmul_flops.items()})

    monkeypatch.setattr(module, "calibrated_rates", doubled)
    measured = FoundLayouts(search("1.3B", 4, None, "A100-40GB"))
    faster = measured[1].seconds / tabled[1].seconds
    assert faster < 0.8
    runs = [found.to_dict()["layouts"][0]["run_seconds"] for found in (measured, tabled)]
    assert runs[0] < 0.8 * runs[1]


def test_three_reasons_are_all():
    """At most three different reasons are listed, followed by the number of further ones."""
    assert _some(["a", "b", "c", "a"]) == "a; b; c"
    assert _some(list("abcde")) == "a; b; c; 2 more"


def test_machines_have_the_gpus_that_they_have_in_the_run():
    """A run on several machines keeps their size on another number of GPUs; a preset or a run on one machine
    has the usual 8.
    """
    for run, gpus, machines in (
        ({"nodes": 2, "gpus_per_node": 4}, 16, (4, 4)),
        ({"nodes": 2, "gpus_per_node": 4}, 2, (1, 2)),
        ({"nodes": 1, "gpus_per_node": 4}, 16, (2, 8)),
    ):
        resources = {f"resources.{key}": value for key, value in run.items()}
        found = run_on(load("gpt-125m-4xdp", resources, check=False), gpus).resources
        assert (found.nodes, found.gpus_per_node) == machines
    other = run_on(load("gpt-125m-4xdp", {"resources.nodes": 2}, check=False), 16, gpu_type="H100")
    assert (other.resources.nodes, other.resources.gpus_per_node) == (2, 8)
