"""Print the keys that the installed DeepSpeed accepts in the sections of its configuration, as JSON.

    export DS_ACCELERATOR=cpu
    python tests/config/deepspeed/deepspeed_table.py > nbtrain/config/deepspeed/tables/deepspeed-0.19.8.json

Sections with a pydantic model are read from its fields. The other sections and the top-level keys are read
with a mapping that records each requested key and its default; the default's type is the key's type.
DeepSpeed ignores unknown keys in those sections and converts no value ("exact").
"""

import enum
import json
import types
import typing

import deepspeed
import deepspeed.runtime.config as runtime
from annotated_types import Ge, Gt, Le, Lt
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig
from pydantic import BaseModel

NAMES = {bool: "bool", int: "int", float: "float", str: "str"}
LIMITS = {Ge: "ge", Gt: "gt", Le: "le", Lt: "lt"}
READ = ("aio", "flops_profiler", "autotuning", "activation_checkpointing")
# Types of keys whose default is None, by the code that reads them.
TYPES = {
    "train_batch_size": "int",
    "train_micro_batch_size_per_gpu": "int",
    "gradient_accumulation_steps": "int",
    "steps_per_print": "int",
    "vocabulary_size": "int",
    "communication_data_type": "str",
    "log_level": "str",
    "flops_profiler.output_file": "str",
    "autotuning.metric_path": "str",
    "autotuning.arg_mappings": "mapping",
    "autotuning.model_info_path": "str",
    "autotuning.max_train_batch_size": "int",
    "activation_checkpointing.number_checkpoints": "int",
}


# The models of the sections; nested sections are found in their fields.
MODELS: dict[str, type[BaseModel]] = {
    "zero_optimization": DeepSpeedZeroConfig,
    "fp16": DeepSpeedFP16Config,
    "bf16": DeepSpeedBF16Config,
    "tensor_parallel": TPTrainingConfig,
    "compile": CompileConfig,
    "hybrid_engine": runtime.HybridEngineConfig,
    "comms_logger": CommsLoggerConfig,
    "tensorboard": TensorBoardConfig,
    "wandb": WandbConfig,
    "csv_monitor": CSVConfig,
    "comet": CometConfig,
    "timers.throughput": DeepSpeedThroughputTimerConfig,
}


def described(annotation: object) -> tuple[dict[str, object], type[BaseModel] | None]:
    """Return a field's type in the terms of the table, and the field's model if it is a section."""
    options = typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        others = [one for one in options if one is not type(None)]
        if len(others) > 1:
            return {"type": "any"}, None
        found, model = described(others[0])
        return {**found, "null": True} if len(options) > 1 else found, model
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {"type": "section"}, annotation
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return {"type": "choice", "choices": [one.value for one in annotation]}, None
    if typing.get_origin(annotation) is typing.Literal:
        return {"type": "choice", "choices": list(options)}, None
    if annotation in (list, typing.List) or typing.get_origin(annotation) is list:  # noqa: UP006
        return {"type": "list"}, None
    if annotation in (dict, typing.Dict) or typing.get_origin(annotation) is dict:  # noqa: UP006
        return {"type": "mapping"}, None
    if getattr(annotation, "__name__", "") == "Path":
        return {"type": "str"}, None
    return {"type": NAMES.get(annotation, "any")}, None


def walk(path: str, model: type[BaseModel], sections: dict[str, dict[str, object]]) -> None:
    keys = sections.setdefault(path, {})
    validators = model.__pydantic_decorators__.model_validators.values()
    converts = any(one.info.mode == "before" for one in validators)
    for name, info in model.model_fields.items():
        found, inner = described(info.annotation)
        if converts and found["type"] == "list":
            # A validator of the model turns other values into a list.
            found = {"type": "any"}
        for limit in info.metadata:
            if type(limit) in LIMITS:
                word = LIMITS[type(limit)]
                found[word] = getattr(limit, word)
        key = info.alias or name
        if key != name:
            found["also"] = name
        if (info.json_schema_extra or {}).get("deprecated"):
            found["deprecated"] = True
        keys[key] = found
        if inner is not None:
            walk(f"{path}.{key}", inner, sections)


class Noting(dict):
    """A mapping that records the requested keys and their defaults."""

    def __init__(self, **values: object):
        super().__init__(**values)
        self.read: dict[str, object] = {}

    def __contains__(self, key: object) -> bool:
        self.read.setdefault(str(key), Ellipsis)
        return super().__contains__(key)

    def __getitem__(self, key: str) -> object:
        self.read.setdefault(key, Ellipsis)
        return super().__getitem__(key)

    def get(self, key: str, default: object = None) -> object:
        if self.read.get(key, Ellipsis) is Ellipsis:
            self.read[key] = default
        return super().get(key, default)

    def entries(self, section: str = "") -> dict[str, dict[str, object]]:
        """Return the recorded keys as the table writes them, without top-level sections."""
        found = {}
        for key, default in sorted(self.read.items()):
            kind = TYPES.get(section + key) or NAMES.get(type(default))
            if kind:
                # A missing value counts as false, or as if the key were absent.
                null = {"null": True} if default is None or kind == "bool" else {}
                found[key] = {"type": kind, "exact": True, **null}
            elif section:
                found[key] = {"type": "any"}
        return found


def table() -> dict[str, object]:
    sections: dict[str, dict[str, object]] = {}
    for path, model in MODELS.items():
        walk(path, model, sections)
    noted = {name: Noting() for name in READ}
    top = Noting(train_batch_size=1, **noted)
    runtime.DeepSpeedConfig(top)
    sections |= {name: found.entries(f"{name}.") for name, found in noted.items()}
    return {
        "program": "deepspeed",
        "version": deepspeed.__version__.partition("+")[0],
        "rejected": [
            *runtime._REMOVED_TOP_LEVEL_CONFIG_KEYS,
            *(f"zero_optimization.{key}" for key in runtime._REMOVED_ZERO_CONFIG_KEYS),
        ],
        "optimizers": [*runtime.DEEPSPEED_OPTIMIZERS],
        "top": top.entries(),
        "sections": sections,
    }


def as_text(value: dict[str, object]) -> str:
    """Return the table as JSON with one key per line."""
    head = {key: one for key, one in value.items() if key not in ("top", "sections")}
    lines = [f' "{key}": {json.dumps(one)},' for key, one in head.items()]
    top = ",\n".join(f'  "{key}": {json.dumps(one)}' for key, one in value["top"].items())
    lines.append(f' "top": {{\n{top}\n }},')
    parts = [
        f'  "{path}": {{\n'
        + ",\n".join(f'   "{key}": {json.dumps(one)}' for key, one in keys.items())
        + "\n  }"
        for path, keys in value["sections"].items()
    ]
    return "\n".join(["{", *lines, ' "sections": {', ",\n".join(parts), " }", "}", ""])


if __name__ == "__main__":
    print(as_text(table()), end="")
