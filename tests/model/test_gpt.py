"""The GPT model: parameter names, initial weights, causality, key-value cache and recomputation."""

import math
import shutil

import pytest
import torch
import torch.nn.functional as F

from nbtrain.config.arithmetic.parameters import count_parameters
from nbtrain.config.load import load
from nbtrain.model.gpt import GPT, GPTConfig, build_model
from nbtrain.model.names import optimizer_group

CONFIG = GPTConfig(
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    ffn_hidden_size=128,
    padded_vocab_size=64,
    max_position_embeddings=16,
)


@pytest.fixture
def tokens():
    return torch.randint(64, (2, 17), generator=torch.Generator().manual_seed(3))


def test_parameters_have_canonical_names():
    """Parameters have their canonical names. Every checkpoint contains these names, so a change would make
    older checkpoints unreadable.
    """
    assert {name: tuple(value.shape) for name, value in GPT(CONFIG).named_parameters()} == {
        "word_embeddings.weight": (64, 32),
        "position_embeddings.weight": (16, 32),
        **{
            f"layers.{index}.{name}": shape
            for index in range(2)
            for name, shape in {
                "input_layernorm.weight": (32,),
                "input_layernorm.bias": (32,),
                "attention.query_key_value.weight": (96, 32),
                "attention.query_key_value.bias": (96,),
                "attention.dense.weight": (32, 32),
                "attention.dense.bias": (32,),
                "post_attention_layernorm.weight": (32,),
                "post_attention_layernorm.bias": (32,),
                "mlp.dense_h_to_4h.weight": (128, 32),
                "mlp.dense_h_to_4h.bias": (128,),
                "mlp.dense_4h_to_h.weight": (32, 128),
                "mlp.dense_4h_to_h.bias": (32,),
            }.items()
        },
        "final_layernorm.weight": (32,),
        "final_layernorm.bias": (32,),
    }


def test_count_is_the_planners():
    """The planner counts as many parameters as the model has, including the vocabulary's padding."""
    config = load("gpt-tiny", {"tokenizer.vocab_size": 1000, "model.hidden_size": 64, "model.num_layers": 3})
    assert config.padded_vocab_size == 1024
    assert sum(value.numel() for value in build_model(config).parameters()) == count_parameters(config).total


def test_initial_weights():
    """Initial matrices and embeddings have std, residual projections std / sqrt(2 L), LayerNorms 1, biases
    0."""
    model = GPT(GPTConfig(8, 128, 4, 512, 1024, 256, init_method_std=0.02))
    residual = 0.02 / math.sqrt(16)
    for name, value in model.state_dict().items():
        if optimizer_group(name) == "no_decay":
            expected = 1.0 if name.endswith("layernorm.weight") else 0.0
            assert (value == expected).all(), name
        else:
            std = residual if name.endswith(("attention.dense.weight", "dense_4h_to_h.weight")) else 0.02
            # The standard error of a standard deviation of n numbers is std / sqrt(2 n); five of them.
            assert float(value.std()) == pytest.approx(std, rel=5 / math.sqrt(2 * value.numel())), name
            assert abs(float(value.mean())) < 5 * std / math.sqrt(value.numel()), name


def test_initial_weights_depend_on_seed_and_name_only():
    """Initial weights depend only on the seed and the parameter's name, so a deeper model with the same scale
    starts with the same first layers.
    """
    one, again, other = GPT(CONFIG), GPT(CONFIG), GPT(GPTConfig(**{**vars(CONFIG), "seed": 5}))
    for name, value in one.named_parameters():
        assert torch.equal(value, again.get_parameter(name))
    weight = "layers.1.attention.query_key_value.weight"
    assert not torch.equal(one.get_parameter(weight), other.get_parameter(weight))
    deeper = GPT(GPTConfig(**{**vars(CONFIG), "num_layers": 3}))
    assert torch.equal(one.get_parameter(weight), deeper.get_parameter(weight))
    assert not torch.equal(deeper.get_parameter(weight), deeper.get_parameter(weight.replace("1", "2", 1)))


def test_loss_is_cross_entropy_of_the_logits(tokens):
    model = GPT(CONFIG)
    logits = model(tokens[:, :-1])
    expected = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss = model(tokens[:, :-1], tokens[:, 1:])
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)


def test_no_position_sees_a_later_one(tokens):
    model = GPT(CONFIG).eval()
    changed = tokens[:, :16].clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 64
    with torch.no_grad():
        before, after = model(tokens[:, :16]), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])


