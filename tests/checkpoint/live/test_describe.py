"""The facts about parameters that DeepSpeed's own converter reads from a checkpoint."""

import re

from nbtrain.checkpoint.live.describe import universal_checkpoint_info
from nbtrain.config.load import load


def test_a_parameter_is_matched_by_how_it_is_partitioned():
    """Parameters of a run's own block are matched by their own partition, which may differ by layer."""
    dims = {
        "word_embeddings.weight": 0,
        "layers.0.mlp.first.weight": 0,
        "layers.0.mlp.second.weight": 1,
        "layers.1.mlp.second.weight": None,
        "layers.0.norm.weight": None,
        "layers.11.norm.weight": None,
    }
    config = load("gpt-tiny", {"parallel.tensor_parallel_size": 2}, check=False)
    info = universal_checkpoint_info(config, {name: {"partition_dim": dim} for name, dim in dims.items()})

    def matched(key: str) -> list[str]:
        return [name for name in dims if any(re.match(pattern, name) for pattern in info[key])]

    assert matched("parameter_with_row_parallelism_patterns") == [name for name in dims if dims[name] == 1]
    assert matched("tp_replicated_parameter_patterns") == [name for name in dims if dims[name] is None]
    assert matched("vocabulary_parameter_patterns") == ["word_embeddings.weight"]
    # The two layers' norms have one pattern.
    assert len(info["tp_replicated_parameter_patterns"]) == 2
