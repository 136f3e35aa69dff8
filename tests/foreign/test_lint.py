"""Checks of other programs' files: one test per rule, on files like upstream's."""

import json

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.base.findings import Finding
from nbtrain.base.text import amounts
from nbtrain.foreign.importing import import_files
from nbtrain.foreign.lint import lint

from .upstream import NINE, deepspeed_json, flags_of, manifest, script_175b, write

GPU = "resources.gpu_type=A100-40GB"


def linted(
    folder, *flags: str, name: str = "gpt-125m", without=(), changes=None, overrides=(GPU,), **job
) -> list[Finding]:
    """Return the findings for one of the nine jobs with added flags and changed
    keys of its JSON or manifest.
    """
    words = [word for word in flags_of(name) if not word.startswith(tuple(without))] + list(flags)
    (folder / "job.yaml").write_text(manifest(name, words, **job))
    key = NINE[name][0]
    text = (
        changes if isinstance(changes, str) else json.dumps(deepspeed_json(key) | (changes or {}), indent=2)
    )
    (folder / f"ds_config_{key}.json").write_text(text)
    return lint([folder / "job.yaml"], list(overrides))


def lines(findings: list[Finding], rule: str) -> list[str]:
    """Return the lines that one rule prints."""
    return [line for finding in findings if finding.rule == rule for line in finding.lines()]


def test_zero_of_the_flags_against_the_json(tmp_path):
    """Upstream's 125M has --zero-stage 0 but stage 2 in the JSON, which is reported."""
    assert lines(lint([write(tmp_path, "gpt-125m")]), "zero_stage_agrees") == [
        "warning, costs a run with a different ZeRO stage from the flag's: gpt-125m.yaml:57: --zero-stage",
        (
            "  the flag is 0, but zero_optimization.stage is 2 (ds_config_125m.json:6), and "
            "DeepSpeed uses the JSON's stage."
        ),
        "  Set both to 2.",
    ]


def test_zero_2_with_a_pipeline(tmp_path):
    """Upstream's 1.3B has 4 pipeline stages with ZeRO 2, which DeepSpeed refuses."""
    assert lines(lint([write(tmp_path, "gpt-1-3b-4xdp-4xpp")]), "zero_goes_with_the_pipeline") == [
        "error, cannot run: ds_config_1-3b.json:6: zero_optimization.stage",
        "  stage 2 with pipeline-model-parallel-size(4) (gpt-1-3b-4xdp-4xpp.yaml:15): "
        "DeepSpeed refuses ZeRO 2 and 3 in a pipeline.",
        "  Set the stage to 1.",
    ]


def test_stages_of_a_pipeline_agree_on_one_that_it_has(tmp_path):
    """A flag of stage 2 next to a JSON of stage 1: a pipeline refuses 2, so both are set to 1."""
    manifest = write(tmp_path, "gpt-1-3b-4xdp-4xpp")
    manifest.write_text(manifest.read_text().replace("--zero-stage=1", "--zero-stage=2"))
    (tmp_path / "ds_config_1-3b.json").write_text('{"zero_optimization": {"stage": 1}}')
    assert lines(lint([manifest]), "zero_stage_agrees")[-1] == "  Set both to 1."


def test_zero_2_without_no_pipeline_parallel(tmp_path):
    """ZeRO 2 without --no-pipeline-parallel is reported, because even one stage uses
    DeepSpeed's pipeline engine.
    """
    findings = linted(tmp_path, without=["--no-pipeline-parallel"])
    assert lines(findings, "zero_goes_with_the_pipeline") == [
        "error, cannot run: ds_config_125m.json:6: zero_optimization.stage",
        "  stage 2 without --no-pipeline-parallel: Megatron-DeepSpeed then uses the pipeline "
        "engine even for a single stage, and DeepSpeed refuses ZeRO 2 and 3 in a pipeline.",
        "  Add --no-pipeline-parallel, or set the stage to 1.",
    ]


