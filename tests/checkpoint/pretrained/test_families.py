"""Files of each model family, as transformers writes them, are read exactly and written back unchanged."""

import json

import pytest
import torch

from nbtrain.checkpoint.pretrained.compare import compare
from nbtrain.checkpoint.pretrained.export import write_folder
from nbtrain.checkpoint.pretrained.full_parameters import FullParameters
from nbtrain.checkpoint.pretrained.plain import PlainModel
from nbtrain.checkpoint.weights.folder_weights import FolderWeights
from nbtrain.config.load import load
from nbtrain.config.schema import ModelConfig
from nbtrain.model.gpt import build_model
from nbtrain.pretrained.families import describe
from nbtrain.pretrained.model import open_model
from nbtrain.pretrained.start import fit
from nbtrain.pretrained.values import check_values
from nbtrain.pretrained.written import config_json, family_of
from tests.pretrained import made
from tests.train import launch

pytestmark = pytest.mark.slow


def run_of(folder, tmp_path, **changes):
    """Return a run that starts from a model folder, in fp32."""
    model = open_model(folder)
    source = tmp_path / "tiny.yaml"
    source.write_text(launch.TINY)
    fields = {f"model.{key}": value for key, value in model.described.fields.items()}
    sizes = {"tokenizer.vocab_size": model.described.vocab_size, "init_from": str(folder)}
    return model, load(str(source), {**fields, **sizes, **changes})


