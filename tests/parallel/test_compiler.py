"""An uncompiled run trains without loading torch's compiler."""

import subprocess
import sys

import pytest

STEPS = """
import os, sys
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
from nbtrain.base.process.ports import port_to_listen_on
os.environ["MASTER_PORT"] = str(port_to_listen_on())
from nbtrain.parallel.startup import start
start("cpu", 60.0)
import deepspeed, torch
from nbtrain.parallel.compiler import leave_out_compiler, uncompiled
leave_out_compiler()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
settings = {"train_batch_size": 2, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
before = engine.module.weight.clone()
for _ in range(2):
    engine.backward(uncompiled(engine)(torch.ones(2, 4, dtype=torch.bfloat16)).sum())
    engine.step()
assert not torch.equal(before, engine.module.weight)
optimizer.load_state_dict(optimizer.state_dict())
assert "torch._dynamo" not in sys.modules, "loaded"
function = torch.compile(lambda x: uncompiled(torch.sin)(x) + 1, backend="eager")
assert torch.equal(function(torch.ones(1)), torch.ones(1).sin() + 1)
optimizer.step()
"""


@pytest.mark.slow
def test_steps_load_no_compiler_which_can_be_loaded_later():
    ended = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
