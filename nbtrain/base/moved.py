"""Names of modules that moved: an old import or `python -m` still works and says what to write instead.

`nbtrain/__init__.py` asks here only when Python finds no module of a name.
"""

import warnings
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

# (old package, new package): modules that kept their own name.
MOVED = {
    ("nbtrain", "nbtrain.base"): (
        "addresses amounts errors files jobstate metrics parent_death progress rundir "
        "terminal topology workspace"
    ),
    ("nbtrain.monitor", "nbtrain.base"): "nvml",
    ("nbtrain", "nbtrain.cli"): "doctor notebook_runner",
    (
        "nbtrain.config",
        "nbtrain.config.arithmetic",
    ): "batch devices flops lr_schedule parameters stages weight_decay",
    ("nbtrain.config", "nbtrain.config.rules"): "check combinations",
    ("nbtrain.data", "nbtrain.corpus"): (
        "broken_records characters cleaning corpus dedup extract heap records sentences text_sample workers"
    ),
    ("nbtrain.data", "nbtrain.corpus.tokenizer"): "tokenizer",
    ("nbtrain.data", "nbtrain.dataset"): "indexed indexed_writer merge repair",
    (
        "nbtrain.data",
        "nbtrain.dataset.look",
    ): "baselines browser card card_pictures contents duplicates inspect tables",
    ("nbtrain.data", "nbtrain.dataset.prepare"): "inputs prepare",
    ("nbtrain.data", "nbtrain.dataset.samples"): (
        "gpt_blend gpt_dataset gpt_index index_files packed_dataset packed_index packing sample state"
    ),
    ("nbtrain.data.sources", "nbtrain.corpus.sources"): (
        "arrow base compression files folder hf_dataset instructions json_line jsonl "
        "mock optional parquet python_docs record_files templates text tokens wiki"
    ),
    ("nbtrain.data.wiki", "nbtrain.corpus.wiki"): "download dump markup prefixes text_templates walker",
    ("nbtrain.generation", "nbtrain.inference"): "decode sampling",
    ("nbtrain.jobs", "nbtrain.jobs.supervisor"): (
        "attempt hang host_memory leftovers processes rank_wrapper reserve summary verdict"
    ),
    ("nbtrain.server", "nbtrain.lab.server"): "extension handlers tensorboard_proxy views",
    ("nbtrain.train", "nbtrain.checkpoint"): "certificate reshape universal",
    (
        "nbtrain.train",
        "nbtrain.train.engine",
    ): "optimizer pipeline_engine pipeline_timers plain_engine run_ahead",
    (
        "nbtrain.train",
        "nbtrain.train.figures",
    ): "communication metrics_writer perf report stragglers throughput time_split",
    ("nbtrain.train", "nbtrain.train.health"): "collectives faults finite_weights heartbeat stability",
    ("nbtrain.train", "nbtrain.train.profile"): "profiler",
    ("nbtrain.train", "nbtrain.train.twin"): "fork_server",
    (
        "nbtrain.widgets",
        "nbtrain.lab.widgets",
    ): "data_browser draft launcher mime panel static tensorboard watched",
}

