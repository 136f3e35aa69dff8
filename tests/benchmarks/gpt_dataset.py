"""The GPT dataset: seconds and memory to build its index and to read samples, compared with upstream.

    python tests/benchmarks/gpt_dataset.py [--documents 1000000] [--tokens 200] [--epochs 20] [--rounds 3]

Build: (a) is nbtrain.dataset.samples.gpt_dataset as prepare calls it; arrays are filled inside their files,
and fsync is included. (b) is NumPy code as upstream writes it: numpy.mgrid, whole arrays, numpy.save. (c) is
megatron-core's GPTDataset with its cache, if it is installed; its import is not counted. (d) is (a) with
shuffle per_epoch: the first epoch alone.

Blend: CPU seconds to choose the datasets of 10,000,000 samples by weight, from 2, 5 and 20 datasets, compared
with megatron-core's C++ loop.

Read: microseconds per sample at seeded random positions, after one uncounted round: (a) dataset[i], (e)
dataset.sample(i) with positions, document bounds and EOD mask, (c) megatron-core's dataset[i] without masks.

Every variant runs in a separate process. The variants alternate in each round, and medians are printed.
Memory is what the process adds during the measurement: "own" is anonymous memory, which only the process can
free; "resident" also counts mapped pages of the index files, which the system reclaims when it needs them.
Token files are sparse files of zeros, because building does not read them. Asserts that (a), (b) and (c) give
the same arrays, by their hash, and that the blends are equal.
"""

import argparse
import gc
import hashlib
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

SEED, SEQ_LENGTH, VOCABULARY = 1234, 2048, 50_000
BLEND_SAMPLES, BLENDS = 10_000_000, (2, 5, 20)
ARRAYS = ("document_index", "sample_index", "shuffle_index")


class Memory:
    """The maximum anonymous and resident memory that this process has added, sampled every 2 ms."""

    def __enter__(self) -> "Memory":
        gc.collect()
        self._before = self._now()
        self.own_mib = self.resident_mib = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            own, resident = self._now()
            self.own_mib = max(self.own_mib, own - self._before[0])
            self.resident_mib = max(self.resident_mib, resident - self._before[1])

    @staticmethod
    def _now() -> tuple[float, float]:
        lines = Path("/proc/self/status").read_text().splitlines()
        found = {
            key: int(value.split()[0])
            for key, _, value in (line.partition(":") for line in lines)
            if "kB" in value
        }
        return found["RssAnon"] / 1024, found["VmRSS"] / 1024


def make_data(folder: Path, documents: int, mean_tokens: int) -> None:
    """Write a dataset whose documents have 1 to 2 * mean tokens and whose token file is sparse."""
    from nbtrain.dataset.indexed_writer import write_index

    lengths = np.random.default_rng(0).integers(1, 2 * mean_tokens, documents).astype(np.int32)
    write_index(folder / "x_document.idx", np.dtype("<u2"), lengths)
    with (folder / "x_document.bin").open("wb") as stream:
        stream.truncate(2 * int(lengths.sum(dtype=np.int64)))


def num_samples(folder: Path, epochs: int) -> int:
    """Return the samples in `epochs` - 0.5 epochs, so that the last, partial epoch is shuffled separately."""
    from nbtrain.dataset.indexed import IndexedDataset

    tokens = int(IndexedDataset(folder / "x_document").lengths.sum(dtype=np.int64))
    return int((epochs - 0.5) * tokens) // SEQ_LENGTH


def ours(folder: Path, cache: Path, samples: int, shuffle: str = "megatron", masks: bool = False) -> Any:
    from nbtrain.dataset.indexed import IndexedDataset
    from nbtrain.dataset.samples.gpt_dataset import GPTDataset, SampleOptions

    indexed = IndexedDataset(folder / "x_document")
    options = SampleOptions(masks, masks, masks, 0)
    bounds = (0, len(indexed))
    return GPTDataset(indexed, cache, "x", bounds, SEQ_LENGTH, samples, 1, SEED, shuffle, options)


