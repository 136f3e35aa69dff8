"""All verbs of nbtrain by group, with their modules and summaries, and the help screens made from them.

Nothing here imports a verb's module: `nbtrain help`, `nbtrain --version` and the completion of a verb's name
read only this table, and a command imports only its own verb's module.
"""

import difflib
from typing import NamedTuple

from nbtrain.base.text.terminal import folded


class Verb(NamedTuple):
    """A verb of the command line: the word after `nbtrain`."""

    name: str
    module: str
    """Module in nbtrain.cli whose add_verbs() builds the verb's parser."""
    summary: str
    """A sentence of at most SUMMARY_CHARS characters for the lists of verbs and the start of the verb's help.
    """
    aliases: tuple[str, ...] = ()
    """Other names of the verb, which users of LitGPT, Axolotl or a shell may know."""
    common: bool = False
    """Whether `nbtrain help` lists the verb. `nbtrain help all` lists all verbs."""


SUMMARY_CHARS = 55
"""Maximum number of characters of a summary, so that a line of `nbtrain help` fits 80 columns."""

GROUPS: dict[str, tuple[Verb, ...]] = {
    "start": (
        Verb("init", "planning", "Copy notebooks, example runs and documentation.", common=True),
        Verb("new", "planning", "Make a run YAML for your own text.", common=True),
        Verb("demo", "notebooks", "Train a small model, from raw text to samples.", common=True),
        Verb("doctor", "planning", "Check that this machine is ready.", common=True),
        Verb("lab", "notebooks", "Open JupyterLab on the notebooks.", common=True),
        Verb("notebook", "notebooks", "Run a notebook without JupyterLab."),
        Verb("import", "planning", "Make a run YAML from files of another program."),
        Verb("import-model", "models", "Make a run YAML that starts from a pretrained model."),
        Verb("completion", "completion", "Let the shell complete verbs, runs and keys."),
        Verb("help", "help", "Show the verbs, or the help of one verb."),
    ),
    "data": (
        Verb("prepare", "data", "Tokenize a run's text and write its dataset.", ("preprocess",), common=True),
        Verb("data", "data", "Inspect, verify, merge and repair datasets."),
    ),
    "plan": (
        Verb("check", "planning", "Check a run YAML without starting anything.", ("validate",)),
        Verb("plan", "planning", "Estimate a run's memory, time and disk space.", common=True),
        Verb("search", "layouts", "Rank every parallel layout of a run on some GPUs.", common=True),
        Verb("largest", "layouts", "Find the largest model that fits some GPUs."),
        Verb("twin", "twin", "Try out a run's layout with a tiny model on this CPU."),
        Verb("code", "code", "Show or start the file with a run's own functions."),
        Verb("calibrate", "planning", "Measure this machine's speed for its plans."),
        Verb("schema", "planning", "Print the JSON Schema of run YAMLs.", ("config-schema",)),
    ),
    "run": (
        Verb("submit", "runs", "Start a run as a background job.", ("train", "pretrain"), common=True),
        Verb("status", "runs", "Show a run's state, progress and last events.", common=True),
        Verb("logs", "runs", "Show a run's logs; -f follows them.", common=True),
        Verb("cancel", "runs", "Stop a run after it has saved a checkpoint.", ("stop",), common=True),
        Verb("resume", "runs", "Continue a run from its newest checkpoint.", common=True),
        Verb("runs", "runs", "List all runs and their states.", ("list",), common=True),
        Verb("job", "runs", "Show everything about a run's job."),
        Verb("wait", "runs", "Wait until a run's job has ended."),
        Verb("save", "runs", "Save a checkpoint now and continue training."),
        Verb("pause", "runs", "Save a checkpoint and release the devices."),
        Verb("clone", "runs", "Start a run with another run's settings."),
        Verb("queue", "runs", "Show which jobs use or await this machine's devices."),
        Verb("tensorboard", "tensorboard", "Show runs in TensorBoard."),
        Verb("advise", "planning", "Suggest changes after a failed or slow run."),
    ),
    "after": (
        Verb("generate", "serve", "Continue a prompt with a run's model.", ("inference",), common=True),
        Verb("chat", "chat", "Talk with a run's model in the terminal.", common=True),
        Verb("evaluate", "evaluate", "Measure perplexity and benchmark scores.", common=True),
        Verb("serve", "serve", "Serve a run's model to OpenAI clients.", common=True),
        Verb(
            "export",
            "models",
            "Write a run's model for other programs.",
            ("merge-lora", "merge_lora"),
            common=True,
        ),
        Verb("certify", "reproduce", "Show and verify what a run's numbers depend on."),
        Verb("reproduce", "reproduce", "Train some steps of a run again, and compare the bits."),
        Verb("sweep", "sweep", "Train a run with many settings; compare the results."),
        Verb("compare", "compare", "Compare settings, metrics and curves of runs."),
        Verb("curves", "runs", "Draw loss, learning rate and throughput."),
        Verb("profile", "runs", "Show the profiler's results for a run."),
    ),
    "housekeeping": (
        Verb("delete", "runs", "Delete a run with all its files.", common=True),
        Verb("checkpoint", "checkpoint", "List, inspect and verify a run's checkpoints."),
        Verb("clean", "runs", "Remove what failed attempts left behind."),
        Verb("archive", "runs", "Hide a run from the list of runs."),
        Verb("label", "runs", "Show or change a run's labels."),
        Verb("notes", "runs", "Show or replace a run's notes."),
    ),
}

