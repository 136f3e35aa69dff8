"""Training runs whose curves are compared: layout, ZeRO stage, precision, data, and other settings that
change a step.

All train the same small model from the same weights on the same samples in the same order, without dropout
(which differs between ranks), so that there is one curve for each kind of data, whatever the layout.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

STEPS = 10
GLOBAL_BATCH = 16
SEQ_LENGTH = 32
MODEL = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "seq_length": SEQ_LENGTH}
# 8 and 24 cause different padding for 1, 2, 4 and 8 tensor-parallel ranks: from 500 to 504, 528, 576, 576.
PADDING = 24

BASE = {
    **{f"model.{key}": value for key, value in MODEL.items()},
    "model.hidden_dropout": 0.0,
    "model.attention_dropout": 0.0,
    "model.make_vocab_size_divisible_by": PADDING,
    # Less than the tokens of most micro batches, and not a divisor of them: there are several chunks, and the
    # last one is shorter.
    "model.cross_entropy_chunk_tokens": 100,
    "batch.global_batch_size": GLOBAL_BATCH,
    "batch.train_tokens": STEPS * GLOBAL_BATCH * SEQ_LENGTH,
    "lr_schedule.lr_warmup_tokens": 2 * GLOBAL_BATCH * SEQ_LENGTH,
    "evaluation.eval_interval_steps": 5,
    "evaluation.eval_iters": 1,
    # Every ZeRO stage shards every parameter, because the model is small.
    "parallel.stage3_param_persistence_threshold": 0,
}

# The settings that determine the curve.
DATA: dict[str, dict[str, Any]] = {
    "stream": {},
    # Several separate documents in a sequence.
    "documents": {
        "data.name": "short",
        "data.reset_position_ids": True,
        "data.inter_document_masking": True,
    },
    # Masked tokens, a different number in each sample.
    "masked": {"data.name": "short", "data.eod_mask_loss": True},
    # Best fit, with documents, positions, masks and two sources.
    "packed": {"data.name": "packed", "data.packing": "best_fit"},
    # 8, 8, 16 ...: the number of micro batches of a step changes during the run.
    "ramp": {"batch.rampup": {"start_batch_size": 8, "batch_size_increment": 8, "ramp_samples": 32}},
}
# The model, which determines the curve too. "all" has every field of the layers that differs from GPT-3's.
LLAMA: dict[str, Any] = {
    "model.normalization": "RMSNorm",
    "model.norm_epsilon": 1e-6,
    "model.activation": "swiglu",
    "model.add_bias_linear": False,
    "model.untie_embeddings_and_output_weights": True,
    "model.position_embedding_type": "rope",
}
ROPE: dict[str, Any] = {"model.position_embedding_type": "rope"}
# For heads of 8: pairs on both sides of the mixture and inside it, in sequences of 32.
SCALED = {"factor": 4.0, "original_max_position_embeddings": 64}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {},
    "rmsnorm": {"model.normalization": "RMSNorm"},
    # An unusual width; with biases, also of the gate.
    "swiglu": {"model.activation": "swiglu", "model.ffn_hidden_size": 176},
    "squared-relu": {"model.activation": "squared_relu", "model.ffn_hidden_size": 144},
    "rope": {**ROPE, "model.rotary_base": 100.0, "model.rotary_percent": 0.75},
    "rope-linear": {**ROPE, "model.rope_scaling": {"kind": "linear", "factor": 2.5}},
    "rope-llama3": {
        **ROPE,
        "model.rotary_base": 500.0,
        "model.rope_scaling": {"kind": "llama3", **SCALED, "low_freq_factor": 0.5, "high_freq_factor": 5.0},
    },
    "rope-yarn": {
        **ROPE,
        "model.rotary_base": 50.0,
        "model.rope_scaling": {"kind": "yarn", **SCALED, "beta_fast": 8.0, "beta_slow": 0.5},
    },
    "untied": {"model.untie_embeddings_and_output_weights": True},
    "no-bias": {"model.add_bias_linear": False},
    "qkv-bias": {"model.add_bias_linear": False, "model.add_qkv_bias": True},
    "llama": LLAMA,
    # Fewer groups than the tensor and Ulysses ranks of some cases or, with one group, of all.
    "grouped": {"model.num_query_groups": 2},
    "multi-query": {"model.num_query_groups": 1},
    # Together wider than the hidden states.
    "wide-heads": {"model.kv_channels": 12},
    # With rotary positions, because a bias that all keys share changes no weight of attention.
    "qk-norm": {**ROPE, "model.qk_layernorm": True},
    "window": {"model.window_size": 5},
    "window-of-some": {"model.window_size": 9, "model.window_attn_skip_freq": 2},
    "rope-of-some": {**ROPE, "model.no_rope_freq": 2},
    # Small, like the scores and logits of the first steps.
    "softcap": {"model.attn_logit_softcapping": 0.05, "model.final_logit_softcapping": 0.5},
    "all": {
        **LLAMA,
        "model.add_qkv_bias": True,
        "model.num_query_groups": 1,
        "model.kv_channels": 12,
        "model.qk_layernorm": True,
        "model.window_size": 9,
        "model.window_attn_skip_freq": 2,
        "model.no_rope_freq": 2,
        "model.final_logit_softcapping": 2.0,
    },
}
# A number of heads that neither Ulysses nor tensor parallelism can shard.
UNSHARDED: dict[str, Any] = {"model.num_attention_heads": 5, "model.kv_channels": 12}
# Settings that act on a single rank, independently of the others.
LOCAL = ("window", "window-of-some", "rope-of-some", "softcap")
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"precision.dtype": "fp32"},
    "bf16": {"precision.dtype": "bf16"},
    "autocast": {"precision.dtype": "bf16", "precision.autocast": True},
    "fp16": {"precision.dtype": "fp16"},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {},
    # A different learning rate from the others', and a step of another length for each shape.
    "muon": {"optimizer.type": "Muon", "optimizer.muon_lr": 4e-3},
    "muon-otherwise": {
        "optimizer.type": "Muon",
        "optimizer.muon_momentum": 0.8,
        "optimizer.muon_nesterov": False,
        "optimizer.muon_num_ns_steps": 3,
        "optimizer.muon_scale_mode": "shape_scaling",
        "optimizer.muon_extra_scale_factor": 1.0,
    },
}
RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"parallel.activation_checkpointing.granularity": "selective"},
    "full": {"parallel.activation_checkpointing.granularity": "full"},
    "every2": {
        "parallel.activation_checkpointing.granularity": "full",
        "parallel.activation_checkpointing.interval_layers": 2,
    },
}
OFFLOAD: dict[str, dict[str, Any]] = {
    "none": {},
    "optimizer": {"parallel.offload_optimizer.device": "cpu"},
    "param": {"parallel.offload_param.device": "cpu"},
    "both": {"parallel.offload_optimizer.device": "cpu", "parallel.offload_param.device": "cpu"},
}


@dataclass(frozen=True)
class Tolerance:
    """The largest allowed deviations from one process; test_parity.py explains them."""

    loss: float
    grad_norm: float
    validation_loss: float
    weights: float
    weights_mean: float
    exp_avg: float
    exp_avg_sq: float


FP32 = Tolerance(2e-6, 4e-6, 2e-6, 2e-5, 1e-6, 1e-5, 1e-5)
FP16 = Tolerance(1e-3, 1e-2, 1e-3, 2e-2, 2e-3, 1e-1, 1e-1)
TOLERANCES = {"fp32": FP32, "bf16": FP16, "autocast": FP16, "fp16": FP16}


@dataclass(frozen=True)
class Case:
    """One way to train the run; each field is a key of the tables above or a size."""

    dp: int = 1
    tp: int = 1
    sp: bool = False
    pp: int = 1
    us: int = 1
    cp: int = 1
    zero: int = 1
    precision: str = "fp32"
    data: str = "stream"
    recompute: str = "none"
    offload: str = "none"
    model: str = "gpt"
    optimizer: str = "adamw"
    hpz: int = 0
    extra: dict[str, Any] = field(default_factory=dict, hash=False)
    """Additional overrides of the configuration."""
    note: str = ""
    """Word for these overrides in the case's name."""

    @cached_property
    def name(self) -> str:
        sizes = [
            f"{kind}{size}" for kind in ("dp", "tp", "pp", "us", "cp") if (size := getattr(self, kind)) > 1
        ]
        parts = [*(sizes or ["one"]), f"z{self.zero}"]
        if self.sp:
            parts.insert(len(parts) - 1, "sp")
        parts += [self.precision] if self.precision != "fp32" else []
        parts += [self.data] if self.data != "stream" else []
        parts += [f"recompute-{self.recompute}"] if self.recompute != "none" else []
        parts += [f"offload-{self.offload}"] if self.offload != "none" else []
        parts += [self.model] if self.model != "gpt" else []
        parts += [self.optimizer] if self.optimizer != "adamw" else []
        parts += [f"hpz{self.hpz}"] if self.hpz else []
        return "-".join([*parts, *([self.note] if self.note else [])])

    @property
    def layout(self) -> str:
        """The part of the name that describes the layout."""
        return Case(self.dp, self.tp, self.sp, self.pp, self.us, self.cp, self.zero).name

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp * self.us * self.cp

    @property
    def tolerance(self) -> Tolerance:
        return TOLERANCES[self.precision]

    @property
    def overrides(self) -> dict[str, Any]:
        """Return the overrides of launch.TINY. Every rank runs several micro batches per step, also in the
        first steps of a batch-size ramp.
        """
        accumulation_steps = 4 if self.data == "ramp" or self.pp > 2 else 2
        micro = max(GLOBAL_BATCH // (self.dp * accumulation_steps), 1)
        hpz = {"parallel.zero_hpz": True, "parallel.zero_hpz_partition_size": self.hpz} if self.hpz else {}
        return {
            **BASE,
            "batch.micro_batch_size": micro,
            "parallel.data_parallel_size": self.dp,
            "parallel.tensor_parallel_size": self.tp,
            "parallel.sequence_parallel": self.sp,
            "parallel.pipeline_parallel_size": self.pp,
            "parallel.ds_sequence_parallel_size": self.us,
            "parallel.context_parallel_size": self.cp,
            "parallel.zero_stage": self.zero,
            **DATA[self.data],
            **PRECISIONS[self.precision],
            **RECOMPUTE[self.recompute],
            **OFFLOAD[self.offload],
            **(UNSHARDED if self.model == "five-heads" else MODELS[self.model]),
            **OPTIMIZERS[self.optimizer],
            **hpz,
            **self.extra,
        }


# Ulysses with tensor parallelism, with a pipeline, and with both.
BOTH_CUTS: tuple[dict[str, Any], ...] = (
    {"tp": 2, "sp": True, "us": 2, "zero": 3},
    {"pp": 2, "us": 2},
    {"tp": 2, "sp": True, "pp": 2, "us": 2},
)


# Context parallelism alone, with ZeRO, and with every other kind.
CONTEXT_CUTS: tuple[dict[str, Any], ...] = (
    {"cp": 2},
    {"cp": 2, "dp": 2, "zero": 3},
    {"tp": 2, "sp": True, "cp": 2, "zero": 3},
    {"pp": 2, "cp": 2},
    {"tp": 2, "sp": True, "pp": 2, "cp": 2},
)


def shares_context(case: Case) -> bool:
    """Return whether ranks share sequences by context parallelism."""
    return case.cp > 1


def context_cases() -> list[Case]:
    """Return every combination of context parallelism with other layouts of up to 8 ranks, and every other
    choice with each kind of them.
    """
    cases = [Case(cp=cp, dp=dp, zero=zero) for cp, dp in ((2, 1), (4, 1), (2, 2)) for zero in (0, 1, 2, 3)]
    cases += [Case(cp=8), Case(cp=4, dp=2, zero=2), Case(cp=2, dp=4, zero=3)]
    for sp in (False, True):
        cases += [Case(tp=2, cp=2, sp=sp, zero=zero) for zero in (0, 1, 2, 3)]
        cases += [Case(tp=4, cp=2, sp=sp), Case(tp=2, cp=4, sp=sp), Case(tp=2, cp=2, dp=2, sp=sp, zero=3)]
        cases += [Case(tp=2, pp=2, cp=2, sp=sp, zero=zero) for zero in (0, 1)]
    cases += [Case(pp=pp, cp=cp, dp=dp) for pp, cp, dp in ((2, 2, 1), (4, 2, 1), (2, 4, 1), (2, 2, 2))]
    cases += [Case(pp=2, cp=2, zero=0)]
    cases += [Case(cp=2, model="five-heads"), Case(cp=4, dp=2, zero=3, model="five-heads")]
    cases += [Case(pp=2, cp=2, model="five-heads", data="packed")]
    for cut in CONTEXT_CUTS:
        cases += [Case(**cut, data=data) for data in ("packed", "documents", "masked", "ramp")]
        cases += [Case(**cut, precision=precision) for precision in ("bf16", "autocast")]
        cases += [Case(**cut, model="all", data="packed")]
        cases += [Case(**cut, recompute=recompute) for recompute in ("selective", "full", "every2")]
        cases += [Case(**cut, model="all", precision="bf16"), Case(**cut, optimizer="muon")]
        cases += [Case(**cut, offload="optimizer")]
    cases += [Case(cp=2, model=model) for model in MODELS if model not in ("gpt", "all")]
    cases += [Case(cp=4, model=model) for model in ("window", "grouped", "softcap", "all")]
    cases += [Case(cp=2, data="documents", model=model) for model in ("window", "softcap")]
    cases += [Case(tp=4, cp=2, model="grouped"), Case(cp=2, precision="bf16", model="window")]
    cases += [Case(cp=2, precision="fp16"), Case(tp=2, pp=2, cp=2, precision="fp16", model="all")]
    cases += [Case(dp=2, cp=2, zero=3, hpz=2)]
    compiled = {"extra": {"model.compile": True}, "note": "compiled"}
    cases += [Case(cp=2, **compiled), Case(pp=2, cp=2, model="all", **compiled)]
    return cases


def is_cut_both_ways(case: Case) -> bool:
    """Return whether ranks share sequences by Ulysses, and also the model by tensor or pipeline
    parallelism.
    """
    return case.us > 1 and (case.tp > 1 or case.pp > 1)


def parity_cases() -> list[Case]:
    """Return every combination of layouts with up to 8 ranks, and every other choice with each kind of
    layout.
    """
    cases = [Case()]
    # Data parallelism, alone and with every kind of model parallelism.
    cases += [Case(dp=dp, zero=zero) for dp in (1, 2, 4, 8) for zero in (0, 1, 2, 3)]
    for sp in (False, True):
        cases += [Case(tp=tp, sp=sp) for tp in (2, 4, 8)]
        cases += [
            Case(tp=tp, dp=dp, sp=sp, zero=zero)
            for tp, dp in ((2, 1), (2, 2), (2, 4), (4, 2))
            for zero in (1, 2, 3)
        ]
        cases += [Case(tp=tp, pp=pp, sp=sp) for tp, pp in ((2, 2), (2, 4), (4, 2))]
        cases += [Case(tp=2, pp=2, dp=2, sp=sp)]
    cases += [Case(pp=pp, dp=dp) for pp, dp in ((2, 1), (4, 1), (2, 2), (2, 4), (4, 2))]
    cases += [
        Case(us=us, dp=dp, zero=zero)
        for us, dp in ((2, 1), (4, 1), (8, 1), (2, 2), (2, 4), (4, 2))
        for zero in (0, 1, 2, 3)
    ]
    # Without ZeRO, where the norm of a model in parts is nbtrain's own.
    cases += [
        Case(tp=tp, pp=pp, us=us, sp=sp, zero=0, model=model)
        for tp, pp, us, sp in (
            (2, 1, 1, False),
            (2, 1, 1, True),
            (1, 2, 1, False),
            (2, 2, 1, True),
            (2, 1, 2, False),
            (2, 1, 2, True),
            (1, 2, 2, False),
            (2, 2, 2, True),
        )
        for model in ("gpt", "all")
    ]
    cases += [Case(dp=2, tp=2, zero=0), Case(dp=2, pp=2, zero=0), Case(dp=2, pp=2, us=2, zero=0)]
    cases += [
        Case(tp=2, pp=2, us=2, zero=0, data="packed"),
        Case(tp=2, pp=2, us=2, zero=0, precision="autocast"),
    ]
    cases += [Case(tp=2, pp=2, zero=0, optimizer="muon", model=model) for model in ("gpt", "all")]
    for sp in (False, True):
        cases += [Case(tp=2, us=2, sp=sp, zero=zero) for zero in (1, 2, 3)]
        cases += [Case(tp=2, us=2, dp=2, sp=sp, zero=zero) for zero in (1, 2, 3)]
        cases += [Case(tp=tp, us=us, sp=sp) for tp, us in ((4, 2), (2, 4))]
        cases += [Case(tp=2, pp=2, us=2, sp=sp)]
    cases += [Case(pp=pp, us=us, dp=dp) for pp, us, dp in ((2, 2, 1), (4, 2, 1), (2, 4, 1), (2, 2, 2))]
    # Other choices, with every kind of layout.
    apart: list[dict[str, Any]] = [{"tp": 2}, {"pp": 2, "dp": 2}, {"us": 2}]
    cuts: list[dict[str, Any]] = [
        {"dp": 2, "zero": 2},
        {"dp": 2, "zero": 3},
        {"tp": 2},
        {"tp": 2, "sp": True, "dp": 2, "zero": 2},
        {"tp": 2, "sp": True, "dp": 2, "zero": 3},
        {"pp": 2, "dp": 2},
        {"tp": 2, "sp": True, "pp": 2},
        {"tp": 2, "sp": True, "pp": 2, "dp": 2},
        {"us": 2},
        {"us": 2, "dp": 2, "zero": 3},
        *BOTH_CUTS,
    ]
    for cut in cuts:
        cases += [Case(**cut, precision=precision) for precision in ("bf16", "autocast")]
        cases += [Case(**cut, recompute=recompute) for recompute in ("selective", "full", "every2")]
        cases += [Case(**cut, data=data) for data in DATA if data != "stream"]
        cases += [Case(**cut, offload="optimizer")]
        models = [model for model in MODELS if model != "gpt" and (model not in LOCAL or cut in apart)]
        cases += [Case(**cut, model=model) for model in models]
        cases += [Case(**cut, model="all", recompute=recompute) for recompute in ("selective", "full")]
        cases += [Case(**cut, model="all", precision=precision) for precision in ("bf16", "autocast")]
        cases += [Case(**cut, model="all", data=data) for data in ("documents", "packed")]
        cases += [Case(**cut, optimizer="muon", model=model) for model in ("gpt", "llama", "all")]
        cases += [Case(**cut, optimizer="muon", precision=precision) for precision in ("bf16", "autocast")]
        if cut.get("zero") == 3:
            cases += [Case(**cut, offload=offload) for offload in ("param", "both")]
    # Two groups, each shared by two of four ranks.
    cases += [Case(tp=4, sp=sp, model="grouped") for sp in (False, True)]
    cases += [Case(tp=4, dp=2, zero=3, model="grouped"), Case(tp=4, pp=2, model="grouped")]
    cases += [Case(us=4, model="grouped"), Case(us=4, dp=2, zero=3, model="all")]
    # Two tensor-parallel ranks have one group each, or share one, and their Ulysses ranks repeat it.
    cases += [Case(tp=2, us=4, model=model) for model in ("grouped", "multi-query")]
    cases += [Case(tp=4, us=2, model="grouped")]
    cases += [Case(data="documents", model=model) for model in ("window", "softcap")]
    # In a pipeline DeepSpeed accumulates fp16 gradients separately, also for the tied embedding.
    cases += [
        Case(**cut, precision="fp16")
        for cut in ({}, {"dp": 2}, {"tp": 2}, {"pp": 2}, {"pp": 2, "dp": 2}, {"tp": 2, "sp": True, "pp": 2})
    ]
    cases += [Case(tp=2, pp=2, precision="fp16", model="all")]
    cases += [Case(tp=2, us=2, precision="fp16"), Case(tp=2, pp=2, us=2, precision="fp16", model="all")]
    # Muon's matrices in every number of parts, and from sub-groups that split them elsewhere.
    cases += [Case(optimizer="muon", zero=zero) for zero in (0, 1, 2, 3)]
    cases += [
        Case(**cut, optimizer="muon")
        for cut in (
            {"dp": 2, "zero": 0},
            {"dp": 8, "zero": 1},
            {"dp": 4, "zero": 2},
            {"dp": 8, "zero": 3},
            {"tp": 8},
            {"tp": 4, "dp": 2, "zero": 3},
            {"pp": 4, "dp": 2},
            {"tp": 2, "pp": 2, "dp": 2},
            {"us": 4, "dp": 2, "zero": 2},
            {"tp": 2, "us": 2, "dp": 2, "zero": 2},
            {"dp": 2, "precision": "fp16"},
            {"dp": 2, "zero": 2, "data": "ramp"},
            {"dp": 2, "zero": 3, "offload": "param"},
            {"dp": 4, "zero": 3, "hpz": 2},
        )
    ]
    small = {"extra": {"parallel.sub_group_size": 20_000}, "note": "sub-groups"}
    cases += [Case(dp=dp, zero=3, optimizer="muon", **small) for dp in (1, 2)]
    cases.append(Case(dp=2, tp=2, zero=2, optimizer="muon-otherwise"))
    compiled = {"extra": {"model.compile": True}, "note": "compiled"}
    cases += [
        Case(**cut, **compiled)
        for cut in (
            {"dp": 2},
            {"pp": 2},
            {"tp": 2, "sp": True},
            {"us": 2},
            {"tp": 2, "us": 2},
            {"pp": 2, "us": 2},
            {"recompute": "full"},
            {"pp": 2, "recompute": "full"},
            {"tp": 2, "sp": True, "model": "all"},
            {"model": "softcap"},
        )
    ]
    cases += [Case(zero=stage, precision="bf16") for stage in (1, 2, 3)]
    cases += [Case(dp=2, zero=stage, precision="bf16", data="ramp") for stage in (1, 2, 3)]
    cases += [Case(dp=dp, zero=3, hpz=hpz) for dp, hpz in ((4, 2), (8, 2), (8, 4))]
    cases += [Case(dp=2, us=2, zero=3, hpz=2), Case(dp=4, zero=3, hpz=2, precision="bf16")]
    for zero in (1, 2, 3):
        for key, value in (
            ("overlap_comm", False),
            ("contiguous_gradients", False),
            ("reduce_scatter", False),
            ("reduce_bucket_size", 20_000),
        ):
            note = f"no-{key.replace('_', '-')}" if value is False else "small-buckets"
            cases.append(Case(dp=2, zero=zero, extra={f"parallel.{key}": value}, note=note))
    cases.append(Case(dp=2, zero=3, extra={"parallel.sub_group_size": 20_000}, note="sub-groups"))
    cases.append(Case(dp=2, zero=0, extra={"parallel.prescale_gradients": True}, note="prescaled"))
    cases.append(Case(pp=3, extra={"parallel.pipeline_stage_layers": [1, 2, 1]}, note="uneven"))
    cases += context_cases()
    return list(dict.fromkeys(cases))
