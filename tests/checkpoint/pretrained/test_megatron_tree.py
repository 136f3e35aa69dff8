"""Checkpoint trees of Megatron-LM and Megatron-DeepSpeed, joined back into the
weights they were made from.
"""

import argparse
import contextlib
import enum
import random
import re
import shutil
import sys
import types
import zipfile

import numpy as np
import pytest
import torch

from nbtrain.base.errors import CheckpointError, ConfigError
from nbtrain.checkpoint.pretrained import __main__ as gpu_side
from nbtrain.checkpoint.pretrained.megatron_tree import MegatronWeights
from nbtrain.checkpoint.weights.folder_weights import FolderWeights
from nbtrain.config.load import load
from nbtrain.exchange import from_megatron
from nbtrain.exchange.import_model import import_model
from nbtrain.model.gpt import build_model
from nbtrain.pretrained.megatron import find_tree
from nbtrain.pretrained.model import open_model
from tests.dataset.dataset_maker import make_tokenizer
from tests.pretrained.made import PickledCode
from tests.train import launch

ROWS = 512
GPT = {"model.num_layers": 4}
LLAMA = {
    **GPT,
    "model.architecture": "llama",
    "model.num_attention_heads": 8,
    "model.num_query_groups": 4,
    "model.kv_channels": 24,
    "model.rotary_base": 10_000.0,
}


@pytest.fixture
def model(tmp_path):
    """Return a function that makes a model's configuration and its weights by canonical name."""

    def make(changes):
        source = tmp_path / "tiny.yaml"
        source.write_text(launch.TINY)
        config = load(str(source), {"tokenizer.vocab_size": ROWS, "model.attention_dropout": 0.0, **changes})
        torch.manual_seed(3)
        weights = build_model(config).state_dict()
        return config, {name: torch.randn_like(weight) * 0.1 for name, weight in weights.items()}

    return make


def arguments(config, **more):
    """Return the arguments that Megatron stores: those that determine the model, and some that do not."""
    own = config.model
    rope = own.position_embedding_type == "rope"
    return argparse.Namespace(
        num_layers=own.num_layers,
        hidden_size=own.hidden_size,
        ffn_hidden_size=own.resolved_ffn_hidden_size,
        num_attention_heads=own.num_attention_heads,
        num_key_value_heads=own.resolved_num_query_groups,
        kv_channels=own.resolved_kv_channels,
        max_position_embeddings=own.resolved_max_position_embeddings,
        padded_vocab_size=ROWS,
        normalization="rmsnorm" if own.normalization == "RMSNorm" else "layernorm",
        layernorm_epsilon=own.norm_epsilon,
        swiglu=own.activation == "swiglu",
        add_bias_linear=own.add_bias_linear,
        untie_embeddings_and_output_weights=own.untie_embeddings_and_output_weights,
        use_rotary_position_embeddings=rope,
        rotary_percent=1.0,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        bias_gelu_fusion=True,
        num_experts=[1],
        params_dtype=torch.float16,
        **more,
    )


