"""The reference curve: one process in fp32 that trains plain_gpt.py in a plain loop with torch's AdamW,
without DeepSpeed.

With optimizer.type: Muon, plain_muon.py updates the matrices of the layers.

Only the order of samples, the initial weights, and the learning rate and weight decay of a step come from
nbtrain; they have separate tests. A step runs its whole batch at once.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nbtrain.config.arithmetic.lr_schedule import LrSchedule
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.samples.build import build_datasets
from nbtrain.model.gpt import build_model
from tests.parity.plain_gpt import Kind, PlainGPT, angles
from tests.parity.plain_muon import PlainMuon


@dataclass(frozen=True)
class Curve:
    """The results of a run that was trained in one process."""

    losses: np.ndarray
    """Loss of each step."""
    grad_norms: np.ndarray
    """Gradient norm of each step before clipping."""
    validation_losses: np.ndarray
    """Validation loss at every evaluation.eval_interval_steps."""
    weights: dict[str, torch.Tensor]
    """Final weights by canonical name; the word embedding has no padding."""
    moments: dict[str, dict[str, torch.Tensor]]
    """Final moments of the optimizer, {kind: {name: tensor}}.

    Adam's exp_avg and Muon's momentum_buffer are linear in every gradient, so a wrong gradient shows under
    its parameter's name. Adam's exp_avg_sq is included.
    """


def plain_model(config: RunConfig) -> PlainGPT:
    """Return the reference model with the run's initial weights."""
    model, vocabulary = config.model, config.tokenizer.vocab_size
    turns, amplitude = (), 1.0
    if model.position_embedding_type == "rope":
        head = model.kv_channels or model.hidden_size // model.num_attention_heads
        size = int(head * model.rotary_percent)
        scaling = model.rope_scaling and model.rope_scaling.model_dump()
        turns, amplitude = angles(size, model.rotary_base, scaling)
    plain = PlainGPT(
        model.num_layers,
        model.hidden_size,
        model.num_attention_heads,
        vocabulary,
        model.resolved_max_position_embeddings,
        Kind(
            rms_norm=model.normalization == "RMSNorm",
            epsilon=model.norm_epsilon,
            activation=model.activation,
            bias=model.add_bias_linear,
            qkv_bias=model.add_bias_linear or model.add_qkv_bias,
            tied=not model.untie_embeddings_and_output_weights,
            width=model.resolved_ffn_hidden_size,
            angles=turns,
            amplitude=amplitude,
            groups=model.num_query_groups or 0,
            head=model.kv_channels or 0,
            normed_heads=model.qk_layernorm,
            windows=tuple(
                (model.window_size or 0) if one else 0
                for one in _pattern(model.window_attn_skip_freq, model.num_layers, at_multiples=0)
            ),
            unturned=tuple(
                layer
                for layer, without in enumerate(
                    _pattern(model.no_rope_freq, model.num_layers, at_multiples=1)
                )
                if without and model.no_rope_freq
            ),
            score_cap=model.attn_logit_softcapping or 0.0,
            logit_cap=model.final_logit_softcapping or 0.0,
        ),
    )
    weights = build_model(config).state_dict()
    for name in ("word_embeddings.weight", "output_layer.weight"):
        if name in weights:
            weights[name] = weights[name][:vocabulary]
    plain.load_state_dict(weights)
    return plain


def _pattern(freq: Any, layers: int, at_multiples: int) -> list[int]:
    """Expand Megatron's pattern of layers: a list with a value for each layer, or N, which gives
    `at_multiples` to layers N, 2 N, ... counted from 1.
    """
    if isinstance(freq, list):
        return freq
    return [
        at_multiples if freq and number % freq == 0 else 1 - at_multiples for number in range(1, layers + 1)
    ]


def batch_of(dataset: Any, positions: range) -> tuple[torch.Tensor | None, ...]:
    """Return (tokens, labels, positions, visible, mask) of these samples, as PlainGPT expects them."""
    samples = [dataset.sample(position) for position in positions]
    length = len(samples[0].tokens)
    tokens = torch.tensor(np.stack([sample.tokens for sample in samples]), dtype=torch.int64)
    labels = torch.tensor(np.stack([sample.labels for sample in samples]), dtype=torch.int64)
    own = visible = learnt = None
    if any(sample.position_ids is not None for sample in samples):
        straight = np.arange(length)
        rows = [straight if sample.position_ids is None else sample.position_ids for sample in samples]
        own = torch.tensor(np.stack(rows), dtype=torch.int64)
    if any(sample.cu_seqlens is not None for sample in samples):
        numbers = np.zeros((len(samples), length), np.int64)
        for row, sample in zip(numbers, samples):
            for start in sample.cu_seqlens if sample.cu_seqlens is not None else ():
                row[start:] += 1
        visible = torch.tensor(numbers[:, :, None] == numbers[:, None, :])
    if any(sample.loss_mask is not None for sample in samples):
        every = np.ones(length, np.float32)
        rows = [every if sample.loss_mask is None else sample.loss_mask for sample in samples]
        learnt = torch.tensor(np.stack(rows))
    return tokens, labels, own, visible, learnt


def curve(config: RunConfig) -> Curve:
    """Train the run of `config` in this process and return its curve, whatever layout it is configured for.

    NBTRAIN_DATA is the data directory.
    """
    datasets, schedule, settings = build_datasets(config, None), LrSchedule.of(config), config.optimizer
    model = plain_model(config)
    by_muon = PlainMuon(model, config) if settings.type == "Muon" else None
    by_adam = [
        value for name, value in model.named_parameters() if by_muon is None or name not in by_muon.held
    ]
    matrices, others = (
        [parameter for parameter in by_adam if (parameter.ndim > 1) == is_matrix]
        for is_matrix in (True, False)
    )
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_eps,
        foreach=False,
        fused=False,
    )
    losses, norms, validation = [], [], []
    consumed = 0
    for step in range(1, config.train_steps + 1):
        size = config.batch_schedule.size_at(consumed)
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate(consumed * config.model.seq_length)
        model.zero_grad()
        loss = model(*batch_of(datasets.train, range(consumed, consumed + size)))
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_grad)))
        optimizer.step()
        if by_muon is not None:
            by_muon.step(optimizer.param_groups[0]["lr"])
        losses.append(loss.item())
        consumed += size
        if step % config.evaluation.eval_interval_steps == 0 or step == config.train_steps:
            held_out = range(config.evaluation.eval_iters * config.batch.global_batch_size)
            with torch.no_grad():
                validation.append(model(*batch_of(datasets.valid, held_out)).item())
    state = {
        name: optimizer.state[parameter]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
    }
    moments = {kind: {name: state[name][kind] for name in state} for kind in ("exp_avg", "exp_avg_sq")}
    if by_muon is not None:
        moments["momentum_buffer"] = by_muon.momentum
    return Curve(
        np.array(losses),
        np.array(norms),
        np.array(validation),
        {name: parameter.detach() for name, parameter in model.named_parameters()},
        moments,
    )
