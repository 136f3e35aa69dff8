"""The field backend.debug: its switches, and the environment variables that they set in every rank."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

DebugSwitch = Literal["nccl", "distributed", "anomaly", "cuda_launch_blocking", "cpp_stacks"]
VARIABLES = {
    "nccl": {"NCCL_DEBUG": "INFO"},
    "distributed": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    "cuda_launch_blocking": {"CUDA_LAUNCH_BLOCKING": "1"},
    "cpp_stacks": {"TORCH_SHOW_CPP_STACKTRACES": "1"},
}
"""{switch: environment variables that it sets}. The switch anomaly sets no variable: train/__main__.py acts
on it.
"""


def _as_list(value: Any) -> Any:
    # On the command line, debug=nccl,distributed is a single string.
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


DebugSwitches = Annotated[
    list[DebugSwitch],
    BeforeValidator(_as_list, json_schema_input_type=DebugSwitch | list[DebugSwitch]),
]


def debug_variables(switches: list[DebugSwitch]) -> dict[str, str]:
    """Return the environment variables that these switches set."""
    return {name: value for switch in switches for name, value in VARIABLES.get(switch, {}).items()}
