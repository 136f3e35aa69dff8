"""openapi.yaml is a valid OpenAPI 3.1 document that describes exactly the existing routes."""

import itertools
import re

import jsonschema
import pytest

from nbtrain.lab.server.extension import ROUTES
from nbtrain.lab.server.metrics import TAGS
from nbtrain.lab.server.requests import MOST_BODY_BYTES
from nbtrain.monitor.run.metrics_range import MOST_POINTS, POINTS
from tests.lab.server.described import METHODS, openapi, operations, resolved


def routed() -> set[tuple[str, str]]:
    """Return (method, path) of each route, with each alternative of a pattern as a separate path."""
    found = set()
    for pattern, handler in ROUTES.items():
        path = pattern.replace("([^/]+)", "{name}").replace("\\.", ".")
        parts = re.split(r"\((?:\?:)?([^)]*\|?[^)]*)\)", path)
        if path.startswith("static/"):
            parts = ["static/{script}.js"]
        choices = [part.split("|") if number % 2 else [part] for number, part in enumerate(parts)]
        paths = ["/" + "".join(one) for one in itertools.product(*choices)]
        found |= {
            (method, one)
            for one in paths
            for method in METHODS
            if hasattr(handler, method) and _own(handler, method)
        }
    return found


def _own(handler, method):
    return any(method in kind.__dict__ for kind in handler.__mro__ if kind.__module__.startswith("nbtrain."))


def test_it_describes_every_route_and_no_other():
    """openapi.yaml describes every route with its methods, and no route that does not exist."""
    assert {*operations()} == routed()


def schemas(value):
    """Return every schema in openapi.yaml."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "schema":
                yield inner
            yield from schemas(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from schemas(inner)


def references(value):
    if isinstance(value, dict):
        if "$ref" in value:
            yield value
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_schema_and_reference_is_one():
    """All schemas are valid JSON Schema 2020-12, as OpenAPI 3.1 requires; every reference resolves and every
    component is used.
    """
    document = openapi()
    assert document["openapi"] == "3.1.0" and {"title", "version"} <= document["info"].keys()
    for schema in [*schemas(document["paths"]), *document["components"]["schemas"].values()]:
        jsonschema.Draft202012Validator.check_schema(schema)
    named = {one["$ref"] for one in references(document)}
    for reference in references(document):
        assert resolved(reference)
    kinds = ("schemas", "responses", "parameters")
    known = {f"#/components/{kind}/{name}" for kind in kinds for name in document["components"][kind]}
    assert named == known


@pytest.mark.parametrize("operation", operations().items(), ids=lambda one: " ".join(one[0]))
def test_every_operation_is_whole(operation):
    """Every operation has a summary, the parameters of its path, a response for success, and a response to
    missing credentials.
    """
    (method, path), value = operation
    assert value["summary"].endswith(".") and value["operationId"]
    asked = [(one["name"], one["in"]) for one in value["parameters"]]
    assert len(asked) == len(set(asked)) and all(
        {"name", "in", "schema"} <= one.keys() for one in value["parameters"]
    )
    in_path = {one["name"] for one in value["parameters"] if one["in"] == "path" and one["required"]}
    assert in_path == set(re.findall(r"\{(\w+)\}", path))
    statuses = {int(status) for status in value["responses"]}
    assert statuses & {200, 201} and 403 in statuses
    assert method == "get" or 413 in statuses
    assert all(resolved(one)["description"] for one in value["responses"].values())


def test_ids_are_unique_and_numbers_are_those_of_the_code():
    """Operation ids are unique and limits equal those in the code, because generated clients rely on both."""
    ids = [value["operationId"] for value in operations().values()]
    assert len(ids) == len(set(ids))
    metrics = {one["name"]: one["schema"] for one in operations()["get", "/run/{name}/metrics"]["parameters"]}
    assert (metrics["points"]["maximum"], metrics["points"]["default"]) == (MOST_POINTS, POINTS)
    assert metrics["tags"]["default"] == TAGS
    assert MOST_BODY_BYTES == 1 << 20 and "1 MiB" in openapi()["info"]["description"]
