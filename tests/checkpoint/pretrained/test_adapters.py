"""Adapters as peft's files: what is written here opens there with equal logits, and what peft writes here."""

import pytest
import torch

from nbtrain.checkpoint.opened import open_checkpoint
from nbtrain.checkpoint.pretrained.adapters import PeftAdapters
from nbtrain.checkpoint.store import CheckpointStore
from nbtrain.config.load import load, load_resolved
from nbtrain.inference.loaded import fill, model_of
from nbtrain.jobs.export_model import export_model
from nbtrain.pretrained.model import open_model
from nbtrain.pretrained.peft import adapter_problems
from tests.pretrained import made
from tests.train import launch
from tests.train.layouts import layout

pytestmark = [
    pytest.mark.slow,
    # Of transformers, called by peft.
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
]
LORA = {"lora.rank": 4, "lora.alpha": 6.0, "lora.use_rslora": True, "lr_schedule.lr": 1e-2}
TOKENS = torch.arange(60).view(2, 30)


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


@pytest.fixture(scope="module", params=["mistral-full", "gpt2"])
def trained(request, forked, tmp_path_factory):
    """(folder of the base, a run with adapters that is trained beside it)."""
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    root = tmp_path_factory.mktemp(request.param)
    made.write_model(root / "base", request.param)
    run = launch.make_run(root, overrides_of(root / "base"), "adapted")
    forked.train(run)
    return root / "base", run


def logits_here(run, step):
    model = model_of(load_resolved(run.config_yaml)).eval()
    fill(model, open_checkpoint(run, step))
    with torch.no_grad():
        return model(TOKENS)[..., : made.VOCAB_SIZE]


def test_peft_opens_what_is_written(trained, tmp_path):
    """The logits of peft's model are those of the merged one here, and the adapters do something."""
    import peft
    import transformers

    base, run = trained
    said = str(export_model(run, tmp_path / "adapters", "peft"))
    assert "step 2" in said and said.endswith("read again, bit for bit.")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    with torch.no_grad():
        plain = theirs(TOKENS).logits
        adapted = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapters").eval()(TOKENS).logits
    ours = logits_here(run, 2)
    assert (adapted - ours).abs().max() < 1e-5 * plain.abs().max().clamp(min=1)
    assert (plain - ours).abs().max() > 1e-3


def test_what_peft_writes_is_a_start(trained, forked, tmp_path):
    """Random adapters of peft: the run's first checkpoint has their logits."""
    import peft
    import transformers

    base, run = trained
    theirs = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    names = {"gpt2": ["c_attn", "c_proj", "c_fc"]}.get(theirs.config.model_type)
    names = names or ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
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
    # The ranks read the same.
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
        "is multiplied by 3: lora.alpha and use_rslora make 3.5"
    )
