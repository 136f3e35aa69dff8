"""The small runs and texts of tests/dataset serve here too."""

from tests.dataset.conftest import make_config, texts, write_dataset  # noqa: F401
