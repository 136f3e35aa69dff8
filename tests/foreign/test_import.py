"""Importing other programs' files as runs: upstream's nine jobs, scripts, Kubeflow manifests, JSON."""

import json
import os
from pathlib import Path

import pytest
import yaml

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import flatten, load
from nbtrain.config.schema import RunConfig
from nbtrain.foreign.importing import import_files, write_once
from nbtrain.foreign.lint import lint
from nbtrain.foreign.syntax.json_comments import read_json

from .upstream import NINE, deepspeed_json, flags_of, manifest, script_175b, script_deepspeed, write

WIKI = "tokenizer.vocab_size=52000"


def differences(found: RunConfig, expected: RunConfig) -> dict:
    """Return the fields that differ, except the record of the files, with (imported, expected) values."""
    ours, theirs = dict(flatten(found.model_dump())), dict(flatten(expected.model_dump()))
    return {
        key: (ours.get(key), theirs.get(key))
        for key in sorted({*ours, *theirs} - {"imported_from"})
        if ours.get(key) != theirs.get(key)
    }


def import_flags(
    tmp_path,
    *flags: str,
    name: str = "gpt-125m",
    without: tuple[str, ...] = (),
    changes: dict | None = None,
    **overrides,
):
    """Import one of the nine jobs, with some flags removed or added and some keys of its JSON changed."""
    words = [*(word for word in flags_of(name) if not word.startswith(without)), *flags]
    key = NINE[name][0]
    (tmp_path / "job.yaml").write_text(manifest(name, words))
    (tmp_path / f"ds_config_{key}.json").write_text(json.dumps(deepspeed_json(key) | (changes or {})))
    return import_files([tmp_path / "job.yaml"], {"tokenizer.vocab_size": 52000} | overrides)


@pytest.mark.parametrize("name", NINE)
def test_the_nine_upstream_jobs_are_our_examples(name, tmp_path):
    """The nine upstream jobs become nbtrain's examples, except for name, GPU, text and image.

    Upstream has one name for every layout of a size and no GPU or text, and its image does not have nbtrain.
    """
    found = import_files([write(tmp_path, name)], [WIKI])
    expected = load(name)
    allowed = {"resources.gpu_type": (None, expected.resources.gpu_type)}
    allowed["data.sources"] = ([], expected.model_dump()["data"]["sources"])
    allowed["resources.image"] = (found.config.resources.image, None)
    allowed["backend.kind"] = ("kubernetes", "local")
    allowed["backend.kubernetes.workload"] = ("DeepSpeedJob", "TrainJob")
    claim = {"claim": "megatron", "mount_path": "/t9k/mnt", "sub_path": None, "read_only": False}
    allowed["backend.kubernetes.mounts"] = ([claim], [])
    allowed["backend.kubernetes.workspace_path"] = ("/t9k/mnt", "/workspace")
    if name != "gpt-125m":
        allowed["name"] = (found.config.name, name)
    assert differences(found.config, expected) == allowed
    assert found.program == "megatron-deepspeed@e7bff5ec"


def test_a_manifest_in_json_is_the_same_job(tmp_path):
    """A manifest in JSON, as `kubectl get -o json` prints it, gives the same run as the YAML."""
    path = write(tmp_path, "gpt-125m")
    documents = list(yaml.safe_load_all(path.read_text()))
    (document,) = documents
    other = tmp_path / "gpt-125m.json"
    other.write_text(json.dumps({"apiVersion": document.pop("apiVersion"), **document}, indent=4))
    assert differences(import_files([other], [WIKI]).config, import_files([path], [WIKI]).config) == {}


@pytest.mark.parametrize("name", ["gpt-125m", "gpt-1-3b-4xdp-4xpp"])
def test_the_yaml_reads_back_to_the_run(name, tmp_path):
    """The written YAML loads as the same run, gives the source of each value, and lists what was omitted."""
    found = import_files([write(tmp_path, name)], [WIKI])
    path = found.write(tmp_path / "run.yaml")
    assert load(path) == found.config
    text = path.read_text()
    assert "  hidden_dropout: 0.1  # default of megatron-deepspeed@e7bff5ec\n" in text
    assert "  initial_scale_power: 11  # fp16.initial_scale_power\n" in text
    assert f"# - {name}.yaml:52: --log-timers-to-tensorboard: nbtrain writes every scalar" in text


def test_contradictions_are_resolved_as_the_program_does_and_said(tmp_path):
    """Contradictory settings are resolved as the program does, and reported.

    The JSON's ZeRO stage wins, ZeRO 2 is not used in a pipeline, and training ends at the tokens.
    """
    notes = [str(note) for note in import_files([write(tmp_path, "gpt-125m")], [WIKI]).notes]
    assert any(
        "--zero-stage 0: ignored, because DeepSpeed uses the JSON's stage, 2 (ds_config_125m.json:6)" in n
        for n in notes
    )
    assert any("--train-samples 2500000: not imported; training ends at --train-tokens" in n for n in notes)
    piped = import_files([write(tmp_path, "gpt-1-3b-4xdp-4xpp")], [WIKI])
    assert piped.config.parallel.zero_stage == 1
    assert any(
        "ZeRO 2 with 4 pipeline stages: imported as zero_stage 1, because DeepSpeed refuses" in str(n)
        for n in piped.notes
    )


def test_what_a_resume_does_not_load_is_a_note(tmp_path):
    """A --load that skips parts of the state gets a note, because resuming in nbtrain loads everything."""
    flags = ["--no-load-optim", "--no-load-rng", "--no-load-lr-state"]
    notes = [note.text for note in import_flags(tmp_path, *flags).notes if "no-load" in note.text]
    reason = (
        "a resumed run always loads the optimizer, the learning rate and the random state, "
        "and continues as if it"
    )
    assert notes == [f"{flag}: {reason} had not stopped." for flag in flags]


def test_the_175b_script_needs_what_it_does_not_say(tmp_path):
    """The 175B script lacks nodes for its 128 ranks and a vocabulary size; both errors give the fix."""
    path = tmp_path / "train_gpt3_175b.sh"
    path.write_text(script_175b())
    with pytest.raises(ConfigError) as error:
        import_files([path])
    assert str(error.value).splitlines() == [
        "train_gpt3_175b.sh:50: no given file contains the size of the vocabulary. Add "
        "tokenizer.vocab_size=... to the command; GPT-2's vocabulary has 50257 entries.",
        "train_gpt3_175b.sh:45: pipeline(16) * tensor(8) = 128 ranks do not divide nodes(1) "
        "* gpus_per_node(8) = 8. Add resources.nodes=16 to the command, or a multiple of "
        "that number.",
    ]


def test_the_175b_script_is_our_example(tmp_path):
    """The 175B script with overrides gives nbtrain's example, in steps instead of tokens.

    The remaining differences are not in the script (names, GPU), or are defaults of Megatron-LM for which the
    example keeps nbtrain's.
    """
    path = tmp_path / "train_gpt3_175b.sh"
    path.write_text(script_175b())
    overrides = ["resources.nodes=16", "tokenizer.vocab_size=50257", "name=gpt-175b"]
    found, expected = import_files([path], overrides).config, load("gpt-175b")
    for amount in ("train_tokens", "lr_decay_tokens", "lr_warmup_tokens", "train_steps", "padded_vocab_size"):
        assert getattr(found, amount) == getattr(expected, amount)
    left = {
        key: pair
        for key, pair in differences(found, expected).items()
        if not key.startswith(("batch.train_", "lr_schedule.lr_"))
    }
    assert left == {
        "data.name": ("train-gpt3-175b-data", "gpt-175b-corpus"),
        "data.num_workers": (2, 0),
        "data.split_rule": ("megatron-core", "megatron-deepspeed"),
        "precision.fp16.initial_scale_power": (32, 11),
        "precision.fp16.loss_scale_window": (1000, 500),
        "resources.gpu_type": (None, "A100-80GB"),
        "tokenizer.name": ("tokenizer", "gpt2"),
    }


