"""A pytest plugin (-p tests.plain_cpu) that makes torch report no hardware support for 16-bit formats.

That holds in the test process and in every Python that it starts (plain_cpu_site/sitecustomize.py). With
ATEN_CPU_CAPABILITY=avx2 and ONEDNN_MAX_CPU_ISA=AVX2 in the environment, torch uses the kernels for a
processor without AVX-512 and AMX. tests/end_to_end/test_plain_cpu.py runs a sample of the tests this way; the
whole suite:

    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python -m pytest -p tests.plain_cpu
"""

import os
from pathlib import Path

import pytest
import torch

from tests.plain_cpu_site.sitecustomize import without_units

SITE = Path(__file__).parent / "plain_cpu_site"


def pytest_configure(config: pytest.Config) -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    if capability != "AVX2":
        raise pytest.UsageError(f"set ATEN_CPU_CAPABILITY=avx2: torch's kernels are those for {capability}")
    without_units(torch)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])])
