"""What stands against a run and only this machine knows, for `nbtrain check` and the form."""

import socket

from nbtrain.config.schema import RunConfig
from nbtrain.corpus.tokenizer.markers import markers_sentence
from nbtrain.jobs.backends.hosts.hostfile import findings_of_hostfile
from nbtrain.jobs.queue.needs import more_than_is_here
from nbtrain.jobs.shared_memory import shared_memory_findings
from nbtrain.planner.findings import Finding, finding_of


def findings_here(config: RunConfig) -> list[Finding]:
    """Return those about its hostfile, the devices and shared memory here, and its tokenizer's markers."""
    found = [
        *findings_of_hostfile(config),
        *more_than_is_here(config),
        *shared_memory_findings(config, socket.gethostname()),
    ]
    if (said := markers_sentence(config)) is not None:
        found.append(finding_of(config, "markers", "data.sources", *said))
    return found
