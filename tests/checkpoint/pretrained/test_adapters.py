"""Adapters in peft's file format: peft opens ours with equal logits, and we open peft's."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from nbtrain.base.workspace import tokenizer_dir
from nbtrain.checkpoint.pretrained import __main__ as gpu_side
from nbtrain.checkpoint.pretrained.adapters import check_adapters, write_adapters
from nbtrain.checkpoint.weights.opened import open_checkpoint
from nbtrain.checkpoint.weights.peft_adapters import PeftAdapters
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.load import load, load_resolved
from nbtrain.exchange import export_model as exporting
from nbtrain.exchange.export_model import export_model
from nbtrain.inference.loaded import fill, model_of
from nbtrain.model.gpt import GPT
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.pretrained.folder import PEFT_SETTINGS, PEFT_WEIGHTS
from nbtrain.pretrained.model import open_model
from nbtrain.pretrained.peft import adapter_problems, notes_of, section_fix, settings_of, shapes_of
from tests.inference.made import tokenizer_in
from tests.pretrained import made
from tests.train import launch
from tests.train.layouts import layout

pytestmark = [
    pytest.mark.slow,
    # Called in transformers by peft.
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
]
LORA = {"lora.rank": 4, "lora.alpha": 6.0, "lora.use_rslora": True, "lr_schedule.lr": 1e-2}
TOKENS = torch.arange(60).view(2, 30)
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def overrides_of(folder):
    opened = open_model(folder)
    return {
        **layout("z1 fp32")[1],
        **{f"model.{key}": value for key, value in opened.described.fields.items()},
        "init_from": str(folder),
        "tokenizer.vocab_size": made.VOCAB_SIZE,
        "batch.max_steps": 2,
        **LORA,
    }


# Two added tokens, and one that the base already has.
GROWN = made.VOCAB_SIZE + 2
ROWS = {
    "tokenizer.vocab_size": GROWN,
    "lora.trainable_token_indices": [GROWN - 2, GROWN - 1, 7],
}


@pytest.fixture(scope="module", params=["mistral-full", "gpt2"])
def base(request, tmp_path_factory):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    folder = tmp_path_factory.mktemp(request.param) / "base"
    made.write_model(folder, request.param)
    return folder


@pytest.fixture(scope="module")
def trained(base, forked):
    """Return the folder of the base model, and a run with trained adapters on it."""
    run = launch.make_run(base.parent, overrides_of(base), "adapted")
    forked.train(run)
    return base, run


@pytest.fixture(scope="module")
def with_rows(base, forked):
    """Return the base model and a run that trained some tokens' rows in addition to the adapters."""
    run = launch.make_run(base.parent, overrides_of(base) | ROWS, "with-rows")
    forked.train(run)
    return base, run


def logits_here(run, step, tokens=TOKENS):
    config = load_resolved(run.config_yaml)
    model = model_of(config).eval()
    fill(model, open_checkpoint(run, step))
    with torch.no_grad():
        return model(tokens)[..., : config.tokenizer.vocab_size]


def grown_base(base):
    """Return the base model with more embedding rows, as a user of peft enlarges it for added tokens."""
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    theirs.resize_token_embeddings(GROWN)
    return theirs


WITH_NEW = torch.cat([TOKENS, torch.tensor([[GROWN - 1, 7, GROWN - 2], [7, 7, GROWN - 1]])], 1)


def test_peft_opens_what_is_written(trained, tmp_path):
    """peft opens exported adapters with the logits of the merged model, which
    differ from the base model's.
    """
    import peft
    import transformers

    base, run = trained
    said = str(export_model(run, tmp_path / "adapters", "peft"))
    assert "step 2" in said and said.endswith("read again and compared bit by bit.")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    with torch.no_grad():
        plain = theirs(TOKENS).logits
        adapted = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapters").eval()(TOKENS).logits
    ours = logits_here(run, 2)
    assert (adapted - ours).abs().max() < 1e-5 * plain.abs().max().clamp(min=1)
    assert (plain - ours).abs().max() > 1e-3


def test_a_tokenizer_lies_beside_adapters(trained, tmp_path, monkeypatch):
    """An exported adapter folder also contains the tokenizer, as other trainers of adapters write it."""
    import transformers

    # The process of an export would do this; another test starts it.
    monkeypatch.setattr(exporting, "stream", lambda module, request: gpu_side.answers(request))
    monkeypatch.setenv("NBTRAIN_DATA", str(tmp_path / "data"))
    _, run = trained
    folder = tokenizer_dir(load_resolved(run.config_yaml).tokenizer.name)
    tokenizer = tokenizer_in(folder)
    # The tokenizer that the manifest of the run's random tokens names.
    known = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**known, "sha256": "0" * 64}))
    export_model(run, tmp_path / "adapters", "peft")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "adapters")
    assert theirs("One day").input_ids == tokenizer.encode("One day").tolist()
    assert theirs.eos_token_id == tokenizer.eod_id


