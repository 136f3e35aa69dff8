"""Packed examples through the training's batches: the model sees each as if it were alone."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nbtrain.dataset.files import DatasetFiles, OpenDataset
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.manifest import DatasetManifest
from nbtrain.dataset.samples.packed_dataset import build_split
from nbtrain.model.gpt import GPT, GPTConfig
from nbtrain.train.batches import Batches
from tests.dataset.indexed_writer import IndexedWriter

SEQ, VOCABULARY = 24, 64


@pytest.fixture
def dataset(workspace):
    """12 examples of two sources, packed into sequences of 24; the second half of each is learnt."""
    generator = np.random.RandomState(5)
    examples = [generator.randint(1, VOCABULARY, size=3 + number) for number in range(12)]
    files_ = DatasetFiles.named("packed")
    files_.directory.mkdir(parents=True)
    with (
        IndexedWriter(files_.prefix, VOCABULARY, None) as tokens,
        IndexedWriter(files_.loss_mask.prefix, None, None, dtype="u1") as mask,
    ):
        for ids in examples:
            tokens.add_document(ids)
            mask.add_document(np.arange(len(ids)) >= len(ids) // 2)
    sources = [
        {"name": "short", "kind": "chat", "sequences": [0, 6]},
        {"name": "long", "kind": "chat", "sequences": [6, 12]},
    ]
    written = tokens.written.files | mask.written.files
    manifest = DatasetManifest("text", sources, {"documents": 12}, VOCABULARY, "uint16", 0, None, written)
    data = SimpleNamespace(split="1", split_rule="megatron-core", seed=3, sources=[])
    config = SimpleNamespace(data=data, model=SimpleNamespace(seq_length=SEQ))
    indexed = IndexedDataset(files_.prefix)
    opened = OpenDataset(files_, manifest, indexed, files_.open_loss_mask(indexed))
    return build_split(opened, config, "train", 1, 1)


@pytest.fixture
def batch(dataset):
    """All samples of the first epoch as one batch."""
    rows = iter([list(range(dataset._pass(0).epoch_ends[0]))])
    return next(Batches(dataset, rows, torch.device("cpu"), masked=True, named=True))


@pytest.mark.parametrize("backend", ["auto", "math"])
def test_each_example_has_the_losses_that_it_has_alone(dataset, batch, backend):
    """Token by token, at any place of a sequence; the batch's loss is their mean over what is learnt."""
    model = GPT(
        GPTConfig(2, 32, 4, 128, VOCABULARY, SEQ, init_method_std=0.3, attention_backend=backend)
    ).eval()
    packed = torch.empty(batch.tokens.shape)
    with torch.no_grad():
        loss = model(
            batch.tokens, batch.labels, loss_mask=batch.loss_mask, token_losses=packed, **batch.bounds
        )
        found = [[] for _ in range(len(dataset.indexed))]
        first_tokens = {tuple(ids[:3].tolist()): number for number, ids in enumerate(dataset.indexed)}
        for position, row in enumerate(packed):
            sample = dataset.sample(position)
            bounds = sorted(set(sample.cu_seqlens.tolist()))
            for start, stop in itertools.pairwise(bounds):
                key = (*sample.tokens[start : start + 2].tolist(), int(sample.labels[start + 1]))
                if sample.loss_mask[start:stop].any():
                    found[first_tokens[key]].append(row[start:stop])
        alone = []
        for number, ids in enumerate(dataset.indexed):
            whole = torch.from_numpy(ids.astype(np.int64))[None]
            losses = torch.empty(1, len(ids) - 1)
            model(whole[:, :-1], whole[:, 1:], token_losses=losses)
            assert len(found[number]) == 1
            torch.testing.assert_close(found[number][0], losses[0], rtol=1e-4, atol=1e-4)
            alone.append(losses[0][np.arange(1, len(ids)) >= len(ids) // 2])
    torch.testing.assert_close(loss, torch.cat(alone).mean(), rtol=1e-4, atol=1e-4)


def test_padding_and_prompts_bear_no_gradient(batch):
    """Labels at places where the mask is 0 change neither the loss nor a gradient."""
    model = GPT(GPTConfig(1, 32, 4, 128, VOCABULARY, SEQ))
    answers = []
    for labels in (batch.labels, torch.where(batch.loss_mask > 0, batch.labels, 7)):
        model.zero_grad()
        loss = model(batch.tokens, labels, loss_mask=batch.loss_mask, **batch.bounds)
        loss.backward()
        answers.append((loss.item(), model.final_layernorm.weight.grad.clone()))
    assert answers[0][0] == answers[1][0]
    assert torch.equal(answers[0][1], answers[1][1])


def test_a_batch_says_of_which_dataset_each_label_is(dataset, batch):
    """The rows of the losses by name: as many learnt labels of each as its examples have."""
    assert dataset.dataset_names == ("short", "long")
    learnt = batch.dataset_ids[batch.loss_mask > 0]
    expected = [
        sum(len(dataset.indexed[number]) - max(1, len(dataset.indexed[number]) // 2) for number in part)
        for part in (range(6), range(6, 12))
    ]
    assert torch.bincount(learnt).tolist() == expected
