"""A forked rank with a failing disk: writing a checkpoint hangs, runs out of space, or is slow."""

import resource
import time
from pathlib import Path

from nbtrain.checkpoint.files import writer as checkpoint_writer
from nbtrain.train.__main__ import main as train_main


def main(path: str, what: str, step: int) -> int:
    """Train the run `path` with the fault `what`: "hang" or "full" for the checkpoint of `step`, or "slow"
    for all.
    """
    write_file = checkpoint_writer.write_file

    def failing(file: Path, state):
        if what == "slow":
            time.sleep(0.5)
        if what == "slow" or file.parent.name != f"global_step{step}":
            return write_file(file, state)
        if what == "hang":
            (file.parent / f".{file.name}.half.tmp").write_bytes(b"half")
            time.sleep(600)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, -1))
        return write_file(file, state)

    checkpoint_writer.write_file = failing
    return train_main(path)
