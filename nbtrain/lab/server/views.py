"""The runs that this server looks at: one RunView each, so that each request reads only what is new."""

import functools

from nbtrain.base.errors import JobError
from nbtrain.base.rundir import RunDir
from nbtrain.base.workspace import display, output_root
from nbtrain.monitor.run_view import RunView

# A view holds the points of one run: about 100 bytes each.
MOST_VIEWS = 32


def view_of(name: str) -> RunView:
    """The view of a run under the output root. Raises JobError if there is no run of that name.

    A run that was deleted and made anew under its old name is another run.
    """
    run = RunDir.named(name)
    if (record := run.record()) is None:
        raise JobError(f"there is no run {name!r} under {display(output_root())}.")
    return _kept(str(run.path), record.get("run_id"))


@functools.lru_cache(MOST_VIEWS)
def _kept(folder: str, run_id: str | None) -> RunView:
    return RunView(RunDir(folder))
