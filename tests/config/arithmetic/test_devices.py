"""The device table: names, peak rates and memory."""

import pytest

from nbtrain.config.arithmetic.devices import DEVICES, find_device, nearest_device_names


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A100-PCIe-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA A100-PCIE-80GB", "A100-PCIe-80GB"),
        ("NVIDIA A800-SXM4-80GB", "A800-80GB"),
        ("NVIDIA A800 80GB PCIe", "A800-PCIe-80GB"),
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
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("NVIDIA GeForce RTX 5090", "RTX-5090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("Ascend910B3", "Ascend-910B"),
        ("A100-SXM-80GB", "A100-80GB"),
        ("H100-SXM-80GB", "H100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA-GH200-120GB", "GH200-96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX-PRO-6000-Max-Q"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-Server"),
        ("AMD Instinct MI355X", "MI355X"),
        # Labels of nodes: NVIDIA's GPU feature discovery, AMD's node labeller, Google.
        ("NVIDIA-A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA-A100-80GB-PCIe-SHARED", "A100-PCIe-80GB"),
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("NVIDIA-GeForce-RTX-4090", "RTX-4090"),
        ("NVIDIA-RTX-6000-Ada-Generation", "RTX-6000-Ada"),
        ("Tesla-V100-SXM2-32GB", "V100-32GB"),
        ("Tesla-T4", "T4"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("nvidia-tesla-a100", "A100-40GB"),
        ("nvidia-tesla-t4", "T4"),
        ("nvidia-l4", "L4"),
        ("nvidia-h100-mega-80gb", "H100"),
        ("nvidia-gb200", "GB200"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("Tesla T4", "T4"),
    ],
)
def test_a_device_is_found_by_the_name_that_torch_reports(reported, name):
    """A device is found by the name that torch reports and by its name in the table."""
    assert find_device(reported).name == name
    assert find_device(name).name == name


@pytest.mark.parametrize(
    "reported",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
        "NVIDIA H800 PCIe",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "A100",
        "cpu",
        "",
    ],
)
def test_what_is_not_in_the_table_has_no_peak(reported):
    """A name that is only similar to one in the table has no peak, because no MFU
    is better than a wrong one.
    """
    assert find_device(reported) is None


# GiB, GB/s of memory, TFLOP/s of fp32, tf32, 16 bit and fp8 (dense, fp32 accumulation), GB/s between two
# GPUs, compute capability, watts, generations of flash-attn. From the makers' datasheets and flash-attn's
# README, transcribed independently of the table; sparse values are halved here. GiB of GDDR6 cards with ECC:
# 15/16 of the nominal memory.
DATASHEETS = {
    "V100-16GB": (16, 900, 15.7, None, 125, None, 300, (7, 0), 300, ()),
    "V100-32GB": (32, 900, 15.7, None, 125, None, 300, (7, 0), 300, ()),
    "V100-PCIe-16GB": (16, 900, 14, None, 112, None, 32, (7, 0), 250, ()),
    "V100-PCIe-32GB": (32, 900, 14, None, 112, None, 32, (7, 0), 250, ()),
    "T4": (16 * 15 / 16, 320, 8.1, None, 65, None, 32, (7, 5), 70, (1,)),
    "A100-40GB": (40, 1555, 19.5, 156, 312, None, 600, (8, 0), 400, (2,)),
    "A100-80GB": (80, 2039, 19.5, 156, 312, None, 600, (8, 0), 400, (2,)),
    "A100-PCIe-40GB": (40, 1555, 19.5, 156, 312, None, 64, (8, 0), 250, (2,)),
    "A100-PCIe-80GB": (80, 1935, 19.5, 156, 312, None, 64, (8, 0), 300, (2,)),
    "A800-80GB": (80, 2039, 19.5, 156, 312, None, 400, (8, 0), 400, (2,)),
    "A800-PCIe-80GB": (80, 1935, 19.5, 156, 312, None, 64, (8, 0), 300, (2,)),
    "A10": (24 * 15 / 16, 600, 31.2, 62.5, 125, None, 64, (8, 6), 150, (2,)),
    "A10G": (24 * 15 / 16, 600, 35, 35, 70, None, 64, (8, 6), 300, (2,)),
    "A30": (24, 933, 10.3, 82, 165, None, 64, (8, 0), 165, (2,)),
    "A40": (48 * 15 / 16, 696, 37.4, 74.8, 149.7, None, 64, (8, 6), 300, (2,)),
    "RTX-A6000": (48, 768, 38.7, 77.4, 154.8, None, 64, (8, 6), 300, (2,)),
    "RTX-3090": (24, 936, 35.6, 35.6, 71, None, 64, (8, 6), 350, (2,)),
    "RTX-4090": (24, 1008, 82.6, 82.6, 165.2, 330.3, 64, (8, 9), 450, (2,)),
    "RTX-5090": (32, 1792, 104.8, 104.8, 209.5, 419, 128, (12, 0), 575, (2,)),
    "RTX-6000-Ada": (48, 960, 91.1, 182, 364, 728, 64, (8, 9), 300, (2,)),
    "RTX-PRO-6000": (96, 1792, 126, 503.8 / 2, 503.8, 2015.2 / 2, 128, (12, 0), 600, (2,)),
    "RTX-PRO-6000-Max-Q": (96, 1792, 110, 219.5, 438.9, 877.9, 128, (12, 0), 300, (2,)),
    "RTX-PRO-6000-Server": (96, 1597, 120, 1000 / 4, 1000 / 2, 2000 / 2, 128, (12, 0), 600, (2,)),
    "L4": (24 * 15 / 16, 300, 30.3, 60, 121, 242, 64, (8, 9), 72, (2,)),
    "L40": (48 * 15 / 16, 864, 90.5, 90.5, 181, 362, 64, (8, 9), 300, (2,)),
    "L40S": (48 * 15 / 16, 864, 91.6, 183, 362.05, 733, 64, (8, 9), 350, (2,)),
    "H100": (80, 3350, 67, 989 / 2, 1979 / 2, 1979, 900, (9, 0), 700, (2, 3, 4)),
    "H100-96GB-HBM2e": (96, 2400, 67, 989 / 2, 1979 / 2, 1979, 900, (9, 0), 500, (2, 3, 4)),
    "H100-PCIe": (80, 2000, 51, 756 / 2, 1513 / 2, 1513, 128, (9, 0), 350, (2, 3, 4)),
    "H100-NVL": (94, 3938, 60, 835 / 2, 1671 / 2, 1671, 128, (9, 0), 400, (2, 3, 4)),
    "H800": (80, 3350, 67, 989 / 2, 1979 / 2, 1979, 400, (9, 0), 700, (2, 3)),
    "H20": (96, 4000, 44, 74, 148, 296, 900, (9, 0), 400, (2, 3)),
    "H200": (141, 4800, 67, 989 / 2, 1979 / 2, 1979, 900, (9, 0), 700, (2, 3, 4)),
    "H200-NVL": (141, 4800, 60, 835 / 2, 1671 / 2, 1671, 128, (9, 0), 600, (2, 3, 4)),
    "GH200-96GB": (96, 4000, 67, 989 / 2, 1979 / 2, 1979, 900, (9, 0), 1000, (2, 3, 4)),
    "GH200-144GB": (144, 4900, 67, 989 / 2, 1979 / 2, 1979, 900, (9, 0), 1000, (2, 3, 4)),
    "B200": (180, 8000, 75, 1125, 2250, 4500, 1800, (10, 0), 1000, (2, 4)),
    "B300": (268, 8000, 600 / 8, 18e3 / 8 / 2, 36e3 / 8 / 2, 72e3 / 8 / 2, 1800, (10, 3), 1100, (2, 4)),
    "GB200": (186, 8000, 80, 1250, 2500, 5000, 1800, (10, 0), 1200, (2, 4)),
    "GB300": (277, 8000, 80, 1250, 2500, 5000, 1800, (10, 3), 1400, (2, 4)),
    "MI250X": (128 / 2, 3276 / 2, 47.9 / 2, None, 383 / 2, None, 400, (0, 0), 560 / 2, (2,)),
    "MI300X": (192, 5300, 163.4, 653.7, 1307, 2615, 896, (0, 0), 750, (2,)),
    "MI355X": (288, 8000, 157.3, None, 2516.6, 5033.2, 1075.2, (0, 0), 1400, (2,)),
    "Ascend-910A": (32, 1200, None, None, 256, None, 90, (0, 0), 310, ()),
    "Ascend-910B": (64, 1600, 75, None, 313, None, 392, (0, 0), 400, ()),
}
WITHOUT_BF16 = {"V100-16GB", "V100-32GB", "V100-PCIe-16GB", "V100-PCIe-32GB", "T4", "Ascend-910A"}
# GB/s of the NVLink bridge between two cards.
BRIDGES = {
    **dict.fromkeys(("A100-PCIe-40GB", "A100-PCIe-80GB", "H100-PCIe", "H100-NVL"), 600),
    **dict.fromkeys(("A40", "RTX-A6000", "RTX-3090"), 112.5),
    "A800-PCIe-80GB": 400,
    "A30": 200,
    "H200-NVL": 900,
}
FP4 = {
    "RTX-5090": 1676, "RTX-PRO-6000": 2015.2, "RTX-PRO-6000-Max-Q": 1755.7, "RTX-PRO-6000-Server": 4000 / 2,
    "B200": 9000, "B300": 108e3 / 8, "GB200": 10000, "GB300": 15000, "MI355X": 10066.3,
}  # fmt: skip


@pytest.mark.parametrize("name", DATASHEETS)
def test_a_row_is_that_of_the_datasheet(name):
    """Peak rates are for dense products, half of the sparse rates; V100 and T4 have no bf16 or tf32."""
    gib, bandwidth, fp32, tf32, half, fp8, link, capability, watts, flash = DATASHEETS[name]
    device = find_device(name)
    peaks = {"fp32": fp32, "fp16": half, "tf32": tf32, "fp8": fp8, "fp4": FP4.get(name)}
    peaks["bf16"] = None if name in WITHOUT_BF16 else half
    assert device.peak_flops == {key: peak * 1e12 for key, peak in peaks.items() if peak}
    assert device.memory_bytes == gib * 2**30
    assert device.memory_bytes_per_second == bandwidth * 1e9
    assert device.link_bytes_per_second == link * 1e9
    assert device.bridge_bytes_per_second == (BRIDGES[name] * 1e9 if name in BRIDGES else None)
    assert device.compute_capability == capability
    assert device.tdp_watts == watts
    assert device.flash_attention == flash
    assert device.source.startswith(f"{device.vendor} ")


@pytest.mark.parametrize(
    ("names", "gigabytes", "devices"),
    [
        (("A100-40GB", "A100-80GB", "A800-80GB"), 8 * 200 / 8, 8),
        (("H100", "H200", "H800", "H20", "B200", "MI300X"), 8 * 400 / 8, 8),
        (("GB200",), 4 * 400 / 8, 4),
        (("GB300",), 4 * 800 / 8, 4),
        (("V100-32GB",), 4 * 100 / 8, 8),
        (("B300",), 8 * 800 / 8, 8),
        (("GH200-96GB",), 400 / 8, 1),
        (("A100-PCIe-80GB", "L40S", "RTX-4090"), 100 / 8, 8),
    ],
)
def test_the_network_is_that_of_a_usual_machine(names, gigabytes, devices):
    """The network bandwidth is one direction of the network cards in the vendor's reference machine."""
    for name in names:
        device = find_device(name)
        assert device.network_bytes_per_second == gigabytes * 1e9
        assert device.devices_per_node == devices
        assert device.link_devices == (72 if devices == 4 else 8)


def test_every_row_is_compared_once():
    assert [device.name for device in DEVICES] == list(DATASHEETS)


def test_a_format_without_a_unit_has_no_peak():
    """V100 and T4 have no peak for bf16 and tf32, and no device has one for fp64."""
    for name in ("V100-32GB", "T4"):
        assert [find_device(name).peak(dtype) for dtype in ("bf16", "tf32")] == [None, None]
    assert find_device("H100").peak("fp64") is None


def test_near_names_are_offered():
    """Suggestions for an unknown name start with names that have the same beginning."""
    assert nearest_device_names("a100") == ["A100-40GB", "A100-80GB", "A100-PCIe-40GB"]
    assert nearest_device_names("V100") == ["V100-16GB", "V100-32GB", "V100-PCIe-16GB"]
    assert nearest_device_names("RTX4090") == ["RTX-4090", "RTX-5090", "RTX-3090"]
    assert nearest_device_names("qqqqqqqq") == []


def test_a_device_without_a_name_is_not_known():
    """Without a GPU type (resources.gpu_type: null) there is no device."""
    assert find_device(None) is None
