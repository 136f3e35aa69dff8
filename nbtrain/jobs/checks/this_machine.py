"""Problems that can only be found on this machine, for `nbtrain check` and the form."""

from dataclasses import replace

from nbtrain.base.findings import Cost, Finding
from nbtrain.base.run_directory.records import host_name
from nbtrain.config.findings import finding_of
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.sources.source_check import source_problems
from nbtrain.corpus.tokenizer.markers import markers_sentence
from nbtrain.dataset.of_run import dataset_of
from nbtrain.jobs.machine.device_needs import more_than_is_here
from nbtrain.jobs.machine.hostfile import findings_of_hostfile
from nbtrain.jobs.machine.shared_memory import too_little_here


def findings_here(config: RunConfig) -> list[Finding]:
    """Return the problems with the run's hostfile, devices, shared memory, sources and special tokens."""
    found = [
        *findings_of_hostfile(config),
        *more_than_is_here(config),
    ]
    if config.backend.kind == "local":
        for finding in too_little_here(config, host_name()):
            found.append(replace(finding, rule="shared_memory_suffices"))
    if dataset_of(config).manifest() is None:
        cost = Cost(words="a prepare that fails")
        for problem in source_problems(config):
            found.append(finding_of(config, "source_is_there", "data.sources", *problem, cost))
    if (said := markers_sentence(config)) is not None:
        found.append(finding_of(config, "markers", "data.sources", *said))
    return found