def test_a_schedule_of_sizes_is_taken_over(tmp_path):
    """--step-batch-size-schedule, which replaced the ramp-up in the script in 2026-04, is imported."""
    path = tmp_path / "new.sh"
    sizes = "0:16 2.4B:320 4.8B:624 7.2B:928 9.6B:1232 12B:1536"
    path.write_text(script_175b(f'--step-batch-size-schedule "{sizes}"'))
    config = import_files([path], ["resources.nodes=16", "tokenizer.vocab_size=50257"]).config
    assert (config.batch.step_batch_size_schedule, config.batch.rampup) == (sizes, None)


def test_a_script_of_megatron_deepspeed_with_strings_and_a_here_document(tmp_path):
    """A Megatron-DeepSpeed script with variables, arithmetic, conditions and a JSON
    here-document is imported.

    The number of GPUs is passed from outside.
    """
    path = tmp_path / "ds_pretrain_gpt_1.3B.sh"
    path.write_text(script_deepspeed())
    with pytest.raises(ConfigError, match=r"Add resources\.nodes=\.\.\. to the command"):
        import_files([path])
    config = import_files([path], ["resources.nodes=2", "resources.gpus_per_node=8"]).config
    parallel, batch = config.parallel, config.batch
    assert (parallel.tensor_parallel_size, parallel.pipeline_parallel_size) == (2, 2)
    assert (parallel.data_parallel_size, parallel.zero_stage) == (4, 1)
    assert parallel.activation_checkpointing.granularity == "full"
    assert (batch.train_tokens, batch.micro_batch_size, batch.global_batch_size) == (300_000_000_000, 2, 512)
    assert config.lr_warmup_tokens == 3_000_000_000
    assert (config.tokenizer.name, config.tokenizer.vocab_size) == ("gpt2", 50_257)
    assert config.precision.fp16.loss_scale_window == 500


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--apply-layernorm-1p"],
            ("--apply-layernorm-1p: this flag changes the run, and nbtrain has no field for it. Remove it "),
        ),
        (
            ["--swiglu", "--squared-relu"],
            ("--squared-relu with --swiglu: the program accepts only one of them. Remove the other."),
        ),
        (
            ["--use-rotary-position-embeddings"],
            "also adds learned positions unless --no-position-embedding is given. Add this",
        ),
        (
            ["--no-position-embedding"],
            "without rotary positions: nbtrain does not support models without positions",
        ),
        (["--train-data-path=a"], "--train-data-path a: this flag changes the run"),
        (["--num-experts=8"], "--num-experts 8: this is a mixture of experts"),
        (["--num-layers-per-virtual-pipeline-stage=2"], "changes the run"),
        (["--optimizer=sgd"], "--optimizer sgd: only adam and muon can be imported"),
        (["--qk-l2-norm"], "no such flag"),
        (["--nccl-timeout=30"], "Nearest: --distributed-timeout-minutes. Remove it, or correct "),
        (["--finetune"], "--finetune: this flag changes the run"),
        (["--load=other"], "--load other differs from --save output/gpt-125m/model (job.yaml:48)"),
        (
            ["--num-layers=$LAYERS"],
            (
                "--num-layers $LAYERS: the value of $LAYERS is not known. Write it into the file, "
                "or add model.num_"
            ),
        ),
        (
            ["--recompute-granularity=full", "--recompute-method=block"],
            "nbtrain supports only the method uniform. Set --recompute-method uniform.",
        ),
        (
            ["--tokenizer-type=SentencePieceTokenizer"],
            "tokenizers of this kind are not supported. Add tokenizer.path=... to the command",
        ),
        (["--window-size=4095,0"], "no such flag"),
        (
            ["--end-weight-decay=0.2"],
            "--end-weight-decay 0.2: this needs --weight-decay-incr-style linear or cosine",
        ),
    ],
)
def test_what_changes_the_run_and_has_no_field_makes_the_import_fail(flags, message, tmp_path):
    """A flag that changes the run but has no field is an error with file, line and flag."""
    with pytest.raises(ConfigError) as error:
        import_flags(tmp_path, *flags)
    assert message in str(error.value) and str(error.value).startswith("job.yaml:")


@pytest.mark.parametrize(
    "flags",
    [
        ["--kv-channels=64"],
        ["--num-key-value-heads=12"],
        ["--num-experts=1"],
        ["--no-masked-softmax-fusion", "--no-async-tensor-model-parallel-allreduce"],
        ["--attention-softmax-in-fp32", "--partition-activations"],
        ["--DDP-impl=torch", "--log-params-norm", "--exit-signal-handler"],
    ],
)
def test_what_says_nothing_about_the_run_changes_nothing(flags, tmp_path):
    """A flag that does not describe the run has no effect on it."""
    assert import_flags(tmp_path, *flags).config == import_flags(tmp_path).config


def test_flags_of_the_layers(tmp_path):
    """Flags set the norm, the activation and the biases of a layer.

    Without a width, Megatron's default for the activation applies.
    """
    model = import_flags(
        tmp_path, "--normalization=rmsnorm", "--swiglu", "--disable-bias-linear", "--layernorm-epsilon=1e-6"
    ).config.model
    assert (model.normalization, model.norm_epsilon) == ("RMSNorm", 1e-6)
    assert (model.activation, model.add_bias_linear, model.add_qkv_bias) == ("swiglu", False, False)
    assert model.resolved_ffn_hidden_size == int((4 * 768 * 2 / 3) / 64) * 64 == 2048
    assert import_flags(tmp_path, "--untie-embeddings-and-output-weights").config.model == (
        import_flags(tmp_path, **{"model.untie_embeddings_and_output_weights": True}).config.model
    )
    rope = ("--use-rotary-position-embeddings", "--no-position-embedding", "--rotary-percent=0.5")
    model = import_flags(tmp_path, *rope, "--rotary-position-embeddings-theta=500000").config.model
    assert (model.position_embedding_type, model.rotary_base, model.rotary_size) == ("rope", 5e5, 32)
    alone = import_flags(tmp_path, rope[0], "--rotary-position-embeddings-theta=500000").config.model
    assert (alone.position_embedding_type, alone.rotary_base) == ("rope", 5e5)
    assert import_flags(tmp_path, "--squared-relu").config.model.activation == "squared_relu"


MEGATRON_LM = (
    "torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 8 --hidden-size 256 --num-attention-heads 8 "
    "--seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 8 "
    "--train-iters 9 --lr 1e-4 --bf16 --tensor-model-parallel-size 4 --data-path d/text_document "
    "--vocab-file t/vocab.json --merge-file t/merges.txt "
)


ROPE = "--position-embedding-type rope "


def of_megatron_lm(tmp_path, flags: str, *overrides: str):
    path = tmp_path / "job.sh"
    path.write_text(MEGATRON_LM + flags)
    return import_files([path], ["tokenizer.vocab_size=1000", *overrides])


