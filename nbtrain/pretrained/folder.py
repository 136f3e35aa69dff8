"""A model's folder: config.json, and the tensors of its safetensors files, found by reading their headers.

    config.json                                     the model's architecture
    model.safetensors                               its tensors in one file, or
    model.safetensors.index.json                    the file of each tensor, if there are
    model-00001-of-00005.safetensors, ...           several files
    generation_config.json                          ids that begin and end a text (may be missing)

A single file with nbtrain's own names, as written by `nbtrain export --to consolidated`, can be opened too;
its metadata replaces config.json. Nothing is unpickled, and no code from a folder is run. A folder that holds
no model is recognized (what_it_is): adapters, shards of DeepSpeed or FSDP, a trainer's output.
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
# A file that peft sometimes writes next to a model's config.json.
PEFT_WEIGHTS = "adapter_model.safetensors"
# Limit of a file's name on Linux (NAME_MAX).
MOST_NAME_BYTES = 255
# The key of a consolidated file's metadata that describes the model.
OWN = "nbtrain"

PEFT_SETTINGS = "adapter_config.json"
ZERO_3_FILE = re.compile(r"zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt")
DEEPSPEED = re.compile(
    r"(bf16_|fp16_)?zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt|mp_rank_\d+_model_states\.pt"
)
# As verl and others name them: model_world_size_8_rank_0.pt.
RANK_OF_FSDP = re.compile(r"world_size_\d+_rank_\d+\.pt$")
STEP = re.compile(r"global_step\d{1,18}")
CHECKPOINT = re.compile(r"checkpoint-\d{1,18}")
# {ending: program that writes weights with this ending}
OTHER_WEIGHTS = {".gguf": "llama.cpp (GGUF)", ".h5": "TensorFlow", ".msgpack": "Flax", ".onnx": "ONNX"}


@dataclass(frozen=True)
class ModelFolder:
    """The contents of a model's folder, or of one consolidated file."""

    path: Path
    config: dict[str, Any]
    """Contents of config.json, or of the metadata of a consolidated file."""
    tensors: Mapping[str, Tensor]
    is_own: bool = False
    """Whether it is a consolidated file with nbtrain's own names."""
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
        """SHA-256 of config.json, the index and all file headers: names, formats and offsets of tensors."""
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        digest.update(self.index)
        for header in self.headers:
            digest.update(header.content)
        return digest.hexdigest()


def open_folder(path: Path) -> ModelFolder:
    """Open a folder or a consolidated file. Raises CheckpointError with a one-sentence reason if it cannot be
    used.
    """
    if path.is_file() and path.suffix == SUFFIX:
        return _open_consolidated(path)
    if path.is_file():
        raise CheckpointError(
            f"{display(path)}: is a file. Give the folder that holds {CONFIG} and the safetensors files, or "
            f"a {SUFFIX} that `nbtrain export --to consolidated` has written."
        )
    if not path.is_dir():
        raise CheckpointError(
            f"{display(path)}: no such folder. Give one with {CONFIG} and safetensors files."
        )
    if not (path / CONFIG).is_file():
        if (what := what_it_is(path)) is not None:
            raise CheckpointError(f"{display(path)}: is {what}")
        raise CheckpointError(
            f"{display(path)}: has no {CONFIG}, which describes the model. Give a folder that "
            "`save_pretrained` of transformers has written."
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
            f"{display(path)}: its metadata does not describe the model. Give the folder with its {CONFIG}; "
            "single files are read only if `nbtrain export --to consolidated` wrote them."
        ) from None
    return ModelFolder(path, described, header.tensors, True, {}, (header,))


def _single_file(path: Path) -> Path:
    """Return the only safetensors file of a folder that has no index."""
    if (path / SINGLE).is_file():
        return path / SINGLE
    files = sorted(one for one in path.glob(f"*{SUFFIX}") if one.name != PEFT_WEIGHTS)
    if len(files) == 1:
        return files[0]
    if not files and (what := what_it_is(path)) is not None:
        raise CheckpointError(f"{display(path)}: is {what}")
    if files:
        raise CheckpointError(
            f"{display(path)}: holds {len(files)} safetensors files ({files[0].name}, ...) and no {INDEX}, "
            f"so some may be missing. Download the folder again."
        )
    if pickles := sorted(one.name for pattern in PICKLES for one in path.glob(pattern)):
        raise CheckpointError(
            f"{display(path)}: holds its weights as a pickle ({pickles[0]}), which can run code when it is "
            "loaded and is therefore not read. Get the safetensors files of the model, or convert it where "
            "you trust it: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...) of transformers."
        )
    raise CheckpointError(f"{display(path)}: contains no safetensors files. Download the folder again.")


