"""Datasheet figures of GPUs: memory and dense peak rates, by table name or by the name torch reports.

Peaks are FLOP/s without sparsity; where a datasheet gives the sparse figure, half of it stands here.
fp32 is the rate outside tensor cores. memory_bytes is what a process can have: the nominal memory in GiB,
less one sixteenth where a GDDR6 card keeps its ECC bits in the same memory.
A device that is not in the table has no peak, and then there is no MFU: never a guess.
"""

import difflib
import re
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """One row.

    `torch_names` are regular expressions for torch.cuda.get_device_name(), vendor word left out.
    """

    name: str
    memory_bytes: int
    peak_flops: dict[str, float]
    """Dense peak by number format; a format that is missing is not supported."""
    source: str
    torch_names: tuple[str, ...]
    compute_capability: tuple[int, int]
    """What a kernel is compiled for, as (major, minor): NVIDIA's table of CUDA GPUs."""
    link_bytes_per_second: float = 64e9
    """Between two GPUs of a machine, both directions together: NVLink's figure on the datasheet, or
    PCIe's."""

    def peak(self, dtype: str) -> float | None:
        """Dense peak FLOP/s for fp32, tf32, bf16 or fp16, or None where the device has no such unit."""
        return self.peak_flops.get(dtype)


def _peaks(half: float, fp32: float, tf32: float | None = None, bf16: bool = True) -> dict[str, float]:
    peaks = {"fp16": half * 1e12, "fp32": fp32 * 1e12}
    if bf16:
        peaks["bf16"] = half * 1e12
    if tf32:
        peaks["tf32"] = tf32 * 1e12
    return peaks


_A100 = _peaks(312, 19.5, 156)
_H100 = _peaks(989.5, 67, 494.5)

