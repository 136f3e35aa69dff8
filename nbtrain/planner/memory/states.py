"""Model states of one rank: weights, gradients, master copy and optimizer, and where each is stored.

    weights       fp32 or 16-bit; autocast keeps fp32 weights and a 16-bit copy of the matrices; hpZ adds a
                  second copy, which is sharded inside each machine
    gradients     sums over the micro batches; DeepSpeed's BF16_Optimizer (bf16 weights with ZeRO 1) also
                  keeps the last micro batch's 16-bit gradients
    master copy   fp32 weights that the optimizer updates; ZeRO 0 trains fp32 weights and has no master copy
    optimizer     Adam's two fp32 moments, or Muon's single moment for a matrix, and a step count per tensor

ZeRO shards the master copy and the optimizer state (stage 1), the gradients (2) and the weights (3) across
the data-parallel ranks, including Ulysses and context-parallel ranks: arXiv:1910.02054, section 5. Offloading
moves the states to host memory or NVMe. Gradients move with the optimizer, because its step runs on the host.
The step reads an fp32 gradient of this rank's shard, which is stored in addition to the sums. With fp32
weights, ZeRO 2 sums the micro batches in host memory, parameter by parameter: if two ranks each own a part of
a parameter, both store its whole gradient (stage_1_and_2.py, async_accumulate_grad_in_cpu_via_gpu).

The bytes for nbtrain are exact (tests/planner/memory/test_states_allocated.py): ZeRO 1 and 2 pad each of the
two parameter groups to a multiple of 2 x ranks (DeepSpeed 0.19.8, stage_1_and_2.py and bf16_optimizer.py,
nccl_start_alignment_factor), and ZeRO 3 pads each parameter to a multiple of the ranks.
"""

from typing import Literal, NamedTuple

from nbtrain.config.arithmetic.block_parameters import block_parameters
from nbtrain.config.arithmetic.four_bits import BLOCK_ELEMENTS, four_bit_bytes
from nbtrain.planner.memory.stage import Stage, matrices_of, shares, touched
from nbtrain.planner.setup.engines import habits_of
from nbtrain.planner.setup.setup import Setup

Where = Literal["device", "cpu", "nvme"]

# With ZeRO 1 and 2, DeepSpeed 0.19.8 starts each rank's part of a flat buffer at an even element.
ALIGNMENT = 2
# torch's Adam counts the steps of each tensor in one fp32 number.
STEP_BYTES = 4


class States(NamedTuple):
    """Bytes of one rank's model states, and where each of them is stored: device, host memory or NVMe."""

    weights: int
    gradients: int
    master_copy: int
    optimizer: int
    host_gradients: int = 0
    """Bytes of the fp32 gradient in host memory that this rank's offloaded optimizer reads."""
    weights_place: Where = "device"
    gradients_place: Where = "device"
    optimizer_place: Where = "device"
    """Place in which the optimizer state and the master copy are stored."""

    def at(self, place: Where) -> tuple[int, int, int, int]:
        """Return the bytes at `place` as (weights, gradients, master copy, optimizer state)."""
        with_optimizer = self.optimizer_place == place
        return (
            self.weights if self.weights_place == place else 0,
            (self.gradients if self.gradients_place == place else 0)
            + (self.host_gradients if place == "cpu" else 0),
            self.master_copy if with_optimizer else 0,
            self.optimizer if with_optimizer else 0,
        )


def states(setup: Setup, stage: Stage, rank: int | None = None) -> States:
    """Return the model states of one rank of a pipeline stage.

    `rank` is the rank's index on the data axis; None means the fullest rank.
    """
    if setup.engine == "nbtrain":
        sizes = _of_nbtrain(setup, stage, rank)
    else:
        sizes = _of_program(setup, stage)
    zero = setup.zero_stage
    optimizer_place: Where = "device" if setup.offload_optimizer == "none" else setup.offload_optimizer
    weights_place: Where = "device" if setup.offload_param == "none" else setup.offload_param
    # ZeRO 1 reduces gradients after the last micro batch; until then the gradients are on the device.
    gradients_place: Where = "cpu" if optimizer_place != "device" and zero >= 2 else "device"
    host_gradients = sizes[2] if optimizer_place == "cpu" else 0
    return States(*sizes, host_gradients, weights_place, gradients_place, optimizer_place)


def weight_element(setup: Setup) -> int:
    """Return the bytes of one weight in the number format in which the model is stored."""
    return 4 if setup.dtype == "fp32" or setup.autocast else 2


