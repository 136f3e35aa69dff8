"""Names of the datasets and tokenizers of the shipped runs, under which no other run may make something else.

Whatever is prepared first, `nbtrain prepare gpt-tiny` finds its own files or none.
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
                f"{config.where(DATA_NAME)}: {DATA_NAME} = {config.data.name}: is the dataset that "
                f"{other.name} makes from other settings. Give {DATA_NAME} another value."
            )


def refuse_name_of_shipped_tokenizer(config: RunConfig) -> None:
    """Raise DataError if a shipped run trains a different tokenizer under the name that this run uses."""
    name = config.tokenizer.name
    for other in _runs_that_say(name):
        trains = other.data.sources and other.tokenizer.path is None and other.init_from is None
        if other.tokenizer.name == name and trains and not makes_same_tokenizer(other, config):
            raise DataError(
                f"{config.where(TOKENIZER_NAME)}: {TOKENIZER_NAME} = {name}: is the tokenizer that "
                f"{other.name} trains on its own text, and does not exist yet. To use it, run `nbtrain "
                f"prepare {other.name}` first; to train one on this text, leave {TOKENIZER_NAME} out or give "
                "it another value."
            )


def _runs_that_say(name: str) -> Iterator[RunConfig]:
    """Yield all example runs if any of their files contains the name."""
    folders = example_folders()
    files = [path for folder in folders for path in folder.rglob("*.yaml")]
    if not any(f"name: {name}" in path.read_text(encoding="utf-8", errors="replace") for path in files):
        return
    for run in example_names():
        try:
            yield load(run, check=False)
        except ConfigError:  # it is being edited; a command that names it reports the error
            continue
