"""Forked ranks on separate nodes, where copying a checkpoint to the run directory may hang or a node's disk
may be full.
"""

import os
import resource
import time

from nbtrain.checkpoint import local_save
from nbtrain.checkpoint.files import writer as checkpoint_writer
from nbtrain.train.__main__ import main as train_main


def main(path: str, what: str = "", step: int = 0) -> int:
    """Train the run `path` with each rank on a separate node.

    With `what` = "hang", copying the checkpoint of `step` hangs; with "full", the disk of rank 1's node is
    full.
    """
    rank = os.environ["RANK"]
    os.environ["GROUP_RANK"] = rank
    copy_file, write_file = local_save.copy_file, checkpoint_writer.write_file

    def copying(source, target, expected, pace):
        if what == "hang" and target.parent.name == f"global_step{step}":
            target.with_name(f".{target.name}.half.tmp").write_bytes(b"half")
            time.sleep(600)
        copy_file(source, target, expected, pace)

    def writing(file, state):
        here = what == "full" and rank == "1" and file.parent.name == f"global_step{step}"
        if not here or "/local/1/" not in str(file):
            return write_file(file, state)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 10, -1))
        try:
            return write_file(file, state)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))

    local_save.copy_file, checkpoint_writer.write_file = copying, writing
    return train_main(path)