def is_bf16_optimizer(setup: Setup) -> bool:
    """Return whether DeepSpeed uses its BF16_Optimizer: with ZeRO 1, bf16 weights and no offloading."""
    bf16 = setup.dtype == "bf16" and not setup.autocast
    return bf16 and setup.zero_stage == 1 and setup.offload_optimizer == "none"


def _padded_groups(setup: Setup, stage: Stage) -> tuple[int, int]:
    """Return the number of elements in the padded flat buffer of each parameter group."""
    multiple = ALIGNMENT * setup.zero_size
    first, second = stage.groups(setup.muon_steps > 0)
    return -(-first // multiple) * multiple, -(-second // multiple) * multiple


def zero3_share(setup: Setup, stage: Stage, ranks: int) -> int:
    """Return the number of elements per rank if ZeRO 3 shards all parameters across `ranks` ranks."""
    return sum(_zero3_groups(setup, stage, ranks))


def _zero3_groups(setup: Setup, stage: Stage, ranks: int) -> tuple[int, int]:
    ends = stage.is_first, stage.is_last
    tensor, muon = setup.tensor_parallel_size, setup.muon_steps > 0
    return shares(setup.shape, stage.layers, *ends, tensor, ranks, muon)


def _moments(muon: bool, matrices: int, others: int) -> int:
    """Return the bytes of the fp32 moments of both parameter groups.

    The arguments `matrices` and `others` are numbers of elements. With `muon`, `matrices` have one moment
    instead of two.
    """
    return 4 * ((1 if muon else 2) * matrices + 2 * others)


def _offloaded_sums(setup: Setup, stage: Stage, rank: int | None) -> int:
    """Return the bytes of the fp32 gradient sums that a rank keeps in host memory under ZeRO 2.

    The rank keeps the whole sum of every parameter that lies at least partly in its shard.
    """
    if setup.accumulation_steps == 1:
        # The gradient of a single micro batch is written straight to the buffer that the optimizer reads.
        return 0
    # Muon cannot be offloaded, so the two groups are decay and no_decay.
    ranks, (decay, no_decay) = setup.zero_size, _padded_groups(setup, stage)
    found = touched(setup.shape, setup.tensor_parallel_size, ranks, (decay // ranks, no_decay // ranks))
    return 4 * (max(found) if rank is None else found[rank])


def _of_nbtrain(setup: Setup, stage: Stage, rank: int | None) -> tuple[int, int, int, int]:
    if setup.adapter_sizes:
        return _with_adapters(setup, stage)
    element, count, zero = weight_element(setup), stage.elements, setup.zero_stage
    muon = setup.muon_steps > 0
    if zero == 0:
        # torch's own optimizer keeps no second copy of the fp32 weights, and one step count per parameter.
        weights, gradients, master = element * count, 4 * count, 0
        optimizer = _moments(muon, *stage.groups(muon)) + STEP_BYTES * stage.tensors
    elif zero == 3:
        share = zero3_share(setup, stage, setup.zero_size)
        weights, gradients, master = element * share, 4 * share, 4 * share
        optimizer = _moments(muon, *_zero3_groups(setup, stage, setup.zero_size))
        optimizer += STEP_BYTES * _sub_groups(setup, stage)
        if setup.hpz_size > 1:
            weights += element * zero3_share(setup, stage, setup.hpz_size)
    else:
        groups, ranks = _padded_groups(setup, stage), setup.zero_size
        whole = sum(groups)
        part = whole // ranks
        weights, master = element * whole, 4 * part
        optimizer = _moments(muon, *(group // ranks for group in groups)) + 2 * STEP_BYTES
        if zero == 2 and setup.offload_optimizer == "cpu" and weight_element(setup) == 4:
            gradients = _offloaded_sums(setup, stage, rank)
        elif zero == 2:
            gradients = 4 * part
        else:
            gradients = 4 * whole + 2 * count if is_bf16_optimizer(setup) else 4 * count
    if setup.autocast:
        # Autocast keeps the cast matrices until the end of the forward pass.
        weights += 2 * stage.matrices
    return weights, gradients, master, optimizer


def _with_adapters(setup: Setup, stage: Stage) -> tuple[int, int, int, int]:
    """Return the bytes of each state of a run that trains adapters next to frozen weights.

    All trained parameters are in one parameter group.
    """
    element, zero, ranks = weight_element(setup), setup.zero_stage, setup.zero_size
    held = adapter_tensors(setup, stage)
    tensors = sum(copies for _, copies in held)
    count = sum(size * copies for size, copies in held)
    if zero == 0:
        weights, gradients, master = frozen_bytes(setup, stage) + element * count, 4 * count, 0
        optimizer = 8 * count + STEP_BYTES * tensors
    elif zero == 3:
        share = sum(copies * -(-size // ranks) for size, copies in held)
        weights = element * (zero3_share(setup, stage, ranks) + share)
        if setup.hpz_size > 1:
            second = sum(copies * -(-size // setup.hpz_size) for size, copies in held)
            weights += element * (zero3_share(setup, stage, setup.hpz_size) + second)
        gradients, master = 4 * share, 4 * share
        optimizer = 8 * share + STEP_BYTES * -(-share // max(setup.sub_group_elements, 1))
    else:
        multiple = ALIGNMENT * ranks
        whole = -(-count // multiple) * multiple
        part = whole // ranks
        weights, master = frozen_bytes(setup, stage) + element * whole, 4 * part
        optimizer = 8 * part + STEP_BYTES
        if zero == 2:
            gradients = 4 * part
        else:
            gradients = 4 * whole + 2 * count if is_bf16_optimizer(setup) else 4 * count
    if setup.autocast:
        # Autocast keeps no 16-bit copy of the 4-bit matrices.
        cast = stage.layers * sum(setup.adapter_sizes)
        weights += 2 * (stage.matrices - (stage.blocks if setup.load_in_4bit else 0) + cast)
    return weights, gradients, master, optimizer


def adapter_tensors(setup: Setup, stage: Stage) -> list[tuple[int, int]]:
    """Return [(elements, number of tensors of this size)] for the trained tensors of a run with adapters."""
    found = [(size, stage.layers) for size in setup.adapter_sizes]
    if setup.trained_row_elements:
        # The first and the last stage each hold a copy of tied weights.
        ends = stage.is_first + stage.is_last
        found.append((setup.trained_row_elements, min(ends, 1) if setup.shape.tied else ends))
    return found


def frozen_bytes(setup: Setup, stage: Stage) -> int:
    """Return the bytes of frozen weights on one rank of a stage, for a run with adapters and ZeRO 0 to 2."""
    if not setup.load_in_4bit:
        return weight_element(setup) * stage.elements
    held = sum(
        copies * four_bit_bytes(size, setup.double_quant) for size, copies in matrices_of(setup, stage)
    )
    return weight_element(setup) * (stage.elements - stage.blocks) + held


def dequantized_bytes(setup: Setup) -> int:
    """Return the bytes of a block's largest 4-bit matrix after it is dequantized; 0 without 4-bit weights.

    Under autocast, the matrix is first restored in fp32. With double quantization, the constants of its
    quantization blocks are restored in fp32 too.
    """
    if not setup.load_in_4bit:
        return 0
    held = block_parameters(setup.shape, setup.tensor_parallel_size)
    elements = max(parameter.elements for parameter in held if parameter.is_matrix)
    each = weight_element(setup) + (2 if setup.autocast else 0)
    return each * elements + (4 * -(-elements // BLOCK_ELEMENTS) if setup.double_quant else 0)


def _sub_groups(setup: Setup, stage: Stage) -> int:
    """Return the number of flat tensors (sub-groups) that the optimizer updates one by one under ZeRO 3.

    The rule is in DeepSpeed's stage3.py, _create_fp16_sub_groups.
    """
    size = max(setup.sub_group_elements, 1)
    return sum(-(-group // size) for group in _zero3_groups(setup, stage, setup.zero_size))


def _of_program(setup: Setup, stage: Stage) -> tuple[int, int, int, int]:
    """Return the bytes of each model state as another training program stores it, without padding."""
    habits, count, zero, ranks = habits_of(setup.engine), stage.elements, setup.zero_stage, setup.zero_size
    half = setup.dtype != "fp32"
    element = habits.weights if half else 4
    sums = habits.gradients if half else 4
    if setup.dtype == "bf16" and zero <= 1 and habits.bf16_gradients is not None:
        sums = habits.bf16_gradients
    # With SHARD_GRAD_OP (here ZeRO 2), FSDP keeps the gathered 16-bit weights; its fp32 weights stay sharded.
    cut = zero == 3 or (zero == 2 and habits.gathered_blocks > 0)
    weights = element * count // (ranks if cut else 1)
    if zero == 3 and setup.hpz_size > 1:
        weights += element * count // setup.hpz_size
    gradients = sums * count // (ranks if zero >= 2 else 1)
    master = (habits.master_copy if half else 0) * count // (ranks if zero else 1)
    optimizer = habits.moments * count // (ranks if zero else 1)
    if setup.autocast and element == 4 and zero < 3:
        weights += 2 * stage.matrices
    return weights, gradients, master, optimizer
