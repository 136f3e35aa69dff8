"""Processes receive the signals that end them, even if their parent ignored or blocked these."""

import ast
import json
import signal
import subprocess
import sys
from pathlib import Path

from nbtrain.base.process import signals

PACKAGE = Path(signals.__file__).parents[2]
DEAFENED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)
SAY = """
import json, signal
from nbtrain.base.process.signals import hear_signals
hear_signals()
names = {number.name: signal.getsignal(number) for number in signal.Signals if signal.getsignal(number)}
ignored = [name for name, handler in names.items() if handler == signal.SIG_IGN]
python = signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(json.dumps([ignored, sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), python]))
"""
# These end at once, or run where nbtrain is not installed.
BRIEF = {
    "nbtrain.cli.reference.pages",
    "nbtrain.jobs.backends.hosts.end_job",
    "nbtrain.jobs.backends.hosts.probe",
    "nbtrain.lab.labextension.build",
    "nbtrain.monitor.logs.log_search",
    "nbtrain.planner.calibration.calibration",
}


def deafen() -> None:
    """Ignore and block signals, as a shell's `&`, `nohup` or a server's thread does."""
    for number in DEAFENED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def test_ignored_and_blocked_signals_are_heard_again() -> None:
    """Default handling is restored for all signals but HUP under `nohup` and two that Python ignores."""
    said = subprocess.run([sys.executable, "-c", SAY], preexec_fn=deafen, capture_output=True, check=True)
    ignored, blocked, interrupts = json.loads(said.stdout)
    assert set(ignored) == {"SIGHUP", "SIGPIPE", "SIGXFSZ"} and blocked == [] and interrupts


def test_every_process_hears_them_first() -> None:
    """Modules run by `python -m` restore signals in their first statement; the CLI does so in main()."""
    deaf = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for node in ast.parse(text).body if "__main__" in text else ():
            if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
                module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                if ast.unparse(node.body[0]) != "hear_signals()":
                    deaf.add(module)
    assert deaf == BRIEF | {"nbtrain.__main__", "nbtrain.cli.__main__"}
