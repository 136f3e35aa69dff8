"""Describes a checkpoint: its manifest, and the contents of DeepSpeed's files other than tensors."""

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
from nbtrain.model.names import optimizer_group
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
    """Return the manifest of a checkpoint of `state` without its files; `parameters` from
    described_parameters().
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
        "versions": resume_report.software(),
        "device": resume_report.device(live.world.device),
        "optimizer": config.optimizer.type,
        "settings": resume_report.settings(config),
        "parameters": parameters,
        # With adapters: the weights that they belong to.
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
            # The tied word embedding is on the last stage too.
            found.setdefault(name, entry)
    return found


def optimizer_names(live: LiveRun) -> list[list[str]] | None:
    """Return the names behind the indices in torch's optimizer state for ZeRO 0; None for other stages."""
    if live.config.parallel.zero_stage:
        return None
    names = {id(parameter): name for name, parameter in trained_parameters(live.engine.module)}
    return [
        [names[id(parameter)] for parameter in group["params"]]
        for group in live.engine.optimizer.param_groups
    ]


def universal_checkpoint_info(config: RunConfig) -> dict[str, Any]:
    """Return the facts about parameters that DeepSpeed's own converter (ds_to_universal) needs."""
    learned = config.model.position_embedding_type == "learned_absolute"
    untied = config.model.untie_embeddings_and_output_weights
    info: dict[str, Any] = {
        "universal_checkpoint_version": UNIVERSAL_CHECKPOINT_VERSION,
        "original_vocab_size": config.tokenizer.vocab_size,
        "vocabulary_parameter_patterns": _vocabulary_patterns(config),
    }
    # A pattern that matches nothing is an error to DeepSpeed's converter.
    if config.parallel.pipeline_parallel_size > 1 and not untied:
        info["pipeline_replicated_parameter_patterns"] = [r"word_embeddings\.weight"]
    if config.parallel.tensor_parallel_size > 1:
        info["parameter_with_row_parallelism_patterns"] = [r"dense\.weight", r"dense_4h_to_h\.weight"]
        info["tp_replicated_parameter_patterns"] = [
            r"layernorm\.(weight|bias)",
            *([r"(position_embeddings|^1)\.weight"] if learned else ()),
            *((r"dense\.bias", r"dense_4h_to_h\.bias") if config.model.add_bias_linear else ()),
        ]  # fmt: skip
    return info


def _vocabulary_patterns(config: RunConfig) -> list[str]:
    """Return patterns for the parameters whose rows are tokens; a pipeline names its layers by number."""
    if not config.model.untie_embeddings_and_output_weights:
        return [r"word_embeddings\.weight"]
    if config.parallel.pipeline_parallel_size == 1:
        return [r"word_embeddings\.weight", r"output_layer\.weight"]
    return [r"^0\.weight", rf"^{config.model.num_layers + 3}\.weight"]
