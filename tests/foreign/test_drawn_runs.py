"""Random runs that are exported to any program's flags and imported again are unchanged.

Fields that the flags cannot express are listed by name.
"""

import random

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import flatten, load
from nbtrain.config.yaml_source import spelled
from nbtrain.foreign.exporting import export
from nbtrain.foreign.importing import import_files
from nbtrain.foreign.syntax.flags import VERSIONS
from tests.foreign.drawn import NAMES, drawn_run

TARGETS = [f"{program}@{version}" for program, versions in VERSIONS.items() for version in versions]


def check(seed: int, tmp_path) -> bool:
    """Check that importing a random run's exported scripts and JSON gives the same run.

    Returns whether the JSON can also be applied to another run.
    """
    chance = random.Random(seed)
    config = drawn_run(chance)
    script = tmp_path / "exported.sh"
    for target in TARGETS:
        script.write_text(export(config, target).text)
        assert import_files([script]).config == config, (seed, target)
    exported = export(config, "deepspeed")
    document, own = tmp_path / "ds_config.json", tmp_path / f"{config.name}.yaml"
    document.write_text(exported.text)
    own.write_text("".join(f"{key}: {spelled(value)}\n" for key, value in config.model_dump().items()))
    assert load(own) == config, seed
    assert import_files([document], onto=own).config == config, seed
    # Onto another run: everything that is not listed is carried over.
    try:
        other = import_files([document], onto=chance.choice(NAMES)).config
    except ConfigError:  # the two settings are incompatible
        return False
    theirs = dict(flatten(other.model_dump()))
    lost = {
        key: value
        for key, value in dict(flatten(config.model_dump())).items()
        if key not in exported.unsaid and theirs.get(key) != value
    }
    assert not lost, seed
    return True


@pytest.mark.slow
def test_drawn_runs_come_back(tmp_path):
    assert sum(check(seed, tmp_path) for seed in range(6)) >= 3


@pytest.mark.slow
def test_many_drawn_runs_come_back(tmp_path):
    """Many random runs are unchanged by an export and an import.

    After a change of the mapping, try 200 of them: range(100, 300) takes two minutes.
    """
    assert sum(check(seed, tmp_path) for seed in range(100, 112)) >= 6
