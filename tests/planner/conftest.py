"""A workspace with the example runs, which plans name by their paths."""

from pathlib import Path

import pytest


@pytest.fixture
def examples(workspace: Path, repository: Path) -> None:
    """Create an empty workspace that has the folder of example runs."""
    (workspace / "examples").symlink_to(repository / "examples")
