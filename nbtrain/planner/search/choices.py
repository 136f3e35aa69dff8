"""Choose the vocabulary, size and length of a run on a text, by a scaling law for repeated text.

    text        refused if it has fewer than LEAST_TOKENS tokens in the smallest vocabulary
    size        if a size is requested: the preset, or the nearest size in SMALL
                on CPUs, or with a time limit: the size with the lowest predicted loss in the time available
                (predicted_loss)
                on GPUs: the largest size that gets USUAL_TOKENS tokens per parameter from at most MOST_EPOCHS
                passes over the text
    vocabulary  the largest in which no entry is too rare in the text, up to the number of entries that suits
                the size
    tokens      the minimum of MOST_EPOCHS passes, USUAL_TOKENS per parameter, and (for sizes in SMALL) the
                tokens that fit the time

docs/choosing.md explains the formulas.
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nbtrain.base.errors import ConfigError, DataError
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.devices import find_device, nearest_device_names
from nbtrain.config.arithmetic.parameters import count_parameters
from nbtrain.config.arithmetic.vocabulary import (
    SMALLEST,
    VocabularyFit,
    bytes_per_token,
    largest_seen,
    suited_to,
)
from nbtrain.config.arithmetic.warmup import warmup_tokens
from nbtrain.config.load import flatten, load
from nbtrain.config.names.presets import preset_run, size_of
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.schedule_section import UNITS
from nbtrain.planner.search.family import LINE
from nbtrain.planner.search.search import run_on, search
from nbtrain.planner.time.duration import estimate_duration

# The MLP is a SwiGLU whose width is 8/3 of the model's width, so that these models have as many parameters as
# with GPT-3's layers.
SMALL = ((2, 128), (4, 128), (4, 192), (4, 256), (6, 320), (6, 384), (8, 512), (10, 640), (12, 768))
"""(layers, width) of models that are smaller than the presets. Their heads have HEAD_SIZE channels."""
HEAD_SIZE = 64
SMALL_BASE = "gpt-tiny"
"""The run that SMALL models extend. Its recipe was measured with 3.5M to 14M parameters."""

CPU_MINUTES = 4.0
"""Minutes that a run on CPUs trains by default."""
MOST_CORES = 4
"""Maximum number of cores for a small model, which gains little from more cores."""
MOST_EPOCHS = 4
"""Largest number of passes over a text. Up to this number, a repeated pass is nearly as useful as new text.

The source is arXiv:2305.16264, section 5.
"""
USUAL_TOKENS = 20
"""Usual number of training tokens per parameter: arXiv:2203.15556."""
LEAST_TOKENS = 20_000
LEAST_DOCUMENTS = 10
GPT2_TOKEN_BYTES = 4.4
STEPS = 400
"""Number of steps that a schedule needs; the batch size is limited so that a run has this many or more."""
LEAST_STEPS = 20
WARMUP_FRACTION = 0.05
"""Fraction of a small model's run during which its learning rate rises."""
SPLITS = (("900,70,30", 34), ("8,1,1", LEAST_DOCUMENTS))
"""Values of data.split, each with the minimum number of documents that leaves none of its parts empty."""
TRAIN_SHARE = 0.9


@dataclass(frozen=True)
class Text:
    """Size and sources of a text, and the bytes per token that vocabularies of several sizes have on it."""

    words: str
    """Description of the text, such as "2.8 MiB of English in 559 documents"."""
    num_bytes: float
    documents: int
    fits: Sequence[VocabularyFit]
    sources: list[dict[str, Any]]

    def train_tokens(self, vocab_size: int) -> float:
        """Return the number of tokens in one pass over the training split, with a vocabulary of this size."""
        return TRAIN_SHARE * self.num_bytes / bytes_per_token(self.fits, vocab_size)


@dataclass(frozen=True)
class Hardware:
    """The hardware that the run will train on."""

    cores: int
    gpus: int = 0
    gpu_type: str | None = None
    gpus_per_node: int | None = None

    @property
    def words(self) -> str:
        if not self.gpus:
            return amounts.counted(self.used_cores, "CPU core")
        return f"{self.gpus} {self.gpu_type}"

    @property
    def used_cores(self) -> int:
        return min(self.cores, MOST_CORES)


