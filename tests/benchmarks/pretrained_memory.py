"""Host memory of a rank while it loads its shards of a model's folder.

    python tests/benchmarks/pretrained_memory.py [--layers 16]

The model is a Llama of 271M parameters (160M with 8 layers) in bf16, in four files. The ranks of each layout
build their engine and then load the weights, in separate processes. A machine must provide the anonymous
memory (RssAnon); pages of the mapped files (RssFile) are released when memory is short. The first three
columns exclude what the process uses after its imports. "Beyond both" is the maximum during the load minus
the larger of the values before and after; the load also touches memory that the engine had only reserved. On
a CPU, the engine and its optimizer use host memory too.
"""

import argparse
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MIB = 2**20
SIZES = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 2816,
    "vocab_size": 32_000,
}
# One rank holds everything; row-parallel slices touch every page; ZeRO 3 shards a module as it is created.
LAYOUTS = {
    "1 rank": {},
    "tensor 2": {"parallel.tensor_parallel_size": 2},
    "pipeline 2": {"parallel.pipeline_parallel_size": 2, "batch.global_batch_size": 2},
    "data 2, ZeRO 1": {"parallel.data_parallel_size": 2},
    "data 2, ZeRO 3": {"parallel.data_parallel_size": 2, "parallel.zero_stage": 3},
}


def memory() -> dict[str, int]:
    """Return the bytes of this process, by kind."""
    text = Path("/proc/self/status").read_text()
    return {key: int(value) * 1024 for key, value in re.findall(r"(Rss\w+|VmRSS|VmHWM):\s+(\d+) kB", text)}


class Watch:
    """A context manager that tracks the maximum of anonymous memory and of mapped pages."""

    def __enter__(self) -> "Watch":
        self.before, self.most, self.done = memory(), memory(), threading.Event()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        return self

    def _look(self) -> None:
        while not self.done.wait(0.002):
            now = memory()
            self.most = {key: max(value, now[key]) for key, value in self.most.items()}

    def __exit__(self, *_: Any) -> None:
        self.done.set()
        self.thread.join()
        self.after = memory()


def make_folder(folder: Path, layers: int) -> int:
    """Write a folder with random weights as transformers does, and return the number of parameters."""
    import torch
    from safetensors.torch import save_file

    from nbtrain.base import files

    hidden, ffn, vocab = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["vocab_size"]
    groups = hidden // SIZES["num_attention_heads"] * SIZES["num_key_value_heads"]
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        **SIZES,
        "num_hidden_layers": layers,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_theta": 10000.0,
        "dtype": "bfloat16",
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(layers):
        block = f"model.layers.{layer}."
        for name, shape in {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (groups, hidden),
            "self_attn.v_proj": (groups, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }.items():
            shapes[f"{block}{name}.weight"] = shape
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}
    folder.mkdir()
    files.write_json(folder / "config.json", config)
    torch.manual_seed(0)
    names, of_file, total = list(shapes), {}, 0
    quarter = -(-len(names) // 4)
    for number in range(4):
        file = f"model-{number + 1:05}-of-00004.safetensors"
        tensors = {}
        for name in names[number * quarter : (number + 1) * quarter]:
            ones = len(shapes[name]) == 1
            tensors[name] = (torch.ones if ones else torch.randn)(shapes[name], dtype=torch.bfloat16)
            tensors[name] *= 1 if ones else 0.02
            of_file[name] = file
            total += tensors[name].numel()
        save_file(tensors, folder / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 2 * total}, "weight_map": of_file}
    files.write_json(folder / "model.safetensors.index.json", index)
    return total


def rank(answer: str, config_file: str) -> None:
    """Run one rank: build the engine, load, and write the measurements."""
    from nbtrain.base.process.parent_death import die_with_parent
    from nbtrain.config.load import load

    die_with_parent()
    from nbtrain.checkpoint import reshape
    from nbtrain.checkpoint.weights.folder_weights import PIECE_ELEMENTS, FolderWeights
    from nbtrain.parallel import startup
    from nbtrain.parallel.groups import ParallelGroups
    from nbtrain.pretrained.model import open_model
    from nbtrain.train.build import build_engine

    world = startup.start("cpu", 600)
    config = load(config_file)
    imported = memory()
    groups = ParallelGroups.create(config.topology, 1, 600)
    engine = build_engine(config, groups, None).deepspeed
    weights = FolderWeights(open_model(Path(config.init_from)), config.tokenizer.vocab_size)
    tensor = (groups.tensor_model_parallel.rank, groups.tensor_model_parallel.size)
    started, read = time.perf_counter(), {}
    round_weights = reshape._round_weights

    def after_reading(optimizer: Any) -> None:
        # Later allocations belong to the optimizer, on the device.
        read.update(watch.most, last=memory()["RssAnon"])
        round_weights(optimizer)

    reshape._round_weights = after_reading
    with Watch() as watch:
        reshape.load_masters(engine, weights, tensor, config.padded_vocab_size, PIECE_ELEMENTS)
    found = {
        "imported": imported["RssAnon"],
        "before": watch.before["RssAnon"],
        "most": read["RssAnon"],
        "after": read["last"],
        "mapped": read["RssFile"] - watch.before["RssFile"],
        "seconds": time.perf_counter() - started,
    }
    Path(f"{answer}.{world.rank}").write_text(json.dumps(found))
    startup.finish()


def measure(folder: Path, words: dict[str, Any], scratch: Path) -> list[dict[str, Any]]:
    """Measure a layout and return the results of each rank."""
    from nbtrain.config.load import load, to_yaml
    from nbtrain.pretrained.model import open_model

    described = open_model(folder).described
    ranks = 1
    for key, value in words.items():
        ranks *= value if key.endswith("_parallel_size") else 1
    overrides = {
        **{f"model.{key}": value for key, value in described.fields.items()},
        "model.seq_length": 128,
        "model.hidden_dropout": 0.0,
        "model.attention_dropout": 0.0,
        "tokenizer.vocab_size": described.vocab_size,
        "tokenizer.eod_token": None,
        "precision.dtype": "bf16",
        "parallel.zero_stage": 1,
        "resources.device": "cpu",
        "batch.micro_batch_size": 1,
        "batch.global_batch_size": ranks,
        "init_from": str(folder),
        **words,
    }
    config = load("gpt3-tiny", {key: value for key, value in overrides.items() if value is not None})
    path = scratch / "run.yaml"
    path.write_text(to_yaml(config))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [__file__, "--rank", str(scratch / "answer"), "--config", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((scratch / f"answer.{number}").read_text()) for number in range(ranks)]


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Create a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--config", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank(arguments.rank, arguments.config)
        return
    with scratch_folder() as scratch:
        count = make_folder(scratch / "model", arguments.layers)
        print(f"{count / 1e6:,.0f}M parameters in bf16, {2 * count / MIB:,.0f} MiB of files\n")
        print("| layout | engine | after the load | most while it loads | beyond both | mapped | seconds |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for name, overrides in LAYOUTS.items():
            for each in measure(scratch / "model", overrides, scratch)[-1:]:
                mib = {key: value / MIB for key, value in each.items()}
                beyond = mib["most"] - max(mib["before"], mib["after"])
                row = [mib[key] - mib["imported"] for key in ("before", "after", "most")]
                words = " | ".join(f"{value:,.0f} MiB" for value in (*row, beyond, mib["mapped"]))
                print(f"| {name} | {words} | {each['seconds']:.1f} |", flush=True)
        print(f"\npeak of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")


if __name__ == "__main__":
    main()
