"""Tables and figures of a calibration: rates by number format, and collectives by message size."""

from typing import Any

from nbtrain.base.printing.report import Block, Column, Facts, Items, Sentence, Table
from nbtrain.base.printing.theme import themed
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.networks import gigabits
from nbtrain.planner.calibration.calibration import Calibration, Figure
from nbtrain.planner.calibration.calibration_doubts import SPREAD_SHARE
from nbtrain.planner.calibration.measured_network import GATHER, REDUCE, MeasuredNetwork

GIGA = 1e9
NETWORK_KINDS = (REDUCE, GATHER)


def bus_factor(collective: str, ranks: int) -> float:
    """Return the ratio of bus bandwidth to algorithm bandwidth, as in nccl-tests (doc/PERFORMANCE.md)."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def bandwidths(figure: Figure) -> tuple[float, float]:
    """Return (algorithm bandwidth, bus bandwidth) of a collective, in bytes per second."""
    algorithm = figure["bytes"] / figure["seconds"]
    return algorithm, algorithm * bus_factor(figure["collective"], figure["ranks"])


def latency_seconds(figures: list[Figure]) -> float:
    """Return the latency of a collective in seconds: the time of its smallest measured message."""
    return min(figures, key=lambda figure: figure["bytes"])["seconds"]


def blocks(calibration: Calibration) -> list[Block]:
    """Return a calibration as report blocks.

    They show the rates of one rank and of all ranks at once, the disk, the collectives, and reasons to doubt
    the measurement.
    """
    shown: list[Block] = []
    for ranks in sorted({figure["ranks"] for figure in calibration.figures}):
        if not (rates := calibration.matmul_flops(ranks)):
            continue
        each = "one rank" if ranks == 1 else f"each of {ranks} ranks"
        facts = {f"{dtype} products": f"{flops / GIGA:,.0f} GFLOP/s" for dtype, flops in rates.items()}
        if memory := calibration.memory_bytes_per_second(ranks):
            facts["memory"] = f"{memory / GIGA:,.1f} GB/s, read and written"
        shown.append(Facts(facts, f"Best rates of {each}"))
    if calibration.disk:
        write, read = (calibration.disk[f"{name}_bytes_per_second"] for name in ("write", "read"))
        disk = {"writes": f"{write / GIGA:.2f} GB/s", "reads": f"{read / GIGA:.2f} GB/s"}
        shown.append(Facts(disk, "Disk of the output directory"))
    groups = _collectives(calibration)
    for ranks in dict.fromkeys(ranks for ranks, _ in groups):
        own = {kind: group for (number, kind), group in groups.items() if number == ranks}
        # Collectives that were measured with different message sizes are shown in separate tables.
        for sizes in dict.fromkeys(tuple(figure["bytes"] for figure in group) for group in own.values()):
            columns = [Column(name, is_right=True) for name in ("latency", *map(amounts.size, sizes))]
            rows = [
                [kind, f"{latency_seconds(group) * 1e6:,.0f} us", *map(_bus_bandwidth, group)]
                for kind, group in own.items()
                if tuple(figure["bytes"] for figure in group) == sizes
            ]
            title = (
                f"Collectives of {amounts.counted(ranks, 'rank')}: latency, and bus bandwidth by array size"
            )
            shown.append(Table(["", *columns], rows, title))
    return [*shown, Items(calibration.doubts, "Reasons to doubt these measurements:")]


def _bus_bandwidth(figure: Figure) -> str:
    return f"{bandwidths(figure)[1] / GIGA:.2f} GB/s"


def picture(calibration: Calibration) -> Any:
    """Return a Matplotlib figure: bus bandwidth by message size (left), rates by number format (right)."""
    from nbtrain.planner.picture import new_figure

    canvas = new_figure(10, 4)
    left, right = canvas.subplots(1, 2)
    for (ranks, kind), group in _collectives(calibration).items():
        sizes = [figure["bytes"] for figure in group]
        bus = [bandwidths(figure)[1] / GIGA for figure in group]
        left.plot(sizes, bus, marker="o", label=f"{kind}, {ranks} ranks")
    left.set(xscale="log", yscale="log", xlabel="array size in bytes", ylabel="bus bandwidth, GB/s")
    left.set_title("Collectives")
    if left.lines:
        left.legend(fontsize=7)
    for dtype in calibration.matmul_flops(1):
        points = calibration.of("product", ranks=1, dtype=dtype)
        work = [6 * figure["m"] * figure["n"] * figure["k"] for figure in points]
        pairs = sorted(zip(work, (figure["flops"] / GIGA for figure in points)))
        right.plot(*zip(*pairs), marker="o", label=dtype)
    right.set(xscale="log", yscale="log", xlabel="FLOPs per product", ylabel="GFLOP/s")
    right.set_title("Matrix products on one rank, forward and backward")
    if right.lines:
        right.legend(fontsize=7)
    canvas.suptitle(f"{calibration.machine}, {calibration.date}", fontsize=9)
    return themed(canvas)


def network_blocks(network: MeasuredNetwork) -> list[Block]:
    """Return the measurement of a network as report blocks.

    They show its bandwidth and latency, both collectives by array size, and reasons to doubt the measurement.
    """
    reached = (
        f"{network.date}, {network.ranks} ranks on {network.nodes} machines: "
        f"{gigabits(network.bytes_per_second)} one-way bandwidth, "
        f"{network.latency_seconds * 1e6:,.0f} us per hop"
    )
    measured = [network.of(kind) for kind in NETWORK_KINDS]
    rows = [
        [amounts.size(figures[0]["bytes"]), *(_network_cell(network, figure) for figure in figures)]
        for figures in zip(*measured)
    ]
    columns = [Column(kind, is_right=True) for kind in NETWORK_KINDS]
    unsteady = [figure for figure in network.figures if (figure["spread"] or 0.0) > SPREAD_SHARE]
    count = amounts.counted(len(unsteady), "measurement")
    verb = "varies" if len(unsteady) == 1 else "vary"
    doubts = [f"{count} {verb} by more than {SPREAD_SHARE:.0%} between calls."] if unsteady else []
    return [
        Sentence(reached),
        Table(["bytes", *columns], rows, "Time and bus bandwidth of collectives by array size"),
        Items(doubts, "Reasons to doubt these measurements:"),
    ]


def _network_cell(network: MeasuredNetwork, figure: Figure) -> str:
    bandwidth = gigabits(network.bus_bandwidth(figure))
    return f"{amounts.step(figure['seconds'])}, {bandwidth}"


def network_picture(network: MeasuredNetwork) -> Any:
    """Return a Matplotlib figure with the bus bandwidth of both collectives by array size."""
    from nbtrain.planner.picture import new_figure

    canvas = new_figure(7, 4)
    axes = canvas.subplots()
    for kind in NETWORK_KINDS:
        figures = network.of(kind)
        bandwidths_ = [network.bus_bandwidth(figure) * 8 / GIGA for figure in figures]
        axes.plot([figure["bytes"] for figure in figures], bandwidths_, marker="o", label=kind)
    reached = network.bytes_per_second * 8 / GIGA
    axes.axhline(
        reached, linestyle="--", linewidth=1, label=f"{gigabits(network.bytes_per_second)}, used by plans"
    )
    axes.set(xscale="log", yscale="log", xlabel="array size in bytes", ylabel="bus bandwidth, Gb/s, one way")
    axes.set_title(f"{network.ranks} ranks on {network.nodes} machines, {network.date}", fontsize=10)
    axes.legend(fontsize=8)
    return themed(canvas)


def _collectives(calibration: Calibration) -> dict[tuple[int, str], list[Figure]]:
    """Return {(ranks, collective): its measurements, sorted by size}."""
    groups: dict[tuple[int, str], list[Figure]] = {}
    for figure in calibration.of("collective"):
        groups.setdefault((figure["ranks"], figure["collective"]), []).append(figure)
    return {key: sorted(group, key=lambda figure: figure["bytes"]) for key, group in groups.items()}