@pytest.mark.parametrize("pieces", [[16], [1] * 16, [5, 4, 1, 6]])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_cache_gives_the_logits_of_the_whole_sequence(tokens, pieces, autocast):
    """With a cache, the logits equal the whole sequence's up to rounding, whether the prompt is read at once,
    token by token, or in chunks.
    """
    model = GPT(GPTConfig(**{**vars(CONFIG), "autocast": autocast})).eval()
    with torch.no_grad():
        whole = model(tokens[:, :16])
        cache, parts, start = model.new_cache(2), [], 0
        for size in pieces:
            parts.append(model(tokens[:, start : start + size], cache=cache))
            start += size
    tolerance = 2e-2 if autocast else 1e-5
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=tolerance, atol=tolerance)
    assert cache.length == 16


def test_last_token_only(tokens):
    model = GPT(CONFIG).eval()
    with torch.no_grad():
        torch.testing.assert_close(
            model(tokens[:, :8], last_token_only=True), model(tokens[:, :8])[:, -1:], rtol=1e-5, atol=1e-6
        )


def test_more_tokens_than_positions_are_refused(tokens):
    with pytest.raises(ValueError, match="17 tokens are more than the 16 positions of the model"):
        GPT(CONFIG)(tokens)
    model = GPT(CONFIG).eval()
    cache = model.new_cache(2)
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match="18 tokens are more than the 16 positions of the model"),
    ):
        model(tokens[:, :12], cache=cache)
        model(tokens[:, :6], cache=cache)


@pytest.mark.slow
@pytest.mark.parametrize("interval", [1, 2])
def test_recomputation_changes_no_bit(tokens, interval):
    """Recomputation does not change a single bit with dropout, because the second forward pass draws the same
    random numbers.
    """
    results = []
    for setting in (0, interval):
        config = {**vars(CONFIG), "hidden_dropout": 0.2, "attention_dropout": 0.2}
        model = GPT(GPTConfig(**{**config, "checkpoint_interval_layers": setting}))
        torch.manual_seed(7)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        results.append((loss, [value.grad for value in model.parameters()]))
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(kept, again) for kept, again in zip(results[0][1], results[1][1]))


@pytest.mark.parametrize("backend", ["auto", "flash", "math"])
def test_attention_backends_agree(tokens, backend):
    model = GPT(GPTConfig(**{**vars(CONFIG), "attention_backend": backend})).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(tokens[:, :16]), GPT(CONFIG).eval()(tokens[:, :16]))


def test_packed_rows_lie_head_by_head(tokens):
    """Packed query-key-value rows are stored head by head: one half of the rows, with the matching projection
    columns, is the shard of one of two ranks.
    """
    whole = GPT(CONFIG).layers[0].attention
    x = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))
    halves = []
    for rank in range(2):
        part = GPT(CONFIG).layers[0].attention
        rows, columns = slice(48 * rank, 48 * rank + 48), slice(16 * rank, 16 * rank + 16)
        part.query_key_value.weight = torch.nn.Parameter(whole.query_key_value.weight[rows])
        part.query_key_value.bias = torch.nn.Parameter(whole.query_key_value.bias[rows])
        part.dense.weight = torch.nn.Parameter(whole.dense.weight[:, columns])
        part.dense.bias = torch.nn.Parameter(whole.dense.bias / 2)
        halves.append(part(x))
    torch.testing.assert_close(halves[0] + halves[1], whole(x))


# --- documents apart ------------------------------------------------------------------------------

# Two sequences of 16: documents of 6 and 10 tokens, and of 16.
APART = {"cu_seqlens": torch.tensor([0, 6, 16, 32], dtype=torch.int32), "max_seqlen": 16}
RESET = {"position_ids": torch.stack([torch.arange(16) - 6 * (torch.arange(16) >= 6), torch.arange(16)])}


def changed_first_document(tokens):
    changed = tokens[:, :16].clone()
    changed[0, :6] = (changed[0, :6] + 1) % 64
    return changed