def numpy_build(folder: Path, cache: Path, samples: int) -> dict[str, np.ndarray]:
    """Build the indices as upstream's _build_document_index and _build_shuffle_index do.

    The sample index is found by a search over all documents.
    """
    from nbtrain.dataset.indexed import IndexedDataset
    from nbtrain.dataset.samples.gpt_index import epochs_needed

    lengths = np.array(IndexedDataset(folder / "x_document").lengths)
    documents = np.arange(len(lengths), dtype=np.int32)
    epochs = epochs_needed(int(lengths.sum(dtype=np.int64)), SEQ_LENGTH, samples)
    generator = np.random.RandomState(SEED)

    def document_part(number: int) -> np.ndarray:
        index = np.mgrid[0:number, 0 : len(documents)][1]
        index[:] = documents
        index = index.reshape(-1).astype(np.int32)
        generator.shuffle(index)
        return index

    if epochs.separate_last_epoch:
        document_index = np.concatenate((document_part(epochs.num_epochs - 1), document_part(1)))
    else:
        document_index = document_part(epochs.num_epochs)
    gathered = lengths[document_index]
    ends = np.cumsum(gathered, dtype=np.int64)
    starts = np.arange(epochs.num_samples + 1, dtype=np.int64) * SEQ_LENGTH
    places = np.searchsorted(ends, starts, side="right")
    sample_index = np.stack([places, starts - (ends[places] - gathered[places])], axis=1).astype(np.int32)
    first = np.arange(0, epochs.samples_before_last, dtype=np.uint32)
    generator.shuffle(first)
    last = np.arange(epochs.samples_before_last, epochs.num_samples, dtype=np.uint32)
    generator.shuffle(last)
    built = {
        "document_index": document_index,
        "sample_index": sample_index,
        "shuffle_index": np.concatenate((first, last)),
    }
    cache.mkdir()
    for name, array in built.items():
        np.save(cache / f"{name}.npy", array)
    return built


def core_dataset(folder: Path, cache: Path, samples: int) -> Any:
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    class Names:
        vocab_size, eod, pad = VOCABULARY, 0, -1
        unique_identifiers: ClassVar[dict[str, str]] = {}

    settings = GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=SEQ_LENGTH,
        blend=([str(folder / "x_document")], None),
        split="100,0,0",
        path_to_cache=str(cache),
        tokenizer=Names(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, [samples, 1, 1], lambda: True, settings).build()[0]


def child(way: str, folder: Path, cache: Path, samples: int) -> dict[str, Any]:
    """Measure one build, or one pass over an existing index."""
    is_core = way.startswith("core")
    warnings.simplefilter("ignore")
    if is_core:
        import torch
        from megatron.core.datasets import blended_megatron_dataset_builder, gpt_dataset, helpers  # noqa: F401

        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{cache.with_suffix('.store')}", rank=0, world_size=1
        )
    else:
        from nbtrain.dataset.samples import gpt_dataset  # noqa: F401
    if way.endswith("blend"):
        return blend(is_core)
    if way.endswith("read"):
        return read(way, folder, cache, samples)
    with Memory() as memory:
        began, cpu = time.perf_counter(), time.process_time()
        if way == "numpy":
            arrays = numpy_build(folder, cache, samples)
        elif is_core:
            built = core_dataset(folder, cache, samples)
            arrays = {name: getattr(built, name) for name in ARRAYS}
        else:
            dataset = ours(folder, cache, samples, "per_epoch" if way == "per_epoch" else "megatron")
            arrays = {name: getattr(dataset._pass(0), name) for name in ARRAYS}
        cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    digest = hashlib.blake2b()
    for name in ARRAYS:
        digest.update(np.ascontiguousarray(arrays[name]).view(np.uint8).data)
    return {
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "own_mib": memory.own_mib,
        "resident_mib": memory.resident_mib,
        "arrays": digest.hexdigest(),
        "documents": len(arrays["document_index"]),
        "samples": len(arrays["shuffle_index"]),
    }


