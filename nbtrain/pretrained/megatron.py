"""Checkpoint trees of Megatron-LM or Megatron-DeepSpeed: the files of each rank, and the arguments.

    <tree>/latest_checkpointed_iteration.txt                   Megatron's own
    <tree>/iter_0000123/mp_rank_TT[_PPP]/model_optim_rng.pt    tensor rank TT, pipeline rank PPP
    <tree>/latest                                              with DeepSpeed
    <tree>/global_step123/mp_rank_TT_model_states.pt           without a pipeline
    <tree>/global_step123/layer_LL-model_TT-model_states.pt    layer LL of a pipeline: 1 the embeddings, 2 ..
                                                               the blocks, then the norm, then an untied
                                                               output

Read in Megatron-DeepSpeed 4efb479d (checkpointing.py, gpt_model.py, language_model.py, arguments.py). The
files are pickles: the GPU side reads them (checkpoint/pretrained/megatron_tree.py).
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
# Orders of the rows of query, key and value: by head or group, or all queries of a tensor rank first.
ORDERS = ("groups", "thirds")
# Arguments without which no model is known.
NUMBERS = (
    *("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "max_position_embeddings"),
)


@dataclass(frozen=True)
class MegatronTree:
    """The files of one step of a tree."""

    folder: Path
    files: dict[tuple[int, int], Path]
    """{(tensor rank, pipeline rank): file}; with `layers`, {(tensor rank, 0): file with the arguments}."""
    layers: dict[tuple[int, int], Path]
    """{(tensor rank, layer): file} of a DeepSpeed pipeline."""

    @property
    def tensor_parallel_size(self) -> int:
        return 1 + max(tensor for tensor, _ in (*self.files, *self.layers))

    @property
    def pipeline_parallel_size(self) -> int:
        return 1 + max(pipeline for _, pipeline in self.files)


def find_tree(path: Path) -> MegatronTree | None:
    """Return the tree at `path`, for its newest step or for the step that `path` names; None if there is no
    tree.

    Raises CheckpointError if the tree is not complete, or holds no weights.
    """
    folder = _step_of(path)
    if folder is None:
        return None
    names = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.pt")}
    if next(folder.glob("*.distcp"), None) is not None:
        raise CheckpointError(
            f"{display(folder)}: was saved in Megatron-LM's format torch_dist (*.distcp), which is not "
            "supported. Start its training command once with --ckpt-convert-format torch --ckpt-convert-save "
            "ANOTHER_FOLDER, which writes mp_rank_* folders and ends, and name that folder."
        )
    if any(ZERO_3_FILE.fullmatch(name) for name in names):
        raise CheckpointError(
            f"{display(folder)}: was saved with ZeRO 3, whose files hold parts of flat buffers instead of "
            f"weights. Save it once with a lower stage, or join it with DeepSpeed's zero_to_fp32.py."
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
    """Return the folder of a step."""
    # Trainer of transformers leaves DeepSpeed's files in the folder of a model.
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
                continue  # DeepSpeed's tree has both files, and its folders have another name.
            if not found:
                raise CheckpointError(
                    f"{display(path / name)}: names {said[:40]!r}, but there is no such folder next to it. "
                    "Name the folder of a step."
                )
            return path / step
    return None


def _said(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise CheckpointError(f"{display(path)}: cannot be read: {error.strerror}.") from None


def _check_whole(tree: MegatronTree) -> None:
    ranks = range(tree.tensor_parallel_size)
    if tree.layers:
        # The first layer of a pipeline converts inputs, and the last may: they have no file.
        last = max(layer for _, layer in tree.layers)
        tables = [("pipeline rank", tree.files, range(1)), ("layer", tree.layers, range(1, last + 1))]
    else:
        tables = [("pipeline rank", tree.files, range(tree.pipeline_parallel_size))]
    # A number in a name may be anything: no more cells are looked at than there are files.
    for what, found, others in tables:
        missing = len(ranks) * len(others) - sum(other in others for _, other in found)
        if missing:
            cells = ((tensor, other) for tensor in ranks for other in others)
            tensor, other = next(cell for cell in cells if cell not in found)
            raise CheckpointError(
                f"{display(tree.folder)}: {counted(missing, 'file')} of it "
                f"{'is' if missing == 1 else 'are'} missing, the first from tensor rank {tensor}, {what} "
                f"{other}. Copy the whole folder."
            )


# {an argument that changes what a model computes: why a model with it is not read}.
NOT_HERE = {
    "apply_residual_connection_post_layernorm": "residual connections after the norms are not supported",
    "apply_layernorm_1p": "norm weights stored minus 1 are not supported",
    "layernorm_zero_centered_gamma": "norm weights stored minus 1 are not supported",
    "geglu": "this gated activation is not supported",
    "quick_geglu": "this gated activation is not supported",
    "multi_latent_attention": "this kind of attention is not supported",
    "qk_l2_norm": "these norms are not supported",
    "qk_layernorm": "norms of queries and keys are not read from a tree",
    "window_size": "sliding windows are not read from a tree",
    "no_rope_freq": "layers without rotary positions are not read from a tree",
    "rotary_interleaved": "only rotary positions that rotate halves of a head are supported, not neighbours",
    "use_rope_scaling": "scaled rotary positions are not read from a tree",
    "use_mup": "this scaling of the model is not supported",
}


def fields_of_arguments(args: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of our `model` section that correspond to Megatron's arguments.

    Raises CheckpointError for an unsupported option, and for a value that should be a number but is not.
    """

    def refuse(name: str, why: str) -> CheckpointError:
        return CheckpointError(f"{where}: {name} = {shortened(repr(args.get(name)))}: {why}.")

    def number(name: str, default: float) -> float:
        value = args.get(name)
        if value is None:
            return default
        if type(value) not in (int, float):
            raise refuse(name, "a number is needed")
        return float(value)

    for name, why in NOT_HERE.items():
        if args.get(name) not in (None, False):
            raise refuse(name, why)
    if number("rotary_seq_len_interpolation_factor", 1.0) != 1.0:
        name = "rotary_seq_len_interpolation_factor"
        raise refuse(name, "scaled rotary positions are not read from a tree")
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
        raise refuse("position_embedding_type", "these positions are not supported")
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
    """Return an argument that must be an integer of at least 1. Raises CheckpointError otherwise."""
    value = args.get(name)
    if type(value) is not int or value < 1:
        said = f"{name} = {shortened(repr(value))}" if name in args else f"no {name}"
        raise CheckpointError(
            f"{where}: its arguments have {said}: a whole number of at least 1 is required."
        )
    return value


def is_gelu_of_erf(args: Mapping[str, Any]) -> bool:
    """Return whether the MLP computed GELU by erf. By default, Megatron fuses the bias with the tanh form."""
    plain = not (args.get("swiglu") or args.get("squared_relu") or args.get("openai_gelu"))
    return plain and not args.get("bias_gelu_fusion", True)
