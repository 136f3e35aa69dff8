"""A pytest plugin (-p tests.plain_cpu): torch says of this processor that it has no unit for 16-bit formats.

With ATEN_CPU_CAPABILITY=avx2 and ONEDNN_MAX_CPU_ISA=AVX2 around it, kernels are those of a processor without
AVX-512 and AMX, in this process and in all that it starts. tests/end_to_end/test_plain_cpu.py runs a sample
of the tests so; the whole suite: ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python -m pytest -p
tests.plain_cpu
"""

import pytest
import torch

UNITS = ("_is_mkldnn_bf16_supported", "_is_mkldnn_fp16_supported")


def pytest_configure(config: pytest.Config) -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    if capability != "AVX2":
        raise pytest.UsageError(f"set ATEN_CPU_CAPABILITY=avx2: torch's kernels are those for {capability}")
    for name in UNITS:
        assert hasattr(torch.ops.mkldnn, name), name
        setattr(torch.ops.mkldnn, name, lambda: False)
