"""Activations of models that are sharded across two or four real ranks: the plan is within 2 % of what
autograd keeps on each.

Each check runs on all ranks of a gloo group (tests/parallel/ranks.py). The suite runs fp32 with dropout on
two ranks, which has the most kinds of tensors; `--soak` runs every format, with and without kept scores and
dropout, and on four ranks Ulysses and context parallelism with tensor parallelism and with a pipeline.
"""

import functools
import itertools
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from nbtrain.base.topology import Topology
from nbtrain.config.shape import Shape
from nbtrain.model.gpt import GPT
from nbtrain.model.gpt_pipe import build_pipeline, pipeline_inputs
from nbtrain.parallel.groups import ParallelGroups
from nbtrain.parallel.layout import ModelParallel
from nbtrain.parallel.random import TensorParallelStream
from nbtrain.planner.memory.activations import in_flight
from nbtrain.planner.setup.setup import Setup
from tests.parallel import ranks
from tests.planner.memory.saved_tensors import PRECISIONS, RECOMPUTE, gpt_config, in_format, planned, saved

# The stages of a pipeline differ: one layer and two. With 480 tokens on each rank, no tensor has the shape
# of a matrix.
SHAPE = Shape(3, 128, 4, 512, 512, 120, 4, 32, learned_positions=120)
STAGES = (1, 2)
GROUPED = {"num_query_groups": 1, "kv_channels": 48, "qk_layernorm": True}
GROUPED |= {"window_layers": (True, False, True), "window_size": 30}
MICRO_BATCH, CHUNK_TOKENS = 4, 64
ALLOWED = 0.02


class Kept(NamedTuple):
    """The properties of a case, in addition to its layout, that determine which tensors are kept."""

    precision: str
    recompute: str
    dropout: float
    scores: bool
    gated: bool = False
    grouped: bool = False
    """Whether the model has windows, normalized heads, another head size, and a single key-value group that
    both ranks need.
    """


FEW = [Kept("fp32", recompute, 0.1, True) for recompute in RECOMPUTE]
FEW += [Kept("fp32", recompute, 0.1, True, gated=True) for recompute in ("none", "selective")]
FEW += [Kept("fp32", recompute, 0.1, True, gated=True, grouped=True) for recompute in ("none", "selective")]
FEW += [Kept(precision, "none", 0.0, False, gated=True, grouped=True) for precision in ("fp32", "autocast")]
ALL = [
    Kept(precision, recompute, dropout, scores)
    for precision, recompute in itertools.product(PRECISIONS, RECOMPUTE)
    for dropout, scores in ((0.0, False), (0.0, True), (0.1, False), (0.1, True))
]


def check_few_of_tensor():
    assert_planned(FEW, tensor_parallel_size=2)


def check_few_of_tensor_and_sequence():
    assert_planned(FEW, tensor_parallel_size=2, sequence_parallel=True)


def check_few_of_ulysses():
    assert_planned(FEW, ulysses_size=2)


def check_few_of_context():
    assert_planned(FEW, context_parallel_size=2)


def check_few_of_pipeline():
    assert_planned(FEW, pipeline_parallel_size=2, stage_layers=STAGES)


def check_all_of_tensor():
    assert_planned(ALL, tensor_parallel_size=2)


def check_all_of_tensor_and_sequence():
    assert_planned(ALL, tensor_parallel_size=2, sequence_parallel=True)


def check_all_of_ulysses():
    assert_planned(ALL, ulysses_size=2)


def check_all_of_context():
    assert_planned(ALL, context_parallel_size=2)


def check_all_of_pipeline():
    assert_planned(ALL, pipeline_parallel_size=2, stage_layers=STAGES)


# On four ranks.


def check_both_of_tensor_and_ulysses():
    for sequence in (False, True):
        assert_planned(FEW, tensor_parallel_size=2, ulysses_size=2, sequence_parallel=sequence)


def check_both_of_pipeline_and_ulysses():
    assert_planned(FEW, pipeline_parallel_size=2, stage_layers=STAGES, ulysses_size=2)


def check_both_of_tensor_and_context():
    for sequence in (False, True):
        assert_planned(FEW, tensor_parallel_size=2, context_parallel_size=2, sequence_parallel=sequence)


def check_both_of_pipeline_and_context():
    assert_planned(FEW, pipeline_parallel_size=2, stage_layers=STAGES, context_parallel_size=2)


