"""Bad model folders are rejected with one sentence that names the file and the fix; good ones are read."""

import json
import pickle

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from nbtrain.base.errors import CheckpointError
from nbtrain.config.load import load
from nbtrain.pretrained.families import describe
from nbtrain.pretrained.model import open_model
from nbtrain.pretrained.tensors import Sizes, own_tensors
from nbtrain.pretrained.values import check_values
from nbtrain.pretrained.written import own_description
from tests.pretrained.made import PickledCode
from tests.pretrained.small import write_small_folder

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A complete folder; names in messages are relative to its parent."""
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    write_small_folder(tmp_path / "m")
    return tmp_path / "m"


def change_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        if value is ...:
            del config[key]
        else:
            config[key] = value
    path.write_text(json.dumps(config))


def change_tensors(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def split(folder, where=None):
    """Split the folder's tensors into two files with an index; `where` changes the index's weight map."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    files = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    placed = {}
    for file, own in files.items():
        save_file({name: tensors[name] for name in own}, folder / file)
        placed |= dict.fromkeys(own, file)
    if where is not None:
        where(placed)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def message(folder):
    """Return the error message about a folder after reading all its numbers, as an import does."""
    with pytest.raises(CheckpointError) as refused:
        for _ in check_values(open_model(folder)):
            pass
    return str(refused.value)


def test_a_whole_folder_is_read(folder):
    """In a complete folder, every tensor is used, and the fields of our model are read from config.json."""
    model = open_model(folder)
    assert sum(check_values(model)) == model.folder.bytes == 4 * model.count
    assert model.described.fields["rotary_base"] == 10000.0
    assert model.described.fields["norm_epsilon"] == 1e-6
    assert model.map.shapes["layers.1.attention.query_key_value.weight"] == (24, 8)
    split(folder)
    assert open_model(folder).count == model.count


def test_the_hash_names_the_folder(folder):
    """A folder's hash depends on its headers and config.json, not on its location."""
    before = open_model(folder).folder.sha256
    assert open_model(folder).folder.sha256 == before
    change_config(folder, rms_norm_eps=1e-5)
    assert open_model(folder).folder.sha256 != before


def test_a_missing_tensor_is_named(folder):
    change_tensors(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    assert message(folder) == (
        "m: model.layers.1.mlp.up_proj.weight is missing. The model in its config.json has 21 "
        "tensors, and missing tensors would be random numbers. Download the folder again."
    )
    change_config(folder, num_hidden_layers=3)
    assert "10 tensors are missing (the first is model.layers.1.mlp.up_proj.weight)" in message(folder)


def test_an_extra_tensor_is_named(folder):
    change_tensors(
        folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": np.ones(8)})
    )
    assert message(folder) == (
        "m: model.layers.0.self_attn.q_proj.bias does not belong to the model in its config.json, "
        "and would be lost. Check that config.json belongs to these weights."
    )


def test_buffers_of_older_files_are_passed_over(folder):
    change_tensors(
        folder,
        lambda tensors: tensors.update(
            {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)}
        ),
    )
    assert len(open_model(folder).tensors) == 21


def test_a_wrong_shape_is_named(folder):
    change_config(folder, intermediate_size=16)
    assert message(folder) == (
        "m: model.layers.0.mlp.gate_proj.weight has the shape [12, 8], but must have [16, 8] "
        "according to its config.json. Download the folder again."
    )


@pytest.mark.parametrize(
    "where, said",
    [
        (
            lambda placed: placed.update({"model.norm.weight": "a.safetensors"}),
            f"m/{INDEX}: the index says that model.norm.weight is in a.safetensors, but a.safetensors does "
            "not contain this tensor. Download the folder again.",
        ),
        (
            lambda placed: placed.pop("model.norm.weight"),
            f"m/{INDEX}: b.safetensors contains model.norm.weight, but the index does not list this "
            "tensor. Download the "
            "folder again.",
        ),
        (
            lambda placed: placed.update({"model.norm.weight": "c.safetensors"}),
            f"m: of the 3 files in {INDEX}, c.safetensors is missing. Download the folder again.",
        ),
        (
            lambda placed: placed.update({"model.norm.weight": "../c.safetensors"}),
            f"m/{INDEX} names the file '../c.safetensors', which is not in the same folder. Download the "
            "folder "
            "again.",
        ),
        (
            lambda placed: placed.update({"model.norm.weight": "n" * 256}),
            f"m/{INDEX} names the file '{'n' * 76}.... The name has 256 bytes, but a file name can have at "
            "most 255. Download the folder again.",
        ),
    ],
)
def test_a_lying_index_is_caught(folder, where, said):
    split(folder, where)
    assert message(folder) == said


