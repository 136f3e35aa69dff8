"""Setting names of other training programs; the message suggests nbtrain's field."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.config.names.keys import field_keys
from nbtrain.config.names.other_names import FIELD_OF, INSTEAD, other_name


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("nccl_timeout", "a run has no key `nccl_timeout`. Nearest: parallel.process_group_timeout_seconds."),
        ("precision.fp8_format", "precision has no key `fp8_format`. Nearest: precision.fp8."),
        (
            "parallel.sp_size",
            "parallel has no key `sp_size`. Nearest: parallel.ds_sequence_parallel_size (Ulysses).",
        ),
        (
            "parallel.cp_size",
            "parallel has no key `cp_size`. Nearest: parallel.context_parallel_size.",
        ),
        (
            "checkpoint.save_dir",
            "checkpoint has no key `save_dir`. nbtrain writes a run to $NBTRAIN_OUTPUT/<name>: set `name`, "
            "$NBTRAIN_OUTPUT and checkpoint.*.",
        ),
        (
            "parallel.tensor-model-parallel-size",
            "parallel has no key `tensor-model-parallel-size`. Nearest: parallel.tensor_parallel_size.",
        ),
        ("optimizer.learning_rate", "optimizer has no key `learning_rate`. Nearest: lr_schedule.lr."),
        (
            "per_device_train_batch_size",
            "a run has no key `per_device_train_batch_size`. Nearest: batch.micro_batch_size.",
        ),
        (
            "lr_schedule.warmup_steps",
            "lr_schedule has no key `warmup_steps`. Nearest: lr_schedule.lr_warmup_steps.",
        ),
        (
            "parallel.recompute",
            "parallel has no key `recompute`. Nearest: parallel.activation_checkpointing.granularity.",
        ),
        ("model.n_layer", "model has no key `n_layer`. Nearest: model.num_layers."),
        (
            "num_train_epochs",
            "a run has no key `num_train_epochs`. Set the training length with batch.train_tokens; the plan "
            "says how many epochs this is.",
        ),
        # A typing error in one of our own names is still answered by spelling.
        ("optimizer.weight_decy", "optimizer has no key `weight_decy`. Nearest: optimizer.weight_decay."),
        ("model.zero_stage", "model has no key `zero_stage`. Nearest: parallel.zero_stage."),
    ],
)
def test_a_name_of_another_program_is_answered_with_ours(typed, answer):
    with pytest.raises(ConfigError) as caught:
        load("gpt-125m", {typed: 1})
    assert str(caught.value) == f"override {typed}=1: {answer}"


def test_every_row_leads_to_a_field_and_names_no_field():
    """Each entry refers to an existing field, and no other program's name is a field of that section."""
    known = set(field_keys())
    assert set(FIELD_OF.values()) <= known
    assert not {f"{FIELD_OF[name].rpartition('.')[0]}.{name}" for name in FIELD_OF} & known
    assert not set(FIELD_OF) & set(INSTEAD)
    assert len(FIELD_OF) + len(INSTEAD) > 200


def test_dashes_and_capitals_do_not_matter():
    assert other_name("--Num-Layers-Of-Mine") == ""
    assert other_name("--SEQ-LEN") == other_name("seq_len") == " Nearest: model.seq_length."
