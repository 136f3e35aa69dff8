"""Describes a checkpoint: its manifest, and the contents of DeepSpeed's files other than tensors."""

import re
import time
from typing import Any

from nbtrain.base import files
from nbtrain.base.run_directory.checkpoint_files import SCHEMA_VERSION
from nbtrain.checkpoint.live import resume_report
from nbtrain.checkpoint.live.live_parts import live_shape
from nbtrain.checkpoint.live.live_run import LiveRun, TrainState
from nbtrain.config.arithmetic.stages import stage_layers
from nbtrain.config.schema import ModelConfig, RunConfig
from nbtrain.config.sections.markers import Architecture, marked
from nbtrain.model.gpt_pipe import trained_parameters
from nbtrain.model.names import OF_VOCABULARY, WORD_EMBEDDINGS, optimizer_group, piped_name
from nbtrain.parallel.agreement import gather_objects
from nbtrain.parallel.tensor import partition_dim

# DeepSpeed's constant for the layout of universal_checkpoint_info (deepspeed/checkpoint/constants.py).
UNIVERSAL_CHECKPOINT_VERSION = 0.2


def architecture(config: RunConfig) -> dict[str, Any]:
    """Return the settings that determine the shapes and the meaning of the parameters, except the
    vocabulary.
    """
    return {name: config.model.recorded(name) for name in marked(ModelConfig, Architecture)}


def layout(config: RunConfig) -> dict[str, Any]:
    """Return the layout that determines how the state is split into files.

    DeepSpeed itself can load a checkpoint only into the same layout.
    """
    parallel, precision = config.parallel, config.precision
    found: dict[str, Any] = {key: getattr(parallel, key) for key in resume_report.SIZES}
    found["weights"] = "fp32" if precision.autocast else precision.dtype
    if parallel.pipeline_parallel_size > 1:
        found["stage_layers"] = stage_layers(config)
    if parallel.zero_stage == 3:
        found["sub_group_size"] = parallel.sub_group_size
    for key in ("offload_optimizer", "offload_param"):
        if (place := getattr(parallel, key).device) != "none":
            found[key] = place
    return found


def manifest_of(live: LiveRun, state: TrainState, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a checkpoint of `state`, without the list of files. `parameters` is the result
    of described_parameters().
    """
    config = live.config
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": live.run.run_id,
        "step": state.step,
        "consumed_samples": state.data.consumed_samples,
        "consumed_tokens": state.data.consumed_samples * config.model.seq_length,
        "created_at": time.time(),
        "layout": layout(config),
        "architecture": architecture(config),
        "vocab_size": config.tokenizer.vocab_size,
        "padded_vocab_size": config.padded_vocab_size,
        "tokenizer_sha256": live.tokenizer_sha256,
        "code_sha256": live.code_sha256,
        "data_state": state.data.to_dict(),
        "next_batch_sha256": live.next_batch_sha256(state.data),
        "validation_loss": state.validation_loss,
        "evaluated_step": state.evaluated_step,
        **resume_report.conditions(live.world.device),
        "optimizer": config.optimizer.type,
        "settings": resume_report.settings(config),
        "parameters": parameters,
        # With adapters, the base weights on which the adapters were trained.
        "init_from": files.read_json(live.run.init_from_json) if config.lora is not None else None,
    }


def described_parameters(live: LiveRun) -> dict[str, Any]:
    """Return {canonical name: {shape, partition_dim, group, stage}} of all trained parameters of the model.

    All ranks call it together.
    """
    stage, data, tensor = live.config.topology.coordinate(live.world.rank)
    held, muon = {}, live.config.optimizer.type == "Muon"
    if data == tensor == 0:
        for name, parameter in trained_parameters(live.engine.module):
            shape, dim = list(live_shape(parameter)), partition_dim(parameter)
            if dim is not None:
                shape[dim] *= live.config.parallel.tensor_parallel_size
            held[name] = {
                "shape": shape,
                "partition_dim": dim,
                "group": optimizer_group(name, muon, len(shape)),
                "stage": stage,
            }
    found: dict[str, Any] = {}
    for described in gather_objects(held):
        for name, entry in described.items():
            # The last stage also has the tied word embedding; the first stage's entry is kept.
            found.setdefault(name, entry)
    return found


def optimizer_names(live: LiveRun) -> list[list[str]] | None:
    """Return the parameter names of each optimizer group, in order; None unless the run uses ZeRO 0.

    Torch's optimizer state, which only ZeRO 0 saves, has indices instead of names.
    """
    if live.config.parallel.zero_stage:
        return None
    names = {id(parameter): name for name, parameter in trained_parameters(live.engine.module)}
    return [
        [names[id(parameter)] for parameter in group["params"]]
        for group in live.engine.optimizer.param_groups
    ]


def universal_checkpoint_info(config: RunConfig, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the description of the parameters that DeepSpeed's own converter (ds_to_universal) needs.

    `parameters` is the result of described_parameters(). The converter matches each pattern from the first
    character of a name, and fails if a pattern matches no name.
    """
    tied = not config.model.untie_embeddings_and_output_weights
    piped = config.parallel.pipeline_parallel_size > 1
    names = {name: piped_name(name, config.model.num_layers, tied) if piped else name for name in parameters}
    info: dict[str, Any] = {
        "universal_checkpoint_version": UNIVERSAL_CHECKPOINT_VERSION,
        "original_vocab_size": config.tokenizer.vocab_size,
        "vocabulary_parameter_patterns": [_pattern(names[name]) for name in names if name in OF_VOCABULARY],
    }
    if piped and tied and WORD_EMBEDDINGS in names:
        info["pipeline_replicated_parameter_patterns"] = [_pattern(names[WORD_EMBEDDINGS])]
    if config.parallel.tensor_parallel_size > 1:
        dims = {names[name]: entry["partition_dim"] for name, entry in parameters.items()}
        info["parameter_with_row_parallelism_patterns"] = _patterns(dims, 1)
        info["tp_replicated_parameter_patterns"] = _patterns(dims, None)
    return info


def _pattern(name: str) -> str:
    return f"{re.escape(name)}$"


def _patterns(dims: dict[str, int | None], dim: int | None) -> list[str]:
    """Return patterns for the names in `dims`, {name: dimension}, that are partitioned along `dim`.

    The same parameter of all layers gets one pattern, unless some layers partition it along another
    dimension.
    """
    of_all_layers: dict[str, set[int | None]] = {}
    for name in dims:
        of_all_layers.setdefault(_of_any_layer(name), set()).add(dims[name])
    return sorted(
        {
            _of_any_layer(name) if of_all_layers[_of_any_layer(name)] == {dim} else _pattern(name)
            for name in dims
            if dims[name] == dim
        }
    )


def _of_any_layer(name: str) -> str:
    """Return a pattern that matches this parameter in any layer: `layers.3.mlp.w` or, in a pipeline,
    `5.mlp.w`.
    """
    return re.sub(r"^(layers\\\.)?\d+", r"\1\\d+", _pattern(name))
