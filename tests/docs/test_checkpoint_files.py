"""The code of docs/checkpoint-files.md computes our loss from a checkpoint, and its names match the files."""

import re
from pathlib import Path

import pytest
import torch

from nbtrain.base import files
from nbtrain.checkpoint.files.manifest import payload
from nbtrain.checkpoint.weights.model_weights import load_model_weights
from nbtrain.config.load import load, load_resolved
from nbtrain.model.gpt import build_model
from nbtrain.model.names import is_adapter
from nbtrain.parallel.tensor import partition_dim

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "checkpoint-files.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["z0", "d2 z1"])
def test_the_code_block_computes_our_loss(place, layout):
    """The code block computes our loss with torch alone, without nbtrain and DeepSpeed."""
    assert "nbtrain" not in CODE and "deepspeed" not in CODE
    run = place.source(layout)
    (step,) = run.checkpoint_steps()
    names = {"folder": run.checkpoint(step)}
    exec(CODE, names)
    config = load_resolved(run.config_yaml)
    model = build_model(config).eval()
    model.load_state_dict({key: value.float() for key, value in load_model_weights(run.path).items()})
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(config.tokenizer.vocab_size, (config.model.seq_length + 1,), generator=generator)
    with torch.no_grad():
        expected = model(tokens[None, :-1], tokens[None, 1:]).item()
    assert names["nats"](tokens) == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_the_table_has_every_parameter(place):
    """The table lists every parameter in a manifest, with its name and sharded dimension."""
    manifest = files.read_json(next(place.source("z0").model.glob("*/manifest.json")))
    rows = re.findall(r"^\| `([\w.<>]+)`(?:, `\.(bias)`)? \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)
    said = {}
    for name, bias, _, cut in rows:
        cuts = (cut.split(", ") * 2)[:2]
        said[name] = cuts[0]
        if bias:
            said[name.replace(".weight", ".bias")] = cuts[1]
    for name, entry in manifest["parameters"].items():
        cut = said.pop(re.sub(r"layers\.\d+", "layers.<i>", name), None)
        if cut is not None:
            assert cut == ("none" if entry["partition_dim"] is None else str(entry["partition_dim"])), name
    assert said == {}


SMALL = {
    "model.num_layers": 1,
    "model.hidden_size": 32,
    "model.num_attention_heads": 4,
    "model.untie_embeddings_and_output_weights": True,
    "optimizer.type": "AdamW",
}
LORA = {"init_from": "base", "lora.trainable_token_indices": [1, 2]}


@pytest.mark.parametrize(
    "overrides",
    [
        {"model.architecture": "llama"},
        {"model.architecture": "qwen2"},
        {"model.architecture": "qwen3"},
        {**LORA, "lora.rank": 2},
        {**LORA, "lora.kind": "ia3"},
    ],
    ids=["llama", "qwen2", "qwen3", "lora", "ia3"],
)
def test_the_tables_have_the_parameters_of_other_models(overrides):
    """The tables also have the names, dimensions and sharding of models without
    linear biases and with adapters.
    """
    said = {}
    for first, second, shapes, cuts in re.findall(
        r"^\| `([\w.<>]+)`(?:, `\.([\w.]+)`)?(?: \([^|]*\))? \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE
    ):
        names = [first] + ([re.sub(r"(gate_)?(weight|lora\.a)$", second, first)] if second else [])
        for each, name in enumerate(names):
            shape = (shapes.split(" and ") * 2)[each]
            said[name] = shape.count(",") + 1, (cuts.split(", ") * 2)[each]
    config = load("gpt-tiny", {**SMALL, **overrides}, check=False)
    with torch.device("meta"):
        model = build_model(config)
    parameters = {re.sub(r"layers\.\d+", "layers.<i>", key): value for key, value in model.named_parameters()}
    saved = {key: value for key, value in parameters.items() if config.lora is None or is_adapter(key)}
    assert saved
    for name, value in saved.items():
        cut = partition_dim(value)
        assert said[name] == (value.dim(), "none" if cut is None else str(cut)), name
    biases = {key for key in parameters if key.endswith("bias")}
    qkv = {"layers.<i>.attention.query_key_value.bias"}
    assert biases == (qkv if config.model.add_qkv_bias else set())


WEIGHTS, OPTIMIZER = (f"zero_pp_rank_{{}}_mp_rank_00_{kind}_states.pt" for kind in ("model", "optim"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ("z0", ["mp_rank_00_model_states.pt"]),
        ("d2 z1", ["mp_rank_00_model_states.pt", *(OPTIMIZER.format(rank) for rank in (0, 1))]),
        (
            "d2 z3",
            [name.format(rank) for rank in (0, 1) for name in (WEIGHTS, OPTIMIZER)],
        ),
    ],
)
def test_files_are_named_as_the_page_says(place, layout, names):
    """Each layout writes exactly the files that the page lists."""
    (folder,) = place.source(layout).model.glob("global_step*")
    assert [path.name for path in payload(folder)] == names
