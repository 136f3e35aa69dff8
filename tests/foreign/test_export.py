"""Exporting runs as Megatron scripts and DeepSpeed JSON: known flags only, and
an import gives the same run.
"""

import itertools
import json
import random
import re
from pathlib import Path

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.batch_schedule import BatchSchedule, StepSizes
from nbtrain.config.load import load
from nbtrain.foreign.exporting import export
from nbtrain.foreign.importing import import_files
from nbtrain.foreign.job_files.script_jobs import jobs_of_script
from nbtrain.foreign.mapping.mapping import MAPPED, ROWS, SAID, without_meaning
from nbtrain.foreign.mapping.rows_schedule import as_ramp, schedule_text
from nbtrain.foreign.syntax.flags import VERSIONS, find_table, parse

TARGETS = [f"{program}@{version}" for program, versions in VERSIONS.items() for version in versions]
EXAMPLES = Path(__file__).parents[2] / "examples" / "megatron-gpt" / "training"
ALL = [path.stem for path in sorted(EXAMPLES.glob("*.yaml"))]

# Runs that differ from the examples in everything that flags can express, and in what none can.
OVERRIDES = {
    "steps": "batch.train_tokens=null batch.train_steps=5000 lr_schedule.lr_warmup_tokens=null "
    "lr_schedule.lr_warmup_steps=50 lr_schedule.lr_decay_tokens=null lr_schedule.lr_decay_steps=4000",
    "samples": "batch.train_tokens=null batch.train_samples=1000001 lr_schedule.lr_decay_tokens=null "
    "lr_schedule.lr_decay_samples=900001",
    "mixed": "batch.train_tokens=null batch.train_steps=5000 lr_schedule.lr_decay_tokens=1234567891",
    "fraction": "lr_schedule.lr_warmup_tokens=null lr_schedule.lr_warmup_fraction=0.03",
    "no decay": "lr_schedule.lr_decay_tokens=null",
    "ramp": "batch.rampup.start_batch_size=32 batch.rampup.batch_size_increment=32 "
    "batch.rampup.ramp_samples=100003",
    "ramp in steps": "batch.rampup.start_batch_size=64 batch.rampup.batch_size_increment=64 "
    "batch.rampup.ramp_samples=5000 batch.train_tokens=null batch.train_steps=5000",
    "sizes": "'batch.step_batch_size_schedule=0:32 10M:64 1B:256'",
    "linear sizes": "'batch.step_batch_size_schedule=0:64 64000K:128 131072000:192 196608000:256'",
    "wsd": "lr_schedule.lr_decay_style=WSD lr_schedule.lr_wsd_decay_tokens=100e6 "
    "lr_schedule.lr_wsd_decay_style=minus_sqrt",
    "wsd fraction": "lr_schedule.lr_decay_style=WSD lr_schedule.lr_wsd_decay_fraction=0.125",
    "muon": "optimizer.type=Muon optimizer.muon_momentum=0.9 optimizer.muon_num_ns_steps=6 "
    "optimizer.muon_scale_mode=unit_rms_norm optimizer.muon_extra_scale_factor=0.5",
    "muon without nesterov": "optimizer.type=Muon optimizer.muon_nesterov=false optimizer.muon_lr=0.02",
    "modern": "recipe=modern",
    "linear": "lr_schedule.lr_decay_style=linear lr_schedule.lr_warmup_init=1e-7",
    "decay": "optimizer.start_weight_decay=0.01 optimizer.weight_decay_incr_style=cosine",
    "optimizer": "optimizer.adam_beta2=0.98 optimizer.adam_eps=1e-6 optimizer.clip_grad=0.5",
    "bf16": "precision.dtype=bf16 parallel.zero_stage=1",
    "autocast": "precision.dtype=bf16 precision.autocast=true",
    "fp32": "precision.dtype=fp32 parallel.zero_stage=0 parallel.prescale_gradients=true",
    "fp8": "precision.dtype=bf16 precision.fp8=true resources.gpu_type=null",
    "scale": "precision.fp16.loss_scale=1024 precision.fp16.hysteresis=4 precision.fp16.min_loss_scale=2",
    "zero 3": "parallel.zero_stage=3 parallel.data_parallel_size=2 resources.gpus_per_node=2 "
    "parallel.stage3_max_live_parameters=5e7 parallel.reduce_bucket_size=12345678",
    "zero++": "parallel.zero_stage=3 parallel.data_parallel_size=4 resources.gpus_per_node=2 "
    "resources.nodes=2 parallel.zero_hpz=true",
    "offload": "parallel.offload_optimizer.device=cpu parallel.offload_optimizer.pin_memory=true",
    "layout": "parallel.tensor_parallel_size=2 parallel.pipeline_parallel_size=2 parallel.zero_stage=1 "
    "parallel.sequence_parallel=true resources.gpus_per_node=4 parallel.pipeline_stage_layers=[7,5]",
    "context": "parallel.context_parallel_size=2 resources.gpus_per_node=2",
    "ulysses": "parallel.ds_sequence_parallel_size=2 resources.gpus_per_node=2",
    "full": "parallel.activation_checkpointing.granularity=full "
    "parallel.activation_checkpointing.interval_layers=3",
    "selective": "parallel.activation_checkpointing.granularity=selective",
    "extra": "parallel.deepspeed_extra.comms_logger.enabled=true "
    "parallel.deepspeed_extra.zero_optimization.round_robin_gradients=true",
    "communication": "parallel.overlap_comm=false parallel.communication_data_type=fp16 "
    "parallel.process_group_timeout_seconds=90 parallel.steps_per_print=7 parallel.wall_clock_breakdown=true",
    "model": "model.ffn_hidden_size=2000 model.hidden_dropout=0 model.attention_dropout=0.05 "
    "model.norm_epsilon=1e-6 model.max_position_embeddings=null model.make_vocab_size_divisible_by=64",
    "rmsnorm": "model.normalization=RMSNorm",
    "swiglu": "model.activation=swiglu model.add_bias_linear=false",
    "squared relu": "model.activation=squared_relu model.add_bias_linear=false model.add_qkv_bias=true",
    "untied": "model.untie_embeddings_and_output_weights=true",
    "rope": "model.position_embedding_type=rope model.rotary_base=500000 model.rotary_percent=0.5",
    "rope linear": "model.position_embedding_type=rope model.rope_scaling.kind=linear "
    "model.rope_scaling.factor=4",
    "llama 3": "model.position_embedding_type=rope model.rope_scaling.kind=llama3 "
    "model.rope_scaling.factor=8 model.rope_scaling.original_max_position_embeddings=8192",
    "yarn": "model.position_embedding_type=rope model.rope_scaling.kind=yarn model.rope_scaling.factor=4.5 "
    "model.rope_scaling.original_max_position_embeddings=1024 model.rotary_base=10000.5",
    "every bias": "model.add_qkv_bias=true",
    "groups": "model.num_query_groups=3 model.kv_channels=80 model.qk_layernorm=true",
    "windows": "model.window_size=128 model.window_attn_skip_freq=[1,0,1,1,1,1,1,1,1,1,1,0]",
    "some layers": "model.window_size=512 model.window_attn_skip_freq=4 model.no_rope_freq=5 "
    "model.position_embedding_type=rope",
    "caps": "model.attn_logit_softcapping=50 model.final_logit_softcapping=30 model.attention_dropout=0",
    "architecture": "model.architecture=smollm3 model.num_query_groups=4",
    "another architecture": "model.architecture=mistral model.norm_epsilon=1e-4",
    "kernel": "model.attention_backend=math model.cross_entropy_chunk_tokens=0 model.compile=true",
    "flash": "model.attention_backend=flash",
    "seeds": "model.seed=7 data.seed=8",
    "data": "data.json_key=content data.split=98,1,1 data.reset_position_ids=true data.eod_mask_loss=true "
    "data.inter_document_masking=true data.shuffle=per_epoch data.split_rule=megatron-core",
    "blend": "data.sources=[] 'data.blend=[{name: a, weight: 0.3}, {prefix: b/c_document, weight: 2}]'",
    "sources": "'data.sources=[{kind: jsonl, path: \"it is, #1.jsonl\"}]' tokenizer.path=some/tokenizer.json",
    "watch": "checkpoint.keep_every_steps=300 checkpoint.keep_last=5 checkpoint.async_save=true "
    "evaluation.eval_iters=0 stability.on_nan=skip logging.alerts.min_mfu=null profile.enabled=true",
    "exit": "batch.exit_interval_steps=100 batch.exit_duration_minutes=30 batch.max_steps=10",
    "half a minute": "batch.exit_duration_minutes=0.5",
    "mode": "mode=eval",
    "cpu": "resources.device=cpu precision.dtype=fp32 parallel.zero_stage=0 parallel.data_parallel_size=1",
    "environment": "backend.env.A='it is $5' backend.max_restarts=0 resources.memory_per_node_bytes=null",
}


