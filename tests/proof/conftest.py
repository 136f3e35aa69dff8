"""Fixtures for tests of twins and reproductions."""

from tests.jobs.conftest import tiny_data  # noqa: F401