def test_samples_against_tokens_and_the_progress_that_they_show(tmp_path):
    """A mismatch of samples and tokens is reported, with its effect on the progress
    bar or the end of training.
    """
    assert lines(lint([write(tmp_path, "gpt-125m")]), "samples_are_the_tokens") == [
        "warning, costs a wrong progress bar: gpt-125m.yaml:26: --train-samples",
        "  2,500,000 samples of 2,048 tokens are 5.12B tokens, but "
        "train-tokens(2,500,000,000) ends training at step 4,769 of the 9,765 that the log "
        "counts. The progress in the log therefore ends at 49%, and its remaining time is 2.05 times too "
        "long.",
        "  Set --train-samples 1220864, the samples of 4,769 steps.",
    ]
    short = linted(tmp_path, "--train-samples=1000000", without=["--train-samples"])
    assert "training ends at step 3,906, before train-tokens(2,500,000,000) at step 4,769." in "".join(
        lines(short, "samples_are_the_tokens")
    )
    assert (
        lines(
            linted(tmp_path, "--train-samples=1220864", without=["--train-samples"]), "samples_are_the_tokens"
        )
        == []
    )


def test_one_name_and_one_folder_for_several_jobs(tmp_path):
    """A name and a folder that several jobs share, as in upstream's three files of 125M, are reported."""
    findings = lint([write(tmp_path, name) for name in ("gpt-125m", "gpt-125m-2xdp")])
    assert lines(findings, "names_are_their_own") == [
        "error, cannot run: gpt-125m-2xdp.yaml:4: metadata.name",
        "  the job in gpt-125m.yaml:4 is also named gpt-125m.",
        "  Rename this job, e.g. to gpt-125m-2xdp.",
    ]
    assert lines(findings, "folders_are_their_own") == [
        "error, costs a run that continues with another run's weights: gpt-125m-2xdp.yaml:48: --save",
        "  the job in gpt-125m.yaml:48 also saves to output/gpt-125m/model, so each job "
        "would resume from the other's checkpoints.",
        "  Set --save and --load to output/gpt-125m-2xdp/model.",
    ]


def test_the_175b_script_on_one_node(tmp_path):
    """The 175B script has 128 ranks for 8 GPUs, and a ramp-up that cannot be combined with --train-iters."""
    (tmp_path / "train_175b.sh").write_text(script_175b())
    findings = lint([tmp_path / "train_175b.sh"])
    assert lines(findings, "ranks_fill_the_machines") == [
        "error, cannot run: train_175b.sh:46: --pipeline-model-parallel-size",
        "  pipeline(16) * tensor(8) = 128 ranks, but nodes(1) * GPUs(8) = 8, which is not a "
        "whole number of data-parallel replicas.",
        ("  Use 16 nodes or a multiple of that number, or use sizes whose product divides 8."),
    ]
    fives = tmp_path / "fives.sh"
    fives.write_text(
        script_175b().replace("--tensor-model-parallel-size 8", "--tensor-model-parallel-size 5")
    )
    [_, _, fix] = lines(lint([fives]), "ranks_fill_the_machines")
    assert fix == ("  Use 10 nodes or a multiple of that number, or use sizes whose product divides 8.")
    assert lines(findings, "growth_counts_samples") == [
        "error, cannot run: train_175b.sh:30: --rampup-batch-size",
        "  combined with --train-iters at train_175b.sh:31, but the program refuses a "
        "growing batch if it counts iterations.",
        ("  Give the training length with --train-samples, and the decay with --lr-decay-samples."),
    ]
    assert lines(findings, "ramp_up_has_a_successor") == [
        "warning, costs a version that may no longer grow the batch: train_175b.sh:30: --rampup-batch-size",
        "  16 16 5859375: --step-batch-size-schedule replaced this flag on 2026-04-21, "
        "before megatron-lm@d98e8a64.",
        '  Write the sizes, e.g. --step-batch-size-schedule "0:16 2.4B:320 12B:1536"; nbtrain export writes '
        "them "
        "exactly.",
    ]


