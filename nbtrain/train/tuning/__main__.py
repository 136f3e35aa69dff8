"""The program that DeepSpeed's autotuner starts on every rank: a trial or, after the tuning, the job itself.

    deepspeed --autotuning tune JOB_FOLDER/autotune.py RUN_DIR --deepspeed_config JOB_FOLDER/autotune.json
    deepspeed --autotuning run  ... --then python3 -m nbtrain.jobs.node RUN_DIR JOB_ID ...

For the training (mode run), DeepSpeed starts the best trial's command again. It passes the same JSON as
base64, in which the tuner is still enabled, so the process would measure once more instead of training. The
tuner's result file tells the two cases apart: the tuner removes it before the first trial, and writes it
before that last start.
"""

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence

from nbtrain.base import files
from nbtrain.base.errors import NbtrainError
from nbtrain.base.process.signals import hear_signals
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load, load_resolved, to_shown_yaml, to_yaml
from nbtrain.config.load.autotune import found_overrides, read_given

# Variables that the launcher sets or narrows down for one rank. They are removed, because the node's agent
# finds the GPUs and numbers its ranks itself.
OF_A_RANK = ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "RANK", "WORLD_SIZE", "LOCAL_SIZE")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="nbtrain.train.tuning", description=__doc__.partition("\n")[0])
    parser.add_argument("run_path")
    parser.add_argument(
        "--deepspeed_config", required=True, help="path of a JSON file, or its contents in base64"
    )
    parser.add_argument("--local_rank", help="set by DeepSpeed's launcher; the same number as LOCAL_RANK")
    parser.add_argument(
        "--then", nargs=argparse.REMAINDER, default=[], help="command that each node starts afterwards"
    )
    options = parser.parse_args(arguments)
    run = RunDir(options.run_path)
    verdict = _only_verdicts_on_stderr()
    try:
        if options.then and run.autotuning_optimum.exists():
            train(run, options.then)
            return 0
        config, given = load_resolved(run.config_yaml), read_given(options.deepspeed_config)
        # Importing torch takes seconds, so errors in the arguments are reported before the import.
        from nbtrain.train.tuning.trial import run_trial, trial_config

        with recorded(run):
            run_trial(run, trial_config(config, given))
    except Exception as error:
        known = isinstance(error, NbtrainError)
        words = f"{type(error).__name__}: {error}" if known else traceback.format_exc()
        os.write(verdict, f"{words}\n".encode())
        return getattr(error, "exit_code", 1)


@contextlib.contextmanager
def recorded(run: RunDir) -> Iterator[None]:
    """Record on rank 0 when a trial begins and ends. Trials occupy the devices, but no supervisor runs yet
    that could record this.
    """
    job = run.newest_job()
    if job is None or os.environ.get("RANK") != "0":
        yield
        return
    events = EventWriter(job, "tuner")
    events.write("trial", "a trial of DeepSpeed's autotuner begins", ended=False)
    try:
        yield
    finally:
        events.write("trial", "a trial of DeepSpeed's autotuner has ended", ended=True)


def train(run: RunDir, command: list[str]) -> None:
    """Replace this process by the node's agent, which trains with the tuner's result. Only the first rank of
    a node does so; the other ranks end.

    Rank 0 first changes the run's configuration, because the supervisor, which this rank starts, is the first
    to read it.
    """
    if os.environ["LOCAL_RANK"] != "0":
        return
    if os.environ["RANK"] == "0":
        config = load_resolved(run.config_yaml)
        if overrides := found_overrides(run, config):
            found = load(config, overrides)
            files.write_text(run.config_yaml, to_yaml(found))
            if job := run.newest_job():
                files.write_text(job.config_yaml, to_shown_yaml(found))
    environment = {name: value for name, value in os.environ.items() if name not in OF_A_RANK}
    # CROSS_RANK is the launcher's number of this machine, from 0.
    environment["NBTRAIN_NODE_RANK"] = os.environ["CROSS_RANK"]
    sys.stdout.flush()
    os.execvpe(command[0], command, environment)


def _only_verdicts_on_stderr() -> int:
    """Redirect stderr to stdout, and return a descriptor of the former stderr.

    The tuner treats a trial as failed if its stderr contains the word "error" anywhere, even in a warning.
    """
    sys.stderr.flush()
    verdict = os.dup(2)
    os.dup2(1, 2)
    return verdict


if __name__ == "__main__":
    hear_signals()
    sys.exit(main(sys.argv[1:]))
