"""A resolved run on one line, which YAML reads back unchanged."""

import pytest
import yaml

from nbtrain.config.load import load
from nbtrain.config.load.one_line import from_one_line, one_line


@pytest.mark.parametrize(
    "words", ["plain", "caf\u00e9 \u2028", "\U0001f642 x", "\\ud83d\\ude42", "$(A) 5%h \\"]
)
def test_every_character_comes_back(words):
    config = load("gpt3-tiny", {"data.sources": [{"kind": "jsonl", "path": words}]}, check=False)
    text = one_line(config)
    assert text.isascii() and "\n" not in text and not {"$", "%"} & set(text)
    assert yaml.safe_load(text)["data"]["sources"][0]["path"] == words
    assert from_one_line(text, "NBTRAIN_RUN").model_dump() == config.model_dump()