def test_flags_of_attention(tmp_path):
    """Flags set query groups, head sizes, head norms, windows in some layers, and layers without RoPE."""
    model = of_megatron_lm(
        tmp_path,
        "--group-query-attention --num-query-groups 2 --kv-channels 40 --qk-layernorm "
        "--window-size '(127,0)' --window-attn-skip-freq '([1]*3+[0])*2' "
        "--position-embedding-type rope --no-rope-freq 4",
    ).config.model
    assert (model.num_query_groups, model.kv_channels, model.qk_layernorm) == (2, 40, True)
    assert (model.window_size, model.window_attn_skip_freq) == (128, [1, 1, 1, 0, 1, 1, 1, 0])
    assert model.layers_without_rope == [3, 7]
    plain = of_megatron_lm(tmp_path, "--num-query-groups 2 --kv-channels 32")
    assert (plain.config.model.num_query_groups, plain.config.model.kv_channels) == (None, None)
    assert "--num-query-groups 2: ignored, because it needs --group-query-attention." in str(plain.notes)
    assert import_flags(tmp_path, "--kv-channels=96").config.model.kv_channels == 96
    grouped = of_megatron_lm(tmp_path, "--group-query-attention").config.model
    assert grouped.num_query_groups == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--window-size 128,128",
            ("--window-size 128,128: the value must be N,0, which means N tokens before a query"),
        ),
        ("--window-size many", "Add model.window_size=... to the command"),
        (
            f"{ROPE} --rotary-seq-len-interpolation-factor 2 --use-rope-scaling",
            "job.sh:1: --use-rope-scaling with --rotary-seq-len-interpolation-factor 2 "
            "(job.sh:1): the program scales twice, but model.rope_scaling only once.",
        ),
        (
            "--window-size 9,0 --window-attn-skip-freq '[1]*open(1)'",
            (
                "--window-attn-skip-freq [1]*open(1): the value must be a number, or lists of 0 "
                "and 1 with + and *"
            ),
        ),
        ("--window-size 9,0 --window-attn-skip-freq '[1]*999999999999'", "must be a number, or lists"),
        (
            "--window-size 9,0 --window-attn-skip-freq '[1,1]'",
            "has length 2, but must have one entry for each layer: num_layers is 8",
        ),
    ],
)
def test_positions_that_no_field_says(flags, message, tmp_path):
    with pytest.raises(ConfigError) as error:
        of_megatron_lm(tmp_path, flags)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        ("--attention-backend $X", "model.attention_backend"),
        ("--normalization $X", "model.normalization"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy $X", "parallel.zero_stage"),
        (f"{ROPE} --rotary-base $X", "model.rotary_base"),
        (f"{ROPE} --rotary-percent $X", "model.rotary_percent"),
        (f"{ROPE} --rotary-seq-len-interpolation-factor $X", "model.rope_scaling"),
        (f"{ROPE} --use-rope-scaling --rope-scaling-factor $X", "model.rope_scaling"),
        ("--fp16 --initial-loss-scale $X", "precision.fp16.initial_scale_power"),
        ("--fp16 --loss-scale $X", "precision.fp16.loss_scale"),
        ("--fp16 --loss-scale-window $X", "precision.fp16.loss_scale_window"),
        ("--fp16 --min-loss-scale $X", "precision.fp16.min_loss_scale"),
        ("--num-attention-heads $H --kv-channels $X", "model.kv_channels"),
    ],
)
def test_a_value_from_outside_is_asked_for(flags, key, tmp_path):
    """If a value is passed to the script from outside, the error names the field to set instead."""
    with pytest.raises(ConfigError) as error:
        of_megatron_lm(tmp_path, flags)
    asked = (
        f"job.sh:1: the value of X is not known (no file sets it). Add X=..., or {key}=..., to the command."
    )
    assert asked in str(error.value).splitlines()


def test_a_batch_from_outside_is_not_missing(tmp_path):
    """A batch size that only the shell knows, or that is no number, is asked for and not called missing."""
    path = tmp_path / "job.sh"
    for text, asked in (
        ("$BATCH", "Add BATCH=..., or batch.global_batch_size=..., to the command."),
        ("'$BATCH'", "--global-batch-size = $BATCH: the value must be a whole number"),
    ):
        path.write_text(MEGATRON_LM.replace("--global-batch-size 8", f"--global-batch-size {text}"))
        with pytest.raises(ConfigError) as error:
            import_files([path], ["tokenizer.vocab_size=1000"])
        assert asked in str(error.value) and "missing" not in str(error.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--tensor-model-parallel-size 0", "job.sh:1: parallel.tensor_parallel_size = 0: must be at least 1"),
        (
            "--fp16 --initial-loss-scale 0",
            "job.sh:1: --initial-loss-scale 0: the value must be a power of two.",
        ),
    ],
)
def test_a_size_of_zero_is_refused_by_its_name(flags, message, tmp_path):
    with pytest.raises(ConfigError) as error:
        of_megatron_lm(tmp_path, flags)
    assert message in str(error.value)


def test_no_nodes_are_no_number_of_ranks(tmp_path):
    (tmp_path / "a.sh").write_text(MEGATRON_LM.replace("torchrun --nproc_per_node 4", "srun -N 0 -n 8"))
    with pytest.raises(
        ConfigError, match=r"a\.sh: the file does not say how many ranks there are\. Add resources\.gpus_per"
    ):
        import_files([tmp_path / "a.sh"])


@pytest.mark.parametrize(
    ("length", "tokens"),
    [
        (["--train-samples=1000000"], 20_480_000),
        (["--train-samples=1000000", "--lr-decay-samples=500000"], 10_240_000),
        (["--train-iters=4000"], 20_971_520),
    ],
)
def test_a_warm_up_is_a_share_of_the_samples_beside_a_decay_in_tokens(length, tokens, tmp_path):
    """A warm-up fraction refers to samples or iterations, even if the decay is in tokens."""
    without = ("--train-samples", "--lr-warmup-tokens")
    found = import_flags(tmp_path, *length, "--lr-warmup-fraction=0.01", without=without)
    assert found.config.lr_warmup_tokens == found.config.lr_schedule.lr_warmup_tokens == tokens
    assert found.config.lr_decay_tokens == 2_500_000_000
    both = import_flags(tmp_path, "--lr-warmup-fraction=0.01").config.lr_schedule
    assert (both.lr_warmup_tokens, both.lr_warmup_fraction) == (25_000_000, None)


@pytest.mark.parametrize(
    ("iterations", "unit", "note"),
    [
        (
            4767,
            "steps",
            ("--train-tokens 2500000000: not imported; training ends earlier, at --train-iters 4767."),
        ),
        (4769, "tokens", "--train-iters 4769: not imported; training ends at --train-tokens 2500000000."),
    ],
)
def test_training_ends_at_tokens_or_iterations(iterations, unit, note, tmp_path):
    """Training ends at the first of two limits; 2.5 billion tokens are 4,768.4 steps.

    The decay of the learning rate follows the iterations.
    """
    without = ("--train-samples", "--lr-decay-tokens")
    found = import_flags(tmp_path, f"--train-iters={iterations}", without=without)
    batch = found.config.batch
    assert (batch.train_steps, batch.train_tokens) == (
        (iterations, None) if unit == "steps" else (None, 2_500_000_000)
    )
    assert found.config.lr_schedule.lr_decay_steps == iterations
    assert note in [one.text for one in found.notes]


def test_an_architecture_beside_the_files_sets_its_fields(tmp_path):
    """An override of model.architecture sets that architecture's fields, as in a run YAML."""
    model = of_megatron_lm(tmp_path, "--normalization LayerNorm", "model.architecture=qwen3").config.model
    assert (model.architecture, model.normalization, model.qk_layernorm) == ("qwen3", "RMSNorm", True)


@pytest.mark.parametrize("flag", ["--no-bias-gelu-fusion", "--disable-bias-linear"])
def test_the_exact_gelu_is_noted(flag, tmp_path):
    """torch's exact F.gelu gets a note, because the fused kernel and nbtrain's model use the tanh form."""
    said = (
        "without its fused kernel, the program uses the exact gelu, but model.activation: "
        "gelu uses the tanh approximation."
    )
    assert f"{flag}: {said}" in [note.text for note in of_megatron_lm(tmp_path, flag).notes]
    notes = [note.text for note in of_megatron_lm(tmp_path, f"{flag} --swiglu").notes]
    assert not any("gelu" in text for text in notes)


def test_an_override_stands_in_for_what_is_missing(tmp_path):
    """An override replaces a value that is passed from outside, or supplies a missing flag."""
    found = import_flags(tmp_path, "--num-layers=$LAYERS", **{"model.num_layers": 6})
    assert found.config.model.num_layers == 6


