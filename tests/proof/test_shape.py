"""How a run is scaled down to its twin: what is reduced, what is kept, and what is reported as not
covered.
"""

import itertools
import json
import math

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.base.workspace import valid_name
from nbtrain.config.arithmetic.layout_words import SIZE_KEYS
from nbtrain.config.load import flatten, load
from nbtrain.config.load.attempt import attempt_record
from nbtrain.config.load.derived import NOT_INHERITED
from nbtrain.config.rules.check import find_problems
from nbtrain.config.rules.combinations import BY_NAME, KINDS
from nbtrain.config.rules.pairing import pairing
from nbtrain.jobs.calibration.calibrate_network import network_run
from nbtrain.proof.shape import FOLDED_FIRST, fold, make_twin
from nbtrain.proof.small_sections import RAMP_STEPS, STEPS, STOP_STEP, Abilities, NotProven
from tests.config.conftest import EXAMPLES

RUNS = sorted(EXAMPLES.parent.glob("*/*.yaml"))
EVERYTHING = Abilities(fp16=True, compiler=True)
# Features that a CPU lacks, and their replacement in the twin.
REPLACED = {"offload_optimizer_nvme": "offload_optimizer_cpu", "offload_param_nvme": "offload_param_cpu"}
GPU_ONLY = {kind.name for kind in KINDS if kind.gpu_only}


def sizes(
    data: int = 1, tensor: int = 1, pipeline: int = 1, ulysses: int = 1, context: int = 1
) -> dict[str, int]:
    return dict(zip(FOLDED_FIRST, (data, tensor, pipeline, ulysses, context), strict=True))


def product(values: dict[str, int]) -> int:
    return math.prod(values[key] for key in FOLDED_FIRST)


# --- folding --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "whole, folded",
    [
        (sizes(8), sizes(8)),
        (sizes(16), sizes(8)),
        (sizes(12), sizes(6)),
        (sizes(4, pipeline=4), sizes(2, pipeline=4)),
        (sizes(4, pipeline=8), sizes(2, pipeline=4)),
        (sizes(4, tensor=4, pipeline=4), sizes(2, tensor=2, pipeline=2)),
        (sizes(tensor=8, pipeline=16), sizes(tensor=2, pipeline=4)),
        (sizes(3, pipeline=3), sizes(2, pipeline=3)),
        (sizes(1000, tensor=2, ulysses=1), sizes(4, tensor=2)),
        (sizes(8, ulysses=8), sizes(2, ulysses=4)),
        (sizes(1, tensor=8, pipeline=2, ulysses=2), sizes(1, tensor=2, pipeline=2, ulysses=2)),
        (sizes(2, tensor=8, context=8), sizes(2, tensor=2, context=2)),
        (sizes(2, tensor=8, pipeline=4, ulysses=2), sizes(2, tensor=2, pipeline=2, ulysses=2)),
    ],
)  # fmt: skip
def test_the_largest_is_halved_data_first(whole, folded):
    assert fold(whole) == folded


def test_every_kind_stays_and_nothing_grows():
    """A twin of up to three kinds has at most 8 ranks, and each parallel size of more than 1 stays between 2
    and its original value.
    """
    for values in itertools.product(range(1, 14), repeat=3):
        whole = sizes(*values)
        folded = fold(whole)
        assert product(folded) <= 8
        for key, size in whole.items():
            assert min(size, 2) <= folded[key] <= size
        assert folded == whole or product(whole) > 8
        assert fold(folded) == folded


# --- twins ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_example_has_a_twin_with_its_kinds(path):
    """The twin of every example breaks no rule and has few ranks; only features that a CPU does not have are
    missing.
    """
    config = load(path)
    twin = make_twin(config, EVERYTHING)
    for one in (twin.config, twin.exact, twin.rounded, twin.reference, twin.reshaped, twin.resumed):
        assert find_problems(one) == []
        assert valid_name(one.name)
        assert one.train_steps == STEPS
    assert twin.config.world_size == min(config.world_size, 8)
    kept = {kind.name for kind in KINDS if kind.present(config)} - GPU_ONLY
    assert {kind.name for kind in KINDS if kind.present(twin.config)} == kept | {"cpu"}
    assert twin.reference.world_size == twin.reshaped.world_size == 1
    # One process pads the vocabulary to the same size, and uses the same samples in each step.
    assert twin.reference.padded_vocab_size == twin.exact.padded_vocab_size
    assert twin.reference.batch_schedule == twin.exact.batch_schedule == twin.config.batch_schedule
    assert twin.resumed.batch.exit_interval_steps == STOP_STEP < STEPS


