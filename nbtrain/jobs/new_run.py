"""Choose a run for a user's text, and write its YAML: `nbtrain new NAME --text PATH...` and nb.new.

    corpus/survey/survey.py      determines the amount, kind and language of the text
    planner/search/choices.py    chooses vocabulary, model size and length; for examples, this module chooses
                                 a fine-tuning of an existing run
    planner/run_file.py          writes a YAML of at most 20 lines with a reason for each choice

The run YAML is complete: prepare, plan and submit accept its name.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError, DataError, NbtrainError
from nbtrain.base.findings import Finding
from nbtrain.base.printing.report import Code, Facts, Findings, InNotebook, Report, Result, Sentence
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.rundir import RunDir, run_names
from nbtrain.base.text import amounts
from nbtrain.base.workspace import MOST_NAME_CHARS, check_name, display, tokenizer_dir, valid_name
from nbtrain.config.load import find, load, load_resolved
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.survey.survey import Survey, survey
from nbtrain.corpus.tokenizer.sizes import fits_of
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.jobs.machine.device_needs import machine_of_run
from nbtrain.jobs.machine.machine import Machine
from nbtrain.planner.run_file import commented_text, target_of, write_text
from nbtrain.planner.search.choices import SMALL_BASE, Choices, Hardware, Text, choose
from nbtrain.planner.time.duration import estimate_duration

FINE_TUNING_EPOCHS = 3
"""Number of passes over the examples; arXiv:2310.16944, section 4.3, uses one to three."""
LEAST_STEPS = 100
LEAST_EXAMPLES = 20
"""Minimum number of examples. With fewer, the validation split, a tenth of them, would be too small."""
DEMO = "gpt-tiny"


@dataclass(frozen=True, repr=False)
class NewRun(Result):
    """A run for a user's text, shown as a list of choices when printed or at the end of a notebook cell."""

    name: str
    found: str
    """Description of the text, such as "2.8 MiB of English in 559 documents, 1 file"."""
    choices: Choices
    settings: dict[str, Any]
    """Settings in the YAML: every setting that differs from the YAML that it extends."""
    config: RunConfig
    text: str
    """Text of the run YAML."""
    path: Path | None = None
    """Path of the written YAML; None if it was not written."""
    notes: tuple[str, ...] = field(default=())
    before: tuple[str, ...] = ()
    """Commands that first train the run from which a fine-tuning starts; () if no such training is needed."""

    @property
    def next_commands(self) -> list[str]:
        name = shlex.quote(self.name)
        own = [f"nbtrain prepare {name}", f"nbtrain plan {name}", f"nbtrain submit {name}"]
        return [*self.before, *own]

    def as_report(self) -> Report:
        """Return the properties of the text, the choices, the notes, and in a notebook the YAML."""
        config = self.config
        duration = estimate_duration(config)
        time = amounts.duration(duration.seconds) if duration.seconds else "unknown"
        facts = {
            "text": self.found,
            "vocabulary": f"{config.tokenizer.vocab_size:,} entries",
            "model": self.choices.reasons.get("model") or f"the same as in {self.choices.extends}",
            "training": f"{amounts.count(config.train_tokens)} tokens, {config.train_steps:,} steps, {time}",
        }
        notes = Findings([Finding("note", "new", "", "", note) for note in self.notes])
        written = Sentence(f"{display(self.path)}: written." if self.path else "")
        return Report("", [Facts(facts), notes, written, InNotebook(Code(self.text))])