def test_a_layout_that_is_overridden_leaves_the_other_ranks_to_data(tmp_path):
    """If an override sets the layout, all remaining ranks become data parallel.

    Without the override, the error about $TP names it.
    """
    found = of_megatron_lm(tmp_path, "--tensor-model-parallel-size $TP", "parallel.tensor_parallel_size=2")
    assert (found.config.parallel.tensor_parallel_size, found.config.parallel.data_parallel_size) == (2, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_batch_size": 128}, "ds_config_125m.json:1: train_batch_size = 128, but job.yaml:24 "),
        (
            {"fp16": {"enabled": False}, "bf16": {"enabled": True}},
            "job.yaml:37: --fp16: bf16.enabled is true in ds_config_125m.json: DeepSpeed would train in "
            'a different format than the model\'s. Write "fp16": {"enabled": true} there.',
        ),
        (
            {"gradient_accumulation_steps": 8},
            "ds_config_125m.json:1: train_batch_size(256) is not train_micro_batch_size_per_gpu(16) * "
            "gradient_accumulation_steps(8) * data-parallel(1) = 128. Remove gradient_accumulation_steps.",
        ),
        (
            {"compression_training": {"x": 1}, "nebulas": {}},
            "nebulas: DeepSpeed has no such key. Nearest: nebula.",
        ),
    ],
)
def test_a_json_that_contradicts_the_flags_or_has_unknown_keys_fails(changes, message, tmp_path):
    """A JSON that contradicts the flags (DeepSpeed raises) or has unknown keys
    (DeepSpeed ignores them) is an error.
    """
    with pytest.raises(ConfigError) as error:
        import_flags(tmp_path, changes=changes)
    assert message in str(error.value)


def test_keys_of_the_json_become_fields(tmp_path):
    """The JSON's keys for buckets and offloading become fields; keys without a
    field go to deepspeed_extra.
    """
    changes = {
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": 5e7,
            "overlap_comm": False,
            "cpu_offload": True,
            "round_robin_gradients": True,
        },
        "comms_logger": {"enabled": True},
    }
    parallel = import_flags(tmp_path, changes=changes).config.parallel
    assert (parallel.reduce_bucket_size, parallel.overlap_comm) == (50_000_000, False)
    assert parallel.offload_optimizer.device == "cpu"
    assert parallel.deepspeed_extra == {
        "zero_optimization": {"round_robin_gradients": True},
        "comms_logger": {"enabled": True},
    }


def test_the_loss_scale_has_deepspeeds_defaults(tmp_path):
    """A missing loss scale gets DeepSpeed's defaults, 2^16 and 1,000 steps, instead
    of nbtrain's 2^11 and 500.
    """
    scale = import_flags(tmp_path, changes={"fp16": {"enabled": True}}).config.precision.fp16
    assert (scale.initial_scale_power, scale.loss_scale_window, scale.hysteresis) == (16, 1000, 2)


@pytest.mark.parametrize("asked", [True, False])
def test_overflows_that_count_in_a_row_alone_are_not_taken_over(tmp_path, asked):
    """consecutive_hysteresis = true gets a note that it is not imported; nbtrain uses DeepSpeed's default."""
    found = import_flags(tmp_path, changes={"fp16": {"enabled": True, "consecutive_hysteresis": asked}})
    assert [note.text for note in found.notes if "hysteresis" in note.text] == asked * [
        "fp16.consecutive_hysteresis: not imported; the loss scale may halve earlier, because "
        "overflows need not be consecutive."
    ]
    assert found.config.parallel.deepspeed_extra == {}


def test_without_clipping_in_the_json_nothing_is_clipped(tmp_path):
    """Without gradient_clipping in the JSON the run does not clip, because
    --deepspeed ignores --clip-grad.
    """
    assert import_flags(tmp_path, changes={"gradient_clipping": "auto"}).config.optimizer.clip_grad == 1
    document = {key: value for key, value in deepspeed_json("125m").items() if key != "gradient_clipping"}
    (tmp_path / "ds_config_125m.json").write_text(json.dumps(document))
    found = import_files([tmp_path / "job.yaml"], [WIKI])
    assert found.config.optimizer.clip_grad == 0
    note = (
        "ds_config_125m.json: gradient_clipping is not set, so DeepSpeed does not clip "
        "gradients, and --clip-grad(1.0) has no effect."
    )
    assert note in map(str, found.notes)


def test_a_deepspeed_json_alone_is_put_on_a_run(tmp_path, monkeypatch):
    """A DeepSpeed JSON alone, with comments and a trailing comma, is applied to a
    run and refused without one.
    """
    path = tmp_path / "ds_config.json"
    path.write_text(
        """{
  // a run of ours, with ZeRO 2
  "train_batch_size": 512,
  "train_micro_batch_size_per_gpu": 8, /* less memory */
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.99], "eps": 1e-7}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear", "warmup_num_steps": 100,
                "total_num_steps": 4000, "warmup_max_lr": 3e-4}},
  "zero_optimization": {"stage": 2,},
  "bf16": {"enabled": true},
}
"""
    )
    with pytest.raises(ConfigError, match="has no model, no data and no training length"):
        import_files([path])
    found = import_files(
        [path], ["lr_schedule.lr_warmup_tokens=null", "lr_schedule.lr_decay_tokens=null"], "gpt-125m"
    )
    config = found.config
    assert (config.batch.global_batch_size, config.batch.micro_batch_size) == (512, 8)
    assert (config.optimizer.adam_beta2, config.optimizer.adam_eps, config.lr_schedule.lr) == (
        0.99,
        1e-7,
        3e-4,
    )
    assert (config.lr_schedule.lr_decay_style, config.lr_schedule.lr_decay_steps) == ("linear", 4000)
    assert (config.precision.dtype, config.parallel.zero_stage) == ("bf16", 2)
    assert "extends: gpt-125m" in found.text
    assert load(found.write(tmp_path / "run.yaml")) == config
    # A file that it extends is found from the folder of the YAML, wherever that is.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    path.write_text('{"zero_optimization": {"stage": 1}}')
    found = import_files([path], onto="run.yaml")
    assert "\nextends: run.yaml\n" in found.text
    assert load(found.write("sub/one.yaml")).lr_schedule.lr == 3e-4


def test_auto_leaves_the_runs_own_value(tmp_path):
    """The value "auto", which transformers' Trainer fills in, keeps the run's value."""
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": "auto", "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}')
    found = import_files([path], onto="gpt-125m")
    assert found.config == load("gpt-125m")
    assert [note.text.partition(":")[0] for note in found.notes] == [
        "train_batch_size",
        "optimizer.params.lr",
    ]


def test_accumulation_alone_does_not_say_the_batch(tmp_path):
    """Accumulation steps give the batch only together with a batch size, because the ranks are unknown.

    With the batch "auto", the run's batch is kept.
    """
    path = tmp_path / "a.json"
    keys = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8}
    path.write_text(json.dumps(keys))
    with pytest.raises(
        ConfigError, match=r"^a\.json:1: gradient_accumulation_steps = 8: the batch size also depends on"
    ):
        import_files([path], onto="gpt-125m")
    assert (
        import_files([path], {"batch.global_batch_size": 32}, "gpt-125m").config.batch.micro_batch_size == 4
    )
    path.write_text(json.dumps(keys | {"train_batch_size": 64}))
    with pytest.raises(ConfigError, match=r"data_parallel_size\(1\) = 32, but the batch is 64 \(a\.json:1\)"):
        import_files([path], onto="gpt-125m")
    assert import_files([path], onto="gpt-125m-2xdp").config.batch.global_batch_size == 64
    path.write_text(json.dumps(keys | {"train_batch_size": "auto"}))
    assert import_files([path], onto="gpt-125m").config.batch.global_batch_size == 256


def put_on(tmp_path, scheduler: str, params: dict, lr: float | str = 4e-4):
    """Import a JSON with this schedule onto a run, and return the run's schedule."""
    document = {
        "optimizer": {"type": "AdamW", "params": {"lr": lr}},
        "scheduler": {"type": scheduler, "params": {"warmup_type": "linear", **params}},
    }
    (tmp_path / "a.json").write_text(json.dumps(document, indent=0))
    no_tokens = ["lr_schedule.lr_warmup_tokens=null", "lr_schedule.lr_decay_tokens=null"]
    return import_files([tmp_path / "a.json"], no_tokens, "gpt-125m").config.lr_schedule


