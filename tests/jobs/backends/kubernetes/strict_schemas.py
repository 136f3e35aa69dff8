"""Schemas of the Kubernetes kinds as an API server applies them: unknown fields and invalid metadata are
errors.
"""

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    import jsonschema

HERE = Path(__file__).parent
CRDS = HERE.parents[4] / "shared" / "crds"
FILES = {
    "TrainJob": "trainer.kubeflow.org_trainjobs.yaml",
    "MPIJob": "kubeflow.org_mpijobs.v2beta1.yaml",
    "PyTorchJob": "kubeflow.org_pytorchjobs.yaml",
}


def strict(schema: Any) -> Any:
    """Return a copy of the schema in which objects may have only the properties that are listed."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {key: strict(value) for key, value in schema.items()}
    if "properties" in copy and not copy.get("x-kubernetes-preserve-unknown-fields"):
        copy.setdefault("additionalProperties", False)
    if copy.pop("nullable", False):
        copy["type"] = [copy["type"], "null"]
    return copy


@functools.cache
def _crd(kind: str) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with (CRDS / FILES[kind]).open("rb") as stream:
        return yaml.load(stream, Loader=loader)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@functools.cache
def validator(kind: str) -> "jsonschema.Draft7Validator":
    """Return the validator of a kind; skip the test if its CRD is missing."""
    import jsonschema  # its import takes seconds, and every process of the tests collects this file

    if kind == "DeepSpeedJob":
        schema = json.loads((HERE / "deepspeedjob.schema.json").read_text())
        if (CRDS / FILES["PyTorchJob"]).is_file():
            spec = _crd("PyTorchJob")["properties"]["spec"]["properties"]
            replicas = spec["pytorchReplicaSpecs"]["additionalProperties"]["properties"]
            schema["properties"]["spec"]["properties"]["worker"]["properties"]["template"] = replicas[
                "template"
            ]
        return jsonschema.Draft7Validator(strict(schema))
    if not (CRDS / FILES[kind]).is_file():
        pytest.skip(f"{CRDS / FILES[kind]} does not exist: the operators' CRDs are next to the repository")
    return jsonschema.Draft7Validator(strict(_crd(kind)))


def errors(kind: str, manifest: dict[str, Any]) -> list[str]:
    """Return an error such as "spec.trainer.image: ..." for each invalid field of the manifest and of its
    pods' metadata.
    """
    found = [
        f"{'.'.join(str(part) for part in error.absolute_path)}: {error.message}"
        for error in validator(kind).iter_errors(manifest)
    ]
    return sorted(found)
