"""Records which collective this rank is in, for the heartbeat and for the diagnosis of a hang.

install() replaces the functions of torch.distributed once. The replacements record the collective's name,
group and number before they call the original. DeepSpeed and nbtrain both call collectives through that
module, so every collective is recorded. Recording costs about two microseconds, a collective at least fifty.
Waiting for an asynchronous collective (Work.wait) is recorded too.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from nbtrain.base.run_directory.records import Collective

TIMED = (
    "_all_gather_base",
    "_reduce_scatter_base",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
)
"""Collectives that transfer data; train/figures/communication.py measures their time."""
GROUPED = (*TIMED, "barrier", "monitored_barrier")
"""All functions of torch.distributed, in several versions of torch, that the ranks of a group call together.
DeepSpeed's backends have methods of the same names.
"""
# {function: keyword} of the calls between two ranks. The other rank is the second positional argument, or the
# argument with this keyword.
PAIRED = {"send": "dst", "recv": "src", "isend": "dst", "irecv": "src"}


class CollectiveWatch:
    """Records the collectives of this process, once install() has been called."""

    def __init__(self) -> None:
        self.calls = 0
        """Number of collectives begun, ended or waited for: it rises as long as this rank makes progress."""
        self._last: tuple[str, Any, int, float] | None = None
        self._waiting = False
        self._counts: dict[Any, int] = {}
        self._groups: dict[Any, tuple[str, list[int], str]] = {}

    def install(self) -> None:
        """Replace the functions; called once in a process, after its process group is created."""
        for name in [name for name in GROUPED if hasattr(dist, name)]:
            setattr(dist, name, self._noted(name, getattr(dist, name)))
        for name, peer in PAIRED.items():
            setattr(dist, name, self._noted(name, getattr(dist, name), peer))
        dist.Work.wait = self._waited(dist.Work.wait)  # type: ignore[method-assign]

    def name_group(self, kind: str, group: dist.ProcessGroup | None) -> None:
        """Register what kind of group this is, so that reports can name it."""
        self._groups[group] = (kind, *_ranks_and_name(group))

    def current(self) -> Collective | None:
        """Return the collective that this rank is in or, if it is in none, its last one; None before the
        first collective. Called by another thread.
        """
        last, waiting = self._last, self._waiting
        if last is None:
            return None
        name, group, number, since = last
        kind, ranks, own_name = self._groups.get(group) or self._look_up(group)
        return Collective(name, kind, ranks, number, since, waiting, own_name)

    def _look_up(self, group: Any) -> tuple[str, list[int], str]:
        try:
            found = ("", *_ranks_and_name(group))
        except (ValueError, RuntimeError):
            return "", [], ""  # the process group no longer exists: the rank is about to exit
        self._groups[group] = found
        return found

    def _noted(self, name: str, function: Callable, peer: str | None = None) -> Callable:
        @functools.wraps(function)
        def noted(*arguments: Any, **named: Any) -> Any:
            # While torch.compile traces the call, it must see the original function.
            if torch.compiler.is_compiling():
                return function(*arguments, **named)
            group = named.get("group")
            if group is None and len(arguments) > 2:
                group = next((value for value in arguments[2:] if isinstance(value, dist.ProcessGroup)), None)
            label = name
            if peer is not None:
                other = named.get(peer, arguments[1] if len(arguments) > 1 else None)
                label = f"{name} ({'to' if peer == 'dst' else 'from'} rank {other})"
            number = self._counts[group] = self._counts.get(group, 0) + 1
            self._last = (label, group, number, time.time())
            self._waiting = True
            self.calls += 1
            try:
                return function(*arguments, **named)
            finally:
                self._waiting = False
                self.calls += 1

        return noted

    def _waited(self, wait: Callable) -> Callable:
        def waited(work: Any, *arguments: Any, **named: Any) -> Any:
            self._waiting = True
            self.calls += 1
            try:
                return wait(work, *arguments, **named)
            finally:
                self._waiting = False
                self.calls += 1

        return waited


def _ranks_and_name(group: dist.ProcessGroup | None) -> tuple[list[int], str]:
    known = group if group is not None else dist.group.WORLD
    return dist.get_process_group_ranks(known), str(known.group_name) if known is not None else ""
