"""A model folder: config.json, and the tensors in its safetensors files, found by reading their headers.

    config.json                                     the model's architecture
    model.safetensors                               all tensors in one file, or
    model.safetensors.index.json                    an index that maps each tensor to one of
    model-00001-of-00005.safetensors, ...           several files
    generation_config.json                          ids that begin and end a text (optional)

A single file with nbtrain's own names, as written by `nbtrain export --to consolidated`, can be opened too.
Its metadata replaces config.json. Nothing is unpickled, and no code from a folder is run. Some folders that
do not contain a model are recognized (what_it_is): adapters, DeepSpeed or FSDP shards, a Trainer's output.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nbtrain.base.errors import CheckpointError
from nbtrain.base.git_lfs import pointer_problem_of
from nbtrain.base.text.amounts import counted
from nbtrain.base.text.order import natural
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import display
from nbtrain.pretrained.header import Header, Tensor, read_header

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# peft sometimes writes this file next to a model's config.json.
PEFT_WEIGHTS = "adapter_model.safetensors"
# Maximum length of a file name on Linux (NAME_MAX).
MOST_NAME_BYTES = 255
# Key in a consolidated file's metadata whose value describes the model.
OWN = "nbtrain"

PEFT_SETTINGS = "adapter_config.json"
ZERO_3_FILE = re.compile(r"zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt")
DEEPSPEED = re.compile(
    r"(bf16_|fp16_)?zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt|mp_rank_\d+_model_states\.pt"
)
# Files such as model_world_size_8_rank_0.pt, which verl and other programs write.
RANK_OF_FSDP = re.compile(r"world_size_\d+_rank_\d+\.pt$")
STEP = re.compile(r"global_step\d{1,18}")
CHECKPOINT = re.compile(r"checkpoint-\d{1,18}")
# {file suffix: program that writes weights with this suffix}
OTHER_WEIGHTS = {".gguf": "llama.cpp (GGUF)", ".h5": "TensorFlow", ".msgpack": "Flax", ".onnx": "ONNX"}


@dataclass(frozen=True)
class ModelFolder:
    """The contents of a model folder, or of one consolidated file (all tensors, with nbtrain's own names)."""

    path: Path
    config: dict[str, Any]
    """Contents of config.json, or of a consolidated file's metadata."""
    tensors: Mapping[str, Tensor]
    is_own: bool = False
    """Whether `path` is a consolidated file with nbtrain's own names."""
    generation_config: dict[str, Any] = field(default_factory=dict)
    headers: tuple[Header, ...] = ()
    index: bytes = b""

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors.values())

    @property
    def shards(self) -> list[Path]:
        return sorted({tensor.path for tensor in self.tensors.values()})

    @cached_property
    def sha256(self) -> str:
        """SHA-256 over config.json, the index and the headers: names, formats and offsets of all tensors."""
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        digest.update(self.index)
        for header in self.headers:
            digest.update(header.content)
        return digest.hexdigest()


def open_folder(path: Path) -> ModelFolder:
    """Open a model folder or a consolidated file.

    Raises CheckpointError, with the reason and what to do, if it cannot be used.
    """
    if path.is_file() and path.suffix == SUFFIX:
        return _open_consolidated(path)
    if path.is_file():
        raise CheckpointError(
            f"{display(path)} is a file. Pass the folder with {CONFIG} and the safetensors files, or a "
            f"{SUFFIX} file that `nbtrain export --to consolidated` has written."
        )
    if not path.is_dir():
        raise CheckpointError(
            f"{display(path)}: no such folder. Pass a folder with {CONFIG} and safetensors files."
        )
    if not (path / CONFIG).is_file():
        if (what := what_it_is(path)) is not None:
            raise CheckpointError(f"{display(path)} is {what}")
        raise CheckpointError(
            f"{display(path)} has no {CONFIG}, which describes the model. Pass a folder that transformers' "
            "`save_pretrained` has written."
        )
    config = _read_object(path / CONFIG)
    generation = path / GENERATION_CONFIG
    found = _read_object(generation) if generation.is_file() else {}
    if (path / INDEX).is_file():
        tensors, headers, index = _open_shards(path)
        return ModelFolder(path, config, tensors, False, found, headers, index)
    header = read_header(_single_file(path))
    return ModelFolder(path, config, header.tensors, False, found, (header,))


def _open_consolidated(path: Path) -> ModelFolder:
    header = read_header(path)
    try:
        described = json.loads(header.metadata[OWN])
    except (KeyError, ValueError, TypeError, RecursionError):
        raise CheckpointError(
            f"{display(path)}: the file's metadata does not describe the model. Pass the folder with the "
            f"model's {CONFIG}. A single file can be used only if `nbtrain export --to consolidated` wrote "
            "it."
        ) from None
    return ModelFolder(path, described, header.tensors, True, {}, (header,))