def test_one_file_beside_an_index_of_others_is_refused(folder):
    """A model.safetensors next to an index that names other files is rejected. Calling save_pretrained twice
    can leave such a folder.
    """
    whole = (folder / WEIGHTS).read_bytes()
    split(folder)
    (folder / WEIGHTS).write_bytes(whole)
    said = (
        f"m contains {WEIGHTS} and also {INDEX}, which names other files. transformers reads only "
        f"{WEIGHTS}, and the other files may be another model. Remove {WEIGHTS}, or remove the index and "
        "the files that it names."
    )
    assert message(folder) == said
    (folder / "a.safetensors").unlink()
    assert message(folder) == said
    placed = dict.fromkeys(load_file(folder / WEIGHTS), WEIGHTS)
    (folder / INDEX).write_text(json.dumps({"weight_map": placed}))
    assert len(open_model(folder).tensors) == 21


def test_a_tensor_with_and_without_gpt2_s_prefix_is_refused(folder):
    config = {"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 20}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: np.ones((20, 8), np.float32) for name in ("wte.weight", "transformer.wte.weight")}
    save_file(tensors, folder / WEIGHTS)
    assert message(folder) == (
        "m: transformer.wte.weight and wte.weight are two names for the same tensor, so it is not clear "
        "which tensor to use. Remove one of the two tensors, or get another copy of the model."
    )


WRAPPED = [
    lambda name: name.removeprefix("model."),
    lambda name: f"_orig_mod.{name}",
    lambda name: f"module._orig_mod.{name}",
    lambda name: name.replace("layers.0.", "layers.0._orig_mod."),
    lambda name: name.replace("layers.0.", "layers.0._fsdp_wrapped_module._checkpoint_wrapped_module."),
    lambda name: f"base_model.model.{name}".replace("q_proj.", "q_proj.base_layer."),
    lambda name: f"transformer.{name.removeprefix('model.')}",
    lambda name: f"actor.net.{name}",
    lambda name: f"model.{name}",
    # Only for some tensors: transformers itself adds and omits these roots.
    lambda name: name.removeprefix("model.") if "norm" in name else name,
]


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("wrapped", WRAPPED, ids=range(len(WRAPPED)))
def test_a_wrapped_model_is_read(folder, wrapped, is_tied):
    """Models whose parameter names were prefixed by torch.compile, DDP, FSDP, peft and others are read
    without changes.
    """
    if not is_tied:
        output = load_file(folder / WEIGHTS)["model.embed_tokens.weight"] + 1
        change_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": output}))
        change_config(folder, tie_word_embeddings=False)
    plain = open_model(folder).tensors
    before = {name: load_file(folder / WEIGHTS)[tensor.name].tobytes() for name, tensor in plain.items()}
    save_file({wrapped(name): value for name, value in load_file(folder / WEIGHTS).items()}, folder / WEIGHTS)
    model = open_model(folder)
    for _ in check_values(model):
        pass
    stored = load_file(folder / WEIGHTS)
    assert {name: stored[tensor.name].tobytes() for name, tensor in model.tensors.items()} == before


def test_names_that_mean_nothing_here_are_shown(folder):
    """Tensors with unknown names are listed in the message and are never used as parts of the model."""
    one = np.ones(8, np.float32)
    change_tensors(folder, lambda tensors: tensors.update({"vision.norm.weight": one}))
    assert message(folder).startswith("m: vision.norm.weight does not belong to the model")
    change_tensors(folder, lambda tensors: tensors.pop("model.norm.weight"))
    assert message(folder).startswith("m: model.norm.weight is missing.")
    assert "Tensors with unknown names: vision.norm.weight. Download" in message(folder)


def test_adapters_beside_their_base_are_to_be_merged(folder):
    name = "model.layers.0.self_attn.q_proj.lora_A.weight"
    change_tensors(folder, lambda tensors: tensors.update({name: np.ones((2, 8), np.float32)}))
    assert f"contains unmerged adapters in addition to the base weights ({name}). Merge them once" in message(
        folder
    )


def test_weights_that_zero_3_left_empty(folder):
    """A model that was saved under ZeRO 3 without gathering has parameter names but no numbers, and is
    rejected.
    """
    change_tensors(folder, lambda tensors: tensors.update({name: np.ones(0, np.float32) for name in tensors}))
    assert "is empty, because the model was saved under ZeRO 3" in message(folder)


def test_half_a_download_is_caught(folder):
    """A truncated file is detected by the sizes in its header, wherever it was cut off."""
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:-1000])
    assert message(folder) == (
        f"m/{WEIGHTS}: is truncated: the file has {(len(whole) - 1000) / 1024:.1f} KiB, but according to "
        f"its header it must have {len(whole) / 1024:.1f} KiB. Download or copy it again."
    )
    (folder / WEIGHTS).write_bytes(whole[:100])
    assert "is truncated: the file has 100 B, but its header alone has" in message(folder)
    (folder / WEIGHTS).write_bytes(whole + b"\0\0")
    assert "is damaged: 2 bytes follow its last tensor" in message(folder)
    (folder / WEIGHTS).write_bytes(b"")
    assert "is not a safetensors file" in message(folder)
    (folder / WEIGHTS).write_bytes(b"no head at all")
    assert "is not a safetensors file: it does not start with the length of a header" in message(folder)


