"""nbtrain: from raw text to a trained, watched, generating GPT, without leaving JupyterLab.

    import nbtrain as nb

    nb.new(name, text)            a run YAML for your own text
    nb.load(run, overrides)       the checked configuration of a run
    nb.prepare(run)               text -> tokenizer -> .bin/.idx
    nb.baselines(run)             what a model must beat: unigram and bigram counts
    nb.data_card(data)            what is in a dataset, with pictures
    nb.verify(data)               every byte of a dataset, checked
    nb.import_run(file)           a run from another program's manifest, script or DeepSpeed JSON
    nb.import_model(dir, name)    a run that starts from a model, such as a Hugging Face folder
    nb.export(run, dir)           a run's model for transformers, vLLM, SGLang; to=...: Megatron flags
    nb.check(run)                 problems of a run, or of files of other programs
    nb.plan(run)                  parameters, memory, time, disk
    nb.calibrate()                measure this machine's speed, for later plans
    nb.plan_picture(run)          the plan as a figure
    nb.search(run, gpus)          every legal layout on some GPUs, ranked, with reasons; writes the YAML
    nb.what_if(run)               sliders that snap to legal layouts: fits, time, disk
    nb.largest(run, gpus)         the largest model and the longest sequence that fit
    nb.deepspeed_config(run)      the DeepSpeed configuration of a run
    nb.reproduce(run, steps)      some steps trained again, and compared bit for bit
    nb.twin(run)                  a small run of the same shape, on this machine's CPU
    nb.submit(run)                start or resume a run as a detached job
    nb.launch(run, mode)          submit or twin, for a notebook that runs unattended
    nb.launcher(run)              the launch form
    nb.runs(), nb.open_run(run)   find runs again, from any kernel
    nb.queue()                    jobs that hold or wait for this machine's GPUs and cores
    nb.sweep(file)                many settings of a run, planned, trained and compared
    nb.tensorboard(run)           the live TensorBoard panel
    nb.curves(run)                loss, perplexity, learning rate and throughput as a figure
    nb.scalars(run)               the newest value of everything that is measured
    nb.advise(run)                what to change after a failed or slow run; writes the YAML
    nb.generate(run, prompt)      text from the newest checkpoint
    nb.evaluate(run)              perplexity, bits per byte and scores on questions, stored with the run
    nb.serve(run)                 the model behind OpenAI's API, as long as this kernel runs
    nb.check_parameters()         refuse a parameter that the notebook does not have

A run is a YAML's path, an example's name, a preset (13B), a loaded configuration or a Run; `data` is a run or
a dataset.
Importing this package takes milliseconds: every name is imported when it is first used.
"""

# ruff: noqa: F405  (the type checker reads the names of __all__ from a star import)

from importlib import import_module
from typing import TYPE_CHECKING

from nbtrain.base.version import __version__  # noqa: F401

__all__ = [
    "advise",
    "baselines",
    "calibrate",
    "check",
    "check_parameters",
    "compare",
    "curves",
    "data_card",
    "deepspeed_config",
    "evaluate",
    "export",
    "export_run",
    "generate",
    "import_model",
    "import_run",
    "largest",
    "launch",
    "launcher",
    "load",
    "new",
    "open_run",
    "plan",
    "plan_picture",
    "prepare",
    "queue",
    "reproduce",
    "runs",
    "scalars",
    "search",
    "serve",
    "submit",
    "sweep",
    "tensorboard",
    "twin",
    "verify",
    "what_if",
]

if TYPE_CHECKING:
    from nbtrain.api.verbs import *  # noqa: F403


def __getattr__(name: str):
    if name in __all__:
        value = getattr(import_module("nbtrain.api.verbs"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'nbtrain' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
