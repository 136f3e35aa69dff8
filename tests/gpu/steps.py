"""The steps of `make gpu`, most valuable first: what each step shows, its time limit, and its code.

Steps that compare numbers run at the same time, before the steps that measure the GPU, which run one at a
time.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.parity.sources import Evidence

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "evidence" / "gpu.md"
TRAINER = ("nbtrain.train.__main__",)
TRAINED = ("tests/gpu/cases.py", "tests/gpu/trained.py", "tests/train/launch.py")


@dataclass(frozen=True)
class Step:
    """A process that tries its cases (tests/gpu/<module>.py) and may be stopped at any time."""

    name: str
    shows: str
    columns: tuple[str, ...]
    """Columns of the step's table in docs/evidence/gpu.md between case and result;
    keys of a finding's values.
    """
    minutes: float
    """Minutes after which the step is stopped; the next call continues with the remaining cases."""
    evidence: Evidence
    alone: bool = False
    """Whether the step measures the GPU or its memory, so that no other step may run at the same time."""

    @property
    def module(self) -> str:
        return f"tests.gpu.{self.name.replace('-', '_')}"


def _step(
    name: str,
    shows: str,
    columns: tuple[str, ...],
    minutes: float,
    entry_points: tuple[str, ...] = TRAINER,
    tests: tuple[str, ...] = TRAINED,
    alone: bool = False,
) -> Step:
    own = f"tests/gpu/{name.replace('-', '_')}.py"
    return Step(name, shows, columns, minutes, Evidence(PAGE, "make gpu", entry_points, (own, *tests)), alone)


STEPS = (
    _step(
        "memory",
        "predicted against measured memory of 125M and 1.3B: several micro-batches, every kind of "
        "recomputation, precisions and ZeRO stages",
        ("states GiB", "planned", "allocated GiB", "planned", "of the device GiB", "planned"),
        9,
        (*TRAINER, "nbtrain.planner.plan"),
        alone=True,
    ),
    _step(
        "parity",
        "loss curves of a small GPT in fp32, bf16, autocast, fp16 and FP8 against the CPU's fp32",
        ("first loss", "loss", "gradient norm"),
        4,
        tests=(*TRAINED, "tests/gpu/tolerance.py"),
    ),
    _step(
        "speed",
        "tests/benchmarks/train_gpu.py: tokens/s and MFU of 125M and 1.3B, against the plan and a bare loop",
        ("tokens/s", "planned", "MFU", "of the matrix rate", "of a bare loop"),
        9,
        (*TRAINER, "nbtrain.planner.plan"),
        (*TRAINED, "tests/benchmarks/train_gpu.py"),
        alone=True,
    ),
    _step(
        "flash",
        "flash attention and its gradients against fp32, and which kernel ran",
        ("output", "gradients", "kernel"),
        3,
        ("nbtrain.model.attention",),
        ("tests/gpu/cases.py",),
    ),
    _step(
        "run-ahead",
        "the host waits for the GPU in no step: torch's sync debug mode, and the calls in a profile",
        ("waits of torch", "waits of the runtime", "of the guard"),
        3,
    ),
    _step(
        "fpdt",
        "FPDT in chunks against plain attention, streamed through host memory",
        ("loss", "gradients"),
        2,
        ("nbtrain.parallel.fpdt", "nbtrain.model.gpt"),
        ("tests/gpu/cases.py", "tests/parallel/plain_flash.py"),
    ),
    _step(
        "zeropp",
        "quantized ZeRO++: the kernels' error, and runs with qwZ, qgZ and hpZ against ZeRO 3",
        ("error", "allowed"),
        4,
        tests=(*TRAINED, "tests/gpu/tolerance.py"),
    ),
    _step(
        "offload",
        "optimizer state and parameters in host memory and on NVMe against the same run on the GPU",
        ("loss", "allowed"),
        3,
        tests=(*TRAINED, "tests/gpu/tolerance.py"),
    ),
    _step(
        "calibrate",
        "`nbtrain calibrate`: the rates of this machine",
        (),
        4,
        ("nbtrain.cli.__main__",),
        alone=True,
    ),
)
BY_NAME = {step.name: step for step in STEPS}