@pytest.mark.parametrize(
    ("flags", "rule", "expected"),
    [
        (
            ["--nccl-timeout=30"],
            "flags_exist",
            [
                "error, cannot run: job.yaml:59: --nccl-timeout",
                "  megatron-deepspeed@e7bff5ec has no such flag. Nearest: --distributed-timeout-minutes.",
                "  Remove it, or correct its name.",
            ],
        ),
        (
            ["--save-dir=x"],
            "flags_exist",
            [
                "error, cannot run: job.yaml:59: --save-dir",
                "  megatron-deepspeed@e7bff5ec has no such flag. Nearest: --save.",
                "  Remove it, or correct its name.",
            ],
        ),
        (
            ["--clip-grad=0.5"],
            "flags_are_given_once",
            [
                "warning, costs a run with other settings than the file suggests: job.yaml:59: --clip-grad",
                (
                    "  the flag is set twice: --clip-grad 1.0 at job.yaml:35, and --clip-grad "
                    "0.5, which takes effect."
                ),
                "  Keep only one of them.",
            ],
        ),
        (
            ["--num-attention-heads=10"],
            "sizes_divide",
            [
                "error, cannot run: job.yaml:59: --num-attention-heads",
                "  10 does not divide hidden-size(768); nearest: 8, 12.",
                "  Set --num-attention-heads to one of 8, 12.",
            ],
        ),
        (
            ["--tensor-model-parallel-size=5"],
            "sizes_divide",
            [
                "error, cannot run: job.yaml:59: --tensor-model-parallel-size",
                "  5 does not divide num-attention-heads(12); nearest: 4, 6.",
                "  Set --tensor-model-parallel-size to one of 4, 6.",
            ],
        ),
        (
            ["--num-key-value-heads=5"],
            "sizes_divide",
            [
                "error, cannot run: job.yaml:59: --num-key-value-heads",
                "  5 does not divide num-attention-heads(12); nearest: 4, 6.",
                "  Set --num-key-value-heads to one of 4, 6.",
            ],
        ),
        (
            ["--num-key-value-heads=3", "--tensor-model-parallel-size=2"],
            "ranks_share_groups",
            [
                "error, cannot run: job.yaml:59: --num-key-value-heads",
                (
                    "  3 is not a multiple of tensor-model-parallel-size(2); tensor-parallel sizes that "
                    "fit: 1, 3."
                ),
                "  Set --tensor-model-parallel-size to one of 1, 3.",
            ],
        ),
        (
            ["--pipeline-model-parallel-size=5"],
            "sizes_divide",
            [
                "error, cannot run: job.yaml:59: --pipeline-model-parallel-size",
                "  5 does not divide num-layers(12); nearest: 4, 6.",
                "  Set --pipeline-model-parallel-size to one of 4, 6.",
            ],
        ),
        (
            ["--seq-length=4096"],
            "positions_hold_the_sequence",
            [
                "error, cannot run: job.yaml:59: --seq-length",
                "  4096 is more than max-position-embeddings(2048).",
                "  Set --max-position-embeddings 4096.",
            ],
        ),
        (
            ["--global-batch-size=250"],
            "batch_divides",
            [
                "error, cannot run: job.yaml:59: --global-batch-size",
                "  250 is not a multiple of micro-batch-size(16) * data-parallel(1) = 16.",
                "  Set --global-batch-size to one of 240, 256.",
            ],
        ),
        (
            ["--ds-sequence-parallel-size=2", "--pipeline-model-parallel-size=2"],
            "flags_go_together",
            [
                "error, cannot run: job.yaml:59: --ds-sequence-parallel-size",
                "  --ds-sequence-parallel-size 2 with --pipeline-model-parallel-size 2 (job.yaml:60): the "
                "program refuses to start with both.",
                "  Remove one of them.",
            ],
        ),
        (["--ds-sequence-parallel-size=2", "--tensor-model-parallel-size=1"], "flags_go_together", []),
        (
            ["--apply-layernorm-1p"],
            "has_a_field",
            [
                "note: job.yaml:59",
                "  --apply-layernorm-1p: this flag changes the run, and nbtrain has no field "
                "for it. Remove it if the run can do without it.",
                "  nbtrain import fails at this setting.",
            ],
        ),
    ],
)
def test_flags_of_a_job(flags, rule, expected, tmp_path):
    """A finding about a flag gives the place, the value, the rule with its numbers, and the fix."""
    assert lines(linted(tmp_path, *flags), rule) == expected


