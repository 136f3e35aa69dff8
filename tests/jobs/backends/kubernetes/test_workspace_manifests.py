"""The manifests in examples/megatron-gpt/cluster/ are consistent with each other and with the code."""

import json
import re
from pathlib import Path

import kubernetes.client
import pytest
import yaml

from nbtrain.config.load import load
from nbtrain.jobs.backends.kubernetes.manifests.kinds import KINDS

CLUSTER = Path(__file__).parents[4] / "examples" / "megatron-gpt" / "cluster"
# {kind: the official client's class}; the platform's own kind has none.
CLASSES = {kind: f"V1{kind}" for kind in ("PersistentVolumeClaim", "ServiceAccount", "Role", "RoleBinding")}
CLASSES |= {kind: f"V1{kind}" for kind in ("Deployment", "Service", "Job", "CronJob")}
OBJECTS = [
    item
    for path in sorted((CLUSTER / "manifests").glob("*.yaml"))
    for item in yaml.safe_load_all(path.read_text())
    if "kind" in item
]


def found(value, key):
    """Yield every value of a key at any depth of an object."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from ([inner] if name == key else found(inner, key))
    elif isinstance(value, list):
        for inner in value:
            yield from found(inner, key)


def test_the_notebook_may_do_what_nbtrain_asks():
    """The notebook's role has a rule for each kind of job, and for pods, their logs and events."""
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
    """All manifests use the same volume claim and image, the services select existing pods, and Secrets are
    only named.
    """
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
    """The run.yaml in the workspace is valid and extends the run of an example."""
    changes = yaml.safe_load((CLUSTER / "manifests" / "run-backend.yaml").read_text())
    assert load("gpt-125m", changes).backend.kubernetes.mounts[0].claim == "nbtrain-workspace"


class Answer:
    """A response object that the client's deserializer accepts."""

    def __init__(self, item):
        self.data = json.dumps(item)


@pytest.mark.parametrize("item", OBJECTS, ids=lambda item: f"{item['kind']}-{item['metadata']['name']}")
def test_a_manifest_has_only_fields_of_its_kind(item):
    """The official client reads each manifest without losing a field, and no required field is missing."""
    if item["kind"] == "TensorBoard":
        assert item["apiVersion"] == "tensorstack.dev/v1beta1" and [*item["spec"]] == ["trainingLogFilesets"]
        assert item["spec"]["trainingLogFilesets"] == ["t9k://pvc/nbtrain-workspace/output"]
        return
    client = kubernetes.client.ApiClient()
    read = client.deserialize(Answer(item), CLASSES[item["kind"]])
    assert without_empty(client.sanitize_for_serialization(read)) == without_empty(item)


def without_empty(value):
    """Remove empty lists and mappings, as the client does."""
    if isinstance(value, dict):
        return {key: without_empty(inner) for key, inner in value.items() if inner not in ({}, [], None)}
    return [without_empty(item) for item in value] if isinstance(value, list) else value


def test_the_image_has_what_is_pinned_and_what_the_kinds_need(repository):
    """The image has the torch version that constraints.txt pins, and sshd, which some operators need."""
    text = (CLUSTER / "notebook.Dockerfile").read_text()
    (torch,) = re.findall(r"^FROM pytorch/pytorch:([\d.]+)-cuda", text, re.MULTILINE)
    assert f"torch=={torch}" in (repository / "constraints.txt").read_text().splitlines()
    for name in ("openssh-server", "pdsh", "openmpi-bin", "StrictHostKeyChecking no", "StrictModes no"):
        assert name in text
    copied = re.findall(r"^COPY (\S+) ", text, re.MULTILINE)
    assert copied == ["constraints.txt", "dist/nbtrain-*.whl"] and (repository / copied[0]).is_file()
    assert "boto3" in text and "[data,k8s]" in text


def test_tensorboard_reads_s3_by_the_names_that_the_manifest_gives():
    """TensorBoard reads from S3 with boto3, using the variable names in the manifest, and keeps running while
    it is used.
    """
    from tensorboard.compat.tensorflow_stub.io import gfile

    source = Path(gfile.__file__).read_text()
    text = (CLUSTER / "manifests" / "tensorboard-s3.yaml").read_text()
    assert "import boto3" in source and 'environ.get("S3_ENDPOINT"' in source and "name: S3_ENDPOINT" in text
    jobs = [item for item in OBJECTS if item["kind"] == "Job"]
    commands = [command for item in jobs for command in found(item, "command")]
    assert len(commands) == 2
    for command in commands:
        assert command[:4] == ["python3", "-m", "nbtrain.lab.server.idle_tensorboard", "--idle-hours=24"]
    (sync,) = found([item for item in OBJECTS if item["kind"] == "CronJob"], "args")
    assert sync[3] == "s3://my-bucket/nbtrain" and f"--logdir={sync[3]}" in [*commands[0], *commands[1]]
