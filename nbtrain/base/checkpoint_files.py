"""What makes a checkpoint folder whole: its manifest, and that nobody has rejected it."""

from pathlib import Path

from nbtrain.base import files

# Of a checkpoint's manifest (checkpoint/manifest.py).
MANIFEST = "manifest.json"

# In its place, where the trainer has read the contents and found others.
REJECTED = "rejected.json"

MANIFEST_VERSIONS = (1, 2)


def checkpoint_problem(folder: Path) -> str | None:
    """Why a checkpoint is not whole, as far as names and sizes tell; None where they are right. Cheap."""
    if not folder.is_dir():
        return "there is no such checkpoint"
    try:
        manifest = files.read_json(folder / MANIFEST)
    except ValueError:
        return f"{MANIFEST} is not JSON"
    if manifest is None:
        return _why_rejected(folder) or f"it has no {MANIFEST}: its writing was cut off"
    if not isinstance(manifest, dict):
        return f"{MANIFEST} holds a {type(manifest).__name__} in place of fields"
    if (version := manifest.get("schema_version")) not in MANIFEST_VERSIONS:
        known = " and ".join(str(number) for number in MANIFEST_VERSIONS)
        return f"{MANIFEST} has schema_version {version}; this nbtrain reads {known}"
    described = manifest.get("files")
    if not isinstance(described, dict) or not all(
        isinstance(entry, dict)
        and isinstance(entry.get("bytes"), int)
        and isinstance(entry.get("sha256"), str)
        for entry in described.values()
    ):
        return f"{MANIFEST} does not say size and SHA-256 of its files"
    for name, expected in described.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if (size := path.stat().st_size) != expected["bytes"]:
            return f"{name} has {size:,} bytes; its manifest says {expected['bytes']:,}"
    return None


def _why_rejected(folder: Path) -> str | None:
    """What the trainer found when it read the contents of a checkpoint that had a manifest; None where it found nothing."""
    try:
        rejected = files.read_json(folder / REJECTED)
    except ValueError:
        return f"{REJECTED} is not JSON"
    return str(rejected["reason"]) if isinstance(rejected, dict) and "reason" in rejected else None
