"""Options of a model server: fields, defaults and bounds, for the command line and nb.serve."""

from dataclasses import dataclass
from typing import Any

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.process.ports import LOOPBACK
from nbtrain.config.generation import LOADED_DTYPES

PORT = 8000


@dataclass(frozen=True)
class ServeOptions:
    """The options of a server. Raises ConfigError if a value is out of range."""

    run: str | None = None
    """Folder of a run; None for any run in the output directory, one at a time, by a request's `model`."""
    step: int | None = None
    """Step of the checkpoint of `run`; None for the newest complete one."""
    host: str = LOOPBACK
    """Address to listen on; 0.0.0.0 means every network interface of this machine."""
    port: int = PORT
    """Port to listen on; 0 for a free one."""
    uds: str | None = None
    """Unix socket to use instead of host and port. Users who can enter its folder do not need a token."""
    dtype: str = "auto"
    """fp32, bf16, fp16; auto: fp32 on a CPU, the training's format on a GPU."""
    tensor_parallel_size: int | None = None
    """Processes that the model is sharded over; None: the fewest GPUs that it fits on."""
    threads: int | None = None
    """Threads of the model's process on a CPU; None: all cores."""
    max_batch: int | None = None
    """Maximum number of texts at once; None for 16 on a CPU, 64 on a GPU, or as many as the memory holds."""
    max_queue: int = 128
    """Maximum number of texts that wait for a slot in the batch; further requests are answered with 429."""
    max_new_tokens: int | None = None
    """Maximum number of new tokens that a request may have for one text; None for the model's positions."""
    max_body_bytes: int = 1 << 20
    """Maximum size of a request in bytes."""
    request_seconds: float = 600.0
    """Seconds for one request, waiting included; then the answer is 504, or its stream ends with an error."""
    write_seconds: float = 30.0
    """Seconds after which a stream is ended if its client reads nothing."""
    grace_seconds: float = 20.0
    """Seconds that running requests may continue after SIGTERM."""
    idle_seconds: float = 600.0
    """Seconds without a request after which a model is unloaded, if any run may be served."""
    chat_template: str | None = None
    """File with a chat template; None for the template of the fine-tuning data, or else the tokenizer's."""

    def __post_init__(self) -> None:
        rules: tuple[tuple[str, Any, bool, str], ...] = (
            ("port", self.port, 0 <= self.port <= 65535, "from 0 (a free one) to 65535"),
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
                f"step = {self.step} is a checkpoint of one run: name the run (`nbtrain serve RUN --step "
                f"{self.step}`). Without a run, the newest checkpoint of each is served."
            )
        findings = (Finding("error", "options", key, "", text, cost=FATAL) for key, text in problems.items())
        refuse(findings, ConfigError)
