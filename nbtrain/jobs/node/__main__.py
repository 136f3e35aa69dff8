"""Run the agent of one machine; a backend starts it: python -m nbtrain.jobs.node RUN_DIR JOB_ID --nodes N."""

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from nbtrain.base.errors import NbtrainError
from nbtrain.base.process.signals import hear_signals
from nbtrain.base.run_directory.jobstate import ACTIVE
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.jobs.machine import processes
from nbtrain.jobs.machine.node_address import node_number
from nbtrain.jobs.node.agent import Leaving, agent_of
from nbtrain.jobs.node.prepared import prepared


def main(arguments: list[str]) -> int:
    """Run the agent of one machine until the job has ended, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m nbtrain.jobs.node", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("job_id")
    parser.add_argument("--nodes", type=int, required=True, help="number of agents that the job has")
    parser.add_argument("--node", type=int, help="number of this agent, by default from the environment")
    parser.add_argument("--supervise", action="store_true", help="on node 0, also start the job's supervisor")
    options = parser.parse_args(arguments)
    leaving = Leaving().listen()
    try:
        job = JobDir(RunDir(options.run_dir), options.job_id)
        number = node_number(options.nodes) if options.node is None else options.node
        if not prepared(job, number, leaving):
            return 128 + signal.SIGTERM
        agent = agent_of(job, number)
        agent.in_pod = options.supervise
        agent.report()
        if options.supervise and number == 0:
            leaving.supervisor = start_supervisor(job)
        code = agent.run(leaving)
        if leaving.supervisor is not None:
            code = leaving.supervisor.wait()
        return pod_code(job, code) if options.supervise else code
    except (NbtrainError, ValueError, OSError) as error:
        print(f"nbtrain agent: {error}", file=sys.stderr, flush=True)
        return 1


def start_supervisor(job: JobDir) -> subprocess.Popen:
    """Start the job's supervisor next to this agent."""
    arguments = ("-m", "nbtrain.jobs.supervisor", "--foreground", str(job.run.path), job.job_id)
    return processes.start([sys.executable, *arguments], job.supervisor_log)


def pod_code(job: JobDir, code: int) -> int:
    """Return the exit code that the pod's operator sees.

    If the job continues, the code is 128 + SIGTERM instead of 0, so that the pod does not count as complete.
    """
    record = JobRecord.read(job.job_json)
    unfinished = record is not None and record.state in ACTIVE
    return 128 + signal.SIGTERM if unfinished and code == 0 else code


if __name__ == "__main__":
    hear_signals()
    sys.exit(main(sys.argv[1:]))
