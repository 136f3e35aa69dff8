"""Datasheet figures of GPUs: memory and dense peak rates, by table name or by the name torch reports.

Peaks are FLOP/s without sparsity: half the datasheet's figure if it counts sparsity. fp32 is the rate outside
tensor cores, fp16 the rate with fp32 accumulation. memory_bytes is what a process can have: the nominal
memory in GiB, less one sixteenth if a GDDR6 card keeps its ECC bits in the same memory. A device that is not
in the table has no peak, so that there is no MFU rather than a guessed one.
"""

import difflib
import re
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """One row."""

    name: str
    memory_bytes: int
    peak_flops: dict[str, float]
    """Dense peak by number format; a format that is missing is not supported."""
    compute_capability: tuple[int, int]
    """What a kernel is compiled for, as (major, minor): NVIDIA's table of CUDA GPUs."""
    link_bytes_per_second: float
    """Between two GPUs of a machine, both directions together: NVLink's or PCIe's figure on the datasheet."""
    source: str
    torch_name: str
    """Regular expression for torch.cuda.get_device_name(), vendor word left out."""

    def peak(self, dtype: str) -> float | None:
        """Dense peak FLOP/s for fp32, tf32, bf16 or fp16, or None if the device has no such unit."""
        return self.peak_flops.get(dtype)


Tflops = tuple[float, float, float | None]


def _gpu(
    name: str, gib: float, tflops: Tflops, capability: tuple[int, int], gb: int, source: str, torch_name: str
) -> Device:
    """`tflops`: of fp16, fp32 and tf32. From compute capability 8.0 on there is bf16, as fast as fp16."""
    half, fp32, tf32 = tflops
    peaks = {"fp16": half, "fp32": fp32, "bf16": half if capability >= (8, 0) else None, "tf32": tf32}
    flops = {dtype: peak * 1e12 for dtype, peak in peaks.items() if peak is not None}
    return Device(name, int(gib * GIB), flops, capability, gb * 1e9, f"NVIDIA {source}", torch_name)


_V100 = (125, 15.7, None)
_A100 = (312, 19.5, 156)
_H100 = (989.5, 67, 494.5)

# Name, GiB, TFLOP/s, compute capability, GB/s between GPUs, source, name in torch.
DEVICES: tuple[Device, ...] = (
    _gpu("V100-16GB", 16, _V100, (7, 0), 300, "V100 SXM2 datasheet 2020", "V100-SXM2-16GB"),
    _gpu("V100-32GB", 32, _V100, (7, 0), 300, "V100 SXM2 datasheet 2020", "V100-SXM[23]-32GB(-LS)?"),
    _gpu("V100-PCIe-16GB", 16, (112, 14, None), (7, 0), 32, "V100 PCIe datasheet 2020", "V100-PCIE-16GB"),
    _gpu("V100-PCIe-32GB", 32, (112, 14, None), (7, 0), 32, "V100 PCIe datasheet 2020", "V100-PCIE-32GB"),
    _gpu("T4", 15, (65, 8.1, None), (7, 5), 32, "T4 datasheet 2019", "T4"),
    _gpu("A100-40GB", 40, _A100, (8, 0), 600, "A100 datasheet 2021", "A100-(SXM4|PCI[Ee])-40GB"),
    _gpu(
        "A100-80GB", 80, _A100, (8, 0), 600, "A100 datasheet 2021", "A100-(SXM4|PCI[Ee])-80GB|A100 80GB PCIe"
    ),
    _gpu(
        "A800-80GB",
        80,
        _A100,
        (8, 0),
        400,
        "A800 datasheet 2022: A100's rates, slower NVLink",
        "A800-(SXM4|PCI[Ee])-80GB|A800 80GB PCIe",
    ),
    _gpu("A10", 22.5, (125, 31.2, 62.5), (8, 6), 64, "A10 datasheet 2021", "A10"),
    _gpu("A30", 24, (165, 10.3, 82), (8, 0), 64, "A30 datasheet 2021", "A30"),
    _gpu("A40", 45, (149.7, 37.4, 74.8), (8, 6), 64, "A40 datasheet 2020", "A40"),
    _gpu("RTX-A6000", 48, (154.8, 38.7, 77.4), (8, 6), 64, "RTX A6000 datasheet 2020", "RTX A6000"),
    _gpu("RTX-3090", 24, (71, 35.6, 35.6), (8, 6), 64, "GA102 whitepaper", "GeForce RTX 3090"),
    _gpu("RTX-4090", 24, (165.2, 82.6, 82.6), (8, 9), 64, "Ada whitepaper", "GeForce RTX 4090"),
    _gpu("L4", 22.5, (121, 30.3, 60), (8, 9), 64, "L4 datasheet 2023", "L4"),
    _gpu("L40S", 45, (362.05, 91.6, 183), (8, 9), 64, "L40S datasheet 2023", "L40S"),
    _gpu(
        "H100", 80, _H100, (9, 0), 900, "H100 SXM datasheet 2023", "H100 (80GB HBM3|SXM5 80GB)|H100-SXM5-80GB"
    ),
    _gpu("H100-PCIe", 80, (756.5, 51, 378), (9, 0), 128, "H100 PCIe datasheet 2022", "H100 PCIe"),
    _gpu("H100-NVL", 94, (835.5, 60, 417.5), (9, 0), 600, "H100 NVL datasheet 2024", "H100 NVL"),
    _gpu("H800", 80, _H100, (9, 0), 400, "H800 SXM: H100's rates, slower NVLink", "H800"),
    _gpu("H20", 96, (148, 44, 74), (9, 0), 900, "H20 datasheet 2024", "H20"),
    _gpu("H200", 141, _H100, (9, 0), 900, "H200 SXM datasheet 2024", "H200"),
    _gpu("B200", 180, (2250, 75, 1125), (10, 0), 1800, "HGX B200 datasheet 2024, one of eight", "B200"),
)

BY_NAME = {device.name: device for device in DEVICES}


def find_device(name: str | None) -> Device | None:
    """The row for a table name or for torch's device name, or None.

    The whole name must match: an A10G is no A10, a MIG slice no whole A100.
    """
    if name is None or name in BY_NAME:
        return BY_NAME.get(name or "")
    bare = re.sub(r"^(NVIDIA )?(Tesla )?", "", name.strip())
    return next((device for device in DEVICES if re.fullmatch(device.torch_name, bare)), None)


def nearest_device_names(name: str) -> list[str]:
    """Table names that look like `name`."""
    folded = {known.lower(): known for known in BY_NAME}
    starting = [key for key in folded if key.startswith(name.lower())]
    close = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.5)
    return [folded[key] for key in dict.fromkeys((*starting, *close))][:3]
