"""Makes launch.py importable and gives tests a data home."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data home with the dataset `test`: 400 documents of about 50 tokens, vocabulary 500."""
    from tests.train import launch

    home = tmp_path_factory.mktemp("data home")
    launch.make_dataset(home)
    return home