def cut(config, weights, ranks, order="groups", version=3.0):
    """Shard the weights over tensor ranks in Megatron's row orders; return {name: tensor} for each rank."""
    own = config.model
    heads, groups, size = own.num_attention_heads, own.resolved_num_query_groups, own.resolved_kv_channels
    found = [{} for _ in range(ranks)]
    for name, weight in weights.items():
        if ".gate_" in name:
            continue
        for rank, part in enumerate(found):
            if ".query_key_value." in name:
                rows = weight.chunk(ranks)[rank]
                by_group = rows.view(groups // ranks, heads // groups + 2, size, *weight.shape[1:])
                if version >= 2 and order == "thirds":
                    parts = (by_group[:, :-2], by_group[:, -2], by_group[:, -1])
                    rows = torch.cat([one.reshape(-1, *weight.shape[1:]) for one in parts])
                elif version < 1:
                    rows = by_group.transpose(0, 1).reshape(rows.shape)
                elif version < 2:
                    rows = by_group.transpose(1, 2).reshape(rows.shape)
            elif ".dense_h_to_4h." in name:
                gate = weights.get(name.replace("dense_h_to_4h.", "dense_h_to_4h.gate_"))
                both = [weight] if gate is None else [gate, weight]
                rows = torch.cat([one.chunk(ranks)[rank] for one in both])
            elif name in ("word_embeddings.weight", "output_layer.weight"):
                rows = weight.chunk(ranks)[rank]
            elif name.endswith(("attention.dense.weight", "dense_4h_to_h.weight")):
                rows = weight.chunk(ranks, dim=1)[rank]
            else:
                rows = weight
            part[name.replace(".attention.", ".self_attention.")] = rows.clone()
    return found


def language_model(part, layers):
    """Return the weights of some layers as Megatron nests them, numbered from 0."""
    first, last = layers
    found = {"embedding": {}, "encoder": {}}
    for name, tensor in part.items():
        if name.startswith("layers."):
            _, index, rest = name.split(".", 2)
            if first <= int(index) < last:
                found["encoder"][f"layers.{int(index) - first}.{rest}"] = tensor
        elif name.startswith("final_layernorm"):
            found["encoder"][name] = tensor
        elif name.startswith("output_layer"):
            found["output_layer"] = {name.partition(".")[2]: tensor}
        else:
            module, _, kind = name.partition(".")
            found["embedding"][module] = {kind: tensor}
    return found


def write_own(root, config, weights, tensor, pipeline, version=3.0, args=None):
    """Write Megatron-LM's tree: iter_*/mp_rank_TT[_PPP]/model_optim_rng.pt."""
    folder = root / "iter_0000040"
    layers = config.model.num_layers // pipeline
    for rank, part in enumerate(cut(config, weights, tensor, version=version)):
        for stage in range(pipeline):
            name = f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pipeline > 1 else "")
            (folder / name).mkdir(parents=True)
            whole = language_model(part, (stage * layers, (stage + 1) * layers))
            if stage:
                whole.pop("embedding")
            if stage < pipeline - 1:
                whole["encoder"] = {key: one for key, one in whole["encoder"].items() if "final" not in key}
                whole.pop("output_layer", None)
            state = {
                "args": args or arguments(config),
                "checkpoint_version": version,
                "iteration": 40,
                "model": {"language_model": whole},
                "optimizer": {"state": {}, "param_groups": []},
                "rng_state": [
                    {
                        "np_rng_state": np.random.RandomState(3).get_state(),
                        "random_rng_state": random.getstate(),
                    }
                ],
            }
            torch.save(state, folder / name / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text("40")


def write_deepspeed(root, config, weights, tensor, order, piped=False):
    """Write Megatron-DeepSpeed's tree: global_step*/mp_rank_TT_model_states.pt, or one
    file per layer of a pipeline.
    """
    folder = root / "global_step40"
    folder.mkdir(parents=True)
    args = arguments(config, deepspeed=True, deepspeed_config="ds_config.json")
    for rank, part in enumerate(cut(config, weights, tensor, order)):
        layers = config.model.num_layers
        module = None if piped else {"language_model": language_model(part, (0, layers))}
        state = {"module": module, "args": args, "checkpoint_version": 3.0, "iteration": 40, "tokens": 1}
        torch.save(state, folder / f"mp_rank_{rank:02d}_model_states.pt")
        if not piped:
            continue
        files = {number: {} for number in range(1, layers + 4)}
        for name, tensor_ in part.items():
            if name.startswith("layers."):
                _, index, rest = name.split(".", 2)
                files[int(index) + 2][rest] = tensor_
            elif name.startswith("final_layernorm."):
                files[layers + 2][name.partition(".")[2]] = tensor_
            elif name.startswith("output_layer."):
                files[layers + 3]["lm_head.weight"] = tensor_
            else:
                files[1][name] = tensor_
        if not files[layers + 3]:
            # A tied output layer is the embedding layer again.
            files[layers + 3] = files[1]
        for number, own in files.items():
            torch.save(own, folder / f"layer_{number:02d}-model_{rank:02d}-model_states.pt")
        # DeepSpeed numbers the ranks across all stages.
        torch.save(state, folder / f"mp_rank_{tensor + rank:02d}_model_states.pt")
    (root / "latest").write_text("global_step40")
    (root / "latest_checkpointed_iteration.txt").write_text("40")


def assert_joined(root, weights, order="groups"):
    tree = find_tree(root)
    read = MegatronWeights(tree, order)
    assert set(read.parameters) == set(weights)
    for name, weight in weights.items():
        assert torch.equal(read.read(name).view(weight.shape), weight), name
    return read


@pytest.mark.parametrize("tensor, pipeline", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 4)])
def test_ranks_are_joined(tensor, pipeline, model, tmp_path):
    """Shards of tensor ranks are joined by rows or columns; each stage numbers its layers from 0."""
    config, weights = model(GPT)
    write_own(tmp_path / "tree", config, weights, tensor, pipeline)
    read = assert_joined(tmp_path / "tree", weights)
    assert not read.is_ambiguous and read.vocab_size == ROWS
    theirs = read.model
    for field in ("num_layers", "hidden_size", "normalization", "activation", "position_embedding_type"):
        assert getattr(theirs, field) == getattr(config.model, field)