def _single_file(path: Path) -> Path:
    """Return the only safetensors file of a folder that has no index.

    Raises CheckpointError, with what the folder contains instead, if there is not exactly one such file.
    """
    if (path / SINGLE).is_file():
        return path / SINGLE
    files = sorted(one for one in path.glob(f"*{SUFFIX}") if one.name != PEFT_WEIGHTS)
    if len(files) == 1:
        return files[0]
    if not files and (what := what_it_is(path)) is not None:
        raise CheckpointError(f"{display(path)} is {what}")
    if files:
        raise CheckpointError(
            f"{display(path)} contains {len(files)} safetensors files ({files[0].name}, ...) but no {INDEX}, "
            "so files may be missing. Download the folder again."
        )
    if pickles := sorted(one.name for pattern in PICKLES for one in path.glob(pattern)):
        raise CheckpointError(
            f"{display(path)}: the weights are in a pickle ({pickles[0]}), which can run code when it is "
            "loaded, so nbtrain does not read it. Get the model's safetensors files, or, if you trust the "
            "pickle, convert it with transformers: "
            "AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)."
        )
    raise CheckpointError(f"{display(path)} contains no safetensors files. Download the folder again.")


def _open_shards(path: Path) -> tuple[dict[str, Tensor], tuple[Header, ...], bytes]:
    """Return (tensors, headers, content of the index) of a model in several files.

    Raises CheckpointError if the index and the files contradict each other.
    """
    where = display(path / INDEX)
    again = "Download the folder again."
    placed = _read_object(path / INDEX).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(name, str) for name in placed.values()):
        raise CheckpointError(
            f"{where} has no weight_map, which maps each tensor to the file that contains it. {again}"
        )
    names = sorted(set(placed.values()))
    # The index decides which files are read, and must not name files outside of its folder.
    if strange := next((name for name in names if Path(name).name != name), None):
        raise CheckpointError(
            f"{where} names the file {shortened(repr(strange))}, which is not in the same folder. {again}"
        )
    # For a name that is too long, the system raises an error instead of reporting a missing file.
    sizes = {name: len(name.encode(errors="surrogatepass")) for name in names}
    if long := next((name for name in names if sizes[name] > MOST_NAME_BYTES), None):
        raise CheckpointError(
            f"{where} names the file {shortened(repr(long))}. The name has {sizes[long]} bytes, but a file "
            f"name can have at most {MOST_NAME_BYTES}. {again}"
        )
    # When save_pretrained writes one of the two layouts, it does not remove the files of the other.
    if SINGLE not in names and (path / SINGLE).is_file():
        raise CheckpointError(
            f"{display(path)} contains {SINGLE} and also {INDEX}, which names other files. transformers "
            f"reads only {SINGLE}, and the other files may be another model. Remove {SINGLE}, or remove the "
            "index and the files that it names."
        )
    if missing := [name for name in names if not (path / name).is_file()]:
        if len(missing) == 1:
            raise CheckpointError(
                f"{display(path)}: of the {len(names)} files in {INDEX}, {missing[0]} is missing. {again}"
            )
        raise CheckpointError(
            f"{display(path)}: of the {len(names)} files in {INDEX}, {len(missing)} are missing, such as "
            f"{missing[0]}. {again}"
        )
    headers = {name: read_header(path / name) for name in names}
    tensors: dict[str, Tensor] = {}
    for tensor, name in placed.items():
        if tensor not in headers[name].tensors:
            raise CheckpointError(
                f"{where}: the index says that {tensor} is in {name}, but {name} does not contain this "
                f"tensor. {again}"
            )
        tensors[tensor] = headers[name].tensors[tensor]
    for name, header in headers.items():
        for tensor in header.tensors:
            if placed.get(tensor) != name:
                says = placed.get(tensor)
                what = f"says that this tensor is in {says}" if says else "does not list this tensor"
                raise CheckpointError(f"{where}: {name} contains {tensor}, but the index {what}. {again}")
    return tensors, tuple(headers.values()), (path / INDEX).read_bytes()


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if problem := pointer_problem_of(path):
            raise CheckpointError(f"{display(path)}: {problem}.") from error
        raise CheckpointError(
            f"{display(path)}: cannot be read as JSON: {error}. Download the folder again."
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{display(path)} is not a JSON object. Download the folder again.")
    return value


def what_it_is(path: Path) -> str | None:
    """Return what a folder contains instead of a model, and what to do; None if it is not recognized.

    The text ends a sentence that begins with "FOLDER is", such as "a folder in the Hub's cache: pass FOLDER."
    """
    if not path.is_dir():
        return None
    return next((said for kind in KINDS if (said := kind(path)) is not None), None)


def _of_nbtrain(path: Path) -> str | None:
    run = next((place for place in (path, path.parent.parent) if (place / "run.json").is_file()), None)
    if run is None:
        return None
    return (
        f"in an nbtrain run: set init_from to {display(run)}, and set init_step to choose one of the run's "
        "checkpoints."
    )


def _adapters(path: Path) -> str | None:
    if not (path / PEFT_SETTINGS).is_file():
        inside = next((place for place in _folders(path) if (place / PEFT_SETTINGS).is_file()), None)
        if inside is None or CHECKPOINT.fullmatch(inside.name):
            return None
        return (
            f"a folder that contains peft adapters in a subfolder: set lora.init_from to {display(inside)}."
        )
    base = ""
    try:
        named = json.loads((path / PEFT_SETTINGS).read_text(encoding="utf-8")).get("base_model_name_or_path")
        base = f" ({shortened(str(named))})" if named else ""
    except (OSError, ValueError, AttributeError, RecursionError):
        pass
    return (
        f"a folder of peft adapters without their base model{base}: set init_from to the base model and "
        "lora.init_from to this folder, or merge both once with peft's merge_and_unload() and save the model."
    )


def _deepspeed(path: Path) -> str | None:
    steps = [path, *(place for place in _folders(path) if STEP.fullmatch(place.name))]
    names = [
        file.name for place in steps for file in place.glob("*_states.pt") if DEEPSPEED.fullmatch(file.name)
    ]
    parts = {
        file.name for place in steps for file in place.glob("*_states.pt") if ZERO_3_FILE.fullmatch(file.name)
    }
    if not names and not parts:
        return None
    join = (
        "On a machine with DeepSpeed, run `python zero_to_fp32.py . JOINED --safe_serialization` in that "
        "folder, and copy config.json and the tokenizer to JOINED."
    )
    if parts:
        return (
            f"a DeepSpeed ZeRO 3 checkpoint, whose weights are sharded across {counted(len(parts), 'rank')}. "
            f"{join}"
        )
    return (
        "a DeepSpeed checkpoint. `nbtrain import-model` imports DeepSpeed checkpoints of Megatron models if "
        f"the folder has no config.json. Combine the files of other models first. {join}"
    )


def _fsdp(path: Path) -> str | None:
    places = [path, *_folders(path)]
    sharded = next((place for place in places if next(place.glob("*.distcp"), None) is not None), None)
    if sharded is None:
        ranks = [file for place in places for file in place.glob("*.pt") if RANK_OF_FSDP.search(file.name)]
        if not ranks:
            return None
        return (
            f"an FSDP checkpoint with a file for each rank ({counted(len(ranks), 'file')}): merge the files "
            "with the program that wrote them, and pass the folder of the merged model."
        )
    return (
        "a sharded torch.distributed checkpoint (FSDP). On a machine with accelerate, run "
        f"`accelerate merge-weights {display(sharded)} JOINED`, and copy config.json and the tokenizer to "
        "JOINED."
    )


def _trainer(path: Path) -> str | None:
    found = sorted((place.name for place in _folders(path) if CHECKPOINT.fullmatch(place.name)), key=natural)
    if not found:
        return None
    newest = display(path / found[-1])
    if len(found) == 1:
        return f"a Trainer's output folder, whose model is in {found[0]}: pass {newest}."
    return (
        f"a Trainer's output folder, whose models are in {found[0]} to {found[-1]}: pass one of these "
        f"folders, such as {newest}."
    )


def _hub_cache(path: Path) -> str | None:
    found = next((place for place in _folders(path / "snapshots")), None)
    return None if found is None else f"a folder in the Hub's cache: pass {display(found)}."


def _megatron(path: Path) -> str | None:
    if not (path / "latest_checkpointed_iteration.txt").is_file():
        return None
    return f"a Megatron checkpoint: run `nbtrain import-model {display(path)} NAME` to import it."


def _other_weights(path: Path) -> str | None:
    for file in sorted(path.iterdir()):
        if (program := OTHER_WEIGHTS.get(file.suffix)) is not None:
            return f"a folder with {program} weights ({file.name}): get the model's safetensors files."
    return None


def _folders(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(place for place in path.iterdir() if place.is_dir())


KINDS: tuple[Callable[[Path], str | None], ...] = (
    _of_nbtrain,
    _adapters,
    _deepspeed,
    _fsdp,
    _trainer,
    _hub_cache,
    _megatron,
    _other_weights,
)
