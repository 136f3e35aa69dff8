"""Step `flash`: attention's fast kernels and their gradients, compared with fp32, and which kernel ran.

A kernel's error against fp32 may be at most twice the error of plain products and a softmax in the same
16-bit format, and three times for its gradients.
"""

import functools
from collections.abc import Iterator

import torch

from nbtrain.model.attention import Documents, backend_problem, causal_attention, documents_of, takes_lengths
from tests.gpu.cases import Case, Finding, Impossible, Place, passed_if

# The factor of flash-attention's own tests (tests/test_flash_attn.py there).
FACTORS = {"output": 2.0, "gradients": 3.0}
# If both errors are close to zero, a few units of the format's last place count as equal.
LAST_PLACES = 4
# (sequences, heads, tokens, head size)
SHAPES = {
    "125m": (2, 12, 2048, 64),
    "1.3b": (2, 16, 2048, 128),
    "heads of 96": (1, 16, 4096, 96),
    "1000 tokens": (2, 12, 1000, 64),
}
TINY = {"tiny": (2, 4, 48, 16)}
# On the first shape: queries that share keys, and a window. Among torch's CUDA kernels only flash supports
# groups, and flash supports no mask.
VARIANTS = {"2 groups": (2, None), "window of 16": (None, 16), "2 groups, window of 16": (2, 16)}
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
Attended = tuple[torch.Tensor, list[torch.Tensor]]
"""Output [b, n, s, d], and the gradients of query, key and value."""


def cases(place: Place) -> Iterator[Case]:
    """Yield each kernel with each shape, documents by cumulative length against a
    mask, and the choice of `auto`.
    """
    shapes = SHAPES if place.on_gpu else TINY
    formats = FORMATS if place.on_gpu else {"bf16": torch.bfloat16}
    for backend in ("flash", "auto", "efficient") if place.on_gpu else ("flash", "auto"):
        for name, dtype in formats.items():
            for words, shape in shapes.items():
                find = functools.partial(_kernel, place, backend, dtype, shape)
                yield Case(f"{backend}, {name}, {words} {'x'.join(map(str, shape))}", find)
            shape = next(iter(shapes.values()))
            for words, (groups, window) in VARIANTS.items():
                find = functools.partial(_kernel, place, backend, dtype, shape, groups, window)
                yield Case(f"{backend}, {name}, {words}", find)
    for name, dtype in formats.items():
        for head_size in (64, 100) if place.on_gpu else (16,):
            words = f"documents, {name}, heads of {head_size}"
            yield Case(words, functools.partial(_documents, place, dtype, head_size))


