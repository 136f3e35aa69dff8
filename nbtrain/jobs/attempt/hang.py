"""Find the rank that stopped when no rank makes progress, from the position of each rank.

One rank that stops makes all others wait for it, a moment later, in their next collective. So the culprit is
not the rank that fell silent first, but the rank that the others wait for: a rank in a collective waits for
the collective's other ranks that are not in it. Followed to the end, this leads to ranks that wait for none.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nbtrain.base.run_directory.rank_phases import activity_of
from nbtrain.base.run_directory.records import Collective, Heartbeat
from nbtrain.jobs.machine import processes

# A heartbeat's thread writes every second: an older file belongs to a rank that cannot even run that thread.
FROZEN_SECONDS = 10.0
# A frame as faulthandler writes it.
FRAME = re.compile(r'File "(.*)", line (\d+)')


@dataclass(frozen=True)
class Standstill:
    """The position at which a live rank makes no progress."""

    rank: int
    beat: Heartbeat | None
    """The rank's newest heartbeat; None if it never reported."""
    still_seconds: float
    """Seconds since anything except the time changed in its heartbeat."""
    unwritten_seconds: float
    """Seconds since its heartbeat was last written."""

    @property
    def stopped(self) -> bool:
        """Whether its process was stopped by a signal (SIGSTOP, a debugger)."""
        if self.beat is None or not self.beat.process.alive():
            return False
        return processes.process_state(self.beat.process.pid) in "Tt"

    @property
    def frozen(self) -> bool:
        """Whether even the thread that writes heartbeats is silent: the process is stopped, starved, or waits
        for a dead disk or driver.
        """
        return self.beat is None or self.unwritten_seconds > FROZEN_SECONDS

    @property
    def collective(self) -> Collective | None:
        """The collective in which the rank waits; None if it is in none."""
        known = self.beat.collective if self.beat else None
        return known if known and known.waiting else None


def culprits(ranks: Iterable[Standstill]) -> list[Standstill]:
    """Return the ranks that the others wait for; all ranks if it cannot be decided."""
    ranks = list(ranks)
    longest = max((rank.still_seconds for rank in ranks), default=0.0)
    # A rank that still made progress when others had long stopped is not to blame.
    still = [rank for rank in ranks if 2 * rank.still_seconds >= longest]
    awaited, doubtful = _awaited(ranks), [_behind(ranks), still]
    if _waiting_hosts(ranks):
        # A network that is down leaves ranks in different calls: some have ended a collective that others
        # have not. So neither a rank in a collective of several hosts is to blame, nor one that is behind.
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
    """Return the lowest rank that the others wait for; None if it cannot be decided."""
    ranks = list(ranks)
    guilty = culprits(ranks)
    if len(ranks) > 1 and len(guilty) == len(ranks):
        return None
    return min((rank.rank for rank in guilty), default=None)


def _awaited(ranks: list[Standstill]) -> list[Standstill]:
    """Return ranks that others wait for, and that do not wait for a rank outside their own collective."""
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
    """Return the hosts of the ranks if every rank waits in a collective and there are several hosts; [] if
    not.
    """
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
    # Point to point: sender and receiver call different functions.
    paired = " (" in one.name and " (" in other.name
    return paired or (one.name, one.number) == (other.name, other.number)


def _behind(ranks: list[Standstill]) -> list[Standstill]:
    """Return the ranks that have called the fewest collectives of a group, or done the fewest steps. On GPUs
    no call blocks, so only the counts tell.
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
    """Return one sentence: which ranks stopped, where and since when, and where the others wait."""
    ranks = sorted(ranks, key=lambda rank: rank.rank)
    guilty = culprits(ranks)
    if gone := _gone_host(ranks, guilty):
        return gone
    others = [rank for rank in ranks if rank not in guilty]
    if not others and (place := _all_in_one_place(ranks)):
        return place
    text = "; ".join(f"rank {rank.rank} stopped: {whereabouts(rank)}" for rank in guilty[:4])
    if len(guilty) > 4:
        text += f"; and {len(guilty) - 4} more"
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
    """Return `last heard of at step 6, 30 s ago, while training, outside any collective (last: ...)`.

    It describes the last heartbeat, not where the rank stopped, which may be later.
    """
    if one.beat is None:
        return f"no heartbeat yet, for {one.still_seconds:.0f} s"
    activity = activity_of(one.beat.phase)
    text = f"last reported at step {one.beat.step:,}, {one.still_seconds:.0f} s ago, while {activity}"
    last: Collective | None = one.beat.collective
    if last is not None:
        text += f", in {_call(last)}" if last.waiting else f", outside any collective (last: {_call(last)})"
    if one.stopped:
        return f"{text}; its process is stopped by a signal"
    return f"{text}; its process does not even write its heartbeat" if one.frozen else text


def _gone_host(ranks: list[Standstill], guilty: list[Standstill]) -> str:
    """Return text if a node is gone: all ranks of one host are frozen, and a rank of another host is not."""
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
    """Return text if no rank has reported, or if every rank waits in a collective and there are several
    hosts; "" otherwise.
    """
    first, seconds = ranks[0], max((rank.still_seconds for rank in ranks), default=0.0)
    if all(rank.beat is None for rank in ranks) and len(ranks) > 1:
        return (
            f"no rank has reported within {seconds:.0f} s: none was started, or their machines do not reach "
            "each other; see logs/"
        )
    here, hosts = first.collective, _waiting_hosts(ranks)
    if here is None or not hosts:
        return ""
    network = f"the network between {', '.join(hosts)} may be down"
    if all(rank.collective and _together(here, rank.collective) for rank in ranks):
        return f"all ranks wait in {_call(here)}, for {seconds:.0f} s, and none is behind: {network}"
    # A collective cut off by the network may have ended on some ranks, which now wait in the next one.
    places: dict[str, list[int]] = {}
    for rank in ranks:
        assert rank.collective is not None
        places.setdefault(_call(rank.collective), []).append(rank.rank)
    words = "; ".join(
        f"rank{'s' if len(there) > 1 else ''} {numbers(there)} in {call}" for call, there in places.items()
    )
    return (
        f"all ranks wait in a collective, for {seconds:.0f} s: {words}; {network}, or they do not make the "
        "same calls"
    )


def _call(collective: Collective) -> str:
    kind = f" {collective.kind}" if collective.kind else ""
    return f"{collective.name} no. {collective.number} of{kind} ranks {numbers(collective.ranks)}"


def numbers(ranks: Iterable[int]) -> str:
    """Return "0-3, 8" for the numbers 0 1 2 3 8."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def stuck_words(rank: int, stack: list[str]) -> str:
    """Return a sentence that says where a rank was stuck. `stack` is the result of main_stack()."""
    if not stack:
        return f"rank {rank} was stuck; its log shows no line of Python where"
    where = FRAME.sub(r"\1:\2", stack[0])
    return f"rank {rank} was stuck at {where}; its log has the stacks of all threads"


def main_stack(log: str, frames: int = 8) -> list[str]:
    """Return the innermost frames of the main thread that faulthandler wrote to a rank's log; [] if there are
    none.
    """
    heads = [line for line in log.splitlines() if line.startswith(("Thread 0x", "Current thread 0x"))]
    if not heads:
        return []
    # The kernel delivers the signal to the main thread, whose stack is written last.
    after = log.rpartition(heads[-1])[2].splitlines()[1:]
    end = next((number for number, line in enumerate(after) if not line.startswith("  ")), len(after))
    return [line.strip() for line in after[:end] if "File" in line][:frames]
