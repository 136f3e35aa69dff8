"""Fixtures of tests/dataset (small runs and texts), shared with the tests in this folder."""

from tests.dataset.conftest import make_config, parallel, texts, write_dataset  # noqa: F401