@pytest.mark.parametrize(
    ("changes", "rule", "expected"),
    [
        (
            {"train_batch_size": 128},
            "json_batch_agrees",
            [
                "error, cannot run: ds_config_125m.json:2: train_batch_size",
                "  128, but --global-batch-size is 256 (job.yaml:24): DeepSpeed asserts that they agree.",
                "  Set both to 256.",
            ],
        ),
        (
            {"gradient_accumulation_steps": 8},
            "json_batch_agrees",
            [
                "error, cannot run: ds_config_125m.json:20: gradient_accumulation_steps",
                "  train_batch_size(256) is not train_micro_batch_size_per_gpu(16) * "
                "gradient_accumulation_steps(8) * data-parallel(1) = 128.",
                "  Remove gradient_accumulation_steps, or make the four numbers agree.",
            ],
        ),
        (
            {"zero_optimization": {"stage": 2, "sub_grup_size": 5}},
            "json_keys_are_known",
            [
                "error, cannot run: ds_config_125m.json:7: zero_optimization.sub_grup_size",
                "  DeepSpeed 0.19.8 has no key sub_grup_size in zero_optimization. Nearest: "
                "sub_group_size. Remove the key, or correct its name.",
            ],
        ),
        (
            {"train_bach_size": 5},
            "json_keys_are_known",
            [
                "error, costs a setting that does nothing: ds_config_125m.json:20: train_bach_size",
                "  DeepSpeed has no such key and ignores it. Nearest: train_batch_size.",
                "  Remove it, or correct its name.",
            ],
        ),
        (
            {"sparse_attention": {"mode": "fixed"}},
            "json_keys_are_known",
            [
                "error, cannot run: ds_config_125m.json:20: sparse_attention",
                "  DeepSpeed 0.19.8 rejects sparse_attention, because the feature was removed. Remove the "
                "key.",
            ],
        ),
        (
            {"fp16": {"enabled": False}, "bf16": {"enabled": True}},
            "formats_agree",
            [
                "error, cannot run: job.yaml:37: --fp16",
                "  bf16.enabled is true in ds_config_125m.json: DeepSpeed would train in a "
                "different format than the model's.",
                '  Write "fp16": {"enabled": true} there.',
            ],
        ),
        (
            {"bf16": {"enabled": True}},
            "formats_agree",
            [
                "error, cannot run: ds_config_125m.json:12: fp16.enabled",
                "  bf16.enabled is also true (ds_config_125m.json:21), but DeepSpeed refuses "
                "both together. Remove one of them.",
            ],
        ),
        (
            {"fp16": {"enabled": True}},
            "loss_scale_has_rules",
            [
                "warning, costs skipped steps at the start: ds_config_125m.json:11: fp16",
                "  fp16 is enabled without settings for the loss scale: DeepSpeed begins at "
                "2^16 and waits 1,000 steps before it doubles the scale, so the first steps "
                "overflow and are skipped.",
                '  Add "loss_scale": 0, "initial_scale_power": 11, "loss_scale_window": 500, "hysteresis": '
                "2, "
                '"min_loss_scale": 1.',
            ],
        ),
        (
            '{"train_batch_size": 256, // all ranks\n"zero_optimization": {"stage": 2,}, "fp16": '
            '{"enabled": true}}',
            "json_is_json",
            [
                "error, cannot run: ds_config_125m.json:1",
                "  a comment (//): Python's json refuses it.",
                "  Remove it.",
                "error, cannot run: ds_config_125m.json:2",
                "  a comma before }: Python's json refuses it.",
                "  Remove it.",
            ],
        ),
        (
            '\ufeff{"train_batch_size": 256}',
            "json_is_json",
            [
                "error, cannot run: ds_config_125m.json:1",
                "  a byte order mark: Python's json refuses it.",
                "  Remove it.",
            ],
        ),
        (
            {"gradient_clipping": "one", "optimizer": {"type": "AdanW"}, "aio": {"block_size": "1M"}},
            "json_keys_are_known",
            [
                "error, cannot run: ds_config_125m.json:9: gradient_clipping",
                "  gradient_clipping must be a number, not one.",
                "error, cannot run: ds_config_125m.json:24: aio.block_size",
                "  aio.block_size must be a whole number, not 1M.",
                "error, cannot run: ds_config_125m.json:21: optimizer.type",
                "  DeepSpeed 0.19.8 has no optimizer AdanW. Nearest: AdamW.",
            ],
        ),
        (
            '{"train_batch_size": 256,\n"train_batch_size": 256}',
            "json_is_json",
            [
                "warning, costs a key that has no effect: ds_config_125m.json:2",
                "  train_batch_size is written twice; the last value is used.",
                "  Remove one of the two.",
            ],
        ),
    ],
)
def test_the_json_of_a_job(changes, rule, expected, tmp_path):
    """A job's JSON is checked against the flags, the layout and DeepSpeed's keys."""
    assert lines(linted(tmp_path, changes=changes), rule) == expected