def test_what_peft_writes_is_a_start(trained, forked, tmp_path):
    """A run can start from random adapters that peft wrote; its first checkpoint has their logits."""
    import peft
    import transformers

    base, run = trained
    theirs = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    names = {"gpt2": ["c_attn", "c_proj", "c_fc"]}.get(theirs.config.model_type, MODULES)
    settings = peft.LoraConfig(
        r=4, lora_alpha=6, use_rslora=True, target_modules=names, task_type="CAUSAL_LM",
        init_lora_weights=False, fan_in_fan_out=theirs.config.model_type == "gpt2",
    )  # fmt: skip
    adapted = peft.get_peft_model(theirs, settings).eval()
    adapted.save_pretrained(tmp_path / "peft")
    config = load(load_resolved(run.config_yaml), {"lora.init_from": str(tmp_path / "peft")})
    assert adapter_problems(tmp_path / "peft", config) == []
    read = PeftAdapters(tmp_path / "peft", config)
    held = open_checkpoint(run, 2)
    held.adapters.full = lambda name: read.full(name)
    model = model_of(config).eval()
    fill(model, held)
    with torch.no_grad():
        expected, found = adapted(TOKENS).logits, model(TOKENS)[..., : made.VOCAB_SIZE]
    assert (expected - found).abs().max() < 1e-5 * expected.abs().max().clamp(min=1)
    # The ranks read the same files.
    overrides = {**overrides_of(base), "lora.init_from": str(tmp_path / "peft"), "batch.max_steps": 1}
    second = launch.make_run(
        tmp_path, {**overrides, "lr_schedule.lr": 1e-30, "lr_schedule.min_lr": 0.0}, "second"
    )
    forked.train(second)
    store = CheckpointStore(second.checkpoint(1))
    for name in read.parameters:
        torch.testing.assert_close(store.full(name), read.full(name))
    other = load(config, {"lora.rank": 8, "lora.targets": ["dense"]})
    assert "lora.targets = dense" in "; ".join(adapter_problems(tmp_path / "peft", other))
    assert adapter_problems(tmp_path / "peft", load(config, {"lora.alpha": 7.0}))[0].endswith(
        "is scaled by 3, but the run's lora.alpha and lora.use_rslora give 3.5"
    )


def test_fewer_modules_than_the_run_adapts(trained, tmp_path):
    """A run starts from peft's adapters of one layer and fewer modules, and has peft's logits.

    The adapters that the file does not have start as in a new run.
    """
    import peft
    import transformers

    base, run = trained
    theirs = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    settings = peft.LoraConfig(
        r=4, lora_alpha=6, use_rslora=True, task_type="CAUSAL_LM", layers_to_transform=[0],
        init_lora_weights=False, fan_in_fan_out=theirs.config.model_type == "gpt2",
    )  # fmt: skip
    adapted = peft.get_peft_model(theirs, settings).eval()
    adapted.save_pretrained(tmp_path / "peft")
    weights = tmp_path / "peft" / "adapter_model.safetensors"
    named = {name.replace("model.", "model._orig_mod.", 1): one for name, one in load_file(weights).items()}
    save_file(named, weights)
    config = load(load_resolved(run.config_yaml), {"lora.init_from": str(tmp_path / "peft")})
    assert adapter_problems(tmp_path / "peft", config) == []
    [note] = notes_of(tmp_path / "peft", config)
    assert ("c_proj" if theirs.config.model_type == "gpt2" else "k_proj") in note
    read = PeftAdapters(tmp_path / "peft", config)
    model = model_of(config).eval()
    held = open_checkpoint(run, 2)
    held.adapters.full = lambda name: read.full(name)
    fill(model, held)
    with torch.no_grad():
        expected, found = adapted(TOKENS).logits, model(TOKENS)[..., : made.VOCAB_SIZE]
    assert (expected - found).abs().max() < 1e-5 * expected.abs().max().clamp(min=1)
    name = "layers.1.attention.dense.lora.a"
    torch.testing.assert_close(read.full(name), GPT(GPTConfig.of(config)).get_parameter(name))
    # A module that the settings list is missing: the file is damaged.
    save_file({key: one for key, one in named.items() if ".0." not in key}, weights)
    assert adapter_problems(tmp_path / "peft", config)[0].startswith("has no ")
    assert section_fix(tmp_path / "peft", config) == "Copy the folder again, or save the adapters again."