def test_a_pickle_is_not_read(folder):
    """A pickle is rejected without executing its code."""
    (folder / WEIGHTS).unlink()
    ran = folder / "ran"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(PickledCode(str(ran))))
    assert message(folder) == (
        "m: the weights are in a pickle (pytorch_model.bin), which can run code when it is loaded, so"
        " nbtrain does not read it. Get the model's safetensors files, or, if you trust the pickle, "
        "convert it with transformers: "
        "AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)."
    )
    assert not ran.exists()


def test_nan_weights_are_caught(folder):
    def spoil(tensors):
        tensors["model.layers.0.mlp.down_proj.weight"][3, 5] = np.nan

    change_tensors(folder, spoil)
    assert message(folder) == (
        f"m/{WEIGHTS}: model.layers.0.mlp.down_proj.weight contains NaN or Inf, so a run that starts from "
        "it would not have a finite loss. Get another copy of the model."
    )


def test_a_format_that_masters_cannot_hold_is_refused(folder):
    def widen(tensors):
        tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float64)

    change_tensors(folder, widen)
    assert message(folder) == (
        f"m/{WEIGHTS}: model.norm.weight has the unsupported number format F64. Get the model in a "
        "supported format: F32, BF16, F16."
    )


def test_a_tied_output_must_be_the_word_embedding(folder):
    """A separate output matrix in a tied model is accepted only if it equals the word embedding, because
    programs would otherwise read different models.
    """
    change_config(folder, tie_word_embeddings=True)
    assert message(folder) == (
        f"m/{WEIGHTS}: lm_head.weight differs from the word embedding, but according to config.json they "
        "are tied. If the output layer has its own matrix, set tie_word_embeddings to false in config.json."
    )

    def tie(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    change_tensors(folder, tie)
    model = open_model(folder)
    sum(check_values(model))
    assert "output_layer.weight" not in model.map.shapes


CONFIGS = [
    (
        {"model_type": "mamba"},
        "m/config.json: model_type = mamba is not supported. Supported are",
    ),
    (
        {"model_type": "deepseek_v3", "auto_map": {"AutoModel": "modeling_deepseek.Model"}},
        "The code in the folder is not run.",
    ),
    (
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}},
        "m/config.json: rope_parameters.rope_type = 'longrope': this kind of rotary scaling is not "
        "supported; supported are linear, llama3 and yarn.",
    ),
    (
        {"rope_parameters": ..., "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "m/config.json: rope_scaling.type = 'dynamic': this kind of rotary scaling is not supported; "
        "supported are linear, llama3 and yarn.",
    ),
    *(
        (
            {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, **keys}},
            f"m/config.json: rope_parameters.{key} = {keys[key]!r}: this key is not supported for {kind} "
            "rotary scaling.",
        )
        for kind, key, keys in (
            ("yarn", "attn_factor", {"attn_factor": 0.8}),
            ("yarn", "mrope_section", {"mrope_section": [2, 3]}),
            ("linear", "attention_factor", {"attention_factor": 1.2}),
            ("default", "factor", {"factor": 2.0}),
        )
    ),
    (
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "mscale": 0.7}},
        "m/config.json: rope_parameters.mscale = 0.7: is not supported for yarn; queries and keys are "
        "scaled by 0.1 ln(factor) + 1",
    ),
    (
        {"partial_rotary_factor": 0.5},
        "m/config.json: partial_rotary_factor = 0.5: must be 1, because nbtrain rotates whole heads in "
        "this family",
    ),
    (
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "m/config.json: rope_scaling = {'type': 'linear', 'factor': 2.0}: gives other rotary angles than "
        "rope_parameters, and programs differ in which key they use; keep only the key that the model was "
        "trained",
    ),
    (
        {"rope_scaling": {"type": "default", "rope_theta": 3e4}},
        "m/config.json: rope_scaling = {'type': 'default', 'rope_theta': 30000.0}: gives other rotary angles",
    ),
    (
        {"model_type": "qwen3", "layer_types": ["full_attention"]},
        "m/config.json: layer_types = ['full_attention']: must be a list with full_attention or "
        "sliding_attention for",
    ),
    (
        {"model_type": "qwen3", "layer_types": ["chunked_attention", [1]]},
        "m/config.json: layer_types = ['chunked_attention', [1]]: must be a list with full_attention or",
    ),
    (
        {"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]},
        "m/config.json: layer_types = ['full_attention', 'sliding_attention']: selects sliding windows, "
        "which also need use_sliding_window: true and a value of sliding_window.",
    ),
    (
        {"hidden_act": "gelu"},
        "m/config.json: hidden_act = 'gelu': models of this family must have silu, the gate of",
    ),
    (
        {"attention_bias": True},
        "m/config.json: attention_bias = True: must equal mlp_bias = false, because",
    ),
    (
        {"num_key_value_heads": 3},
        "m/config.json: num_key_value_heads = 3: must divide num_attention_heads = 2.",
    ),
    (
        {"model_type": "mistral", "num_key_value_heads": ...},
        "m/config.json: num_key_value_heads = None: the default for Mistral models is 8, which must divide "
        "num_attention_heads = 2.",
    ),
    (
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 500.0}}},
        "m/config.json: rope_parameters.full_attention = {'rope_type': 'default', 'rope_theta': 500.0}: "
        "applies to one type of layer, but nbtrain uses the same rotary positions in all layers.",
    ),
    (
        {"rope_parameters": {"rope_type": "yarn", "factor": 0}},
        "m/config.json: rope_parameters.factor = 0: must be at least 1.",
    ),
    (
        {"rope_parameters": {"rope_type": "linear", "factor": 0.5}},
        "m/config.json: rope_parameters.factor = 0.5: must be at least 1.",
    ),
    (
        {"rope_theta": 10**400},
        f"m/config.json: rope_theta = 1{'0' * 76}...: must be at most 1.8e+308.",
    ),
    (
        {
            "rope_parameters": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8},
            "original_max_position_embeddings": 4,
        },
        "m/config.json: original_max_position_embeddings = 4: differs from "
        "rope_parameters.original_max_position_embeddings = 8, and programs differ in which key they use; "
        "keep only the key that the model was trained with.",
    ),
    (
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": -1},
        "m/config.json: max_window_layers = -1: must be a whole number of at least 0.",
    ),
    *(
        (
            {"model_type": "smollm3", "no_rope_layers": flags},
            f"m/config.json: no_rope_layers = {flags}: must be a list with 0 or 1 for each of 2 layers.",
        )
        for flags in ([[1], [0]], [{}, 0], [1.0, 0.0], [2, 0])
    ),
    (
        {"model_type": "qwen2", "use_sliding_window": True, "num_hidden_layers": 10**12},
        "m/config.json: num_hidden_layers = 1000000000000: must be at most 100,000.",
    ),
    ({"hidden_size": "8"}, "m/config.json: hidden_size = '8': must be a whole number of at least 1."),
    ({"hidden_size": ...}, "m/config.json: hidden_size is missing, but required."),
    (
        {"quantization_config": {"bits": 4}},
        "m/config.json: quantization_config = {'bits': 4}: quantized weights are not supported",
    ),
]


