"""The models that a server offers: one run's model, or the models of all runs, one loaded at a time."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base.errors import CheckpointError, ConfigError, JobError, NbtrainError
from nbtrain.base.run_directory.checkpoint_files import checkpoint_problem, newest_checkpoint_step
from nbtrain.base.run_directory.rundir import RunDir, run_names
from nbtrain.base.text.order import natural
from nbtrain.base.workspace import display, output_root, tokenizer_dir
from nbtrain.config.load import load_resolved
from nbtrain.serving.chat import ChatTemplate, NoTemplate, has_template, template_of
from nbtrain.serving.dispatch import Dispatcher, status_of
from nbtrain.serving.engine_process import Loading
from nbtrain.serving.metrics import Metrics
from nbtrain.serving.options import ServeOptions
from nbtrain.serving.refusals import Refusal, missing_parameter, unknown_model

POLL_SECONDS = 5.0


@dataclass
class Served:
    """A loaded model."""

    name: str
    """Id of the model in requests: the run's name, followed by "@STEP" if the request named a checkpoint."""
    step: int
    dispatcher: Dispatcher
    template: ChatTemplate
    ready: dict[str, Any]
    """The engine's description of the model (generate.py), and the origin of its chat template."""
    used: float = field(default_factory=time.monotonic)
    """Time of the last request or answer, on the monotonic clock."""
    newest: int = 0
    """The run's newest step when the model was loaded.

    It differs from `step` if that checkpoint was skipped as incomplete or an older one was requested.
    """
    run_id: str | None = None
    """Id of the run; it changes if the run is deleted and trained again under the same name."""

    @property
    def positions(self) -> int:
        """Maximum number of tokens in the prompt and the answer together."""
        return self.ready["positions"]