@dataclass
class Choices:
    """A new run that extends the run `extends`: the fields that it sets, and the reasons for their values."""

    extends: str
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Chosen values as {section: {key: value}}, as in a run YAML."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Reasons for the chosen values, as {section: reason}."""
    notes: list[str] = field(default_factory=list)
    top: dict[str, Any] = field(default_factory=dict)
    """Values of top-level keys, such as init_from."""

    def put(self, section: str, reason: str, **values: Any) -> None:
        """Set values in a section, keep the section's other values, and record the reason if there is one."""
        self.settings[section] = {**self.settings.get(section, {}), **values}
        if reason:
            self.reasons[section] = reason

    @property
    def overrides(self) -> dict[str, Any]:
        """The chosen settings, in the form that nb.load accepts."""
        return {**self.top, **{section: dict(values) for section, values in self.settings.items()}}

    def config(self, name: str) -> RunConfig:
        """Return the run's configuration, unchecked."""
        return load(self.extends, {**self.overrides, "name": name}, check=False)


def choose(text: Text, hardware: Hardware, size: str | None = None, minutes: float | None = None) -> Choices:
    """Choose all settings that a run on a text needs.

    Raises:
        DataError: The text is too short.
        ConfigError: `size` or `minutes` is invalid, or the GPU is not known.
    """
    if minutes is not None and not 0 < minutes < 1e6:
        raise ConfigError(f"minutes = {minutes} must be more than 0 and less than 1,000,000.")
    _refuse_short(text)
    if hardware.gpus:
        _check_gpu(hardware)
    if size is not None and preset_run(size) is not None:
        if minutes is not None:
            raise ConfigError(
                f"minutes = {minutes:g} cannot be combined with size = {size}: the text decides how long a "
                "preset is trained. Omit one of the two, or set batch.max_steps in the new run."
            )
        return _of_preset(text, hardware, size)
    if size is not None and size_of(size) is None:
        raise ConfigError(f"size = {size!r} must be a parameter count, such as 3M or 125M.")
    if minutes is None and not hardware.gpus:
        minutes = CPU_MINUTES
    shapes = SMALL if size is None else (_nearest_shape(text, hardware, float(size_of(size) or 0)),)
    seconds = None if minutes is None else 60 * minutes
    tried = [_Candidate.of(text, hardware, *shape, seconds) for shape in shapes]
    if seconds is None:
        chosen = max(
            (one for one in tried if USUAL_TOKENS * one.parameters <= MOST_EPOCHS * one.unique_tokens),
            key=lambda one: one.parameters,
            default=tried[0],
        )
    else:
        chosen = min(tried, key=lambda one: one.loss)
    if size is None and chosen is tried[-1] and hardware.gpus and seconds is None:
        larger = _largest_preset(text)
        if larger is not None:
            return _of_preset(text, hardware, larger)
    return chosen.choices(minutes)


def predicted_loss(parameters: float, tokens: float, unique_tokens: float) -> float:
    """Return the loss that the data-constrained law predicts: arXiv:2305.16264, equations 5 and 6.

    Each pass after the first counts less, and so do parameters beyond the number that suits the unique
    tokens. The constants are from the paper's appendix A: E 1.87, A 521, B 1488, both powers 0.353,
    R*_D 15.4, R*_N 5.3.
    """
    power, most_repeats, most_excess = 0.353, 15.387743, 5.309743
    unique = min(tokens, unique_tokens)
    effective = unique * (1 + most_repeats * (1 - math.exp(-(tokens / unique - 1) / most_repeats)))
    suited = min(parameters, unique * (521 / 1488) ** (1 / power))
    useful = suited * (1 + most_excess * (1 - math.exp(-(parameters / suited - 1) / most_excess)))
    return 1.87 + 521 / useful**power + 1488 / effective**power


