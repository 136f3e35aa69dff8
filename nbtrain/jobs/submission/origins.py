"""Record where each setting of a run was set, in the origins.json of each job.

For example:

    origins(config, run)  ->  {"lr_schedule.lr": "gpt-tiny.yaml:14", "seed": "override seed=2"}
"""

from typing import Any

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.workspace import display
from nbtrain.config.load import flatten
from nbtrain.config.schema import RunConfig


def origins(config: RunConfig, run: RunDir) -> dict[str, str]:
    """Return the origin of each setting that a file or an override sets; other settings have their defaults.

    A resumed run is loaded from its own config.yaml, which contains every setting. Therefore the origins that
    its last job recorded are kept.
    """
    own, newest = display(run.config_yaml.absolute()), run.newest_job()
    before = read_origins(newest) if newest else {}
    found = {}
    for key, _ in flatten(config.model_dump()):
        if not config.sets(key):
            continue
        place = config.where(key)
        if not place.startswith(own):
            found[key] = str(place)
        elif key in before:
            found[key] = before[key]
    return found


def read_origins(job: JobDir) -> dict[str, str]:
    """Return the origins of a job's settings; {} if an earlier version of nbtrain wrote the job."""
    found: Any = files.read_json(job.origins_json)
    return found if isinstance(found, dict) else {}