# Modules with another name.
RENAMED = {
    "nbtrain.cli_checkpoint": "nbtrain.cli.checkpoint",
    "nbtrain.cli_data": "nbtrain.cli.data",
    "nbtrain.cli_twin": "nbtrain.cli.twin",
    "nbtrain.config.check_data": "nbtrain.config.rules.data",
    "nbtrain.config.check_layout": "nbtrain.config.rules.layout",
    "nbtrain.config.check_warnings": "nbtrain.config.rules.warnings",
    "nbtrain.config.check_wording": "nbtrain.config.rules.wording",
    "nbtrain.config.check_zero": "nbtrain.config.rules.zero",
    "nbtrain.config.languages": "nbtrain.config.data_section",
    "nbtrain.config.twin": "nbtrain.jobs.twin.shape",
    "nbtrain.data.blend_files": "nbtrain.dataset.blend",
    "nbtrain.data.dataset_files": "nbtrain.dataset.files",
    "nbtrain.data.encode": "nbtrain.dataset.encode.encoder",
    "nbtrain.data.encode_progress": "nbtrain.dataset.encode.progress",
    "nbtrain.data.prepare_dataset": "nbtrain.dataset.prepare.dataset",
    "nbtrain.data.prepare_report": "nbtrain.dataset.prepare.report",
    "nbtrain.data.prepare_tokenizer": "nbtrain.corpus.tokenizer.prepare",
    "nbtrain.data.shards": "nbtrain.dataset.encode.join",
    "nbtrain.data.tokenizer_exactness": "nbtrain.corpus.tokenizer.exactness",
    "nbtrain.data.tokenizer_training": "nbtrain.corpus.tokenizer.training",
    "nbtrain.generation.__main__": "nbtrain.inference.generate",
    "nbtrain.jobs.fork_server": "nbtrain.jobs.twin.fork_client",
    "nbtrain.jobs.registry": "nbtrain.monitor.runs",
    "nbtrain.jobs.twin_folder": "nbtrain.jobs.twin.folder",
    "nbtrain.jobs.twin_report": "nbtrain.jobs.twin.report",
    "nbtrain.model.pipeline": "nbtrain.model.gpt_pipe",
    "nbtrain.notebook_parameters": "nbtrain.lab.parameters",
    "nbtrain.planner.docs": "nbtrain.cli.reference.pages",
    "nbtrain.planner.docs_parallelism": "nbtrain.cli.reference.parallelism",
    "nbtrain.jobs.problem": "nbtrain.jobs.obstacle",
    "nbtrain.train.checkpoint": "nbtrain.checkpoint.save",
    "nbtrain.train.dataset_losses": "nbtrain.train.batches",
    "nbtrain.train.exit_limits": "nbtrain.train.requests",
    "nbtrain.train.step_result": "nbtrain.train.training_step",
    "nbtrain.train.checkpoint_manifest": "nbtrain.checkpoint.manifest",
    "nbtrain.train.checkpoint_store": "nbtrain.checkpoint.store",
    "nbtrain.train.checkpoint_writer": "nbtrain.checkpoint.writer",
    "nbtrain.train.profile_picture": "nbtrain.train.profile.picture",
    "nbtrain.train.profile_summary": "nbtrain.train.profile.summary",
    "nbtrain.train.twin_export": "nbtrain.train.twin.export",
    "nbtrain.workspace_init": "nbtrain.cli.init",
    "nbtrain.data": "nbtrain.dataset",
    "nbtrain.data.sources": "nbtrain.corpus.sources",
    "nbtrain.data.wiki": "nbtrain.corpus.wiki",
    "nbtrain.export": "nbtrain.checkpoint",
    "nbtrain.generation": "nbtrain.inference",
    "nbtrain.server": "nbtrain.lab.server",
    "nbtrain.widgets": "nbtrain.lab.widgets",
}

