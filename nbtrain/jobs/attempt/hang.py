"""Find the rank that stopped when no rank makes progress, from the position of each rank.

When one rank stops, all others soon wait for it in their next collective. The culprit is therefore not the
rank that became silent first, but the rank for which the others wait. A rank in a collective waits for those
of the collective's ranks that have not entered it. Following these waits from rank to rank leads to ranks
that wait for no other rank: the culprits.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nbtrain.base.run_directory.rank_phases import activity_of
from nbtrain.base.run_directory.records import Collective, Heartbeat
from nbtrain.base.text.alternatives import alternatives
from nbtrain.base.text.amounts import counted
from nbtrain.jobs.machine import processes

# Age in seconds from which a heartbeat shows that its rank is frozen: a separate thread of the rank writes
# the heartbeat every second.
FROZEN_SECONDS = 10.0
# A frame as faulthandler writes it.
FRAME = re.compile(r'File "(.*)", line (\d+)')


@dataclass(frozen=True)
class Standstill:
    """The position of a live rank that makes no progress."""

    rank: int
    beat: Heartbeat | None
    """The rank's newest heartbeat; None if it never reported."""
    still_seconds: float
    """Seconds since the rank's heartbeat last changed in anything but its time stamp."""
    unwritten_seconds: float
    """Seconds since the rank's heartbeat was last written."""

    @property
    def stopped(self) -> bool:
        """Whether the rank's process is stopped by a signal (SIGSTOP, or a debugger)."""
        if self.beat is None or not self.beat.process.alive():
            return False
        return processes.process_state(self.beat.process.pid) in "Tt"

    @property
    def frozen(self) -> bool:
        """Whether the rank does not even write heartbeats, which a separate thread of it does.

        The process is then stopped or starved, or waits for a disk or driver that does not respond.
        """
        return self.beat is None or self.unwritten_seconds > FROZEN_SECONDS

    @property
    def collective(self) -> Collective | None:
        """The collective in which the rank waits; None if it does not wait in a collective."""
        known = self.beat.collective if self.beat else None
        return known if known and known.waiting else None


def culprits(ranks: Iterable[Standstill]) -> list[Standstill]:
    """Return the ranks for which the others wait; all ranks if this cannot be determined."""
    ranks = list(ranks)
    longest = max((rank.still_seconds for rank in ranks), default=0.0)
    # A rank that still made progress long after others had stopped is not the cause.
    still = [rank for rank in ranks if 2 * rank.still_seconds >= longest]
    awaited, doubtful = _awaited(ranks), [_behind(ranks), still]
    if _waiting_hosts(ranks):
        # A network that is down leaves ranks in different calls, because some ranks have finished a
        # collective that others have not. So a rank that is behind, or in a collective across hosts, is not
        # the cause.
        awaited = [rank for rank in awaited if len(_hosts(_members(rank, ranks))) < 2]
        doubtful = []
    for found in (
        [rank for rank in ranks if rank.stopped],
        [rank for rank in ranks if rank.beat is None],
        awaited,
        [rank for rank in ranks if rank.frozen],
        *doubtful,
    ):
        guilty = [rank for rank in found if rank in still]
        if guilty and len(guilty) < len(ranks):
            return guilty
    return ranks


def culprit(ranks: Iterable[Standstill]) -> int | None:
    """Return the lowest rank for which the others wait; None if this cannot be determined."""
    ranks = list(ranks)
    guilty = culprits(ranks)
    if len(ranks) > 1 and len(guilty) == len(ranks):
        return None
    return min((rank.rank for rank in guilty), default=None)


def _awaited(ranks: list[Standstill]) -> list[Standstill]:
    """Return the ranks for which others wait and which do not themselves wait for another rank."""
    waits_for: dict[int, set[int]] = {}
    for rank in ranks:
        here = rank.collective
        waits_for[rank.rank] = {
            other.rank
            for other in ranks
            if here is not None
            and other is not rank
            and other.rank in here.ranks
            and not _together(here, other.collective)
        }
    awaited = set().union(*waits_for.values())
    return [rank for rank in ranks if rank.rank in awaited and not waits_for[rank.rank]]


