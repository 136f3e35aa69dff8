"""Conversion between a resolved run and the value of an environment variable, for the files of a dry run."""

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
# Linux allows 131,072 bytes for a variable, including its name.
MOST_CHARS = 130_000
# An escape sequence in JSON. JSON writes a character beyond U+FFFF as two escapes, which YAML would read as
# two characters.
ESCAPE = re.compile(r"\\(?:u(d[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})|.)")


def one_line(config: RunConfig) -> str:
    """Return all fields as one line of JSON, which is also YAML.

    The text is one line because DeepSpeed's environment file has one line per variable.

    Raises ConfigError if an address may contain a secret, or if the text is too long for a variable.
    """
    values = config.model_dump()
    secret = [
        Finding(
            "error",
            "no_secrets",
            key,
            config.where(key).partition("=")[0],
            f"{key} has a URL with a user name, password or query, which may be a secret. The files of a dry "
            "run would show the secret.",
            "Remove that part of the URL, or submit the run without a dry run.",
            FATAL,
        )
        for key, value in flatten(values)
        if without_secrets(value, key.rpartition(".")[2]) != value
    ]
    refuse(secret, ConfigError)
    # Kubernetes replaces $(NAME), and pdsh replaces %h and similar codes.
    text = json.dumps(values).replace("$", r"\u0024").replace("%", r"\u0025")
    text = ESCAPE.sub(_of_yaml, text)
    if len(text) > MOST_CHARS:
        raise ConfigError(
            f"{config.name}: the resolved run has {len(text):,} characters, but an environment variable "
            f"in the files of a dry run may have at most {MOST_CHARS:,}. List fewer files in data.sources, "
            "or submit the run without a dry run."
        )
    return text


def _of_yaml(escape: re.Match[str]) -> str:
    if not escape[1]:
        return escape[0]
    character = json.loads('"' + escape[0] + '"')
    return rf"\U{ord(character):08x}"


def from_one_line(text: str, variable: str) -> RunConfig:
    """Return the run that an environment variable contains, without checking rules.

    `text` is the variable's value and `variable` its name. Raises ConfigError if the text is not a valid run.
    """
    config = validate(parse_yaml(text, variable), variable)
    # Commands in messages use this name, because the YAML is on the machine where the manifest was written.
    config._run = "RUN.yaml"
    return config
