"""The device table: names, peaks and memory."""

import pytest

from nbtrain.config.arithmetic.devices import DEVICES, GIB, find_device, nearest_device_names


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("Tesla T4", "T4"),
    ],
)
def test_a_device_is_found_by_the_name_that_torch_reports(reported, name):
    """And by its name in the table."""
    assert find_device(reported).name == name
    assert find_device(name).name == name


@pytest.mark.parametrize(
    "reported",
    [
        "NVIDIA A10G",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "A100",
        "cpu",
        "",
    ],
)
def test_what_is_not_in_the_table_has_no_peak(reported):
    """A near name is another device: no MFU is better than a wrong one."""
    assert find_device(reported) is None


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("A100-40GB", "fp16", 312),
        ("A100-80GB", "bf16", 312),
        ("A100-80GB", "fp32", 19.5),
        ("V100-32GB", "fp16", 125),
        ("H100", "bf16", 989.5),
        ("H200", "bf16", 989.5),
        ("L40S", "bf16", 362.05),
        ("A10", "bf16", 125),
    ],
)
def test_peaks_are_the_dense_ones_of_the_datasheet(name, dtype, tflops):
    """Never the sparse figure, which is twice as high."""
    assert find_device(name).peak(dtype) == pytest.approx(tflops * 1e12)


def test_a_format_without_a_unit_has_no_peak():
    """V100 and T4 have no bf16."""
    assert find_device("V100-32GB").peak("bf16") is None
    assert find_device("T4").peak("bf16") is None


def test_every_row_is_whole():
    """A source, memory in a sane range, fp16 above fp32, and no name twice."""
    assert len({device.name for device in DEVICES}) == len(DEVICES)
    for device in DEVICES:
        assert "NVIDIA" in device.source
        assert 15 * GIB <= device.memory_bytes <= 192 * GIB
        assert device.peak("fp16") > device.peak("fp32")


def test_near_names_are_offered():
    """The beginning of a name first."""
    assert nearest_device_names("a100")[:2] == ["A100-40GB", "A100-80GB"]
    assert nearest_device_names("RTX4090")[0] == "RTX-4090"
    assert nearest_device_names("qqqqqqqq") == []
