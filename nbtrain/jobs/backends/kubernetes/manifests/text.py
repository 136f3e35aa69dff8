"""Format a manifest as a file for kubectl, with a heading that explains how to use it."""

import yaml

from nbtrain.config.load.one_line import RUN_YAML
from nbtrain.jobs.backends.kubernetes.manifests.kinds import KINDS, Manifest
from nbtrain.jobs.backends.kubernetes.manifests.work import PodWork


def manifest_text(work: PodWork, manifest: Manifest) -> str:
    """Return the manifest as YAML, with a heading.

    The heading says what must exist before `kubectl create`, or that only `nbtrain submit` can start the run.
    """
    kind, metadata = KINDS[manifest["kind"]], manifest["metadata"]
    # If the manifest has no namespace, kubectl uses its current namespace for all three commands.
    there = f" -n {metadata['namespace']}" if "namespace" in metadata else ""
    name = f"{kind.plural}.{kind.group} {metadata['name']}{there}"
    body = yaml.safe_dump(manifest, sort_keys=False, width=100)
    if not work.run_text:
        return (
            f"# {kind.name} of run {work.run}, job {work.job_id}: what `nbtrain submit` creates\n"
            "# after it has written the run directory. With `--dry-run FILE`, it writes a manifest that\n"
            f"# contains the complete run and that kubectl alone can start.\n{body}"
        )
    return (
        f"# {kind.name} of run {work.run}, job {work.job_id}, written by nbtrain.\n"
        f"# The pod of node 0 checks the run in {RUN_YAML} as `nbtrain submit` would, and writes it to\n"
        f"# {work.run_path}; the other pods wait for it.\n"
        f"# Tokenizer and dataset must be in {work.section.workspace_path}/data by then, on the claims\n"
        "# below: run `nbtrain prepare` on a machine that mounts these claims.\n"
        "#   start:   kubectl create -f THIS_FILE\n"
        f"#   watch:   kubectl get {name} --watch\n"
        f"#   delete:  kubectl delete {name}\n" + body
    )