def test_states_that_do_not_fit_the_cluster(tmp_path):
    """If model states do not fit (175B on one node of 8 GPUs), the missing memory is reported."""
    (tmp_path / "a.sh").write_text(script_175b())
    findings = lint([tmp_path / "a.sh"], ["resources.gpu_type=A100-80GB"])
    assert lines(findings, "states_fit_the_cluster") == [
        "error, cannot run: 2.2 TiB too little: a.sh:20: --num-layers",
        "  96 layers of width 12,288 have 173.9B parameters. Their states, 18 bytes per "
        "parameter, take 2.8 TiB, but 8 A100-80GB together have 640.0 GiB.",
        (
            "  Use at least 37 A100-80GB, and more for activations; or offload states; or make "
            "the model smaller."
        ),
    ]


def test_offloading_without_its_optimizer(tmp_path):
    """Offloading with an optimizer that DeepSpeed refuses is reported."""
    changes = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    assert lines(linted(tmp_path, changes=changes), "offload_has_its_optimizer") == [
        "error, cannot run: ds_config_125m.json:7: zero_optimization.offload_optimizer",
        ("  device cpu without --cpu-optimizer: DeepSpeed refuses to offload an Adam other than its own."),
        "  Add --cpu-optimizer to the flags.",
    ]
    assert lines(linted(tmp_path, "--cpu-optimizer", changes=changes), "offload_has_its_optimizer") == []


def test_more_ranks_than_gpus(tmp_path):
    """More slotsPerWorker than the container's limit of GPUs is reported."""
    text = manifest("gpt-125m").replace("slotsPerWorker: 1", "slotsPerWorker: 4")
    (tmp_path / "job.yaml").write_text(text)
    (tmp_path / "ds_config_125m.json").write_text(json.dumps(deepspeed_json("125m")))
    assert lines(lint([tmp_path / "job.yaml"]), "slots_are_gpus") == [
        "error, cannot run: job.yaml:9: slotsPerWorker",
        "  4 ranks on each node, but the container requests 1 GPUs (job.yaml:77).",
        "  Make the two numbers equal.",
    ]


def test_an_image_of_another_time(tmp_path):
    """Flags that exist only in the 2026 version are reported for upstream's image of 2023-06."""
    old = (
        "--deepspeed",
        "--zero",
        "--train-t",
        "--no-pipe",
        "--data-impl",
        "--log-b",
        "--lr-decay-t",
        "--lr-w",
    )
    words = [word for word in flags_of("gpt-125m")[1:] if not word.startswith(old)]
    words = ["pretrain_gpt.py", *words, "--attention-backend=flash", "--norm-epsilon=1e-5"]
    (tmp_path / "job.yaml").write_text(manifest("gpt-125m", words))
    assert lines(lint([tmp_path / "job.yaml"]), "image_is_of_the_programs_time") == [
        "warning, costs a program that may not start in this image: job.yaml:58: image",
        "  the image is from 2023-06, but the flags are from megatron-lm@d98e8a64 "
        "(2026-08-22), 38 months newer than the image's PyTorch, CUDA and flash attention.",
        "  Use an image from 2026-08, or a version of the program from the image's date.",
    ]


def test_checkpoints_against_the_volume(tmp_path):
    """The size of all checkpoints, of which Megatron deletes none, is compared
    with the job's volume claim.
    """
    path = write(tmp_path, "gpt-1-3b-4xdp")
    claim = "kind: PersistentVolumeClaim\nmetadata: {name: megatron}\nspec:\n"
    claim += "  resources: {requests: {storage: 200Gi}}\n"
    path.write_text(f"{path.read_text()}---\n{claim}")
    assert lines(lint([path]), "checkpoints_fit_the_volume") == [
        "error, cannot run: 211.8 GiB too little: gpt-1-3b-4xdp.yaml:47: --save-interval",
        "  24,796 steps / save-interval(1,000) = 24 checkpoints of 17.2 GiB. The program "
        "keeps all of them, which takes 411.8 GiB, but the claim at gpt-1-3b-4xdp.yaml:96 has "
        "200.0 GiB.",
        "  Set --save-interval 2479 to keep ten checkpoints, or remove old checkpoints.",
    ]


