"""The model that a notebook generates with: loaded by the first call and kept for later calls.

The model is unloaded after ten minutes without a call and when this process ends. A call replaces it if the
call names another run, checkpoint or format, if a newer checkpoint has been saved, or if the run was deleted
and trained again under the same name. Only one model is kept, because two might not fit in memory.
"""

import atexit
import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.serving.engine_process import EngineProcess, Event, Loading

logger = logging.getLogger(__name__)

IDLE_SECONDS = 600.0


class Resident:
    """Holds the only engine of this process."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS):
        self.idle_seconds = idle_seconds
        self.engine: EngineProcess | None = None
        self._wanted: tuple[str | None, Loading] | None = None
        """Id of the run and options of the loaded model; None before the first load."""
        self._lock = threading.RLock()
        self._users = 0
        self._timer: threading.Timer | None = None

    def stream(self, loading: Loading, *requests: Mapping[str, Any]) -> Iterator[tuple[int, Event]]:
        """Yield the events of requests to the model described by `loading`, which is loaded if necessary."""
        with self.used(loading) as engine:
            yield from engine.stream(*requests)

    @contextlib.contextmanager
    def used(self, loading: Loading) -> Iterator[EngineProcess]:
        """Yield the engine described by `loading`, once ready. It stays loaded inside the `with` block."""
        with self._lock:
            engine = self._engine_of(loading)
            self._users += 1
            self._stop_timer()
        try:
            engine.wait_until_ready()
            yield engine
        finally:
            with self._lock:
                self._users -= 1
                if not engine.is_alive:
                    self._drop(engine)
                elif self._users == 0 and self.engine is engine:
                    self._timer = threading.Timer(self.idle_seconds, self._end_if_idle, [engine])
                    self._timer.daemon = True
                    self._timer.start()

    def _engine_of(self, loading: Loading) -> EngineProcess:
        # The run may have saved a newer checkpoint since the last call.
        run = RunDir(loading.run_dir)
        newest = newest_checkpoint_step(run)
        # A run that was deleted and trained again has the same folder and often the same steps.
        run_id = run.run_id
        wanted = run_id, replace(loading, step=newest) if loading.step is None else loading
        kept = self.engine
        if kept is not None and kept.is_alive and self._wanted == wanted:
            return kept
        self.close()
        # Pass `loading` without the step: the process skips incomplete checkpoints by itself.
        self.engine = EngineProcess(loading, note=logger.warning)
        self._wanted = wanted
        return self.engine

    def _end_if_idle(self, engine: EngineProcess) -> None:
        with self._lock:
            if self._users == 0:
                self._drop(engine)

    def _drop(self, engine: EngineProcess) -> None:
        if self.engine is engine:
            self.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Unload the model, if one is loaded."""
        with self._lock:
            self._stop_timer()
            if self.engine is not None:
                self.engine.close()
                self.engine = None


RESIDENT = Resident()
atexit.register(RESIDENT.close)