def test_a_twin_does_not_inherit_what_belongs_to_the_users_run():
    """Labels, for example, would put the twin into the run's sweep."""
    changes = {"labels": {"sweep": "lr"}, "notify.command": ["say"], "checkpoint.local_dir": "/disk"}
    config = load(EXAMPLES / "gpt3-tiny.yaml", changes, check=False)
    for derived in (make_twin(config).config, network_run(config)):
        found = dict(flatten(derived.model_dump()))
        assert {key: found.get(key, {}) for key in NOT_INHERITED} == NOT_INHERITED


def test_every_kind_of_parallelism_is_folded():
    assert sorted(FOLDED_FIRST) == sorted(SIZE_KEYS)


def config_of(settings: dict):
    base = {"resources.device": "gpu", "batch.micro_batch_size": 2, "batch.global_batch_size": 64}
    given = {**base, "parallel.zero_stage": 1, **settings}
    if given["resources.device"] == "gpu":
        ranks = 1
        for key in FOLDED_FIRST:
            ranks *= given.get(f"parallel.{key}", 1)
        given["resources.gpus_per_node"] = ranks
    return load(EXAMPLES / "gpt3-tiny.yaml", given)


@pytest.mark.slow
def test_every_pair_of_kinds_that_goes_together_has_its_twin():
    """The twin of each pair in combinations.py reports what is removed or replaced, and keeps everything
    else.
    """
    seen = 0
    for first, second in itertools.combinations_with_replacement(KINDS, 2):
        paired = pairing(first, second) if first is not second else None
        settings = dict(first.settings) if paired is None else paired.settings
        if paired is not None and (not paired.pair or paired.reason):
            continue
        if first is second and first.needs:
            settings = {**BY_NAME[first.needs[0]].settings, **settings}
        config = config_of(settings)
        twin = make_twin(config, EVERYTHING)
        present = {kind.name for kind in KINDS if kind.present(config)}
        expected = {REPLACED.get(name, name) for name in present - GPU_ONLY} | {"cpu"}
        assert {kind.name for kind in KINDS if kind.present(twin.config)} == expected, settings
        missing = " ".join(entry.what for entry in twin.not_proven)
        for name in present & (GPU_ONLY | set(REPLACED)):
            assert BY_NAME[name].key in missing, name
        seen += 1
    assert seen > 200


def test_nodes_own_disks_are_left_alone():
    """A twin removes checkpoint.local_dir, which is a path on other machines, and reports this."""
    local = {"checkpoint.local_dir": "/local/nvme", "checkpoint.local_save_interval_steps": 100}
    twin = make_twin(config_of({**local, "checkpoint.save_interval_steps": 1000}), EVERYTHING)
    assert (twin.config.checkpoint.local_dir, twin.config.checkpoint.local_save_interval_steps) == (
        None,
        None,
    )
    assert "checkpoint.local_dir" in [entry.what for entry in twin.not_proven]


def test_what_a_machine_lacks_is_replaced_and_said():
    """Features that this machine does not have (fp16, a compiler, GPU kernels) are replaced, and this is
    reported.
    """
    config = config_of({"precision.dtype": "fp16", "model.compile": True, "model.attention_backend": "flash"})
    twin = make_twin(config, Abilities())
    assert (twin.config.precision.dtype, twin.config.model.compile) == ("bf16", False)
    assert twin.config.model.attention_backend == "auto"
    attention, compiler, precision = twin.not_proven[:3]
    assert attention == NotProven(
        "model.attention_backend: flash", "this kernel runs only on GPUs", "attention_backend: auto"
    )
    assert compiler == NotProven(
        "model.compile: true", "no C++ compiler was found on this machine", "compile: false"
    )
    assert precision.what == "precision.dtype: fp16 and its loss scale"
    assert precision.why.startswith("DeepSpeed's CPU accelerator does not support fp16")
    able = make_twin(config, EVERYTHING).config
    assert (able.precision.dtype, able.model.compile) == ("fp16", True)