@pytest.mark.parametrize("backend", ["auto", "math"])
@pytest.mark.parametrize("options", [APART, APART | RESET])
def test_changing_a_document_leaves_the_others_logits_unchanged(tokens, backend, options):
    """Changing one document leaves the logits of the other documents bit-identical in fp32; without document
    bounds, the logits change.
    """
    model = GPT(GPTConfig(**{**vars(CONFIG), "attention_backend": backend})).eval()
    changed = changed_first_document(tokens)
    with torch.no_grad():
        before, after = model(tokens[:, :16], **options), model(changed, **options)
        assert torch.equal(before[0, 6:], after[0, 6:])
        assert torch.equal(before[1], after[1])
        assert not torch.equal(before[0, :6], after[0, :6])
        mixed = model(tokens[:, :16]), model(changed)
    assert (mixed[0][0, 6:] != mixed[1][0, 6:]).any(dim=1).all()


def test_resetting_positions_alone_does_not_keep_documents_apart(tokens):
    model = GPT(CONFIG).eval()
    with torch.no_grad():
        before, after = model(tokens[:, :16], **RESET), model(changed_first_document(tokens), **RESET)
    assert not torch.equal(before[0, 6:], after[0, 6:])


def test_a_document_apart_is_a_document_alone(tokens):
    """With document bounds and reset positions, the second document has the same logits as when it is a
    separate sequence.
    """
    model = GPT(CONFIG).eval()
    with torch.no_grad():
        packed = model(tokens[:, :16], **APART, **RESET)[0, 6:]
        alone = model(tokens[:1, 6:16])[0]
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-6)


def gradients_of(model, tokens, **options):
    """Return the loss and gradients when only the last document of the first sequence is in the loss."""
    mask = torch.zeros(2, 16)
    mask[0, 6:] = 1
    torch.manual_seed(7)
    loss = model(tokens[:, :16], tokens[:, 1:], loss_mask=mask, **options)
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


def test_gradients_do_not_know_of_other_documents(tokens):
    """With document bounds, the gradient of the second document does not depend on earlier text; without them
    it does.
    """
    model = GPT(CONFIG)
    changed = torch.cat([changed_first_document(tokens), tokens[:, 16:]], dim=1)
    for options, same in ((APART | RESET, True), (RESET, False)):
        pairs = zip(gradients_of(model, tokens, **options), gradients_of(model, changed, **options))
        assert all(torch.equal(one, other) for one, other in pairs) == same
    own = gradients_of(model, tokens, **APART, **RESET)
    embedding = own[1 + [name for name, _ in model.named_parameters()].index("position_embeddings.weight")]
    assert (embedding[10:] == 0).all() and (embedding[:10] != 0).any(dim=1).all()


@pytest.mark.slow
@pytest.mark.parametrize("interval", [1, 2])
def test_recomputation_with_documents_changes_no_bit(tokens, interval):
    results = []
    for setting in (0, interval):
        config = {**vars(CONFIG), "hidden_dropout": 0.2, "attention_dropout": 0.2}
        model = GPT(GPTConfig(**{**config, "checkpoint_interval_layers": setting}))
        results.append(gradients_of(model, tokens, **APART, **RESET))
    assert all(torch.equal(kept, again) for kept, again in zip(*results))


# torch's compiler causes its own warnings while it is loaded and inspects tensors.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_compiled_layers_take_documents(tokens):
    """A compiled model accepts batches with different document bounds, and its gradients equal the uncompiled
    model's up to rounding.
    """
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("no C++ compiler on this machine")
    plain, compiled = GPT(CONFIG), GPT(CONFIG)
    for layer in compiled.layers:
        layer.compile()
    other = {"cu_seqlens": torch.tensor([0, 16, 20, 25, 32], dtype=torch.int32), "max_seqlen": 16}
    for options in (APART, other, {}):
        for ours, theirs in zip(
            gradients_of(compiled, tokens, **options), gradients_of(plain, tokens, **options)
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_plain_bounds_change_nothing(tokens):
    """Bounds around whole sequences with ascending positions give the same loss as a plain batch, up to the
    order of additions.
    """
    model = GPT(CONFIG).eval()
    plain = model(tokens[:, :16], tokens[:, 1:])
    said = model(
        tokens[:, :16],
        tokens[:, 1:],
        position_ids=torch.arange(16).expand(2, 16),
        cu_seqlens=torch.tensor([0, 16, 32], dtype=torch.int32),
        max_seqlen=16,
    )
    torch.testing.assert_close(said, plain, rtol=1e-6, atol=0)


def test_a_cache_holds_one_document(tokens):
    model = GPT(CONFIG).eval()
    with pytest.raises(ValueError, match="a cache holds one document that starts at position 0"):
        model(tokens[:, :16], cache=model.new_cache(2), **APART)
