"""Plan of a run: everything that can be computed before the run starts.

    plan(config) -> Plan      prints as tables, is shown as HTML in a notebook; to_dict() is plan.json
    needs_of(config)          only memory and disk, which decide whether the run can start

A plan includes the findings of RULES, which are defined in lint/.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from nbtrain.base.findings import Finding, by_cost
from nbtrain.base.printing.report import (
    Block,
    Facts,
    Findings,
    Fold,
    Headline,
    InNotebook,
    InText,
    Report,
    Result,
    record_of,
)
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.adapters import count_adapters
from nbtrain.config.arithmetic.flops import model_flops_per_token
from nbtrain.config.arithmetic.parameters import Parameters, count_parameters
from nbtrain.config.arithmetic.splits import has_test_split
from nbtrain.config.arithmetic.stages import stage_layers
from nbtrain.config.schema import ModelConfig, RunConfig
from nbtrain.dataset.blend import OpenBlend
from nbtrain.dataset.files import OpenDataset
from nbtrain.planner.budget.cost import CostEstimate, estimate_cost
from nbtrain.planner.budget.disk import DiskEstimate, estimate_disk
from nbtrain.planner.budget.interruptions import Interruptions, estimate_interruptions
from nbtrain.planner.budget.limits import Limit, limits_of
from nbtrain.planner.budget.wikipedias import TextEstimate, epochs_words
from nbtrain.planner.lint.layout import LAYOUT_RULES
from nbtrain.planner.lint.limits import LIMIT_RULES
from nbtrain.planner.lint.machine import MACHINE_RULES
from nbtrain.planner.lint.memory import MEMORY_RULES
from nbtrain.planner.lint.run_estimates import RunEstimates
from nbtrain.planner.lint.schedule import SCHEDULE_RULES
from nbtrain.planner.memory import MemoryEstimate, estimate, fit_rating, saving_of
from nbtrain.planner.memory.lora import USUAL_RANK, estimate_lora
from nbtrain.planner.second_opinion import second_opinion
from nbtrain.planner.setup.last_job import Comparison, compare
from nbtrain.planner.setup.last_job import rows as compared_rows
from nbtrain.planner.setup.setup import Setup, setup_of
from nbtrain.planner.time.duration import DurationEstimate, RestsOn, duration_at, rests_on
from nbtrain.planner.time.explain import traffic
from nbtrain.planner.time.network_use import NetworkUse, network_use
from nbtrain.planner.time.published_times import PublishedComparison, compare_published
from nbtrain.planner.time.rates import Speed, read_speed

if TYPE_CHECKING:
    from nbtrain.planner.why import Why

SCHEMA_VERSION = 1

RULES: tuple[Callable[[RunEstimates], Iterator[Finding]], ...] = (
    *MEMORY_RULES,
    *LAYOUT_RULES,
    *SCHEDULE_RULES,
    *MACHINE_RULES,
    *LIMIT_RULES,
)


def kinds_of_layers(model: ModelConfig) -> list[str]:
    """Return the ways in which a model differs from GPT-3, each as a few words, e.g. "RMSNorm"."""
    words = []
    if model.position_embedding_type == "rope":
        scaling = model.rope_scaling
        words.append("rotary positions" + (f" ({scaling.kind} x {scaling.factor:g})" if scaling else ""))
    words += ["RMSNorm"] if model.normalization == "RMSNorm" else []
    words += {"gelu": [], "swiglu": ["SwiGLU"], "squared_relu": ["squared ReLU"]}[model.activation]
    if not model.add_bias_linear:
        words.append("biases only in query, key and value" if model.add_qkv_bias else "no biases")
    if model.untie_embeddings_and_output_weights:
        words.append("untied output layer")
    return words


PREFERENCES = "DPO, with the reference's log-probabilities stored with the data instead of a second model"


@dataclass(frozen=True)
class Needs:
    """The setup of a run, and the memory and disk space that it needs."""

    setup: Setup
    memory: MemoryEstimate
    disk: DiskEstimate


@dataclass(frozen=True, repr=False)
class Plan(Result):
    """Parameters, tokens, memory, time and disk of one run."""

    config: RunConfig
    parameters: Parameters
    memory: MemoryEstimate
    duration: DurationEstimate
    disk: DiskEstimate
    epochs: float | None
    """Number of passes over the training split; None if the dataset is not prepared."""
    cost: CostEstimate
    """Device hours, money and energy."""
    speed: Speed
    """Setup and rates from which memory and time were estimated."""
    findings: list[Finding] = field(default_factory=list)
    """Findings about the run, most expensive first."""
    compared: list[Comparison] = field(default_factory=list)
    """Comparison of the run's last job with the plan; empty if no job with the same setup has run."""
    limits: list[Limit] = field(default_factory=list)
    """Limits of the run and of its workspace, with the planned amounts."""
    text: TextEstimate | None = None
    """Estimated training tokens of Wikipedia editions that are not prepared yet; None for other data."""
    network: NetworkUse | None = None
    """Traffic between machines in a step; None on one machine, or if the device's rates are unknown."""
    interruptions: Interruptions | None = None
    """Expected failures and lost spot machines, and their cost.

    None if estimate_interruptions() returns None.
    """
    rests_on: RestsOn | None = None
    """Measurement on which the planned time is based; None if the time is unknown."""
    published: PublishedComparison | None = None
    """Comparison with the published time of the same run; None if no such run was published."""

    @property
    def warnings(self) -> list[str]:
        """Texts of the errors and warnings, without notes."""
        return [finding.text for finding in self.findings if finding.level != "note"]

    @property
    def fits(self) -> bool | None:
        """Whether the run fits the device's memory; None if that is unknown."""
        return self.memory.fits

    @property
    def headline(self) -> dict[str, str]:
        """The main results: whether the run fits (`kind`: good, tight or bad), its time and disk space."""
        _, fits, kind = fit_rating(self.memory)
        seconds = self.duration.seconds
        return {
            "fits": fits,
            "kind": kind,
            "time": amounts.duration(seconds) if seconds is not None else "not known",
            "disk": amounts.size(self.disk.total_bytes),
        }

    @property
    def batch_equation(self) -> str:
        """Tokens per step as an equation, e.g. "4 micro batch x ... x 2,048 = 16,384 tokens per step"."""
        config = self.config
        data = config.parallel.data_parallel_size
        return (
            f"{config.batch.micro_batch_size} micro batch x {data} data parallel x "
            f"{config.accumulation_steps} accumulation x {config.model.seq_length} tokens = "
            f"{config.tokens_per_step:,} tokens per step"
        )

    @property
    def job_limits(self) -> str:
        """Limits at which a job stops by itself, e.g. "stops after 60 minutes"; "" if there are no limits."""
        batch, limits = self.config.batch, []
        if batch.exit_interval_steps is not None:
            limits.append(
                "after every step"
                if batch.exit_interval_steps == 1
                else f"at every multiple of {batch.exit_interval_steps:,} steps"
            )
        if batch.exit_duration_minutes is not None:
            limits.append(
                "after 1 minute"
                if batch.exit_duration_minutes == 1
                else f"after {batch.exit_duration_minutes:g} minutes"
            )
        return f"stops {' and '.join(limits)}" if limits else ""

    @property
    def learning_rate(self) -> str:
        """The learning-rate schedule as text, e.g. "0.0006 after a warm-up of 1M tokens, then constant"."""
        config, schedule = self.config, self.config.lr_schedule
        warmup, wsd = config.lr_warmup_tokens, config.lr_wsd_decay_tokens
        words = f"{schedule.lr:g}"
        if warmup:
            words += f" after a warm-up of {amounts.count(warmup)} tokens"
        if schedule.lr_decay_style == "constant":
            return f"{words}, then constant"
        style: str = schedule.lr_decay_style
        if wsd is not None:
            style += f" ({schedule.lr_wsd_decay_style} over the last {amounts.count(wsd)})"
        end = amounts.count(config.lr_decay_tokens)
        return f"{words}, then {style} to {schedule.min_lr:g} at {end} tokens"

    @property
    def layout(self) -> str:
        """The layout as text: the sizes of each kind of parallelism, the ZeRO stage and the number format."""
        parallel, precision = self.config.parallel, self.config.precision
        product = (
            f"data({parallel.data_parallel_size}) * pipeline({parallel.pipeline_parallel_size}) * "
            f"tensor({parallel.tensor_parallel_size})"
        )
        if parallel.sequence_ranks > 1:
            product += f" * sequence({parallel.sequence_ranks})"
        processes = "1 process" if self.config.world_size == 1 else f"{self.config.world_size} processes"
        words = [f"{product} = {processes}", f"ZeRO {parallel.zero_stage}"]
        cast, fp8 = " autocast" * precision.autocast, " with FP8" * precision.fp8
        words.append(f"{precision.dtype}{cast}{fp8}")
        if parallel.sequence_parallel:
            words.append("sequence parallelism")
        return ", ".join(words)

    @property
    def stages(self) -> str:
        """Layers of each pipeline stage as text, e.g. "6 + 6 layers"."""
        return " + ".join(str(layers) for layers in stage_layers(self.config)) + " layers"

    def sections(self) -> dict[str, dict[str, str]]:
        """Return the tables of the plan, {title: {row: value}}, for its text, its HTML and the form."""
        config, memory, duration, disk = self.config, self.memory, self.duration, self.disk
        model, batch, parameters = config.model, config.batch, self.parameters
        steps = f"{config.train_steps:,}"
        if config.shortened_by:
            steps += f" of {config.scheduled_steps:,} ({config.shortened_by})"
        if config.mode == "eval":
            batches = config.evaluation.eval_iters
            count = "1 batch" if batches == 1 else f"{batches:,} batches"
            steps = f"none (mode: eval); {count} of validation data"
            steps += f" and {count} of test data" if has_test_split(config.data.split) else ""
        layers, heads = amounts.counted(model.num_layers, "layer"), f"{model.num_attention_heads} heads"
        shape = ", ".join([layers, f"hidden {model.hidden_size}", heads, *kinds_of_layers(model)])
        adapters = count_adapters(config)
        frozen = "frozen weights"
        if config.lora is not None and config.lora.load_in_4bit:
            frozen = f"frozen 4-bit weights ({config.lora.bnb_4bit_quant_type})"
        size = {
            "model": shape,
            "parameters": f"{parameters.total:,} ({amounts.count(parameters.total)})",
            **{f"  {part.replace('_', ' ')}": f"{value:,}" for part, value in parameters.to_dict().items()},
            **({"adapters": f"{adapters:,} parameters, trained next to {frozen}"} if adapters else {}),
            **({"preferences": PREFERENCES} if config.dpo is not None else {}),
            "vocabulary": f"{config.tokenizer.vocab_size:,}, padded to {config.padded_vocab_size:,}",
        }
        training = {
            "tokens": f"{config.train_tokens:,} ({amounts.count(config.train_tokens)})",
            "batch": self.batch_equation,
            "steps": steps,
        }
        if ramp := batch.rampup:
            growth = f"in increments of {ramp.batch_size_increment} over {ramp.ramp_samples:,} samples"
            training["ramp-up"] = f"from {ramp.start_batch_size} sequences {growth}"
        if batch.step_batch_size_schedule is not None:
            training["ramp-up"] = f"{batch.step_batch_size_schedule} (tokens:sequences)"
        if self.job_limits:
            training["a job"] = self.job_limits
        training |= {"learning rate": self.learning_rate, "layout": self.layout}
        if config.parallel.pipeline_parallel_size > 1:
            training["stages"] = self.stages
        flops = amounts.count(model_flops_per_token(config))
        training["FLOPs per token"] = f"{flops}, forward and backward"
        training["epochs"] = "not known, because the data are not prepared"
        if self.text is not None:
            training["epochs"] = epochs_words(self.text, config.train_tokens)
        if self.epochs is not None and disk.dataset is not None:
            prepared = disk.dataset
            training["epochs"] = (
                f"{self.epochs:,.2f}; the training split has {prepared.train_tokens:,} of the dataset's "
                f"{prepared.tokens:,} tokens ({amounts.counted(prepared.documents, 'document')}, counted in "
                f"{prepared.basis})"
            )
        where = f" (pipeline stage {memory.stage})" if config.parallel.pipeline_parallel_size > 1 else ""
        memory_rows = {
            f"one {config.resources.device} rank": amounts.size(memory.total_bytes) + where,
            **{f"  {_words(part)}": amounts.size(value) for part, value in memory.parts.items() if value},
            "device memory": self._device_line(),
        }
        if memory.total_host_bytes:
            host = (f"{_words(part)} {amounts.size(n)}" for part, n in memory.host_parts.items() if n)
            memory_rows["host memory"] = (
                f"{amounts.size(memory.total_host_bytes)} per rank ({', '.join(host)})"
            )
        if opinion := second_opinion(self.speed.setup, memory):
            states = f"{amounts.size(opinion.device_bytes)} of model states by DeepSpeed's formula"
            memory_rows["DeepSpeed"] = f"{states}, {amounts.size(opinion.planned_device_bytes)} in this plan"
        if memory.fits is False and config.lora is None:
            lora = amounts.size(estimate_lora(self.speed.setup, USUAL_RANK).total_bytes)
            memory_rows["LoRA"] = (
                f"{lora} per rank with LoRA adapters of rank {USUAL_RANK} next to frozen weights (lora, "
                "init_from)"
            )
        if memory.nvme_bytes:
            memory_rows["NVMe"] = f"{amounts.size(memory.nvme_bytes)} per rank"
        seconds, rate, dataset = duration.seconds, duration.tokens_per_second, disk.dataset_bytes
        saving = saving_of(config, memory)
        time_rows = {
            "time": amounts.duration(seconds) if seconds is not None else "unknown",
            **{f"  {part}": amounts.duration(part_seconds) for part, part_seconds in duration.parts.items()},
            "rate": f"{rate:,.0f} tokens/s" if rate else "unknown",
            "basis": duration.basis,
        }
        if self.rests_on is not None:
            time_rows["rests on"] = self.rests_on.words
        if self.published is not None:
            time_rows["upstream"] = self.published.words
        disk_rows = {
            "checkpoint": amounts.size(disk.checkpoint_bytes),
            "checkpoints": f"at most {disk.num_checkpoints}: {amounts.size(disk.checkpoints_bytes)}",
            **({"saves": saving.words} if saving.words else {}),
            **({"on each node": amounts.size(disk.local_bytes)} if disk.local_bytes else {}),
            "dataset": amounts.size(dataset) if dataset is not None else "not prepared yet",
        }
        if sent := traffic(self.speed.setup):
            by_kind = (f"{term.name.partition(' / ')[2]} {amounts.size(round(term.value))}" for term in sent)
            time_rows["traffic"] = f"sent by one rank per step: {', '.join(by_kind)}"
        time_rows.update(self.cost.rows())
        titles = ("Model", "Training", "Memory", "Time", "Disk")
        made = dict(zip(titles, (size, training, memory_rows, time_rows, disk_rows)))
        if self.limits:
            made["Limits"] = {limit.key.replace("_", " "): limit.words for limit in self.limits}
        if self.network is not None:
            made["Network"] = self.network.rows()
        if self.interruptions is not None:
            made["Interruptions"] = self.interruptions.rows()
        return made | ({"Last job": compared_rows(self.compared)} if self.compared else {})

    def why(self) -> "Why":
        """Explain every number of the plan: its formula with the numbers filled in, and its source."""
        from nbtrain.planner.why import why

        return why(self.config, self.parameters, self.duration, self.disk, self.cost, self.speed)

    def as_report(self) -> Report:
        """Return a report with the main results, the findings and all numbers.

        In a notebook, the report also has the formulas of the numbers. The findings are placed where readers
        look first: at the end of text, and at the beginning of HTML.
        """
        headline, findings = self.headline, Findings(self.findings, "Findings")
        kinds = {"fits": headline["kind"]}
        words = [(name, headline[name], kinds.get(name, "")) for name in ("fits", "time", "disk")]
        facts = [Facts(rows, title) for title, rows in self.sections().items()]
        formulas = Fold("Why: every formula", lambda: self.why().as_report().blocks)
        blocks: list[Block] = [Headline(words), InNotebook(findings), *facts, InText(findings), formulas]
        return Report(f"Plan of {self.config.name}", blocks)

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of plan.json."""
        config = self.config
        return {
            "schema_version": SCHEMA_VERSION,
            "name": config.name,
            "parameters": {**self.parameters.to_dict(), "total": self.parameters.total},
            **{key: getattr(config, key) for key in ("train_tokens", "tokens_per_step", "train_steps")},
            **{key: getattr(config, key) for key in ("scheduled_steps", "world_size")},
            "model_flops_per_token": model_flops_per_token(config),
            "memory": record_of(self.memory, "total_bytes", "fits", "total_host_bytes", "fits_host"),
            "duration": asdict(self.duration),
            "rests_on": self.rests_on.to_dict() if self.rests_on else None,
            "published": self.published.to_dict() if self.published else None,
            "disk": record_of(self.disk, "checkpoints_bytes", "total_bytes"),
            "saving": asdict(saving_of(config, self.memory)),
            "cost": {**asdict(self.cost), "money": self.cost.money},
            "limits": [asdict(limit) for limit in self.limits],
            "network": self.network.to_dict() if self.network else None,
            "interruptions": self.interruptions.to_dict() if self.interruptions else None,
            "measured": [asdict(one) for one in self.compared],
            "epochs": self.epochs,
            "estimated_epochs": list(self.text.epochs(config.train_tokens)) if self.text else None,
            "warnings": self.warnings,
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def _device_line(self) -> str:
        memory = self.memory
        if memory.device_bytes is None:
            return f"{memory.device}; set resources.gpu_type"
        verdict = "fits" if memory.fits else "does not fit"
        return f"{amounts.size(memory.device_bytes)} ({memory.device}): {verdict}"


def _words(part: str) -> str:
    """Return the name of a memory part for readers, e.g. "master copy" for master_copy."""
    return part.replace("_", " ")


def needs_of(config: RunConfig, dataset: OpenDataset | OpenBlend | None = None) -> Needs:
    """Estimate the memory and disk space of a run.

    `dataset` is the run's prepared data, if the caller has opened it.
    """
    setup = setup_of(config)
    return Needs(setup, estimate(setup), estimate_disk(config, dataset))


def findings_of(estimates: RunEstimates) -> list[Finding]:
    """Return the findings about a run that passed the rules of config/rules/, most expensive first."""
    return by_cost(finding for rule in RULES for finding in rule(estimates))


def plan(config: RunConfig, use_measured: bool = True, needs: Needs | None = None) -> Plan:
    """Plan a checked configuration.

    A prepared dataset and an earlier job make the plan more exact. `needs` is the run's memory and disk
    space, if the caller has already estimated them.
    """
    needs = needs or needs_of(config)
    memory, disk = needs.memory, needs.disk
    speed = read_speed(config, use_measured, setup=needs.setup)
    duration = duration_at(config, speed)
    cost = estimate_cost(config, duration.seconds)
    network = network_use(speed.setup, speed.rates) if config.resources.nodes > 1 else None
    interruptions = estimate_interruptions(config, duration, disk, cost)
    estimates = RunEstimates(config, memory, duration, disk, cost, speed, network, interruptions)
    step = duration.step.seconds if duration.step else None
    return Plan(
        config=config,
        parameters=count_parameters(config),
        memory=memory,
        duration=duration,
        disk=disk,
        epochs=estimates.epochs,
        cost=cost,
        speed=speed,
        findings=findings_of(estimates),
        compared=compare(config, speed.last_job, step, memory.total_bytes, duration.bubble_fraction),
        limits=limits_of(config, cost, duration, disk, estimates.epochs, estimates.least_epochs),
        text=estimates.text,
        network=network,
        interruptions=interruptions,
        rests_on=rests_on(speed),
        published=compare_published(config, speed, duration),
    )