class Models:
    """The models of one server, of which at most one is loaded."""

    def __init__(self, options: ServeOptions, metrics: Metrics, say: Callable[[str], None]):
        self.options, self.metrics, self._say = options, metrics, say
        self.loaded: Served | None = None
        self.is_ending = False
        self._loading = asyncio.Lock()

    @property
    def is_single(self) -> bool:
        """Whether the server serves only one run, whose model then stays loaded."""
        return self.options.run is not None

    def names(self) -> dict[str, int]:
        """Return {name of a run: step of its checkpoint that is served by default}."""
        if self.is_single:
            return {self.loaded.name: self.loaded.step} if self.loaded is not None else {}
        found = {}
        for name in sorted(run_names(), key=natural):
            # A run whose checkpoints this user may not read cannot be served, and must not hide the others.
            with contextlib.suppress(PermissionError):
                if (step := newest_checkpoint_step(RunDir(output_root() / name))) is not None:
                    found[name] = step
        return found

    def checkpoints(self, name: str) -> list[int]:
        """Return the steps of a run's complete checkpoints, ascending, for ids of the form RUN@STEP.

        The list is empty if the server serves only one run.
        """
        if self.is_single:
            return []
        run = RunDir(output_root() / name)
        return [step for step in run.checkpoint_steps() if checkpoint_problem(run.checkpoint(step)) is None]

    def can_chat(self, name: str) -> bool:
        """Return whether a run has a chat template.

        Raises NbtrainError if its configuration cannot be read.
        """
        if self.loaded is not None and self.loaded.name == name:
            return not isinstance(self.loaded.template, NoTemplate)
        config = load_resolved(RunDir(output_root() / name).config_yaml)
        return has_template(config, self.options.chat_template, tokenizer_dir(config.tokenizer.name))

    async def get(self, name: str | None) -> Served:
        """Return the model that a request names, loaded; None means the loaded model.

        Raises Refusal if the model does not exist, cannot be loaded or is still loading.
        """
        if self.is_ending:
            raise Refusal(503, "the server is shutting down.", code="shutting_down")
        if self.is_single:
            served = self.loaded
            if served is None:
                raise Refusal(503, "the model is being loaded.", code="loading")
            if name is not None and name != served.name:
                raise unknown_model(name, f"This server offers only the model {served.name}.")
        else:
            served = await self._of_any(name)
        served.used = time.monotonic()
        return served

    async def _of_any(self, name: str | None) -> Served:
        async with self._loading:
            served = self.loaded
            if name is None and served is not None:
                # Check the loaded model as if the request had named it: its process may have ended.
                name = served.name
            known = self.names()
            run_name, _, step_text = (name or "").partition("@")
            if name is None or run_name not in known:
                listed = f"Runs with a checkpoint: {', '.join(known) or 'none yet'}."
                raise missing_parameter("model", listed) if name is None else unknown_model(name, listed)
            folder, step = output_root() / run_name, self._step(name, run_name, step_text)
            if served is not None:
                is_it = served.name == name and served.run_id == _run_id(RunDir(folder))
                # After a rollback, the newest checkpoint may be older than the loaded one.
                is_newest = step is not None or known[run_name] in (served.newest, served.step)
                is_it = is_it and (is_newest or served.dispatcher.is_busy)
                if is_it and not served.dispatcher.ended.is_set():
                    return served
                if served.dispatcher.is_busy:
                    raise Refusal(
                        503,
                        f"{served.name} is answering another request, and only one model can be loaded at a "
                        "time. Please try again once that request is answered.",
                        code="busy",
                    )
                await self._unload()
            try:
                served = await self.load(folder, step)
            except NbtrainError as error:
                raise Refusal(status_of(error), str(error), "model", "not_loaded") from None
            served.newest = known[run_name]
            return served

    def _step(self, name: str, run_name: str, text: str) -> int | None:
        """Return the step in RUN@STEP; None for RUN alone.

        Raises Refusal if that checkpoint does not exist.
        """
        if "@" not in name:
            return None
        # Each checkpoint has exactly one name: RUN@0100 is not accepted for RUN@100.
        steps = {str(step): step for step in self.checkpoints(run_name)}
        if text not in steps:
            listed = ", ".join(f"{run_name}@{step}" for step in steps)
            raise unknown_model(name, f"Checkpoints of {run_name}: {listed or 'none'}.")
        return steps[text]

    async def load(self, folder: Path, step: int | None = None) -> Served:
        """Load a run's model, by default from the newest checkpoint. Raises NbtrainError if that fails."""
        options, run = self.options, RunDir(folder)
        if not run.exists():
            raise JobError(f"{display(folder)} is not a run directory: it has no run.json.")
        run_id = _run_id(run)
        loading = Loading(
            str(folder),
            options.step if step is None else step,
            options.dtype,
            options.tensor_parallel_size,
            options.max_batch,
            options.threads,
        )
        dispatcher = Dispatcher(loading, options.max_queue, self.metrics)
        try:
            # Read the configuration while the process loads the model.
            config = load_resolved(run.config_yaml)
            ready = await dispatcher.wait_until_ready()
            folder_of_tokens = tokenizer_dir(config.tokenizer.name)
            template = template_of(config, options.chat_template, folder_of_tokens, ready["eod"])
        except (NbtrainError, OSError, asyncio.CancelledError):
            await dispatcher.close()
            raise
        ready = {**ready, "chat_template": template.origin}
        for note in dispatcher.notes:
            self._say(f"warning: {note}")
        name = run.name if step is None else f"{run.name}@{step}"
        self.loaded = Served(name, ready["step"], dispatcher, template, ready, run_id=run_id)
        self.metrics.loaded.set(1)
        return self.loaded

    async def unload_when_idle(self) -> None:
        """Unload the model whenever it has been idle for idle_seconds; runs as long as the server."""
        while True:
            await asyncio.sleep(min(POLL_SECONDS, self.options.idle_seconds / 2))
            served = self.loaded
            if self.is_single or served is None:
                continue
            if served.dispatcher.is_busy:
                served.used = time.monotonic()
                continue
            if time.monotonic() - served.used >= self.options.idle_seconds and not self._loading.locked():
                async with self._loading:
                    await self._unload()

    async def _unload(self) -> None:
        served, self.loaded = self.loaded, None
        self.metrics.loaded.set(0)
        if served is not None:
            await served.dispatcher.close()

    def end_answers(self) -> None:
        """Refuse new requests and end the running ones."""
        self.is_ending = True
        if self.loaded is not None:
            self.loaded.dispatcher.fail_all(
                Refusal(503, "the server is shutting down.", code="shutting_down")
            )

    async def close(self) -> None:
        """Refuse new requests and unload the model."""
        self.is_ending = True
        await self._unload()


def _run_id(run: RunDir) -> str | None:
    return run.run_id


def check_run(options: ServeOptions) -> None:
    """Check the run before anything is started.

    Raises CheckpointError if it has no complete checkpoint, and ConfigError if the template file is missing.
    """
    if options.run is None:
        return
    run = RunDir(options.run)
    if options.step is None and newest_checkpoint_step(run) is None:
        raise CheckpointError(f"{display(run.model)} contains no complete checkpoint. Train the run first.")
    if options.chat_template is not None and not Path(options.chat_template).is_file():
        raise ConfigError(f"--chat-template {options.chat_template}: the file does not exist.")
