"""Cost of measuring a node's resource usage: python tests/benchmarks/usage_cost.py

Starts sleeping processes with a job's marker, and measures the CPU time to read their usage and to write it.
"""

import os
import subprocess
import tempfile
import time
from pathlib import Path

from nbtrain.base.run_directory.usage_files import UsageWriter
from nbtrain.jobs.node.job_processes import YOUNG_SECONDS
from nbtrain.jobs.node.sampler import SAMPLE_SECONDS, NodeMeter

JOB = "20270101-000000-abcd"
LOOKS = 100


def measure(ranks: int, processes_per_rank: int) -> str:
    """Measure the cost for this many ranks and processes, and return a row for
    docs/evidence/benchmarks.md.
    """
    started = [
        subprocess.Popen(
            ["sleep", "600"], env={"PATH": os.environ["PATH"], "NBTRAIN_JOB": JOB, "RANK": str(rank)}
        )
        for rank in range(ranks)
        for _ in range(processes_per_rank)
    ]
    try:
        look = NodeMeter(JOB, range(ranks))
        time.sleep(YOUNG_SECONDS + 1)
        look.sample()
        with tempfile.TemporaryDirectory() as folder:
            writer = UsageWriter(Path(folder), 0)
            begin = time.process_time()
            samples = [look.sample() for _ in range(LOOKS)]
            middle = time.process_time()
            for sample in samples:
                writer.add(sample)
            end = time.process_time()
    finally:
        for process in started:
            process.kill()
            process.wait()
    looks, writes = (middle - begin) / LOOKS, (end - middle) / LOOKS
    share = (looks + writes) / SAMPLE_SECONDS
    times = f"{1e3 * looks:.1f} | {1e3 * writes:.2f} | {100 * share:.2f} %"
    return f"| {ranks} | {ranks * processes_per_rank} | {times} |"


if __name__ == "__main__":
    print("| ranks | processes | ms of a look | ms of writing | share of a core |")
    print("| --- | --- | --- | --- | --- |")
    for case in ((1, 2), (8, 6), (64, 4)):
        print(measure(*case), flush=True)
