"""Step `offload`: state in host memory and on NVMe, compared with the same run entirely on the GPU.

The CPU computes the optimizer's step in fp32, as the GPU does. Rounding to bf16 afterwards may differ, so the
curves may differ as much as bf16 allows. NVMe is a folder on the local disk, which DeepSpeed accesses with
libaio.
"""

import functools
from collections.abc import Iterator
from typing import Any

from nbtrain.config.load import load_resolved
from nbtrain.jobs.checks.preflight_tools import extensions_can_be_built
from nbtrain.jobs.request.launch import read_launch
from tests.gpu.cases import Case, Finding, Impossible, Place, passed_if
from tests.gpu.parity import FORMATS, overrides_of
from tests.gpu.tolerance import allowed, difference
from tests.gpu.trained import Trained, Trainings

ZERO_3 = FORMATS["bf16"] | {"parallel.zero_stage": 3}
OPTIMIZER, PARAM = "parallel.offload_optimizer", "parallel.offload_param"


def settings(folder: str, on_gpu: bool) -> dict[str, dict[str, Any]]:
    """Return the offloading settings of the case with this name."""
    cpu = {f"{OPTIMIZER}.device": "cpu"}
    nvme = {f"{OPTIMIZER}.device": "nvme", f"{OPTIMIZER}.nvme_path": folder}
    nvme_param = {f"{PARAM}.device": "nvme", f"{PARAM}.nvme_path": folder}
    if not on_gpu:
        return {"optimizer in host memory": cpu, "optimizer on NVMe": nvme}
    return {
        "optimizer in host memory": cpu,
        "optimizer in host memory, pinned": cpu | {f"{OPTIMIZER}.pin_memory": True},
        "optimizer and parameters in host memory": cpu | {f"{PARAM}.device": "cpu"},
        "optimizer in host memory, ZeRO 2": cpu | {"parallel.zero_stage": 2},
        "optimizer on NVMe": nvme,
        "optimizer and parameters on NVMe": nvme | nvme_param,
    }


def cases(place: Place) -> Iterator[Case]:
    """Yield a case with host memory, then one with NVMe."""
    trainings = Trainings(place)
    folder = place.folder / "nvme"
    folder.mkdir(parents=True, exist_ok=True)

    @functools.cache
    def reference() -> Trained:
        return _train(trainings, "reference", {})

    def find(name: str, overrides: dict[str, Any]) -> Finding:
        ours, theirs = _train(trainings, name, overrides), reference()
        found = difference(ours.losses, ours.norms, theirs.losses, theirs.norms)
        limit = allowed("bf16")
        values = {"loss": f"{found.loss:.1e}", "allowed": f"{limit.loss:.1e}"}
        return passed_if(found.loss <= limit.loss, f"{len(ours.losses)} steps", values)

    for name, overrides in settings(str(folder.resolve()), place.on_gpu).items():
        yield Case(name, functools.partial(find, name, overrides))


def _train(trainings: Trainings, name: str, overrides: dict[str, Any]) -> Trained:
    data = {"data.name": trainings.dataset("walks", 600, (64, 512), 500)}
    run = trainings.make(name, {**overrides_of(trainings.place.on_gpu), **data, **ZERO_3, **overrides})
    if reasons := list(extensions_can_be_built(read_launch(load_resolved(run.config_yaml)))):
        raise Impossible(" ".join(map(str, reasons)))
    return trainings.train(run)
