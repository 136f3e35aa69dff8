"""Compatibility with megatron-core: each reads the other's files, and samples, blends and masks are equal."""

from pathlib import Path

import numpy as np
import pytest

from nbtrain.base import files
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.of_run import open_dataset
from nbtrain.dataset.samples.build import split_builder
from nbtrain.dataset.samples.gpt_blend import fill_blend_index
from tests.dataset.dataset_maker import stacked

pytestmark = pytest.mark.slow

SEED = 1234
# seq_length, split, samples for train, valid, test: 1 to 14 epochs, with and without a separate last one.
# No requested split may be empty: megatron-core would then count epochs forever.
CASES = [
    (32, "80,15,5", (5, 3, 2)),
    (32, "70,20,10", (300, 60, 20)),
    (16, "70,20,10", (250, 77, 31)),
    (16, "900,60,40", (1000, 8, 8)),
    (64, "100,0,0", (40, 1, 1)),
    (8, "50,30,20", (2000, 600, 100)),
]
WEIGHTS = [0.3, 0.5, 1.2]
BLEND_SAMPLES = (200, 40, 16)

ORACLE = r"""
from pathlib import Path
import numpy as np
import torch
from megatron.core.datasets import helpers
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, _get_ltor_masks_and_position_ids
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

ask = given
out = Path(ask["out"])
# Its blends query the rank even in one process.
torch.distributed.init_process_group("gloo", init_method=f"file://{out / 'store'}", rank=0, world_size=1)


class Names:
    vocab_size, eod, pad, unique_identifiers = 1000, 0, -1, {}


def build(prefixes, weights, seq_length, split, sizes, **options):
    settings = GPTDatasetConfig(
        random_seed=ask["seed"], sequence_length=seq_length, blend=(prefixes, weights), split=split,
        path_to_cache=str(out / "cache"), tokenizer=Names(),
        **{"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False, **options},
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, settings).build()


def sequences(dataset):
    items = [dataset[position] for position in range(len(dataset))]
    return np.stack([np.append(item["tokens"].numpy(), int(item["labels"][-1])) for item in items])


for number, (seq_length, split, sizes) in enumerate(ask["cases"]):
    for name, dataset in zip(
        ("train", "valid", "test"), build(ask["prefixes"][:1], None, seq_length, split, sizes)
    ):
        if dataset is not None:
            arrays = {
                key: getattr(dataset, key) for key in ("document_index", "sample_index", "shuffle_index")
            }
            np.savez(out / f"case-{number}-{name}.npz", samples=sequences(dataset), **arrays)

for name, dataset in zip(
    ("train", "valid", "test"), build(ask["prefixes"], ask["weights"], 16, "70,20,10", ask["blend_samples"])
):
    np.savez(
        out / f"blend-{name}.npz", samples=sequences(dataset), dataset_index=dataset.dataset_index,
        dataset_sample_index=dataset.dataset_sample_index,
    )

masked = build(
    ask["prefixes"][:1], None, 32, "80,15,5", [5, 3, 2],
    reset_position_ids=True, reset_attention_mask=True, eod_mask_loss=True,
)[0]
items = [masked[position] for position in range(len(masked))]
np.savez(out / "masked.npz", **{key: np.stack([item[key].numpy() for item in items])
                               for key in ("attention_mask", "loss_mask", "position_ids")})

index, samples = np.zeros(100_000, np.int16), np.zeros(100_000, np.int64)
weights = np.array(ask["long_weights"])
helpers.build_blending_indices(index, samples, weights, len(weights), len(index), False)
np.savez(out / "long_blend.npz", dataset_index=index, dataset_sample_index=samples)

read = IndexedDataset(ask["prefixes"][0])
np.savez(
    out / "read.npz", tokens=np.concatenate([read[number] for number in range(len(read))]),
    lengths=read.sequence_lengths, documents=read.document_indices,
)
for dtype in ("uint16", "int32"):
    builder = IndexedDatasetBuilder(str(out / f"theirs-{dtype}.bin"), dtype=getattr(np, dtype))
    for document in ask["documents"]:
        builder.add_document(torch.tensor(document, dtype=torch.int32), [len(document)])
    builder.finalize(str(out / f"theirs-{dtype}.idx"))
"""

