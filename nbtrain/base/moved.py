"""Names of modules that moved: an old import or `python -m` still works and says what to write instead.

`nbtrain/__init__.py` asks here only when Python finds no module of a name.
"""

import warnings
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

from nbtrain.base.table import rows

# Old package | new package | modules, as old=new if their own name changed.
_MOVED = """
nbtrain | nbtrain.base | addresses amounts errors files jobstate metrics parent_death progress rundir terminal
    topology workspace
nbtrain | nbtrain.cli | cli_checkpoint=checkpoint cli_data=data cli_twin=twin doctor notebook_runner
    workspace_init=init
nbtrain | nbtrain.lab | notebook_parameters=parameters
nbtrain.config | nbtrain.config | languages=data_section
nbtrain.config | nbtrain.config.arithmetic | batch devices flops lr_schedule parameters stages weight_decay
nbtrain.config | nbtrain.config.rules | check check_data=data check_layout=layout
    check_wording=wording check_zero=zero combinations
nbtrain.config | nbtrain.planner.lint | check_warnings=rules
nbtrain.config | nbtrain.proof | twin=shape
nbtrain.data | nbtrain.corpus | broken_records characters cleaning corpus dedup extract heap records sentences
    text_sample workers
nbtrain.data | nbtrain.corpus.tokenizer | prepare_tokenizer=prepare tokenizer tokenizer_exactness=exactness
    tokenizer_training=training
nbtrain.data | nbtrain.dataset | blend_files=blend dataset_files=files indexed indexed_writer merge repair
nbtrain.data | nbtrain.dataset.encode | encode=encoder encode_progress=progress shards=join
nbtrain.data | nbtrain.dataset.look | baselines browser card card_pictures contents duplicates inspect tables
nbtrain.data | nbtrain.dataset.prepare | inputs prepare prepare_dataset=dataset prepare_report=report
nbtrain.data | nbtrain.dataset.samples | gpt_blend gpt_dataset gpt_index index_files packed_dataset
    packed_index packing sample state
nbtrain.data.sources | nbtrain.corpus | optional
nbtrain.data.sources | nbtrain.corpus.sources | arrow base compression files folder hf_dataset instructions
    json_line jsonl mock parquet python_docs record_files templates text tokens wiki
nbtrain.data.wiki | nbtrain.corpus.wiki | download dump markup prefixes text_templates walker
nbtrain.generation | nbtrain.inference | __main__=generate decode=engine sampling
nbtrain.jobs | nbtrain.jobs | problem=obstacle
nbtrain.jobs | nbtrain.jobs.supervisor | attempt hang host_memory leftovers processes rank_wrapper reserve
    summary verdict
nbtrain.jobs | nbtrain.proof | fork_server=fork_client twin_folder=folder twin_report=report
nbtrain.jobs | nbtrain.monitor | registry=runs
nbtrain.jobs.twin | nbtrain.proof | folder fork_client prove report shape small_sections
nbtrain.lab.widgets | nbtrain.lab.form | draft
nbtrain.model | nbtrain.model | pipeline=gpt_pipe
nbtrain.monitor | nbtrain.base | nvml
nbtrain.planner | nbtrain.cli.reference | docs=pages docs_parallelism=parallelism
nbtrain.lab.server | nbtrain.lab.server | handlers=requests
nbtrain.server | nbtrain.lab.server | extension handlers=requests tensorboard_proxy views
nbtrain.train | nbtrain.checkpoint | certificate checkpoint=save checkpoint_manifest=manifest
    checkpoint_store=store checkpoint_writer=writer reshape universal
nbtrain.train | nbtrain.train | dataset_losses=batches exit_limits=requests outcome=attempt
    step_result=training_step
nbtrain.train | nbtrain.train.engine | optimizer pipeline_engine pipeline_timers=pipeline_engine plain_engine
    run_ahead
nbtrain.train | nbtrain.train.figures | communication metrics_writer perf=throughput report stragglers
    throughput time_split=throughput
nbtrain.train | nbtrain.train.health | collectives faults finite_weights heartbeat stability
nbtrain.train | nbtrain.train.profile | profile_picture=picture profile_summary=summary profiler
nbtrain.train | nbtrain.train.twin | fork_server twin_export=export
nbtrain.widgets | nbtrain.lab.form | draft
nbtrain.widgets | nbtrain.lab.widgets | data_browser launcher mime panel static tensorboard watched
"""
# Old module | where else its definitions went.
_SPLIT = """
nbtrain.config.twin | nbtrain.proof.small_sections
nbtrain.data.dataset_files | nbtrain.base.locks nbtrain.corpus.records nbtrain.dataset.manifest
    nbtrain.dataset.of_run
nbtrain.data.encode | nbtrain.dataset.encode.shard
nbtrain.data.gpt_dataset | nbtrain.dataset.samples.build
nbtrain.data.inputs | nbtrain.corpus.asked
nbtrain.data.prepare_dataset | nbtrain.base.progress
nbtrain.data.sources.instructions | nbtrain.corpus.sources.alpaca nbtrain.corpus.sources.chat
    nbtrain.corpus.sources.prompt_completion
nbtrain.data.sources.jsonl | nbtrain.corpus.sources.wikiextractor
nbtrain.data.tokenizer | nbtrain.corpus.tokenizer.folder
nbtrain.data.wiki.download | nbtrain.corpus.http nbtrain.corpus.partial_file
nbtrain.notebook_runner | nbtrain.cli.demo nbtrain.cli.jupyterlab
nbtrain.rundir | nbtrain.base.checkpoint_files nbtrain.base.events nbtrain.base.records
nbtrain.train.checkpoint | nbtrain.checkpoint.describe nbtrain.checkpoint.live_run nbtrain.checkpoint.load
    nbtrain.checkpoint.weights nbtrain.config.arithmetic.checkpoint_bytes
nbtrain.train.profile_summary | nbtrain.train.profile.trace
nbtrain.train.report | nbtrain.train.figures.alerts
nbtrain.train.stability | nbtrain.checkpoint.rollbacks nbtrain.train.health.discard
nbtrain.lab.server.handlers | nbtrain.lab.server.actions nbtrain.lab.server.jobs nbtrain.lab.server.logs
    nbtrain.lab.server.pages nbtrain.lab.server.runs
nbtrain.server.handlers | nbtrain.lab.server.actions nbtrain.lab.server.jobs nbtrain.lab.server.logs
    nbtrain.lab.server.pages nbtrain.lab.server.runs
"""
_PACKAGES = {
    "nbtrain.data": "nbtrain.dataset",
    "nbtrain.data.sources": "nbtrain.corpus.sources",
    "nbtrain.data.wiki": "nbtrain.corpus.wiki",
    "nbtrain.export": "nbtrain.checkpoint",
    "nbtrain.generation": "nbtrain.inference",
    "nbtrain.jobs.twin": "nbtrain.proof",
    "nbtrain.server": "nbtrain.lab.server",
    "nbtrain.widgets": "nbtrain.lab.widgets",
}

# What a notebook calls in place of an import from an old module.
PUBLIC = {
    "nbtrain.notebook_parameters": "nb.check_parameters and nb.load(run, overrides, source, dataset)",
    "nbtrain.data.baselines": "nb.baselines",
    "nbtrain.data.inspect": "nb.verify",
}


SPLIT = {old: new.split() for old, new in rows(_SPLIT)}
NEW_NAMES = dict(_PACKAGES)
"""{old name of a package or module: its new name}."""
for _old, _new, _modules in rows(_MOVED):
    for _before, _, _after in (module.partition("=") for module in _modules.split()):
        NEW_NAMES[f"{_old}.{_before}"] = f"{_new}.{_after or _before}"


class MovedModule(Loader):
    """Makes a module with an old name that hands on what its new modules define."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def exec_module(self, module: ModuleType) -> None:
        if self.old not in _PACKAGES:
            self.warn(stacklevel=3)
        targets = [self.new, *SPLIT.get(self.old, [])]

        def hand_on(name: str) -> Any:
            if self.old in _PACKAGES and not name.startswith("__"):
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
    new = NEW_NAMES.get(old)
    return ModuleSpec(old, MovedModule(old, new), is_package=old in _PACKAGES) if new else None
