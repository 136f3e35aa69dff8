"""A damaged file gives an error with the file's name, never a traceback."""

import json
import random

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.foreign.importing import import_files
from nbtrain.foreign.job_files.script_jobs import jobs_of_script
from nbtrain.foreign.lint import lint
from tests.fuzzing import num_cases

from .public_shapes import ascend_script, deepspeed_script
from .upstream import deepspeed_json, manifest, script_175b, script_deepspeed

FILES = {
    "a.sh": script_175b(nodes=16),
    "b.sh": script_deepspeed(),
    "c.yaml": manifest("gpt-13b-4xdp-4xpp-4xtp"),
    "d.json": json.dumps(deepspeed_json("13b"), indent=1),
}
PIECES = [
    '"',
    "'",
    "$(",
    "${",
    "))",
    "(",
    "\\",
    "\n",
    "{",
    "}",
    "[",
    ":",
    " - ",
    "#",
    "&",
    "|",
    "<<E",
    "-1",
    "1e9",
    "x",
]


def damaged(text: str, chance: random.Random) -> str:
    """Return the text with a few pieces removed, inserted or moved."""
    for _ in range(chance.randint(1, 5)):
        at, other = chance.randrange(len(text)), chance.randrange(len(text))
        part = chance.choice([chance.choice(PIECES), text[other : other + chance.randint(1, 30)], ""])
        text = text[:at] + part + text[at + chance.randint(0, 12) :]
    return text


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_or_read(name, tmp_path):
    """Twenty-five seeded variants of each damaged file are either refused with a message or read."""
    chance, read = random.Random(name), 0
    (tmp_path / "ds_config_13b.json").write_text(FILES["d.json"])
    onto = "gpt-13b-4xdp-4xpp" if name == "d.json" else None
    for _ in range(25):
        (tmp_path / name).write_text(damaged(FILES[name], chance))
        try:
            import_files([tmp_path / name], ["tokenizer.vocab_size=50257", "resources.nodes=16"], onto)
            read += 1
        except ConfigError as error:
            assert str(error)
        try:
            assert all(finding.message for finding in lint([tmp_path / name]))
        except ConfigError as error:
            assert str(error)
    assert read < 25


SCRIPTS = (script_175b(nodes=16), script_deepspeed(), ascend_script(), deepspeed_script())
MUTATED = 100


@pytest.mark.slow
def test_mutated_scripts_are_refused_or_read(tmp_path, monkeypatch):
    """A mutated script is refused with a place, or read; nothing is run. `make soak` tries 5,000 of them."""
    monkeypatch.chdir(tmp_path)
    chance, read = random.Random(33), 0
    for number in range(num_cases(MUTATED)):
        text = damaged(SCRIPTS[number % len(SCRIPTS)], chance)
        try:
            jobs_of_script(f"touch {tmp_path}/left\n{text}\ntouch {tmp_path}/left\n", "a.sh")
            read += 1
        except ConfigError as error:
            assert str(error).startswith("a.sh")
    assert 0 < read < num_cases(MUTATED)
    assert list(tmp_path.iterdir()) == []
