"""QLoRA: adapters on a base model in 4 bits. Every layout gives the results of one process, and the base does
not change.
"""

import importlib.util
import itertools

import pytest
import torch

from nbtrain.checkpoint.weights.opened import open_checkpoint
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.load import load, load_resolved
from nbtrain.exchange.export_model import export_model
from nbtrain.inference.loaded import fill, model_of
from nbtrain.model.adapters import freeze
from nbtrain.model.gpt import GPT
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.initialization import Initializer
from nbtrain.model.names import OF_VOCABULARY, is_adapter, is_block_matrix
from nbtrain.parallel.four_bits import FourBitMatrix
from nbtrain.parallel.layout import ModelParallel
from nbtrain.pretrained.model import open_model
from tests.parity.cases import Case
from tests.planner.memory.test_states_allocated import wrong_layouts
from tests.pretrained import made
from tests.train import launch
from tests.train.layouts import HALF, STEPS, assert_resumes, assert_trains_as, layout

# Called in transformers by peft.
REENTRANT = "ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.filterwarnings(REENTRANT),
    pytest.mark.skipif(
        importlib.util.find_spec("bitsandbytes") is None,
        reason="bitsandbytes is not installed (extra qlora)",
    ),
]
# Widths whose halves are multiples of the block size of 64.
WIDE = {"model.hidden_size": 128, "model.ffn_hidden_size": 384}
QLORA = {
    **WIDE,
    "lora.rank": 4,
    "lora.alpha": 16.0,
    "lora.load_in_4bit": True,
    "lr_schedule.lr": 1e-2,
    "lr_schedule.lr_warmup_tokens": 256,
}
DOUBLE = {"lora.bnb_4bit_use_double_quant": True}
TOKENS = torch.arange(60).view(2, 30)


@pytest.fixture(scope="module")
def one(place):
    """Return a function from a kind of layers to (the run with the base weights, the run of one process that
    trained adapters).
    """
    known = {}

    def trained(kind):
        if kind not in known:
            words = f"z0 fp32 {kind}".strip()
            settings = {**layout(words)[1], **WIDE, "batch.max_steps": HALF}
            base = launch.make_run(place.root, settings, f"base-{kind}".strip("-"))
            place.train(base, 1)
            run = adapted(place, base, words)
            place.train(run, 1)
            known[kind] = base, run
        return known[kind]

    return trained


def adapted(place, base, words, name="qlora", **overrides):
    more = {**layout(words)[1], "init_from": base.name, **QLORA, **overrides}
    return launch.make_run(place.root, more, f"{name}-{words.replace(' ', '-')}")


@pytest.mark.parametrize(
    "words, kind",
    [
        ("t2 z1 fp32", "llama"),
        ("t2 z1 fp32 sequence", ""),
        ("d2 z2 fp32", "llama"),
        ("s2 z1 fp32", ""),
        pytest.param("c2 z1 fp32", "", marks=pytest.mark.soak),
    ],
)
def test_every_layout_trains_the_adapters_of_one_process(kind, words, place, one):
    base, alone = one(kind)
    more: dict = {"parallel.sequence_parallel": True} if words.endswith("sequence") else {}
    words = words.removesuffix(" sequence")
    name = "qlora-sequence" if more else "qlora"
    run = adapted(place, base, f"{words} {kind}".strip(), name=name, **more)
    place.train(run, layout(words)[0])
    found = assert_trains_as(alone, run)
    assert all(is_adapter(name) for name in found.parameters)


@pytest.mark.parametrize("words", ["z0 fp32", "d2 z2 bf16"])
def test_a_resume_goes_on_bit_for_bit(words, place, one, forked):
    base, _ = one("")
    more = {"lora.dropout": 0.2, **DOUBLE}
    assert_resumes(place, forked, words, lambda name: adapted(place, base, words, name, **more))


