"""Random runs as users might write them: shapes, layouts, ZeRO, precision, and memory-saving techniques.

legal_draws() returns runs that break no rule. refused_draws() returns runs that break exactly one: each is a
legal run with a single change, so that any difference in the engine comes from the setting that the rule is
about.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nbtrain.config.load import load
from nbtrain.config.rules.check import RULES
from nbtrain.config.rules.combinations import BY_NAME, CLASHES, KINDS
from nbtrain.config.schema import RunConfig

MOST_RANKS = 4
STEPS = 3
# Tried on each legal draw.
CHANGES = 15
Overrides = dict[str, Any]

RUN = """
name: drawn
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, cross_entropy_chunk_tokens: 40}
tokenizer: {name: test, vocab_size: 500}
data: {name: test}
batch: {micro_batch_size: 1, global_batch_size: 4}
lr_schedule: {lr: 3.0e-3, min_lr: 3.0e-3, lr_warmup_tokens: 1, lr_decay_style: constant}
precision: {dtype: fp32, fp16: {initial_scale_power: 8}}
parallel: {stage3_param_persistence_threshold: 0}
optimizer: {clip_grad: 0.5}
evaluation: {eval_iters: 0}
resources: {device: cpu}
"""
# Ranks draw different random numbers, so results with dropout could not be compared.
FIXED: Overrides = {"model.hidden_dropout": 0.0, "model.attention_dropout": 0.0}

SIZES = ("tensor", "pipeline", "data", "ds_sequence")
PRECISIONS: tuple[Overrides, ...] = (
    {"precision.dtype": "fp32"},
    {"precision.dtype": "bf16"},
    {"precision.dtype": "bf16", "precision.autocast": True},
    {"precision.dtype": "fp16"},
)
RECOMPUTED = "parallel.activation_checkpointing"
# Values of a field, with frequent ones repeated.
FIELDS: dict[str, tuple[Any, ...]] = {
    "model.num_layers": (1, 2, 3, 4, 5),
    "model.ffn_hidden_size": (None, None, 96, 36, 33),
    "model.max_position_embeddings": (None, None, 30, 20),
    "model.seq_length": (8, 12, 24, 24, 21),
    "model.make_vocab_size_divisible_by": (1, 8, 128),
    "model.attention_backend": ("auto", "auto", "math", "flash", "efficient"),
    "parallel.zero_stage": (0, 1, 1, 2, 3),
    "parallel.sequence_parallel": (False, True),
    f"{RECOMPUTED}.granularity": ("none", "selective", "full"),
    f"{RECOMPUTED}.interval_layers": (1, 1, 2, 3),
    "parallel.offload_optimizer.device": ("none", "none", "none", "cpu"),
    "parallel.offload_param.device": ("none", "none", "none", "cpu"),
    "parallel.overlap_comm": (True, True, False),
    "parallel.contiguous_gradients": (True, True, False),
    "parallel.reduce_scatter": (True, True, False),
    "parallel.reduce_bucket_size": (500_000_000, 2000),
    "parallel.sub_group_size": (1_000_000_000, 3000),
}
# Rarely or never legal here, so tried on refused draws only. model.compile is not drawn, because its compiler
# takes a minute.
ODD: dict[str, tuple[Any, ...]] = {
    "model.hidden_size": (34, 50),
    "batch.global_batch_size": (5, 7),
    "parallel.pipeline_stage_layers": ([1, 1], [3], [1, 1, 1]),
    "parallel.num_layers_per_virtual_pipeline_stage": (1,),
    "parallel.fpdt_chunk_tokens": (4, 6),
    "parallel.zero_hpz": (True,),
    "parallel.zero_hpz_partition_size": (2, 3),
    "parallel.zero_quantized_weights": (True,),
    "parallel.zero_quantized_gradients": (True,),
    "parallel.prescale_gradients": (True,),
    "parallel.elastic_checkpoint": (True,),
    "parallel.offload_optimizer.pin_memory": (True,),
    "precision.fp8": (True,),
    "precision.autocast": (True,),
    "precision.fp16.min_loss_scale": (512,),
}


@dataclass(frozen=True, eq=False)
class Draw:
    """A random run, with the rule that refuses it if there is one."""

    name: str
    overrides: Overrides
    rule: str = ""
    """Name of the rule from rules_against(); "" if the run is legal."""

    @property
    def words(self) -> str:
        """Name and settings of the draw, for messages."""
        return f"{self.name}: {' '.join(f'{key}={value}' for key, value in self.overrides.items())}"

    def config(self, source: Path) -> RunConfig:
        """Load the run without checking it against the rules."""
        return load(str(source), {"name": self.name, **FIXED, **self.overrides}, check=False)


def legal_draws(source: Path, seed: int, count: int) -> list[Draw]:
    """Return the first `count` draws that no rule refuses.

    `source` is a file with the text RUN, which the draws extend.
    """
    generator, found = random.Random(seed), []
    while len(found) < count:
        draw = Draw(f"legal-{seed}-{len(found)}", _anything(generator))
        if not rules_against(draw.config(source)):
            found.append(draw)
    return found


def refused_draws(source: Path, seed: int, each: int, bases: int) -> list[Draw]:
    """Change legal draws at random; for each rule, return up to `each` changed draws
    that only this rule refuses.
    """
    generator, found = random.Random(seed), dict[str, list[Draw]]()
    for base in legal_draws(source, seed, bases):
        for number in range(CHANGES):
            changed = {**base.overrides, **_one_change(generator)}
            if _ranks(changed) > MOST_RANKS:
                continue
            draw = Draw(f"{base.name}-{number}", changed)
            rules = rules_against(draw.config(source))
            if len(rules) == 1 and len(found.setdefault(rules[0], [])) < each:
                found[rules[0]].append(replace(draw, rule=rules[0]))
    return [draw for rule in sorted(found) for draw in found[rule]]


def rules_against(config: RunConfig) -> list[str]:
    """Return the names of the rules that refuse a run; for incompatible settings, the names of both kinds."""
    found = []
    for rule in RULES:
        broken = list(rule(config))
        if rule.__name__ == "kinds_go_together":
            found += _refused_pairs(config)
        elif rule.__name__ == "kinds_have_what_they_need":
            found += [f"{kind} alone" for kind in _needy(config)]
        else:
            found += [rule.__name__] * bool(broken)
    return found


def _refused_pairs(config: RunConfig) -> Iterator[str]:
    for clash in CLASHES:
        for other in clash.others:
            if BY_NAME[clash.kind].present(config) and BY_NAME[other].present(config):
                yield f"{clash.kind} + {other}"


def _needy(config: RunConfig) -> Iterator[str]:
    for kind in KINDS:
        if kind.needs and kind.present(config) and not any(BY_NAME[n].present(config) for n in kind.needs):
            yield kind.name


def _anything(generator: random.Random) -> Overrides:
    """Draw parallel sizes whose product is at most MOST_RANKS, and a value for every field."""
    sizes = {kind: 1 for kind in SIZES}
    for kind in generator.sample(SIZES, 2):
        most = MOST_RANKS // (sizes["tensor"] * sizes["pipeline"] * sizes["data"] * sizes["ds_sequence"])
        sizes[kind] = generator.choice([size for size in (1, 2, 2, 3, 4) if size <= most])
    heads = generator.choice((1, 2, 3, 4, 4, 6, 8))
    micro, steps = generator.choice((1, 2)), generator.choice((1, 2, 3))
    fields = {field: generator.choice(values) for field, values in FIELDS.items()}
    # ZeRO++'s secondary partition, rarely except where it is possible.
    if fields["parallel.zero_stage"] == 3 and sizes["data"] * sizes["ds_sequence"] == MOST_RANKS:
        fields["parallel.zero_hpz"] = generator.random() < 0.5
        fields["parallel.zero_hpz_partition_size"] = 2 if fields["parallel.zero_hpz"] else None
    return {
        **{f"parallel.{kind}_parallel_size": size for kind, size in sizes.items()},
        **fields,
        "model.num_attention_heads": heads,
        "model.hidden_size": heads * generator.choice((8, 16)),
        "batch.micro_batch_size": micro,
        "batch.global_batch_size": micro * steps * sizes["data"],
        "batch.train_tokens": 100_000,
        **generator.choice(PRECISIONS),
    }


def _one_change(generator: random.Random) -> Overrides:
    """Draw a new value for one field, one parallel size or the precision."""
    which = generator.random()
    if which < 0.15:
        return generator.choice(PRECISIONS)
    if which < 0.25:
        return {"parallel.zero_stage": generator.choice((0, 1, 2, 3))}
    if which < 0.4:
        kind = generator.choice(SIZES)
        return {f"parallel.{kind}_parallel_size": generator.choice((2, 3, 4))}
    table = ODD if which < 0.8 else FIELDS
    field = generator.choice(list(table))
    return {field: generator.choice(table[field])}


def _ranks(overrides: Overrides) -> int:
    product = 1
    for kind in SIZES:
        product *= overrides[f"parallel.{kind}_parallel_size"]
    return product