def test_a_small_volume_is_not_filled_by_the_fix(tmp_path):
    path = write(tmp_path, "gpt-1-3b-4xdp")
    claim = "kind: PersistentVolumeClaim\nmetadata: {name: megatron}\nspec: {resources: {requests: {storage: "
    text = path.read_text()
    for room, fix in (
        ("50Gi", "Set --save-interval 12398 to keep 2 checkpoints, or remove old checkpoints."),
        ("9Gi", "Request a volume of more than 17.2 GiB, which is the size of one checkpoint."),
    ):
        path.write_text(f"{text}---\n{claim}{room}}}}}}}\n")
        (found,) = (one for one in lint([path]) if one.rule == "checkpoints_fit_the_volume")
        assert found.fix == fix


def test_flags_that_exclude_each_other(tmp_path):
    script = script_175b(nodes=16).replace("    --fp16\n", "    --fp16 --bf16 --lr-warmup-iters 2000\n")
    (tmp_path / "a.sh").write_text(script)
    assert lines(lint([tmp_path / "a.sh"]), "flags_go_together")[1::3] == [
        "  --fp16 with --bf16 (a.sh:37): the program refuses to start with both.",
        "  --lr-warmup-fraction .001 with --lr-warmup-iters 2000 (a.sh:37): the program refuses to start "
        "with both.",
    ]
    with pytest.raises(ConfigError, match=r"a\.sh:37: --fp16 with --bf16 \(a\.sh:37\): the program refuses"):
        import_files([tmp_path / "a.sh"], {"tokenizer.vocab_size": 50257})


def test_sizes_are_not_counted_while_flags_are_unknown(tmp_path):
    """Batch and layout sizes are not checked while a list of flags is unknown."""
    script = script_175b(nodes=16).replace("--global-batch-size 1536", "--global-batch-size 1500")
    assert "${PARALLEL[@]}" in script
    (tmp_path / "a.sh").write_text(script.replace("\nPARALLEL=(", "\n[ -f x ] && PARALLEL=("))
    rules = {finding.rule for finding in lint([tmp_path / "a.sh"])}
    assert not rules & {"batch_divides", "ranks_fill_the_machines"}


def test_a_value_that_is_none_is_named_once(tmp_path):
    """An invalid value is reported once, not again by the check of its field."""
    (tmp_path / "a.sh").write_text(script_175b(nodes=16).replace("--lr 6.0e-5", "--lr sixty"))
    assert [one.message for one in lint([tmp_path / "a.sh"]) if one.level == "error"][:1] == [
        "--lr = sixty: the value must be a number."
    ]


def test_context_ranks_hold_all_weights(tmp_path):
    """Context parallelism gets a note on the states that each rank holds. The distributed optimizer shards
    only the optimizer states, over data-parallel and context-parallel ranks.
    """
    parameters = 12 * 96 * 12288**2 // 128

    def note(nodes: int, flags: str = "") -> str:
        script = script_175b(nodes=nodes).replace(
            "    --clip-grad 1.0\n", f"    --clip-grad 1.0\n    --context-parallel-size 2 {flags}\n"
        )
        (tmp_path / "a.sh").write_text(script.replace("NUM_NODES=0", "NUM_NODES=$6"))
        return " ".join(lines(lint([tmp_path / "a.sh"]), "context_ranks_hold_all_weights"))

    whole = note(32)
    assert "a.sh:37: --context-parallel-size" in whole
    assert f"1/128 of the layers, about {amounts.size(18 * parameters)} at 18 bytes per parameter." in whole
    assert "add --use-distributed-optimizer" in whole
    for nodes, ranks, size in ((32, 2, 12 * parameters), (64, 4, 9 * parameters)):
        sharded = note(nodes, "--use-distributed-optimizer")
        assert f"1/{ranks} of the optimizer states" in sharded
        assert f"about {amounts.size(size)} at 6 + 12/{ranks} bytes per parameter." in sharded
        assert "--use-distributed-optimizer" not in sharded
    unknown = note(0, "--use-distributed-optimizer")
    assert f"about {amounts.size(6 * parameters)} at 6 bytes per parameter" in unknown
    assert "--use-distributed-optimizer" not in unknown
    assert note(32, "--use-torch-fsdp2") == ""