@pytest.mark.parametrize("version", [0, 1.0, 2.0])
def test_earlier_orders_of_query_key_and_value_are_read(version, model, tmp_path):
    """Row orders of query, key and value from earlier versions are converted as Megatron converts them."""
    config, weights = model(GPT)
    write_own(tmp_path / "tree", config, weights, 2, 1, version=version)
    assert_joined(tmp_path / "tree", weights)


@pytest.mark.parametrize("order", ["groups", "thirds"])
@pytest.mark.parametrize("changes", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("piped", [False, True], ids=["plain", "piped"])
def test_trees_of_deepspeed(order, changes, piped, model, tmp_path):
    """DeepSpeed's trees are read with grouped queries, a gated MLP and an untied output, in both row
    orders."""
    config, weights = model(changes)
    write_deepspeed(tmp_path / "tree", config, weights, 2, order, piped)
    read = assert_joined(tmp_path / "tree", weights, order)
    assert read.is_ambiguous
    other = MegatronWeights(find_tree(tmp_path / "tree"), "thirds" if order == "groups" else "groups")
    name = "layers.1.attention.query_key_value.weight"
    assert not torch.equal(other.read(name), read.read(name))


def test_with_one_group_on_each_rank_there_is_one_order(model, tmp_path):
    """With one query group per rank, both row orders are the same, so the user need not choose one."""
    config, weights = model({**LLAMA, "model.num_query_groups": 2})
    write_deepspeed(tmp_path / "tree", config, weights, 2, "thirds")
    assert not assert_joined(tmp_path / "tree", weights, "groups").is_ambiguous


def test_code_is_not_run_and_enums_are_looked_through(model, tmp_path, monkeypatch):
    """Reading a tree runs no code: only Megatron's own classes are allowed, and enums become plain values."""
    config, weights = model(GPT)

    class AttnMaskType(enum.Enum):
        padding = 1

    module = types.ModuleType("megatron.model.enums")
    module.AttnMaskType = AttnMaskType
    AttnMaskType.__module__, AttnMaskType.__qualname__ = module.__name__, "AttnMaskType"
    for name in ("megatron", "megatron.model", "megatron.model.enums"):
        monkeypatch.setitem(sys.modules, name, module)
    args = arguments(config, attn_mask=AttnMaskType.padding)
    write_own(tmp_path / "tree", config, weights, 1, 1, args=args)
    with monkeypatch.context() as patch:
        for name in ("megatron", "megatron.model", "megatron.model.enums"):
            patch.delitem(sys.modules, name)
        assert_joined(tmp_path / "tree", weights)
    args.evil = PickledCode(str(tmp_path / "ran"))
    write_own(tmp_path / "evil", config, weights, 1, 1, args=args)
    with pytest.raises(CheckpointError, match=r"model_optim_rng\.pt holds code"):
        MegatronWeights(find_tree(tmp_path / "evil"))
    assert not (tmp_path / "ran").exists()


def test_trees_that_are_not_whole(model, tmp_path, monkeypatch):
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    config, weights = model(LLAMA)
    write_deepspeed(tmp_path / "tree", config, weights, 2, "groups", piped=True)
    step = tmp_path / "tree" / "global_step40"
    (step / "layer_03-model_01-model_states.pt").unlink()
    with pytest.raises(CheckpointError) as refused:
        find_tree(tmp_path / "tree")
    assert str(refused.value) == (
        "tree/global_step40: 1 file is missing; the first belongs to tensor rank 1, layer 3. Copy the whole "
        "folder."
    )
    write_deepspeed(tmp_path / "unsaid", config, weights, 2, "groups", piped=True)
    for rank in (0, 1):
        (tmp_path / "unsaid" / "global_step40" / f"mp_rank_{rank:02d}_model_states.pt").unlink()
    with pytest.raises(
        CheckpointError, match="2 files are missing; the first belongs to tensor rank 0, pipe"
    ):
        find_tree(tmp_path / "unsaid")
    write_own(tmp_path / "own", config, weights, 2, 2)
    (tmp_path / "own" / "iter_0000040" / "mp_rank_00_001" / "model_optim_rng.pt").unlink()
    with pytest.raises(CheckpointError, match="the first belongs to tensor rank 0, pipeline rank 1"):
        find_tree(tmp_path / "own")
    (tmp_path / "own" / "latest_checkpointed_iteration.txt").write_text("41")
    with pytest.raises(CheckpointError, match="names the folder '41', which does not exist"):
        find_tree(tmp_path / "own")
    for said in ("9" * 5000, "x" * 5000):
        (tmp_path / "own" / "latest_checkpointed_iteration.txt").write_text(said)
        with pytest.raises(CheckpointError, match=f"names the folder '{said[:40]}'"):
            find_tree(tmp_path / "own")
    (step / "zero_pp_rank_0_mp_rank_00_model_states.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match="was saved with ZeRO 3"):
        find_tree(tmp_path / "tree")
    assert find_tree(tmp_path) is None and find_tree(tmp_path / "none") is None
    write_own(tmp_path / "cut", config, weights, 1, 1)
    path = tmp_path / "cut" / "iter_0000040" / "mp_rank_00" / "model_optim_rng.pt"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"is damaged, or was not written by torch\.save"):
        MegatronWeights(find_tree(tmp_path / "cut"))


@pytest.mark.parametrize(
    "more, said",
    [
        ({"apply_layernorm_1p": True}, "apply_layernorm_1p = True: norm weights stored minus 1"),
        ({"num_experts": [8]}, r"num_experts = \[8\]: mixture-of-experts models are not supported"),
        (
            {"position_embedding_type": "alibi"},
            "position_embedding_type = 'alibi': this kind of position embedding is not",
        ),
        ({"layernorm_zero_centered_gamma": True}, "gamma = True: norm weights stored minus 1"),
        (
            {"rotary_interleaved": True},
            "rotary_interleaved = True: rotary positions must rotate the halves of a head",
        ),
        ({"rotary_seq_len_interpolation_factor": 4}, "interpolation_factor = 4: scaled rotary positions are"),
        (
            {"window_size": (99, 0)},
            r"window_size = \(99, 0\): sliding windows are not supported in Megatron checkpoints",
        ),
        (
            {"num_layers": "4"},
            "the checkpoint's arguments have num_layers = '4', which must be a whole number of at least 1",
        ),
        (
            {"padded_vocab_size": None},
            "the checkpoint's arguments have padded_vocab_size = None, which must be a whole number of at",
        ),
        (
            {"num_attention_heads": 0},
            "the checkpoint's arguments have num_attention_heads = 0, which must be a whole number of at",
        ),
        ({"num_layers": 10**9}, "num_layers = 1000000000: Input should be less than or equal to 100000"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3: must divide num_attention_heads = 4"),
        ({"layernorm_epsilon": "x"}, "layernorm_epsilon = 'x': must be a number"),
        (
            {"tensor_model_parallel_size": 2},
            "tensor_model_parallel_size = 2, but the folder has files of only 1 rank",
        ),
        # The arguments describe fewer parameters than the files have, or another shape.
        ({"num_layers": 2}, r"tensor rank 0 holds layers\.2\.\S+, which is not part of the model that the"),
        ({"add_bias_linear": False}, r"rank 0 holds layers\.0\.\S+\.bias, which is not part of the model"),
        (
            {"padded_vocab_size": 600},
            r"0 of 1 has word_embeddings\.weight in the shape \[512, 64\], but .* require \[600",
        ),
    ],
)
def test_what_models_here_have_not_is_refused(more, said, model, tmp_path):
    config, weights = model(GPT)
    args = argparse.Namespace(**{**vars(arguments(config)), **more})
    write_own(tmp_path / "tree", config, weights, 1, 1, args=args)
    with pytest.raises(CheckpointError, match=said):
        read_all(tmp_path / "tree")


def read_all(root):
    read = MegatronWeights(find_tree(root))
    for name in read.parameters:
        read.read(name)


QKV = "layers.1.self_attention.query_key_value.weight"
OF_STATE = {
    "list": (lambda state: [state], "model_optim_rng.pt: does not hold a dictionary"),
    "args": (lambda state: {**state, "args": [1]}, "holds no arguments"),
    "version": (lambda state: {**state, "checkpoint_version": None}, "checkpoint_version = None must be a"),
    "model": (lambda state: {**state, "model": {"language_model": [1]}}, "rank 0 has no word_embeddings"),
    "layer": (
        lambda state: with_tensor(state, "layers.x.a", torch.ones(1)),
        "rank 0 holds layers.x.a, which",
    ),
    "unknown": (
        lambda state: with_tensor(state, QKV.replace("query_key_value", "q_layernorm"), torch.ones(1)),
        "rank 0 holds layers.1.attention.q_layernorm.weight, which is not part of the model",
    ),
    "shape": (
        lambda state: with_tensor(state, QKV, torch.ones(5, 3)),
        "weight in the shape [5, 3], but the arguments (args) require [96",
    ),
    "format": (
        lambda state: with_tensor(state, QKV, torch.ones(96, 64).long()),
        "rank 0 has layers.1.attention.query_key_value.weight as torch.int64",
    ),
}


def with_tensor(state, name, tensor):
    state["model"]["language_model"]["encoder"][name] = tensor
    return state


@pytest.mark.parametrize("version", [1.0, 3.0])
@pytest.mark.parametrize("kind", OF_STATE)
def test_files_that_hold_something_else(kind, version, model, tmp_path):
    config, weights = model(GPT)
    write_own(tmp_path / "tree", config, weights, 2, 1, version=version)
    change, said = OF_STATE[kind]
    for path in (tmp_path / "tree").rglob("*.pt"):
        torch.save(change(torch.load(path, weights_only=False)), path)
    with pytest.raises(CheckpointError, match=re.escape(said)):
        read_all(tmp_path / "tree")


def test_states_of_kernels_are_left_out(model, tmp_path):
    config, weights = model(GPT)
    write_own(tmp_path / "tree", config, weights, 1, 1)
    (path,) = (tmp_path / "tree").rglob("*.pt")
    state = torch.load(path, weights_only=False)
    with_tensor(state, "layers.1.self_attention._extra_state", torch.ones(1))
    torch.save(with_tensor(state, "layers.1.self_attention.rotary_emb.inv_freq", torch.ones(1)), path)
    assert_joined(tmp_path / "tree", weights)


def test_damaged_pickles(model, tmp_path):
    """A damaged pickle raises CheckpointError, whatever torch's reader raises."""
    config, weights = model({"model.num_layers": 1})
    write_own(tmp_path / "tree", config, weights, 1, 1)
    (path,) = (tmp_path / "tree").rglob("*.pt")
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        pickled = next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
    first = content.find(pickled)
    for seed in range(40):
        numbers = random.Random(seed)
        damaged = bytearray(content)
        damaged[first + numbers.randrange(len(pickled))] = numbers.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(CheckpointError):
            read_all(tmp_path / "tree")


def test_the_folder_of_a_model_is_no_tree(tmp_path):
    """A model folder with DeepSpeed's files and `latest`, as transformers' Trainer
    writes it, is not taken for a tree.
    """
    (tmp_path / "global_step500").mkdir()
    (tmp_path / "global_step500" / "zero_pp_rank_0_mp_rank_00_model_states.pt").write_bytes(b"")
    (tmp_path / "latest").write_text("global_step500")
    with pytest.raises(CheckpointError, match="was saved with ZeRO 3"):
        find_tree(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert find_tree(tmp_path) is None


@pytest.fixture
def in_this_process(monkeypatch, workspace):
    monkeypatch.setattr(from_megatron, "stream", lambda module, request: gpu_side.answers(request))
    monkeypatch.chdir(workspace)
    return workspace


def test_a_run_is_made_of_a_tree(in_this_process, model):
    """A tree is imported as one bit-identical file in the data directory; an
    ambiguous row order must be chosen.
    """
    workspace = in_this_process
    config, weights = model(LLAMA)
    write_deepspeed(workspace / "tree", config, weights, 2, "thirds")
    write_deepspeed(workspace / "learned", *model(GPT), 1, "groups")
    with pytest.raises(CheckpointError) as refused:
        import_model("tree", "mine")
    assert "--qkv-order groups (before) or thirds (after), or pass a text that the model knows" in str(
        refused.value
    )
    assert not (workspace / "mine.yaml").exists() and not list((workspace / "data").rglob("*.safetensors"))
    words = " ".join(f"word{number}" for number in range(600))
    make_tokenizer("large", [words], 700)
    for text, said in {
        words: "the text has the token id 6",
        "w": "the text has one token; at least 2 are needed",
        # More tokens than the model has positions.
        "a b c " * 200: "both orders of query, key and value give the same loss on the text",
    }.items():
        (workspace / "text.txt").write_text(text)
        with pytest.raises(CheckpointError, match=said):
            import_model("learned", "mine", ["tokenizer.name=large"], text="text.txt")
    with pytest.raises(ConfigError, match=r"--text x{77}\.\.\.: cannot be read: File name too long"):
        import_model("learned", "mine", ["tokenizer.name=large"], text="x" * 5000)
    imported = import_model("tree", "mine", qkv_order="thirds")
    kept = workspace / "data" / "model" / "mine.safetensors"
    assert imported.config.init_from == "data/model/mine.safetensors" and imported.family == "nbtrain"
    read = FolderWeights(open_model(kept), ROWS)
    for name, weight in weights.items():
        assert torch.equal(read.read(name).view(weight.shape), weight), name
    assert load("mine.yaml").model.num_query_groups == 4
    with pytest.raises(CheckpointError) as refused:
        import_model("tree", "mine", path="again.yaml", qkv_order="thirds")
    assert str(refused.value) == (
        "data/model/mine.safetensors already exists, and it is not overwritten. Choose another NAME, or "
        "remove the file if no run starts from it."
    )
    with pytest.raises(ConfigError, match="are only for Megatron checkpoints"):
        import_model("data/model/mine.safetensors", "other", qkv_order="thirds")
    plain = import_model("data/model/mine.safetensors", "other")
    assert plain.config.model == imported.config.model


def test_room_is_asked_for_the_weights_alone(in_this_process, model, monkeypatch):
    """An import requires disk space for the weights only, although Megatron's files
    also have optimizer state.
    """
    workspace = in_this_process
    config, weights = model({"model.num_layers": 1})
    write_own(workspace / "tree", config, weights, 1, 1)
    (path,) = (workspace / "tree").rglob("*.pt")
    state = torch.load(path, weights_only=False)
    state["optimizer"] = {"exp_avg": torch.zeros(8 << 20)}
    torch.save(state, path)
    needed = 4 * sum(weight.numel() for weight in weights.values()) + (16 << 20)
    assert path.stat().st_size > needed
    usage = shutil.disk_usage(workspace)
    free = [needed - 1]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free[0]))
    with pytest.raises(CheckpointError) as refused:
        import_model("tree", "mine")
    assert str(refused.value) == (
        "data/model: the weights need 16.3 MiB, but only 16.3 MiB is free. Free up space, or set "
        "NBTRAIN_DATA to a "
        "folder on another disk."
    )
    assert not list((workspace / "data").rglob("*mine*"))
    free[0] = needed
    assert import_model("tree", "mine").path.is_file()


@pytest.mark.slow
def test_the_order_is_chosen_by_the_loss_of_a_text(in_this_process, model, tmp_path):
    """An ambiguous row order is chosen by the loss on a text; the test's model has
    learned to use earlier tokens.
    """
    workspace = in_this_process
    words = [" alpha", " beta", " gamma", " delta", " epsilon", " zeta", " eta", " theta"]
    tokenizer = make_tokenizer("greek", ["".join(words) * 20], 300)
    known = [int(tokenizer.encode(word)[0]) for word in words]
    assert [len(tokenizer.encode(word)) for word in words] == [1] * 8
    config, _ = model({"model.num_layers": 2, "tokenizer.vocab_size": ROWS, "model.hidden_dropout": 0.0})
    net = build_model(config)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(120):
        # Two words alternate: the next word is the second last.
        pairs = torch.tensor(
            [random.Random(step).sample(known, 2) for step in torch.randint(10**6, (24,)).tolist()]
        )
        batch = pairs.repeat(1, 8)
        optimizer.zero_grad()
        net(batch[:, :-1], batch[:, 1:]).backward()
        optimizer.step()
    weights = {name: weight.detach() for name, weight in net.state_dict().items()}
    (workspace / "text.txt").write_text(" beta theta" * 8)
    for order in ("groups", "thirds"):
        write_deepspeed(workspace / order, config, weights, 2, order)
        imported = import_model(order, order, ["tokenizer.name=greek"], text="text.txt")
        said = f"query, key and value are read in the order {order}, with which the text has the lower"
        assert imported.notes[0].startswith(said)
    with pytest.raises(ConfigError, match="--text needs the tokenizer"):
        import_model("groups", "mine", text="text.txt")


@pytest.mark.parametrize("named", ["tree", "tree/iter_0000010"])
def test_a_distributed_checkpoint_says_how_it_is_converted(named, tmp_path, monkeypatch):
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    step = tmp_path / "tree" / "iter_0000010"
    step.mkdir(parents=True)
    (tmp_path / "tree" / "latest_checkpointed_iteration.txt").write_text("10")
    for name in ("__0_0.distcp", ".metadata", "common.pt", "metadata.json"):
        (step / name).touch()
    with pytest.raises(CheckpointError) as refused:
        find_tree(tmp_path / named)
    words = str(refused.value)
    assert words.startswith("tree/iter_0000010: ") and "torch_dist (*.distcp)" in words
    assert "--ckpt-convert-format torch --ckpt-convert-save ANOTHER_FOLDER" in words
