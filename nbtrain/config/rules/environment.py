"""Rules of a run's variables: names that are refused in backend.env and for Secrets, variables that replace a
value of nbtrain, and secrets.
"""

import re

from nbtrain.base.hardware.nvml import CUDA_DEVICES
from nbtrain.base.text.addresses import text_without_secrets
from nbtrain.config.rules.wording import Problems, hidden
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.debug import debug_variables

# Variables that nbtrain or torchrun sets: one value from the YAML would give all ranks the same identity, or
# have them look in other folders than their supervisor.
RESERVED = {
    "nbtrain sets this for each rank itself. Remove it.": re.compile(
        r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
        r"|NBTRAIN_(JOB|AGENT_JOB|NODE|ATTEMPT|RUN_DIR|EXIT_FD|GPUS|CORES)"
    ),
    "all processes of a job have the same value: that of the shell that submits, or on Kubernetes the one "
    "that follows from backend.kubernetes.workspace_path. Remove it, and change it there.": re.compile(
        r"NBTRAIN_(WORKSPACE|OUTPUT|DATA|QUEUE)"
    ),
    "it would replace the paths by which ranks find their modules, nbtrain among them. Remove it; ranks "
    "inherit it from the shell that submits, on Kubernetes from the image.": re.compile(r"PYTHON(PATH|HOME)"),
    "resources.device decides this. Remove it.": re.compile(r"DS_ACCELERATOR"),
}
SECRET_NAMES = re.compile(
    r"(.*_)?(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|APIKEY|AUTH|(API|ACCESS|PRIVATE|SECRET)_KEY)(_ID)?"
)
# Further names whose values a record hides. A record may hide too much, because it refuses no variable.
SECRET_WORDS = re.compile(
    r"TOKEN(?!IZER)|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH|(API|ACCESS|PRIVATE)_?KEY", re.IGNORECASE
)
NUMBERS_OF_TOKENS = re.compile(r"(.*_)?(MAX|MIN|NUM)_(.*_)?TOKENS", re.IGNORECASE)
SECRET_VALUES = re.compile(
    r"(?<![A-Za-z0-9])(hf_|ghp_|github_pat_|glpat-|sk-|xox[bp]-|AKIA)[A-Za-z0-9_-]{12,}"
)
SECRET_FIX = (
    "set it in the shell that submits, from which ranks inherit it; for pods, name its Secret in "
    "backend.kubernetes.secret_variables"
)
# Variables that nbtrain sets if backend.env does not, and how it chooses their values.
OWN_VALUES = {
    "OMP_NUM_THREADS": "cores over ranks",
    "OMP_WAIT_POLICY": "PASSIVE on device: cpu",
    "GLOO_SOCKET_IFNAME": "the run's network interface",
    "NCCL_SOCKET_IFNAME": "the run's network interface",
    "PYTHONUNBUFFERED": "1, so that logs can be read while ranks run",
}


def why_reserved(name: str) -> str:
    """Return why a run may not set a variable, in backend.env or from a Secret, and the fix; "" if it may."""
    return next((words for words, names in RESERVED.items() if names.fullmatch(name)), "")


def is_secret(name: str, value: str, addresses: bool = True) -> bool:
    """Return whether a variable is named like a secret, or its value contains one: a token, or with
    `addresses` an address with a password or a query. "" is the name of a value that has none.
    """
    if SECRET_NAMES.fullmatch(name.upper()) or SECRET_VALUES.search(value):
        return True
    return addresses and text_without_secrets(value) != value


def may_be_secret(name: str, value: str) -> bool:
    """Return whether a record hides a variable's value: all that is_secret() finds, except addresses, and
    names that contain a word such as TOKEN anywhere.
    """
    if is_secret(name, value, addresses=False):
        return True
    return bool(SECRET_WORDS.search(name)) and not NUMBERS_OF_TOKENS.fullmatch(name)


def environment_is_safe(config: RunConfig) -> Problems:
    """Variables have legal names, are not set by nbtrain itself, and hold no secrets: their values are
    written to files.
    """
    for name, value in config.backend.env.items():
        # An override's place repeats its value, which may be the secret.
        key = f"backend.env.{name}"
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield hidden(
                config,
                key,
                f"backend.env: {name!r} cannot name a variable: use letters, digits and _, and begin "
                "with a letter or _.",
            )
        elif words := why_reserved(name):
            yield hidden(config, key, f"{key}: {words}")
        elif is_secret(name, value, addresses=False):  # the files show an address without its password
            yield hidden(
                config,
                key,
                f"{key} looks like a secret, which config.yaml and environment.json would show.\n"
                f"  Remove it and {SECRET_FIX}.",
            )
        elif "\0" in value:
            yield hidden(config, key, f"{key} contains a NUL character, which no variable can contain.")


def replaced_values(config: RunConfig) -> list[tuple[str, str, str, bool]]:
    """Yield (variable, effect, fix, whether it is a warning) of backend.env values that replace a value of
    nbtrain.
    """
    found, by_debug = [], debug_variables(config.backend.debug)
    for name, value in config.backend.env.items():
        takes = f"backend.env.{name} = {value} replaces"
        if name in OWN_VALUES:
            found.append((name, f"{takes} nbtrain's own value ({OWN_VALUES[name]}).", "", False))
        elif by_debug.get(name, value) != value:
            said = f"{takes} {by_debug[name]}, which backend.debug sets."
            found.append((name, said, "Remove one of the two.", True))
        elif name == CUDA_DEVICES and config.resources.device == "gpu":
            found.append((name, *_visible_gpus(config, value)))
    return found


def _visible_gpus(config: RunConfig, value: str) -> tuple[str, str, bool]:
    kind, said = config.backend.kind, f"backend.env.{CUDA_DEVICES} = {value}:"
    if kind == "local":
        return f"{said} the run's GPUs are chosen from these.", "", False
    if kind == "hosts":
        return f"{said} the ranks of every machine see these GPUs.", "", False
    engine = kind.capitalize()
    return (
        f"{said} the ranks of every node see these, instead of the GPUs that {engine} assigned to the job.",
        f"Remove it; {engine} chooses the GPUs.",
        True,
    )
