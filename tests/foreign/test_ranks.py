"""Ranks that fill the machines: the import, lint and a layout for a run count them alike."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.foreign.importing import import_files
from nbtrain.foreign.lint import lint

FLAGS = (
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 48 --train-iters 1000 --lr 6e-4 "
    "--vocab-file gpt2-vocab.json --merge-file m.txt --data-path corpus/text_document"
)
RULE = "ranks_fill_the_machines"


@pytest.fixture
def script(tmp_path):
    """Write a script that starts 8 ranks on each of some nodes, with a layout."""

    def write(nodes: int, tensor: int, pipeline: int):
        path = tmp_path / "train.sh"
        layout = f"--tensor-model-parallel-size {tensor} --pipeline-model-parallel-size {pipeline}"
        path.write_text(
            f"torchrun --nnodes {nodes} --nproc_per_node 8 pretrain_gpt.py {FLAGS} {layout} --bf16\n"
        )
        return path

    return write


@pytest.mark.parametrize(
    ("nodes", "tensor", "pipeline", "fitting"), [(1, 4, 3, 3), (4, 4, 3, 3), (5, 4, 4, 2), (3, 5, 1, 5)]
)
def test_import_and_lint_name_the_same_number_of_nodes(nodes, tensor, pipeline, fitting, script):
    path = script(nodes, tensor, pipeline)
    with pytest.raises(ConfigError, match=rf" Add resources\.nodes={fitting} to the command, or a multiple "):
        import_files([path], {"tokenizer.vocab_size": 50257})
    (finding,) = [finding for finding in lint([path]) if finding.rule == RULE]
    assert finding.fix.startswith(f"Use {fitting} nodes or a multiple of that number, ")
    for times in (1, 2):
        assert RULE not in {one.rule for one in lint([script(times * fitting, tensor, pipeline)])}


def test_the_number_of_nodes_that_is_named_fits(script):
    given = {"tokenizer.vocab_size": 50257, "resources.nodes": 3}
    found = import_files([script(1, 4, 3)], given)
    assert (found.config.parallel.data_parallel_size, found.config.world_size) == (2, 24)
    assert "  data_parallel_size: 2  # 24 ranks over pipeline x tensor\n" in found.text


def test_a_run_on_cpus_has_the_ranks_of_the_launch(script):
    """On CPUs, import and lint take the number of ranks from the launch, not from resources.gpus_per_node."""
    path, given = script(1, 2, 1), {"resources.device": "cpu", "resources.gpus_per_node": 3}
    assert RULE not in {finding.rule for finding in lint([path], given)}
    on_cpus = {"tokenizer.vocab_size": 50257, "resources.device": "cpu", "resources.gpus_per_node": 0}
    assert import_files([path], on_cpus).config.parallel.data_parallel_size == 4


def test_a_layout_for_a_run_counts_its_ranks(tmp_path):
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 6\n")
    name = "gpt-1-3b-2xdp-2xpp-2xtp"
    with pytest.raises(
        ConfigError,
        match=rf"^accelerate.yaml:3: 6 ranks are not a multiple of pipeline\(2\) \* tensor\(2\) = 4 ranks in "
        rf"{name}\. Add resources\.nodes=4 to ",
    ):
        import_files([path], onto=name)
    found = import_files([path], {"resources.nodes": 4, "batch.global_batch_size": 48}, name)
    assert found.config.parallel.data_parallel_size == 3
    path.write_text("distributed_type: MULTI_GPU\nnum_machines: 2\n")
    assert import_files([path], onto=name).config.parallel.data_parallel_size == (
        2 * load(name).parallel.data_parallel_size
    )
