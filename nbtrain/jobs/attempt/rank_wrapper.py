"""The wrapper of one rank: start the rank, forward signals, and record how it ended.

    python -m nbtrain.jobs.attempt.rank_wrapper <command of the rank ...>

    launcher -> wrapper -> rank          log      jobs/<id>/logs/<rank>.<attempt>.log
                   |         |
                   |<--pipe--+           the rank's report: one JSON object {outcome, step, message, detail}
                   v
              exit/<rank>.<attempt>.json  that report, with the exit code or signal that the kernel reports

The job's final state comes only from these records, because the launcher's own exit code is 1 after any
failure. If the rank and the kernel disagree, the kernel is right: a rank that reported "finished" and then
died by a signal counts as killed, unless the signal was TERM, which can arrive while Python is exiting.

The wrapper imports only the standard library, because it runs once per rank, and keeps nothing in memory
while the rank trains.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from nbtrain.base.process.parent_death import die_with_parent
from nbtrain.base.process.signals import hear_signals
from nbtrain.base.run_directory import outcomes
from nbtrain.base.run_directory.records import STACK_SIGNAL, ExitRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.jobs.attempt.reserve import Reserve
from nbtrain.jobs.machine.processes import child_setup, signal_name

EXIT_FD = "NBTRAIN_EXIT_FD"
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# Part of the message for a rank that ended without a report.
WITHOUT_WORD = "without a report"
# Largest size of a rank's report. The longest part is a traceback; anything longer is not from nbtrain.
MAX_WORD_BYTES = 1 << 20
# Number of characters to keep from the end of a traceback, its most useful part. The record must fit into
# its reserve.
MAX_DETAIL_CHARACTERS = 12_000


def main(command: list[str]) -> int:
    """Run `command` as the rank; return 0 if its outcome is one of outcomes.LEFT_IN_ORDER, else 1."""
    die_with_parent(signal.SIGTERM)
    rank, attempt = int(os.environ["RANK"]), int(os.environ["NBTRAIN_ATTEMPT"])
    job = JobDir(RunDir(os.environ["NBTRAIN_RUN_DIR"]), os.environ["NBTRAIN_JOB"])
    early: list[int] = []
    for number in FORWARDED:
        signal.signal(number, lambda received, frame: early.append(received))

    reader, writer = os.pipe()
    reserve = Reserve(job.exit_record(rank, attempt).parent, f"{rank}.{attempt}")
    with job.log(rank, attempt).open("ab", buffering=0) as stream:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, EXIT_FD: str(writer)},
                pass_fds=(writer,),
                preexec_fn=child_setup(signal.SIGKILL),
                # The launcher signals the wrapper's whole process group. In a group of its own, the rank
                # gets each signal only once, from the wrapper.
                process_group=0,
            )
        except OSError as error:
            word = {"outcome": outcomes.FAILED, "message": f"cannot start: {error}"}
            write_record(job, rank, attempt, None, word, reserve)
            return 1
    os.close(writer)

    def forward(number: int, frame: object) -> None:
        child.send_signal(number)

    for number in FORWARDED:
        signal.signal(number, forward)
    for received in early:
        child.send_signal(received)
    word = read_until_exit(child, reader)
    record = write_record(job, rank, attempt, child.returncode, word, reserve)
    return 0 if record.outcome in outcomes.LEFT_IN_ORDER else 1


def read_until_exit(child: subprocess.Popen, reader: int) -> dict:
    """Wait until the rank has exited, and return its report; {} if it wrote no valid report.

    The pipe is read while the rank runs, so that a long report cannot block the rank. This does not wait for
    the end of the pipe, because a forked data worker may hold the pipe open after the rank has exited.
    """
    waker, wake = socket.socketpair()
    for end in (waker, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    os.set_blocking(reader, False)
    content = bytearray()
    open_pipe = True
    while child.poll() is None:
        # The timeout is only for a SIGCHLD that arrives between the poll and the select.
        watched = [waker.fileno(), reader] if open_pipe else [waker.fileno()]
        ready, _, _ = select.select(watched, [], [], 5.0)
        if waker.fileno() in ready:
            waker.recv(4096)
        if reader in ready:
            open_pipe = drain(reader, content)
    drain(reader, content)
    os.close(reader)
    signal.set_wakeup_fd(-1)
    try:
        word = json.loads(content) if content else {}
    except ValueError:
        word = {}
    return word if isinstance(word, dict) else {}


def drain(reader: int, content: bytearray) -> bool:
    """Append the pipe's current content to `content`; return False once no process can write to the pipe."""
    while True:
        try:
            chunk = os.read(reader, 65536)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        if len(content) < MAX_WORD_BYTES:
            content += chunk


def write_record(
    job: JobDir, rank: int, attempt: int, returncode: int | None, word: dict, reserve: Reserve
) -> ExitRecord:
    """Write the exit record, which combines the exit status with the rank's report, and return it."""
    killed_by = -returncode if returncode is not None and returncode < 0 else None
    exit_code = None if killed_by else returncode
    said = str(word.get("outcome") or "")
    said = said if said in outcomes.REPORTED else ""
    outcome = said
    message = str(word.get("message") or "")
    in_order = said in outcomes.LEFT_IN_ORDER
    if killed_by and (said == outcomes.FAILED or (killed_by == signal.SIGTERM and in_order)):
        # The report is a rank's last action, so the signal arrived while Python was shutting down. A failed
        # rank may also abort because its peers close their connections, or be ended by the launcher.
        pass
    elif killed_by == STACK_SIGNAL and said:
        pass
    elif killed_by:
        after = f" after it reported {said!r}: {message}" if said else ""
        outcome, message = outcomes.KILLED, f"killed by {signal_name(killed_by)}{after}"
    elif not said:
        outcome = outcomes.FAILED
        message = f"exit code {exit_code} {WITHOUT_WORD}; see the end of its log"
    elif exit_code and outcome != outcomes.FAILED:
        message = f"exit code {exit_code} after it reported {outcome!r}: {message}"
        outcome = outcomes.FAILED
    step = word.get("step")
    record = ExitRecord(
        rank=rank,
        attempt=attempt,
        time=time.time(),
        exit_code=exit_code,
        signal=killed_by,
        outcome=outcome,
        step=step if isinstance(step, int) else None,
        message=message,
        detail=str(word.get("detail") or "")[-MAX_DETAIL_CHARACTERS:],
        said=said,
        error=str(word.get("error") or ""),
    )
    reserve.write(lambda: record.write(job.exit_record(rank, attempt)))
    reserve.release()
    return record


if __name__ == "__main__":
    hear_signals()
    if len(sys.argv) < 2:
        sys.exit(
            f"usage: python -m nbtrain.jobs.attempt.rank_wrapper COMMAND ...   ({Path(sys.argv[0]).name} was "
            "called without a command)"
        )
    sys.exit(main(sys.argv[1:]))
