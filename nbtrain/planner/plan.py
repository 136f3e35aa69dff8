"""The plan of a run: everything that can be known before it starts.

plan(config) -> Plan      str(plan) is a table, in a notebook it is one in HTML, to_dict() is plan.json
"""

import html
from dataclasses import asdict, dataclass, field
from typing import Any

from nbtrain.base import amounts
from nbtrain.config.arithmetic.devices import GIB
from nbtrain.config.arithmetic.flops import model_flops_per_token
from nbtrain.config.arithmetic.parameters import Parameters, count_parameters
from nbtrain.config.arithmetic.stages import stage_layers
from nbtrain.config.rules.warnings import find_warnings
from nbtrain.config.schema import RunConfig
from nbtrain.planner.disk import DiskEstimate, estimate_disk
from nbtrain.planner.duration import DurationEstimate, estimate_duration
from nbtrain.planner.memory import MemoryEstimate, estimate_memory

SCHEMA_VERSION = 1

# More than four passes over the same text add little: arXiv:2305.16264, section 5.
USEFUL_EPOCHS = 4
# A plan above this share of the device is likely to fail: fragmentation is not estimated.
TIGHT_MEMORY_FRACTION = 0.9
LARGE_BUBBLE_FRACTION = 0.2


@dataclass(frozen=True)
class Plan:
    """Parameters, tokens, memory, time and disk of one run."""

    config: RunConfig
    parameters: Parameters
    memory: MemoryEstimate
    duration: DurationEstimate
    disk: DiskEstimate
    warnings: list[str] = field(default_factory=list)
    """What does not fit or will disappoint, in numbers."""

    @property
    def fits(self) -> bool | None:
        """Whether the device's memory suffices; None if it is not known."""
        return self.memory.fits

    @property
    def epochs(self) -> float | None:
        """Passes over the training split; None if the dataset is not prepared."""
        return epochs(self.config, self.disk.dataset_tokens)

    @property
    def batch_equation(self) -> str:
        """Tokens per step as an equation."""
        config = self.config
        data = config.parallel.data_parallel_size
        return (
            f"{config.batch.micro_batch_size} micro batch x {data} data parallel x "
            f"{config.accumulation_steps} accumulation x {config.model.seq_length} tokens = "
            f"{config.tokens_per_step:,} tokens a step"
        )

    @property
    def job_limits(self) -> str:
        """When a job of this run stops by itself; "" if it does not."""
        batch, limits = self.config.batch, []
        if batch.exit_interval_steps is not None:
            limits.append(f"at each step that {batch.exit_interval_steps:,} divides")
        if batch.exit_duration_minutes is not None:
            limits.append(f"after {batch.exit_duration_minutes:g} minutes")
        return f"stops {' and '.join(limits)}" if limits else ""

    @property
    def learning_rate(self) -> str:
        """The schedule of the learning rate in words."""
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
        """The layout as a product."""
        parallel, precision = self.config.parallel, self.config.precision
        product = (
            f"data({parallel.data_parallel_size}) * pipeline({parallel.pipeline_parallel_size}) * "
            f"tensor({parallel.tensor_parallel_size})"
        )
        if parallel.ds_sequence_parallel_size > 1:
            product += f" * sequence({parallel.ds_sequence_parallel_size})"
        words = [f"{product} = {self.config.world_size} processes", f"ZeRO {parallel.zero_stage}"]
        cast, fp8 = " autocast" * precision.autocast, " with FP8" * precision.fp8
        words.append(f"{precision.dtype}{cast}{fp8}")
        if parallel.sequence_parallel:
            words.append("sequence parallel")
        return ", ".join(words)

    @property
    def stages(self) -> str:
        """How many layers each pipeline stage holds."""
        return " + ".join(str(layers) for layers in stage_layers(self.config)) + " layers"

    def sections(self) -> dict[str, dict[str, str]]:
        """{title: {name of a row: value}}: the one source of the text and the HTML table."""
        config, memory, duration, disk = self.config, self.memory, self.duration, self.disk
        model, batch, parameters = config.model, config.batch, self.parameters
        steps = f"{config.train_steps:,}"
        if config.shortened_by:
            steps += f" of {config.scheduled_steps:,} ({config.shortened_by})"
        if config.mode == "eval":
            steps = f"none (mode: eval), {config.evaluation.eval_iters:,} batches of validation and of test"
        shape = f"{model.num_layers} layers, hidden {model.hidden_size}, {model.num_attention_heads} heads"
        size = {
            "model": shape,
            "parameters": f"{parameters.total:,} ({amounts.count(parameters.total)})",
            **{f"  {part.replace('_', ' ')}": f"{value:,}" for part, value in parameters.to_dict().items()},
            "vocabulary": f"{config.tokenizer.vocab_size:,}, padded to {config.padded_vocab_size:,}",
        }
        training = {
            "tokens": f"{config.train_tokens:,} ({amounts.count(config.train_tokens)})",
            "a step": self.batch_equation,
            "steps": steps,
        }
        if ramp := batch.rampup:
            growth = f"by {ramp.batch_size_increment} over {ramp.ramp_samples:,} samples"
            training["ramp-up"] = f"from {ramp.start_batch_size} {growth}"
        if batch.step_batch_size_schedule is not None:
            training["ramp-up"] = f"{batch.step_batch_size_schedule} (tokens:sequences)"
        if self.job_limits:
            training["a job"] = self.job_limits
        training |= {"learning rate": self.learning_rate, "layout": self.layout}
        if config.parallel.pipeline_parallel_size > 1:
            training["stages"] = self.stages
        flops = amounts.count(model_flops_per_token(config))
        training["FLOPs a token"] = f"{flops}, forward and backward"
        if self.epochs is not None:
            training["epochs"] = f"{self.epochs:.2f} over {disk.dataset_tokens:,} tokens in the dataset"
        where = f" (pipeline stage {memory.stage})" if config.parallel.pipeline_parallel_size > 1 else ""
        memory_rows = {
            f"one {config.resources.device} rank": amounts.size(memory.total_bytes) + where,
            **{f"  {part}": amounts.size(value) for part, value in memory.parts.items()},
            "device has": self._device_line(),
        }
        if memory.total_host_bytes:
            host = (f"{part} {amounts.size(size)}" for part, size in memory.host_parts.items() if size)
            memory_rows["host memory"] = f"{amounts.size(memory.total_host_bytes)} a rank ({', '.join(host)})"
        if memory.nvme_bytes:
            memory_rows["NVMe"] = f"{amounts.size(memory.nvme_bytes)} a rank"
        seconds, rate, dataset = duration.seconds, duration.tokens_per_second, disk.dataset_bytes
        time_rows = {
            "time": amounts.duration(seconds) if seconds is not None else "unknown",
            "rate": f"{rate:,.0f} tokens/s" if rate else "unknown",
            "basis": duration.basis,
        }
        disk_rows = {
            "checkpoint": amounts.size(disk.checkpoint_bytes),
            "checkpoints": f"{disk.num_checkpoints} at most: {amounts.size(disk.checkpoints_bytes)}",
            "dataset": amounts.size(dataset) if dataset is not None else "not prepared yet",
        }
        titles = ("Model", "Training", "Memory", "Time", "Disk")
        return dict(zip(titles, (size, training, memory_rows, time_rows, disk_rows)))

    def lines(self) -> list[str]:
        """The plan as text, one line per figure."""
        sections = self.sections()
        width = max(len(name) for rows in sections.values() for name in rows) + 2
        lines = [f"Plan of {self.config.name}"]
        for title, rows in sections.items():
            lines += ["", title, *(f"  {name:<{width}}{value}" for name, value in rows.items())]
        if self.warnings:
            lines += ["", "Warnings", *(f"  - {warning}" for warning in self.warnings)]
        return lines

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """IPython's plain text."""
        printer.text(str(self))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        rows = []
        left = 'style="text-align:left'
        for title, entries in self.sections().items():
            rows.append(f'<tr><th colspan="2" {left}">{html.escape(title)}</th></tr>')
            for name, value in entries.items():
                indent = 2.5 if name.startswith(" ") else 1
                cells = html.escape(name.strip()), html.escape(value)
                rows.append(
                    f'<tr><td {left};padding-left:{indent}em">{cells[0]}</td><td {left}">{cells[1]}</td></tr>'
                )
        warnings = "".join(f"<li>{html.escape(warning)}</li>" for warning in self.warnings)
        listed = f"<p><b>Warnings</b></p><ul>{warnings}</ul>" if warnings else ""
        return f"<p><b>Plan of {html.escape(self.config.name)}</b></p><table>{''.join(rows)}</table>{listed}"

    def to_dict(self) -> dict[str, Any]:
        """The content of plan.json."""
        config = self.config
        return {
            "schema_version": SCHEMA_VERSION,
            "name": config.name,
            "parameters": {**self.parameters.to_dict(), "total": self.parameters.total},
            **{key: getattr(config, key) for key in ("train_tokens", "tokens_per_step", "train_steps")},
            **{key: getattr(config, key) for key in ("scheduled_steps", "world_size")},
            "model_flops_per_token": model_flops_per_token(config),
            "memory": _record(self.memory, "total_bytes", "fits", "total_host_bytes", "fits_host"),
            "duration": asdict(self.duration),
            "disk": _record(self.disk, "checkpoints_bytes", "total_bytes"),
            "epochs": self.epochs,
            "warnings": list(self.warnings),
        }

    def _device_line(self) -> str:
        memory = self.memory
        if memory.device_bytes is None:
            return f"{memory.device}: set resources.gpu_type"
        verdict = "fits" if memory.fits else "does not fit"
        return f"{amounts.size(memory.device_bytes)} ({memory.device}): {verdict}"