# peft reports its defaults, a pattern without a module, and what it cannot convert.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "changes",
    [
        *({"init_lora_weights": first} for first in (False, None, "gaussian", "orthogonal", "eva", "mica")),
        *({"init_lora_weights": first} for first in ("pissa", "pissa_niter_2")),
        {"alpha_pattern": {".*": 12}},
        {"alpha_pattern": {".*": 6, "c_attn": 12, "q_proj": 12}},
        {"alpha_pattern": {"proj": 12}},
        {"alora_invocation_tokens": [3]},
    ],
    ids=str,
)
def test_settings_are_refused_if_peft_s_logits_are_others(changes, base, tmp_path):
    """Settings that make peft's logits differ from the run's are refused, although
    the tensors are the same.
    """
    import peft
    import transformers

    overrides = {**overrides_of(base), "name": "adapted"}
    (tmp_path / "tiny.yaml").write_text(launch.TINY)
    config = load(str(tmp_path / "tiny.yaml"), overrides)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes_of(config).items()
    }
    save_file(tensors, tmp_path / PEFT_WEIGHTS)

    def logits(settings):
        (tmp_path / PEFT_SETTINGS).write_text(json.dumps(settings))
        theirs = transformers.AutoModelForCausalLM.from_pretrained(base)
        with torch.no_grad():
            return peft.PeftModel.from_pretrained(theirs, tmp_path).eval()(input_ids=TOKENS).logits

    plain = logits(settings_of(config))
    others = logits({**settings_of(config), **changes})
    assert bool(adapter_problems(tmp_path, config)) == (not torch.allclose(plain, others, atol=1e-4))


def test_peft_opens_rows_of_tokens(with_rows, tmp_path):
    """peft opens trained rows of added and of existing tokens, if the base model
    has been enlarged for them.
    """
    import peft

    base, run = with_rows
    store, config = CheckpointStore(run.checkpoint(2)), load_resolved(run.config_yaml)
    (tmp_path / "adapters").mkdir()
    for write in (write_adapters, check_adapters):
        assert list(write(store, config, tmp_path / "adapters", torch.float32))
    ours = logits_here(run, 2, WITH_NEW)
    adapted = peft.PeftModel.from_pretrained(grown_base(base), tmp_path / "adapters").eval()
    with torch.no_grad():
        theirs = adapted(WITH_NEW).logits
        merged = adapted.merge_and_unload()(WITH_NEW).logits
    assert theirs.shape == ours.shape
    for found in (theirs, merged):
        assert (found - ours).abs().max() < 1e-5 * ours.abs().max().clamp(min=1)


@pytest.mark.soak
def test_the_exports_have_the_rows(with_rows, tmp_path):
    import transformers

    _, run = with_rows
    assert str(export_model(run, tmp_path / "adapters", "peft")).endswith(
        "read again and compared bit by bit."
    )
    assert "logits" in str(export_model(run, tmp_path / "merged"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        found = theirs(WITH_NEW).logits
    ours = logits_here(run, 2, WITH_NEW)
    assert (found - ours).abs().max() < 1e-5 * ours.abs().max().clamp(min=1)


def test_rows_that_peft_writes_are_a_start(with_rows, forked, tmp_path):
    """A run can start from token rows that peft wrote in the order of their ids; its
    first checkpoint has them.
    """
    import peft

    base, run = with_rows
    config = load_resolved(run.config_yaml)
    untied, ids = config.model.untie_embeddings_and_output_weights, ROWS["lora.trainable_token_indices"]
    theirs = grown_base(base)
    gpt2 = theirs.config.model_type == "gpt2"
    names = ["c_attn", "c_proj", "c_fc"] if gpt2 else MODULES
    settings = peft.LoraConfig(
        r=4, lora_alpha=6, use_rslora=True, target_modules=names, task_type="CAUSAL_LM", fan_in_fan_out=gpt2,
        trainable_token_indices={"embed_tokens": ids, "lm_head": ids} if untied else ids,
    )  # fmt: skip
    adapted = peft.get_peft_model(theirs, settings)
    written = {}
    for name, parameter in adapted.named_parameters():
        if "trainable_tokens_delta" in name:
            torch.nn.init.normal_(parameter)
            rows = "output_layer" if "lm_head" in name else "word_embeddings"
            written[f"{rows}.trained_rows"] = parameter.detach()[[2, 0, 1]]
    adapted.save_pretrained(tmp_path / "whole", save_embedding_layers=True)
    (whole,) = adapter_problems(tmp_path / "whole", config)
    assert "whole vocabulary matrix" in whole and "save_embedding_layers=False" in whole
    adapted.save_pretrained(tmp_path / "peft", save_embedding_layers=False)
    config = load(config, {"lora.init_from": str(tmp_path / "peft")})
    assert adapter_problems(tmp_path / "peft", config) == []
    still = {"lr_schedule.lr": 1e-30, "lr_schedule.min_lr": 0.0, "batch.max_steps": 1}
    more = {**overrides_of(base), **ROWS, **still, "lora.init_from": str(tmp_path / "peft")}
    second = launch.make_run(tmp_path, more, "second")
    forked.train(second)
    store = CheckpointStore(second.checkpoint(1))
    assert set(written) == {name for name in store.parameters if name.endswith("trained_rows")}
    for name, expected in written.items():
        torch.testing.assert_close(store.full(name), expected)
    other = load(config, {"lora.trainable_token_indices": [7]})
    module = "wte" if gpt2 else "embed_tokens"
    (problem,) = adapter_problems(tmp_path / "peft", other)
    assert f"trainable_token_indices for {module} is {ids}" in problem
    assert problem.endswith("lora.trainable_token_indices is [7]")