def back(config, target: str, folder: Path):
    """Export a run and import it again; assert that the program accepts every word of the script."""
    path = folder / "exported.sh"
    path.write_text(export(config, target).text)
    flags = jobs_of_script(path.read_text(), "a.sh")[0].flags
    assert parse(find_table(target), flags).complaints == ()
    found = import_files([path])
    assert found.program == target
    return found.config


@pytest.mark.parametrize("name", ALL)
def test_every_example_comes_back_equal(name, tmp_path):
    """Every example, exported and imported again, is equal in every field; the
    program's versions alternate.
    """
    config, number = load(name), ALL.index(name)
    for target in (TARGETS[number % 2], TARGETS[3 - number % 2]):
        assert back(config, target, tmp_path) == config


@pytest.mark.slow
@pytest.mark.parametrize("name", OVERRIDES)
def test_every_run_comes_back_equal(name, tmp_path):
    """Each override, exported to two alternating programs and versions, gives an equal run when imported."""
    config = load("gpt-125m", OVERRIDES[name])
    number = list(OVERRIDES).index(name)
    for target in (TARGETS[number % 2], TARGETS[2 + number % 2]):
        assert back(config, target, tmp_path) == config


@pytest.mark.slow
def test_pairs_of_changes_come_back_equal(tmp_path):
    """Forty random pairs of these overrides give equal runs, each on an example with a random target."""
    chance, legal = random.Random(1), 0
    for first, second in chance.sample(list(itertools.combinations(OVERRIDES, 2)), 40):
        try:
            config = load(chance.choice(ALL), f"{OVERRIDES[first]} {OVERRIDES[second]}")
        except ConfigError:  # the two overrides are incompatible
            continue
        legal += 1
        assert back(config, chance.choice(TARGETS), tmp_path) == config, (first, second)
    assert legal >= 15