def _waiting_hosts(ranks: list[Standstill]) -> list[str]:
    """Return the ranks' hosts if there are several hosts and every rank waits in a collective; else []."""
    hosts = _hosts(ranks)
    return hosts if len(hosts) > 1 and all(rank.collective for rank in ranks) else []


def _hosts(ranks: Iterable[Standstill]) -> list[str]:
    return sorted({rank.beat.host for rank in ranks if rank.beat and rank.beat.host})


def _members(one: Standstill, ranks: list[Standstill]) -> list[Standstill]:
    """Return the ranks of the collective in which a rank waits."""
    return [rank for rank in ranks if one.collective and rank.rank in one.collective.ranks]


def _together(one: Collective, other: Collective | None) -> bool:
    if other is None or (one.group, one.ranks) != (other.group, other.ranks):
        return False
    # In point-to-point communication, sender and receiver call different functions.
    paired = " (" in one.name and " (" in other.name
    return paired or (one.name, one.number) == (other.name, other.number)


def _behind(ranks: list[Standstill]) -> list[Standstill]:
    """Return the ranks that have called the fewest collectives of a group, or finished the fewest steps.

    On GPUs, calls do not block, so only these counts show which rank is behind.
    """
    by_group: dict[tuple[str, tuple[int, ...]], dict[int, int]] = {}
    for rank in ranks:
        last = rank.beat.collective if rank.beat else None
        if last is not None and last.ranks:
            by_group.setdefault((last.group, tuple(last.ranks)), {})[rank.rank] = last.number
    for called in by_group.values():
        least = min(called.values())
        if least < max(called.values()):
            return [rank for rank in ranks if called.get(rank.rank) == least]
    steps = {rank.rank: rank.beat.step for rank in ranks if rank.beat}
    return [rank for rank in ranks if steps.get(rank.rank) == min(steps.values(), default=0)]


def report(ranks: Iterable[Standstill]) -> str:
    """Return a sentence that says which ranks stopped, where and when, and where the other ranks wait."""
    ranks = sorted(ranks, key=lambda rank: rank.rank)
    guilty = culprits(ranks)
    if gone := _gone_host(ranks, guilty):
        return gone
    others = [rank for rank in ranks if rank not in guilty]
    if not others and (place := _all_in_one_place(ranks)):
        return place
    text = "; ".join(f"rank {rank.rank} stopped: {whereabouts(rank)}" for rank in guilty[:4])
    if len(guilty) > 4:
        text += f"; {counted(len(guilty) - 4, 'more rank')} stopped"
    places: dict[tuple[bool, str], list[int]] = {}
    for rank in others:
        where = f"{activity_of(rank.beat.phase)} after step {rank.beat.step:,}" if rank.beat else "silent"
        where = f"in {_call(rank.collective)}" if rank.collective else where
        places.setdefault((rank.collective is not None, where), []).append(rank.rank)
    for (waiting, where), there in places.items():
        many = len(there) > 1
        verb = ("wait" if many else "waits") if waiting else ("are" if many else "is")
        text += f"; rank{'s' if many else ''} {numbers(there)} {verb} {where}"
    return text


def whereabouts(one: Standstill) -> str:
    """Return what a rank last reported, such as "last reported at step 6, 30 s ago, while training".

    If the rank has called a collective, the text ends with ", in <call>" or ", outside any collective (last:
    <call>)". It describes the rank's last heartbeat; the rank may have stopped at a later point.
    """
    if one.beat is None:
        return f"no heartbeat yet after {one.still_seconds:.0f} s"
    activity = activity_of(one.beat.phase)
    text = f"last reported at step {one.beat.step:,}, {one.still_seconds:.0f} s ago, while {activity}"
    last: Collective | None = one.beat.collective
    if last is not None:
        text += f", in {_call(last)}" if last.waiting else f", outside any collective (last: {_call(last)})"
    if one.stopped:
        return f"{text}; its process is stopped by a signal"
    return f"{text}; its process does not even write its heartbeat" if one.frozen else text