@pytest.mark.parametrize(
    ("scheduler", "params", "rates"),
    [
        ("WarmupDecayLR", {"warmup_max_lr": 3e-4}, (0, 3e-4, 0)),
        ("WarmupDecayLR", {"warmup_min_lr": 1e-5}, (1e-5, 1e-3, 1e-5)),
        ("WarmupLR", {"warmup_min_lr": "auto"}, (0, 4e-4, 1e-6)),
        ("WarmupCosineLR", {}, (0, 4e-4, 4e-8)),
        ("WarmupCosineLR", {"warmup_min_ratio": 0.25, "cos_min_ratio": 0.5}, (1e-4, 4e-4, 2e-4)),
    ],
)
def test_rates_of_deepspeeds_schedules(scheduler, params, rates, tmp_path):
    """DeepSpeed's schedule sets the start of the warm-up, the peak rate and the end of the decay."""
    total = {} if scheduler == "WarmupLR" else {"total_num_steps": 4000}
    schedule = put_on(tmp_path, scheduler, {"warmup_num_steps": 100, **total, **params})
    assert (schedule.lr_warmup_init, schedule.lr, schedule.min_lr) == pytest.approx(rates)
    assert (schedule.lr_warmup_steps, schedule.lr_decay_steps) == (100, total.get("total_num_steps"))


@pytest.mark.parametrize(
    ("params", "lr", "message"),
    [
        (
            {"warmup_max_lr": 1e-3},
            1e-3,
            "a.json:12: scheduler.params.warmup_max_lr: DeepSpeed's WarmupCosineLR has no such ",
        ),
        (
            {"cos_min_ratio": [0.1]},
            1e-3,
            ("a.json:12: scheduler.params.cos_min_ratio: the value must be a number, not [0.1]."),
        ),
        (
            {"cos_min_ratio": 0.1},
            "auto",
            "a.json:12: scheduler.params.cos_min_ratio(0.1) is a fraction of the optimizer's "
            "lr, which the JSON does not contain. Add lr_schedule.min_lr=... to the command.",
        ),
    ],
)
def test_parameters_of_a_schedule_that_are_not_read_make_the_import_fail(params, lr, message, tmp_path):
    with pytest.raises(ConfigError) as error:
        put_on(tmp_path, "WarmupCosineLR", params, lr)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "optimizer",
    [
        {"type": "adamw", "params": {"adam_w_mode": False}},
        {"type": "ADAM", "params": {"adam_w_mode": True, "torch_adam": True, "bias_correction": True}},
    ],
)
def test_deepspeeds_adam_is_adamw_in_any_case(optimizer, tmp_path):
    """DeepSpeed's Adam, in any capitalization, becomes AdamW if its parameters mean torch's AdamW."""
    (tmp_path / "a.json").write_text(json.dumps({"optimizer": optimizer}))
    assert import_files([tmp_path / "a.json"], onto="gpt-125m").config == load("gpt-125m")


def test_optimizer_and_schedule_of_a_jobs_json_are_not_the_ones_that_run(tmp_path):
    """An optimizer or schedule in a job's JSON is noted as unused, because Megatron
    passes its own to DeepSpeed.
    """
    changes = {"optimizer": {"type": "Adam", "params": {"lr": 1.0}}, "scheduler": {"type": "OneCycle"}}
    found = import_flags(tmp_path, changes=changes)
    assert found.config == import_flags(tmp_path).config
    assert [note.text for note in found.notes if "ignored, because the program" in note.text] == [
        "optimizer: ignored, because the program sets it from its flags.",
        "scheduler: ignored, because the program sets it from its flags.",
    ]


PYTORCH_JOB = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: llm}
spec:
  nprocPerNode: "4"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: &pod
        spec:
          containers:
            - name: pytorch
              image: nvcr.io/nvidia/pytorch:23.06-py3
              command:
                - bash
                - -c
                - |
                  torchrun --nproc_per_node 4 pretrain_gpt.py \\
                    FLAGS
              resources: {limits: {nvidia.com/gpu: 4, cpu: 16, memory: 64Gi}}
    Worker:
      replicas: 1
      template: *pod
"""
MPI_JOB = """apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: llm}
spec:
  slotsPerWorker: 4
  mpiReplicaSpecs:
    Launcher:
      template:
        spec:
          containers:
            - image: megatron
              command: [mpirun, -np, "8", python, pretrain_gpt.py, WORDS]
    Worker:
      replicas: 2
      template:
        spec:
          containers:
            - image: megatron
              resources: {limits: {nvidia.com/gpu: 4, cpu: 16, memory: 64Gi}}
"""
TRAIN_JOB = """apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: llm}
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    image: megatron
    numNodes: 2
    numProcPerNode: 4
    command: [torchrun, pretrain_gpt.py]
    args: [WORDS]
    resourcesPerNode: {requests: {nvidia.com/gpu: 4, cpu: 16, memory: 64Gi}}
"""
LM_FLAGS = (
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 64 --train-iters 1000 "
    "--lr 1e-4 --lr-decay-style cosine --bf16 --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt "
    "--data-path 1 a/x_text_document 2 b/y_text_document "
    "--tensor-model-parallel-size 2 --save-interval 100 --recompute-activations"
)


@pytest.mark.parametrize("job", [PYTORCH_JOB, MPI_JOB, TRAIN_JOB], ids=["PyTorchJob", "MPIJob", "TrainJob"])
def test_kubeflow_jobs_are_read(job, tmp_path):
    """Kubeflow jobs are imported with nodes, ranks and resources; the command may be words or a script."""
    words = ", ".join(json.dumps(word) for word in LM_FLAGS.split())
    (tmp_path / "job.yaml").write_text(job.replace("FLAGS", LM_FLAGS).replace("WORDS", words))
    config = import_files([tmp_path / "job.yaml"]).config
    assert (config.name, config.resources.nodes, config.resources.gpus_per_node) == ("llm", 2, 4)
    assert (config.parallel.data_parallel_size, config.parallel.tensor_parallel_size) == (4, 2)
    assert (config.resources.cpus_per_node, config.resources.memory_per_node_bytes) == (16, 64 * 2**30)
    assert (config.precision.dtype, config.parallel.activation_checkpointing.granularity) == (
        "bf16",
        "selective",
    )
    assert [(entry.prefix, entry.weight) for entry in config.data.blend] == [
        ("a/x_text_document", 1.0),
        ("b/y_text_document", 2.0),
    ]
    # Megatron's defaults where they differ from nbtrain's.
    assert (config.optimizer.adam_beta2, config.optimizer.weight_decay) == (0.999, 0.01)
    assert (config.data.split, config.evaluation.eval_interval_steps) == ("969, 30, 1", 1000)


def test_a_config_map_holds_the_json(tmp_path):
    """The JSON may be in a ConfigMap, in the job's file or in a separate one."""
    text = json.dumps(deepspeed_json("125m"), indent=2).replace("\n", "\n    ")
    maps = f"kind: ConfigMap\nmetadata: {{name: c}}\ndata:\n  ds_config_125m.json: |\n    {text}\n"
    (tmp_path / "job.yaml").write_text(f"{manifest('gpt-125m')}---\n{maps}")
    found = import_files([tmp_path / "job.yaml"], [WIKI])
    assert found.config.parallel.zero_stage == 2
    assert any(
        str(note).startswith("job.yaml:10") and "elastic_checkpoint" in str(note) for note in found.notes
    )


SLURM = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gres=gpu:a100:8
python prepare_ratios.py --split train
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node 8 --nnodes $SLURM_NNODES"
export CMD=" \\
    `pwd`/pretrain_gpt.py \\
    FLAGS"
