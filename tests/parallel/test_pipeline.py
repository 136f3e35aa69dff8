"""DeepSpeed's pipeline with our layers trains like one process: losses, gradient norms, weights and
evaluation.
"""

import contextlib
import functools
import io
import warnings
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from nbtrain.base.topology import Topology
from nbtrain.model.gpt import GPT
from nbtrain.model.gpt_pipe import build_pipeline, canonical_parameters, pipeline_inputs
from nbtrain.model.names import DECAY, NO_DECAY, optimizer_group
from nbtrain.parallel.groups import ParallelGroups
from nbtrain.parallel.layout import ModelParallel
from nbtrain.parallel.mappings import own_part
from nbtrain.parallel.random import TensorParallelStream
from nbtrain.parallel.tensor import partition_dim
from tests.parallel import ranks
from tests.parallel.rounding import rounding, training_terms
from tests.parallel.small import S, gpt_config, text

STEPS, MICRO_BATCHES, CLIP, RATE = 4, 4, 0.5, 1e-2
# More layers than stages, and an odd number of them.
LAYERS = {"num_layers": 5}
ALLOWED = rounding(training_terms(STEPS, LAYERS["num_layers"]))


class Batch(NamedTuple):
    """Batch with the fields of the batch in train/engine/batches.py."""

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor | None = None
    position_ids: torch.Tensor | None = None
    cu_seqlens: torch.Tensor | None = None
    max_seqlen: int = 0
    answers: torch.Tensor | None = None
    reference: torch.Tensor | None = None
    dataset_ids: torch.Tensor | None = None


def batches(step: int, apart: bool) -> list[Batch]:
    """Return the micro batches of a step, with two sequences each; with `apart`, they have document bounds,
    positions and masks.
    """
    made = []
    for number in range(MICRO_BATCHES):
        tokens, labels = text(seed=100 * step + number)
        if not apart:
            made.append(Batch(tokens, labels))
            continue
        cut = 2 + number
        positions = torch.stack([torch.arange(S) - cut * (torch.arange(S) >= cut), torch.arange(S)])
        made.append(
            Batch(
                tokens,
                labels,
                (torch.arange(2 * S).view(2, S) % (number + 2) > 0).float(),
                positions,
                torch.tensor([0, cut, S, 2 * S], dtype=torch.int32),
                S,
            )
        )
    return made


def bounds(batch: Batch) -> dict:
    if batch.cu_seqlens is None:
        return {}
    return {
        "position_ids": batch.position_ids,
        "cu_seqlens": batch.cu_seqlens,
        "max_seqlen": batch.max_seqlen,
        "loss_mask": batch.loss_mask,
        "loss_denominator": torch.tensor(9.0),
    }


def adamw(named_parameters) -> torch.optim.Optimizer:
    groups = {DECAY: [], NO_DECAY: []}
    for name, parameter in named_parameters:
        groups[optimizer_group(name)].append(parameter)
    assert all(groups.values()), "every stage must have parameters in both groups"
    return torch.optim.AdamW(
        [
            {"params": groups[DECAY], "weight_decay": 0.1},
            {"params": groups[NO_DECAY], "weight_decay": 0.0},
        ],
        lr=RATE,
        betas=(0.9, 0.95),
        # The gradient of a key's bias is 0 except for rounding, which Adam would turn into a step.
        eps=1e-4,
    )


@functools.cache
def of_one_process(apart: bool):
    """Train in one process and return ([(loss, gradient norm before clipping)] of the steps, evaluation loss,
    final weights).
    """
    model = GPT(gpt_config(**LAYERS))
    optimizer, curve = adamw(model.named_parameters()), []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for batch in batches(step, apart):
            loss = model(batch.tokens, batch.labels, **bounds(batch)) / MICRO_BATCHES
            loss.backward()
            total += float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        curve.append((total, float(norm)))
    with torch.no_grad():
        losses = [model(batch.tokens, batch.labels, **bounds(batch)) for batch in batches(99, apart)]
    return curve, float(sum(losses)) / MICRO_BATCHES, dict(model.named_parameters())


def model_of(
    topology: Topology,
    stage_layers: list[int],
    sequence_parallel: bool = False,
    stream: bool = False,
    **changes,
):
    import deepspeed

    # Uses the existing process group.
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    groups = ParallelGroups.create(topology, 1, 60)
    tensor = groups.tensor_model_parallel
    apart = TensorParallelStream(1, 0, tensor.rank) if stream else None
    parallel = ModelParallel(tensor, sequence_parallel, stream=apart)
    return groups, build_pipeline(gpt_config(**LAYERS | changes), parallel, topology, stage_layers)


def engine_of(topology: Topology, *layout, **changes):
    import deepspeed

    groups, model = model_of(topology, *layout, **changes)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICRO_BATCHES // topology.data_parallel_size,
        "gradient_clipping": CLIP,
        "zero_optimization": {"stage": 1},
        "pipeline": {"pipe_partitioned": False, "grad_partitioned": False},
    }
    with contextlib.redirect_stdout(io.StringIO()):
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=adamw(canonical_parameters(model)),
            config=config,
            dist_init_required=False,
        )
    return engine, groups


def inputs(step: int, apart: bool, replica: int, replicas: int):
    for batch in batches(step, apart)[replica::replicas]:
        yield pipeline_inputs(batch, bounds(batch).get("loss_denominator"))


