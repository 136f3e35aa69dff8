"""The runs that this server looks at: one RunView each, so that each request reads only what is new."""

from collections import OrderedDict
from threading import Lock

from nbtrain.base.errors import JobError
from nbtrain.base.rundir import RunDir
from nbtrain.base.workspace import display, output_root
from nbtrain.monitor.run_view import RunView

# A view holds the points of one run: about 100 bytes each.
MOST_VIEWS = 32


class Views:
    """RunViews by run directory; the one unused for longest is dropped first. Any thread may ask."""

    def __init__(self) -> None:
        self._views: OrderedDict[tuple[str, str | None], RunView] = OrderedDict()
        self._lock = Lock()

    def get(self, name: str) -> RunView:
        """The view of a run under the output root. Raises JobError if there is no run of that name.

        A run that was deleted and made anew under its old name is another run.
        """
        run = RunDir.named(name)
        record = run.record()
        if record is None:
            raise JobError(f"there is no run {name!r} under {display(output_root())}.")
        key = (str(run.path), record.get("run_id"))
        with self._lock:
            view = self._views.setdefault(key, RunView(run))
            self._views.move_to_end(key)
            while len(self._views) > MOST_VIEWS:
                self._views.popitem(last=False)
        return view