# The model's masks from cu_seqlens, computed in a process that has already imported torch.
MODEL_MASKS = """
import torch
from nbtrain.model.attention import documents_of
bounds = [torch.tensor(cu_seqlens, dtype=torch.int32) for cu_seqlens in given]
answer = [documents_of(each, 32, 1, 32, as_lengths=False).mask[0].tolist() for each in bounds]
"""

DOCUMENTS = [[1, 2, 3, 0], [7], [5] * 40, [999, 0]]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory, megatron_core):
    """Return the folder with the datasets a, b and c, and megatron-core's arrays for them."""
    home = tmp_path_factory.mktemp("oracle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBTRAIN_WORKSPACE", str(home))
        patch.setenv("NBTRAIN_DATA", str(home / "data"))
        for number, (name, documents) in enumerate((("a", 60), ("b", 45), ("c", 30))):
            write(name, documents, number)
        prefixes = [str(DatasetFiles.named(name).prefix) for name in "abc"]
        ask = {
            "out": str(home),
            "seed": SEED,
            "cases": CASES,
            "prefixes": prefixes,
            "weights": WEIGHTS,
            "blend_samples": BLEND_SAMPLES,
            "long_weights": (np.array([0.2, 0.5, 1e-3, 0.1]) / 0.801).tolist(),
            "documents": DOCUMENTS,
        }
        megatron_core(ORACLE, ask)
        yield home


def write(name: str, documents: int, seed: int) -> None:
    """Write a dataset like write_dataset of conftest.py, which a module-scoped fixture cannot use."""
    from nbtrain.dataset.manifest import DatasetManifest
    from tests.dataset.indexed_writer import IndexedWriter

    target = DatasetFiles.named(name)
    target.directory.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    with IndexedWriter(target.prefix, 1000, eod_id=0) as writer:
        for _ in range(documents):
            writer.add_document(generator.integers(1, 1000, size=generator.integers(1, 90)))
    written = writer.written
    assert written is not None
    counts = {"documents": documents, "tokens": written.num_tokens, "bytes": None, "dropped": {}}
    manifest = DatasetManifest(
        "text",
        [],
        counts,
        1000,
        writer.dtype.name,
        0,
        None,
        {key: dict(value) for key, value in written.files.items()},
    )
    files.write_json(target.manifest_json, manifest.to_dict())