LLAMAS = {
    "whole groups": {"model.num_query_groups": 8, "parallel.tensor_parallel_size": 4},
    "shared groups": {"model.num_query_groups": 2, "parallel.tensor_parallel_size": 8},
    "repeated groups": {"model.num_query_groups": 4, "parallel.ds_sequence_parallel_size": 8},
    "wide heads": {"model.kv_channels": 128, "model.architecture": "qwen3"},
    "narrow heads": {"model.kv_channels": 8, "model.num_query_groups": 16},
    "windows": {"model.architecture": "mistral", "model.window_size": 100},
    "some layers": {
        "model.architecture": "smollm3",
        "model.window_size": 100,
        "model.window_attn_skip_freq": 3,
    },
    "a list": {"model.window_size": 100, "model.window_attn_skip_freq": [1, 1, 1, 0] * 2},
    "caps": {"model.attn_logit_softcapping": 50.0, "model.final_logit_softcapping": 30.0},
}


@pytest.mark.parametrize("name", LLAMAS)
def test_a_twin_has_the_layers_of_its_run(name):
    """A twin has every kind of layer of its run; attention windows stay shorter than its sequences."""
    sizes = {"model.num_layers": 8, "model.num_attention_heads": 16, "model.hidden_size": 256}
    config = config_of(
        {**sizes, "model.attention_dropout": 0.0, "model.ffn_hidden_size": 512, **LLAMAS[name]}
    )
    twin = make_twin(config, EVERYTHING).config
    assert find_problems(twin) == []
    ours, small = config.model, twin.model
    tensor, ulysses = (
        (one.parallel.tensor_parallel_size, one.parallel.ds_sequence_parallel_size) for one in (config, twin)
    )
    assert [size > 1 for size in tensor] == [size > 1 for size in ulysses]
    groups = [(model.num_query_groups or 0) for model in (ours, small)]
    assert (groups[0] < tensor[0]) == (groups[1] < ulysses[0])
    assert (groups[0] % tensor[1] > 0) == (groups[1] % ulysses[1] > 0)
    wide = [
        model.resolved_kv_channels * model.num_attention_heads / model.hidden_size for model in (ours, small)
    ]
    assert (wide[0] > 1, wide[0] < 1) == (wide[1] > 1, wide[1] < 1)
    for field in ("qk_layernorm", "normalization", "attn_logit_softcapping", "final_logit_softcapping"):
        assert getattr(ours, field) == getattr(small, field)
    assert {window is None for window in ours.windows} == {window is None for window in small.windows}
    assert all(window is None or window < small.seq_length for window in small.windows)
    assert bool(ours.layers_without_rope) == bool(small.layers_without_rope)


# --- schedules ------------------------------------------------------------------------------------


def test_a_ramp_is_crossed_by_the_stop():
    """In the twin of gpt-175b, the batch size ramps up from one micro batch per rank to its full size, and
    the stop comes in between.
    """
    config = make_twin(load("gpt-175b")).config
    schedule = config.batch_schedule
    batches = [schedule.size_at(schedule.samples_after(step)) for step in range(STEPS)]
    assert batches[0] == config.batch.rampup.start_batch_size == 1
    assert batches[-1] == config.batch.global_batch_size == 4
    assert batches == sorted(batches)
    assert batches[STOP_STEP - 1] < batches[STOP_STEP + 1]


def test_step_sizes_are_kept():
    config = load(
        EXAMPLES / "gpt3-tiny.yaml",
        {
            "batch.global_batch_size": 64,
            "batch.step_batch_size_schedule": "0:8 100K:32 200K:64",
        },
    )
    twin = make_twin(config).config
    schedule = twin.batch_schedule
    batches = [schedule.size_at(schedule.samples_after(step)) for step in range(STEPS)]
    assert set(batches) == {2, 4} and batches == sorted(batches)
    assert RAMP_STEPS < STEPS


