"""The node of a rank."""

import pytest

from nbtrain.base.run_directory.node_records import node_of_rank


@pytest.mark.parametrize(("rank", "node"), [(0, 0), (2, 0), (3, 1), (5, 1), (6, None)])
def test_ranks_are_numbered_node_by_node(rank, node):
    assert node_of_rank([3, 3], rank) == node