def new_run(
    name: str,
    texts: Sequence[str | Path],
    size: str | None = None,
    gpus: int | None = None,
    gpu_type: str | None = None,
    gpus_per_node: int | None = None,
    minutes: float | None = None,
    init_from: str | None = None,
) -> NewRun:
    """Survey a text and choose a run for it; nothing is written.

    `texts` are files, folders and patterns. Without `gpus`, the run is for this machine: for the GPUs that a
    job in its queue may get, or without GPUs for its cores and at most `minutes`, by default 4. `init_from`
    is the run from which a fine-tuning starts. Raises DataError if the text cannot be read or is too short,
    and ConfigError if the settings break a rule.
    """
    check_name(name, "name")
    found = survey(texts)
    before: tuple[str, ...] = ()
    hardware = _hardware(gpus, gpu_type, gpus_per_node)
    if found.is_fine_tuning:
        if size is not None:
            raise ConfigError(
                "--size chooses a model to train from scratch, but these are fine-tuning examples. Omit "
                "--size; to choose the run to start from, use --init-from."
            )
        choices, before = _fine_tuning(name, found, init_from)
    else:
        if init_from is not None:
            raise ConfigError(
                "--init-from names the run from which a fine-tuning starts, but "
                f"{found.sources[0]['path']} is plain text. Omit --init-from."
            )
        text = Text(found.words(), found.num_bytes, found.documents, fits_of(found.sample), found.sources)
        choices = choose(text, hardware, size, minutes)
    config = load(choices.extends, {"name": name, **choices.overrides})
    head = f"Made by `nbtrain new {name}`; docs/choosing.md says how each number was chosen."
    settings = _changed(choices)
    written = commented_text(name, choices.extends, settings, choices.reasons, head)
    notes = (*found.notes, *choices.notes)
    return NewRun(name, found.words(), choices, settings, config, written, None, notes, before)


def write_new_run(
    name: str,
    texts: Sequence[str | Path],
    path: str | Path | None = None,
    overwrite: bool = False,
    **options: Any,
) -> NewRun:
    """Choose a run as new_run() does, and write its YAML to `path`, by default NAME.yaml in this folder."""
    check_name(name, "name")
    target = target_of(f"{name}.yaml" if path is None else path, overwrite, "--overwrite")
    made = new_run(name, texts, **options)
    write_text(target, made.text, made.config)
    return replace(made, path=target)


def name_for(path: Path) -> str:
    """Return a run name derived from the name of a file or folder; "my-run" if that gives no valid name."""
    stem = path.name.lower().partition(".")[0]
    name = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:MOST_NAME_CHARS].strip("-")
    return name if valid_name(name) else "my-run"


def _hardware(gpus: int | None, gpu_type: str | None, gpus_per_node: int | None) -> Hardware:
    here, cores = _machine("gpu").gpus, _machine("cpu").cores
    if gpus is None and gpu_type is None and here:
        return Hardware(cores, len(here), here[0].name, len(here))
    if gpus and gpu_type is None:
        if not here:
            raise ConfigError("gpus needs gpu_type (--gpu-type): which GPUs, such as A100-80GB.")
        gpu_type = here[0].name
    return Hardware(cores, gpus or (1 if gpu_type else 0), gpu_type, gpus_per_node)


def _machine(device: str) -> Machine:
    """Return this machine with the devices that a run in its queue may get."""
    return machine_of_run(load(SMALL_BASE, {"resources.device": device}, check=False))


def _changed(choices: Choices) -> dict[str, Any]:
    """Return the chosen settings that differ from the YAML that the new YAML extends."""
    base = load(choices.extends, check=False).model_dump()
    found: dict[str, Any] = dict(choices.top)
    for section, values in choices.settings.items():
        own = {key: value for key, value in values.items() if base[section].get(key) != value}
        if own:
            found[section] = own
    return found


# --- fine-tuning ------------------------------------------------------------------------------------


