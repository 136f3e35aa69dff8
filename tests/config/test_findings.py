"""Findings of errors that are raised while a run is loaded."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.findings import findings_of
from nbtrain.config.load import load


def test_control_characters_of_a_file_are_escaped(tmp_path):
    """The keys and values of a file cannot change the order of text in a terminal."""
    file = tmp_path / "a.yaml"
    file.write_text('extends: gpt-tiny\nmodel: {"b\\u202e": 1, hidden_size: "x\\u202ey"}\n')
    with pytest.raises(ConfigError) as caught:
        load(file)
    unknown, wrong = findings_of(caught.value)
    assert unknown.key == "model.b\\u202e" and "`b\\u202e`" in unknown.message
    assert "hidden_size = x\\u202ey" in wrong.message
