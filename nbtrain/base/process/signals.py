"""Restore the signals that end a process of nbtrain, even if its parent ignored or blocked them.

A process inherits the signals that its starter ignores, and those that the starting thread blocks. A script
starts `nbtrain twin ... &` with INT and QUIT ignored, a batch script may ignore TERM for itself, and a thread
of a server may block all of them. Without hear_signals(), only SIGKILL could end the processes that they
start.
"""

import signal

HEARD = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD)


def hear_signals() -> None:
    """Stop ignoring INT, QUIT, TERM and CHLD, and unblock every signal.

    Every long-lived process calls this first, in its main thread.

    `nbtrain cancel` and schedulers send TERM to make a job save, and a kill follows soon after. If TERM
    stayed ignored, as in the parent process, the job would lose its last checkpoint. If CHLD stayed ignored,
    the exit codes of children would be lost. HUP stays ignored if it was, because `nohup` relies on that.
    Signals that a process handles itself (USR1, USR2) are unblocked where their handlers are installed.
    """
    for number in HEARD:
        if signal.getsignal(number) is signal.SIG_IGN:
            python = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, python)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
