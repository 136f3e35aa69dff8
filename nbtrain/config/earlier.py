"""Runs of earlier revisions: fields that their files lack, and fields that were called otherwise."""

from collections.abc import Mapping
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.config.backend_section import HostsConfig, SlurmConfig
from nbtrain.config.kubernetes_section import KubernetesConfig
from nbtrain.config.lora_section import LoraConfig
from nbtrain.config.notify_section import NotifyConfig
from nbtrain.config.schedule_section import OptimizerConfig
from nbtrain.config.schema import ModelConfig, RunConfig
from nbtrain.config.watch_section import CheckpointConfig
from nbtrain.config.workers_section import SlurmWorkersConfig, WorkersConfig
from nbtrain.config.yaml_source import Located

# Fields of `model` that earlier revisions lack, with the values that models had then.
ADDED = (
    *("activation", "add_bias_linear", "add_qkv_bias", "normalization", "position_embedding_type"),
    *("rope_scaling", "rotary_base", "rotary_percent", "untie_embeddings_and_output_weights"),
    *("architecture", "num_query_groups", "kv_channels", "qk_layernorm", "window_size"),
    *("window_attn_skip_freq", "no_rope_freq", "attn_logit_softcapping", "final_logit_softcapping"),
)
ADDED_TO_MODEL = {name: ModelConfig.model_fields[name].default for name in ADDED}

# As much for `optimizer`, which was AdamW.
ADDED_TO_OPTIMIZER = {
    name: field.default
    for name, field in OptimizerConfig.model_fields.items()
    if name == "type" or name.startswith("muon_")
}

# Fields that the first revision with `lora` lacks.
ADDED_TO_LORA = (
    *("kind", "load_in_4bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant"),
    "trainable_token_indices",
)

# Fields that the config.yaml of earlier revisions lacks. They take their default, which changes nothing that
# such a run has done; a field whose default would change it must be migrated otherwise.
ADDED_LATER = frozenset(
    {
        "recipe",
        "labels",
        "init_from",
        "init_step",
        "lora",
        *(f"lora.{name}" for name in ADDED_TO_LORA),
        "dpo",
        "lr_schedule.lr_wsd_decay_fraction",
        *(f"model.{name}" for name in ADDED_TO_MODEL),
        *(f"optimizer.{name}" for name in ADDED_TO_OPTIMIZER),
        "tokenizer.max_unknown_fraction",
        "tokenizer.added_tokens",
        *(f"checkpoint.{name}" for name in CheckpointConfig.model_fields if name.startswith("local_")),
        "evaluation.tasks",
        "evaluation.tasks_interval_steps",
        "backend.deadline_seconds",
        "backend.priority",
        "backend.share_devices",
        *(f"notify.{name}" for name in NotifyConfig.model_fields),
        "backend.node_timeout_seconds",
        "backend.start_timeout_seconds",
        *(f"backend.hosts.{name}" for name in HostsConfig.model_fields),
        *(f"backend.slurm.{name}" for name in SlurmConfig.model_fields),
        *(f"data.workers.{name}" for name in WorkersConfig.model_fields if name != "slurm"),
        *(f"data.workers.slurm.{name}" for name in SlurmWorkersConfig.model_fields),
        *(f"backend.kubernetes.{name}" for name in KubernetesConfig.model_fields),
    }
)


# {the name of a field in earlier revisions: its name now}; both are read.
RENAMED = {"model.layernorm_epsilon": "model.norm_epsilon"}


def renamed(located: Located) -> Located:
    """Fields that earlier revisions called otherwise, under their names of today, in place.

    Raises ConfigError if one is set under both names.
    """
    for old, new in RENAMED.items():
        section, _, name = old.rpartition(".")
        values = located.value.get(section)
        if isinstance(values, dict) and name in values:
            if (now := new.rpartition(".")[2]) in values:
                where = located.where(old)
                raise ConfigError(
                    f"{where}: {old} is the earlier name of {new}, which is set too; take it out."
                )
            values[now] = values.pop(name)
            located.origins[new] = located.origins.pop(old)
    return located


def settings_of_today(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{dotted key: value} of an earlier revision, by today's names, with what has been added since."""
    known = {RENAMED.get(key, key): value for key, value in settings.items()}
    added = {f"model.{name}": value for name, value in ADDED_TO_MODEL.items()}
    added |= {f"optimizer.{name}": value for name, value in ADDED_TO_OPTIMIZER.items()}
    added |= {
        "lr_schedule.lr_wsd_decay_fraction": None,
        "init_step": RunConfig.model_fields["init_step"].default,
    }
    if "lora.rank" in known:
        added |= {f"lora.{name}": LoraConfig.model_fields[name].default for name in ADDED_TO_LORA}
    return {**added, **known}
