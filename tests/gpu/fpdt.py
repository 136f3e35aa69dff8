"""Step `fpdt`: attention in chunks that are offloaded to host memory, against plain attention, on one GPU.

The loss and the gradients of a small GPT in bf16 are compared with the same GPT in fp32 without chunks. Their
error may be at most twice that of the GPT in bf16 without chunks. flash-attn's own kernels run if it is
installed. Otherwise plain attention replaces them, which still tests DeepSpeed's streams and host copies.
"""

import functools
import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch

from nbtrain.base.process.ports import port_to_listen_on
from nbtrain.model.gpt import GPT
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.parallel import fpdt
from nbtrain.parallel.groups import Group
from nbtrain.parallel.layout import WHOLE, ModelParallel
from tests.gpu.cases import Case, Finding, Impossible, Place, passed_if

FACTOR = 2.0
CHUNKS = (2, 4, 8)
Step = tuple[float, list[torch.Tensor]]
"""Loss, and the gradient of every parameter."""


def cases(place: Place) -> Iterator[Case]:
    """Yield plain kernels in 2, 4 and 8 chunks, and flash-attn's own kernels."""
    for kernels in ("plain", "flash-attn"):
        for chunks in CHUNKS if place.on_gpu else CHUNKS[:1]:
            yield Case(
                f"{kernels} kernels, {chunks} chunks", functools.partial(_find, place, kernels, chunks)
            )


def _find(place: Place, kernels: str, chunks: int) -> Finding:
    if kernels == "flash-attn" and (find_spec("flash_attn") is None or not place.on_gpu):
        raise Impossible("flash-attn is not installed" if place.on_gpu else "flash-attn's kernels need a GPU")
    group = _alone(place)
    from deepspeed.sequence import fpdt_layer

    if kernels == "plain":
        from packaging import version

        from tests.parallel import plain_flash

        fpdt_layer._flash_attn_forward = plain_flash.forward
        fpdt_layer._flash_attn_backward = plain_flash.backward
        fpdt_layer.flash_attn_version = version.parse("2.7.0")
        fpdt.problem = lambda device, dropout=0.0: None
    seq, hidden = (1024, 256) if place.on_gpu else (64, 32)
    exact, plain = (step(place, seq, hidden, dtype) for dtype in (torch.float32, torch.bfloat16))
    ours = step(place, seq, hidden, torch.bfloat16, seq // chunks, ModelParallel(ulysses=group))
    return compared(ours, plain, exact)


def compared(ours: Step, plain: Step, exact: Step) -> Finding:
    """Return the errors with chunks, next to the errors in bf16 without chunks."""
    losses = [abs(run[0] - exact[0]) for run in (ours, plain)]
    gradients = [
        max(float((own - true).norm() / true.norm()) for own, true in zip(run[1], exact[1]) if true.dim() > 1)
        for run in (ours, plain)
    ]
    # A loss of 6 in bf16 may be right by chance.
    loss_limit, gradient_limit = max(FACTOR * losses[1], 2.0**-9), FACTOR * gradients[1]
    values = {
        "loss": f"{losses[0]:.1e} (without chunks {losses[1]:.1e})",
        "gradients": f"{gradients[0]:.1e} (without chunks {gradients[1]:.1e})",
    }
    good = losses[0] <= loss_limit and gradients[0] <= gradient_limit
    return passed_if(good, "" if good else f"more than {FACTOR:g} times as far", values)


def step(
    place: Place, seq: int, hidden: int, dtype: torch.dtype, chunk: int = 0, parallel: ModelParallel = WHOLE
) -> Step:
    """Run one forward and backward pass of a GPT with two layers."""
    device = "cuda" if place.on_gpu else "cpu"
    chunks: dict[str, Any] = {"cross_entropy_chunk_tokens": seq // 2, "fpdt_chunk_tokens": chunk}
    # A large spread, so that attention is far from uniform.
    config = GPTConfig(2, hidden, 4, 4 * hidden, 512, seq, init_method_std=0.1, vocab_size=500, **chunks)
    model = GPT(config, parallel).to(device, dtype)
    drawn = torch.randint(500, (2, 1, seq), generator=torch.Generator().manual_seed(4))
    tokens, labels = drawn.to(device)
    loss = model(tokens, labels)
    loss.backward()
    return float(loss.detach()), [parameter.grad.float() for parameter in model.parameters()]


def _alone(place: Place) -> Group:
    """Initialize a process group of this process only, which FPDT needs."""
    import torch.distributed as dist

    from nbtrain.parallel import startup

    if not dist.is_initialized():
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        os.environ.update({**alone, "MASTER_PORT": str(port_to_listen_on())})
        startup.start(place.device, 120)
    return Group((0,), 0, dist.group.WORLD)
