"""IA3: scaling vectors on top of frozen weights give the same results in every layout, merged, and in peft's
files.
"""

import pytest
import torch

from nbtrain.checkpoint.weights.opened import open_checkpoint
from nbtrain.checkpoint.weights.peft_adapters import read_adapters
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.load import load, load_resolved
from nbtrain.exchange.export_model import export_model
from nbtrain.inference.loaded import fill, model_of
from nbtrain.pretrained.model import open_model
from nbtrain.pretrained.peft import adapter_problems
from tests.pretrained import made
from tests.train import launch
from tests.train.layouts import apart_and_merged, assert_trains_as, beside_weights, layout

pytestmark = [
    pytest.mark.slow,
    # Called in transformers by peft.
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
]
IA3 = {"lora.kind": "ia3", "lr_schedule.lr": 3e-2, "lr_schedule.lr_warmup_tokens": 256}
TOKENS = torch.arange(60).view(2, 30)


def adapted(place, base, words):
    more = {**layout(words)[1], "init_from": base.name, **IA3}
    return launch.make_run(place.root, more, f"ia3-{words.replace(' ', '-')}")


@pytest.fixture(scope="module")
def one(place):
    """Return a function from a kind of layers to (the run with the base weights, the run of one process that
    trained the vectors).
    """
    return beside_weights(place, lambda base, words: adapted(place, base, words))


@pytest.mark.parametrize(
    "words, kind",
    [
        ("t2 z1 fp32", "llama"),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in [
                ("d2 z3 fp32", "llama"),
                ("p2 z1 fp32", ""),
                ("t2 d2 z2 fp32", ""),
                ("s2 z2 fp32", "llama"),
                ("c2 z2 fp32", "llama"),
            ]
        ),
    ],
)
def test_every_layout_trains_the_vectors_of_one_process(kind, words, place, one):
    base, alone = one(kind)
    run = adapted(place, base, f"{words} {kind}".strip())
    place.train(run, layout(words)[0])
    found = assert_trains_as(alone, run)
    assert len(found.parameters) == 4
    for name in found.parameters:
        assert name.endswith(".ia3") and (found.full(name) != 1).all()


@pytest.mark.parametrize("kind", ["llama", pytest.param("", marks=pytest.mark.soak)])
def test_merged_logits_are_those_of_the_vectors(kind, place, one):
    """The merged model has the same logits as with separate vectors, also with biases of keys and values, and
    all other weights are unchanged.
    """
    _, alone = one(kind)
    with torch.no_grad():
        logits = [model(TOKENS)[..., : launch.VOCAB_SIZE] for model in apart_and_merged(alone)]
    assert (logits[0] - logits[1]).abs().max() < 1e-5
    assert not torch.equal(*logits)


@pytest.mark.soak
@pytest.mark.parametrize("family", ["mistral-full", "gpt2"])
def test_files_of_peft_both_ways(family, forked, tmp_path):
    """peft loads our files with equal logits, and a run can start from files that peft saved."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    made.write_model(tmp_path / "base", family)
    opened = open_model(tmp_path / "base")
    overrides = {
        **layout("z1 fp32")[1],
        **{f"model.{key}": value for key, value in opened.described.fields.items()},
        "init_from": str(tmp_path / "base"),
        "tokenizer.vocab_size": made.VOCAB_SIZE,
        "batch.max_steps": 2,
        **IA3,
    }
    run = launch.make_run(tmp_path, overrides, "adapted")
    forked.train(run)
    said = str(export_model(run, tmp_path / "vectors", "peft"))
    assert said.endswith("read again and compared bit by bit.")

    def theirs():
        return transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()

    def ours(config, held):
        model = model_of(config).eval()
        fill(model, held)
        return model(TOKENS)[..., : made.VOCAB_SIZE]

    config, held = load_resolved(run.config_yaml), open_checkpoint(run, 2)
    with torch.no_grad():
        plain = theirs()(TOKENS).logits
        found = peft.PeftModel.from_pretrained(theirs(), tmp_path / "vectors").eval()(TOKENS).logits
        assert (found - ours(config, held)).abs().max() < 1e-5 * plain.abs().max().clamp(min=1)
        assert (plain - found).abs().max() > 1e-3
        # The other direction: random vectors from peft.
        other = peft.PeftModel.from_pretrained(theirs(), tmp_path / "vectors", is_trainable=True).eval()
        torch.manual_seed(0)
        for name, parameter in other.named_parameters():
            if "ia3_l" in name:
                rows = (
                    parameter.view(-1)[2 * len(parameter.view(-1)) // 3 :] if "c_attn" in name else parameter
                )
                rows.uniform_(0.5, 1.5)
        other.save_pretrained(tmp_path / "peft")
        asked = load(config, {"lora.init_from": str(tmp_path / "peft")})
        assert adapter_problems(tmp_path / "peft", asked) == []
        read = read_adapters(tmp_path / "peft", asked)
        held.adapters.full = lambda name: read.full(name)
        assert (other(TOKENS).logits - ours(asked, held)).abs().max() < 1e-5 * plain.abs().max().clamp(min=1)
    if family != "gpt2":
        second = {**overrides, "lora.init_from": str(tmp_path / "peft"), "batch.max_steps": 1}
        again = launch.make_run(
            tmp_path, {**second, "lr_schedule.lr": 1e-30, "lr_schedule.min_lr": 0.0}, "second"
        )
        forked.train(again)
        store = CheckpointStore(again.checkpoint(1))
        for name in read.parameters:
            torch.testing.assert_close(store.full(name), read.full(name))
    wrong = load(asked, {"lora.kind": "lora"})
    assert adapter_problems(tmp_path / "peft", wrong) == [
        "peft_type is 'IA3', but the run's lora.kind is lora"
    ]
