"""JSON Schema of a run YAML, for completion and validation in editors."""

from typing import Any

from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.data_section import BlendEntry
from nbtrain.config.sections.sources import SOURCE_TYPES


def editor_schema() -> dict[str, Any]:
    """Return the JSON Schema of a run YAML as users write it: with `extends`, and without required fields."""
    schema = RunConfig.model_json_schema()
    file_names = {"type": "string"}
    schema["properties"] = {
        "extends": {
            "anyOf": [file_names, {"type": "array", "items": file_names}],
            "description": "Run YAMLs that this file extends. Their paths are relative to this file.",
        },
        **schema["properties"],
    }
    items = {BlendEntry.__name__, *(source.__name__ for source in SOURCE_TYPES)}
    for name, model in (("", schema), *schema["$defs"].items()):
        # A file may omit fields, which it inherits from the files that it extends. Entries of a list must be
        # complete, because a list replaces the inherited list instead of being merged with it.
        if name not in items:
            model.pop("required", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "nbtrain run",
        **{key: value for key, value in schema.items() if key != "title"},
    }
