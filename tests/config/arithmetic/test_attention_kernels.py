"""The attention kernel predicted before launch is the one that the model chooses."""

import pytest
import torch

from nbtrain.config.arithmetic.attention_kernels import lengths_problem, masks_windows
from nbtrain.config.load import load
from nbtrain.model import attention

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@pytest.mark.parametrize("head", [64, 100, 256, 264])
@pytest.mark.parametrize(("gpu", "has_flash"), [("A100-80GB", True), ("T4", False)])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_window_is_a_mask_if_the_kernel_cannot_have_lengths(
    head, gpu, has_flash, dtype, dropout, monkeypatch
):
    monkeypatch.setattr(attention, "_has_flash", lambda: has_flash)
    config = load(
        "gpt-125m",
        {
            "model.window_size": 512,
            "model.kv_channels": head,
            "model.attention_dropout": dropout,
            "precision.dtype": dtype,
            "resources.gpu_type": gpu,
        },
        check=False,
    )
    lengths = attention.takes_lengths("cuda", FORMATS[dtype], head, dropout, "auto")
    assert masks_windows(config) == (not lengths) == (lengths_problem(config) is not None)
