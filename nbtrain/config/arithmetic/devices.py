"""Datasheet numbers of GPUs and other accelerators, found by their name in the table or in torch.

Peaks are FLOP/s without sparsity: half the datasheet's figure if it counts sparsity. fp32 is the rate outside
tensor cores; fp16 and fp8 are the rates with fp32 accumulation. memory_bytes is the memory that a process can
use: the nominal memory in GiB, less one sixteenth if a GDDR6 card keeps its ECC bits in the same memory. A
device that is not in the table has no peak, so its MFU is unknown rather than guessed.

find_device also accepts the names in nvidia-smi and in labels of Kubernetes nodes. Device plugins derive
labels from the driver's names. NVIDIA's GPU feature discovery replaces spaces by "-" and appends "-SHARED"
for a GPU that pods share (nvidia.com/gpu.product); AMD's node labeller replaces them by "_"
(amd.com/gpu.product-name). Google's labels use other names for the GPUs (_LABELS).

Variants of a GPU that differ in speed have separate rows: an A100 on PCIe sends 64 GB/s, an A100 on an HGX
board 600. A name without a form factor (A100-80GB, H100) is the SXM module. Rows for AMD and Huawei devices
are for plans only: nbtrain trains on NVIDIA GPUs and CPUs.
"""

import difflib
import re
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """One device, with the numbers of its datasheet."""

    name: str
    memory_bytes: int
    peak_flops: dict[str, float]
    """Dense peak FLOP/s by number format. Formats that are not listed are not supported."""
    compute_capability: tuple[int, int]
    """Compute capability (major, minor) from NVIDIA's table of CUDA GPUs. Kernels are compiled for it. (0, 0)
    for other vendors.
    """
    link_bytes_per_second: float
    """Bandwidth between any two devices of a machine, in both directions together, from the datasheet of
    NVLink or PCIe.
    """
    source: str
    torch_name: str
    """Regular expression for the device's name in torch (torch.cuda.get_device_name) without the vendor."""
    memory_bytes_per_second: float
    """Bandwidth of the device's own memory."""
    tdp_watts: float
    flash_attention: tuple[int, ...]
    """Generations of flash-attn that support the device, from flash-attn's README; empty if none does."""
    network_bytes_per_second: float
    """Bandwidth to other machines, one way, of all network cards of a typical machine together."""
    devices_per_node: int = 8
    """Number of devices in a typical machine."""
    link_devices: int = 8
    """Number of devices that `link_bytes_per_second` connects. In an NVL72 rack, this number is larger than
    the number of devices in one machine.
    """
    bridge_bytes_per_second: float | None = None
    """Bandwidth between two cards that an NVLink bridge connects, both directions together. None without a
    bridge.
    """
    vendor: str = "NVIDIA"

    def peak(self, dtype: str) -> float | None:
        """Return the dense peak FLOP/s for fp32, tf32, bf16, fp16, fp8 or fp4.

        None if the device does not support the format.
        """
        return self.peak_flops.get(dtype)


# GB/s of all network cards of a typical machine, one way. Vendors' reference machines: DGX-1 and DGX-2 (4 and
# 8 cards of 100 Gb/s), DGX A100 (8 x 200 Gb/s), DGX H100 and DGX B200 (8 x 400), GB200 and GB300 NVL72 (4 x
# 400 and 4 x 800), Frontier's node (4 x 200). Cards without a reference machine: Ethernet with 100 Gb/s.
_ETHERNET, _DGX1, _DGX_A100, _DGX_H100 = 12.5, 50, 200, 400

# Generations of flash-attn by compute capability: its README; 3 is for Hopper, 4 for Hopper and datacenter
# Blackwell.
_FLASH = {7: (), 8: (2,), 9: (2, 3, 4), 10: (2, 4), 12: (2,)}

Tflops = tuple[float, float, float | None, float | None]