def load(home: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(home / f"{name}.npz") as stored:
        return dict(stored)


def split_of(make_config, home: Path, part: str, seq_length: int, split: str, samples: int, **data):
    """Return one of nbtrain's splits with the requested number of samples."""
    config = make_config(
        tokenizer={"vocab_size": 1000},
        model={"seq_length": seq_length},
        data={"name": "a", "split": split, "split_rule": "megatron-core", "seed": SEED, **data},
        batch={"micro_batch_size": 1, "global_batch_size": 1, "train_tokens": seq_length},
    )
    build_split = split_builder(config, open_dataset(config))
    return build_split(part, samples, samples)


@pytest.fixture
def home(oracle, make_config, monkeypatch) -> Path:
    monkeypatch.setenv("NBTRAIN_DATA", str(oracle / "data"))
    return oracle


@pytest.mark.parametrize("number", range(len(CASES)))
def test_indices_and_samples(home, make_config, number):
    """Document, sample and shuffle index have the same dtypes and values, and all samples are equal."""
    seq_length, split, sizes = CASES[number]
    compared = 0
    for name, samples in zip(("train", "valid", "test"), sizes, strict=True):
        ours = split_of(make_config, home, name, seq_length, split, samples)
        if ours is None:
            assert not (home / f"case-{number}-{name}.npz").exists()
            continue
        theirs = load(home, f"case-{number}-{name}")
        for array in ("document_index", "sample_index", "shuffle_index"):
            own = getattr(ours._pass(0), array)
            assert own.dtype == theirs[array].dtype
            assert np.array_equal(own, theirs[array])
        assert np.array_equal(stacked(ours, range(ours.samples_per_pass)), theirs["samples"])
        compared += 1
    assert compared == (1 if split == "100,0,0" else 3)


def test_a_blend(home, make_config):
    """In all splits of a blend, the dataset index, the positions in the datasets
    and all samples are equal.
    """
    entries = [{"name": name, "weight": weight} for name, weight in zip("abc", WEIGHTS)]
    for name, samples in zip(("train", "valid", "test"), BLEND_SAMPLES, strict=True):
        ours = split_of(
            make_config, home, name, 16, "70,20,10", samples, name="abc", sources=[], blend=entries
        )
        theirs = load(home, f"blend-{name}")
        for array in ("dataset_index", "dataset_sample_index"):
            own = getattr(ours.index, array)
            assert own.dtype == theirs[array].dtype
            assert np.array_equal(own, theirs[array])
        assert np.array_equal(stacked(ours, range(len(ours))), theirs["samples"])


def test_the_order_of_a_long_blend(home):
    """A blend of 100,000 samples, which nbtrain computes in several stretches, has the same order."""
    weights = (np.array([0.2, 0.5, 1e-3, 0.1]) / 0.801).tolist()
    index, samples = np.empty(100_000, np.int16), np.empty(100_000, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nbtrain.dataset.samples.gpt_blend.NUM_STRETCHES", 64)
        fill_blend_index(index, samples, weights)
    theirs = load(home, "long_blend")
    assert np.array_equal(index, theirs["dataset_index"])
    assert np.array_equal(samples, theirs["dataset_sample_index"])


def test_masks_and_positions(home, make_config, megatron_core):
    """If EOD occurs only at the ends of documents, masks and positions equal megatron-core's."""
    ours = split_of(
        make_config,
        home,
        "train",
        32,
        "80,15,5",
        5,
        reset_position_ids=True,
        inter_document_masking=True,
        eod_mask_loss=True,
    )
    theirs = load(home, "masked")
    assert len(theirs["position_ids"]) == ours.samples_per_pass > 20
    samples = [ours.sample(position) for position in range(ours.samples_per_pass)]
    masks = megatron_core(MODEL_MASKS, [sample.cu_seqlens.tolist() for sample in samples])
    for position, (sample, mask) in enumerate(zip(samples, masks, strict=True)):
        assert np.array_equal(sample.loss_mask, theirs["loss_mask"][position])
        assert np.array_equal(sample.position_ids, theirs["position_ids"][position])
        # True marks a hidden position in megatron-core.
        assert np.array_equal(np.logical_not(mask), theirs["attention_mask"][position])


def test_it_reads_what_we_write(home):
    """megatron-core's reader returns the tokens, lengths and documents of a pair that nbtrain wrote."""
    ours, theirs = IndexedDataset(DatasetFiles.named("a").prefix), load(home, "read")
    assert np.array_equal(ours.tokens, theirs["tokens"])
    assert np.array_equal(ours.lengths, theirs["lengths"])
    assert np.array_equal(ours.document_indices, theirs["documents"])


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_we_read_what_its_builder_writes(home, dtype):
    """nbtrain reads every document that megatron-core's builder writes, and verify accepts the file."""
    dataset = IndexedDataset(home / f"theirs-{dtype}")
    assert [dataset[number].tolist() for number in range(len(dataset))] == DOCUMENTS
    assert dataset.dtype == np.dtype(dtype)
    assert dataset.verify(1000) == 999
