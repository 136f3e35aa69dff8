"""Where the time of a pipeline's step goes: the instructions of DeepSpeed's schedule, timed one by one.

    ForwardPass                                           forward
    BackwardPass, ReduceGrads, ReduceTiedGrads            backward
    OptimizerStep                                         optimizer
    SendActivation, RecvActivation, SendGrad, RecvGrad    pipeline: the transfer, and the wait for the
                                                          neighbouring stage

A stage that has nothing to do waits in a receive, so that "pipeline" is the bubble (arXiv:2104.04473, section
2.2) and the transfers together. LoadMicroBatch is not timed here: its batches are timed by their reader.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from deepspeed.runtime.pipe import schedule

from nbtrain.train.figures.throughput import StepTimer

PART_OF = {
    schedule.ForwardPass: "forward",
    schedule.BackwardPass: "backward",
    schedule.ReduceGrads: "backward",
    schedule.ReduceTiedGrads: "backward",
    schedule.OptimizerStep: "optimizer",
    schedule.SendActivation: "pipeline",
    schedule.RecvActivation: "pipeline",
    schedule.SendGrad: "pipeline",
    schedule.RecvGrad: "pipeline",
}


@contextlib.contextmanager
def pipeline_timers(engine: Any, timer: StepTimer) -> Iterator[None]:
    """Time the instructions that DeepSpeed's PipelineEngine runs inside."""
    # The class's table is hidden by one of this object; without it the class's is back.
    engine._INSTRUCTION_MAP = {
        instruction: _timed(execute, timer, PART_OF[instruction]) if instruction in PART_OF else execute
        for instruction, execute in engine._INSTRUCTION_MAP.items()
    }
    try:
        yield
    finally:
        del engine._INSTRUCTION_MAP


def _timed(execute: Callable, timer: StepTimer, part: str) -> Callable:
    def timed(engine: Any, **arguments: Any) -> Any:
        with timer.part(part):
            return execute(engine, **arguments)

    return timed
