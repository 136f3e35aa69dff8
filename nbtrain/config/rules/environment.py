"""Rules about a run's environment variables: reserved names, secrets, overrides of nbtrain's values."""

import re

from nbtrain.base.hardware.nvml import CUDA_DEVICES
from nbtrain.base.text.addresses import text_without_secrets
from nbtrain.config.rules.wording import Problems, hidden
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.debug import debug_variables

# {message: the variables to which it applies}. nbtrain or torchrun sets these variables. A single value from
# the YAML would give all ranks the same identity, or make them use other folders than their supervisor.
RESERVED = {
    "nbtrain sets this variable for each rank. Remove it.": re.compile(
        r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
        r"|NBTRAIN_(JOB|AGENT_JOB|NODE|ATTEMPT|RUN_DIR|EXIT_FD|GPUS|CORES)"
    ),
    "all processes of a job must have the same value, which comes from the shell that submits the job, or on "
    "Kubernetes from backend.kubernetes.workspace_path. Remove it, and change the value there.": re.compile(
        r"NBTRAIN_(WORKSPACE|OUTPUT|DATA|QUEUE)"
    ),
    "it would replace the paths from which ranks import nbtrain and other modules. Remove the variable; "
    "ranks "
    "inherit it from the shell that submits the job, or on Kubernetes from the image.": re.compile(
        r"PYTHON(PATH|HOME)"
    ),
    "resources.device determines this variable. Remove it.": re.compile(r"DS_ACCELERATOR"),
}
SECRET_NAMES = re.compile(
    r"(.*_)?(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|APIKEY|AUTH|(API|ACCESS|PRIVATE|SECRET)_KEY)(_ID)?"
)
# Further names whose values are hidden in records. This pattern may match too much: hiding a value is
# harmless, while SECRET_NAMES rejects variables.
SECRET_WORDS = re.compile(
    r"TOKEN(?!IZER)|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH|(API|ACCESS|PRIVATE)_?KEY", re.IGNORECASE
)
NUMBERS_OF_TOKENS = re.compile(r"(.*_)?(MAX|MIN|NUM)_(.*_)?TOKENS", re.IGNORECASE)
SECRET_VALUES = re.compile(
    r"(?<![A-Za-z0-9])(hf_|ghp_|github_pat_|glpat-|sk-|xox[bp]-|AKIA)[A-Za-z0-9_-]{12,}"
)
SECRET_FIX = (
    "set it in the shell that submits the job, from which ranks inherit it; for pods, list its Secret in "
    "backend.kubernetes.secret_variables"
)
# {variable that nbtrain sets unless backend.env sets it: the value that nbtrain would choose}
OWN_VALUES = {
    "OMP_NUM_THREADS": "the cores of a machine divided by its ranks",
    "OMP_WAIT_POLICY": "PASSIVE with device: cpu",
    "GLOO_SOCKET_IFNAME": "the run's network interface",
    "NCCL_SOCKET_IFNAME": "the run's network interface",
    "PYTHONUNBUFFERED": "1, so that log lines appear immediately",
}


def why_reserved(name: str) -> str:
    """Return a text that says why a run must not set a variable, and the fix; "" if the run may set it.

    The rule applies to backend.env and to variables from a Secret.
    """
    return next((words for words, names in RESERVED.items() if names.fullmatch(name)), "")


def is_secret(name: str, value: str, addresses: bool = True) -> bool:
    """Return whether a variable has a name like a secret's, or a value that contains a secret.

    A secret is a token or, if `addresses` is true, a URL with a password or a query. Pass "" as the name if
    the value does not belong to a variable.
    """
    if SECRET_NAMES.fullmatch(name.upper()) or SECRET_VALUES.search(value):
        return True
    return addresses and text_without_secrets(value) != value


def may_be_secret(name: str, value: str) -> bool:
    """Return whether records must hide a variable's value.

    Records hide the values that is_secret() recognizes, apart from URLs, whose secrets are removed elsewhere.
    They also hide every variable whose name contains a word such as TOKEN.
    """
    if is_secret(name, value, addresses=False):
        return True
    return bool(SECRET_WORDS.search(name)) and not NUMBERS_OF_TOKENS.fullmatch(name)


def environment_is_safe(config: RunConfig) -> Problems:
    """Check that the variables in backend.env have valid names and are not reserved for nbtrain.

    Their values must not contain secrets, because they are written to files.
    """
    for name, value in config.backend.env.items():
        # If an override sets the variable, the place of the error is the text of the override, which contains
        # the value. The value may be a secret, so hidden() omits it.
        key = f"backend.env.{name}"
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield hidden(
                config,
                key,
                f"backend.env: {name!r} is not a valid variable name. Use letters, digits and _, and start "
                "with a letter or _.",
            )
        elif words := why_reserved(name):
            yield hidden(config, key, f"{key}: {words}")
        elif is_secret(name, value, addresses=False):  # the files show an address without its password
            yield hidden(
                config,
                key,
                f"{key} looks like a secret, and config.yaml and environment.json would show it.\n"
                f"  Remove it from backend.env, and {SECRET_FIX}.",
            )
        elif "\0" in value:
            yield hidden(config, key, f"{key} contains a NUL character, which variables cannot contain.")


def replaced_values(config: RunConfig) -> list[tuple[str, str, str, bool]]:
    """Return the variables in backend.env that override a value that nbtrain sets.

    Each entry is (variable, effect, fix, whether it is a warning).
    """
    found, by_debug = [], debug_variables(config.backend.debug)
    for name, value in config.backend.env.items():
        takes = f"backend.env.{name} = {value} overrides"
        if name in OWN_VALUES:
            found.append((name, f"{takes} the value that nbtrain would set: {OWN_VALUES[name]}.", "", False))
        elif by_debug.get(name, value) != value:
            effect = f"{takes} {by_debug[name]}, the value from backend.debug."
            found.append((name, effect, "Remove one of the two settings.", True))
        elif name == CUDA_DEVICES and config.resources.device == "gpu":
            found.append((name, *_visible_gpus(config, value)))
    return found


def _visible_gpus(config: RunConfig, value: str) -> tuple[str, str, bool]:
    kind, setting = config.backend.kind, f"backend.env.{CUDA_DEVICES} = {value}"
    if kind == "local":
        return f"{setting}: nbtrain chooses the run's GPUs from this list.", "", False
    if kind == "hosts":
        return f"{setting}: on every machine, ranks see only these GPUs.", "", False
    engine = kind.capitalize()
    return (
        f"{setting}: on every node, ranks see these GPUs instead of the GPUs that {engine} assigned to the "
        "job.",
        f"Remove the variable, and let {engine} choose the GPUs.",
        True,
    )