def tokens_of(vocab_size):
    return torch.randint(vocab_size, (2, 36), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", made.KINDS)
def test_a_family_is_read_and_written_exactly(kind, tmp_path):
    """A family's model has transformers' logits within 1e-5 in fp32, and is written back byte for byte.

    The config.json that we write gives the same logits in transformers.
    """
    pytest.importorskip("transformers")
    folder, again = tmp_path / "theirs", tmp_path / "ours"
    theirs = made.write_model(folder, kind)
    model, config = run_of(folder, tmp_path, **{"model.seq_length": 36})
    assert sum(check_values(model)) == model.folder.bytes
    assert fit(model, config) == ([], [])
    vocab_size = model.described.vocab_size
    read, ours = FolderWeights(model, vocab_size), build_model(config).eval()
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            found = read.read(name, rows=parameter.shape[0])
            parameter.view(-1)[: len(found)].copy_(found)
        tokens = tokens_of(vocab_size)
        expected = theirs(tokens).logits
        # Relative to the largest logit: on any CPU both are up to 2e-5 from the fp64 logits, which are at
        # most 6.
        assert (ours(tokens)[..., :vocab_size] - expected).abs().max() < 1e-5 * expected.abs().max()
    assert family_of(config).model_type == made.KINDS[kind][0] or kind == "llama-odd"
    again.mkdir()
    ids = {key: model.folder.config.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (again / "config.json").write_text(json.dumps(config_json(config, "fp32", ids, vocab_size)))
    weights = FullParameters(read)
    list(write_folder(weights, config, again, 10**9))
    assert list(compare(PlainModel(again), weights, config))[-1] < 1e-5
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    written, told = type(theirs).from_pretrained(again, output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
    with torch.no_grad():
        assert torch.equal(written(tokens).logits, expected)
    # config.json has the same meaning again.
    described = open_model(again).described
    assert described.fields == model.described.fields and described.vocab_size == vocab_size
    _same_config(written.config, theirs.config)


def _same_config(ours, theirs):
    """Assert that all keys are equal, except those without effect on the computation."""
    said = {
        "architectures",
        "_name_or_path",
        "initializer_range",
        "transformers_version",
        "dtype",
        "use_cache",
    }
    ours, theirs = ours.to_dict(), theirs.to_dict()
    differing = {key for key in theirs if ours.get(key) != theirs[key]} - said
    kinds = ours.get("layer_types", [])
    if len(set(kinds)) > 1:
        # vLLM's Qwen2 and Qwen3 refuse a model with windows in some layers because of this number alone.
        assert ours["max_window_layers"] == kinds.index("sliding_attention") < len(kinds)
    # Without a window its layers are not read, and 4h is written as a number.
    assert differing <= {"max_window_layers", "n_inner", "no_rope_layer_interval"}, differing


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_shards_in_16_bits_are_written_as_they_were(dtype, tmp_path):
    """16-bit shards are written back unchanged, with transformers' index and order of tensors."""
    pytest.importorskip("transformers")
    folder, again = tmp_path / "theirs", tmp_path / "ours"
    made.write_model(folder, "qwen3", dtype, max_shard_size=40_000)
    model, config = run_of(folder, tmp_path)
    again.mkdir()
    weights = FullParameters(FolderWeights(model, model.described.vocab_size))
    assert weights.dtype == dtype
    list(write_folder(weights, config, again, 40_000))
    names = sorted(path.name for path in folder.glob("model*"))
    assert len(names) > 4 and names == sorted(path.name for path in again.iterdir())
    for name in names:
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_gpt2_without_its_prefix_and_with_masks(tmp_path):
    """The original GPT-2 files are read: names such as `h.0...` have no prefix, and causal masks are among
    the tensors.
    """
    pytest.importorskip("transformers")
    from safetensors.torch import load_file, save_file

    made.write_model(tmp_path, "gpt2")
    path = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    tensors |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 40, 40) for layer in range(4)}
    save_file(tensors, path)
    model = open_model(tmp_path)
    read = FolderWeights(model, made.VOCAB_SIZE).read("layers.2.mlp.dense_4h_to_h.weight")
    assert torch.equal(read, tensors["h.2.mlp.c_proj.weight"].T.flatten())


def test_llama_s_configuration_refuses_some_heads_and_mistral_s_does_not(tmp_path):
    """Head sizes that do not divide the width are refused for LLaMA and accepted for Mistral."""
    transformers = pytest.importorskip("transformers")
    odd = {"model.num_attention_heads": 5, "model.kv_channels": 8, "model.num_query_groups": None}
    made.write_model(tmp_path, "llama")
    _, config = run_of(tmp_path, tmp_path)
    changed = load(config, odd)
    assert family_of(config).model_type == "llama" and family_of(changed).model_type == "mistral"
    written = config_json(changed, "fp32", {}, 503)
    assert written["sliding_window"] is None
    transformers.MistralConfig(**written)
    with pytest.raises(Exception, match="not a multiple of the number of attention"):
        transformers.LlamaConfig(**{**written, "model_type": "llama"})


SHARED = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 3, "num_attention_heads": 2}
SHARED |= {"num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": 20}
LLAMA_3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "said",
    [
        {"model_type": "qwen2", "sliding_window": None, "max_window_layers": 1},
        {"model_type": "qwen3", "sliding_window": None, "max_window_layers": 1},
        {"model_type": "qwen2", "max_window_layers": 1},
        {"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 0},
        {"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 3},
        {"model_type": "smollm3", "sliding_window": None, "no_rope_layers": [1, 0, 1]},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral"},
        {"model_type": "llama", "original_max_position_embeddings": 16, "rope_scaling": LLAMA_3},
        {
            "model_type": "llama",
            "original_max_position_embeddings": 16,
            "rope_scaling": {"type": "yarn", "factor": 4.0},
        },
        {
            "model_type": "qwen2",
            "original_max_position_embeddings": 16,
            "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        },
        {"model_type": "llama", "original_max_position_embeddings": 16, "rope_theta": 500},
    ],
    ids=str,
)
def test_keys_that_are_null_or_stand_elsewhere_mean_what_transformers_reads(said, tmp_path):
    transformers = pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SHARED, "use_sliding_window": True, "head_dim": 4, **said}))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    # As Mistral's models do.
    theirs.standardize_rope_params()
    fields = describe(json.loads(path.read_text()), path).fields
    window = getattr(theirs, "sliding_window", None)
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * 3
    expected = [window if kind == "sliding_attention" else None for kind in kinds]
    assert list(ModelConfig(**fields).windows) == expected
    key = "original_max_position_embeddings"
    assert (fields["rope_scaling"] or {}).get(key) == theirs.rope_parameters.get(key)
    assert fields["rotary_base"] == theirs.rope_parameters["rope_theta"]


def test_a_wide_first_draw_is_written_as_llama_s_configuration_takes_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    made.write_model(tmp_path, "llama")
    _, config = run_of(tmp_path, tmp_path, **{"model.init_method_std": 2.0})
    written = config_json(config, "fp32", {}, 503)
    assert transformers.LlamaConfig(**written).initializer_range == 1.0
    narrow = load(config, {"model.init_method_std": 0.5})
    assert config_json(narrow, "fp32", {}, 503)["initializer_range"] == 0.5
