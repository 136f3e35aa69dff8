"""Check the fields of a sweep file."""

from pydantic import ValidationError

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.text.nearest import nearest
from nbtrain.config.load.schema_errors import schema_finding
from nbtrain.config.sections.sweep_section import SweepConfig
from nbtrain.config.yaml_source import Located


def sweep_config(located: Located, shown: str) -> SweepConfig:
    """Return the checked fields of a sweep file. `shown` is the name of the file in messages.

    Raises ConfigError with every unknown key and every value of a wrong type, each with its place.
    """
    problems, known = [], tuple(SweepConfig.model_fields)
    for key in located.value:
        if key not in known:
            words = f"a sweep has no key `{key}`. Its keys are {', '.join(known)}.{nearest(key, known)}"
            problems.append(Finding("error", "sweep", key, located.where(key) or shown, words, cost=FATAL))
    config = None
    try:
        config = SweepConfig.model_validate(
            {key: located.value[key] for key in located.value if key in known}
        )
    except ValidationError as error:
        problems += [schema_finding(entry, located, shown) for entry in error.errors(include_url=False)]
    refuse(problems, ConfigError)
    assert config is not None
    return config