@pytest.mark.parametrize("unit, length", [("tokens", 10**9), ("samples", 10**6), ("steps", 10**4)])
def test_amounts_keep_their_unit_and_their_share(unit, length):
    """Warm-up, decay and the end of WSD keep their unit and their fraction of the training length."""
    config = load(
        EXAMPLES / "gpt3-tiny.yaml",
        {
            "batch.train_tokens": None,
            "batch.global_batch_size": 64,
            f"batch.train_{unit}": length,
            "lr_schedule.lr_decay_style": "WSD",
            "lr_schedule.lr_warmup_tokens": None,
            f"lr_schedule.lr_warmup_{unit}": length // 5,
            f"lr_schedule.lr_decay_{unit}": length // 10 * 9,
            f"lr_schedule.lr_wsd_decay_{unit}": length // 4,
        },
    )
    twin = make_twin(config).config
    assert twin.batch.train_amount[0] == unit
    schedule = twin.lr_schedule
    assert getattr(schedule, f"lr_warmup_{unit}") and getattr(schedule, f"lr_wsd_decay_{unit}")
    share = [amount / twin.train_tokens for amount in (twin.lr_warmup_tokens, twin.lr_decay_tokens)]
    assert share == pytest.approx([0.2, 0.9], abs=1 / STEPS)
    assert twin.lr_wsd_decay_tokens / twin.train_tokens == pytest.approx(0.25, abs=1 / STEPS)


# --- data and model -------------------------------------------------------------------------------


def test_a_tokenizer_is_shared_by_what_it_is_made_of():
    """Twins with the same training data for the tokenizer share one; twins with documents and with prompts do
    not.
    """
    of = {name: make_twin(load(name)).config for name in ("gpt-tiny", "gpt-125m", "gpt-tiny-instructions")}
    documents, same, prompts = ((config.tokenizer.name, config.data.name) for config in of.values())
    assert documents == same
    assert not set(documents) & set(prompts)


def test_examples_with_prompts_stay_such():
    """The twin of a run with packed fine-tuning has prompts and completions with the same weights, in files
    in the folder that the caller names.
    """
    twin = make_twin(load(EXAMPLES.parent / "finetuning" / "gpt-tiny-instructions.yaml"), folder="somewhere")
    data = twin.config.data
    assert (data.packing, [source.kind for source in data.sources]) == ("best_fit", ["prompt-completion"] * 2)
    assert [source.path for source in data.sources] == [
        f"somewhere/prompts-{number}.jsonl" for number in (0, 1)
    ]
    assert [source.weight for source in data.sources] == [1.0, 0.5]
    assert twin.config.init_from is None
    assert "init_from: gpt-tiny" in [entry.what for entry in twin.not_proven]


def test_a_blend_is_one_of_two():
    """The twin of a blend has two datasets, both of which are listed for preparation."""
    config = load(
        EXAMPLES / "gpt3-tiny.yaml",
        {
            "data.name": "mixed",
            "data.sources": [],
            "data.blend": [
                {"name": name, "weight": weight} for name, weight in (("a", 3.0), ("b", 1.0), ("c", 1.0))
            ],
        },
    )
    twin = make_twin(config)
    assert [entry.weight for entry in twin.config.data.blend] == [3.0, 1.0]
    assert [dataset.data.name for dataset in twin.datasets] == [
        entry.name for entry in twin.config.data.blend
    ]
    assert all(dataset.data.sources for dataset in twin.datasets)


def test_what_is_done_to_text_is_not_proven():
    """Text processing (cleaning, splitting into sentences, other JSON keys) is reported as not proven,
    because a twin trains on made-up words.
    """
    config = config_of(
        {
            "data.split_sentences": "en",
            "data.extra_json_keys": ["title"],
            "data.cleaning.ftfy": True,
            "data.sources": [{"kind": "jsonl", "path": "texts.jsonl"}],
        }
    )
    assert [entry.what for entry in make_twin(config).not_proven[-3:]] == [
        "data.cleaning",
        "data.extra_json_keys: ['title']",
        "data.split_sentences: en",
    ]


