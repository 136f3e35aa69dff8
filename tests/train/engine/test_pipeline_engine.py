"""The time of a pipeline step is split by instruction into the parts of a step."""

import time
from typing import ClassVar

import pytest
import torch
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine

from nbtrain.train.engine.pipeline_engine import PART_OF, pipeline_timers
from nbtrain.train.figures.throughput import StepTimer


def test_every_instruction_of_deepspeed_is_known():
    """Every instruction of DeepSpeed's pipeline belongs to a part of the step or is listed as ignored with a
    reason; a new instruction fails this test.
    """
    assert set(PipelineEngine._INSTRUCTION_MAP) - set(PART_OF) == {schedule.LoadMicroBatch}


def test_the_bubble_is_distinguished_from_the_work(monkeypatch):
    """On the first of two stages, idle time and work are told apart; each kind of instruction takes a
    different time here.
    """
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    calls = []

    class Engine:
        """A stand-in for DeepSpeed's pipeline engine: a table of functions that are called with the
        engine.
        """

        _INSTRUCTION_MAP: ClassVar = {}

        def run(self, instruction, **arguments):
            self._INSTRUCTION_MAP[instruction](self, **arguments)

    def takes(seconds):
        def execute(engine, **arguments):
            calls.append(arguments)
            now[0] += seconds

        return execute

    costs = {
        schedule.LoadMicroBatch: 7.0,
        schedule.ForwardPass: 2.0,
        schedule.SendActivation: 1.0,
        schedule.RecvGrad: 5.0,
        schedule.BackwardPass: 2.5,
        schedule.ReduceGrads: 0.5,
        schedule.OptimizerStep: 4.0,
    }
    Engine._INSTRUCTION_MAP = {instruction: takes(seconds) for instruction, seconds in costs.items()}
    engine, timer = Engine(), StepTimer(torch.device("cpu"))
    with pipeline_timers(engine, timer):
        for instruction in costs:
            engine.run(instruction, buffer_id=0)
    assert timer.seconds() == {"data": 0, "forward": 2.0, "backward": 3.0, "optimizer": 4.0, "pipeline": 6.0}
    assert calls == [{"buffer_id": 0}] * len(costs)
    # Afterwards the table of the class is used again.
    assert vars(engine) == {}
    with pytest.raises(ValueError, match="broken"), pipeline_timers(engine, timer):
        raise ValueError("broken")
    assert vars(engine) == {}