def test_a_field_with_a_flag_is_no_comment():
    """Only fields without a flag become comments: for 125M the vocabulary, the
    text, the machine and the GPU.
    """
    exported = export(load("gpt-125m"), "megatron-deepspeed@e7bff5ec")
    assert list(exported.unsaid) == [
        "name",
        "tokenizer.vocab_size",
        "data.sources",
        "resources.gpu_type",
        "resources.cpus_per_node",
        "resources.memory_per_node_bytes",
    ]


def test_a_flag_that_is_edited_wins_over_the_comments(tmp_path):
    """If a flag in an exported script is edited, it wins over the comment for the
    same field, and a note says so.
    """
    text = export(load("gpt-175b"), "megatron-lm@d98e8a64").text
    flag = text.index("--step-batch-size-schedule '")
    end = text.index("\n", flag)
    path = tmp_path / "edited.sh"
    path.write_text(text[:flag] + "--step-batch-size-schedule '0:16 2.4B:320 12B:1536'" + text[end:])
    found = import_files([path])
    assert found.config.batch.step_batch_size_schedule == "0:16 2.4B:320 12B:1536"
    assert found.config.batch.rampup is None
    assert any(
        "ignored, because the flags now set 0:16 2.4B:320 12B:1536" in note.text for note in found.notes
    ), found.notes


