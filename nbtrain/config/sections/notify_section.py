"""The section `notify:` of a run YAML: the notification at the end of a job."""

from typing import Annotated

from pydantic import Field

from nbtrain.base.run_directory.jobstate import RECORDED_ENDS, RecordedEnd
from nbtrain.config.sections.fields import ConfigModel, PathText, PositiveSeconds

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
SCHEMES = ("https://", "http://")
"""Beginnings of an address to which a summary may be posted."""


class NotifyConfig(ConfigModel):
    """Notification that the supervisor sends when a job has ended. A failed notification never changes the
    job's state.
    """

    command: list[PathText] = []
    """Program and arguments, run without a shell; it receives the run's summary.json on stdin."""
    url_variable: VariableName | None = None
    """Name of the environment variable with the address (http or https) to which summary.json is posted. The
    address, which may contain a secret, is not written to any file."""
    states: list[RecordedEnd] = [*RECORDED_ENDS]
    """States that are reported. LOST cannot be reported, because a lost job has no supervisor."""
    timeout_seconds: PositiveSeconds = 30.0
    """Seconds that the program may run before it is killed, and seconds to wait for the address to answer."""
