"""The device table: names, peaks and memory."""

import pytest

from nbtrain.config.arithmetic.devices import DEVICES, find_device, nearest_device_names


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA A100-PCIe-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA A100-PCIE-80GB", "A100-80GB"),
        ("NVIDIA A800-SXM4-80GB", "A800-80GB"),
        ("NVIDIA A800 80GB PCIe", "A800-80GB"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("Tesla V100-SXM3-32GB", "V100-32GB"),
        ("Tesla V100-SXM2-32GB-LS", "V100-32GB"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe-16GB"),
        ("NVIDIA Tesla V100-PCIE-32GB", "V100-PCIe-32GB"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100-SXM5-80GB", "H100"),
        ("NVIDIA H100 SXM5 80GB", "H100"),
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
    """A device is found by its name in the table too."""
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
    """A similar name is another device: no MFU is better than a wrong one."""
    assert find_device(reported) is None


# GiB, TFLOP/s of fp32, tf32 and 16 bit (dense, fp32 accumulation), GB/s between two GPUs, compute capability.
# From NVIDIA's datasheets, read apart from the table; a figure with sparsity is halved here. GiB of GDDR6
# cards with ECC: 15/16 of the nominal memory.
DATASHEETS = {
    "V100-16GB": (16, 15.7, None, 125, 300, (7, 0)),
    "V100-32GB": (32, 15.7, None, 125, 300, (7, 0)),
    "V100-PCIe-16GB": (16, 14, None, 112, 32, (7, 0)),
    "V100-PCIe-32GB": (32, 14, None, 112, 32, (7, 0)),
    "T4": (16 * 15 / 16, 8.1, None, 65, 32, (7, 5)),
    "A100-40GB": (40, 19.5, 156, 312, 600, (8, 0)),
    "A100-80GB": (80, 19.5, 156, 312, 600, (8, 0)),
    "A800-80GB": (80, 19.5, 156, 312, 400, (8, 0)),
    "A10": (24 * 15 / 16, 31.2, 62.5, 125, 64, (8, 6)),
    "A30": (24, 10.3, 82, 165, 64, (8, 0)),
    "A40": (48 * 15 / 16, 37.4, 74.8, 149.7, 64, (8, 6)),
    "RTX-A6000": (48, 38.7, 77.4, 154.8, 64, (8, 6)),
    "RTX-3090": (24, 35.6, 35.6, 71, 64, (8, 6)),
    "RTX-4090": (24, 82.6, 82.6, 165.2, 64, (8, 9)),
    "L4": (24 * 15 / 16, 30.3, 60, 121, 64, (8, 9)),
    "L40S": (48 * 15 / 16, 91.6, 183, 362.05, 64, (8, 9)),
    "H100": (80, 67, 989 / 2, 1979 / 2, 900, (9, 0)),
    "H100-PCIe": (80, 51, 756 / 2, 1513 / 2, 128, (9, 0)),
    "H100-NVL": (94, 60, 835 / 2, 1671 / 2, 600, (9, 0)),
    "H800": (80, 67, 989 / 2, 1979 / 2, 400, (9, 0)),
    "H20": (96, 44, 74, 148, 900, (9, 0)),
    "H200": (141, 67, 989 / 2, 1979 / 2, 900, (9, 0)),
    "B200": (180, 75, 1125, 2250, 1800, (10, 0)),
}


@pytest.mark.parametrize("name", DATASHEETS)
def test_a_row_is_that_of_the_datasheet(name):
    """Dense peaks, never the sparse ones, which are twice as high; V100 and T4 have no bf16 and no tf32."""
    gib, fp32, tf32, half, link, capability = DATASHEETS[name]
    device = find_device(name)
    peaks = {"fp32": fp32, "fp16": half}
    if capability >= (8, 0):
        peaks |= {"tf32": tf32, "bf16": half}
    assert device.peak_flops == {key: peak * 1e12 for key, peak in peaks.items()}
    assert device.memory_bytes == gib * 2**30
    assert device.link_bytes_per_second == link * 1e9
    assert device.compute_capability == capability
    assert device.source.startswith("NVIDIA ")


def test_every_row_is_compared_once():
    assert [device.name for device in DEVICES] == list(DATASHEETS)


def test_a_format_without_a_unit_has_no_peak():
    """V100 and T4 have neither bf16 nor tf32; no GPU of the table is asked for fp64."""
    for name in ("V100-32GB", "T4"):
        assert [find_device(name).peak(dtype) for dtype in ("bf16", "tf32")] == [None, None]
    assert find_device("H100").peak("fp64") is None


def test_near_names_are_offered():
    """Names that begin like the given one come first."""
    assert nearest_device_names("a100") == ["A100-40GB", "A100-80GB", "A10"]
    assert nearest_device_names("V100") == ["V100-16GB", "V100-32GB", "V100-PCIe-16GB"]
    assert nearest_device_names("RTX4090") == ["RTX-4090", "RTX-3090", "RTX-A6000"]
    assert nearest_device_names("qqqqqqqq") == []


def test_a_device_without_a_name_is_not_known():
    """resources.gpu_type: null has no device."""
    assert find_device(None) is None
