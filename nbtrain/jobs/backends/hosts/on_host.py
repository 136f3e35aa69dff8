"""Become a host's agent: python -m nbtrain.jobs.backends.hosts.on_host WORD.

DeepSpeed's launcher runs this. WORD names the job; launchers pass it through shells, which split or expand
anything but a single plain word. The agent reads everything else from the job's folder, which every host
sees.
"""

import base64
import json
import os
import sys
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import JobError
from nbtrain.base.process.signals import hear_signals
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.jobs.machine.node_address import node_number
from nbtrain.jobs.node.__main__ import main as be_the_agent

# Variables that DeepSpeed's launcher sets from the slots in its hostfile. They are removed, because an agent
# has one slot for all its GPUs.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def as_word(job: JobDir) -> str:
    """Encode the job as one word of letters, digits, - and _."""
    named = json.dumps([str(job.run.path), job.job_id])
    return base64.urlsafe_b64encode(named.encode()).decode().rstrip("=")


def job_of(word: str) -> JobDir:
    """Return the job that as_word() encoded."""
    run_dir, job_id = json.loads(base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)))
    return JobDir(RunDir(Path(run_dir)), job_id)


def order_path(job: JobDir) -> Path:
    """Return the path of the file that every agent reads at its start, with {nodes, folder, environment}."""
    return job.path / "control" / "agents.json"


def main(word: str) -> int:
    """Run the agent until the job has ended, and return its exit code.

    The agent writes to the node's log file, so it can log even if the connection breaks.
    """
    job = job_of(word)
    order = files.read_json(order_path(job))
    if order is None:
        raise JobError(f"{order_path(job)} does not exist. Every host must see the file under this path.")
    for name in VISIBLE:
        os.environ.pop(name, None)
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    number = node_number(order["nodes"])
    descriptor = os.open(job.node_log(number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    nodes = ["--nodes", str(order["nodes"]), "--node", str(number)]
    return be_the_agent([str(job.run.path), job.job_id, *nodes])


if __name__ == "__main__":
    hear_signals()
    try:
        sys.exit(main(sys.argv[1]))
    except (JobError, OSError) as error:
        sys.exit(f"nbtrain agent: {error}")