def _open_shards(path: Path) -> tuple[dict[str, Tensor], tuple[Header, ...], bytes]:
    """Open all tensors of an index. Raises CheckpointError if the index and the files contradict each
    other.
    """
    where = display(path / INDEX)
    again = "Download the folder again."
    placed = _read_object(path / INDEX).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(name, str) for name in placed.values()):
        raise CheckpointError(
            f"{where}: has no weight_map, which says which file holds which tensor. {again}"
        )
    names = sorted(set(placed.values()))
    # An index decides which files are read: none outside of its folder.
    if strange := next((name for name in names if Path(name).name != name), None):
        raise CheckpointError(
            f"{where}: names the file {shortened(repr(strange))}, which is not in its folder. {again}"
        )
    # The system reports a name that is too long as an error, and not as a file that is missing.
    sizes = {name: len(name.encode(errors="surrogatepass")) for name in names}
    if long := next((name for name in names if sizes[name] > MOST_NAME_BYTES), None):
        raise CheckpointError(
            f"{where}: names the file {shortened(repr(long))}, whose name has {sizes[long]} bytes: the name "
            f"of a file has at most {MOST_NAME_BYTES}. {again}"
        )
    # save_pretrained removes neither when it writes the other one.
    if SINGLE not in names and (path / SINGLE).is_file():
        raise CheckpointError(
            f"{display(path)}: holds {SINGLE}, and {INDEX}, which names other files: transformers reads "
            f"{SINGLE} alone, and the others may be another model. Remove {SINGLE}, or the index and its "
            "files."
        )
    if missing := [name for name in names if not (path / name).is_file()]:
        raise CheckpointError(
            f"{display(path)}: {counted(len(missing), 'file')} of {len(names)} that {INDEX} names "
            f"{'is' if len(missing) == 1 else 'are'} missing, first {missing[0]}. {again}"
        )
    headers = {name: read_header(path / name) for name in names}
    tensors: dict[str, Tensor] = {}
    for tensor, name in placed.items():
        if tensor not in headers[name].tensors:
            raise CheckpointError(
                f"{where}: says that {name} holds {tensor}, and {name} does not hold it. {again}"
            )
        tensors[tensor] = headers[name].tensors[tensor]
    for name, header in headers.items():
        for tensor in header.tensors:
            if placed.get(tensor) != name:
                says = placed.get(tensor)
                what = f"says that it is in {says}" if says else "does not name it"
                raise CheckpointError(f"{where}: {name} holds {tensor}, and the index {what}. {again}")
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
        raise CheckpointError(f"{display(path)}: is not a JSON object.")
    return value


def what_it_is(path: Path) -> str | None:
    """Return "a folder of ...: what to do.", the end of a message; None if the folder is not recognized."""
    if not path.is_dir():
        return None
    return next((said for kind in KINDS if (said := kind(path)) is not None), None)


def _of_nbtrain(path: Path) -> str | None:
    run = next((place for place in (path, path.parent.parent) if (place / "run.json").is_file()), None)
    if run is None:
        return None
    return f"a run of nbtrain: set init_from: {display(run)}, and a checkpoint of it as init_step."


def _adapters(path: Path) -> str | None:
    if not (path / PEFT_SETTINGS).is_file():
        inside = next((place for place in _folders(path) if (place / PEFT_SETTINGS).is_file()), None)
        if inside is None or CHECKPOINT.fullmatch(inside.name):
            return None
        return f"a folder around adapters of peft: name {display(inside)} (as lora.init_from)."
    base = ""
    try:
        named = json.loads((path / PEFT_SETTINGS).read_text(encoding="utf-8")).get("base_model_name_or_path")
        base = f" ({shortened(str(named))})" if named else ""
    except (OSError, ValueError, AttributeError, RecursionError):
        pass
    return (
        f"a folder of adapters of peft, whose base{base} is not in it: name the base as init_from, and this "
        "folder as lora.init_from; or merge both once with merge_and_unload() of peft and save the model."
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
        "Join them where DeepSpeed is installed, in that folder: `python zero_to_fp32.py . JOINED "
        "--safe_serialization`, and copy config.json and the tokenizer to JOINED."
    )
    if parts:
        return (
            f"a checkpoint of DeepSpeed with ZeRO 3, of which {counted(len(parts), 'rank')} "
            f"{'holds' if len(parts) == 1 else 'hold'} a part of each weight. {join}"
        )
    return (
        "a checkpoint of DeepSpeed. `nbtrain import-model` reads one of Megatron, if the folder has no "
        f"config.json; join checkpoints of other programs first. {join}"
    )


def _fsdp(path: Path) -> str | None:
    places = [path, *_folders(path)]
    sharded = next((place for place in places if next(place.glob("*.distcp"), None) is not None), None)
    if sharded is None:
        ranks = [file for place in places for file in place.glob("*.pt") if RANK_OF_FSDP.search(file.name)]
        if not ranks:
            return None
        return (
            f"a checkpoint of FSDP with {counted(len(ranks), 'file')} of single ranks: join them with the "
            f"program that wrote them, and give the folder that it writes."
        )
    return (
        "a sharded checkpoint of torch.distributed (FSDP). Join it where accelerate is installed: "
        f"`accelerate merge-weights {display(sharded)} JOINED`, and copy config.json and the tokenizer to "
        "JOINED."
    )


def _trainer(path: Path) -> str | None:
    found = sorted((place.name for place in _folders(path) if CHECKPOINT.fullmatch(place.name)), key=natural)
    if not found:
        return None
    several = f"{found[0]} to {found[-1]}" if len(found) > 1 else found[0]
    return (
        f"the output folder of a Trainer, whose models are in {several}: name one, such as "
        f"{display(path / found[-1])}."
    )


def _hub_cache(path: Path) -> str | None:
    found = next((place for place in _folders(path / "snapshots")), None)
    return None if found is None else f"a folder of the Hub's cache: name {display(found)}."


def _megatron(path: Path) -> str | None:
    if not (path / "latest_checkpointed_iteration.txt").is_file():
        return None
    return f"a checkpoint of Megatron: `nbtrain import-model {display(path)} NAME` reads it."


def _other_weights(path: Path) -> str | None:
    for file in sorted(path.iterdir()):
        if (program := OTHER_WEIGHTS.get(file.suffix)) is not None:
            return (
                f"a folder with weights of {program} ({file.name}): get the safetensors files of the model."
            )
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
