"""Base class of every section of the schema, and the types of single fields.

The docstring below a field is its description in forms, pages and the JSON Schema. Docstrings are read from
the source on demand, because reading all of them takes longer than building the models, and a run needs none
of them.
"""

import ast
import functools
import inspect
import itertools
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, GetJsonSchemaHandler, Tag
from pydantic.fields import FieldInfo

from nbtrain.base.workspace import NAME_PATTERN


class ConfigModel(BaseModel):
    """Base of all sections: frozen, strict, and without unknown keys."""

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
    """Return the fields of a model, with the docstrings of the fields as their descriptions."""
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
    """Return {class: {field: docstring}} of the module in a file. {} if the file cannot be read."""
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
    # People write token counts as 2.5e9, which YAML reads as a float.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _number(least: int, most: int) -> Any:
    # The Field comes before the validator; otherwise, the JSON Schema would omit its bounds.
    return Annotated[int, Field(ge=least, le=most), BeforeValidator(_whole)]


# Every number and text has bounds, so that a typing error (a key held down, a pasted file) is refused with
# the bound and the line of the YAML, and never reaches an allocation. The bounds are far beyond any real run.

# Many times more tokens than all text that exists. It also limits the elements of DeepSpeed's buffers, where
# 1e14 is in use for "all".
MOST_TOKENS = 10**15
MOST_STEPS = 10**12
YEAR_SECONDS = 365 * 86_400

# Amounts of training and of data, in tokens, samples or steps.
Amount = _number(0, MOST_TOKENS)
PositiveAmount = _number(1, MOST_TOKENS)
# Periods and windows.
Steps = _number(0, MOST_STEPS)
PositiveSteps = _number(1, MOST_STEPS)
# Models have been trained on sequences of a million tokens (arXiv:2408.16978).
MOST_SEQUENCE_TOKENS = 10**8
SequenceTokens = _number(1, MOST_SEQUENCE_TOKENS)
ChunkTokens = _number(0, MOST_SEQUENCE_TOKENS)
# Models with a thousand layers have been trained (arXiv:2203.00555); GPT-3 has 96 layers of width 12,288.
MOST_LAYERS = 100_000
Layers = _number(1, MOST_LAYERS)
# A number N for every N-th layer, or a list with 0 or 1 for each layer, as in Megatron's
# --window-attn-skip-freq and --no-rope-freq.
EVERY, EACH = "<every N-th layer>", "<each layer>"
_ZeroOrOne: Any = _number(0, 1)
_PatternList: Any = Annotated[list[_ZeroOrOne], Field(min_length=1, max_length=100_000), Tag(EACH)]
LayerPattern: Any = Annotated[
    Annotated[Layers, Tag(EVERY)] | _PatternList,
    Discriminator(lambda value: EACH if isinstance(value, list) else EVERY),
]
# A checkpoint of a run: the number of its step, or the word newest or best.
STEP, WORD = "<step>", "<word>"
CheckpointStep: Any = Annotated[
    Annotated[PositiveSteps, Tag(STEP)] | Annotated[Literal["newest", "best"], Tag(WORD)],
    Discriminator(lambda value: STEP if isinstance(value, int | float) else WORD),
]
Width = _number(1, 10_000_000)
# Token ids are int32.
VocabularySize = _number(1, 2**31 - 1)
Ranks = _number(1, 1_000_000)
# Small counts: of machines, buffers, repetitions.
SmallCount = _number(0, 1_000_000)
PositiveSmallCount = _number(1, 1_000_000)
# An exabyte.
Bytes = _number(0, 10**18)
PositiveBytes = _number(1, 10**18)
# Elements of a tensor or a communication bucket.
Elements = _number(0, MOST_TOKENS)
PositiveElements = _number(1, MOST_TOKENS)
# The largest seed that numpy's RandomState accepts.
Seed = _number(0, 2**32 - 1)
# Seeds that are hashed or reduced before they reach numpy or torch.
WideSeed = _number(0, 2**63 - 1)
# Sequences: a thousand times GPT-3's batch.
BatchSize = _number(1, 1_000_000)
# Sequences of a ramp-up: few enough that floating point represents them exactly.
RampSamples = _number(1, 10**12)
# Processes of a rank's data loader, or of a machine.
WorkerCount = _number(0, 1024)

Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
FractionBelowOne = Annotated[float, Field(ge=0, lt=1)]
# Learning rates, weight decays, epsilons and standard deviations: usual values are below 1.
Rate = Annotated[float, Field(ge=0, le=1000)]
PositiveRate = Annotated[float, Field(gt=0, le=1000)]
# Weights relative to each other, norms and factors.
Ratio = Annotated[float, Field(ge=0, le=1e12)]
PositiveRatio = Annotated[float, Field(gt=0, le=1e12)]
Seconds = Annotated[float, Field(ge=0, le=YEAR_SECONDS)]
PositiveSeconds = Annotated[float, Field(gt=0, le=YEAR_SECONDS)]

Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN.pattern}$")]
# A key of a record, a column, one token, the name of a device.
Word = Annotated[str, Field(max_length=256)]
# Linux's PATH_MAX; addresses are shorter.
PathText = Annotated[str, Field(max_length=4096)]
# A licence, a template of a message.
MOST_TEXT_CHARS = 100_000
Text = Annotated[str, Field(max_length=MOST_TEXT_CHARS)]
# Linux allows 128 KiB for one variable, including its name and the terminating null byte.
EnvironmentText = Annotated[str, Field(max_length=100_000)]
