"""A manifest as a file for kubectl, with a heading that says what must be there first."""

import yaml

from nbtrain.jobs.backends.kubernetes.manifests.kinds import KINDS, Manifest
from nbtrain.jobs.backends.kubernetes.work import PodWork


def manifest_text(work: PodWork, manifest: Manifest) -> str:
    """YAML with a heading that says what must be there before kubectl."""
    kind, name = KINDS[manifest["kind"]], manifest["metadata"]["name"]
    return (
        f"# {kind.name} of run {work.run}, job {work.job_id}, written by nbtrain.\n"
        f"# The pods look for the run directory at {work.run_path}, with jobs/{work.job_id}/ in it, and for\n"
        f"# tokenizer and dataset below {work.section.workspace_path}/data, on the claims below.\n"
        "# `nbtrain submit` makes that directory and this object; a dry run does neither, and without\n"
        "# the directory the pods end at once.\n"
        "#   start:   kubectl create -f THIS_FILE\n"
        f"#   watch:   kubectl get {kind.plural}.{kind.group} {name} --watch\n"
        f"#   delete:  kubectl delete {kind.plural}.{kind.group} {name}\n"
        + yaml.safe_dump(manifest, sort_keys=False, width=100)
    )
