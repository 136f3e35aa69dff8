"""Measures the speed of a single device: matrix products, memory, attention, and the parts of the model.

    product     F.linear of [m, k] by [k, n], forward and backward: 6 m n k FLOPs
    memory      a copy of 256 MiB: bytes read and written
    attention   the model's attention core, forward and backward
    block       a transformer block of the model, without dropout: seconds forward, seconds backward
    norms       the part of a block that tensor parallelism does not shard: two norms, two residual sums
    ends        embeddings, final norm, output layer and loss
    optimizer   gradient norm, clipping and AdamW: seconds for each parameter

Shapes: b sequences, s tokens, h hidden, v vocabulary
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from nbtrain.checkpoint.weights.store import DTYPES
from nbtrain.model.attention import causal_attention
from nbtrain.model.gpt import GPT
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.train.calibration.stopwatch import Stopwatch

HEAD_SIZE = 64
MEMORY_BYTES = 256 << 20
FP8_MULTIPLE = 16

Figure = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes to measure: a few small sizes on a CPU, the sizes of large models on a GPU."""

    products: tuple[tuple[int, int, int], ...]
    """(m, n, k) of each product."""
    blocks: tuple[tuple[int, int], ...]
    """(hidden size, tokens of a micro batch) of each block."""
    sequences: tuple[int, ...]
    """Sequence lengths of the attention core."""
    ends: tuple[tuple[int, int], ...]
    """(hidden size, vocabulary) of embeddings, output layer and loss."""
    ends_tokens: int
    optimizer_parameters: int


CPU_SIZES = Sizes(
    products=tuple((m, 4 * h, h) for m in (512, 2048) for h in (128, 256, 512, 1024)),
    blocks=(*((h, tokens) for h in (128, 256, 512) for tokens in (256, 2048)), (1024, 1024)),
    sequences=(128, 256, 512, 1024),
    ends=((128, 1024), (128, 16_384), (512, 1024), (512, 16_384)),
    ends_tokens=1024,
    optimizer_parameters=8 << 20,
)
GPU_SIZES = Sizes(
    products=tuple((m, 4 * h, h) for m in (2048, 16_384) for h in (768, 2048, 4096, 8192)),
    blocks=((128, 256), (512, 256), (768, 16_384), (2048, 8192), (4096, 4096), (8192, 2048)),
    sequences=(1024, 2048, 4096, 8192),
    ends=((128, 1024), (512, 1024), (128, 51_200), (512, 51_200), (4096, 51_200)),
    ends_tokens=8192,
    optimizer_parameters=256 << 20,
)
BLOCK_SEQUENCE = 256


def count(device: str, sizes: Sizes, formats: list[str], model_formats: list[str]) -> int:
    """Return the number of measurements that `measure` yields."""
    each = len(sizes.sequences) + 2 * len(sizes.blocks) + len(sizes.ends)
    products = sum(len(products_of(device, dtype, sizes)) for dtype in formats)
    return 2 + products + len(model_formats) * each


def measure(watch: Stopwatch, sizes: Sizes, formats: list[str], model_formats: list[str]) -> Iterator[Figure]:
    """Yield all measurements of one device: matrix products in `formats`, parts of the model in
    `model_formats`.
    """
    yield {"what": "memory", **memory(watch)}
    yield {"what": "optimizer", **optimizer(watch, sizes.optimizer_parameters)}
    for dtype in formats:
        for m, n, k in products_of(watch.device.type, dtype, sizes):
            yield {"what": "product", "dtype": dtype, **product(watch, dtype, m, n, k)}
    for dtype in model_formats:
        for seq in sizes.sequences:
            tokens = max(sizes.ends_tokens, seq)
            yield {"what": "attention", "dtype": dtype, **attention(watch, dtype, seq, tokens)}
        for hidden, tokens in sizes.blocks:
            yield {"what": "block", "dtype": dtype, **block(watch, dtype, hidden, tokens)}
            yield {"what": "norms", "dtype": dtype, **norms(watch, dtype, hidden, tokens)}
        for hidden, vocabulary in sizes.ends:
            yield {
                "what": "ends",
                "dtype": dtype,
                **ends(watch, dtype, hidden, vocabulary, sizes.ends_tokens),
            }


def products_of(device: str, dtype: str, sizes: Sizes) -> tuple[tuple[int, int, int], ...]:
    """Return the products to measure in the format `dtype`. On a CPU, which may emulate fp16, fp16 gets only
    one small product.
    """
    return sizes.products[:1] if (device, dtype) == ("cpu", "fp16") else sizes.products