@pytest.mark.parametrize("changes, said", CONFIGS, ids=[list(changes)[-1] for changes, _ in CONFIGS])
def test_what_a_model_cannot_be_is_refused_with_its_key(folder, changes, said):
    change_config(folder, **changes)
    assert said in message(folder)


@pytest.mark.parametrize(
    ("family", "groups"), [("llama", None), ("mistral", 8), ("qwen2", 32), ("qwen3", 32), ("smollm3", 4)]
)
def test_groups_of_queries_that_are_not_said_are_those_of_transformers(tmp_path, family, groups):
    """If the number of key and value heads is missing, transformers' default applies; null means one for each
    attention head.
    """
    said = {"model_type": family, "hidden_size": 64, "num_attention_heads": 64, "intermediate_size": 8}
    said |= {"num_hidden_layers": 1, "max_position_embeddings": 8, "vocab_size": 9}
    assert describe(said, tmp_path).fields.get("num_query_groups") == groups
    assert "num_query_groups" not in describe({**said, "num_key_value_heads": None}, tmp_path).fields


def test_a_consolidated_file_that_is_damaged_speaks_of_its_metadata(tmp_path, monkeypatch):
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    config, path = load("llama-tiny", check=False), tmp_path / "own.safetensors"
    described = {"nbtrain": json.dumps(own_description(config, 8, 1))}
    shapes = own_tensors(Sizes.of(config.model, 8)).tensors
    count, name = f"{len(shapes):,}", "word_embeddings.weight"
    whole = {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}
    rest = {one: value for one, value in whole.items() if one != name}
    for tensors, said in (
        (
            rest,
            f"{name} is missing. The model in its metadata has {count} tensors, and missing tensors would "
            "be random numbers.",
        ),
        (
            {**whole, "other": whole[name]},
            "other does not belong to the model in its metadata, and would be lost.",
        ),
        (
            {**whole, name: whole[name][:3]},
            f"{name} has the shape [3, 256], but must have [8, 256] according to its metadata.",
        ),
    ):
        save_file(tensors, path, described)
        assert message(path) == f"own.safetensors: {said} Copy the file again."


