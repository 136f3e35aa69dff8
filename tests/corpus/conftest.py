"""The small runs and texts of tests/dataset serve these tests too."""

from tests.dataset.conftest import make_config, texts, write_dataset  # noqa: F401
