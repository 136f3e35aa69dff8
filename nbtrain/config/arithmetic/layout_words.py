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
"""{kind of parallelism: its name in a layout}. The field `<kind>_parallel_size` sets the kind's size."""
MODEL_KINDS = tuple(kind for kind in PARALLELISM if kind != "data")
"""Kinds of parallelism that spread one replica of the model over several ranks."""
SIZE_KEYS = tuple(f"{kind}_parallel_size" for kind in PARALLELISM)


def layout_words(sizes: Mapping[str, Any]) -> str:
    """Return a layout as text, such as "data 2 x pipeline 4"; "1 rank" if all sizes are 1.

    The keys of `sizes` are SIZE_KEYS. A missing size is 1.
    """
    found = [(name, sizes.get(key, 1)) for key, name in zip(SIZE_KEYS, PARALLELISM.values())]
    return " x ".join(f"{name} {size}" for name, size in found if size > 1) or "1 rank"
