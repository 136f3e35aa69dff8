"""Choice of a free TCP port for a process, such as rank 0, that will listen on it a moment later."""

import errno
import os
import random
import socket
import time

LOOPBACK = "127.0.0.1"
FIRST, LAST = 15_000, 30_000
TRIES = 100
# Rank 0 imports torch before it listens, which takes long from a cold disk.
CLAIM_SECONDS = 120.0

# (monotonic time of creation, descriptor of its socket) of each port that this process has claimed
_claims: list[tuple[float, int]] = []
# A child may close the descriptors that it inherits and reuse their numbers.
os.register_at_fork(after_in_child=_claims.clear)


def port_to_listen_on(address: str = LOOPBACK) -> int:
    """Return a free port of `address` for a process, such as rank 0, that will listen on it a moment later.

    Ports from 32768 on are excluded because outgoing connections may take them meanwhile (Linux:
    ip_local_port_range), and 30000 to 32767 because Kubernetes services use them. The choice uses the
    system's randomness instead of torch's or Python's seeded generators, which ranks inherit. No other caller
    on this machine gets the port for CLAIM_SECONDS, or until this process ends. Raises RuntimeError if no
    port is found, and OSError if `address` does not belong to this machine.
    """
    for port in random.SystemRandom().sample(range(FIRST, LAST), TRIES):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                if _claim(port):
                    return port
    raise RuntimeError(f"{TRIES} ports between {FIRST:,} and {LAST:,} were tried, but all are in use")


def _claim(port: int) -> bool:
    """Claim a port. Return False if another process has already claimed it.

    The claim is an abstract Unix socket: it has the same scope as ports, needs no file, and ends with its
    process.
    """
    now = time.monotonic()
    for claimed_at, claim in list(_claims):
        if now - claimed_at > CLAIM_SECONDS:
            _claims.remove((claimed_at, claim))
            os.close(claim)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        try:
            made.bind(f"\0nbtrain-port-{port}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        _claims.append((now, made.detach()))
    return True