def memory(watch: Stopwatch) -> Figure:
    source = torch.ones(MEMORY_BYTES // 4, device=watch.device)
    target = torch.empty_like(source)
    seconds = watch.seconds(lambda: target.copy_(source))
    return {"bytes_per_second": 2 * MEMORY_BYTES / seconds}


def product(watch: Stopwatch, dtype: str, m: int, n: int, k: int) -> Figure:
    """Measure FLOP/s of F.linear, forward and backward; for fp8 only the forward pass."""
    with _format(dtype) as element:
        if dtype == "fp8":
            seconds = watch.seconds(_fp8_product(watch.device, m, n, k))
            return {"m": m, "n": n, "k": k, "flops": 2 * m * n * k / seconds}
        x = torch.randn(m, k, device=watch.device, dtype=element, requires_grad=True)
        weight = torch.randn(n, k, device=watch.device, dtype=element, requires_grad=True)
        gradient = torch.randn(m, n, device=watch.device, dtype=element)
        seconds = watch.seconds(lambda: torch.autograd.grad(F.linear(x, weight), (x, weight), gradient))
    return {"m": m, "n": n, "k": k, "flops": 6 * m * n * k / seconds}


def attention(watch: Stopwatch, dtype: str, seq: int, tokens: int) -> Figure:
    """Measure the seconds of the attention core per token and head of size 64, forward and backward."""
    shape = (tokens // seq, 4, seq, HEAD_SIZE)
    tensors = [
        torch.randn(shape, device=watch.device, dtype=DTYPES[dtype], requires_grad=True) for _ in range(3)
    ]
    gradient = torch.ones(shape, device=watch.device, dtype=DTYPES[dtype])
    query, key, value = tensors
    forward = watch.seconds(lambda: causal_attention(query, key, value).detach())
    whole = watch.seconds(lambda: torch.autograd.grad(causal_attention(query, key, value), tensors, gradient))
    each = tokens * 4
    return {"seq": seq, "forward": forward / each, "backward": max(whole - forward, 0.0) / each}


def block(watch: Stopwatch, dtype: str, hidden: int, tokens: int) -> Figure:
    """Measure the seconds of one block on `tokens` tokens in sequences of BLOCK_SEQUENCE tokens."""
    layer = _model(hidden, 128, 1).layers[0].to(watch.device, DTYPES[dtype])
    shape = (tokens // BLOCK_SEQUENCE, BLOCK_SEQUENCE, hidden)
    x = torch.randn(shape, device=watch.device, dtype=DTYPES[dtype], requires_grad=True)
    wanted, gradient = (x, *layer.parameters()), torch.ones_like(x)
    forward = watch.seconds(lambda: layer(x).detach())
    whole = watch.seconds(lambda: torch.autograd.grad(layer(x), wanted, gradient))
    backward = max(whole - forward, 0.0)
    return {"hidden": hidden, "tokens": tokens, "forward": forward, "backward": backward}


def norms(watch: Stopwatch, dtype: str, hidden: int, tokens: int) -> Figure:
    """Measure the seconds of two norms and two residual sums, forward and backward."""
    x = torch.randn(tokens, hidden, device=watch.device, dtype=DTYPES[dtype], requires_grad=True)
    weight, bias = (torch.ones(hidden, device=watch.device, dtype=DTYPES[dtype]) for _ in range(2))
    gradient = torch.ones_like(x)

    def two() -> torch.Tensor:
        y = x + F.layer_norm(x, (hidden,), weight, bias)
        return y + F.layer_norm(y, (hidden,), weight, bias)

    seconds = watch.seconds(lambda: torch.autograd.grad(two(), x, gradient))
    return {"hidden": hidden, "tokens": tokens, "seconds": seconds}


def ends(watch: Stopwatch, dtype: str, hidden: int, vocabulary: int, tokens: int) -> Figure:
    """Measure the seconds of embeddings, final norm, output layer and loss, forward and backward."""
    model = _model(hidden, vocabulary, 0).to(watch.device, DTYPES[dtype])
    ids = torch.randint(vocabulary, (tokens // BLOCK_SEQUENCE, BLOCK_SEQUENCE), device=watch.device)
    weights = list(model.parameters())
    seconds = watch.seconds(lambda: torch.autograd.grad(model(ids, ids), weights))
    return {"hidden": hidden, "vocabulary": vocabulary, "tokens": tokens, "seconds": seconds}


def optimizer(watch: Stopwatch, parameters: int) -> Figure:
    """Measure the seconds per parameter of an optimizer step in fp32: gradient norm, clipping and AdamW."""
    weights = [torch.nn.Parameter(torch.ones(parameters // 8, device=watch.device)) for _ in range(8)]
    for weight in weights:
        weight.grad = torch.full_like(weight, 1e-3)
    adam = torch.optim.AdamW(weights, lr=1e-4, fused=True)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        adam.step()

    return {"seconds_per_parameter": watch.seconds(step) / parameters}


def usable_formats(device: torch.device) -> list[str]:
    """Return the number formats of matrix products that this device supports."""
    if device.type != "cuda":
        return list(DTYPES)
    major, minor = torch.cuda.get_device_capability(device)
    formats = ["fp32", "fp16"]
    if major >= 8:
        formats += ["tf32", "bf16"]
    if (major, minor) >= (8, 9):
        formats.append("fp8")
    return formats


@contextlib.contextmanager
def _format(dtype: str) -> Iterator[torch.dtype]:
    """Prepare torch for a number format and yield its element type. For TF32 that is fp32, with TF32 products
    enabled.
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    try:
        yield DTYPES.get(dtype, torch.float32)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _fp8_product(device: torch.device, m: int, n: int, k: int):
    x = torch.randn(m, k, device=device).to(torch.float8_e4m3fn)
    weight = torch.randn(n, k, device=device).to(torch.float8_e4m3fn)
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _model(hidden: int, vocabulary: int, layers: int) -> GPT:
    heads = max(hidden // HEAD_SIZE, 1)
    model = GPT(GPTConfig(max(layers, 1), hidden, heads, 4 * hidden, vocabulary, BLOCK_SEQUENCE))
    model.layers = model.layers[:layers]
    return model