def _gpu(
    name: str,
    gib: float,
    bandwidth: float,
    tflops: Tflops,
    capability: tuple[int, int],
    link: float,
    watts: float,
    network: float,
    source: str,
    torch_name: str,
    fp4: float | None = None,
    flash: tuple[int, ...] | None = None,
    bridge: float | None = None,
    devices_per_node: int = 8,
    link_devices: int = 8,
) -> Device:
    """Return the row of an NVIDIA GPU; `bandwidth`, `link`, `bridge` and `network` are in GB/s.

    `tflops` are the peaks of fp16, fp32, tf32 and fp8. From compute capability 8.0 on, bf16 is added with the
    peak of fp16.
    """
    half, fp32, tf32, fp8 = tflops
    bf16 = half if capability >= (8, 0) else None
    return Device(
        name=name,
        memory_bytes=int(gib * GIB),
        peak_flops=_flops(fp16=half, fp32=fp32, bf16=bf16, tf32=tf32, fp8=fp8, fp4=fp4),
        compute_capability=capability,
        link_bytes_per_second=link * 1e9,
        source=f"NVIDIA {source}",
        torch_name=torch_name,
        memory_bytes_per_second=bandwidth * 1e9,
        tdp_watts=watts,
        flash_attention=_FLASH[capability[0]] if flash is None else flash,
        network_bytes_per_second=network * 1e9,
        devices_per_node=devices_per_node,
        link_devices=link_devices,
        bridge_bytes_per_second=bridge * 1e9 if bridge else None,
    )


def _flops(**tflops: float | None) -> dict[str, float]:
    return {dtype: peak * 1e12 for dtype, peak in tflops.items() if peak is not None}


_V100 = (125, 15.7, None, None)
_V100_PCIE = (112, 14, None, None)
_A100 = (312, 19.5, 156, None)
_H100 = (989.5, 67, 494.5, 1979)