def _gone_host(ranks: list[Standstill], guilty: list[Standstill]) -> str:
    """Return text that names the nodes that are gone; "" if there are none.

    A node is gone if all its ranks are frozen while a rank on another host is not. No node is named if a rank
    in `guilty` is not frozen.
    """
    hosts: dict[str, list[Standstill]] = {}
    for rank in ranks:
        if rank.beat is not None:
            hosts.setdefault(rank.beat.host, []).append(rank)
    dead = {host: here for host, here in hosts.items() if host and all(rank.frozen for rank in here)}
    if not dead or len(dead) == len(hosts) or not all(rank.frozen for rank in guilty):
        return ""
    words = (
        f"node {host} is gone: no heartbeat from its rank{'s' if len(here) > 1 else ''} "
        f"{numbers([rank.rank for rank in here])} for {min(rank.unwritten_seconds for rank in here):.0f} s"
        for host, here in sorted(dead.items())
    )
    return "; ".join(words)


def _all_in_one_place(ranks: list[Standstill]) -> str:
    """Return text about a hang for which no single rank can be blamed; "" for any other hang.

    No rank can be blamed if no rank has reported, or if every rank waits in a collective and the ranks are on
    several hosts.
    """
    first, seconds = ranks[0], max((rank.still_seconds for rank in ranks), default=0.0)
    if all(rank.beat is None for rank in ranks) and len(ranks) > 1:
        return (
            f"no rank has reported within {seconds:.0f} s: no rank was started, or the machines cannot "
            "reach each other; see logs/"
        )
    here, hosts = first.collective, _waiting_hosts(ranks)
    if here is None or not hosts:
        return ""
    network = f"the network between {alternatives(hosts, last=' and ')} may be down"
    if all(rank.collective and _together(here, rank.collective) for rank in ranks):
        return f"all ranks have waited for {seconds:.0f} s in {_call(here)}, and no rank is behind: {network}"
    # A collective cut off by the network may have ended on some ranks, which now wait in the next one.
    places: dict[str, list[int]] = {}
    for rank in ranks:
        assert rank.collective is not None
        places.setdefault(_call(rank.collective), []).append(rank.rank)
    words = "; ".join(
        f"rank{'s' if len(there) > 1 else ''} {numbers(there)} in {call}" for call, there in places.items()
    )
    return (
        f"all ranks have waited in collectives for {seconds:.0f} s: {words}; {network}, or the ranks do not "
        "make the same calls"
    )


def _call(collective: Collective) -> str:
    kind = f" {collective.kind}" if collective.kind else ""
    return f"{collective.name} no. {collective.number} of{kind} ranks {numbers(collective.ranks)}"


def numbers(ranks: Iterable[int]) -> str:
    """Return rank numbers as text in which three or more consecutive ranks are a range, such as "0-3, 8"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def stuck_words(rank: int, stack: list[str]) -> str:
    """Return text that says where a rank was stuck. `stack` is the result of main_stack()."""
    if not stack:
        return f"rank {rank} was stuck; its log does not show at which line of its Python code"
    where = FRAME.sub(r"\1:\2", stack[0])
    return f"rank {rank} was stuck at {where}; its log has the stacks of all threads"


def main_stack(log: str, frames: int = 8) -> list[str]:
    """Return the main thread's innermost frames from the stacks in a rank's log; [] if it has no stacks."""
    heads = [line for line in log.splitlines() if line.startswith(("Thread 0x", "Current thread 0x"))]
    if not heads:
        return []
    # The kernel delivers the signal to the main thread, and faulthandler writes that thread's stack last.
    after = log.rpartition(heads[-1])[2].splitlines()[1:]
    end = next((number for number, line in enumerate(after) if not line.startswith("  ")), len(after))
    return [line.strip() for line in after[:end] if "File" in line][:frames]
