"""Training functions for the fork server in which a rank is interrupted or the checkpoint is copied."""

import os
import signal

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.train import __main__ as trainer
from nbtrain.train.build import Built
from nbtrain.train.health.heartbeat import HeartbeatWriter


def hit(path: str, number: int, rank: int, step: int, beats: int) -> int:
    """Train; rank `rank` sends itself the signal `number` in the middle of a step, `beats` heartbeats after
    the end of `step`.
    """
    beat, left = HeartbeatWriter.beat, [None]

    def counted(self, done=None):
        if done == step:
            left[0] = beats
        elif left[0] is not None:
            left[0] -= 1
        if left[0] == 0:
            left[0] = None
            os.kill(os.getpid(), number)
        return beat(self, done)

    if int(os.environ["RANK"]) == rank:
        HeartbeatWriter.beat = counted
    return trainer.main(path)


def killed_in_save(path: str, rank: int, step: int, file: int) -> int:
    """Train; at the save of `step`, `rank` is killed after writing its file number `file` and before renaming
    it into place.
    """
    replace, seen = os.replace, [0]

    def counted(source, target, **options):
        if f"global_step{step}{os.sep}" in os.fspath(target):
            seen[0] += 1
            if seen[0] == file:
                os.kill(os.getpid(), signal.SIGKILL)
        return replace(source, target, **options)

    if int(os.environ["RANK"]) == rank:
        os.replace = counted
    return trainer.main(path)


def reshaped(path: str, copy: str) -> int:
    """Train; the state that was loaded is first saved again in the run `copy`."""
    load = Built.load

    def load_and_save(self, *beat):
        load(self, *beat)
        live = self.saver.live
        own, live.run = live.run, RunDir(copy)
        self.saver.save(self.state)
        self.saver.finish()
        live.run = own

    Built.load = load_and_save
    return trainer.main(path)