def assert_trains_as_one(engine, groups, apart: bool = False) -> None:
    curve, evaluated, weights = of_one_process(apart)
    tensor, data = groups.tensor_model_parallel, groups.data_parallel
    ours = []
    for step in range(STEPS):
        loss = engine.train_batch(inputs(step, apart, data.rank, data.size))
        ours.append((float(loss), float(engine.get_global_grad_norm())))
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(curve), rtol=ALLOWED, atol=0)
    loss = engine.eval_batch(
        inputs(99, apart, data.rank, data.size), num_micro_batches=MICRO_BATCHES // data.size
    )
    torch.testing.assert_close(float(loss), evaluated, rtol=ALLOWED, atol=0)
    for name, parameter in canonical_parameters(engine.module):
        expected = weights[name]
        if (dim := partition_dim(parameter)) is not None:
            expected = own_part(expected, dim, tensor)
        torch.testing.assert_close(parameter, expected, rtol=1e-5, atol=5e-6)
    engine.destroy()


def check_two_stages_of_two_replicas():
    assert_trains_as_one(*engine_of(Topology(2, 2, 1), [3, 2]))


def check_two_stages_of_two_replicas_with_documents_and_masks():
    """Document bounds and positions are sent from stage to stage together with the activations, without a
    gradient.
    """
    assert_trains_as_one(*engine_of(Topology(2, 2, 1), [3, 2]), apart=True)


def check_four_stages_with_recomputation_and_documents():
    """Transformer layers are recomputed in groups of two within a stage; the embedding, whose inputs are
    integers, is not.
    """
    made = engine_of(Topology(4, 1, 1), [1, 1, 2, 1], checkpoint_interval_layers=2)
    assert_trains_as_one(*made, apart=True)


def check_two_stages_of_two_tensor_ranks():
    assert_trains_as_one(*engine_of(Topology(2, 1, 2), [3, 2]))


def check_two_stages_of_two_tensor_ranks_with_sequence_parallelism():
    made = engine_of(Topology(2, 1, 2), [3, 2], sequence_parallel=True, checkpoint_interval_layers=1)
    assert_trains_as_one(*made, apart=True)


def check_recomputation_changes_no_bit_with_dropout():
    """Recomputation changes no bit with dropout from both random streams, one per rank's tokens and one per
    rank's heads.
    """
    curves = []
    for interval in (0, 1, 2):
        torch.manual_seed(3 + dist.get_rank() // 2)
        engine, _ = engine_of(
            Topology(2, 1, 2),
            [3, 2],
            sequence_parallel=True,
            stream=True,
            hidden_dropout=0.2,
            attention_dropout=0.2,
            checkpoint_interval_layers=interval,
        )
        losses = [float(engine.train_batch(inputs(step, False, 0, 1))) for step in range(2)]
        curves.append((losses, float(engine.get_global_grad_norm())))
        engine.destroy()
    assert curves[0] == curves[1] == curves[2]
    assert abs(curves[0][0][0] - of_one_process(False)[0][0][0]) > 1e-3


def check_each_tokens_loss_is_left_where_it_is_asked_for():
    engine, _ = engine_of(Topology(4, 1, 1), [1, 1, 2, 1])
    noted = torch.zeros(MICRO_BATCHES, 2, S)

    def asking():
        for place, batch in zip(noted, batches(0, True)):
            yield pipeline_inputs(batch, bounds(batch)["loss_denominator"], place)

    engine.train_batch(asking())
    if engine.is_last_stage():
        model = GPT(gpt_config(**LAYERS))
        for place, batch in zip(noted, batches(0, True)):
            expected = torch.empty(2, S)
            model(batch.tokens, batch.labels, **bounds(batch), token_losses=expected)
            torch.testing.assert_close(place, expected)
    engine.destroy()


def check_autograd_does_not_warn_of_the_tied_embedding():
    """Autograd does not warn of the tied embedding, which DeepSpeed broadcasts outside of training steps."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        engine, _ = engine_of(Topology(2, 1, 2), [3, 2])
        engine.train_batch(inputs(0, False, 0, 1))
    engine.destroy()
    assert not [str(warning.message) for warning in said if "autograd" in str(warning.message)]


def check_a_stage_holds_its_own_layers_by_their_names():
    """Each stage has its layers under their canonical names, with the initial weights of one process. Only
    the word embedding is on two stages.
    """
    groups, model = model_of(Topology(4, 1, 1), [1, 1, 2, 1])
    whole = dict(GPT(gpt_config(**LAYERS)).named_parameters())
    here = dict(canonical_parameters(model))
    assert all(torch.equal(parameter, whole[name]) for name, parameter in here.items())
    everyones = [None] * 4
    dist.all_gather_object(everyones, list(here))
    counts = {name: sum(name in names for names in everyones) for name in whole}
    assert counts.pop("word_embeddings.weight") == 2 and set(counts.values()) == {1}
    stage = groups.pipeline_model_parallel.rank
    assert len(model.layers) == [1, 1, 2, 1][stage]
    assert any(name.startswith("layers.2.") for name in here) == (stage == 2)


CHECKS = {4: ranks.names(globals())}


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS[4])
def test_on_four_ranks(outcome, check):
    assert not outcome(4, check), outcome(4, check)
