"""Checkpoints of Megatron-LM and Megatron-DeepSpeed: the files of each rank, and the arguments.

    <tree>/latest_checkpointed_iteration.txt                   Megatron-LM
    <tree>/iter_0000123/mp_rank_TT[_PPP]/model_optim_rng.pt    tensor rank TT, pipeline rank PPP
    <tree>/latest                                              DeepSpeed
    <tree>/global_step123/mp_rank_TT_model_states.pt           tensor rank TT, without a pipeline
    <tree>/global_step123/layer_LL-model_TT-model_states.pt    layer LL of a pipeline: 1 is the embeddings,
                                                               2 and up are the blocks, then the norm, then
                                                               an untied output layer

The format was read in Megatron-DeepSpeed 4efb479d (checkpointing.py, gpt_model.py, language_model.py,
arguments.py). The files are pickles, which only the process with torch reads
(checkpoint/pretrained/megatron_tree.py).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base.errors import CheckpointError
from nbtrain.base.text.amounts import counted
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import display
from nbtrain.pretrained.folder import CONFIG, ZERO_3_FILE

TRACKER, LATEST = "latest_checkpointed_iteration.txt", "latest"
STEP = re.compile(r"(iter_\d{1,18}|release|global_step\d{1,18})")
OWN_FILE = re.compile(r"mp_rank_(\d{1,6})(?:_(\d{1,6}))?/model_optim_rng\.pt")
MODEL_FILE = re.compile(r"mp_rank_(\d{1,6})_model_states\.pt")
LAYER_FILE = re.compile(r"layer_(\d{1,6})-model_(\d{1,6})-model_states\.pt")
# Orders of the rows in the packed matrix of queries, keys and values. In "groups", each head's (or query
# group's) queries, keys and values follow each other. In "thirds", all queries of a tensor rank come first,
# then all keys, then all values.
ORDERS = ("groups", "thirds")
# Arguments that every checkpoint must have, because they determine the sizes of the model.
NUMBERS = (
    *("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "max_position_embeddings"),
)


@dataclass(frozen=True)
class MegatronTree:
    """The files of one step in a Megatron checkpoint."""

    folder: Path
    files: dict[tuple[int, int], Path]
    """{(tensor rank, pipeline rank): file}; with `layers`, {(tensor rank, 0): file with the arguments}."""
    layers: dict[tuple[int, int], Path]
    """{(tensor rank, layer): file} for a DeepSpeed pipeline; {} for other checkpoints."""

    @property
    def tensor_parallel_size(self) -> int:
        return 1 + max(tensor for tensor, _ in (*self.files, *self.layers))

    @property
    def pipeline_parallel_size(self) -> int:
        return 1 + max(pipeline for _, pipeline in self.files)


def find_tree(path: Path) -> MegatronTree | None:
    """Return the Megatron checkpoint at `path`; None if `path` is not one.

    If `path` is not the folder of a step, the newest step is used. Raises CheckpointError if the checkpoint
    is incomplete, or if its format is not supported.
    """
    folder = _step_of(path)
    if folder is None:
        return None
    names = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.pt")}
    if next(folder.glob("*.distcp"), None) is not None:
        raise CheckpointError(
            f"{display(folder)}: this checkpoint was saved in Megatron-LM's format torch_dist (*.distcp), "
            "which is not supported. Run the training command once with --ckpt-convert-format torch "
            "--ckpt-convert-save ANOTHER_FOLDER, which writes mp_rank_* folders and exits, and pass that "
            "folder instead."
        )
    if any(ZERO_3_FILE.fullmatch(name) for name in names):
        raise CheckpointError(
            f"{display(folder)}: this checkpoint was saved with ZeRO 3, so its files contain shards of flat "
            "buffers instead of weights. Save it once with a lower ZeRO stage, or combine the shards with "
            "DeepSpeed's zero_to_fp32.py."
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
        # DeepSpeed numbers all (pipeline, tensor) ranks consecutively. Each rank's file has the arguments, so
        # the files of the first pipeline stage are enough.
        tensor_size = 1 + max(tensor for tensor, _ in layers)
        files = {(rank, 0): file for (rank, _), file in sorted(files.items()) if rank < tensor_size}
    tree = MegatronTree(folder, dict(sorted(files.items())), dict(sorted(layers.items())))
    _check_whole(tree)
    return tree


def _step_of(path: Path) -> Path | None:
    """Return the folder of the step that `path` refers to; None if `path` is not a Megatron checkpoint.

    `path` is the folder of a step, or the checkpoint's folder, whose newest step is returned.
    """
    # transformers' Trainer leaves DeepSpeed's files in the folder of a model.
    if not path.is_dir() or (path / CONFIG).is_file():
        return None
    if STEP.fullmatch(path.name):
        return path
    for name in (TRACKER, LATEST):
        if (path / name).is_file():
            said = _said(path / name)
            is_number = name == TRACKER and re.fullmatch(r"\d{1,18}", said)
            step = f"iter_{int(said):07d}" if is_number else said
            found = STEP.fullmatch(step) is not None and (path / step).is_dir()
            if not found and name == TRACKER and (path / LATEST).is_file():
                continue  # A DeepSpeed checkpoint may have both files; `latest` has the right folder name.
            if not found:
                raise CheckpointError(
                    f"{display(path / name)}: the file names the folder {said[:40]!r}, which does not exist. "
                    "Pass the folder of a step instead."
                )
            return path / step
    return None


def _said(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise CheckpointError(
            f"{display(path)}: cannot be read: {error.strerror}. Check its permissions."
        ) from None


def _check_whole(tree: MegatronTree) -> None:
    ranks = range(tree.tensor_parallel_size)
    if tree.layers:
        # The first layer of a pipeline (and sometimes the last) only converts inputs and has no file.
        last = max(layer for _, layer in tree.layers)
        tables = [("pipeline rank", tree.files, range(1)), ("layer", tree.layers, range(1, last + 1))]
    else:
        tables = [("pipeline rank", tree.files, range(tree.pipeline_parallel_size))]
    # The ranks in file names may be huge numbers, so missing files are counted without listing every rank.
    for what, found, others in tables:
        missing = len(ranks) * len(others) - sum(other in others for _, other in found)
        if missing:
            cells = ((tensor, other) for tensor in ranks for other in others)
            tensor, other = next(cell for cell in cells if cell not in found)
            raise CheckpointError(
                f"{display(tree.folder)}: {counted(missing, 'file')} {'is' if missing == 1 else 'are'} "
                f"missing; the first belongs to tensor rank {tensor}, {what} {other}. Copy the whole folder."
            )


# {argument that changes what a model computes: reason why it is not supported}
NOT_HERE = {
    "apply_residual_connection_post_layernorm": "residual connections after the norms are not supported",
    "apply_layernorm_1p": "norm weights stored minus 1 are not supported",
    "layernorm_zero_centered_gamma": "norm weights stored minus 1 are not supported",
    "geglu": "this gated activation is not supported",
    "quick_geglu": "this gated activation is not supported",
    "multi_latent_attention": "this kind of attention is not supported",
    "qk_l2_norm": "these norms are not supported",
    "qk_layernorm": "query and key norms are not supported in Megatron checkpoints",
    "window_size": "sliding windows are not supported in Megatron checkpoints",
    "no_rope_freq": "layers without rotary positions are not supported in Megatron checkpoints",
    "rotary_interleaved": "rotary positions must rotate the halves of a head, not adjacent channels",
    "use_rope_scaling": "scaled rotary positions are not supported in Megatron checkpoints",
    "use_mup": "this scaling of the model is not supported",
}


def fields_of_arguments(args: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of nbtrain's `model` section that correspond to Megatron's arguments.

    `where` is the file in error messages. Raises CheckpointError for an unsupported option, and for a value
    that must be a number but is not.
    """

    def refuse(name: str, why: str) -> CheckpointError:
        return CheckpointError(f"{where}: {name} = {shortened(repr(args.get(name)))}: {why}.")

    def number(name: str, default: float) -> float:
        value = args.get(name)
        if value is None:
            return default
        if type(value) not in (int, float):
            raise refuse(name, "must be a number")
        return float(value)

    for name, why in NOT_HERE.items():
        if args.get(name) not in (None, False):
            raise refuse(name, why)
    if number("rotary_seq_len_interpolation_factor", 1.0) != 1.0:
        name = "rotary_seq_len_interpolation_factor"
        raise refuse(name, "scaled rotary positions are not supported in Megatron checkpoints")
    for name in NUMBERS:
        whole_number(args, name, where)
    experts = args.get("num_experts")
    if experts not in (None, 1, [1], 0):
        raise refuse("num_experts", "mixture-of-experts models are not supported")
    heads, hidden = args["num_attention_heads"], args["hidden_size"]
    of_groups = "num_query_groups" if args.get("group_query_attention") else "num_key_value_heads"
    groups = args.get(of_groups)
    if groups is not None and heads % whole_number(args, of_groups, where):
        raise refuse(of_groups, f"must divide num_attention_heads = {heads}")
    rope = args.get("position_embedding_type") == "rope" or bool(args.get("use_rotary_position_embeddings"))
    if not rope and args.get("position_embedding_type") not in (None, "learned_absolute"):
        raise refuse("position_embedding_type", "this kind of position embedding is not supported")
    normalization = str(args.get("normalization", "LayerNorm"))
    kinds = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
    if normalization.lower() not in kinds:
        raise refuse("normalization", "this norm is not supported")
    activation = "swiglu" if args.get("swiglu") else "squared_relu" if args.get("squared_relu") else "gelu"
    fields: dict[str, Any] = {
        "num_layers": args["num_layers"],
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_hidden_size": args["ffn_hidden_size"],
        "max_position_embeddings": args["max_position_embeddings"],
        "hidden_dropout": number("hidden_dropout", 0.0),
        "attention_dropout": number("attention_dropout", 0.0),
        "normalization": kinds[normalization.lower()],
        "norm_epsilon": number("norm_epsilon", number("layernorm_epsilon", 1e-5)),
        "activation": activation,
        "add_bias_linear": bool(args.get("add_bias_linear", True)),
        "add_qkv_bias": bool(args.get("add_qkv_bias", False)),
        "position_embedding_type": "rope" if rope else "learned_absolute",
        "untie_embeddings_and_output_weights": bool(args.get("untie_embeddings_and_output_weights", False)),
    }
    if rope:
        fields["rotary_percent"] = number("rotary_percent", 1.0)
        fields["rotary_base"] = number("rotary_base", number("rope_theta", 10_000.0))
    if groups not in (None, heads):
        fields["num_query_groups"] = groups
    if (channels := args.get("kv_channels")) not in (None, hidden // heads):
        fields["kv_channels"] = channels
    return fields


def whole_number(args: Mapping[str, Any], name: str, where: str) -> int:
    """Return Megatron's argument `name`. Raises CheckpointError if it is not a whole number of at least 1."""
    value = args.get(name)
    if type(value) is not int or value < 1:
        if name not in args:
            raise CheckpointError(f"{where}: the checkpoint's arguments have no {name}, which is required.")
        raise CheckpointError(
            f"{where}: the checkpoint's arguments have {name} = {shortened(repr(value))}, which must be a "
            "whole number of at least 1."
        )
    return value


def is_gelu_of_erf(args: Mapping[str, Any]) -> bool:
    """Return whether the MLP computed GELU with erf. By default, Megatron uses a fused GELU with tanh."""
    plain = not (args.get("swiglu") or args.get("squared_relu") or args.get("openai_gelu"))
    return plain and not args.get("bias_gelu_fusion", True)