@dataclass(frozen=True)
class _Candidate:
    """A candidate small model for the text, and its predicted loss."""

    text: Text
    hardware: Hardware
    layers: int
    width: int
    vocab_size: int
    parameters: int
    unique_tokens: float
    tokens: float
    is_timed: bool
    """Whether the time limit or USUAL_TOKENS ends the training before MOST_EPOCHS passes."""
    config: RunConfig

    @classmethod
    def of(
        cls, text: Text, hardware: Hardware, layers: int, width: int, seconds: float | None
    ) -> "_Candidate":
        vocab_size = min(largest_seen(text.fits, text.num_bytes), _suited(layers, width))
        run = load(SMALL_BASE, _sections(hardware, layers, width, vocab_size), check=False)
        parameters, unique = count_parameters(run).total, text.train_tokens(vocab_size)
        tokens = MOST_EPOCHS * unique
        if seconds is not None:
            # Validations and checkpoints take a few percent of the time. `run` has the name of SMALL_BASE, so
            # the last job under that name is ignored: it trained another model.
            duration = estimate_duration(run, use_measured=not hardware.gpus, last_job=False)
            rate = duration.tokens_per_second or 0.0
            tokens = min(tokens, 0.95 * seconds * rate)
        else:
            tokens = min(tokens, USUAL_TOKENS * parameters)
        timed = tokens < 0.99 * MOST_EPOCHS * unique
        return cls(text, hardware, layers, width, vocab_size, parameters, unique, tokens, timed, run)

    @property
    def loss(self) -> float:
        # The law was fitted with GPT-2's tokens, so tokens are converted by the amount of text that they
        # hold.
        size = bytes_per_token(self.text.fits, self.vocab_size) / GPT2_TOKEN_BYTES
        return predicted_loss(self.parameters, size * self.tokens, size * self.unique_tokens)

    def choices(self, minutes: float | None) -> Choices:
        """Return the settings of the run that trains this model."""
        found = Choices(SMALL_BASE)
        _put_text(found, self.text, self.vocab_size)
        sections = _sections(self.hardware, self.layers, self.width, self.vocab_size)
        size = f"{amounts.count(self.parameters)} parameters"
        time = f"{minutes:g} {'minute' if minutes == 1 else 'minutes'}" if minutes else ""
        why = f"{size}: the lowest predicted loss in {time}" if time else size
        found.put("model", why, **sections["model"])
        sequence = sections["model"]["seq_length"]
        step = _batch_tokens(self.parameters, self.tokens)
        sequences = max(step // sequence, 1)
        tokens = _whole(self.tokens, sequences * sequence)
        epochs = tokens / self.unique_tokens
        passes = f"{epochs:.1f} passes over the text"
        limit = f"{passes}, as many as fit into {time}" if self.is_timed and time else passes
        ranks = max(self.hardware.gpus, 1)
        micro = max(sequences // ranks, 1)
        found.put(
            "batch",
            limit,
            micro_batch_size=micro,
            global_batch_size=micro * ranks,
            train_tokens=tokens,
        )
        _put_schedule(
            found, tokens, micro * ranks * sequence, micro * ranks, self.unique_tokens / TRAIN_SHARE, sequence
        )
        for section in ("precision", "parallel", "resources"):
            if section in sections:
                found.put(section, "", **sections[section])
        found.reasons["resources"] = f"planned for {self.hardware.words}"
        return found


def _sections(hardware: Hardware, layers: int, width: int, vocab_size: int) -> dict[str, dict[str, Any]]:
    """Return the sections, {section: {key: value}}, that change gpt-tiny to these sizes and this hardware."""
    sections: dict[str, dict[str, Any]] = {
        "model": {
            "num_layers": layers,
            "hidden_size": width,
            "num_attention_heads": width // HEAD_SIZE,
            "ffn_hidden_size": 64 * math.ceil(8 * width / (3 * 64)),
            "seq_length": 256 if width <= 256 else 512,
            "init_method_std": round(math.sqrt(1 / (3 * width)), 3),
        },
        "tokenizer": {"vocab_size": vocab_size},
    }
    if not hardware.gpus:
        sections["resources"] = {"device": "cpu", "cpus_per_node": hardware.used_cores}
        return sections
    device = find_device(hardware.gpu_type)
    per_node = hardware.gpus_per_node or min(hardware.gpus, 8)
    sections["resources"] = {
        "device": "gpu",
        "gpu_type": device.name if device else hardware.gpu_type,
        "nodes": max(hardware.gpus // per_node, 1),
        "gpus_per_node": per_node,
        "cpus_per_node": None,
    }
    sections["precision"] = {"dtype": "bf16" if device and device.peak("bf16") else "fp16"}
    sections["parallel"] = {"data_parallel_size": hardware.gpus, "zero_stage": 1}
    return sections


def _suited(layers: int, width: int) -> int:
    """Return the vocabulary size that suits a small model of this depth and width.

    Each layer has 12 width^2 parameters: 4 width^2 in attention and 8 width^2 in the MLP.
    """
    return suited_to(12 * layers * width**2, width)


def _nearest_shape(text: Text, hardware: Hardware, parameters: float) -> tuple[int, int]:
    shapes = {shape: _Candidate.of(text, hardware, *shape, None).parameters for shape in SMALL}
    return min(shapes, key=lambda shape: abs(math.log(shapes[shape] / parameters)))


def _largest_preset(text: Text) -> str | None:
    """Return the largest GPT-3 preset for which the text has enough tokens; None if no preset qualifies.

    A text has enough tokens if MOST_EPOCHS passes over it yield at least USUAL_TOKENS tokens per parameter.
    """
    vocab_size = largest_seen(text.fits, text.num_bytes)
    tokens = MOST_EPOCHS * text.train_tokens(vocab_size)
    fitting = [name for name in LINE if USUAL_TOKENS * float(size_of(name) or 0) <= tokens]
    return fitting[-1] if fitting else None


def _of_preset(text: Text, hardware: Hardware, size: str) -> Choices:
    """Choose the settings of a run that trains a preset's model on the text, with the preset's recipe.

    The length suits the text, and the layout is the best one on the GPUs.
    """
    base = load(str(preset_run(size)), check=False)
    if not hardware.gpus:
        raise ConfigError(
            f"size = {size} needs GPUs. Specify them, e.g. with --gpus 4 --gpu-type A100-80GB, or choose a "
            "size of at most 100M for CPUs."
        )
    vocab_size = min(largest_seen(text.fits, text.num_bytes), base.tokenizer.vocab_size)
    found = Choices(base.name)
    _put_text(found, text, vocab_size)
    parameters = count_parameters(load(base, {"tokenizer.vocab_size": vocab_size}, check=False)).total
    unique = text.train_tokens(vocab_size)
    tokens = min(MOST_EPOCHS * unique, USUAL_TOKENS * parameters)
    sequence = base.model.seq_length
    step = min(base.tokens_per_step, max(_batch_tokens(parameters, tokens), sequence * hardware.gpus))
    batch = max(step // sequence // hardware.gpus, 1) * hardware.gpus
    tokens = _whole(tokens, batch * sequence)
    if tokens < LEAST_STEPS * batch * sequence:
        raise DataError(
            f"{text.words} is too little text for {size} on {hardware.words}: it is enough for "
            f"{amounts.counted(tokens // (batch * sequence), 'step')} of {batch * sequence:,} tokens, but a "
            f"run needs at least {LEAST_STEPS} steps. Use fewer GPUs or a smaller size."
        )
    found.put(
        "batch",
        f"{tokens / unique:.1f} passes over the text, {tokens / parameters:.1f} tokens per parameter",
        global_batch_size=batch,
        train_tokens=tokens,
        **{
            f"train_{unit}": None for unit in UNITS if unit != "tokens" and base.batch.train_amount[0] == unit
        },
    )
    # The preset's resource settings are for other machines, so they are reset to the defaults.
    found.put("data", "", num_workers=1)
    found.put("resources", "", cpus_per_node=None, memory_per_node_bytes=None)
    _scale_schedule(found, base, tokens, batch * sequence)
    overrides = {**found.overrides, "batch.micro_batch_size": 1, "parallel.data_parallel_size": 1}
    on_hardware = run_on(base, hardware.gpus, hardware.gpus_per_node, hardware.gpu_type, overrides)
    result = search(on_hardware)
    if result.best is None:
        named = ["--gpus", str(hardware.gpus), "--gpu-type", str(hardware.gpu_type)]
        if hardware.gpus_per_node:
            named += ["--gpus-per-node", str(hardware.gpus_per_node)]
        command = shlex.join(["nbtrain", "search", size, *named])
        raise ConfigError(
            f"size = {size}: no layout of this model fits {hardware.words}. To see why, run `{command}`."
        )
    best = result.space.run(result.best.layout, check=False)
    _put_layout(found, best, base, hardware)
    if tokens < parameters:
        found.notes.append(
            f"The run trains on {tokens / parameters:.2f} tokens per parameter; {USUAL_TOKENS} are usual "
            f"(arXiv:2203.15556). This text is enough for a model with about "
            f"{amounts.count(MOST_EPOCHS * unique / USUAL_TOKENS)} parameters."
        )
    return found


def _scale_schedule(found: Choices, base: RunConfig, tokens: int, step: int) -> None:
    """Scale the preset's learning-rate schedule to `tokens`, and set the validation and save intervals.

    `step` is the number of tokens per step.
    """
    share = tokens / base.train_tokens
    given = base.lr_schedule.model_dump()
    scaled = {
        key: _whole(share * given[key], step) if key != "lr_decay_tokens" else tokens
        for key in ("lr_warmup_tokens", "lr_decay_tokens", "lr_wsd_decay_tokens")
        if given.get(key) is not None
    }
    found.put("lr_schedule", f"the schedule of {base.name}, scaled to this length", **scaled)
    _put_intervals(found, max(tokens // step, 1))


def _put_layout(found: Choices, best: RunConfig, base: RunConfig, hardware: Hardware) -> None:
    """Add the layout fields in which `best` differs from `base` to the choices."""
    before, now = dict(flatten(base.model_dump())), dict(flatten(best.model_dump()))
    for key, value in now.items():
        section, _, rest = key.partition(".")
        is_layout = section in ("parallel", "precision", "resources") or key == "batch.micro_batch_size"
        if is_layout and before.get(key, ...) != value:
            target = found.settings.setdefault(section, {})
            *parents, last = rest.split(".")
            for parent in parents:
                target = target.setdefault(parent, {})
            target[last] = value
    found.reasons["parallel"] = (
        f"the fastest layout that fits {hardware.words}; `nbtrain search` lists other layouts"
    )


def _put_text(found: Choices, text: Text, vocab_size: int) -> None:
    split = next(split for split, least in SPLITS if text.documents >= least)
    found.put("data", text.words, sources=text.sources, split=split)
    per_token = bytes_per_token(text.fits, vocab_size)
    found.put("tokenizer", f"about {per_token:.1f} bytes per token", vocab_size=vocab_size)


def _put_schedule(
    found: Choices, tokens: int, step: int, batch: int, all_tokens: float, sequence: int
) -> None:
    """Choose the warm-up, validations and checkpoints of a run that trains on `tokens` tokens.

    `step` is the number of tokens per step, `batch` the number of sequences per step, and `all_tokens` the
    number of tokens in all splits of the text.
    """
    steps = max(tokens // step, 1)
    warmup = warmup_tokens(tokens, step, WARMUP_FRACTION)
    found.put(
        "lr_schedule",
        f"warm-up of {warmup / tokens:.0%} of train_tokens",
        lr_warmup_tokens=_whole(warmup, step),
    )
    _put_intervals(found, steps)
    validation = 0.07 * all_tokens / sequence / batch
    found.put("evaluation", "", eval_iters=min(max(int(validation), 1), 8))


def _put_intervals(found: Choices, steps: int) -> None:
    """Set the intervals of validations and checkpoints.

    A run of up to 4,000 steps validates and saves four times, a longer run every 1,000 steps.
    """
    interval = min(max(math.ceil(steps / 4), 1), 1000)
    count = amounts.counted(math.ceil(steps / interval), "validation")
    found.put("evaluation", f"{count} in the run", eval_interval_steps=interval)
    found.put("checkpoint", "a checkpoint at each validation", save_interval_steps=interval)


def _batch_tokens(parameters: float, tokens: float) -> int:
    """Return the tokens per step: a power of two of at least 2,048, with at least STEPS steps if possible."""
    compute = 6 * parameters * tokens
    most = min(0.2920 * compute**0.3271, tokens / STEPS)  # arXiv:2401.02954, equation 1
    return 1 << max(11, int(math.log2(max(most, 1))))


def _whole(tokens: float, step: int) -> int:
    return max(int(tokens) // step, 1) * step


def _refuse_short(text: Text) -> None:
    tokens = text.train_tokens(SMALLEST)
    if tokens < LEAST_TOKENS:
        least = LEAST_TOKENS / tokens * text.num_bytes
        raise DataError(
            f"{text.words}: this text is too short to train a model on. It has about {tokens:,.0f} tokens "
            f"with a vocabulary of {SMALLEST}, and at least {LEAST_TOKENS:,} tokens are needed, which is "
            f"about {amounts.size(least)} of such text."
        )
    if text.documents < LEAST_DOCUMENTS:
        raise DataError(
            f"{text.words}: too few documents. Each document belongs to one of three splits (training, "
            f"validation or test), and at least {LEAST_DOCUMENTS} documents are needed to fill all three. "
            "Divide the records into smaller ones, or write the text to a .txt file, which is divided into "
            "documents automatically."
        )


def _check_gpu(hardware: Hardware) -> None:
    if find_device(hardware.gpu_type) is None:
        near = nearest_device_names(hardware.gpu_type or "")
        hint = f"Nearest: {', '.join(near[:3])}." if near else "Example: A100-80GB."
        raise ConfigError(f"gpu_type = {hardware.gpu_type!r} is not in the device table. {hint}")
