"""nbtrain's errors: a subclass with an exit code for each thing that the user can do about an error.

    NbtrainError
      ConfigError        change the run YAML or the override
        ContextLengthError   shorten the prompt, or request fewer new tokens
        CodeError            correct the Python file that `code` names
      DataError          repair or prepare the data
      CheckpointError    choose another checkpoint
        DiskFullError        free up space, or keep fewer checkpoints
      RecordError        restore or remove a damaged file of a run
      JobError           look at the job
        SubmitError      the job was not started: the reason was found before launch
        JobFailed        the job was started and failed; carries the cause and the end of its log
      StabilityError     look at the step, its data and the learning rate
        LossScaleError   lower the learning rate, or train in bf16
        RollbackError    nothing: the job returns to a checkpoint by itself

Every message says where (file:line, field), what was found, the rule with its numbers, and the fix. Notebooks
and the CLI print only the message of these errors and never a traceback: `cli.main` catches the base class,
and IPython calls `_render_traceback_`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbtrain.base.text.terminal import printable

if TYPE_CHECKING:
    from nbtrain.base.findings import Finding


class NbtrainError(Exception):
    """Base of every error that the user can fix."""

    exit_code = 1
    findings: "Sequence[Finding]" = ()
    """Findings that the message consists of, if refuse() raised the error; otherwise empty."""

    def __str__(self) -> str:
        # The message may contain names of files, keys and values from other programs.
        return printable(super().__str__())

    def _render_traceback_(self) -> list[str]:
        # IPython shows these lines instead of a traceback.
        return [f"{type(self).__name__}: {self}"]


class ConfigError(NbtrainError):
    """A run YAML, an override or a parameter is invalid."""

    exit_code = 2


class ContextLengthError(ConfigError):
    """A prompt and the requested new tokens exceed the model's positions."""

    def __init__(self, message: str, positions: int = 0, prompt_tokens: int = 0, max_new_tokens: int = 0):
        super().__init__(message)
        self.positions, self.prompt_tokens, self.max_new_tokens = positions, prompt_tokens, max_new_tokens

    @property
    def counts(self) -> dict[str, int]:
        """{name: number} of the numbers in the message, for programs that word the error themselves."""
        return {
            "positions": self.positions,
            "prompt_tokens": self.prompt_tokens,
            "max_new_tokens": self.max_new_tokens,
        }


class CodeError(ConfigError):
    """The file that `code` names cannot be used, or one of its functions failed."""


class DataError(NbtrainError):
    """Text, tokenizer or dataset files are missing, damaged or do not fit the run."""

    exit_code = 3


class CheckpointError(NbtrainError):
    """A checkpoint is missing, incomplete, or does not fit the run."""

    exit_code = 4


class DiskFullError(CheckpointError):
    """A checkpoint does not fit on its disk."""


class RecordError(NbtrainError, ValueError):
    """A JSON file that nbtrain or DeepSpeed wrote is damaged."""


class JobError(NbtrainError):
    """A job cannot be read, started or controlled."""

    exit_code = 5


class SubmitError(JobError):
    """The job was not started; no resource was allocated and no file was overwritten."""

    exit_code = 6


class JobFailed(JobError):
    """The job was started and did not succeed. The message ends with the last lines of its log."""

    exit_code = 7


class StabilityError(NbtrainError):
    """A loss or gradient is NaN or Inf, or the loss jumps, and stability.* does not skip the step."""

    exit_code = 8


class LossScaleError(StabilityError):
    """A gradient overflows in fp16 at the smallest loss scale."""


class RollbackError(StabilityError):
    """A bad step after which the ranks exit. The job then resumes from the newest checkpoint, without the
    samples of the bad step.
    """

    exit_code = 0

    def __init__(self, message: str, step: int, positions: tuple[int, int]):
        """Store the bad step and its `positions` [first, last) in the training order."""
        super().__init__(message)
        self.step = step
        self.positions = positions


def refuse(
    findings: "Iterable[Finding]", kind: type[NbtrainError], heading: str = "", ending: str = ""
) -> None:
    """Raise an error of class `kind` that lists all error-level findings. Do nothing if there are none.

    With a heading, the findings follow it on indented lines. The error carries the findings in its attribute
    `findings`.
    """
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        lines = [f"  {finding}" if heading else str(finding) for finding in errors]
        refusal = kind("\n".join(part for part in (heading, *lines, ending) if part))
        refusal.findings = errors
        raise refusal


def named_error(answer: Mapping[str, Any]) -> NbtrainError:
    """Return the error that another process reports as {"error", "message"}.

    If its class is not known here, the error is an NbtrainError.
    """
    kind = globals().get(str(answer.get("error")))
    if not (isinstance(kind, type) and issubclass(kind, NbtrainError)):
        kind = NbtrainError
    return kind(str(answer.get("message")))