# Memory of a B300 and a GB300: the part of their 288 GB that the drivers report.
# Name, GiB, GB/s of memory, TFLOP/s (fp16, fp32, tf32, fp8), compute capability, GB/s between GPUs, watts,
# GB/s of a machine's network, source, name in torch.
_NVIDIA = (
    _gpu(
        "V100-16GB", 16, 900, _V100, (7, 0), 300, 300, _DGX1,
        "V100 SXM2 datasheet 2020", "V100-SXM2-16GB",
    ),
    _gpu(
        "V100-32GB", 32, 900, _V100, (7, 0), 300, 300, _DGX1,
        "V100 SXM2 datasheet 2020", "V100-SXM[23]-32GB(-LS)?",
    ),
    _gpu(
        "V100-PCIe-16GB", 16, 900, _V100_PCIE, (7, 0), 32, 250, _ETHERNET,
        "V100 PCIe datasheet 2020", "V100-PCIE-16GB",
    ),
    _gpu(
        "V100-PCIe-32GB", 32, 900, _V100_PCIE, (7, 0), 32, 250, _ETHERNET,
        "V100 PCIe datasheet 2020", "V100-PCIE-32GB",
    ),
    _gpu(
        "T4", 15, 320, (65, 8.1, None, None), (7, 5), 32, 70, _ETHERNET,
        "T4 datasheet 2019", "T4", flash=(1,),
    ),
    _gpu(
        "A100-40GB", 40, 1555, _A100, (8, 0), 600, 400, _DGX_A100,
        "A100 datasheet 2021", "A100-SXM4?-40GB",
    ),
    _gpu(
        "A100-80GB", 80, 2039, _A100, (8, 0), 600, 400, _DGX_A100,
        "A100 datasheet 2021", "A100-SXM4?-80GB",
    ),
    _gpu(
        "A100-PCIe-40GB", 40, 1555, _A100, (8, 0), 64, 250, _ETHERNET,
        "A100 datasheet 2021", "A100-PCI[Ee]-40GB", bridge=600,
    ),
    _gpu(
        "A100-PCIe-80GB", 80, 1935, _A100, (8, 0), 64, 300, _ETHERNET,
        "A100 datasheet 2021", "A100-PCI[Ee]-80GB|A100 80GB PCIe", bridge=600,
    ),
    _gpu(
        "A800-80GB", 80, 2039, _A100, (8, 0), 400, 400, _DGX_A100,
        "A800 datasheet 2022: A100's rates, slower NVLink", "A800-SXM4?-80GB",
    ),
    _gpu(
        "A800-PCIe-80GB", 80, 1935, _A100, (8, 0), 64, 300, _ETHERNET,
        "A800 datasheet 2022: A100's rates, slower NVLink", "A800-PCI[Ee]-80GB|A800 80GB PCIe", bridge=400,
    ),
    _gpu("A10", 22.5, 600, (125, 31.2, 62.5, None), (8, 6), 64, 150, _ETHERNET, "A10 datasheet 2021", "A10"),
    _gpu(
        "A10G", 22.5, 600, (70, 35, 35, None), (8, 6), 64, 300, _ETHERNET,
        "A10G datasheet 2021, a card for AWS's G5", "A10G",
    ),
    _gpu(
        "A30", 24, 933, (165, 10.3, 82, None), (8, 0), 64, 165, _ETHERNET,
        "A30 datasheet 2021", "A30", bridge=200,
    ),
    _gpu(
        "A40", 45, 696, (149.7, 37.4, 74.8, None), (8, 6), 64, 300, _ETHERNET,
        "A40 datasheet 2020", "A40", bridge=112.5,
    ),
    _gpu(
        "RTX-A6000", 48, 768, (154.8, 38.7, 77.4, None), (8, 6), 64, 300, _ETHERNET,
        "RTX A6000 datasheet 2020", "RTX A6000", bridge=112.5,
    ),
    _gpu(
        "RTX-3090", 24, 936, (71, 35.6, 35.6, None), (8, 6), 64, 350, _ETHERNET,
        "GA102 whitepaper", "GeForce RTX 3090", bridge=112.5,
    ),
    _gpu(
        "RTX-4090", 24, 1008, (165.2, 82.6, 82.6, 330.3), (8, 9), 64, 450, _ETHERNET,
        "Ada whitepaper", "GeForce RTX 4090",
    ),
    _gpu(
        "RTX-5090", 32, 1792, (209.5, 104.8, 104.8, 419), (12, 0), 128, 575, _ETHERNET,
        "RTX Blackwell whitepaper", "GeForce RTX 5090", fp4=1676,
    ),
    _gpu(
        "RTX-6000-Ada", 48, 960, (364, 91.1, 182, 728), (8, 9), 64, 300, _ETHERNET,
        "RTX 6000 Ada datasheet 2023", "RTX 6000 Ada Generation",
    ),
    _gpu(
        "RTX-PRO-6000", 96, 1792, (503.8, 126, 251.9, 1007.6), (12, 0), 128, 600, _ETHERNET,
        "RTX PRO Blackwell whitepaper 2025, Workstation Edition",
        "RTX PRO 6000 Blackwell Workstation Edition", fp4=2015.2,
    ),
    _gpu(
        "RTX-PRO-6000-Max-Q", 96, 1792, (438.9, 110, 219.5, 877.9), (12, 0), 128, 300, _ETHERNET,
        "RTX PRO 6000 Blackwell Max-Q datasheet 2025",
        "RTX PRO 6000 Blackwell Max-Q Workstation Edition", fp4=1755.7,
    ),
    _gpu(
        "RTX-PRO-6000-Server", 96, 1597, (500, 120, 250, 1000), (12, 0), 128, 600, _ETHERNET,
        "RTX PRO 6000 Blackwell Server Edition datasheet 2025", "RTX PRO 6000 Blackwell Server Edition",
        fp4=2000,
    ),
    _gpu("L4", 22.5, 300, (121, 30.3, 60, 242), (8, 9), 64, 72, _ETHERNET, "L4 datasheet 2023", "L4"),
    _gpu("L40", 45, 864, (181, 90.5, 90.5, 362), (8, 9), 64, 300, _ETHERNET, "L40 datasheet 2022", "L40"),
    _gpu(
        "L40S", 45, 864, (362.05, 91.6, 183, 733), (8, 9), 64, 350, _ETHERNET,
        "L40S datasheet 2023", "L40S",
    ),
    _gpu(
        "H100", 80, 3350, _H100, (9, 0), 900, 700, _DGX_H100,
        "H100 SXM datasheet 2023", "H100 (80GB HBM3|SXM5 80GB)|H100-SXM5?-80GB",
    ),
    _gpu(
        "H100-96GB-HBM2e", 96, 2400, _H100, (9, 0), 900, 500, _DGX_H100,
        "H100 with HBM2e and a 500 W cap, as described in torchtitan's benchmarks 2025; no datasheet",
        "H100-SXM5?-96GB-HBM2e",
    ),
    _gpu(
        "H100-PCIe", 80, 2000, (756.5, 51, 378, 1513), (9, 0), 128, 350, _ETHERNET,
        "H100 PCIe datasheet 2022", "H100 PCIe", bridge=600,
    ),
    _gpu(
        "H100-NVL", 94, 3938, (835.5, 60, 417.5, 1671), (9, 0), 128, 400, _ETHERNET,
        "H100 NVL datasheet 2024", "H100 NVL", bridge=600,
    ),
    _gpu(
        "H800", 80, 3350, _H100, (9, 0), 400, 700, _DGX_H100,
        "H800 SXM: H100's rates, slower NVLink", "H800", flash=(2, 3),
    ),
    _gpu(
        "H20", 96, 4000, (148, 44, 74, 296), (9, 0), 900, 400, _DGX_H100,
        "H20 datasheet 2024", "H20", flash=(2, 3),
    ),
    _gpu(
        "H200", 141, 4800, _H100, (9, 0), 900, 700, _DGX_H100,
        "H200 SXM datasheet 2024", "H200|H200-SXM5?-141GB",
    ),
    _gpu(
        "H200-NVL", 141, 4800, (835.5, 60, 417.5, 1671), (9, 0), 128, 600, _ETHERNET,
        "H200 NVL datasheet 2024", "H200 NVL", bridge=900,
    ),
    # The 480 or 120 GB in the name is the processor's memory. A machine has one device; NVLink connects
    # machines.
    _gpu(
        "GH200-96GB", 96, 4000, _H100, (9, 0), 900, 1000, 50,
        "GH200 datasheet 2023, with HBM3; watts of processor and GPU", "GH200 (480|120)GB",
        devices_per_node=1,
    ),
    _gpu(
        "GH200-144GB", 144, 4900, _H100, (9, 0), 900, 1000, 50,
        "GH200 datasheet 2024, with HBM3e; watts of processor and GPU", "GH200 144G HBM3e",
        devices_per_node=1,
    ),
    _gpu(
        "B200", 180, 8000, (2250, 75, 1125, 4500), (10, 0), 1800, 1000, _DGX_H100,
        "HGX B200 datasheet 2024, one of eight", "B200", fp4=9000,
    ),
    _gpu(
        "B300", 268, 8000, (2250, 75, 1125, 4500), (10, 3), 1800, 1100, 800,
        "HGX B300 datasheet 2025, one of eight", "B300( SXM6 AC)?", fp4=13500,
    ),
    _gpu(
        "GB200", 186, 8000, (2500, 80, 1250, 5000), (10, 0), 1800, 1200, 200,
        "GB200 NVL72 datasheet 2024, one of 72", "GB200", fp4=10000, devices_per_node=4, link_devices=72,
    ),
    _gpu(
        "GB300", 277, 8000, (2500, 80, 1250, 5000), (10, 3), 1800, 1400, 400,
        "GB300 NVL72 datasheet 2025, one of 72", "GB300", fp4=15000, devices_per_node=4, link_devices=72,
    ),
)  # fmt: skip

