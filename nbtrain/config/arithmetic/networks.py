"""Networks between machines, found by name, with the bandwidth of all network cards of a machine together.

Bandwidths are one way, in bytes per second. A name consists of the kind of network and its Gb/s: the total of
a machine (efa-3200), or the number of cards and the speed of each (ib-8x400). Other names stand for a single
card, as is common in cloud machines and lab clusters. In collectives over large arrays, a network reaches
this fraction of its bandwidth:

    EFA      0.85   340 of P4d's 400 Gb/s: all-reduce of 4 GiB (stas00/ml-engineering, model-parallelism)
    others   0.80   320 of 400 Gb/s at best (stas00/ml-engineering, network)

Four machines with 3,200 Gb/s have reached 0.91 (364.65 GB/s, the same chapter), and four with 400 Gb/s 0.59
(29.6 GB/s, NVIDIA/nccl issue 527). Run `nbtrain calibrate --network` to measure your network.
"""

import difflib
from dataclasses import dataclass

USUAL_REACHED, EFA_REACHED = 0.80, 0.85
_GIGABIT = 1e9 / 8


@dataclass(frozen=True, slots=True)
class Network:
    """A network between machines."""

    name: str
    bytes_per_second: float
    """Bandwidth of all cards of a machine together, one way."""
    reached: float
    """Fraction of the bandwidth that collectives over large arrays reach."""
    source: str
    """Standard, datasheet or machine that the bandwidth comes from."""


def _network(
    name: str, gigabits: float, source: str, cards: int = 1, reached: float = USUAL_REACHED
) -> Network:
    return Network(name, cards * gigabits * _GIGABIT, reached, source)


# Rates of ports: IEEE 802.3 (Ethernet), InfiniBand Trade Association (EDR 100, HDR 200, NDR 400, XDR 800).
# Machines: stas00/ml-engineering, chapter on networks, table of 2026-07-28, which names each vendor's page.
NETWORKS: tuple[Network, ...] = (
    *(
        _network(f"ethernet-{gigabits}", gigabits, f"IEEE 802.3, one port of {gigabits} Gb/s")
        for gigabits in (1, 10, 25, 40, 50, 100, 200, 400)
    ),
    *(
        _network(f"roce-{gigabits}", gigabits, f"IEEE 802.3 with RDMA (RoCE v2), one port of {gigabits} Gb/s")
        for gigabits in (25, 100, 200, 400)
    ),
    _network("roce-8x100", 100, "eight ports of 100 Gb/s with RoCE v2", 8),
    _network("roce-8x200", 200, "eight ports of 200 Gb/s with RoCE v2", 8),
    _network("roce-8x400", 400, "eight ports of 400 Gb/s with RoCE v2", 8),
    _network("ib-100", 100, "InfiniBand EDR, one port"),
    _network("ib-200", 200, "InfiniBand HDR, one port"),
    _network("ib-400", 400, "InfiniBand NDR, one port"),
    _network("ib-4x100", 100, "DGX-1: four ports of EDR", 4),
    _network("ib-8x100", 100, "DGX-2: eight ports of EDR", 8),
    _network("ib-4x200", 200, "four ports of HDR", 4),
    _network("ib-8x200", 200, "DGX A100, Azure NDv4: eight ports of HDR", 8),
    _network("ib-4x400", 400, "four ports of NDR, as in a tray of GB200 NVL72", 4),
    _network("ib-8x400", 400, "DGX H100, H200 and B200, Azure NDv5: eight ports of NDR", 8),
    _network("ib-8x800", 800, "DGX B300: eight ports of XDR", 8),
    _network("slingshot-4x200", 200, "HPE Slingshot 11, four ports, as in Frontier's machines", 4),
    _network("efa-400", 100, "AWS P4d: four EFA interfaces of 100 Gb/s", 4, EFA_REACHED),
    _network(
        "efa-3200", 100, "AWS P5 and P5e: 32 EFA interfaces of 100 Gb/s; P5en 16 of 200; P6-B200 8 of 400",
        32, EFA_REACHED,
    ),
    _network("efa-6400", 400, "AWS P6-B300: 16 EFA interfaces of 400 Gb/s", 16, EFA_REACHED),
    _network("tcpx-800", 200, "Google Cloud A3 High: four interfaces of 200 Gb/s (GPUDirect-TCPX)", 4),
    _network("tcpxo-1600", 200, "Google Cloud A3 Mega: eight interfaces of 200 Gb/s (GPUDirect-TCPXO)", 8),
)  # fmt: skip

NETWORK_BY_NAME = {network.name: network for network in NETWORKS}


def find_network(name: str | None) -> Network | None:
    """Return the network with this name, ignoring case; None if the table does not have it."""
    return NETWORK_BY_NAME.get(name.strip().lower()) if name is not None else None


def nearest_network_names(name: str) -> list[str]:
    """Return up to four names in the table that are similar to `name`."""
    folded = name.strip().lower()
    kind = folded.partition("-")[0]
    close = difflib.get_close_matches(folded, NETWORK_BY_NAME, n=3, cutoff=0.6)
    same_kind = [known for known in NETWORK_BY_NAME if kind and known.startswith(f"{kind}-")]
    return list(dict.fromkeys((*close, *same_kind)))[:4]


def gigabits(bytes_per_second: float) -> str:
    """Format a bandwidth as networks are named: "3,200 Gb/s"."""
    value = bytes_per_second / _GIGABIT
    return f"{value:,.0f} Gb/s" if value >= 100 else f"{value:,.3g} Gb/s"