VERBS = {verb.name: verb for verbs in GROUPS.values() for verb in verbs}
ALIASES = {alias: verb.name for verb in VERBS.values() for alias in verb.aliases}

FINETUNING = (
    "A fine-tuning run is a run whose YAML sets init_from: `nbtrain submit gpt-tiny-instructions` starts an "
    "example, and docs/finetuning.md explains how to write such a YAML."
)
FROM_THE_HUB = "`nbtrain import-model hf://ORGANIZATION/MODEL NAME` makes a run that starts from a model."
ELSEWHERE = {
    **dict.fromkeys(("finetune", "finetune_lora", "finetune_full", "finetune-lora", "sft"), FINETUNING),
    "download": f"{FROM_THE_HUB} `nbtrain data download RUN` downloads a run's text.",
    "fetch": "`nbtrain init DIR` copies the example runs.",
    **dict.fromkeys(("convert_to_litgpt", "convert_pretrained_checkpoint"), FROM_THE_HUB),
    "convert_from_litgpt": "`nbtrain export RUN` writes a model in Hugging Face format.",
    **dict.fromkeys(
        ("lm-eval", "lm_eval"), "`nbtrain evaluate RUN --harness TASK` runs tasks of lm-evaluation-harness."
    ),
    "vllm-serve": "`nbtrain serve RUN` serves a model; `nbtrain export RUN` writes it for vLLM.",
}
"""{LitGPT or Axolotl verb without a direct counterpart here: what to type instead}"""

RUN = (
    "RUN is a run YAML, an example's name (gpt-tiny), a preset (13B) or the name or folder of a run that was "
    "submitted."
)
EXIT_CODES = {
    0: "success",
    1: "doctor found an error, or a file could not be read or written",
    2: "wrong usage or settings, or check found that the run cannot work",
    3: "data is missing or damaged, or does not fit the run",
    4: "a checkpoint is missing or damaged, or does not fit the run",
    5: "the job or the run is in a state that does not allow the verb",
    6: "nothing was submitted",
    7: "the job failed or was stopped",
    8: "the loss became NaN or jumped",
    130: "interrupted",
}


def common_verbs() -> str:
    """Return the text of `nbtrain` and `nbtrain help`: the common verbs, in the order of their use."""
    shown = {group: [verb for verb in verbs if verb.common] for group, verbs in GROUPS.items()}
    verb_width = max(len(verb.name) for verbs in shown.values() for verb in verbs) + 2
    group_width = max(map(len, GROUPS)) + 2
    lines = ["nbtrain: from raw text to a trained GPT.    Usage: nbtrain VERB ...", ""]
    for group, verbs in shown.items():
        for verb in verbs:
            title = group if verb is verbs[0] else ""
            lines.append(f"{title:<{group_width}}{verb.name:<{verb_width}}{verb.summary}")
    more = len(VERBS) - sum(map(len, shown.values()))
    lines += [
        "",
        f"`nbtrain help VERB` explains a verb; `nbtrain help all` lists {more} more verbs.",
    ]
    return "\n".join(lines)


def all_verbs(columns: int = 80) -> str:
    """Return the text of `nbtrain help all`: every verb with its aliases, the meaning of RUN, exit codes.

    The meaning of RUN is folded at `columns`.
    """
    width = max(map(len, VERBS)) + 2
    lines = ["Usage: nbtrain VERB ...", "       nbtrain --version"]
    for group, verbs in GROUPS.items():
        lines += ["", group.capitalize()]
        for verb in verbs:
            also = f" Also: {', '.join(verb.aliases)}." if verb.aliases else ""
            lines.append(f"  {verb.name:<{width}}{verb.summary}{also}")
    lines += ["", folded(RUN, columns), "", "Exit codes"]
    return "\n".join([*lines, *(f"  {code:<5}{meaning}" for code, meaning in EXIT_CODES.items())])


def unknown_verb(word: str) -> str:
    """Return the error for an unknown verb: the verb that was probably meant, or how to list all verbs."""
    if instead := ELSEWHERE.get(word):
        return f"{word!r} is not a verb of nbtrain. {instead}"
    if word.endswith((".yaml", ".yml")):
        return f"{word!r} is a file: name a verb before it, for example `nbtrain submit {word}`."
    if near := difflib.get_close_matches(word, [*VERBS, *ALIASES], n=1):
        return f"{word!r} is not a verb of nbtrain. Did you mean `nbtrain {near[0]}`?"
    return f"{word!r} is not a verb of nbtrain. `nbtrain help all` lists all verbs."
