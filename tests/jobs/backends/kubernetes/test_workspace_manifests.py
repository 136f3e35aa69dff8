"""The manifests of the workspace in examples/megatron-gpt/cluster/ fit each other and the code."""

from pathlib import Path

import yaml

from nbtrain.config.load import load
from nbtrain.jobs.backends.kubernetes.manifests.kinds import KINDS

CLUSTER = Path(__file__).parents[4] / "examples" / "megatron-gpt" / "cluster"
OBJECTS = [
    item
    for path in sorted((CLUSTER / "manifests").glob("*.yaml"))
    for item in yaml.safe_load_all(path.read_text())
    if "kind" in item
]


def found(value, key):
    """Every value of a key, however deep."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from ([inner] if name == key else found(inner, key))
    elif isinstance(value, list):
        for inner in value:
            yield from found(inner, key)


def test_the_notebook_may_do_what_nbtrain_asks():
    """A rule for each kind, and for pods, their logs and events."""
    rules = next(item["rules"] for item in OBJECTS if item["kind"] == "Role")
    allowed = {
        (group, resource): set(rule["verbs"])
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    for kind in KINDS.values():
        assert allowed[kind.group, kind.plural] == {"create", "get", "list", "watch", "patch", "delete"}
    assert all({"get", "list"} <= allowed["", name] for name in ("pods", "pods/log", "events"))
    assert all(allowed["", name] == {"get"} for name in ("persistentvolumeclaims", "serviceaccounts"))
    assert ("", "secrets") not in allowed, "who may get a Secret may read it"


def test_names_agree_and_no_secret_is_written():
    """One claim, one image, services that find their pods, Secrets by name."""
    assert (
        {*found(OBJECTS, "claimName")}
        == {"nbtrain-workspace"}
        == {item["metadata"]["name"] for item in OBJECTS if item["kind"] == "PersistentVolumeClaim"}
    )
    assert {*found(OBJECTS, "image")} == {"registry.example.com/nbtrain:0.1.0", "amazon/aws-cli"}
    labelled = [labels.get("app") for labels in found(OBJECTS, "labels")]
    services = [item for item in OBJECTS if item["kind"] == "Service"]
    assert len(services) == 3 and all(item["spec"]["selector"]["app"] in labelled for item in services)
    assert not [item for item in OBJECTS if item["kind"] == "Secret"]
    readme = (CLUSTER / "README.md").read_text()
    files = {path.name for path in CLUSTER.rglob("*.*")} - {"README.md"}
    assert [name for name in sorted(files) if name not in readme] == []


def test_the_run_yaml_of_the_workspace_is_legal():
    """On a run of the examples."""
    changes = yaml.safe_load((CLUSTER / "manifests" / "run-backend.yaml").read_text())
    assert load("gpt-125m", changes).backend.kubernetes.mounts[0].claim == "nbtrain-workspace"