def _fine_tuning(name: str, found: Survey, init_from: str | None) -> tuple[Choices, tuple[str, ...]]:
    """Return the settings of a fine-tuning, and the commands that first train the run that it starts from.

    It starts from `init_from`, from the newest run that was trained from scratch, or from the demo.
    """
    if "preference" in found.kinds:
        raise DataError(
            f"{found.sources[0]['path']} contains pairs of answers for DPO. Write the run YAML yourself: it "
            "starts from a fine-tuned run and has a section `dpo`; see docs/preferences.md."
        )
    if found.documents < LEAST_EXAMPLES:
        raise DataError(
            f"{found.words()}: too few examples to fine-tune a model. Provide at least {LEAST_EXAMPLES}."
        )
    start, extends, base, is_there = _start(init_from)
    choices = Choices(extends)
    choices.reasons["extends"] = f"the model of {start}"
    if base.init_from is None:
        choices.top["init_from"] = start
        choices.reasons["init_from"] = "its newest checkpoint, and its tokenizer"
    choices.put("data", found.words(), sources=found.sources, packing="best_fit", split="90,10,0")
    sequence = base.model.seq_length
    per_token, longest = _measured(found, base)
    tokens = FINE_TUNING_EPOCHS * 0.9 * found.num_bytes / per_token
    ranks = max(base.parallel.data_axis_size, 1)
    batch = base.batch.global_batch_size
    while batch // 2 >= ranks and batch % (2 * ranks) == 0 and tokens < LEAST_STEPS * batch * sequence:
        batch //= 2
    step = batch * sequence
    whole = max(int(tokens) // step, 1) * step
    choices.put(
        "batch",
        f"{FINE_TUNING_EPOCHS} passes over the examples",
        micro_batch_size=min(base.batch.micro_batch_size, batch // ranks),
        global_batch_size=batch,
        train_tokens=whole,
    )
    if base.init_from is None:
        rate = base.lr_schedule.lr / 2
        choices.put("optimizer", "Muon does not train adapters", type="AdamW")
        choices.put(
            "lr_schedule",
            f"half the learning rate of {start}; warmup over a tenth of the run",
            lr=rate,
            min_lr=rate / 10,
            lr_warmup_tokens=max(whole // 10 // step, 1) * step,
        )
    interval = max(whole // step // 5, 1)
    choices.put("evaluation", "", eval_interval_steps=interval, eval_iters=1)
    choices.put(
        "checkpoint", "five checkpoints; the best one is kept", save_interval_steps=interval, keep_best=True
    )
    before: tuple[str, ...] = ()
    if not is_there:
        # A YAML in another folder can be found only by its path.
        named = start if init_from is None or valid_name(init_from) else shlex.quote(init_from)
        # The data of that run may not be prepared either; `prepare` keeps data that exists.
        before = (f"nbtrain prepare {named}", f"nbtrain submit {named} --wait")
        commands = " and ".join(f"`{command}`" for command in before)
        choices.notes.append(f"{start} has no checkpoint here yet: first run {commands} to train it.")
    if longest > sequence:
        choices.notes.append(
            f"examples have up to {longest:,} tokens, but sequences have {sequence:,}: longer examples are "
            "truncated."
        )
    return choices, before


def _start(init_from: str | None) -> tuple[str, str, RunConfig, bool]:
    """Return the run that the fine-tuning starts from.

    The result is (name of the run, what the new YAML `extends`, configuration of the run or its YAML, whether
    the run has a checkpoint).
    """
    if init_from is not None and not (valid_name(init_from) and RunDir.named(init_from).exists()):
        base = load(init_from, check=False)
        if base.init_from is None:
            start = base.name
            return start, init_from, base, newest_checkpoint_step(RunDir.named(start)) is not None
        return base.init_from, init_from, base, True
    if init_from is None:
        init_from = _newest_run() or DEMO
    run = RunDir.named(init_from)
    if not run.exists():
        return init_from, init_from, load(init_from, check=False), False
    trained = load_resolved(run.config_yaml)
    try:
        is_same = load(init_from, check=False).model == trained.model
    except NbtrainError:
        is_same = False
    # The run's YAML may have changed or be gone; then the new run extends the run's own configuration.
    extends = init_from if is_same and find(init_from) != run.config_yaml else display(run.config_yaml)
    return init_from, extends, trained, newest_checkpoint_step(run) is not None


def _newest_run() -> str | None:
    """Return the name of the run with the newest checkpoint among runs trained from scratch.

    Returns None if no such run has a checkpoint.
    """
    found = []
    for name in run_names():
        run = RunDir.named(name)
        try:
            if newest_checkpoint_step(run) is not None and load_resolved(run.config_yaml).init_from is None:
                found.append((run.model.stat().st_mtime, name))
        except (NbtrainError, OSError):
            continue
    return max(found)[1] if found else None


def _measured(found: Survey, base: RunConfig) -> tuple[float, int]:
    """Encode the sampled examples with the run's tokenizer; return (bytes per token, tokens in the longest).

    If the tokenizer is not prepared yet, return (a typical number of bytes per token, 0).
    """
    try:
        tokenizer = Tokenizer.load(tokenizer_dir(base.tokenizer.name))
    except DataError:
        usual = 4.0 if base.tokenizer.vocab_size > 16_384 else 2.5
        return usual, 0
    lengths = [len(tokenizer.encode(text)) for text in found.sample]
    return sum(len(text.encode()) for text in found.sample) / max(1, sum(lengths)), max(lengths, default=0)
