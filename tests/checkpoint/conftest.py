"""The data home of tests/train serves here too."""

from tests.train.conftest import data_home  # noqa: F401
