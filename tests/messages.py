"""Parts of a message on which a user acts: the place, what was found, and the fix."""

import pytest


def lacks(said: str | pytest.ExceptionInfo, *parts: str) -> list[str]:
    """Return the parts that a message, or the message of a refusal, does not have."""
    text = said if isinstance(said, str) else str(said.value)
    return [part for part in parts if part not in text]
