"""What every section of the schema is made of: the frozen base class and the types of single fields.

The docstring below a field is its description, in forms, pages and the JSON Schema. It is read from the source when
one of them asks: reading all of them takes longer than building the models, and a run needs none.
"""

import ast
import functools
import inspect
import itertools
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.fields import FieldInfo

from nbtrain.base.workspace import NAME_PATTERN


class ConfigModel(BaseModel):
    """Frozen, strict, and no key that is not in the schema."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, info in described(cls).items():
            if info.description is not None:
                properties[name].setdefault("description", info.description)
        return schema


def described(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model, with their descriptions."""
    for owner in model.__mro__:
        if not issubclass(owner, ConfigModel) or owner is ConfigModel:
            continue
        for name, text in _docstrings(inspect.getfile(owner)).get(owner.__name__, {}).items():
            field = model.model_fields.get(name)
            if field is not None and field.description is None:
                field.description = text
    return model.model_fields


@functools.cache
def _docstrings(path: str) -> dict[str, dict[str, str]]:
    """{class: {field: docstring}} of a module's source; empty where there is no source to read."""
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except OSError:
        return {}
    found: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        own = found[node.name] = {}
        for field, text in itertools.pairwise(node.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                    value=ast.Constant(value=str(docstring))
                ):
                    own[name] = inspect.cleandoc(docstring)
    return found


def _whole(value: Any) -> Any:
    # 2.5e9 is how people write token counts; YAML makes it a float.
    return int(value) if isinstance(value, float) and value.is_integer() else value


# The bound comes first, or the JSON Schema would not hold it.
Count = Annotated[int, Field(ge=0), BeforeValidator(_whole)]
PositiveCount = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
Fraction = Annotated[float, Field(ge=0, le=1)]
FractionBelowOne = Annotated[float, Field(ge=0, lt=1)]
# numpy's RandomState takes no more.
Seed = Annotated[int, Field(ge=0, le=2**32 - 1), BeforeValidator(_whole)]
# Sequences: a thousand times GPT-3's batch.
BatchSize = Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(_whole)]
# Sequences of a ramp-up, as whole numbers of floating point.
RampSamples = Annotated[int, Field(ge=1, le=10**12), BeforeValidator(_whole)]
# Processes beside a rank, or on a machine.
WorkerCount = Annotated[int, Field(ge=0, le=1024), BeforeValidator(_whole)]
PositiveFloat = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN.pattern}$")]
