"""The section `imported_from:` of a run YAML: the files of other programs that an import has read."""

from typing import Annotated

from pydantic import Field

from nbtrain.config.sections.fields import ConfigModel

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$", max_length=64)]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?(\+changes)?$", max_length=72)]


class ImportedFile(ConfigModel):
    """A file that `nbtrain import` has read."""

    file: Annotated[str, Field(min_length=1, max_length=4096)]
    """Name of the file."""
    sha256: Sha256
    """SHA-256 of the file's contents."""
    commit: Commit | None = None
    """Git commit of the work tree that contains the file, with "+changes" appended if the file differs from
    that commit. null if the file is outside a work tree.
    """
