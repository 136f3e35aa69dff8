"""Placeholders for an image, a volume or machines that a run does not name.

With placeholders, a run can be planned, and its manifest or commands can be shown. Preflight refuses to start
it.
"""

import re
from typing import Any

from nbtrain.base.findings import Finding
from nbtrain.config.findings import mistake
from nbtrain.config.load.edits import with_overrides
from nbtrain.config.rules.kubernetes import carries_workspace
from nbtrain.config.schema import RunConfig

# Image names have no capitals, so no cluster starts a pod with this image.
IMAGE = "REPLACE-ME/image:tag"
# Names in Kubernetes are in lower case.
CLAIM = "replace-me"
HOST = "REPLACE-ME-"
# Matches each placeholder in a text.
MARK = re.compile(rf"{IMAGE}|{CLAIM}|{HOST}\d+")


def with_placeholders(config: RunConfig) -> RunConfig:
    """Return `config`, loaded without its checks, with a placeholder for each missing backend setting.

    Raises ConfigError for every other broken rule.
    """
    return with_overrides(config, _missing(config))


def _missing(config: RunConfig) -> dict[str, Any]:
    """Return {dotted key: placeholder} for the missing settings."""
    found: dict[str, Any] = {}
    pods, hosts = config.backend.kubernetes, config.backend.hosts
    if config.backend.kind == "kubernetes":
        if config.image is None:
            found["backend.kubernetes.image"] = IMAGE
        if not any(carries_workspace(mount, pods) for mount in pods.mounts):
            known = [mount.model_dump(exclude_defaults=True) for mount in pods.mounts]
            mount = {"claim": CLAIM, "mount_path": pods.workspace_path}
            found["backend.kubernetes.mounts"] = [*known, mount]
    if config.backend.kind == "hosts" and not hosts.hosts and not hosts.hostfile:
        found["backend.hosts.hosts"] = [f"{HOST}{number}" for number in range(config.resources.nodes)]
    return found


def placeholders_of(config: RunConfig) -> list[Finding]:
    """Return a finding for each placeholder that the run's backend would use."""
    found = []
    pods, hosts = config.backend.kubernetes, config.backend.hosts
    if config.backend.kind == "kubernetes":
        fix = "Set it to a container image that contains nbtrain."
        for section, image in (("backend.kubernetes", pods.image), ("resources", config.resources.image)):
            if image == IMAGE:
                key = f"{section}.image"
                found.append(mistake(config, key, f"{key} = {IMAGE} is a placeholder.", fix))
        if any(mount.claim == CLAIM for mount in pods.mounts):
            key = "backend.kubernetes.mounts"
            fix = f"Set it to a PersistentVolumeClaim for {pods.workspace_path} that every pod can write to."
            found.append(mistake(config, key, f"{key}: claim = {CLAIM} is a placeholder.", fix))
    if config.backend.kind == "hosts" and (named := [name for name in hosts.hosts if name.startswith(HOST)]):
        key = "backend.hosts.hosts"
        fix = "Set it to machines that ssh reaches without a password, or set backend.hosts.hostfile."
        found.append(mistake(config, key, f"{key} = [{', '.join(named)}] is a placeholder.", fix))
    return found