def test_a_profile_is_not_proven():
    """A twin is never profiled; if its run is, that is reported."""
    whats = [entry.what for entry in make_twin(config_of({"profile.enabled": True})).not_proven]
    assert "profile.enabled: true" in whats
    assert not any(entry.what.startswith("profile") for entry in make_twin(config_of({})).not_proven)


def test_uneven_stages_stay_uneven_and_pieces_stay_pieces():
    config = config_of(
        {
            "model.num_layers": 26,
            "parallel.pipeline_parallel_size": 4,
            "parallel.pipeline_stage_layers": [6, 7, 7, 6],
            "parallel.activation_checkpointing.granularity": "full",
            "parallel.activation_checkpointing.interval_layers": 3,
        }
    )
    twin = make_twin(config).config
    assert twin.parallel.pipeline_stage_layers == [2, 3, 3, 2]
    assert twin.model.num_layers == 10
    assert twin.parallel.activation_checkpointing.interval_layers == 2


def test_twins_of_runs_with_long_names_have_names():
    config = load(EXAMPLES / "gpt3-tiny.yaml", {"name": "a" * 53})
    twin = make_twin(config)
    names = {twin.config.name, twin.exact.name, twin.reference.name, twin.resumed.name}
    # gpt3-tiny has fp32 and no dropout, so its twin is exact without changes.
    assert twin.exact is twin.config
    assert len(names) == 3 and all(valid_name(name) for name in names)


def test_the_twin_of_a_clusters_run_is_trained_here():
    """The twin of a run on a cluster is trained on this machine, whatever its backend is."""
    assert make_twin(load("gpt-125m-4xdp", {"backend.kind": "slurm"})).config.backend.kind == "local"


def test_a_twin_keeps_the_variables_of_its_run_and_not_the_injected_faults():
    """A run that tries out a fault has a twin that is trained without it."""
    orders = json.dumps([{"step": 2, "do": "raise", "message": "injected"}])
    env = {"NBTRAIN_FAULTS": orders, "MKL_CBWR": "AVX2"}
    twin = make_twin(load(EXAMPLES / "gpt-tiny.yaml", {"backend.env": env}))
    for one in (twin.config, twin.exact, twin.reference, twin.resumed):
        record = attempt_record(one, 0)
        assert (record.faults, record.trace) == ([], True)
        assert one.backend.env["MKL_CBWR"] == "AVX2"


def test_a_changed_twin_is_the_twin_but_for_the_change():
    """The twin that is resumed differs from the original twin only in its name and in where it stops."""
    twin = make_twin(load("gpt-125m"), EVERYTHING)
    resumed = twin.resumed.model_dump()
    assert resumed["batch"].pop("exit_interval_steps") == STOP_STEP
    straight = twin.config.model_dump()
    assert straight["batch"].pop("exit_interval_steps") is None
    assert {**resumed, "name": ""} == {**straight, "name": ""}


# --- code -----------------------------------------------------------------------------------------


def test_a_loss_of_ones_own_is_tried_in_the_twin_and_a_dataset_is_not(tmp_path):
    """A loss is a part of what the twin compares; a dataset has ids and lengths that a small model lacks."""
    loss, dataset = tmp_path / "own_loss.py", tmp_path / "own_dataset.py"
    loss.write_text("def loss(logits, labels, mask, batch):\n    pass\n")
    dataset.write_text("def dataset(split):\n    pass\n")
    twin = make_twin(load("gpt-tiny", {"code": str(loss)}))
    assert twin.config.code == str(loss)
    assert not [entry for entry in twin.not_proven if entry.what.startswith("code")]
    twin = make_twin(load("gpt-tiny", {"code": str(dataset), "data.sources": [], "data.split": "949,50,1"}))
    assert twin.config.code is None and not find_problems(twin.config)
    (entry,) = [entry for entry in twin.not_proven if entry.what.startswith("code")]
    assert "dataset()" in entry.why and "mock documents" in entry.instead
    loss.write_text("def loss(logits:\n")
    with pytest.raises(ConfigError, match=r"own_loss\.py:1"):
        make_twin(load("gpt-tiny", {"code": str(loss)}))
