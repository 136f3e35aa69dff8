"""A sample of the tests passes on a processor without AVX-512, AMX and 16-bit arithmetic, in `make soak`."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SAMPLE = ["tests/model/test_gpt.py", "tests/parallel/test_loss.py", "tests/parallel/test_tensor_gpt.py"]
# Tests of kernels in one process, and of sums over four ranks; tests of two ranks would take too long.
# tests/checkpoint/test_reshape.py tests fp16 without its unit.
CHOSEN = "(cross_entropy or logits or backends or whole_sequence or on_four_ranks) and not on_two_ranks"


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX2 is of x86-64 alone")
def test_a_sample_passes_on_a_plain_processor(tmp_path):
    variables = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.plain_cpu", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--basetemp", str(tmp_path / "sample"), "-k", CHOSEN, *SAMPLE],
        cwd=REPOSITORY,
        env={**os.environ, **variables, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.slow
def test_a_python_started_beside_it_has_no_units_either():
    """Child Python processes do not see these units either, because a folder in PYTHONPATH hides them."""
    asks = (
        "import torch; print([getattr(torch.ops.mkldnn, f'_is_mkldnn_{name}_supported')()"
        " for name in ('bf16', 'fp16')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", asks],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tests" / "plain_cpu_site")},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[False, False]\n", done.stderr[-2000:]
