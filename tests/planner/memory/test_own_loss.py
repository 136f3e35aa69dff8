"""Memory of a loss() of the user, which gets all logits of a micro batch."""

import pytest

from nbtrain.config.load import load
from nbtrain.planner.memory.buffers import OWN_LOSS_BYTES, loss_gradients, passing_logits_bytes
from nbtrain.planner.memory.stage import stage_of
from nbtrain.planner.setup.setup import setup_of

WHOLE = "def loss(logits, labels, mask, batch):\n    pass\n"
SHARD = "def loss(logits, labels, mask, batch, vocabulary):\n    pass\n"


@pytest.mark.parametrize("text, share", [(WHOLE, 1), (SHARD, 2)])
def test_all_logits_of_a_micro_batch_are_counted(text, share, tmp_path):
    """With the parameter `vocabulary`, a tensor-parallel rank holds its shard of them, otherwise all."""
    path = tmp_path / "my_code.py"
    path.write_text(text)
    config = load(
        "gpt-125m", {"code": str(path), "parallel.tensor_parallel_size": 2, "resources.gpus_per_node": 2}
    )
    setup = setup_of(config)
    assert setup.own_loss == ("whole" if share == 1 else "shard")
    stage = stage_of(setup, 0)
    tokens = config.batch.micro_batch_size * config.model.seq_length
    width = config.padded_vocab_size
    entering = 2 * tokens * config.model.hidden_size
    expected = tokens * (2 * width // 2 + OWN_LOSS_BYTES * width // share) + entering
    assert passing_logits_bytes(setup, stage) == expected
    assert loss_gradients(setup, stage) > 0
