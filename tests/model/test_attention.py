"""Attention kernels against torch's math kernel."""

import pytest
import torch

from nbtrain.model import attention
from nbtrain.model.attention import causal_attention


def gradients(dtype: torch.dtype, tokens: int, backend: str):
    """Output and gradient of one packed query-key-value tensor, as the layer has it."""
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(2, tokens, 3, 48, generator=generator).to(dtype).transpose(1, 2).requires_grad_()
    upstream = torch.randn(2, 3, tokens, 16, generator=generator).to(dtype)
    output = causal_attention(*packed.split(16, dim=-1), backend=backend)
    (gradient,) = torch.autograd.grad(output, packed, upstream)
    return output.detach(), gradient


@pytest.mark.parametrize("tokens", [1, 2, 127, 128, 129, 300])
def test_bf16_on_cpu_has_the_gradients_of_fp32(tokens):
    """Within the rounding of bf16: the root mean square error of torch's own bf16 kernel, and a half more."""
    output, gradient = gradients(torch.bfloat16, tokens, "auto")
    assert output.dtype == gradient.dtype == torch.bfloat16
    exact = [tensor.double() for tensor in gradients(torch.float32, tokens, "math")]
    torchs = [tensor.double() for tensor in gradients(torch.bfloat16, tokens, "math")]
    for ours, theirs, truth in zip((output, gradient), torchs, exact):
        allowed = 1.5 * float((theirs - truth).square().mean().sqrt()) + 1e-3
        assert float((ours.double() - truth).square().mean().sqrt()) < allowed


def test_the_blocked_backward_is_used_where_it_serves():
    """bf16 training on CPU; a named backend is what it says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention._BlockedBackward, "apply", None)
        gradients(torch.float32, 8, "auto")
        gradients(torch.bfloat16, 8, "flash")
        with pytest.raises(TypeError):
            gradients(torch.bfloat16, 8, "auto")


@pytest.mark.parametrize("queries, keys", [(1, 7), (3, 7), (7, 7)])
def test_queries_stand_at_the_end_of_the_keys(queries, keys):
    """The last query sees every key, the one before it all but one, and so on."""
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 1, 2, keys, 8, generator=generator)
    query = torch.randn(1, 2, queries, 8, generator=generator)
    scores = query @ key.mT * 8**-0.5
    behind = torch.ones(queries, keys).tril(keys - queries) == 0
    expected = scores.masked_fill(behind, float("-inf")).softmax(-1) @ value
    torch.testing.assert_close(causal_attention(query, key, value), expected)