srun --jobid $SLURM_JOB_ID bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $CMD" 2>&1 | tee log
"""


def test_a_slurm_script_launches_by_bash_c(tmp_path):
    """In a Slurm script, #SBATCH sets nodes and GPUs; commands without Megatron's flags are skipped."""
    (tmp_path / "job.slurm").write_text(SLURM.replace("FLAGS", LM_FLAGS))
    config = import_files([tmp_path / "job.slurm"]).config
    assert (config.resources.nodes, config.resources.gpus_per_node, config.resources.cpus_per_node) == (
        4,
        8,
        32,
    )
    assert (config.parallel.data_parallel_size, config.name) == (16, "job")


@pytest.mark.parametrize(
    ("tasks", "cpus"),
    [("ntasks-per-node=8", 96), ("ntasks=32", 96), ("ntasks=5", 12), ("ntasks-per-node=1", 12)],
)
def test_the_cores_of_a_machine_are_those_of_all_its_tasks(tasks, cpus, tmp_path):
    """A machine's cores are --cpus-per-task times its number of tasks, here 8 tasks on each of 4 nodes."""
    script = SLURM.replace("cpus-per-task=32", "cpus-per-task=12").replace("ntasks-per-node=1", tasks)
    (tmp_path / "job.slurm").write_text(script.replace("FLAGS", LM_FLAGS))
    assert import_files([tmp_path / "job.slurm"]).config.resources.cpus_per_node == cpus


@pytest.mark.parametrize(
    ("label", "expected"),
    [("NVIDIA-A100-SXM4-80GB", "A100-80GB"), ("NVIDIA-H100-80GB-HBM3", "H100"), ("Tesla-K80", None)],
)
def test_the_node_selector_names_the_gpu(label, expected, tmp_path):
    """The node selector's label gives the GPU type; a label that is not in the device table gets a note."""
    path = write(tmp_path, "gpt-125m")
    selector = f"      spec:\n        nodeSelector: {{nvidia.com/gpu.product: {label}}}\n        containers:"
    path.write_text(path.read_text().replace("      spec:\n        containers:", selector))
    found = import_files([path], [WIKI])
    assert (found.config.resources.gpu_type or "none").startswith(expected or "none")
    assert any("not in the device table" in note.text for note in found.notes) == (expected is None)


def test_a_template_of_the_json_is_filled_in_by_sed(tmp_path):
    """A JSON template is filled in as Megatron-DeepSpeed's scripts do with sed.

    The template is a second file; without it, the error asks for it.
    """
    script = script_deepspeed()
    start, end = script.index("cat <<EOT"), script.index("EOT\n", script.index("cat <<EOT") + 9) + 4
    sed = 'sed "s/GBSIZE/${global_batch_size}/" t.json | sed "s/MBSIZE/${batch_size}/" > $config_json\n'
    (tmp_path / "run.sh").write_text(script[:start] + sed + script[end:])
    (tmp_path / "t.json").write_text(
        '{"train_batch_size": GBSIZE, "train_micro_batch_size_per_gpu": MBSIZE,\n'
        ' "zero_optimization": {"stage": 1}, "fp16": {"enabled": true}}'
    )
    overrides = ["resources.nodes=2", "resources.gpus_per_node=8"]
    config = import_files([tmp_path / "run.sh", tmp_path / "t.json"], overrides).config
    assert config.precision.fp16.initial_scale_power == 16 and config.batch.micro_batch_size == 2
    asked = r"ds_config_gbs512\.json is missing.*, or the template"
    with pytest.raises(ConfigError, match=asked):
        import_files([tmp_path / "run.sh"], overrides)


def test_a_comment_of_the_yaml_has_one_line(tmp_path):
    """A line end in a flag or in a file's name does not end the comment that shows it."""
    path = tmp_path / "a\nname: evil.sh"
    path.write_text(f"{MEGATRON_LM} --tensorboard-dir 'x\nname: evil'\n")
    found = import_files([path], ["tokenizer.vocab_size=50257"])
    assert yaml.safe_load(found.text)["name"] == "a-name-evil"
    assert any("--tensorboard-dir x name: evil" in line for line in found.text.splitlines())


def test_a_file_may_have_any_name(tmp_path):
    """A name that is not UTF-8 is escaped in the YAML; a name that no file can have is refused."""
    path = tmp_path / os.fsdecode(b"\xff.sh")
    path.write_text(MEGATRON_LM)
    found = import_files([path], ["tokenizer.vocab_size=50257"])
    assert found.config.imported_from[0].file == "\\udcff.sh"
    assert load(found.write(tmp_path / "run.yaml")) == found.config
    for name in ("a\0.sh", "\ud800.sh"):
        with pytest.raises(ConfigError, match="cannot be read"):
            import_files([tmp_path / name])


def test_a_large_json_that_is_none_of_deepspeeds_is_refused_at_once(tmp_path):
    """The vocabulary of a tokenizer is refused by its keys; lines are counted once, not for each key."""
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps({f"token{number}": number for number in range(2_000)}, indent=1))
    with pytest.raises(
        ConfigError, match=r"vocab\.json: DeepSpeed does not read any key in this file \(token0, token1"
    ):
        import_files([path])
    document = read_json(path.read_text(), "vocab.json")
    assert document.place("token1999") == "vocab.json:2001"


def test_an_existing_yaml_is_not_written_over(tmp_path):
    """An existing YAML is overwritten only on request."""
    found = import_files([write(tmp_path, "gpt-125m")], [WIKI])
    path = found.write(tmp_path / "run.yaml")
    with pytest.raises(
        ConfigError, match=r"run\.yaml already exists\. .* overwrite the file with --overwrite "
    ):
        found.write(path)
    found.write(path, overwrite=True)
    (tmp_path / "folder.yaml").mkdir()
    for name, words in (
        ("none/run.yaml", "cannot be written"),
        ("run.txt", "must end in .yaml or .yml"),
        ("folder.yaml", "is a folder"),
    ):
        with pytest.raises(ConfigError, match=f"{name}.* {words}"):
            found.write(tmp_path / name)


