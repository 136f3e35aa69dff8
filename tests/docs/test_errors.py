"""The messages on docs/errors.md are what the commands print and what runs reported."""

import re

import pytest

from tests.docs.errors import PAGE, page_with_messages, without_chance


@pytest.mark.slow
def test_every_message_is_what_a_user_reads(tmp_path, fork_server):
    """Messages match the page, except for numbers and the file that met a full disk; `python -m
    tests.docs.errors` updates the page.
    """
    page = PAGE.read_text(encoding="utf-8")
    assert without_chance(page) == without_chance(page_with_messages(page, tmp_path, fork_server))


def test_there_are_twenty_messages_and_each_says_what_to_do():
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(sections) >= 20
    for section in sections:
        head, _, advice = section.rpartition("```")
        assert "```text" in head and len(advice.split()) >= 10, section.partition("\n")[0]
