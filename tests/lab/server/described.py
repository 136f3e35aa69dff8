"""The operations and responses that openapi.yaml describes."""

import functools
import re
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from nbtrain.lab.server import extension

OPENAPI = Path(extension.__file__).with_name("openapi.yaml")
METHODS = ("get", "post", "patch", "delete")


@functools.cache
def openapi() -> dict[str, Any]:
    return yaml.safe_load(OPENAPI.read_text(encoding="utf-8"))


def resolved(value: dict[str, Any]) -> dict[str, Any]:
    """Return the object that a $ref points to."""
    if (reference := value.get("$ref")) is None:
        return value
    found: Any = openapi()
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return resolved(found)


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    """Return {(method, path template): operation} with the parameters of its path."""
    return {
        (method, path): item[method] | {"parameters": parameters_of(item) + parameters_of(item[method])}
        for path, item in openapi()["paths"].items()
        for method in METHODS
        if method in item
    }


def parameters_of(item: dict[str, Any]) -> list[dict[str, Any]]:
    return [resolved(one) for one in item.get("parameters", [])]


@functools.cache
def validator(text: str) -> Any:
    schema = {**yaml.safe_load(text), "components": openapi()["components"]}
    return jsonschema.Draft202012Validator(schema)


def check_answer(method: str, path: str, status: int, kind: str, value: Any) -> None:
    """Fail unless openapi.yaml describes this response to this request."""
    path = "/" + path.partition("?")[0]
    for (known, template), operation in operations().items():
        if known != method.lower() or not re.fullmatch(
            re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path
        ):
            continue
        assert str(status) in operation["responses"], f"{method} {path} -> {status} is not in openapi.yaml"
        content = resolved(operation["responses"][str(status)])["content"]
        assert kind in content, f"{method} {path} -> {kind} is not in openapi.yaml"
        if kind == "application/json":
            validator(yaml.safe_dump(content[kind]["schema"])).validate(value)
        return