def test_a_script_is_written_to_a_device_and_into_the_home_folder(tmp_path, monkeypatch):
    """A device may be named, although it exists, and ~ is the home folder, as for a run YAML."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert write_once("/dev/null", "text", overwrite=False) == Path("/dev/null")
    assert write_once("~/run.sh", "text", overwrite=False).read_text() == "text"
    assert (tmp_path / "run.sh").is_file()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.sh", "echo hello\n", "a.sh: the script launches no training"),
        (
            "a.yaml",
            "extends: gpt-tiny\n",
            "a.yaml: this is already a run YAML. Run `nbtrain check a.yaml` to check it.",
        ),
        (
            "a.yaml",
            "kind: Deployment\n",
            "a.yaml: this Kubernetes manifest (Deployment) contains no job; "
            "supported kinds: DeepSpeedJob, TrainJob, MPIJob, PyTorchJob, and ConfigMap.",
        ),
        (
            "a.yaml",
            "apiVersion: v1\nkind: Pod\n---\nkind: 'Job'\n---\nkind: Pod\n",
            ("a.yaml: this Kubernetes manifest (Pod, Job) contains no job; supported kinds: "),
        ),
        (
            "a.json",
            '{\n  "apiVersion": "v1",\n  "kind": "Pod"\n}',
            ("a.json: this Kubernetes manifest (Pod) contains no job; supported kinds: "),
        ),
        ("a.yaml", "name: x\n", "a.yaml: the file contains no job; supported kinds: DeepSpeedJob"),
        ("a.yaml", "kind: pytorchjob\n", "a.yaml:1: kind = pytorchjob: the kind must be spelled PyTorchJob."),
        ("a.yaml", "kind: [\n", "a.yaml:2: not YAML"),
        ("a.json", '{"a": }', "a.json:1: not JSON: a value is missing for a."),
        ("a.json", "[]", "a.json:1: a DeepSpeed configuration must be a JSON object"),
        pytest.param(
            "a.json",
            '{\n"train_batch_size": %s}' % ("9" * 4301),
            "a.json:2: not JSON: a whole number has more than 4,300 digits, which Python does not parse.",
            id="a long number in JSON",
        ),
        pytest.param(
            "a.yaml",
            f"kind: Job\nspec:\n  parallelism: -{'9' * 4301}\n",
            "...: the value must be a whole number of at most 4,300 digits.",
            id="a long number in YAML",
        ),
        (
            "a.yaml",
            "kind: !!int x\n",
            "a.yaml:1: kind = x: the value must be a whole number of at most 4,300 digits.",
        ),
        ("a.yaml", "kind: !!bool x\n", "a.yaml:1: kind = x: the value must be true or false."),
        ("a.yaml", "kind: DeepspeedJob\n", "the kind must be spelled DeepSpeedJob"),
        ("a.yml", "# 19M\npipe_parallel_size: 1\n", "a.yml: this is a configuration file for GPT-NeoX, "),
        ("a.yml", '{\n  "pipe-parallel-size": 1,\n}\n', "a.yml: this is a configuration file for GPT-NeoX"),
    ],
)
def test_a_file_of_another_kind_is_named(name, text, message, tmp_path):
    """A file of another kind is refused, and the message says what it is and what can be imported."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as error:
        import_files([tmp_path / name])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{\n"optimizer": {\n"type": "AdanW"}}',
            "a.json:3: optimizer.type = AdanW: DeepSpeed 0.19.8 has no optimizer AdanW. Nearest: AdamW.",
        ),
        (
            '{"optimizer": {"type": "Lion"}}',
            "a.json:1: optimizer.type = Lion: only Adam and AdamW can be imported. Set one of them.",
        ),
        (
            '{"optimizer": {"type": "Adam", "params": {"lr": "1e-4"}}}',
            "a.json:1: optimizer.params.lr: the value must be a number, not '1e-4'.",
        ),
        (
            '{"optimizer": {"type": "Adam", "params": {\n"adam_w_mode": false}}}',
            (
                "a.json:2: optimizer.params.adam_w_mode = false: it changes the optimizer, and "
                "nbtrain has no field"
            ),
        ),
        (
            '{"optimizer": {"type": "AdamW", "params": {"amsgrad": true}}}',
            "a.json:1: optimizer.params.amsgrad = true: it changes the optimizer",
        ),
        (
            '{"optimizer": {"params": {"betas": [0.9, "x"]}}}',
            "a.json:1: optimizer.params.betas: the value must be two numbers, not [0.9, x].",
        ),
        ('{\n"gradient_clipping": "one"}', "a.json:2: gradient_clipping must be a number, not one."),
        (
            '{"fp16": {"enabled": true, "loss_scale": "dynamic"}}',
            "a.json:1: fp16.loss_scale must be a number, ",
        ),
        ('{"fp16": 5}', "a.json:1: fp16 must be a mapping of keys, not 5."),
        ('{"zero_optimization": {"stage": "two"}}', "a.json:1: zero_optimization.stage must be one of 0, 1"),
    ],
)
def test_a_value_that_deepspeed_does_not_take_makes_the_import_fail(text, message, tmp_path):
    """A value that DeepSpeed would refuse is an error with file and line."""
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ConfigError) as error:
        import_files([tmp_path / "a.json"], onto="gpt-125m")
    assert message in str(error.value)


def test_several_jobs_are_imported_one_by_one(tmp_path):
    """Files with several jobs are refused with the jobs' names, because jobs are imported one at a time."""
    paths = [write(tmp_path, name) for name in ("gpt-125m", "gpt-125m-2xdp")]
    with pytest.raises(
        ConfigError, match=r"the files describe 2 jobs: gpt-125m\.yaml \(gpt-125m\), gpt-125m-2xdp"
    ):
        import_files(paths)


def script_of(tmp_path, lines: str, tail: str):
    """Import a Megatron-LM script that has `lines` and then a launch that ends with `tail`."""
    flags = " ".join(word for word in flags_of("gpt-125m")[1:] if "deepspeed" not in word)
    for unknown in ("--train-tokens=2500000000", "--zero-stage=0", "--lr-decay-tokens=2500000000"):
        flags = flags.replace(unknown, "")
    flags = flags.replace("--lr-warmup-tokens=25000000", "").replace("--no-pipeline-parallel", "")
    launch = f"torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py {flags} {tail}"
    (tmp_path / "a.sh").write_bytes(f"{lines}\n{launch}\n".encode())
    return import_files([tmp_path / "a.sh"], {"tokenizer.vocab_size": 52000})


@pytest.mark.parametrize(
    ("asked", "lines"),
    [
        ("a.sh:1: the value of EXTRA", 'if [ -f /etc/moe ]; then EXTRA="--num-experts 8"; fi'),
        ("a.sh:1: the value of MODE", '[ "$MODE" = moe ] && EXTRA="--num-experts 8"'),
        ("a.sh:1: the value of MODE", 'case $MODE in\nmoe) EXTRA="--num-experts 8";;\nesac'),
        ("a.sh:2: the value of EXTRA", 'EXTRA=""\nfor f in $(ls); do EXTRA="$EXTRA $f"; done'),
        ("a.sh:1: the value of EXTRA", "read -r EXTRA < extra.txt"),
        ("a.sh:1: the value of EXTRA", "source ./settings.sh"),
        ("a.sh:1: the value of EXTRA is not known (nbtrain does not run $(cat f))", "EXTRA=$(cat f)"),
    ],
)
@pytest.mark.parametrize("tail", ["$EXTRA", "--data-path d/x_text_document $EXTRA"])
def test_a_list_of_flags_that_cannot_be_decided_is_asked_for(asked, lines, tail, tmp_path):
    """A list of flags whose contents cannot be determined is asked for, because it could change the model."""
    with pytest.raises(ConfigError) as error:
        script_of(tmp_path, lines, tail)
    assert str(error.value).startswith(asked) and "EXTRA=..." in str(error.value)


def test_a_part_of_a_list_is_read(tmp_path):
    with pytest.raises(ConfigError, match=r"a\.sh:1: --num-experts 8: this is a mixture of experts"):
        script_of(tmp_path, "EXTRA=(--x --num-experts 8)", "${EXTRA[@]:1}")


def test_a_list_that_nothing_sets_is_empty_and_said(tmp_path):
    """A list variable that is never set is empty, as in the shell, and gets a note;
    --data-path ends before it.
    """
    found = script_of(tmp_path, "", '--data-path d/x_text_document $EXTRA "$@"')
    assert found.config.data.name == "d"
    said = [str(note) for note in found.notes if "counts as empty" in note.text]
    assert said == [
        f"a.sh:2: {one}: the file does not set this variable, so it counts as empty."
        for one in ("${EXTRA}", "$@")
    ]


def test_a_file_that_is_no_file_is_refused_at_once(tmp_path):
    """A pipe or device is refused at once, because reading it would not end; UTF-16
    and a BOM are recognised.
    """
    os.mkfifo(tmp_path / "a.sh")
    (tmp_path / "b.sh").symlink_to("/dev/zero")
    (tmp_path / "c.sh").mkdir()
    (tmp_path / "d.sh").write_text("torchrun a.py", encoding="utf-16")
    for name, words in (
        ("a.sh", "a.sh: this is not a regular file; give a manifest, a shell script or a DeepSpeed JSON."),
        ("b.sh", "b.sh: this is not a regular file"),
        ("c.sh", "c.sh: this is a folder"),
        ("d.sh", "d.sh: byte 1 is not UTF-8. Save the file as UTF-8 text: iconv -f utf-16 -t utf-8 d.sh"),
    ):
        with pytest.raises(ConfigError) as error:
            import_files([tmp_path / name])
        assert words in str(error.value)
    assert script_of(tmp_path / "c.sh", "\ufeffA=1", "").config.batch.micro_batch_size == 16


def test_numbers_as_upstream_scripts_write_them(tmp_path):
    """Numbers are read as upstream scripts write them: 1_000 as in Python, and a
    limit of 57 years as none.
    """
    found = script_of(tmp_path, "", "--rampup-batch-size 128 128 1_000_000 --exit-duration-in-mins 30000000")
    assert found.config.batch.rampup.ramp_samples == 1_000_000
    assert found.config.batch.exit_duration_minutes is None
    note = "a.sh:2: --exit-duration-in-mins 30000000: ignored, because it is over 10 years."
    assert note in map(str, found.notes)