def inputs(place: Place, dtype: torch.dtype, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Return query, key, value and the gradient of the output, the same on every machine."""
    generator = torch.Generator().manual_seed(0)
    device = "cuda" if place.on_gpu else "cpu"
    return [torch.randn(shape, generator=generator).to(device, dtype) for _ in range(4)]


def attended(
    tensors: list[torch.Tensor],
    backend: str,
    dtype: torch.dtype,
    documents: Documents | None = None,
    window: int | None = None,
) -> Attended:
    """Compute attention and its gradients in `dtype`."""
    query, key, value = (tensor.detach().to(dtype).requires_grad_() for tensor in tensors[:3])
    output = causal_attention(query, key, value, backend=backend, documents=documents, window=window)
    gradients = torch.autograd.grad(output, (query, key, value), tensors[3].to(dtype))
    return output.detach(), list(gradients)


def attended_plainly(
    tensors: list[torch.Tensor], mask: torch.Tensor | None = None, window: int | None = None
) -> Attended:
    """Compute attention with plain products and a softmax, each rounded to the tensors' format.

    torch's math kernel computes in fp32 and rounds only its result.
    """
    query, key, value = (tensor.detach().requires_grad_() for tensor in tensors[:3])
    if mask is None:
        tokens = query.shape[-2]
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
    if window is not None:
        mask = mask.triu(1 - window)
    shared = query.shape[1] // key.shape[1]
    keys, values = (tensor.repeat_interleave(shared, dim=1) for tensor in (key, value))
    scores = (query * query.shape[-1] ** -0.5) @ keys.mT
    output = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values
    return output.detach(), list(torch.autograd.grad(output, (query, key, value), tensors[3]))


def _kernel(
    place: Place,
    backend: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    groups: int | None = None,
    window: int | None = None,
) -> Finding:
    device = "cuda" if place.on_gpu else "cpu"
    if problem := backend_problem(
        device, dtype, backend, head_size=shape[-1], grouped=groups is not None, window=window
    ):
        raise Impossible(f"{backend} does not serve this device: {problem}")
    tensors = inputs(place, dtype, shape)
    if groups is not None:
        tensors[1:3] = [tensor[:, :groups].contiguous() for tensor in tensors[1:3]]
    exact = attended(tensors, "math", torch.float32, window=window)
    plain = attended_plainly(tensors, window=window)
    ours, kernels = _profiled(lambda: attended(tensors, backend, dtype, window=window))
    return compared(ours, plain, exact, kernels, must="flash" if backend == "flash" else "")


def _documents(place: Place, dtype: torch.dtype, head_size: int) -> Finding:
    """Compare torch's kernel for documents of varying length with attention under the documents' mask."""
    sequences, _, tokens, _ = shape = (2, 12, 1024, head_size) if place.on_gpu else (2, 2, 48, head_size)
    bounds = torch.tensor(
        [0, tokens // 3, tokens // 2, tokens, tokens + 7, sequences * tokens], dtype=torch.int32
    )
    device, longest = "cuda" if place.on_gpu else "cpu", tokens
    bounds = bounds.to(device)
    lengths = takes_lengths(device, dtype, shape[-1], 0.0, "auto")
    mask = documents_of(bounds, longest, sequences, tokens, as_lengths=False)
    tensors = inputs(place, dtype, shape)
    exact = attended(tensors, "math", torch.float32, mask)
    plain = attended_plainly(tensors, mask.mask)
    documents = documents_of(bounds, longest, sequences, tokens, as_lengths=lengths)
    ours, kernels = _profiled(lambda: attended(tensors, "auto", dtype, documents))
    found = compared(ours, plain, exact, kernels)
    found.words = f"{'by lengths' if lengths else 'by a mask'}; {found.words}".rstrip("; ")
    return found


def compared(ours: Attended, plain: Attended, exact: Attended, kernels: list[str], must: str = "") -> Finding:
    """Return the kernel's largest errors next to the errors of plain attention in the same format."""
    values, exceeded = {}, []
    pairs = {
        "output": ([ours[0]], [plain[0]], [exact[0]]),
        "gradients": (ours[1], plain[1], exact[1]),
    }
    for what, (own, theirs, true) in pairs.items():
        error, usual = _largest_error(own, true), _largest_error(theirs, true)
        least = (
            LAST_PLACES * torch.finfo(own[0].dtype).eps * max(float(tensor.abs().max()) for tensor in true)
        )
        values[what] = f"{error:.1e} (plain {usual:.1e})"
        # Written so that NaN exceeds the limit.
        if not error <= max(FACTORS[what] * usual, least):
            exceeded.append(f"{what} {error:.1e} > {FACTORS[what]:g} x {usual:.1e}")
    values["kernel"] = ", ".join(f"`{name}`" for name in kernels) or "not seen by the profiler"
    if must and kernels and not any(must in name.lower() for name in kernels):
        exceeded.append(f"no kernel that ran is called {must}")
    return passed_if(not exceeded, "; ".join(exceeded), values)


def _largest_error(ours: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    return max(float((own.float() - true).abs().max()) for own, true in zip(ours, exact))


def _profiled(attend) -> tuple[Attended, list[str]]:
    """Return the function's result and the names of the attention kernels that ran."""
    on_gpu = torch.cuda.is_available()
    kinds = [torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as profile:
        result = attend()
        if on_gpu:
            torch.cuda.synchronize()
    words = ("flash", "fmha", "efficient", "cudnn", "sdpa", "attention")
    names = dict.fromkeys(event.name for event in profile.events())
    return result, [_short(name) for name in names if any(word in name.lower() for word in words)][:4]


def _short(name: str) -> str:
    """Return a kernel's name without its template arguments."""
    return name.removeprefix("void ").partition("<")[0].partition("(")[0][:70]
