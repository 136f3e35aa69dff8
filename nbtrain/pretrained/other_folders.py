"""Recognizes folders that do not hold a model: adapters, shards of DeepSpeed or FSDP, a trainer's output.

what_it_is(path)    a sentence on how to get a readable folder from it; None if it is not recognized
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from nbtrain.base.text.amounts import counted
from nbtrain.base.text.order import natural
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import display

ADAPTERS = "adapter_config.json"
ZERO_3 = re.compile(r"zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt")
DEEPSPEED = re.compile(
    r"(bf16_|fp16_)?zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt|mp_rank_\d+_model_states\.pt"
)
# As verl and others name them: model_world_size_8_rank_0.pt.
RANK_OF_FSDP = re.compile(r"world_size_\d+_rank_\d+\.pt$")
STEP = re.compile(r"global_step\d{1,18}")
CHECKPOINT = re.compile(r"checkpoint-\d{1,18}")
# {ending: program that writes weights with this ending}
OTHER_WEIGHTS = {".gguf": "llama.cpp (GGUF)", ".h5": "TensorFlow", ".msgpack": "Flax", ".onnx": "ONNX"}


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
    if not (path / ADAPTERS).is_file():
        inside = next((place for place in _folders(path) if (place / ADAPTERS).is_file()), None)
        if inside is None or CHECKPOINT.fullmatch(inside.name):
            return None
        return f"a folder around adapters of peft: name {display(inside)} (as lora.init_from)."
    base = ""
    try:
        named = json.loads((path / ADAPTERS).read_text(encoding="utf-8")).get("base_model_name_or_path")
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
        file.name for place in steps for file in place.glob("*_states.pt") if ZERO_3.fullmatch(file.name)
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