@pytest.mark.parametrize("tails", [("", "--swiglu"), ("--swiglu", "")])
def test_master_and_worker_train_with_the_same_flags(tails, tmp_path):
    """If master and worker are started with different flags, the import is an error."""
    containers = [
        f"""    {role}:
      template:
        spec:
          containers:
            - name: pytorch
              command: [bash, -c, "torchrun pretrain_gpt.py --num-layers 2 --bf16 {tail}"]
"""
        for role, tail in zip(("Master", "Worker"), tails)
    ]
    head = "kind: PyTorchJob\nmetadata: {name: a}\nspec:\n  pytorchReplicaSpecs:\n"
    (tmp_path / "a.yaml").write_text(head + "".join(containers))
    with pytest.raises(ConfigError) as error:
        import_files([tmp_path / "a.yaml"])
    line = 10 if tails[0] else 16
    assert str(error.value) == (
        f"a.yaml:{line}: --swiglu: only one of Master and Worker has this argument, but all "
        "ranks need the same flags. Make both commands equal."
    )


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_secondary_shard_is_taken_over(tmp_path, size):
    """A zero_hpz_partition_size above 1 is imported, even for two ranks."""
    zero = {"stage": 3, "zero_hpz_partition_size": size}
    (tmp_path / "a.json").write_text(json.dumps({"zero_optimization": zero}))
    layout = ["parallel.data_parallel_size=8", "resources.nodes=2", "resources.gpus_per_node=4"]
    found = import_files([tmp_path / "a.json"], layout, "gpt-125m").config.parallel
    assert (found.zero_hpz, found.zero_hpz_partition_size) == ((True, size) if size > 1 else (False, None))


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        (
            {"zero_optimization": {"stage": 3, "sub_group_size": 0}},
            "sub_group_size = 0: imported as 1",
        ),
        (
            {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "none", "pin_memory": True}}},
            ("pin_memory: not imported; DeepSpeed reads it only with device cpu or nvme, not none."),
        ),
        (
            {"aio": {"thread_count": 1}},
            "aio.thread_count: not imported; DeepSpeed 0.19.8 ignores it. It reads aio.intra_op_par",
        ),
        ({"data_efficiency": {"enabled": True}}, "data_efficiency: not imported; it enables none of"),
        (
            {"bf16": {"enabled": True}, "zero_optimization": {"stage": 0}},
            "ZeRO 0 with 16-bit weights: imported as zero_stage",
        ),
    ],
)
def test_a_json_is_taken_as_deepspeed_takes_it(changes, note, tmp_path):
    """Values of a JSON that DeepSpeed ignores or reads differently are imported as it does, with a note."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(changes))
    found = import_files([path], onto="gpt-125m-2xdp")
    assert any(note in str(one) for one in found.notes)
    assert found.config.parallel.sub_group_size >= 1
    assert (
        "aio" not in found.config.parallel.deepspeed_extra or not found.config.parallel.deepspeed_extra["aio"]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"train_batch_size": 8,\n"train_batch_size": 16}',
            "a.json:2: train_batch_size is written twice",
        ),
        (
            '{"optimizer": {"type": "Adam", "params": {"lr": 1%s}}}' % ("0" * 400),
            "params.lr: the value must be a number",
        ),
        ('{"scheduler": {"type": []}}', "scheduler [] with warmup_type log: only the schedulers WarmupLR"),
        (
            '{"scheduler": {"type": "WarmupLR", "params": [1]}}',
            "scheduler.params: the value must be an object",
        ),
        (
            '{"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linear", '
            '"warmup_num_steps": Infinity}}}',
            "scheduler.params.warmup_num_steps: the value must be a number, not .inf",
        ),
        (
            '{"communication_data_type": "int8"}',
            "must be one of fp32, fp16, bf16, not int8.",
        ),
        (
            '{"data_efficiency": {"data_routing": {"random_ltd": {"enabled": true}}}}',
            ("data_efficiency.data_routing.random_ltd: it changes which tokens a layer computes"),
        ),
        (
            '{"train_batch_size": 1024, "gradient_accumulation_steps": 32,\n'
            '"train_micro_batch_size_per_gpu": 1}',
            "micro_batch_size(1) * data_parallel_size(1) = 32, but the batch is 1024",
        ),
    ],
)
def test_a_json_that_deepspeed_refuses_is_refused(text, message, tmp_path):
    """A JSON at which DeepSpeed stops is not imported."""
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        import_files([path], onto="gpt-125m")
    assert message in str(error.value)


def test_flags_and_json_agree_about_the_accumulation(tmp_path):
    """A batch of the JSON that is not micro batch x steps x replicas of the flags is an error of import and
    check.
    """
    path = tmp_path / "train.sh"
    path.write_text(
        "deepspeed --num_gpus 2 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 "
        "--seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 1024 "
        "--train-iters 10 --lr 1e-3 --vocab-file gpt2-vocab.json --merge-file m.txt --data-path a/b "
        "--deepspeed --deepspeed_config ds.json --fp16\n"
    )
    document = {"train_batch_size": 1024, "gradient_accumulation_steps": 32, "fp16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(document | {"zero_optimization": {"stage": 1}}))
    words = (
        "train_batch_size(1024) is not --micro-batch-size(1) * gradient_accumulation_steps(32) * "
        "data-parallel(2) = 64."
    )
    with pytest.raises(ConfigError) as error:
        import_files([path])
    assert words in str(error.value)
    assert words in [one.message for one in lint([path]) if one.rule == "json_batch_agrees"]


def test_contradictions_of_script_and_json_are_all_named(tmp_path):
    """A script of Megatron-DeepSpeed whose JSON contradicts it in batch, format and keys is refused
    with every contradiction; the stage and the pipeline are findings of check.
    """
    words = [
        *(word for word in flags_of("gpt-1-3b-4xdp-4xpp") if not word.startswith("--zero-stage")),
        *("--zero-stage=3", "--no-such-flag", "7"),
    ]
    (tmp_path / "job.yaml").write_text(manifest("gpt-1-3b-4xdp-4xpp", words))
    changes = {"train_batch_size": 500, "train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": True}}
    changes |= {"fp16": {"enabled": False}, "train_bach_size": 3}
    (tmp_path / "ds_config_1-3b.json").write_text(json.dumps(deepspeed_json("1-3b") | changes))
    with pytest.raises(ConfigError) as error:
        import_files([tmp_path / "job.yaml"], [WIKI])
    text = str(error.value)
    for part in (
        "--no-such-flag: megatron-deepspeed@e7bff5ec has no such flag",
        "--fp16: bf16.enabled is true in ds_config_1-3b.json",
        "train_batch_size = 500, but job.yaml:",
        "train_micro_batch_size_per_gpu = 8, but job.yaml:",
        "train_bach_size: DeepSpeed has no such key. Nearest: train_batch_size.",
    ):
        assert part in text
    rules = {one.rule for one in lint([tmp_path / "job.yaml"], [WIKI])}
    assert rules >= {"flags_exist", "json_batch_agrees", "zero_stage_agrees", "zero_goes_with_the_pipeline"}
    assert rules >= {"formats_agree", "json_keys_are_known"}


def test_mock_data_is_a_source(tmp_path):
    """--mock-data becomes a source of random words, and a NullTokenizer a trained one of its size."""
    path = tmp_path / "train.sh"
    path.write_text(
        "torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 "
        "--seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 4 --bf16 "
        "--train-iters 10 --lr 1e-3 --mock-data --tokenizer-type NullTokenizer --vocab-size 4096 "
        "--attention-backend auto\n"
    )
    config = import_files([path]).config
    assert [source.kind for source in config.data.sources] == ["mock"]
    assert config.tokenizer.vocab_size == 4096
