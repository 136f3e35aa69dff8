"""The records in the kernel log about processes that the out-of-memory killer has ended."""

import errno
import os

import pytest

from nbtrain.jobs.machine import host_memory
from nbtrain.jobs.machine.host_memory import HostMemory, killed_processes

RECORDS = [
    b"6,339,5140900,-;NET: Registered PF_INET protocol family\n",
    b"3,1041,99,-;Out of memory: Killed process 812 (python) total-vm:9kB, anon-rss:8kB, UID:0 "
    b"pgtables:4kB\n",
    b"3,1042,99,-;Memory cgroup out of memory: Killed process 813 (python) total-vm:9kB\n SUBSYSTEM=none\n",
    b"12,1043,99,-;a program: Out of memory: Killed process 814 (python)\n",
]


@pytest.fixture
def log(monkeypatch):
    """Simulate a kernel log that returns one of RECORDS per read; the first was overwritten, and there is no
    end of file.
    """

    def of(namespace):
        left = [BrokenPipeError(errno.EPIPE, "overwritten"), *RECORDS, BlockingIOError(errno.EAGAIN, "end")]

        def read(descriptor, size):
            record = left.pop(0)
            if isinstance(record, bytes):
                return record
            raise record

        monkeypatch.setattr(host_memory, "KERNEL_LOG", os.devnull)
        monkeypatch.setattr(os, "readlink", lambda path: namespace)
        monkeypatch.setattr(os, "read", read)

    return of


def test_the_kernels_log_names_processes(log):
    log(host_memory.FIRST_PID_NAMESPACE)
    assert killed_processes() == {(1041, 812), (1042, 813)}


def test_in_a_container_its_numbers_are_of_others(log):
    log("pid:[4026532201]")
    assert killed_processes() == frozenset()


def test_a_log_that_may_not_be_read_tells_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "readlink", lambda path: host_memory.FIRST_PID_NAMESPACE)
    monkeypatch.setattr(host_memory, "KERNEL_LOG", tmp_path / "none")
    assert killed_processes() == frozenset()


def test_an_entry_from_before_is_none_of_this_attempt():
    """A record from before the attempt does not count, because process ids are reused."""
    before, after = HostMemory(killed=frozenset({(1, 812)})), HostMemory(killed=frozenset({(1, 812), (2, 9)}))
    assert after.since(before).evidence(812) == ""
    assert after.since(before).evidence(9) == "the kernel's log names process 9"
