"""Placeholders for an image, a volume or machines that a run does not set."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.config.load.placeholders import placeholders_of, with_placeholders

pytestmark = pytest.mark.usefixtures("workspace")

IMAGE = (
    "backend.kubernetes.image",
    "backend.kubernetes.image = REPLACE-ME/image:tag is a placeholder.",
    "Set it to a container image that contains nbtrain.",
)
CLAIM = (
    "backend.kubernetes.mounts",
    "backend.kubernetes.mounts: claim = replace-me is a placeholder.",
    "Set it to a PersistentVolumeClaim for /workspace that every pod can write to.",
)
HOSTS = (
    "backend.hosts.hosts",
    "backend.hosts.hosts = [REPLACE-ME-0] is a placeholder.",
    "Set it to machines that ssh reaches without a password, or set backend.hosts.hostfile.",
)
OTHER_MOUNT = "'backend.kubernetes.mounts=[{claim: data, mount_path: /data}]'"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("backend.kind=local", []),
        ("backend.kind=slurm", []),
        ("backend.kind=kubernetes", [IMAGE, CLAIM]),
        ("backend.kind=kubernetes resources.image=a/b:1", [CLAIM]),
        (f"backend.kind=kubernetes backend.kubernetes.image=a/b:1 {OTHER_MOUNT}", [CLAIM]),
        ("backend.kind=hosts", [HOSTS]),
        ("backend.kind=hosts 'backend.hosts.hosts=[a]'", []),
        ("backend.kind=hosts backend.hosts.hostfile=machines", []),
    ],
)
def test_what_is_not_named_has_a_placeholder(overrides, expected):
    """Only missing values get placeholders; the run keeps its settings and passes the checks."""
    config = with_placeholders(load("gpt-tiny", overrides, check=False))
    found = placeholders_of(config)
    assert [(finding.key, finding.message, finding.fix) for finding in found] == expected
    if OTHER_MOUNT in overrides:
        assert [mount.claim for mount in config.backend.kubernetes.mounts] == ["data", "replace-me"]
    if expected:
        with pytest.raises(ConfigError):
            load("gpt-tiny", overrides)


def test_an_image_with_the_placeholders_name_is_one():
    """An image with the placeholder's value counts as missing, for example in a
    YAML copied from a dry run.
    """
    config = with_placeholders(load("gpt-tiny", "backend.kind=kubernetes", check=False))
    copied = load(config, {"resources.image": "REPLACE-ME/image:tag"})
    assert [finding.key for finding in placeholders_of(copied)] == [
        *("backend.kubernetes.image", "resources.image", "backend.kubernetes.mounts")
    ]


def test_other_broken_rules_are_refused():
    """A wrong value is refused, not replaced by a placeholder."""
    broken = load("gpt-tiny", "backend.kind=hosts batch.global_batch_size=7", check=False)
    with pytest.raises(ConfigError, match="global_batch_size"):
        with_placeholders(broken)