def _record(estimate: MemoryEstimate | DiskEstimate, *properties: str) -> dict[str, Any]:
    return {**asdict(estimate), **{name: getattr(estimate, name) for name in properties}}


def plan(config: RunConfig, use_measured: bool = True) -> Plan:
    """The plan of a checked configuration; a prepared dataset and an earlier job make it more exact."""
    memory, disk = estimate_memory(config), estimate_disk(config)
    duration = estimate_duration(config, use_measured)
    warnings = [*find_warnings(config), *_device_memory_warnings(config, memory)]
    warnings += [*_host_memory_warnings(memory), *_run_warnings(config, duration, disk)]
    return Plan(config, count_parameters(config), memory, duration, disk, warnings)


def epochs(config: RunConfig, dataset_tokens: int | None) -> float | None:
    """Passes over the training split of a dataset."""
    if not dataset_tokens:
        return None
    sizes = [float(part) for part in config.data.split.split(",")]
    return config.train_tokens / (dataset_tokens * sizes[0] / sum(sizes))


def _host_memory_warnings(memory: MemoryEstimate) -> list[str]:
    if memory.fits_host is not False:
        return []
    assert memory.host_bytes is not None
    largest = max(memory.host_parts, key=lambda part: memory.host_parts[part])
    return [
        f"Host memory does not suffice: one rank needs {amounts.size(memory.total_host_bytes)} of it, and "
        f"its share of resources.memory_per_node_bytes is {amounts.size(memory.host_bytes)}. The "
        f"largest part is {largest}."
    ]