def test_context_ranks_share_the_sequence(tmp_path):
    """A sequence that cannot be cut into two chunks per context-parallel rank is an error."""
    script = script_175b(nodes=48).replace(
        "    --clip-grad 1.0\n", "    --clip-grad 1.0\n    --context-parallel-size 3\n"
    )
    assert "--seq-length 2048" in script
    (tmp_path / "a.sh").write_text(script)
    assert lines(lint([tmp_path / "a.sh"]), "ranks_share_the_sequence")[1:] == [
        "  2048 is not a multiple of 2 * context-parallel-size(3) = 6; nearest: 2046, 2052.",
        "  Set --seq-length to one of 2046, 2052.",
    ]
    (tmp_path / "a.sh").write_text(script.replace("parallel-size 3", "parallel-size 4"))
    assert lines(lint([tmp_path / "a.sh"]), "ranks_share_the_sequence") == []


WIDE = ["--tensor-model-parallel-size=16", "--pipeline-model-parallel-size=1", "--no-pipeline-parallel"]
SELECTIVE = ["--recompute-granularity=selective"]


@pytest.mark.parametrize(
    ("name", "flags", "changes", "job", "rule", "place"),
    [
        # A label of another size, states that do not fit, loaders without cores, a short warm-up.
        ("gpt-125m", [], {}, {"metadata_name": "gpt-13b"}, "name_says_its_size", "job.yaml:4"),
        ("gpt-13b-4xdp-4xpp", ["--pipeline-model-parallel-size=2"], {}, {}, "memory_fits", None),
        ("gpt-1-3b-4xdp-4xpp", [], {}, {}, "loaders_have_cores", "job.yaml:43"),
        ("gpt-125m", ["--lr-warmup-tokens=1000000"], {}, {}, "warmup_is_long_enough", "job.yaml:59"),
        ("gpt-125m", ["--lr-warmup-tokens=3000000000"], {}, {}, "warmup_ends_before_decay", "job.yaml:59"),
        # A fixed loss scale, an unusual learning rate, tensor ranks across nodes, a mistaken unit, the
        # bubble.
        ("gpt-125m", [], {"fp16": {"enabled": True, "loss_scale": 1024}}, {}, "fp16_scale_can_move", None),
        ("gpt-125m", ["--lr=0.1"], {}, {}, "learning_rate_suits_size", "job.yaml:59"),
        ("gpt-1-3b-4xdp-4xpp", WIDE, {}, {}, "tensor_ranks_share_a_machine", "job.yaml:60"),
        ("gpt-125m", ["--train-tokens=2500"], {}, {}, "training_is_longer_than_a_step", "job.yaml:59"),
        ("gpt-13b-4xdp-8xpp", [], {}, {}, "bubble_is_small", None),
        ("gpt-13b-4xdp-4xpp", SELECTIVE, {}, {}, "full_saves_more_than_selective", "job.yaml:59"),
        ("gpt-125m", [], {}, {"unit": ""}, "host_memory_is_in_bytes", "job.yaml:73"),
    ],
)
def test_what_the_plan_finds_is_said_of_the_file(name, flags, changes, job, rule, place, tmp_path):
    """If the job can be read as a run, the plan's findings are reported at the place of the flag."""
    without = ["--checkpoint-activations"] if flags == SELECTIVE else []
    found = linted(tmp_path, *flags, name=name, without=without, changes=changes, **job)
    places = [finding.place for finding in found if finding.rule == rule]
    assert places and place in (None, places[0])


def test_the_dearest_come_first(tmp_path):
    """Findings that prevent the run come first, then those that cost hours or bytes, then the others."""
    findings = lint([write(tmp_path, "gpt-1-3b-4xdp-4xpp")], [GPU])
    assert [finding.cost.fatal for finding in findings] == sorted(
        (one.cost.fatal for one in findings), reverse=True
    )
    assert findings[0].rule == "zero_goes_with_the_pipeline" and findings[-1].level == "note"


def test_a_json_alone_is_checked(tmp_path):
    """A JSON without a job is checked only by the rules about JSON."""
    path = tmp_path / "ds_config.json"
    path.write_text('{\n  "zero_optimization": {"stage": 7},\n  "train_bach_size": 5\n}')
    assert [finding.place for finding in lint([path])] == ["ds_config.json:2", "ds_config.json:3"]
    path.write_text(
        '{"train_batch_size": 512, "train_micro_batch_size_per_gpu": 5, "gradient_accumulation_steps": 16}'
    )
    assert lines(lint([path]), "json_batch_agrees")[1:] == [
        "  512 is not a multiple of train_micro_batch_size_per_gpu(5) * "
        "gradient_accumulation_steps(16) = 80, "
        "whatever the number of GPUs.",
        "  Set train_batch_size to one of 480, 560.",
    ]
