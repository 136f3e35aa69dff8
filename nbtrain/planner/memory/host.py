"""Host memory and NVMe of one rank and of one node: offloaded state, its buffers, and the start of a run.

At the start every rank builds its part of the model on the host, in fp32, one whole matrix at a time, unless
ZeRO 3 partitions each parameter as it is created (model/initialization.py, train/build.py).
"""

from nbtrain.planner.memory.activations import fpdt_host_bytes
from nbtrain.planner.memory.buffers import CPU_RUNTIME_BYTES
from nbtrain.planner.memory.stage import Stage
from nbtrain.planner.memory.states import States, weight_element
from nbtrain.planner.setup.setup import Setup

HOST_PARTS = ("weights", "gradients", "master_copy", "optimizer", "activations", "buffers", "snapshot")

# DeepSpeed's default (offload_param.max_in_cpu): parameters kept in host memory while the rest is on NVMe.
NVME_PARAMETERS_IN_CPU = 1_000_000_000
# Tensors that the optimizer's step holds of a sub-group on NVMe: masters, gradients and two moments.
NVME_OPTIMIZER_TENSORS = 4


def host_parts(setup: Setup, stage: Stage, found: States) -> dict[str, int]:
    """Return the bytes by part in the host memory of one GPU rank; all 0 on a CPU, where it is the device."""
    if not setup.on_gpu:
        return dict.fromkeys(HOST_PARTS, 0)
    sizes = found.at("cpu")
    rest = fpdt_host_bytes(setup, stage), nvme_buffers(setup, stage), snapshot(setup, found)
    return dict(zip(HOST_PARTS, (*sizes, *rest)))


def nvme_buffers(setup: Setup, stage: Stage) -> int:
    """Return the bytes of host memory that state on NVMe passes through, and of the parameters kept there."""
    if setup.offload_optimizer != "nvme" and setup.offload_param != "nvme":
        return 0
    found, element = 0, weight_element(setup)
    share = stage.elements // setup.zero_size
    if setup.offload_optimizer == "nvme":
        found += NVME_OPTIMIZER_TENSORS * 4 * min(share, setup.sub_group_elements)
    if setup.offload_param == "nvme":
        found += element * setup.nvme_buffer_count * setup.nvme_buffer_elements
        found += element * min(share, NVME_PARAMETERS_IN_CPU)
    return found


def snapshot(setup: Setup, found: States) -> int:
    """Return the bytes of the host copy for asynchronous saving: a rank's weights and optimizer state."""
    if not setup.saves_in_background:
        return 0
    return found.weights + found.master_copy + found.optimizer


def initial_bytes(setup: Setup, stage: Stage) -> int:
    """Return a rank's host memory while its model is built: fp32 weights, a whole matrix, the process."""
    shape = setup.shape
    largest = max(
        shape.output_weights,
        shape.hidden_size * (shape.query_width + 2 * shape.kv_width),
        shape.hidden_size * shape.ffn_hidden_size,
    )
    made = 0 if setup.zero_stage == 3 else 4 * stage.elements
    return made + 4 * largest + CPU_RUNTIME_BYTES