def test_the_ramp_up_is_a_flag_before_2026_and_a_list_of_sizes_after_it():
    """A batch ramp-up becomes a flag in versions before 2026, and an exact list of sizes in later ones."""
    config = load("gpt-175b")
    old, new = (export(config, f"megatron-lm@{version}").text for version in VERSIONS["megatron-lm"])
    assert "    --rampup-batch-size 16 16 5859375\n" in old and "--step-batch-size" not in old
    assert "--step-batch-size-schedule '0:16 126316544:32 252633088:48" in new
    assert "    --rampup-batch-size" not in new and "    --global-batch-size" not in new
    ramp = config.batch_schedule
    sizes = BatchSchedule(1536, 2048, 1, StepSizes.parse(schedule_text(config), 2048))
    samples = [
        *range(0, 5_900_000, 997),
        *(first + step for first, _ in sizes.rampup.parts[1:] for step in (-1, 0)),
    ]
    assert [sizes.size_at(one) for one in samples] == [ramp.size_at(one) for one in samples]
    assert as_ramp(sizes.rampup) == config.ramp


def test_names_follow_the_version():
    """Flag names depend on the version, such as --layernorm-epsilon and
    --norm-epsilon, or flash attention's.
    """
    config = load("gpt-1-3b-4xdp", ["model.attention_backend=flash"])
    old = export(config, "megatron-lm@040eac94").text
    new = export(config, "megatron-lm@d98e8a64").text
    deep = export(config, "megatron-deepspeed@f4157bea").text
    assert "--layernorm-epsilon 1e-05" in old and "--norm-epsilon 1e-05" in new
    assert "--use-flash-attn\n" in old and "--attention-backend flash" in new
    assert "--recompute-granularity full" in new and "--checkpoint-activations" in deep
    assert "--use-distributed-optimizer" in old and '"stage": 2' in deep


def test_a_warm_up_as_a_share_of_tokens_is_written_in_tokens():
    """A warm-up fraction is exported in tokens, because Megatron-DeepSpeed would
    apply it to --train-samples.
    """
    changes = "batch.train_tokens=3e9 lr_schedule.lr_decay_tokens=1e9 lr_schedule.lr_warmup_tokens=null "
    config = load("gpt-125m", f"{changes} lr_schedule.lr_warmup_fraction=0.03")
    deep, core = (export(config, program).text for program in reversed(VERSIONS))
    assert "    --lr-warmup-tokens 30000000\n" in deep and "    --lr-warmup-fraction" not in deep
    assert "    --lr-warmup-fraction 0.03\n" in core


def test_what_the_program_cannot_do_is_said():
    """The export warns if the program lacks a schedule, a batch schedule or a layer
    type, or refuses the layout.
    """
    wsd = export(load("gpt-125m", OVERRIDES["wsd"]), "megatron-deepspeed")
    assert (
        "# Caution: --lr-decay-style is omitted, because in megatron-deepspeed@f4157bea it "
        "does not accept WSD."
    ) in wsd.text
    sizes = export(load("gpt-125m", OVERRIDES["sizes"]), "megatron-lm@040eac94")
    assert (
        "Caution: the batch does not grow, because --rampup-batch-size can only grow it in equal steps."
    ) in sizes.notes
    qwen = load("gpt-125m", f"{OVERRIDES['rmsnorm']} {OVERRIDES['squared relu']}")
    notes = export(qwen, "megatron-lm@040eac94").notes
    for words in (
        "has no RMSNorm: it uses LayerNorm",
        "has no flag for biases in the query, key and value layers alone",
    ):
        assert any(note.startswith("Caution: ") and words in note for note in notes)
    assert not any("Caution" in note for note in export(qwen, "megatron-lm@d98e8a64").notes)
    cut = ["parallel.pipeline_parallel_size=5", "parallel.zero_stage=1", "resources.gpus_per_node=5"]
    layers = export(load("gpt-125m", cut), "megatron-lm")
    assert any("requires --num-layers(12) to be a multiple of" in note for note in layers.notes)
    shared = ["parallel.ds_sequence_parallel_size=2", "parallel.tensor_parallel_size=2"]
    both = export(load("gpt-125m", [*shared, "resources.gpus_per_node=4"]), "megatron-deepspeed")
    assert any("rejects --ds-sequence-parallel-size with tensor" in note for note in both.notes)
    assert "Caution" not in export(load("gpt-125m", OVERRIDES["ulysses"]), "megatron-deepspeed").text


