"""The options of a model server: fields, defaults and bounds, for the command line and nb.serve alike."""

from dataclasses import dataclass
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.ports import LOOPBACK

PORT = 8000


@dataclass(frozen=True)
class ServeOptions:
    """How models are served. Raises ConfigError if a value is out of range."""

    run: str | None = None
    """A run's folder; None: any run under the output root, one at a time, by the `model` of a request."""
    step: int | None = None
    """The checkpoint of `run`; None: the newest whole one."""
    host: str = LOOPBACK
    """Where it listens; 0.0.0.0 is every network of this machine."""
    port: int = PORT
    """0: a free one."""
    uds: str | None = None
    """A Unix socket in place of host and port. Who may enter its folder needs no token."""
    dtype: str = "auto"
    """fp32, bf16, fp16; auto: fp32 on a CPU, the training's format on a GPU."""
    tensor_parallel_size: int | None = None
    """Processes that the model is sharded over; None: the fewest GPUs that it fits on."""
    threads: int | None = None
    """Threads of the model's process on a CPU; None: all cores."""
    max_batch: int | None = None
    """Texts that are made at once; None: 16 on a CPU, 64 on a GPU, or as many as the memory holds."""
    max_queue: int = 128
    """Texts that wait for a place in the batch; beyond it requests are answered with 429."""
    max_new_tokens: int | None = None
    """The most that one text may ask for; None: as many as the model has positions."""
    max_body_bytes: int = 1 << 20
    """Most bytes of a request."""
    request_seconds: float = 600.0
    """Seconds for one request, waiting included; then the answer is 504, or its stream ends with an error."""
    write_seconds: float = 30.0
    """How long a client may take nothing of its stream before it is given up."""
    grace_seconds: float = 20.0
    """How long running requests go on after SIGTERM."""
    idle_seconds: float = 600.0
    """With any run: a model that nobody asks for is unloaded after so long."""
    chat_template: str | None = None
    """A file with the template of a chat; None: that of the run's fine-tuning data, else of its tokenizer."""

    def __post_init__(self) -> None:
        rules: tuple[tuple[str, Any, bool, str], ...] = (
            ("port", self.port, 0 <= self.port <= 65535, "from 0 (a free one) to 65535"),
            ("dtype", self.dtype, self.dtype in ("auto", "fp32", "bf16", "fp16"), "auto, fp32, bf16 or fp16"),
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
        for name, value, holds, rule in rules:
            if not holds:
                raise ConfigError(f"{name} = {value!r} must be {rule}.")
        if self.run is None and self.step is not None:
            raise ConfigError(
                f"step = {self.step} is a checkpoint of one run: name the run (`nbtrain serve RUN --step "
                f"{self.step}`). Without a run, the newest checkpoint of each is served."
            )
