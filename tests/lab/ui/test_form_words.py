"""What the launch form says of an answer to Submit."""

import json
from typing import Any

import pytest

from tests.lab.ui.pages import view_page

pytestmark = [pytest.mark.slow, pytest.mark.browser]
JOB = {"name": "gpt", "job_id": "j1"}
CHANGES = ["batch.max_steps: 300 -> 250"]


def test_only_what_was_submitted_is_called_so(browser: Any) -> None:
    """An active job that was joined is a warning with what it does not get."""
    answers = [JOB, {**JOB, "joined": "RUNNING", "not_applied": CHANGES}, {**JOB, "joined": "QUEUED"}]
    mount = f"{json.dumps(answers)}.map((one) => ui.submitted(one))"
    with view_page(browser, {}, mount, module="form_asks") as page:
        started, joined, same = page.evaluate("window.end")
    assert started == {
        "text": "Submitted: job j1 of gpt.",
        "toast": "gpt is submitted",
        "kind": "success",
    }
    said = "Nothing was submitted: gpt is RUNNING already"
    assert joined == {
        "text": f"{said}; joined its job j1, which keeps its own settings. Not applied: {CHANGES[0]}.",
        "toast": f"{said}. Not applied: {CHANGES[0]}.",
        "kind": "warning",
    }
    assert same["kind"] == "info" and same["text"].endswith("which has these settings.")