def test_paths_that_are_no_folder(folder, tmp_path):
    assert message(folder / "config.json") == (
        "m/config.json is a file. Pass the folder with config.json and the safetensors files, or a "
        ".safetensors file that `nbtrain export --to consolidated` has written."
    )
    assert message(tmp_path / "none") == (
        "none: no such folder. Pass a folder with config.json and safetensors files."
    )
    assert "the file's metadata does not describe the model" in message(folder / WEIGHTS)
    for described in ("[" * 100_000, "{"):
        save_file({}, folder / "own.safetensors", {"nbtrain": described})
        assert "the file's metadata does not describe the model" in message(folder / "own.safetensors")
    (folder / "config.json").write_text("[1]")
    assert message(folder) == "m/config.json is not a JSON object. Download the folder again."
    (folder / "config.json").write_text("{")
    assert message(folder).startswith("m/config.json: cannot be read as JSON: ")
    (folder / "config.json").write_text("[" * 100_000)
    assert message(folder).startswith("m/config.json: cannot be read as JSON: maximum recursion depth")
    assert message(folder).endswith(". Download the folder again.")
    (folder / "config.json").unlink()
    assert "m has no config.json" in message(folder)


def test_the_earlier_form_of_rotary_positions_is_read(folder):
    """The older keys rope_theta and rope_scaling at the top level are read, also next to rope_parameters with
    the same values.
    """
    scaling = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    change_config(folder, rope_parameters=..., rope_theta=5e5, rope_scaling=scaling)
    fields = open_model(folder).described.fields
    assert fields["rotary_base"] == 5e5
    assert fields["rope_scaling"] == {
        "kind": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    both = {**scaling, "rope_type": "llama3", "rope_theta": 5e5}
    change_config(folder, rope_parameters=both)
    assert open_model(folder).described.fields == fields


def test_keys_of_rotary_positions_that_change_nothing(folder):
    """Keys of yarn that change nothing at their default values, such as vLLM's attn_factor, are accepted."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}
    change_config(folder, rope_parameters=yarn)
    plain = open_model(folder).described.fields
    more = {"attn_factor": 1.0, "extrapolation_factor": 1, "finetuned": True, "short_factor": None}
    change_config(folder, rope_parameters={**yarn, **more})
    assert open_model(folder).described.fields == plain


def test_yarn_without_an_original_length_takes_the_model_s(folder):
    """Without an original length, yarn uses the model's length, as transformers does."""
    change_config(folder, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0})
    assert open_model(folder).described.fields["rope_scaling"] == {
        "kind": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
