"""The numbers on docs/profiling.md and docs/mfu.md are what the code computes,
and the names in them exist.
"""

import re
from pathlib import Path

import pytest

from nbtrain.base.run_directory.metrics import BY_NAME
from nbtrain.config.arithmetic.flops import megatron_deepspeed_tflops, model_flops_per_token
from nbtrain.config.load import load
from nbtrain.config.names.keys import field_keys

DOCS = Path(__file__).parents[2] / "docs"
PAGE, MFU = ((DOCS / name).read_text(encoding="utf-8") for name in ("profiling.md", "mfu.md"))


def test_the_table_of_logged_and_right_figures():
    """Every number in the table follows from the samples per second in its first column."""
    rows = re.findall(
        r"^\| (4\d\.\d{3}) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) % \|$", MFU, re.MULTILINE
    )
    assert [row[:2] for row in rows] == [("44.780", "84.02"), ("44.803", "84.06"), ("44.855", "84.16")]
    config = load("gpt-125m")
    for samples_per_second, logged, formula, right, mfu in (map(float, row) for row in rows):
        right_tflops = model_flops_per_token(config) * samples_per_second * 2048 / 1e12
        assert logged == formula == round(megatron_deepspeed_tflops(config, samples_per_second), 2)
        assert right == pytest.approx(right_tflops, abs=0.005)
        assert mfu == pytest.approx(right_tflops / 312 * 100, abs=0.05)


def test_scalars_and_fields_are_there():
    """The page's tables have every scalar whose name ends in _seconds and every field of `profile`."""
    scalars = set(re.findall(r"`(\w+_seconds|mfu|hfu|matmul_fraction|slowest_rank|rank_slowdown)`", PAGE))
    assert {"mfu", "hfu", "pipeline_seconds", "rank_slowdown"} <= scalars <= set(BY_NAME)
    fields = {key.removeprefix("profile.") for key in field_keys() if key.startswith("profile.")}
    assert fields - {"enabled"} == {field for field in fields if f"`{field}`" in PAGE}
    assert "profile.enabled=true" in PAGE