DEVICES: tuple[Device, ...] = (
    Device(
        "V100-16GB",
        16 * GIB,
        _peaks(125, 15.7, bf16=False),
        "NVIDIA V100 datasheet (2020), SXM2",
        (r"V100-SXM2-16GB",),
        (7, 0),
        300e9,
    ),
    Device(
        "V100-32GB",
        32 * GIB,
        _peaks(125, 15.7, bf16=False),
        "NVIDIA V100 datasheet (2020), SXM2",
        (r"V100-SXM[23]-32GB(-LS)?",),
        (7, 0),
        300e9,
    ),
    Device(
        "V100-PCIe-16GB",
        16 * GIB,
        _peaks(112, 14, bf16=False),
        "NVIDIA V100 datasheet (2020), PCIe",
        (r"V100-PCIE-16GB",),
        (7, 0),
        32e9,
    ),
    Device(
        "V100-PCIe-32GB",
        32 * GIB,
        _peaks(112, 14, bf16=False),
        "NVIDIA V100 datasheet (2020), PCIe",
        (r"V100-PCIE-32GB",),
        (7, 0),
        32e9,
    ),
    Device("T4", 15 * GIB, _peaks(65, 8.1, bf16=False), "NVIDIA T4 datasheet (2019)", (r"T4",), (7, 5), 32e9),
    Device(
        "A100-40GB",
        40 * GIB,
        _A100,
        "NVIDIA A100 datasheet (2021)",
        (r"A100-SXM4-40GB", r"A100-PCI[Ee]-40GB"),
        (8, 0),
        600e9,
    ),
    Device(
        "A100-80GB",
        80 * GIB,
        _A100,
        "NVIDIA A100 datasheet (2021)",
        (r"A100-SXM4-80GB", r"A100 80GB PCIe", r"A100-PCI[Ee]-80GB"),
        (8, 0),
        600e9,
    ),
    Device(
        "A800-80GB",
        80 * GIB,
        _A100,
        "NVIDIA A800 datasheet (2022): A100's rates, slower NVLink",
        (r"A800-SXM4-80GB", r"A800 80GB PCIe", r"A800-PCI[Ee]-80GB"),
        (8, 0),
        400e9,
    ),
    Device(
        "A10", 22 * GIB + GIB // 2, _peaks(125, 31.2, 62.5), "NVIDIA A10 datasheet (2021)", (r"A10",), (8, 6)
    ),
    Device("A30", 24 * GIB, _peaks(165, 10.3, 82), "NVIDIA A30 datasheet (2021)", (r"A30",), (8, 0)),
    Device("A40", 45 * GIB, _peaks(149.7, 37.4, 74.8), "NVIDIA A40 datasheet (2020)", (r"A40",), (8, 6)),
    Device(
        "RTX-A6000",
        48 * GIB,
        _peaks(154.8, 38.7, 77.4),
        "NVIDIA RTX A6000 datasheet (2020)",
        (r"RTX A6000",),
        (8, 6),
    ),
    Device(
        "RTX-3090",
        24 * GIB,
        _peaks(71, 35.6, 35.6),
        "NVIDIA GA102 whitepaper, fp16 with fp32 accumulation",
        (r"GeForce RTX 3090",),
        (8, 6),
    ),
    Device(
        "RTX-4090",
        24 * GIB,
        _peaks(165.2, 82.6, 82.6),
        "NVIDIA Ada whitepaper, fp16 with fp32 accumulation",
        (r"GeForce RTX 4090",),
        (8, 9),
    ),
    Device("L4", 22 * GIB + GIB // 2, _peaks(121, 30.3, 60), "NVIDIA L4 datasheet (2023)", (r"L4",), (8, 9)),
    Device("L40S", 45 * GIB, _peaks(362.05, 91.6, 183), "NVIDIA L40S datasheet (2023)", (r"L40S",), (8, 9)),
    Device(
        "H100",
        80 * GIB,
        _H100,
        "NVIDIA H100 datasheet (2023), SXM",
        (r"H100 80GB HBM3", r"H100 SXM5 80GB", r"H100-SXM5-80GB"),
        (9, 0),
        900e9,
    ),
    Device(
        "H100-PCIe",
        80 * GIB,
        _peaks(756.5, 51, 378),
        "NVIDIA H100 datasheet (2022), PCIe",
        (r"H100 PCIe",),
        (9, 0),
        128e9,
    ),
    Device(
        "H100-NVL",
        94 * GIB,
        _peaks(835.5, 60, 417.5),
        "NVIDIA H100 datasheet (2024), NVL",
        (r"H100 NVL",),
        (9, 0),
        600e9,
    ),
    Device(
        "H800", 80 * GIB, _H100, "NVIDIA H800 SXM: H100's rates, slower NVLink", (r"H800",), (9, 0), 400e9
    ),
    Device("H20", 96 * GIB, _peaks(148, 44, 74), "NVIDIA H20 datasheet (2024)", (r"H20",), (9, 0), 900e9),
    Device("H200", 141 * GIB, _H100, "NVIDIA H200 datasheet (2024), SXM", (r"H200",), (9, 0), 900e9),
    Device(
        "B200",
        180 * GIB,
        _peaks(2250, 75, 1125),
        "NVIDIA HGX B200 datasheet (2024), one of eight",
        (r"B200",),
        (10, 0),
        1800e9,
    ),
)

BY_NAME = {device.name: device for device in DEVICES}


def find_device(name: str) -> Device | None:
    """The row for a table name or for torch's device name, or None.

    The whole name must match: an A10G is no A10, a MIG slice no whole A100.
    """
    if name in BY_NAME:
        return BY_NAME[name]
    bare = re.sub(r"^(NVIDIA|Tesla) ", "", name.strip())
    bare = re.sub(r"^Tesla ", "", bare)
    for device in DEVICES:
        if any(re.fullmatch(pattern, bare) for pattern in device.torch_names):
            return device
    return None


def nearest_device_names(name: str) -> list[str]:
    """Table names that look like `name`."""
    folded = {known.lower(): known for known in BY_NAME}
    starting = [key for key in folded if key.startswith(name.lower())]
    close = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.5)
    return [folded[key] for key in dict.fromkeys((*starting, *close))][:3]
