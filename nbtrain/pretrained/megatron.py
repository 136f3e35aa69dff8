"""A checkpoint tree of Megatron-LM or Megatron-DeepSpeed: which file is whose, and what its arguments say.

    <tree>/latest_checkpointed_iteration.txt                   Megatron's own
    <tree>/iter_0000123/mp_rank_TT[_PPP]/model_optim_rng.pt    tensor rank TT, pipeline rank PPP
    <tree>/latest                                              with DeepSpeed
    <tree>/global_step123/mp_rank_TT_model_states.pt           without a pipeline
    <tree>/global_step123/layer_LL-model_TT-model_states.pt    layer LL of a pipeline: 1 the embeddings, 2 ..
                                                               the blocks, then the norm, then an output of
                                                               its own

Read in Megatron-DeepSpeed 4efb479d (checkpointing.py, gpt_model.py, language_model.py, arguments.py). The
files are pickles: the GPU side reads them (checkpoint/pretrained/megatron_tree.py).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base.errors import CheckpointError
from nbtrain.base.workspace import display

TRACKER, LATEST = "latest_checkpointed_iteration.txt", "latest"
STEP = re.compile(r"(iter_\d+|release|global_step\d+)")
OWN_FILE = re.compile(r"mp_rank_(\d+)(?:_(\d+))?/model_optim_rng\.pt")
MODEL_FILE = re.compile(r"mp_rank_(\d+)_model_states\.pt")
LAYER_FILE = re.compile(r"layer_(\d+)-model_(\d+)-model_states\.pt")
ZERO_3_FILE = re.compile(r"zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt")
# Orders of the rows of query, key and value: by head or group, or all queries of a tensor rank first.
ORDERS = ("groups", "thirds")


@dataclass(frozen=True)
class MegatronTree:
    """The files of one step."""

    folder: Path
    files: dict[tuple[int, int], Path]
    """{(tensor rank, pipeline rank): file}; with `layers` {(tensor rank, 0): file of arguments}."""
    layers: dict[tuple[int, int], Path]
    """{(tensor rank, layer): file} of a pipeline of DeepSpeed."""

    @property
    def tensor_parallel_size(self) -> int:
        return 1 + max(tensor for tensor, _ in self.files)

    @property
    def pipeline_parallel_size(self) -> int:
        return 1 + max(pipeline for _, pipeline in self.files)

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in (*self.files.values(), *self.layers.values()))


def find_tree(path: Path) -> MegatronTree | None:
    """The tree at `path`, its newest step or the step that `path` is; None if there is none.

    Raises CheckpointError if it is not whole, or holds no weights.
    """
    folder = _step_of(path)
    if folder is None:
        return None
    names = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.pt")}
    if any(ZERO_3_FILE.fullmatch(name) for name in names):
        raise CheckpointError(
            f"{display(folder)}: was saved with ZeRO 3, whose files hold parts of flat buffers in place of "
            "weights. Save it once with a lower stage, or join it with DeepSpeed's zero_to_fp32.py."
        )
    files, layers = {}, {}
    for name, file in names.items():
        if (found := OWN_FILE.fullmatch(name)) is not None:
            files[int(found[1]), int(found[2] or 0)] = file
        elif (found := MODEL_FILE.fullmatch(name)) is not None:
            files[int(found[1]), 0] = file
        elif (found := LAYER_FILE.fullmatch(name)) is not None:
            layers[int(found[2]), int(found[1])] = file
    if not files:
        return None
    if layers:
        # DeepSpeed numbers (pipeline, tensor) ranks in one row, and each has the arguments: one is enough.
        tensor_size = 1 + max(tensor for tensor, _ in layers)
        files = {(rank, 0): file for (rank, _), file in sorted(files.items()) if rank < tensor_size}
    tree = MegatronTree(folder, dict(sorted(files.items())), dict(sorted(layers.items())))
    _check_whole(tree)
    return tree


def _step_of(path: Path) -> Path | None:
    """The folder of a step."""
    if not path.is_dir():
        return None
    if STEP.fullmatch(path.name):
        return path
    for name, form in ((TRACKER, "iter_{:07d}"), (LATEST, "{}")):
        if (path / name).is_file():
            said = (path / name).read_text(encoding="utf-8", errors="replace").strip()
            step = path / (form.format(int(said)) if said.isdecimal() else said)
            if name == TRACKER and not step.is_dir() and (path / LATEST).is_file():
                continue  # DeepSpeed's tree has both files, and folders of its own name
            if not STEP.fullmatch(step.name) or not step.is_dir():
                raise CheckpointError(
                    f"{display(path / name)}: names {said[:40]!r}, and there is no such folder beside it. "
                    "Name the folder of a step."
                )
            return step
    return None


def _check_whole(tree: MegatronTree) -> None:
    wanted = {
        (tensor, pipeline)
        for tensor in range(tree.tensor_parallel_size)
        for pipeline in range(tree.pipeline_parallel_size)
    }
    missing = sorted(wanted - set(tree.files))
    if tree.layers:
        last = max(layer for _, layer in tree.layers)
        # The first layer of a pipeline converts inputs, and the last may: they have no file.
        ranks = range(tree.tensor_parallel_size)
        cells = {(tensor, layer) for tensor in ranks for layer in range(1, last + 1)}
        missing += sorted(cells - set(tree.layers))
    if missing:
        tensor, other = missing[0]
        what = "layer" if tree.layers else "pipeline rank"
        raise CheckpointError(
            f"{display(tree.folder)}: {len(missing)} of its files are missing, first that of tensor rank "
            f"{tensor}, {what} {other}. Copy the whole folder."
        )


def fields_of_arguments(args: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fields of our `model` section from Megatron's arguments. Raises CheckpointError for what is not
    here."""

    def refuse(name: str, why: str) -> CheckpointError:
        return CheckpointError(f"{where}: {name} = {args.get(name)!r}: {why}.")

    for name, why in (
        ("apply_residual_connection_post_layernorm", "residuals are taken before the norms here"),
        ("apply_layernorm_1p", "weights of norms that are stored less 1 are not read"),
        ("geglu", "this gated activation is not here"),
        ("multi_latent_attention", "this attention is not here"),
    ):
        if args.get(name):
            raise refuse(name, why)
    experts = args.get("num_experts")
    if experts not in (None, 1, [1], 0):
        raise refuse("num_experts", "mixtures of experts are not here")
    heads, hidden = args["num_attention_heads"], args["hidden_size"]
    groups = args.get("num_key_value_heads")
    if args.get("group_query_attention"):
        groups = args.get("num_query_groups")
    rope = args.get("position_embedding_type") == "rope" or bool(args.get("use_rotary_position_embeddings"))
    if not rope and args.get("position_embedding_type") not in (None, "learned_absolute"):
        raise refuse("position_embedding_type", "these positions are not here")
    normalization = str(args.get("normalization", "LayerNorm"))
    kinds = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
    if normalization.lower() not in kinds:
        raise refuse("normalization", "this norm is not here")
    activation = "swiglu" if args.get("swiglu") else "squared_relu" if args.get("squared_relu") else "gelu"
    fields: dict[str, Any] = {
        "num_layers": args["num_layers"],
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_hidden_size": args["ffn_hidden_size"],
        "max_position_embeddings": args["max_position_embeddings"],
        "hidden_dropout": float(args.get("hidden_dropout", 0.0)),
        "attention_dropout": float(args.get("attention_dropout", 0.0)),
        "normalization": kinds[normalization.lower()],
        "norm_epsilon": float(args.get("norm_epsilon", args.get("layernorm_epsilon", 1e-5))),
        "activation": activation,
        "add_bias_linear": bool(args.get("add_bias_linear", True)),
        "add_qkv_bias": bool(args.get("add_qkv_bias", False)),
        "position_embedding_type": "rope" if rope else "learned_absolute",
        "untie_embeddings_and_output_weights": bool(args.get("untie_embeddings_and_output_weights", False)),
    }
    if rope:
        fields["rotary_percent"] = float(args.get("rotary_percent", 1.0))
        fields["rotary_base"] = float(args.get("rotary_base") or args.get("rope_theta") or 10_000.0)
    if groups not in (None, heads):
        fields["num_query_groups"] = groups
    if (channels := args.get("kv_channels")) not in (None, hidden // heads):
        fields["kv_channels"] = channels
    return fields


def is_gelu_of_erf(args: Mapping[str, Any]) -> bool:
    """Whether the MLP computed GELU by erf: Megatron fuses the bias with the tanh form unless it is told not
    to."""
    plain = not (args.get("swiglu") or args.get("squared_relu") or args.get("openai_gelu"))
    return plain and not args.get("bias_gelu_fusion", True)
