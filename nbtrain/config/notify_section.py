"""The section `notify:` of a run YAML: who hears of a job's end, and how."""

from typing import Annotated, Literal

from pydantic import Field

from nbtrain.config.fields import ConfigModel, PathText, PositiveSeconds

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]


class NotifyConfig(ConfigModel):
    """What the supervisor does when a job has ended. It never changes how the job ended."""

    command: list[PathText] = []
    """A program and its arguments, run without a shell; it reads the run's summary.json on stdin."""
    url_variable: VariableName | None = None
    """Name of the environment variable with an address (http or https) that summary.json is posted to. The
    address itself, which may hold a secret, is written to no file."""
    states: list[Literal["SUCCEEDED", "FAILED", "CANCELLED"]] = ["SUCCEEDED", "FAILED", "CANCELLED"]
    """The ends to report. LOST is not one of them: no supervisor is left that could report it."""
    timeout_seconds: PositiveSeconds = 30.0
    """Time for the program, and again for the address; after that the program is killed."""
