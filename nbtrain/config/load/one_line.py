"""A resolved run as the value of one environment variable, and back. The files of a dry run contain it."""

import json
import re

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.text.addresses import without_secrets
from nbtrain.config.load import flatten, validate
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import parse_yaml

# Environment variables that hold the run, and its id, in the files of a dry run.
RUN_YAML, RUN_ID = "NBTRAIN_RUN_YAML", "NBTRAIN_RUN_ID"
# Linux takes 131,072 bytes for a variable with its name.
MOST_CHARS = 130_000
# Each escape of a JSON text. For a character beyond U+FFFF JSON has two, which YAML reads as two characters.
ESCAPE = re.compile(r"\\(?:u(d[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})|.)")


def one_line(config: RunConfig) -> str:
    """Return all fields as one line of JSON, which is YAML.

    DeepSpeed's environment file has one line per variable.

    Raises ConfigError for an address that may have a secret, and for a text that a variable cannot hold.
    """
    values = config.model_dump()
    secret = [
        Finding(
            "error",
            "no_secrets",
            key,
            config.where(key).partition("=")[0],
            f"{key} has an address with a user, password or query, any of which may be a secret, and the "
            "file would show it.",
            "Remove that part, or submit the run without a dry run.",
            FATAL,
        )
        for key, value in flatten(values)
        if without_secrets(value, key.rpartition(".")[2]) != value
    ]
    refuse(secret, ConfigError)
    # Kubernetes replaces $(NAME), pdsh %h and its like.
    text = json.dumps(values).replace("$", r"\u0024").replace("%", r"\u0025")
    text = ESCAPE.sub(_of_yaml, text)
    if len(text) > MOST_CHARS:
        raise ConfigError(
            f"{config.name}: the resolved run has {len(text):,} characters, but an environment variable "
            f"in the file may have {MOST_CHARS:,}. Name fewer files in data.sources, or submit it "
            "without a dry run."
        )
    return text


def _of_yaml(escape: re.Match[str]) -> str:
    if not escape[1]:
        return escape[0]
    character = json.loads('"' + escape[0] + '"')
    return rf"\U{ord(character):08x}"


def from_one_line(text: str, variable: str) -> RunConfig:
    """Return the run from an environment variable, without checking its rules. Raises ConfigError."""
    config = validate(parse_yaml(text, variable), variable)
    # For commands in messages: the file is on the machine where the manifest was written.
    config._run = "RUN.yaml"
    return config
