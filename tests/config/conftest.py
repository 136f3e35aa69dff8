"""Run YAMLs for the tests of the configuration."""

from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "megatron-gpt" / "training"

UPSTREAM = [
    "gpt-125m",
    "gpt-125m-2xdp",
    "gpt-125m-4xdp",
    "gpt-1-3b-4xdp",
    "gpt-1-3b-8xdp",
    "gpt-1-3b-4xdp-4xpp",
    "gpt-13b-4xdp-4xpp",
    "gpt-13b-4xdp-8xpp",
    "gpt-13b-4xdp-4xpp-4xtp",
]

ASCEND = [
    "gpt-345m-4xdp-2xpp",
    "gpt-345m-8xdp",
    "gpt-1-3b-2xdp-2xpp-2xtp",
    "gpt-2-7b-2xdp-2xpp-2xtp",
    "gpt-3-7b-2xdp-2xpp-2xtp",
]

OWN = ["gpt-350m-4xdp", "gpt-760m-8xdp", "gpt-6-7b-4xdp-4xtp"]

# Each size on 1, 4, 8 and 16 GPUs.
LLAMA = [
    f"llama-{size}{layout}"
    for size in ("135m", "360m", "1b", "3b", "8b")
    for layout in ("", "-4xdp", "-8xdp", "-16xdp")
]


@pytest.fixture
def run_yaml(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a run YAML which extends an example: run_yaml("batch:\\n ...") -> path.

    The given text starts in line 2.
    """

    def write(text: str, base: str | None = "gpt-tiny", name: str = "my-run.yaml") -> Path:
        path = tmp_path / name
        head = f"extends: {EXAMPLES / f'{base}.yaml'}\n" if base else ""
        path.write_text(head + text)
        return path

    return write