# Where else the definitions of an old module went.
SPLIT = {
    "nbtrain.config.schema": (
        "nbtrain.config.parallel_section nbtrain.config.schedule_section nbtrain.config.watch_section"
    ),
    "nbtrain.config.twin": "nbtrain.jobs.twin.small_sections",
    "nbtrain.data.dataset_files": (
        "nbtrain.base.locks nbtrain.corpus.records nbtrain.dataset.manifest nbtrain.dataset.of_run"
    ),
    "nbtrain.data.encode": "nbtrain.dataset.encode.shard",
    "nbtrain.data.gpt_dataset": "nbtrain.dataset.samples.build",
    "nbtrain.data.inputs": "nbtrain.corpus.asked",
    "nbtrain.data.prepare_dataset": "nbtrain.base.progress",
    "nbtrain.data.sources.instructions": (
        "nbtrain.corpus.sources.alpaca nbtrain.corpus.sources.chat nbtrain.corpus.sources.prompt_completion"
    ),
    "nbtrain.data.sources.jsonl": "nbtrain.corpus.sources.wikiextractor",
    "nbtrain.data.tokenizer": "nbtrain.corpus.tokenizer.folder",
    "nbtrain.data.wiki.download": "nbtrain.corpus.http nbtrain.corpus.partial_file",
    "nbtrain.jobs.environment": "nbtrain.jobs.machine",
    "nbtrain.jobs.submit": "nbtrain.jobs.refusals",
    "nbtrain.monitor.run_view": "nbtrain.monitor.lines nbtrain.monitor.snapshot",
    "nbtrain.notebook_runner": "nbtrain.cli.demo nbtrain.cli.jupyterlab",
    "nbtrain.rundir": "nbtrain.base.checkpoint_files nbtrain.base.events nbtrain.base.records",
    "nbtrain.train.checkpoint": (
        "nbtrain.checkpoint.choose nbtrain.checkpoint.describe nbtrain.checkpoint.load "
        "nbtrain.checkpoint.state nbtrain.checkpoint.weights nbtrain.config.arithmetic.checkpoint_bytes"
    ),
    "nbtrain.train.profile_summary": "nbtrain.train.profile.intervals nbtrain.train.profile.trace",
    "nbtrain.train.report": "nbtrain.train.figures.alerts",
    "nbtrain.train.requests": "nbtrain.parallel.wishes",
    "nbtrain.train.stability": "nbtrain.checkpoint.rollbacks nbtrain.train.health.discard",
}

# What a notebook calls in place of an import from an old module.
PUBLIC = {
    "nbtrain.notebook_parameters": "nb.check_parameters and nb.load(run, overrides, source, dataset)",
    "nbtrain.data.baselines": "nb.baselines",
    "nbtrain.data.inspect": "nb.verify",
}

PACKAGES = {package for package, _ in MOVED} | {
    "nbtrain.data",
    "nbtrain.export",
    "nbtrain.generation",
    "nbtrain.server",
    "nbtrain.widgets",
}


def new_name(old: str) -> str | None:
    """The module that an old name stands for; None if no module had that name."""
    if old in RENAMED:
        return RENAMED[old]
    package, _, stem = old.rpartition(".")
    found = (new for (before, new), stems in MOVED.items() if before == package and stem in stems.split())
    return next((f"{new}.{stem}" for new in found), None)


class MovedModule(Loader):
    """Makes a module of an old name that hands on what its new modules define."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def exec_module(self, module: ModuleType) -> None:
        if self.old not in PACKAGES:
            self.warn(stacklevel=3)
        targets = [self.new, *SPLIT.get(self.old, "").split()]

        def hand_on(name: str) -> Any:
            if self.old in PACKAGES and not name.startswith("__"):
                # Said here and not at its import, which an import of a module inside it makes too.
                self.warn(stacklevel=3)
            for target in targets:
                if hasattr(found := import_module(target), name):
                    return getattr(found, name)
            raise AttributeError(f"module {self.old!r}, now {self.new}, has no attribute {name!r}")

        module.__getattr__ = hand_on  # type: ignore[method-assign]

    def warn(self, stacklevel: int) -> None:
        """One sentence that says what to write."""
        instead = f", or call {PUBLIC[self.old]}" if self.old in PUBLIC else ""
        warnings.warn(
            f"{self.old} is now {self.new}: change the import{instead}.", FutureWarning, stacklevel=stacklevel
        )

    def get_code(self, name: str) -> CodeType:
        """What `python -m OLD` runs."""
        source = (
            "import runpy, sys\n"
            f"print('python -m {self.old} is now python -m {self.new}', file=sys.stderr)\n"
            f"runpy.run_module({self.new!r}, run_name='__main__', alter_sys=True)\n"
        )
        return compile(source, self.old, "exec")


def find_spec(old: str) -> ModuleSpec | None:
    """How to import an old name; None if no module had that name."""
    new = new_name(old)
    if new is None:
        return None
    return ModuleSpec(old, MovedModule(old, new), is_package=old in PACKAGES)
