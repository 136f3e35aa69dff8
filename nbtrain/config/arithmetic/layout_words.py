"""Kinds of parallelism: their fields of the section `parallel`, and a layout as text.

layout_words({"data_parallel_size": 2, "pipeline_parallel_size": 4}) -> "data 2 x pipeline 4"
"""

from collections.abc import Mapping
from typing import Any

PARALLELISM = {
    "data": "data",
    "pipeline": "pipeline",
    "tensor": "tensor",
    "ds_sequence": "Ulysses",
    "context": "context",
}
"""{kind, the beginning of its field `..._parallel_size`: its name in a layout}."""
MODEL_KINDS = tuple(kind for kind in PARALLELISM if kind != "data")
"""Kinds that share one replica of the model among ranks."""
SIZE_KEYS = tuple(f"{kind}_parallel_size" for kind in PARALLELISM)


def layout_words(sizes: Mapping[str, Any]) -> str:
    """Return the sizes above 1 of a layout, by the names of SIZE_KEYS; a size that is missing is 1."""
    found = [(name, sizes.get(key, 1)) for key, name in zip(SIZE_KEYS, PARALLELISM.values())]
    return " x ".join(f"{name} {size}" for name, size in found if size > 1) or "1 rank"
