"""The functions nb.search, nb.what_if and nb.largest: layouts of a run, a preset or a shape, on any GPUs."""

from typing import TYPE_CHECKING, Any

from nbtrain.api.arguments import text, whole_number, whole_or_none
from nbtrain.api.run import Run, RunLike
from nbtrain.base.errors import ConfigError
from nbtrain.config.load import Overrides
from nbtrain.config.shape import Shape

if TYPE_CHECKING:
    from nbtrain.lab.widgets.what_if import WhatIfPage
    from nbtrain.planner.search.largest import Largest
    from nbtrain.planner.search.search_results import FoundLayouts


def search(
    run: "RunLike | Shape",
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    gpu_type: str | None = None,
    overrides: Overrides = None,
    top: int = 10,
    batch: int = 1024,
) -> "FoundLayouts":
    """Rank every valid layout of a model on some GPUs by time and memory headroom. Default: the run's GPUs.

    The number format is bf16 if the GPU supports it, unless an override sets precision.dtype. `batch` is the
    global batch size for a shape; a run has its own. `.use(1, "run.yaml")` writes the run YAML of the first
    layout.
    """
    from nbtrain.planner.search.search import search as search_layouts
    from nbtrain.planner.search.search_results import FoundLayouts

    top = whole_number("top", top)
    if top < 1:
        raise ConfigError(f"top = {top} must be at least 1.")
    device = _machines(gpus, gpus_per_node, gpu_type)
    found = search_layouts(_model(run), *device, overrides, whole_number("batch", batch))
    return FoundLayouts(found, top)


def what_if(
    run: RunLike,
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    gpu_type: str | None = None,
    overrides: Overrides = None,
) -> "WhatIfPage":
    """Show sliders and menus for a run's layout. They snap to valid values and redraw memory and time.

    The first line says whether the layout fits, its time and its disk space. The button writes the
    layout as a run YAML.
    """
    from nbtrain.lab.widgets.what_if import WhatIfPage
    from nbtrain.planner.search.what_if import what_if as start

    return WhatIfPage(start(_model(run), *_machines(gpus, gpus_per_node, gpu_type), overrides))


def largest(
    run: RunLike,
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    gpu_type: str | None = None,
    overrides: Overrides = None,
) -> "Largest":
    """Find the largest GPT model, and the longest sequence of the run, that fit on some GPUs.

    A table compares pure TP x PP, pure ZeRO 3 and any layout by memory, time, MFU and longest sequence.
    """
    from nbtrain.planner.search.largest import largest as find
    from nbtrain.planner.search.legal import space_of
    from nbtrain.planner.search.search import run_on

    config = run_on(_model(run), *_machines(gpus, gpus_per_node, gpu_type), overrides)
    return find(space_of(config), config.name)


def _model(run: Any) -> Any:
    return run.config if isinstance(run, Run) else run


def _machines(
    gpus: int | None, gpus_per_node: int | None, gpu_type: str | None
) -> tuple[int | None, int | None, str | None]:
    return (
        whole_or_none("gpus", gpus, "the run's own GPUs"),
        whole_or_none("gpus_per_node", gpus_per_node, "the run's own number per machine"),
        None if gpu_type is None else text("gpu_type", gpu_type),
    )
