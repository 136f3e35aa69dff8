"""Converts a Megatron checkpoint to a safetensors file in the data directory, from which a run can start.

The process with torch reads the checkpoint, whose files are pickles, with weights_only=True. If the files do
not determine the order of the rows of query, key and value, the user specifies the order, or a text: the
order with the lower loss on the text is used.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.printing.progress import Progress
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import data_home, display, resolve, tokenizer_dir, typed_path
from nbtrain.corpus.tokenizer.folder import EOD_TOKEN, adopt
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.exchange.atomic_output import new_place
from nbtrain.jobs.gpu_side import stream
from nbtrain.pretrained.folder import SINGLE
from nbtrain.pretrained.megatron import ORDERS, MegatronTree

# Number of tokens of the text that are used to find the order of query, key and value: enough for a
# meaningful loss. More tokens would take longer.
TEXT_TOKENS = 512
TEXT_BYTES = 64 << 10
# Advice if the converted file exists. It is named after the run, and there is no option for its path.
OTHER_NAME = "Choose another NAME, or remove the file if no run starts from it."


@contextlib.contextmanager
def converted(
    tree: MegatronTree, name: str, order: str | None, text: str | Path | None, section: dict[str, Any]
) -> Iterator[tuple[Path, Path, list[str]]]:
    """Convert a Megatron checkpoint, and yield (path of the written file, its final path, notes).

    The file is moved to its final path if the `with` block ends without an error. `section` has the overrides
    of the run's tokenizer, which encodes `text`. Raises CheckpointError if the checkpoint cannot be
    converted, and ConfigError for invalid arguments.
    """
    if order is not None and order not in ORDERS:
        raise ConfigError(f"qkv_order = {order!r} must be {' or '.join(ORDERS)}.")
    tokens = ids_of_text(text, section) if text is not None else None
    kept = data_home() / "model" / f"{name}.safetensors"
    # The files may also contain the optimizer state, so their size is not the weights' size. The other
    # process knows the weights' size and checks the free disk space.
    with new_place(kept, 0, SINGLE, OTHER_NAME) as made:
        request = {
            "target": "megatron",
            "tree": str(tree.folder),
            "to": str(made / SINGLE),
            "order": order,
            "tokens": tokens,
        }
        done, notes = 0, []
        with Progress("join", None, "B") as bar:
            for answer in stream("nbtrain.checkpoint.pretrained", request):
                if answer["kind"] == "progress":
                    bar.total = answer["total"]
                    bar.update(answer["done"] - done)
                    done = answer["done"]
                elif answer["kind"] == "end":
                    notes = answer["notes"]
        yield made / SINGLE, kept, notes


def ids_of_text(text: str | Path, section: dict[str, Any]) -> list[int]:
    """Return the first TEXT_TOKENS token ids of a text file, encoded with the new run's tokenizer.

    Raises ConfigError if the file cannot be read, or if `section` does not specify a tokenizer.
    """
    path = typed_path(text)
    try:
        path = path if path.is_file() else resolve(text)
        content = path.read_bytes()[:TEXT_BYTES].decode(errors="ignore")
    except OSError as error:
        where = shortened(display(path))
        raise ConfigError(f"--text {where}: cannot be read: {error.strerror}. Give a text file.") from None
    given, name = section.get("path"), section.get("name")
    if given is None and name is None:
        raise ConfigError(
            "--text needs the tokenizer with which the model was trained: add tokenizer.path=FOLDER, or "
            "tokenizer.name=NAME for a tokenizer in data/tokenizer/."
        )
    with tempfile.TemporaryDirectory() as folder:
        if given is not None:
            manifest = adopt(resolve(given), section.get("eod_token") or EOD_TOKEN, Path(folder))
            tokenizer = Tokenizer.load(folder, manifest=manifest)
        else:
            tokenizer = Tokenizer.load(tokenizer_dir(str(name)))
        return [int(token) for token in tokenizer.encode(content)[:TEXT_TOKENS]]
