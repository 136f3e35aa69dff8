"""The setting with which torch's memory allocator joins free segments (expandable segments)."""

from nbtrain.config.schema import RunConfig

# Variables with torch's allocator settings: the name that every version reads, then the newer name.
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
EXPANDABLE = "expandable_segments:True"


def with_expandable_segments(config: RunConfig) -> tuple[str, str] | None:
    """Return (variable, value) that turns expandable segments on; None if the run has turned them on.

    The variable is the one of ALLOCATOR_VARIABLES that the run sets, because torch reads the newer name only
    if the older one is not set. Other settings in its value are kept.
    """
    env = config.backend.env
    name = next((name for name in ALLOCATOR_VARIABLES if name in env), ALLOCATOR_VARIABLES[0])
    given = [part for part in env.get(name, "").split(",") if part]
    if any(part.lower() == EXPANDABLE.lower() for part in given):
        return None
    others = [part for part in given if not part.startswith(EXPANDABLE.partition(":")[0])]
    return name, ",".join([*others, EXPANDABLE])
