"""What every section of the schema is made of: the frozen base class and the types of single fields."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from nbtrain.workspace import NAME_PATTERN


class ConfigModel(BaseModel):
    """Frozen, strict, and no key that is not in the schema."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def _whole(value: Any) -> Any:
    # 2.5e9 is how people write token counts; YAML makes it a float.
    return int(value) if isinstance(value, float) and value.is_integer() else value


# The bound comes first, or the JSON Schema would not hold it.
Count = Annotated[int, Field(ge=0), BeforeValidator(_whole)]
PositiveCount = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN.pattern}$")]
