"""Dataset and tokenizer names of the shipped runs, which no other run may use for different contents.

This way, `nbtrain prepare gpt-tiny` never finds another run's files under its own names, even if the other
run was prepared first.
"""

from collections.abc import Iterator

from nbtrain.base.errors import ConfigError, DataError
from nbtrain.base.workspace import example_folders, example_names
from nbtrain.config.load import load
from nbtrain.config.names.own_names import DATA_NAME, TOKENIZER_NAME, makes_same_dataset, makes_same_tokenizer
from nbtrain.config.schema import RunConfig


def refuse_name_of_shipped_dataset(config: RunConfig) -> None:
    """Raise DataError if a shipped run makes a different dataset under the name that this run uses."""
    for other in _runs_that_say(config.data.name):
        if (
            other.data.name == config.data.name
            and other.data.sources
            and not makes_same_dataset(other, config)
        ):
            raise DataError(
                f"{config.where(DATA_NAME)}: {DATA_NAME} = {config.data.name} is the name of the "
                f"dataset that {other.name} makes from other settings. Set {DATA_NAME} to another name."
            )


def refuse_name_of_shipped_tokenizer(config: RunConfig) -> None:
    """Raise DataError if a shipped run trains a different tokenizer under the name that this run uses."""
    name = config.tokenizer.name
    for other in _runs_that_say(name):
        trains = other.data.sources and other.tokenizer.path is None and other.init_from is None
        if other.tokenizer.name == name and trains and not makes_same_tokenizer(other, config):
            raise DataError(
                f"{config.where(TOKENIZER_NAME)}: {TOKENIZER_NAME} = {name} is the name of the "
                f"tokenizer that {other.name} trains on its own text, but this tokenizer does not exist "
                f"yet. To use it, run `nbtrain prepare {other.name}` first. To train a tokenizer on this "
                f"text instead, remove {TOKENIZER_NAME} or set it to another name."
            )


def _runs_that_say(name: str) -> Iterator[RunConfig]:
    """Yield the example runs that can be loaded, or no runs if no example's file contains `name`.

    The search of the files is fast, and loading every example is slow.
    """
    folders = example_folders()
    files = [path for folder in folders for path in folder.rglob("*.yaml")]
    if not any(f"name: {name}" in path.read_text(encoding="utf-8", errors="replace") for path in files):
        return
    for run in example_names():
        try:
            yield load(run, check=False)
        except ConfigError:  # the file is being edited; a command for this run reports the error
            continue
