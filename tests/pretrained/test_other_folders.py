"""Folders in the formats of other programs are recognized, and the message says how to convert them."""

import json

import pytest

from nbtrain.base.errors import CheckpointError
from nbtrain.pretrained.folder import open_folder
from nbtrain.pretrained.peft_files import read_settings

ADAPTERS = {"adapter_config.json": {"base_model_name_or_path": "org/base"}, "adapter_model.safetensors": ""}
ZERO_3 = ("zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            ADAPTERS,
            "is a folder of peft adapters without their base model (org/base): set init_from to the base",
        ),
        ({"config.json": {}, **ADAPTERS}, "is a folder of peft adapters"),
        (
            {f"default/{name}": value for name, value in ADAPTERS.items()},
            "set lora.init_from to m/default",
        ),
        (
            {"config.json": {}, "latest": "global_step5", **{f"global_step5/{name}": "" for name in ZERO_3}},
            "is a DeepSpeed ZeRO 3 checkpoint, whose weights are sharded across 2 ranks. On",
        ),
        ({"bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt": ""}, "is a DeepSpeed checkpoint. `nbtrain"),
        (
            {"pytorch_model_fsdp_0/__0_0.distcp": ""},
            "`accelerate merge-weights m/pytorch_model_fsdp_0 JOINED`",
        ),
        (
            {"config.json": {}, "__0_0.distcp": "", ".metadata": ""},
            "is a sharded torch.distributed checkpoint",
        ),
        (
            {"checkpoint-500/config.json": {}, "checkpoint-1500/x": "", "trainer_state.json": {}},
            "a Trainer's output folder, whose models are in checkpoint-500 to checkpoint-1500: pass one of "
            "these folders, such as m/checkpoint-1500.",
        ),
        ({"checkpoint-7/adapter_config.json": {}}, "whose model is in checkpoint-7: pass m/checkpoint-7."),
        ({"snapshots/abc/config.json": {}, "refs/main": "abc"}, "Hub's cache: pass m/snapshots/abc."),
        (
            {"latest_checkpointed_iteration.txt": "5"},
            "is a Megatron checkpoint: run `nbtrain import-model m NAME`",
        ),
        ({"run.json": {}}, "is in an nbtrain run: set init_from to m"),
        (
            {"model_world_size_2_rank_0.pt": "", "model_world_size_2_rank_1.pt": ""},
            "an FSDP checkpoint with a file for each rank (2 files)",
        ),
        ({"config.json": {}, "model.gguf": ""}, "llama.cpp (GGUF) weights (model.gguf)"),
        ({"config.json": {}, "tf_model.h5": ""}, "TensorFlow weights (tf_model.h5)"),
        ({"notes.txt": ""}, "has no config.json, which describes the model"),
        ({"config.json": {}, "pytorch_model.bin": ""}, "the weights are in a pickle (pytorch_model.bin)"),
    ],
)
def test_a_folder_that_is_no_model_is_named(files, said, tmp_path, monkeypatch):
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    write(tmp_path / "m", files)
    with pytest.raises(CheckpointError) as refused:
        open_folder(tmp_path / "m")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"checkpoint-7/adapter_config.json": {}},
            "It is a Trainer's output folder, whose",
        ),
        ({"config.json": {}, "model.safetensors": ""}, "It contains a complete model: set init_from to it."),
        ({"adapter_config.json": {}, "adapter_model.bin": ""}, "adapter_model.bin is a pickle"),
        ({}, "has no adapter_config.json, so it is not an adapter folder that peft has written."),
    ],
)
def test_a_folder_that_is_no_adapters_is_named(files, said, tmp_path, monkeypatch):
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    write(tmp_path / "m", files)
    with pytest.raises(CheckpointError) as refused:
        read_settings(tmp_path / "m")
    assert said in str(refused.value)


def write(folder, files):
    folder.mkdir()
    for name, value in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))