@pytest.mark.parametrize("double", [False, True])
def test_the_loss_goes_down_and_no_bit_of_the_base_moves(double):
    """In sixty steps on one batch, the loss falls and the base stays bit-identical; its matrices exist only
    in 4 bits.
    """
    torch.manual_seed(0)
    config = GPTConfig.of(
        load("gpt3-tiny", {"init_from": "a-run", "lora.load_in_4bit": True}
             | {"lora.bnb_4bit_use_double_quant": double, "model.num_layers": 2})
    )  # fmt: skip
    init = Initializer(3, 0.02, 2)
    model = GPT(config, ModelParallel(), init)
    held = {name: one_ for name, one_ in model.named_modules() if isinstance(one_, FourBitMatrix)}
    assert len(held) == 2 * 4 and all(map(is_block_matrix, held))
    for name, matrix in held.items():
        matrix.hold(init.normal(name, *matrix.shape))
    freeze(model.named_parameters())
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    frozen = {name: one_.clone() for name, one_ in model.named_parameters() if not one_.requires_grad}
    assert not any(map(is_block_matrix, frozen))
    trained = [one_ for one_ in model.parameters() if one_.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    tokens = torch.randint(0, 500, (4, 65))
    losses = []
    for _ in range(60):
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1.0
    assert before["layers.0.mlp.dense_4h_to_h.weight.packed"].any()
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name
    for name, parameter in model.named_parameters():
        assert name not in frozen or torch.equal(parameter, frozen[name]), name


def test_merged_logits_are_those_of_training(one):
    """The merged model has the dequantized matrices that were used in training, and the base's values for
    everything else.
    """
    base, alone = one("llama")
    config = load_resolved(alone.config_yaml)
    store = open_checkpoint(alone, STEPS)
    apart, merged = GPT(GPTConfig.of(config)).eval(), model_of(config).eval()
    fill(merged, store)
    plain = CheckpointStore(base.checkpoint(HALF))
    with torch.no_grad():
        for name, matrix in apart.named_modules():
            if isinstance(matrix, FourBitMatrix):
                matrix.hold(plain.full(name))
                assert not torch.equal(matrix.dequantized(), plain.full(name))
        for name, parameter in apart.named_parameters():
            whole = (store.adapters if is_adapter(name) else plain).full(name)
            parameter.copy_(whole[: len(parameter)])
        logits = [model(TOKENS)[..., : launch.VOCAB_SIZE] for model in (apart, merged)]
    assert (logits[0] - logits[1]).abs().max() < 1e-5
    assert not torch.equal(*logits)
    for name in store.parameters:
        rows = launch.VOCAB_SIZE if name in OF_VOCABULARY else None
        if not is_block_matrix(name):
            assert torch.equal(store.full(name), plain.full(name)[:rows])


@pytest.mark.parametrize("double", [False, True])
def test_peft_on_transformers_4_bits_has_its_logits(double, forked, tmp_path):
    """With peft, the exported adapter on a base that transformers loads in 4 bits gives the same logits as in
    training.

    Matrices are bit-identical, except that with double quantization, packed queries, keys and values have
    other blocks of 256 constants and another mean. The difference is small compared with the error of 4 bits.
    """
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn import Linear4bit

    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    made.make_model("llama", **sizes).save_pretrained(tmp_path / "base")
    fields = {f"model.{key}": value for key, value in open_model(tmp_path / "base").described.fields.items()}
    more = {"tokenizer.vocab_size": made.VOCAB_SIZE, "init_from": str(tmp_path / "base")}
    adapters = {key: value for key, value in QLORA.items() if key not in WIDE}
    run = launch.make_run(
        tmp_path,
        {**layout("z1 fp32")[1], **adapters, **fields, **more, "lora.bnb_4bit_use_double_quant": double}
        | {"batch.max_steps": 2},
        "adapted",
    )
    forked.train(run)
    assert str(export_model(run, tmp_path / "adapters", "peft")).endswith(
        "read again and compared bit by bit."
    )
    assert "logits" in str(export_model(run, tmp_path / "merged"))
    how = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double,
        bnb_4bit_compute_dtype=torch.float32,
    )  # fmt: skip
    options = {"quantization_config": how, "device_map": {"": "cpu"}, "dtype": torch.float32}
    with torch.no_grad():
        plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()(TOKENS).logits
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", **options).eval()
        for linear in theirs.modules():
            if isinstance(linear, Linear4bit):
                # Otherwise bitsandbytes repacks the weights on a CPU with AVX512-BF16, and multiplies in
                # bf16.
                linear.support_avx512bf16_for_cpu = False
        bare = theirs(TOKENS).logits
        adapted_ = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapters").eval()(TOKENS).logits
        merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
        exported = merged(TOKENS).logits
        model = model_of(load_resolved(run.config_yaml)).eval()
        fill(model, open_checkpoint(run, 2))
        ours = model(TOKENS)[..., : made.VOCAB_SIZE]
        base = open_checkpoint(run, 2).base
        for index, block in enumerate(theirs.model.layers):
            place, mlp = f"layers.{index}", block.mlp
            for name, linear in {
                "attention.dense.weight": block.self_attn.o_proj,
                "mlp.dense_h_to_4h.weight": mlp.up_proj,
                "mlp.dense_h_to_4h.gate_weight": mlp.gate_proj,
                "mlp.dense_4h_to_h.weight": mlp.down_proj,
            }.items():
                weight = linear.base_layer.weight
                whole = dequantize_4bit(weight, weight.quant_state)
                assert torch.equal(base.read(f"{place}.{name}").view(whole.shape), whole)
    largest = plain.abs().max().clamp(min=1)
    if double:
        assert (adapted_ - ours).abs().mean() < 0.1 * (bare - plain).abs().mean()
    else:
        assert (adapted_ - ours).abs().max() < 1e-5 * largest
    assert (exported - ours).abs().max() < 1e-5 * largest
    # The quantization and the adapters have an effect.
    assert (bare - plain).abs().max() > 1e-2
    assert (adapted_ - bare).abs().max() > 1e-3


def test_states_are_exact(fork_server, tmp_path):
    """The planned model states are exact, including the 4-bit buffers (measured as in
    tests/planner/memory/test_states_allocated.py).
    """
    extra = {"lora.rank": 3, "init_from": "a-run", "lora.load_in_4bit": True}
    kinds = [(0, "fp32"), *itertools.product((1, 2), ("fp32", "bf16", "autocast"))]
    rows = [(*kind, model) for kind, model in itertools.product(kinds, ("gpt", "llama"))]
    cases = [
        Case(dp=2, zero=zero, precision=precision, model=model, note=f"qlora-{number % 2}",
             extra=extra | (DOUBLE if number % 2 else {}))
        for number, (zero, precision, model) in enumerate(rows)
    ]  # fmt: skip
    cases.append(Case(tp=2, zero=1, extra={**extra, **WIDE}, note="qlora"))
    assert wrong_layouts(fork_server, tmp_path, cases) == []
