"""The batch ramp-up and the learning rates are equal to megatron-core's, to the last bit.

megatron-core is not a dependency: without it these tests skip, unless NBTRAIN_REQUIRE_MEGATRON_CORE=1 makes
them fail. Its import takes seconds and warns, so its results are computed once, in a separate process.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from nbtrain.config.arithmetic.lr_schedule import LrSchedule
from nbtrain.config.batch_schedule import BatchSchedule, Rampup

pytestmark = pytest.mark.slow

# global batch size, start, increment, samples of the ramp
RAMPS = [(64, 16, 16, 300), (1536, 16, 16, 5_859_375), (96, 32, 8, 1000), (16, 4, 4, 24), (7, 3, 1, 10)]
# style, style of WSD's decay, tokens of the warm-up, of the decay and of WSD's decay
STYLES = [
    ("constant", None, 1000, 90_000, None),
    ("linear", None, 1000, 90_000, None),
    ("cosine", None, 0, 90_000, None),
    ("cosine", None, 1234, 77_777, None),
    ("inverse-square-root", None, 1000, 90_000, None),
    *(("WSD", style, 1000, 90_000, 20_001) for style in ("linear", "cosine", "exponential", "minus_sqrt")),
]
TOKENS = [*range(0, 100_000, 97), 999, 1000, 1001, 69_998, 69_999, 70_000, 77_777, 77_778, 90_000, 90_001]

ORACLE = r"""
import importlib.util, json, sys, types
# The package itself imports all its layers, which load torch's compiler.
package = types.ModuleType("megatron.core")
package.__path__ = importlib.util.find_spec("megatron.core").submodule_search_locations
sys.modules["megatron.core"] = package
import megatron.core.parallel_state  # first, because it and megatron.core.utils import each other
from megatron.core.num_microbatches_calculator import RampupBatchsizeNumMicroBatchesCalculator
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

ask = json.load(sys.stdin)
steps, rates = [], []
for full, start, increment, samples in ask["ramps"]:
    ramp = RampupBatchsizeNumMicroBatchesCalculator(full, 1, 1, False, 1, start, increment, samples)
    consumed, sizes = 0, []
    for _ in range(400):
        ramp.update(consumed, True)
        sizes.append(ramp.get_current_global_batch_size())
        consumed += sizes[-1]
    steps.append(sizes)
class Optimizer:
    param_groups = [{"lr": 0.0, "params": [], "is_embedding_or_output_parameter": False}]
for style, last_style, warmup, decay, last in ask["styles"]:
    scheduler = OptimizerParamScheduler(
        Optimizer(), 0.0, 6e-4, 1e-6, warmup, decay, style, 0.1, 0.1, 1, "constant",
        wsd_decay_steps=last, lr_wsd_decay_style=last_style,
    )
    curve = []
    for tokens in ask["tokens"]:
        scheduler.num_steps = tokens
        curve.append(float(scheduler.get_lr({})).hex())
    rates.append(curve)
print(json.dumps({"steps": steps, "rates": rates}))
"""


@pytest.fixture(scope="module")
def oracle() -> dict:
    """Return megatron-core's results: the batches of 400 steps for each ramp, and
    each style's rates as hex.
    """
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
        reason = "megatron-core is not installed (pip install --no-deps megatron-core)"
        if os.environ.get("NBTRAIN_REQUIRE_MEGATRON_CORE"):
            pytest.fail(f"{reason}, and NBTRAIN_REQUIRE_MEGATRON_CORE is set")
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ORACLE],
        input=json.dumps({"ramps": RAMPS, "styles": STYLES, "tokens": TOKENS}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", range(len(RAMPS)))
def test_ramps(oracle, case):
    full, start, increment, samples = RAMPS[case]
    schedule = BatchSchedule(full, 2048, 10**15, Rampup(start, increment, samples))
    assert [schedule.size_at(schedule.samples_after(step)) for step in range(400)] == oracle["steps"][case]


@pytest.mark.parametrize("case", range(len(STYLES)), ids=lambda case: "-".join(map(str, STYLES[case][:2])))
def test_learning_rates(oracle, case):
    style, last_style, warmup, decay, last = STYLES[case]
    schedule = LrSchedule(6e-4, 1e-6, style, warmup, decay, last or 0, last_style or "exponential")
    assert [schedule.learning_rate(tokens).hex() for tokens in TOKENS] == oracle["rates"][case]
