"""A run that extends another, as text."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def child(run_yaml: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that writes a run YAML: child("extends: gpt-125m\\n ...", name) -> path."""
    return lambda text, name="child": run_yaml(text, base=None, name=f"{name}.yaml")
