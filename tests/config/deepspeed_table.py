"""The keys that the installed DeepSpeed takes inside the sections of its configuration, as JSON on stdout.

    DS_ACCELERATOR=cpu python tests/config/deepspeed_table.py > nbtrain/config/tables/deepspeed-0.19.8.json

Sections with a pydantic model are walked field by field. Others are read from a mapping that notes each key;
what they do with a key that they do not know is nothing at all.
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


# The models of the sections; sections inside them are found in their fields.
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
    """A field's type in the words of the table, and its model if it is a section."""
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
            # A function of the model's makes a list of other values.
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
    """A mapping that notes which keys are asked for."""

    def __init__(self, **values: object):
        super().__init__(**values)
        self.read: dict[str, None] = {}

    def __contains__(self, key: object) -> bool:
        self.read[str(key)] = None
        return super().__contains__(key)

    def __getitem__(self, key: str) -> object:
        self.read[key] = None
        return super().__getitem__(key)

    def get(self, key: str, default: object = None) -> object:
        self.read[key] = None
        return super().get(key, default)


def table() -> dict[str, object]:
    sections: dict[str, dict[str, object]] = {}
    for path, model in MODELS.items():
        walk(path, model, sections)
    noted = {name: Noting() for name in READ}
    runtime.DeepSpeedConfig({"train_batch_size": 1, **noted})
    sections |= {name: {key: {"type": "any"} for key in sorted(found.read)} for name, found in noted.items()}
    return {
        "program": "deepspeed",
        "version": deepspeed.__version__.partition("+")[0],
        "rejected": [
            *runtime._REMOVED_TOP_LEVEL_CONFIG_KEYS,
            *(f"zero_optimization.{key}" for key in runtime._REMOVED_ZERO_CONFIG_KEYS),
        ],
        "sections": sections,
    }


def as_text(value: dict[str, object]) -> str:
    """One key to a line."""
    head = {key: one for key, one in value.items() if key != "sections"}
    lines = [f' "{key}": {json.dumps(one)},' for key, one in head.items()]
    parts = [
        f'  "{path}": {{\n'
        + ",\n".join(f'   "{key}": {json.dumps(one)}' for key, one in keys.items())
        + "\n  }"
        for path, keys in value["sections"].items()
    ]
    return "\n".join(["{", *lines, ' "sections": {', ",\n".join(parts), " }", "}", ""])


if __name__ == "__main__":
    print(as_text(table()), end="")