# For plans only. An MI250X card counts as two devices, each with half of its numbers. Huawei's pages on the
# 910B differ by a quarter: the row is the 910B3, and plans with it are rough.
_OTHERS = (
    Device(
        "MI250X", 64 * GIB, _flops(fp16=191.5, bf16=191.5, fp32=23.95), (0, 0), 400e9,
        "AMD MI250X datasheet 2021, one of two dies", "(AMD )?Instinct MI250X( / MI250)?( OAM)?", 1638e9,
        280, (2,), 100e9, vendor="AMD",
    ),
    Device(
        "MI300X", 192 * GIB, _flops(fp16=1307, bf16=1307, fp32=163.4, tf32=653.7, fp8=2615), (0, 0), 896e9,
        "AMD MI300X datasheet 2023", "(AMD )?Instinct MI300X( OAM)?", 5300e9, 750, (2,), 400e9, vendor="AMD",
    ),
    Device(
        "MI355X", 288 * GIB, _flops(fp16=2516.6, bf16=2516.6, fp32=157.3, fp8=5033.2, fp4=10066.3), (0, 0),
        1075.2e9, "AMD MI355X datasheet 2025", "(AMD )?Instinct MI355X( OAM)?", 8000e9, 1400, (2,), 400e9,
        vendor="AMD",
    ),
    Device(
        "Ascend-910A", 32 * GIB, _flops(fp16=256), (0, 0), 90e9,
        "Huawei Ascend 910 datasheet 2019", "Ascend ?910A?", 1200e9, 310, (), 100e9, vendor="Huawei",
    ),
    Device(
        "Ascend-910B", 64 * GIB, _flops(fp16=313, bf16=313, fp32=75), (0, 0), 392e9,
        "Huawei Ascend 910B3, as published by others; no datasheet", "Ascend ?910B3?", 1600e9, 400, (), 200e9,
        vendor="Huawei",
    ),
)  # fmt: skip