def blend(is_core: bool) -> dict[str, Any]:
    """Return the CPU seconds for each number of datasets, and the hash of all choices."""
    seconds, digest = {}, hashlib.blake2b()
    for datasets in BLENDS:
        weights = np.random.default_rng(datasets).random(datasets) + 0.1
        weights /= weights.sum()
        numbers, places = np.zeros(BLEND_SAMPLES, np.int16), np.zeros(BLEND_SAMPLES, np.int64)
        began = time.process_time()
        if is_core:
            from megatron.core.datasets import helpers

            helpers.build_blending_indices(numbers, places, weights, datasets, BLEND_SAMPLES, False)
        else:
            from nbtrain.dataset.samples.gpt_blend import fill_blend_index

            fill_blend_index(numbers, places, weights.tolist())
        seconds[str(datasets)] = time.process_time() - began
        digest.update(numbers.data)
        digest.update(places.data)
    return {"seconds": seconds, "arrays": digest.hexdigest()}


def read(way: str, folder: Path, cache: Path, samples: int) -> dict[str, Any]:
    positions = np.random.default_rng(1).integers(0, samples, 4000).tolist()
    with Memory() as memory:
        dataset: Any
        if way == "core-read":
            dataset = core_dataset(folder, cache, samples)
            get = dataset.__getitem__
        else:
            dataset = ours(folder, cache, samples, masks=way == "masks-read")
            get = dataset.sample if way == "masks-read" else dataset.__getitem__
        for position in positions[:2000]:
            get(position)
        began = time.process_time()
        for position in positions[2000:]:
            get(position)
        seconds = time.process_time() - began
    return {
        "microseconds": seconds / 2000 * 1e6,
        "own_mib": memory.own_mib,
        "resident_mib": memory.resident_mib,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=200, help="mean tokens of a document")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        way, folder, cache, samples = options.child
        print(json.dumps(child(way, Path(folder), Path(cache), int(samples))))
        return
    has_core = importlib.util.find_spec("megatron") is not None
    builds = ["ours", "numpy", *(["core"] if has_core else []), "per_epoch"]
    blends = ["ours-blend", *(["core-blend"] if has_core else [])]
    readings = {"ours-read": "ours", "masks-read": "ours", **({"core-read": "core"} if has_core else {})}
    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_data(folder, options.documents, options.tokens)
        samples = num_samples(folder, options.epochs)
        print(
            f"{options.documents:,} documents, {options.epochs} epochs, {samples:,} samples of {SEQ_LENGTH}"
        )
        for number in range(options.rounds):
            for way in [*builds, *readings, *blends]:
                cache = folder / f"{readings.get(way, way)}-{number}"
                command = [sys.executable, "-W", "ignore", __file__, "--child", way, str(folder), str(cache)]
                # Each process has a separate file for its process group.
                cache.with_suffix(".store").unlink(missing_ok=True)
                done = subprocess.run([*command, str(samples)], check=True, capture_output=True, text=True)
                results.setdefault(way, []).append(json.loads(done.stdout.splitlines()[-1]))
    same = {result["arrays"] for way in builds if way != "per_epoch" for result in results[way]}
    assert len(same) == 1, "the ways give different arrays"
    print(f"\n{'build':<12}{'CPU s':>8}{'wall s':>8}{'own MiB':>10}{'resident MiB':>14}")
    for way in builds:
        keys = ("cpu_seconds", "wall_seconds", "own_mib", "resident_mib")
        cpu, wall, own, resident = (statistics.median(one[key] for one in results[way]) for key in keys)
        print(f"{way:<12}{cpu:>8.2f}{wall:>8.2f}{own:>10.0f}{resident:>14.0f}")
    assert len({result["arrays"] for way in blends for result in results[way]}) == 1, "blends differ"
    print(f"\n{'blend':<12}" + "".join(f"{number:>4} datasets" for number in BLENDS))
    for way in blends:
        medians = [
            statistics.median(one["seconds"][str(number)] for one in results[way]) for number in BLENDS
        ]
        print(f"{way:<12}" + "".join(f"{seconds:>11.2f} s" for seconds in medians))
    print(f"\n{'read':<12}{'us a sample':>12}{'own MiB':>10}{'resident MiB':>14}")
    for way in readings:
        figures = ("microseconds", "own_mib", "resident_mib")
        spent, own, resident = (statistics.median(one[key] for one in results[way]) for key in figures)
        print(f"{way:<12}{spent:>12.1f}{own:>10.1f}{resident:>14.1f}")


if __name__ == "__main__":
    main()