def assert_planned(cases: Iterable[Kept], **cut: Any) -> None:
    """Assert that the plan of every case is right. All ranks run each case, because each needs the others in
    its forward pass.
    """
    wrong = []
    sharing = cut.get("ulysses_size", 1) * cut.get("context_parallel_size", 1)
    topology = Topology(cut.get("pipeline_parallel_size", 1), sharing, cut.get("tensor_parallel_size", 1))
    groups = ParallelGroups.create(topology, topology.data_parallel_size)
    # Two on each rank: of a single head, autograd keeps fewer and other tensors.
    heads = max(2 * topology.tensor_parallel_size * topology.data_parallel_size, SHAPE.num_attention_heads)
    for case in cases:
        # On a CPU only the math kernel has dropout.
        attention = case.dropout if case.scores else 0.0
        setup = Setup(
            replace(
                SHAPE,
                **{
                    "num_attention_heads": heads,
                    "num_query_groups": heads,
                    "kv_channels": SHAPE.hidden_size // heads,
                    **(GROUPED if case.grouped else {}),
                },
                hidden_dropout=case.dropout,
                attention_dropout=attention,
                gated=case.gated,
                rmsnorm=case.gated,
                bias=not case.gated,
                tied=not case.gated,
                learned_positions=0 if case.gated else SHAPE.learned_positions,
            ),
            on_gpu=False,
            micro_batch_size=MICRO_BATCH * topology.data_parallel_size,
            # Stage 0 of a pipeline holds two micro batches.
            global_batch_size=2 * MICRO_BATCH * topology.data_parallel_size,
            keeps_scores=case.scores,
            masks_parts=True,
            logits_chunk_tokens=CHUNK_TOKENS,
            **{"dtype": "fp32", **PRECISIONS[case.precision], **RECOMPUTE[case.recompute], **cut},
        )
        stage = groups.pipeline_model_parallel.rank
        size, expected = planned(setup, stage), _kept(setup, groups)
        if setup.context_parallel_size > 1:
            # The plan is for the rank with the most: in a window the one whose chunks are in the middle.
            most = torch.tensor(expected)
            dist.all_reduce(most, dist.ReduceOp.MAX, groups.sequence_parallel.process_group)
            expected = int(most)
        if abs(size - expected) > ALLOWED * expected:
            wrong.append(f"{case}: planned {size:,.0f}, kept {expected:,}: {size / expected - 1:+.1%}")
        print(f"{cut} {case}: {size / expected - 1:+.2%}")
    assert not wrong, "\n".join(wrong)


def _kept(setup: Setup, groups: ParallelGroups) -> int:
    """Return the bytes that autograd keeps for this rank's part of the model."""
    stage, tensor = groups.pipeline_model_parallel.rank, groups.tensor_model_parallel
    layout = ModelParallel(
        tensor,
        setup.sequence_parallel,
        stream=TensorParallelStream(1, 0, tensor.rank) if tensor.size > 1 else None,
        **{"ulysses" if setup.ulysses_size > 1 else "context": groups.sequence_parallel},
    )
    tokens = torch.zeros(setup.micro_batch_size, setup.shape.seq_length, dtype=torch.int64)
    if setup.pipeline_parallel_size == 1:
        model = in_format(setup, GPT(gpt_config(setup), layout))
        return saved(setup, model, lambda: model(tokens, tokens.clone()))
    import deepspeed

    # Uses the existing process group.
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    topology = Topology(pipeline_parallel_size=2, data_parallel_size=setup.sharing)
    model = in_format(setup, build_pipeline(gpt_config(setup), layout, topology, STAGES))
    passes = _stage_passes(setup, model, stage)
    # A reference is kept, as DeepSpeed keeps the outputs until their gradients return.
    return saved(setup, model, lambda: list(itertools.islice(passes, int(in_flight(setup, stage))))[-1])


def _stage_passes(setup: Setup, model: Any, stage: int) -> Iterator[torch.Tensor]:
    """Run the forward passes of a stage, one after the other."""
    size, hidden = (setup.micro_batch_size, setup.shape.seq_length), setup.shape.hidden_size
    dtype = torch.bfloat16 if setup.dtype == "bf16" and not setup.autocast else torch.float32
    while True:
        batch = _Batch(torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64))
        inputs, labels = pipeline_inputs(batch)
        if stage == 0:
            yield model(inputs)
        else:
            rows, tokens = size
            received = torch.zeros(rows, tokens // setup.sharing, hidden, dtype=dtype, requires_grad=True)
            yield model.loss_fn(model(received), labels)


class _Batch(NamedTuple):
    """Batch with the fields of the batch in train/engine/batches.py."""

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor | None = None
    position_ids: torch.Tensor | None = None
    cu_seqlens: torch.Tensor | None = None
    answers: torch.Tensor | None = None
    reference: torch.Tensor | None = None
    dataset_ids: torch.Tensor | None = None


@pytest.fixture(scope="module")
def outcomes(fork_server, tmp_path_factory):
    """Return a function that launches all checks whose names begin with a prefix, once for each prefix, and
    returns their outcomes.
    """

    @functools.cache
    def of(amount: str) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("ranks")
        wanted = [name for name in ranks.names(globals()) if name.startswith(f"check_{amount}_")]
        found = ranks.launch(fork_server, __file__, 4 if amount == "both" else 2, folder, wanted)
        shutil.rmtree(folder)
        return found

    return of


CUTS = [name.removeprefix("check_few_of_") for name in ranks.names(globals()) if "few" in name]


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS)
def test_activations_of_a_cut(cut, outcomes):
    """The plan gives the right activations of a sharded model on both ranks, with every kind of
    recomputation.
    """
    assert (problem := outcomes("few")[f"check_few_of_{cut}"]) == "", problem


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("cut", CUTS)
def test_activations_of_a_cut_in_every_format(cut, outcomes):
    assert (problem := outcomes("all")[f"check_all_of_{cut}"]) == "", problem


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    "cut", [f"{one}_and_{other}" for one in ("tensor", "pipeline") for other in ("ulysses", "context")]
)
def test_activations_of_a_cut_both_ways(cut, outcomes):
    assert (problem := outcomes("both")[f"check_both_of_{cut}"]) == "", problem
