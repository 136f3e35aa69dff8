"""Explanation of a plan: every number with its formula, its inputs and its source.

    print(nb.plan("gpt-13b-4xdp").why())       in a notebook, each number unfolds to its formula
    nbtrain plan RUN --why

The terms for memory, for a step and for its traffic come from the estimates themselves (memory/explain.py,
time/explain.py). This module adds the terms for parameters, batch, run, cost and disk.
"""

import html
from collections.abc import Mapping
from dataclasses import dataclass

from nbtrain.base.printing.report import Block, Report, Result, TextForm
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.flops import model_flops
from nbtrain.config.arithmetic.parameters import Parameters
from nbtrain.config.arithmetic.saves import local_saves, shared_saves
from nbtrain.config.own_blocks import shape_of
from nbtrain.config.schema import RunConfig
from nbtrain.config.shape import Shape
from nbtrain.planner.budget.cost import COOLING_FACTOR, MACHINE_FACTOR, CostEstimate
from nbtrain.planner.budget.disk import DiskEstimate
from nbtrain.planner.memory.explain import explain as explain_memory
from nbtrain.planner.setup.terms import Term
from nbtrain.planner.time.duration import DurationEstimate
from nbtrain.planner.time.explain import explain as explain_step
from nbtrain.planner.time.rates import Speed
from nbtrain.planner.time.step import forward_seconds

_CHINCHILLA = "arXiv:2203.15556: about 20 tokens per parameter"
_SHAPE = "nbtrain/config/shape.py; arXiv:2104.04473, section 5.1"


@dataclass(frozen=True, repr=False)
class Why(Result):
    """The numbers of a plan by section, each with its formula and source as a Term."""

    name: str
    sections: Mapping[str, list[Term]]

    def as_report(self) -> Report:
        """Return a report of the terms by section, each with its formula, and its source on the next line."""
        blocks = [_Terms(title, terms) for title, terms in self.sections.items()]
        return Report(f"Formulas of the plan of {self.name}", blocks)


@dataclass(frozen=True, slots=True)
class _Terms(Block):
    """A report block with a section of terms. In HTML, a click on a number shows its formula."""

    title: str
    terms: list[Term]

    def lines(self, form: TextForm) -> list[str]:
        width = max(len(term.name) for term in self.terms) + 2
        lines = [self.title]
        for term in self.terms:
            lines += [f"  {term.name:<{width}}{value_in_unit(term)} = {term.formula}"]
            lines += [f"  {'':<{width}}[{term.source}]"]
        return lines

    def html(self) -> str:
        terms = "".join(map(_opened, self.terms))
        return f"<details open><summary><b>{html.escape(self.title)}</b></summary>{terms}</details>"


def _opened(term: Term) -> str:
    name, value = html.escape(term.name), html.escape(value_in_unit(term))
    return (
        f'<details style="margin-left:1.5em"><summary>{name}: {value}</summary>'
        f'<div style="margin-left:1.5em">= {html.escape(term.formula)}<br>'
        f"<small>{html.escape(term.source)}</small></div></details>"
    )


def value_in_unit(term: Term) -> str:
    """Return a term's value with its unit, e.g. "1.6 GiB", "33.2 s" or "1,240 kWh"."""
    if term.unit == "bytes":
        return amounts.size(term.value)
    if term.unit == "seconds":
        return amounts.duration(term.value) if term.value >= 90 else f"{term.value:.3g} s"
    value = f"{term.value:,.0f}" if abs(term.value) >= 100 else f"{term.value:.3g}"
    return f"{value} {term.unit}".rstrip()


def why(
    config: RunConfig,
    parameters: Parameters,
    duration: DurationEstimate,
    disk: DiskEstimate,
    cost: CostEstimate,
    speed: Speed,
) -> Why:
    """Return the formulas of a plan's numbers by section; sections without known numbers are omitted."""
    memory = explain_memory(speed.setup)
    step = explain_step(speed.setup, speed.rates)
    sections = {
        "Model": _model(shape_of(config), parameters),
        "Batch": _batch(config, parameters),
        "Memory of the fullest rank": memory,
        "A step": [term for term in step if term.unit == "seconds"],
        "Traffic: what one rank sends in a step": [term for term in step if term.unit == "bytes"],
        "The run": _run(config, duration),
        "Cost": _cost(config, duration, cost),
        "Disk": _disk(config, disk),
    }
    found = {title: [term for term in terms if term.value] for title, terms in sections.items()}
    return Why(config.name, {title: terms for title, terms in found.items() if terms})


def _model(shape: Shape, parameters: Parameters) -> list[Term]:
    hidden, ffn, layers = shape.hidden_size, shape.ffn_hidden_size, shape.num_layers
    query, key, own = shape.query_width, shape.kv_width, shape.own_block
    matrices, attention_biases = 2 + shape.gated, shape.qkv_bias * (query + 2 * key) + shape.bias * hidden
    mlp_biases = shape.bias * ((1 + shape.gated) * ffn + hidden)
    formulas = {
        "word_embeddings": f"{shape.padded_vocab_size:,} padded vocabulary x {hidden:,} hidden",
        "position_embeddings": f"{shape.learned_positions:,} positions x {hidden:,} hidden",
        "attention": f"{layers} layers x ({hidden:,} x ({query:,} + 2 x {key:,}) query, key and value + "
        f"{query:,} x {hidden:,} projection{_biases(attention_biases)})",
        "mlp": f"{layers} layers x ({matrices} x {hidden:,} x {ffn:,}{_biases(mlp_biases)})"
        if own is None
        else f"{layers} layers x {own.on_rank(1):,} per block from layer(), minus attention and norms",
        "output_layer": f"{shape.padded_vocab_size:,} padded vocabulary x {hidden:,} hidden, untied",
        "layernorm": f"(2 x {layers} layers + 1) norms x {'' if shape.rmsnorm else '2 x '}{hidden:,}"
        + (
            f" + {layers} layers x {shape.head_norm_parameters:,} in head norms" if shape.qk_layernorm else ""
        ),
    }
    terms = [
        Term(part, count, "parameters", formulas[part], _SHAPE)
        for part, count in parameters.to_dict().items()
        if part in formulas
    ]
    weights = layers * (shape.attention_weights + shape.mlp_weights) + shape.output_weights
    flops = (
        f"6 x {weights:,} matrix weights + 12 x {layers} layers x {shape.seq_length:,} positions x {query:,}"
    )
    return [
        *terms,
        Term("FLOPs per token", model_flops(shape), "", flops, "nbtrain/config/arithmetic/flops.py"),
    ]


