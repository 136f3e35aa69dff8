"""Options of a model server: fields, defaults and allowed values, for `nbtrain serve` and nb.serve."""

from dataclasses import dataclass
from typing import Any

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.process.ports import LOOPBACK
from nbtrain.config.generation import LOADED_DTYPES

PORT = 8000


@dataclass(frozen=True)
class ServeOptions:
    """The options of a model server. Raises ConfigError if a value is not allowed."""

    run: str | None = None
    """Folder of the run to serve. None serves every run in the output directory, one loaded at a time."""
    step: int | None = None
    """Step of the checkpoint of `run` to serve; None means the newest complete checkpoint."""
    host: str = LOOPBACK
    """Address to listen on; 0.0.0.0 means every network interface of this machine."""
    port: int = PORT
    """Port to listen on; 0 chooses a free port."""
    uds: str | None = None
    """Path of a Unix socket to listen on instead of host and port. Only this user can open the socket."""
    dtype: str = "auto"
    """Format of the weights: fp32, bf16, fp16 or auto (fp32 on a CPU, the training format on a GPU)."""
    tensor_parallel_size: int | None = None
    """Number of ranks to shard the model across; None means the fewest GPUs that it fits on."""
    threads: int | None = None
    """CPU threads of the model's process; None means all cores."""
    max_batch: int | None = None
    """Texts generated at once; None means up to 16 on a CPU or 64 on a GPU, as far as memory allows."""
    max_queue: int = 128
    """Maximum number of texts that wait for a slot in the batch; further requests get status 429."""
    max_new_tokens: int | None = None
    """Maximum number of new tokens per text that a client may request; None means the model's positions."""
    max_body_bytes: int = 1 << 20
    """Maximum size of a request body in bytes."""
    request_seconds: float = 600.0
    """Time limit of a request in seconds, including waiting.

    A request that takes longer gets status 504 or, in a stream, an error event.
    """
    write_seconds: float = 30.0
    """Seconds after which a stream ends if its client has stopped reading."""
    grace_seconds: float = 20.0
    """Seconds that running requests may continue after SIGTERM."""
    idle_seconds: float = 600.0
    """Seconds without a request after which the model is unloaded, if `run` is None."""
    chat_template: str | None = None
    """File with a chat template; None means the template of the training data, otherwise the tokenizer's."""

    def __post_init__(self) -> None:
        rules: tuple[tuple[str, Any, bool, str], ...] = (
            ("port", self.port, 0 <= self.port <= 65535, "from 0 (choose a free port) to 65535"),
            ("dtype", self.dtype, self.dtype in LOADED_DTYPES, f"one of {', '.join(LOADED_DTYPES)}"),
            *(
                (name, value, value is None or value >= 1, "at least 1")
                for name in ("tensor_parallel_size", "threads", "max_batch", "max_new_tokens")
                for value in (getattr(self, name),)
            ),
            ("max_queue", self.max_queue, self.max_queue >= 0, "at least 0"),
            ("max_body_bytes", self.max_body_bytes, self.max_body_bytes >= 1024, "at least 1024"),
            *(
                (name, getattr(self, name), getattr(self, name) > 0, "above 0")
                for name in ("request_seconds", "write_seconds", "grace_seconds", "idle_seconds")
            ),
        )
        problems = {
            name: f"{name} = {value!r} must be {rule}." for name, value, holds, rule in rules if not holds
        }
        if self.run is None and self.step is not None:
            problems["step"] = (
                f"step = {self.step} selects a checkpoint of one run, so name the run (`nbtrain serve RUN "
                f"--step {self.step}`). Without a run, the server offers the newest checkpoint of every run."
            )
        findings = (Finding("error", "options", key, "", text, cost=FATAL) for key, text in problems.items())
        refuse(findings, ConfigError)