def test_what_is_tuned_is_not_what_the_program_trains():
    """Exporting a fine-tuning run gives a warning, because the script would train all
    weights from random values.
    """
    tuned = load("gpt-125m", ["init_from=gpt-base", "lora.rank=8"], check=False)
    pairs = load("gpt-125m", ["init_from=gpt-base", "dpo.beta=0.2"], check=False)
    for target in TARGETS:
        start, adapters = (
            f"# Caution: with these flags, {target} {words}"
            for words in ("draws the initial", "has no such LoRA adapters")
        )
        text = export(tuned, target).text
        assert start in text and adapters in text and "trains on the next token" not in text
        assert (
            f"# Caution: with these flags, {target} cannot train on preference pairs: it trains "
            "on the next token"
        ) in export(pairs, target).text
    assert "Caution" not in export(load("gpt-125m"), "megatron-lm").text


def test_muon_is_megatron_lms_of_2025_on(tmp_path):
    """Muon is exported to Megatron-LM from 2025 on, with nbtrain's coefficients; what
    differs must be overridden.
    """
    config = load("gpt-125m", OVERRIDES["muon"])
    exported = export(config, "megatron-lm@d98e8a64")
    for flags in (
        "--optimizer muon",
        "--muon-momentum 0.9",
        "--muon-nesterov",
        "--muon-num-ns-steps 6",
        "--muon-scale-mode unit_rms_norm",
        "--muon-extra-scale-factor 0.5",
        "--muon-coefficient-type simple",
    ):
        assert f"    {flags}\n" in exported.text, flags
    old = export(config, "megatron-lm@040eac94")
    assert any("has no Muon: it trains all parameters with Adam" in note for note in old.notes)
    other = export(load("gpt-125m", OVERRIDES["muon without nesterov"]), "megatron-lm@d98e8a64")
    assert any(
        "uses the same learning rate for matrices and other parameters" in note for note in other.notes
    )
    path = tmp_path / "edited.sh"
    for flag, words in (
        (
            "--muon-coefficient-type quintic",
            ("--muon-coefficient-type quintic: these Newton-Schulz coefficients differ from nbtrain's. "),
        ),
        (
            "--muon-tp-mode blockwise",
            (
                "--muon-tp-mode blockwise: the program would orthogonalize parts of matrices "
                "instead of whole matrices"
            ),
        ),
        (
            "--muon-no-split-qkv",
            ("--muon-no-split-qkv False: the program would orthogonalize queries, keys and values as one"),
        ),
    ):
        path.write_text(
            exported.text.replace("--muon-coefficient-type simple", f"--muon-coefficient-type simple {flag}")
        )
        with pytest.raises(ConfigError, match=re.escape(words)):
            import_files([path])
        overrides = {"optimizer.type": "Muon", "optimizer.muon_num_ns_steps": 6}
        assert import_files([path], overrides).config.optimizer == config.optimizer
    path.write_text(
        exported.text.replace(
            "--muon-coefficient-type simple", "--muon-coefficient-type simple --muon-tp-mode distributed"
        )
    )
    assert import_files([path]).config == config


def test_a_json_alone_comes_back_onto_its_run(tmp_path):
    """A JSON applied to its own run restores DeepSpeed's part of the run; the other fields are listed."""
    config = load("gpt-1-3b-4xdp", ["parallel.zero_stage=3", "parallel.reduce_bucket_size=1e7"])
    exported = export(config, "deepspeed")
    path = tmp_path / "ds_config.json"
    path.write_text(exported.text)
    assert json.loads(exported.text)["zero_optimization"]["stage"] == 3
    assert import_files([path], onto="gpt-1-3b-4xdp").config == config
    assert "model.num_layers" in exported.unsaid and "parallel.zero_stage" not in exported.unsaid


def test_an_unknown_target_is_named():
    """An unknown target is refused with the list of known targets."""
    with pytest.raises(
        ConfigError, match="no such target; known: megatron-lm, megatron-deepspeed, deepspeed"
    ):
        export(load("gpt-125m"), "megatron")


def test_the_mapping_covers_what_it_says():
    """Every flag in the mapping exists, none is both mapped and listed as meaningless.

    Only batch sizes occur in two rows.
    """
    dests = {dest for target in TARGETS for dest in find_table(target).by_dest}
    assert MAPPED - dests == {"lr_wsd_decay_tokens"}
    both = {dest for dest in MAPPED if without_meaning(dest)}
    assert both == set()
    assert len(SAID) == sum(len(row.fields) for row in ROWS)