def _biases(count: int) -> str:
    return f" + {count:,} biases" if count else ""


def _batch(config: RunConfig, parameters: Parameters) -> list[Term]:
    batch, data = config.batch, config.parallel.data_parallel_size
    product = (
        f"{batch.global_batch_size:,} sequences x {config.model.seq_length:,} tokens, where "
        f"{batch.global_batch_size:,} = {batch.micro_batch_size} micro batch x {data} data parallel x "
        f"{config.accumulation_steps} accumulation"
    )
    ratio = f"{config.train_tokens:,} tokens / {parameters.total:,} parameters"
    steps = f"{config.train_tokens:,} tokens / {config.tokens_per_step:,} tokens per step, rounded up"
    if config.ramp is not None:
        steps += ", plus steps for the smaller batches of the ramp-up"
    here = "nbtrain/config/batch_schedule.py"
    return [
        Term("tokens a step", config.tokens_per_step, "tokens", product, here),
        Term("steps", config.scheduled_steps, "steps", steps, here),
        Term("tokens a parameter", config.train_tokens / parameters.total, "", ratio, _CHINCHILLA),
    ]


def _run(config: RunConfig, duration: DurationEstimate) -> list[Term]:
    if duration.seconds is None or duration.step is None:
        return []
    evaluation, one = config.evaluation, duration.step.seconds
    forward = f"{forward_seconds(duration.step):.3g} s"
    saves = shared_saves(config)
    waits = f"{amounts.counted(saves, 'checkpoint')} for which the run waits"
    if duration.saves_in_background:
        copies = "1 copy" if saves == 1 else f"{saves:,} copies"
        waits = f"{copies} to host memory, and the write of the last checkpoint"
    batches = "1 batch" if evaluation.eval_iters == 1 else f"{evaluation.eval_iters:,} batches"
    one_pass = f"{batches} x {forward} for a forward pass"
    interval = evaluation.eval_interval_steps
    every = "step" if interval == 1 else f"{interval:,} steps"
    often = "" if config.mode == "eval" else f"every {every}: "
    formulas = {
        "steps": f"{amounts.counted(config.train_steps, 'step')} x {one:.4g} s as planned",
        "validation": often + one_pass,
        "test": one_pass,
        "checkpoints": waits,
        "local checkpoints": f"{amounts.counted(local_saves(config), 'checkpoint')} on the nodes' disks",
    }
    terms = []
    for name, seconds in duration.parts.items():
        formula = formulas[name]
        if name == "steps" and abs(seconds - config.train_steps * one) > 0.005 * seconds:
            factor = seconds / (config.train_steps * one)
            formula += f" x {factor:.3g} ({'for the ramp-up' if config.ramp else duration.basis})"
        terms.append(Term(name, seconds, "seconds", formula, "nbtrain/planner/time/duration.py"))
    return terms


def _cost(config: RunConfig, duration: DurationEstimate, cost: CostEstimate) -> list[Term]:
    if not cost.device_hours or duration.seconds is None:
        return []
    devices = round(cost.device_hours * 3600 / duration.seconds)
    hours = f"{amounts.counted(devices, 'GPU')} x {duration.seconds / 3600:,.1f} h"
    terms = [Term("GPU hours", cost.device_hours, "hours", hours, "the planned time above")]
    if cost.price is not None:
        price = cost.price
        formula = f"{cost.device_hours:,.0f} GPU hours x {price.usual:.2f}"
        value = cost.device_hours * price.usual
        terms.append(Term("GPUs", value, price.currency, formula, f"{price.file}, {price.date}"))
    if cost.energy_kwh is not None:
        watts = cost.energy_kwh * 1000 / cost.device_hours / MACHINE_FACTOR / COOLING_FACTOR
        formula = (
            f"{cost.device_hours:,.0f} GPU hours x {watts:g} W x {MACHINE_FACTOR:g} for the machine x "
            f"{COOLING_FACTOR:g} for cooling"
        )
        terms.append(Term("energy", cost.energy_kwh, "kWh", formula, "nbtrain/planner/budget/cost.py"))
    return terms


def _disk(config: RunConfig, disk: DiskEstimate) -> list[Term]:
    if not disk.num_checkpoints:
        return []
    return [
        Term(
            "checkpoints",
            disk.checkpoints_bytes,
            "bytes",
            f"at most {disk.num_checkpoints} (keep_last {config.checkpoint.keep_last}, permanently kept "
            f"checkpoints, and the one being written) x {disk.checkpoint_bytes:,} bytes of weights, master "
            "weights and moments",
            "nbtrain/config/arithmetic/checkpoint_bytes.py",
        )
    ]
