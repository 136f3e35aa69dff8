"""Measurements that `nbtrain calibrate` made on a machine, read from calibration.json of the data directory.

    {"schema_version": 1, "machines": {"<cpu>, <cores> cores, <GPUs>, torch <version>": {
        "date", "seconds", "device", "disk", "doubts", "figures": [{"what", "ranks", "spread", ...}]}}}

The entry of a machine is used by plans on that machine alone, for OLDEST_DAYS; one with doubts
(calibration_doubts.py) for OLDEST_DOUBTED_DAYS, and plans name them. Any other entry is named in a
note and not used: a rate of another machine is worse than an assumed one, because it looks measured.
"""

import collections
import datetime
import functools
import importlib.metadata
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import RecordError
from nbtrain.base.hardware import nvml
from nbtrain.base.workspace import data_home, display
from nbtrain.planner.calibration.cpu_rate import cpu_model
from nbtrain.planner.calibration.measurement_file import add_entry

SCHEMA_VERSION = 1
# Fields of a machine's entry.
KEYS = ("date", "seconds", "device", "disk", "doubts", "figures")
# Drivers, kernels and other programs of a machine change within months.
OLDEST_DAYS = 180
OLDEST_DOUBTED_DAYS = 7

Figure = dict[str, Any]


@dataclass(frozen=True)
class Calibration:
    """The measurements of one machine."""

    machine: str
    date: str
    """ISO date of the measurement."""
    seconds: float
    figures: list[Figure] = field(repr=False)
    disk: dict[str, float] = field(default_factory=dict)
    """write_bytes_per_second and read_bytes_per_second of the output directory."""
    device: str = "cpu"
    """Kind of device that was measured: gpu or cpu; cpu also where CUDA_VISIBLE_DEVICES hides the GPUs."""
    doubts: list[str] = field(default_factory=list)
    """Reasons to believe that other programs disturbed the measurement: sentences without a full stop."""

    @property
    def source(self) -> str:
        """Description of the source of a plan's rates: the calibration's date and doubts."""
        doubts = f", in doubt: {'; '.join(self.doubts)}" if self.doubts else ""
        return f"calibrated on {self.date}{doubts}"

    @property
    def oldest_days(self) -> int:
        """Days for which plans use this calibration."""
        return OLDEST_DOUBTED_DAYS if self.doubts else OLDEST_DAYS

    def age_days(self, today: datetime.date) -> int:
        return (today - datetime.date.fromisoformat(self.date)).days

    def of(self, what: str, **wanted: Any) -> list[Figure]:
        """Return the measurements of one kind whose fields match `wanted`."""
        return [
            figure
            for figure in self.figures
            if figure["what"] == what and all(figure.get(key) == value for key, value in wanted.items())
        ]

    def matmul_flops(self, ranks: int = 1) -> dict[str, float]:
        """Return the best FLOP/s of matrix products of one rank, by number format."""
        best: dict[str, float] = {}
        for figure in self.of("product", ranks=ranks):
            best[figure["dtype"]] = max(best.get(figure["dtype"], 0.0), figure["flops"])
        return best

    def memory_bytes_per_second(self, ranks: int = 1) -> float | None:
        """Return the bytes that one rank reads and writes per second; None if not measured."""
        found = self.of("memory", ranks=ranks)
        return found[0]["bytes_per_second"] if found else None


def calibration_path() -> Path:
    """Return the path of calibration.json in the data directory."""
    return data_home() / "calibration.json"


def machine_gpus() -> list[str]:
    """Return the names of this machine's GPUs, as the driver reports them."""
    return [gpu.name for gpu in nvml.driver_gpus()]


@functools.cache
def machine_key() -> str:
    """Return the key of this machine's calibration: CPU, cores, GPUs and torch's version."""
    gpus = collections.Counter(machine_gpus())
    words = [f"{cpu_model()}", f"{len(os.sched_getaffinity(0))} cores"]
    words += [f"{count} x {name}" for name, count in gpus.items()]
    try:
        words.append(f"torch {importlib.metadata.version('torch')}")
    except importlib.metadata.PackageNotFoundError:
        words.append("no torch")
    return ", ".join(words)


def read_calibration(today: datetime.date | None = None) -> tuple[Calibration | None, str]:
    """Return (this machine's calibration, ""), or (None, the reason and the command that creates a
    calibration).
    """
    path, today = calibration_path(), today or datetime.date.today()
    measure = "`nbtrain calibrate` measures this machine"
    try:
        content = files.read_json(path)
    except RecordError as error:
        return None, f"{error}; it is not used. {measure}."
    if content is None:
        return None, f"not calibrated: {measure}"
    name = display(path)
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        return None, f"{name} has another schema_version than {SCHEMA_VERSION} and is not used. {measure}."
    machines = content.get("machines") or {}
    entry = machines.get(machine_key())
    if entry is None:
        others = "; ".join(f"{key} ({one['date']})" for key, one in machines.items())
        return None, f"{name} is of another machine and is not used: {others}. {measure}."
    try:
        found = Calibration(machine=machine_key(), **{key: entry[key] for key in KEYS})
        age = found.age_days(today)
    except (KeyError, TypeError, ValueError) as error:
        return None, f"{name}: the entry of this machine is damaged ({error!r}) and is not used. {measure}."
    if age > found.oldest_days:
        doubted = " in doubt" if found.doubts else ""
        return None, (
            f"{name} is {age} days old (of {found.date}; at most {found.oldest_days} are trusted{doubted}) "
            f"and is not used. {measure} again."
        )
    return found, ""


def write_calibration(calibration: Calibration) -> Path | None:
    """Write a machine's measurements to calibration.json and return its path; other machines' entries stay.

    Doubtful measurements do not replace others of the same device that plans still use; then returns None.
    """
    path = calibration_path()
    before, _ = read_calibration()
    if calibration.doubts and before and not before.doubts and before.device == calibration.device:
        return None
    entry = {key: getattr(calibration, key) for key in KEYS}
    add_entry(path, SCHEMA_VERSION, "machines", calibration.machine, entry)
    return path