def _device_memory_warnings(config: RunConfig, memory: MemoryEstimate) -> list[str]:
    if memory.device_bytes is None:
        unknown = "The device is not known, so the plan cannot say whether the run fits"
        return [f"{unknown}: set resources.gpu_type."]
    if memory.total_bytes <= TIGHT_MEMORY_FRACTION * memory.device_bytes:
        return []
    verdict = "Fits with less than 10 % to spare" if memory.fits else "Does not fit"
    largest = max(memory.parts, key=lambda part: memory.parts[part])
    return [
        f"{verdict}: one rank needs {amounts.size(memory.total_bytes)}, {memory.device} has "
        f"{amounts.size(memory.device_bytes)}. The largest part is {largest}: {_remedy(config, largest)}."
    ]


def _remedy(config: RunConfig, part: str) -> str:
    parallel = config.parallel
    if part == "activations":
        full = parallel.activation_checkpointing.granularity == "none"
        recompute = "parallel.activation_checkpointing.granularity: full, or " if full else ""
        return f"set {recompute}a smaller batch.micro_batch_size"
    if part == "logits":
        return f"set a smaller model.cross_entropy_chunk_tokens ({config.model.cross_entropy_chunk_tokens})"
    if part == "workspace":
        return "set a smaller parallel.reduce_bucket_size, or overlap_comm: false"
    stage = {"optimizer": 1, "gradients": 2, "weights": 3}[part]
    allowed = 1 if parallel.pipeline_parallel_size > 1 else 3
    if parallel.data_axis_size > 1 and parallel.zero_stage < stage <= allowed:
        return f"set parallel.zero_stage: {stage}"
    cut = "cut the model among more ranks (data_parallel_size with ZeRO, tensor or pipeline)"
    offload = "offload_param" if part == "weights" else "offload_optimizer"
    if config.resources.device == "gpu" and getattr(parallel, offload).device == "none" and stage <= allowed:
        return f"set parallel.{offload}.device: cpu, or {cut}"
    return cut


def _run_warnings(config: RunConfig, duration: DurationEstimate, disk: DiskEstimate) -> list[str]:
    parallel, resources = config.parallel, config.resources
    warnings = []
    if duration.bubble_fraction > LARGE_BUBBLE_FRACTION:
        warnings.append(
            f"The pipeline waits {duration.bubble_fraction:.0%} of each step: {config.accumulation_steps} "
            f"micro batches for {parallel.pipeline_parallel_size} stages. A larger global_batch_size or a "
            "smaller micro_batch_size makes more micro batches."
        )
    if resources.device == "gpu" and parallel.tensor_parallel_size > resources.gpus_per_node:
        warnings.append(
            f"tensor_parallel_size({parallel.tensor_parallel_size}) reaches across nodes of "
            f"{resources.gpus_per_node} GPUs: every layer then waits for the network."
        )
    if parallel.fpdt_chunk_tokens or config.precision.fp8:
        unseen = "The effect of FPDT and FP8 is not estimated"
        warnings.append(f"{unseen}: memory and time are counted without them.")
    if config.lr_schedule.lr_decay_style != "constant" and config.lr_decay_tokens > config.train_tokens:
        warnings.append(
            f"min_lr is not reached: lr_decay_tokens({config.lr_decay_tokens:,}) is more than "
            f"train_tokens({config.train_tokens:,})."
        )
    passes = epochs(config, disk.dataset_tokens)
    if passes is not None and passes > USEFUL_EPOCHS:
        warnings.append(
            f"The run reads its training text {passes:.1f} times; more than {USEFUL_EPOCHS} add little "
            "(arXiv:2305.16264). Take more text or fewer train_tokens."
        )
    if disk.checkpoint_bytes > 10 * GIB and config.checkpoint.keep_last > 5:
        warnings.append(
            f"{disk.num_checkpoints} checkpoints of {amounts.size(disk.checkpoint_bytes)} stay on disk; "
            "checkpoint.keep_last says how many."
        )
    return warnings
