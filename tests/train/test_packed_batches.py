"""Packed examples in training batches: the model processes each example as if it were the only one."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nbtrain.checkpoint.pretrained.full_parameters import FullParameters
from nbtrain.checkpoint.weights.folder_weights import FolderWeights
from nbtrain.config.load import load
from nbtrain.dataset.files import DatasetFiles, OpenDataset
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.manifest import DatasetManifest
from nbtrain.dataset.samples.packed_dataset import build_split
from nbtrain.model.gpt import GPT, GPTConfig
from nbtrain.pretrained.model import open_model
from nbtrain.train.engine.batches import Batches
from tests.dataset.indexed_writer import IndexedWriter
from tests.pretrained import made
from tests.train import launch

SEQ, VOCABULARY = 24, 64


@pytest.fixture
def dataset(workspace):
    """Create 12 examples from two sources, packed into sequences of 24 tokens; the second half of each
    example is in the loss.
    """
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
    """Return all samples of the first epoch as one batch."""
    rows = iter([list(range(dataset._pass(0).epoch_ends[0]))])
    return next(Batches(dataset, rows, torch.device("cpu"), masked=True, named=True))


@pytest.mark.parametrize("backend", ["auto", "math"])
def test_each_example_has_the_losses_that_it_has_alone(dataset, batch, backend):
    """Each packed example has the same token losses as alone, and the loss of the batch is the mean over
    unmasked tokens.
    """
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
    """Changing labels at masked positions changes neither the loss nor a gradient."""
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
    """A batch contains the dataset of each label: each source has as many unmasked labels as in its
    examples.
    """
    assert dataset.dataset_names == ("short", "long")
    learnt = batch.dataset_ids[batch.loss_mask > 0]
    expected = [
        sum(len(dataset.indexed[number]) - max(1, len(dataset.indexed[number]) // 2) for number in part)
        for part in (range(6), range(6, 12))
    ]
    assert torch.bincount(learnt).tolist() == expected


class Gradients:
    """Access to a model's gradients as if they were its weights."""

    dtype = torch.float32

    def __init__(self, model, vocab_size):
        self.parameters = {name: parameter.grad for name, parameter in model.named_parameters()}
        self.vocab_size = vocab_size

    def read(self, name, state):
        return self.parameters[name].flatten()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_loss_and_gradients_are_those_of_transformers(kind, batch, tmp_path):
    """The loss and gradients of a packed batch equal the results of transformers in fp32.

    transformers separates examples by their positions alone, without a mask or a cache, and divides by
    num_items_in_batch.
    """
    pytest.importorskip("transformers")
    theirs = made.write_model(tmp_path / kind, kind).train()
    opened = open_model(tmp_path / kind)
    (tmp_path / "tiny.yaml").write_text(launch.TINY)
    fields = {f"model.{key}": value for key, value in opened.described.fields.items()}
    fields |= {"tokenizer.vocab_size": made.VOCAB_SIZE, "model.make_vocab_size_divisible_by": 1}
    fields |= {"model.hidden_dropout": 0.0, "model.attention_dropout": 0.0}
    ours, folder = (
        GPT(GPTConfig.of(load(tmp_path / "tiny.yaml", fields))),
        FolderWeights(opened, made.VOCAB_SIZE),
    )
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(folder.read(name).view_as(parameter))
    # Two micro batches of one step, whose mean is over the unmasked tokens of both.
    learnt, whole = batch.loss_mask > 0, batch.loss_mask.sum()
    loss = ours(batch.tokens, batch.labels, loss_mask=batch.loss_mask, loss_denominator=whole, **batch.bounds)
    loss.backward()
    expected = theirs(
        input_ids=batch.tokens,
        position_ids=batch.position_ids,
        labels=batch.labels,
        shift_labels=torch.where(learnt, batch.labels, -100),
        num_items_in_batch=whole,
        use_cache=False,
    ).loss
    expected.backward()
    assert 0 < learnt.float().mean() < 0.6 and len(batch.cu_seqlens) > 2 * len(batch.tokens)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    found = FullParameters(Gradients(ours, made.VOCAB_SIZE))
    named = dict(theirs.named_parameters())
    for name in opened.map.tensors:
        torch.testing.assert_close(found.tensor(opened.map, name), named[name].grad, rtol=1e-4, atol=1e-5)
    # The control: without positions, transformers treats the same batch as one text.
    one_text = theirs(
        input_ids=batch.tokens, labels=batch.labels, shift_labels=torch.where(learnt, batch.labels, -100),
        num_items_in_batch=whole, use_cache=False,
    )  # fmt: skip
    assert abs(one_text.loss.item() - loss.item()) > 1e-3
