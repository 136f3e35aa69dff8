"""Attention kernel of a run, as far as it is known before launch. model/attention.py selects the kernel.

On a GPU, torch has the kernels flash (which takes no mask), efficient and math. Sliding windows and the
separation of documents need a mask, unless the flash kernel gets sequence lengths: it is then called
directly, as torch's kernel for sequences of varying lengths, instead of through scaled_dot_product_attention.
"""

from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.schema import RunConfig

# torch's flash kernel on a GPU supports 16-bit formats, Ampere GPUs or newer, and head sizes up to 256. With
# sequence lengths, the head size must be a multiple of 8
# (aten/native/transformers/cuda/flash_attn/flash_api.cpp, mha_varlen_fwd).
FLASH_HEAD_SIZE = 256
FLASH_HEAD_MULTIPLE = 8
# FPDT and torch's flash kernel use the second generation of flash-attn.
FLASH_GENERATION = 2


def keeps_scores(config: RunConfig) -> bool:
    """Return whether the attention kernel stores all attention scores.

    The math kernel stores them, and so does the kernel that `auto` selects on a CPU with dropout.
    """
    backend, on_cpu = config.model.attention_backend, config.resources.device == "cpu"
    return backend == "math" or (backend == "auto" and on_cpu and config.model.attention_dropout > 0)


def masks_windows(config: RunConfig) -> bool:
    """Return whether the attention kernel applies a window as a mask.

    Such a kernel computes the scores of all pairs of positions, also of those outside the window.
    """
    model, on_cpu = config.model, config.resources.device == "cpu"
    if model.window_size is None or model.attn_logit_softcapping is not None:
        return False
    if model.compile or model.attention_dropout > 0 or model.attention_backend in ("math", "efficient"):
        return True
    return model.attention_backend == "flash" if on_cpu else lengths_problem(config) is not None


def masks_parts(config: RunConfig) -> bool:
    """Return whether torch's attention kernel needs a mask under context parallelism.

    A mask may be needed because a rank's queries may begin later in the sequence than its keys. nbtrain's own
    kernel never needs a mask for this; planner/memory/activations.py says in which runs it is used.
    """
    model = config.model
    if config.resources.device == "cpu":
        return True
    return model.attention_backend in ("math", "efficient") or lengths_problem(config) is not None


def lengths_problem(config: RunConfig) -> str | None:
    """Return why the flash kernel cannot be called with sequence lengths on a GPU. None if it can.

    The text names what the kernel requires and what the run has instead.
    """
    model, head = config.model, config.model.resolved_kv_channels
    device = find_device(config.resources.gpu_type)
    if config.precision.dtype == "fp32":
        return "bf16 or fp16, but precision.dtype is fp32"
    if device and FLASH_GENERATION not in device.flash_attention:
        return f"an Ampere GPU or newer, but resources.gpu_type is {device.name}"
    if model.attention_dropout:
        return f"attention_dropout: 0, but attention_dropout is {model.attention_dropout:g}"
    if head > FLASH_HEAD_SIZE:
        return f"a head size of at most {FLASH_HEAD_SIZE}, but the head size of this model is {head}"
    if head % FLASH_HEAD_MULTIPLE:
        return f"a head size divisible by {FLASH_HEAD_MULTIPLE}, but the head size of this model is {head}"
    return None