DEVICES: tuple[Device, ...] = (*_NVIDIA, *_OTHERS)

BY_NAME = {device.name: device for device in DEVICES}


# Names of GPUs in Google Kubernetes Engine (cloud.google.com/gke-accelerator) that cannot be derived from
# torch's names.
_LABELS = {
    "nvidia-tesla-v100": "V100-16GB",
    "nvidia-tesla-a100": "A100-40GB",
    "nvidia-a100-80gb": "A100-80GB",
    "nvidia-h100-80gb": "H100",
    "nvidia-h100-mega-80gb": "H100",
    "nvidia-h200-141gb": "H200",
    "nvidia-rtx-pro-6000": "RTX-PRO-6000-Server",
}
_PATTERNS = [
    (device, re.compile(re.sub("[ -](?![^[]*])", "[ _-]", device.torch_name), re.IGNORECASE))
    for device in DEVICES
]


def find_device(name: str | None) -> Device | None:
    """Return the row of a device, by its name in the table, torch, nvidia-smi or a node's label.

    None if unknown.

    The whole name must match, because an A10G is not an A10 and a MIG slice is not a whole A100.
    """
    if name is None or name in BY_NAME:
        return BY_NAME.get(name or "")
    stripped = name.strip().removesuffix("-SHARED")
    if label := _LABELS.get(stripped.lower()):
        return BY_NAME[label]
    bare = re.sub(r"^(NVIDIA[ -])?(Tesla[ -])?", "", stripped, flags=re.IGNORECASE)
    return next((device for device, pattern in _PATTERNS if pattern.fullmatch(bare)), None)


def nearest_device_names(name: str) -> list[str]:
    """Return up to three names in the table that are similar to `name`."""
    folded = {known.lower(): known for known in BY_NAME}
    starting = [key for key in folded if key.startswith(name.lower())]
    close = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.5)
    return [folded[key] for key in dict.fromkeys((*starting, *close))][:3]
