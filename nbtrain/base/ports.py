"""A TCP port of this machine to listen on in a moment."""

import errno
import random
import socket

LOOPBACK = "127.0.0.1"
FIRST, LAST = 15_000, 30_000
TRIES = 100


def port_to_listen_on(address: str = LOOPBACK) -> int:
    """A free port of `address`, on which another process will listen a second later.

    Outgoing connections take theirs from 32768 on (Linux: ip_local_port_range), so one of those may be in use
    by then; services of Kubernetes have 30000 to 32767. The choice is the system's randomness, not torch's or
    Python's seeded one, which ranks inherit.
    Raises RuntimeError if none is found, and OSError if `address` is none of this machine's.
    """
    for port in random.SystemRandom().sample(range(FIRST, LAST), TRIES):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
    raise RuntimeError(f"{TRIES} ports between {FIRST:,} and {LAST:,} were tried, and all are in use")
