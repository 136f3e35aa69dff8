"""The section `notify:` of a run YAML: the notification at the end of a job."""

from typing import Annotated

from pydantic import Field

from nbtrain.base.run_directory.jobstate import RECORDED_ENDS, RecordedEnd
from nbtrain.config.sections.fields import ConfigModel, PathText, PositiveSeconds

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
SCHEMES = ("https://", "http://")
"""Schemes of a URL to which a summary may be posted."""


class NotifyConfig(ConfigModel):
    """Notification that the supervisor sends when a job has ended. A failed notification never changes the
    job's state.
    """

    command: list[PathText] = []
    """Program and arguments to run without a shell. The program receives the run's summary.json on stdin. An
    empty list runs no program.
    """
    url_variable: VariableName | None = None
    """Name of the environment variable that holds the URL (http or https) to which summary.json is posted.
    The URL may contain a secret, so it is not written to any file. null posts nothing.
    """
    states: list[RecordedEnd] = [*RECORDED_ENDS]
    """Final states that trigger the notification. LOST cannot be one of them, because a lost job has no
    supervisor.
    """
    timeout_seconds: PositiveSeconds = 30.0
    """Seconds after which the program is killed, and seconds to wait for a response from the URL."""
