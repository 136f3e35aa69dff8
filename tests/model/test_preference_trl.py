"""Loss and gradients of DPO and supervised fine-tuning compared with TRL's trainers, in fp32."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nbtrain.checkpoint.pretrained.full_parameters import FullParameters
from nbtrain.checkpoint.weights.folder_weights import FolderWeights
from nbtrain.config.load import load
from nbtrain.model.gpt import GPT, GPTConfig
from nbtrain.pretrained.model import open_model
from nbtrain.train.engine.batches import _stack
from tests.model.test_preference import made_pairs, sample_of
from tests.pretrained import made
from tests.train import launch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    # Warnings of other versions of libraries that TRL uses.
    pytest.mark.filterwarnings("ignore"),
]
BETA = 0.3


@pytest.fixture
def models(tmp_path):
    """Return (a Llama model of transformers, its opened folder, the configuration of the same model in
    nbtrain).
    """
    pytest.importorskip("transformers")
    pytest.importorskip("trl", reason="needs trl: pip install trl")
    theirs = made.write_model(tmp_path / "llama", "llama")
    opened = open_model(tmp_path / "llama")
    (tmp_path / "tiny.yaml").write_text(launch.TINY)
    fields = {f"model.{key}": value for key, value in opened.described.fields.items()}
    fields |= {"tokenizer.vocab_size": made.VOCAB_SIZE, "model.make_vocab_size_divisible_by": 1}
    fields |= {"model.hidden_dropout": 0.0, "model.attention_dropout": 0.0}
    config = GPTConfig.of(load(tmp_path / "tiny.yaml", fields))
    return theirs, opened, config


def built(opened, config):
    ours, folder = GPT(config), FolderWeights(opened, made.VOCAB_SIZE)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(folder.read(name).view_as(parameter))
    return ours


def tokenizer():
    """Return a tokenizer with the words `w0` to `w502`, because TRL's trainers require a tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(made.VOCAB_SIZE)}
    plain = Tokenizer(models.WordLevel(words, unk_token="w0"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="w1", pad_token="w0", unk_token="w0")


def compared(ours, theirs, opened):
    """Assert that the gradients of both models are equal."""
    found = FullParameters(SimpleNamespace(
        parameters={name: parameter.grad for name, parameter in ours.named_parameters()},
        vocab_size=made.VOCAB_SIZE, dtype=torch.float32,
        read=lambda name, state: dict(ours.named_parameters())[name].grad.flatten(),
    ))  # fmt: skip
    named = dict(theirs.named_parameters())
    for name in opened.map.tensors:
        torch.testing.assert_close(found.tensor(opened.map, name), named[name].grad, rtol=1e-4, atol=1e-5)


def test_dpo(models, tmp_path):
    """DPO equals TRL's; the reference model differs from the policy, so that the margins are not 0."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    theirs, opened, config = models
    torch.manual_seed(3)
    other = type(theirs)(theirs.config)
    texts = [{"prompt": "w2 w3", "chosen": " w4 w5", "rejected": " w6"}] * 2
    arguments = DPOConfig(
        str(tmp_path / "out"),
        beta=BETA,
        use_cpu=True,
        bf16=False,
        report_to=[],
        activation_checkpointing=False,
    )
    trainer = DPOTrainer(
        theirs, other, args=arguments, train_dataset=Dataset.from_list(texts), processing_class=tokenizer()
    )
    pairs = made_pairs(np.random.RandomState(5), 4)
    rows = [[*prompt, *both[side]] for side in (0, 1) for prompt, *both in pairs]
    masks = [[0] * len(prompt) + [1] * len(both[side]) for side in (0, 1) for prompt, *both in pairs]
    longest = max(map(len, rows))

    def padded(lists):
        return torch.tensor([[*map(int, one), *[0] * (longest - len(one))] for one in lists])

    batch = {
        "input_ids": padded(rows),
        "attention_mask": padded([[1] * len(row) for row in rows]),
        "completion_mask": padded(masks),
    }
    model = trainer.model.eval()
    expected = trainer.compute_loss(model, dict(batch))
    expected.backward()
    with torch.no_grad():
        logits = other.eval()(
            batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False
        ).logits
        found = logits.log_softmax(-1)[:, :-1].gather(2, batch["input_ids"][:, 1:, None])[..., 0]
        reference = (found * batch["completion_mask"][:, 1:]).sum(1).view(2, -1).T.numpy()
    ours = built(
        opened, config.__class__(**{**vars(config), "dpo": SimpleNamespace(beta=BETA, label_smoothing=0.0)})
    )
    own = _stack(
        [sample_of(pairs[:2], reference[:2]), sample_of(pairs[2:], reference[2:])], masked=True, named=False
    )
    loss = ours(
        own.tokens, own.labels, loss_mask=own.loss_mask, answers=own.answers, reference=own.reference,
        **own.bounds,
    )  # fmt: skip
    loss.backward()
    assert abs(expected.item() - np.log(2)) > 1e-3
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    compared(ours, trainer.model, opened)


def test_sft(models, tmp_path):
    """Supervised fine-tuning equals TRL's for examples that are packed into one row, with positions and
    without an attention mask.
    """
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    theirs, opened, config = models
    arguments = SFTConfig(
        str(tmp_path / "out"), use_cpu=True, bf16=False, report_to=[], activation_checkpointing=False
    )
    texts = Dataset.from_list([{"prompt": "w2 w3", "completion": " w4 w5"}] * 2)
    trainer = SFTTrainer(theirs, args=arguments, train_dataset=texts, processing_class=tokenizer())
    generator = np.random.RandomState(6)
    examples = [generator.randint(2, 60, size=size) for size in (7, 4, 9, 6)]
    ids, labels, positions = [], [], []
    for number, example in enumerate(examples):
        ids += [*example]
        labels += [-100] * (2 + number % 2) + [*example[2 + number % 2 :]]
        positions += range(len(example))
    batch = {name: torch.tensor(row)[None] for name, row in zip(
        ("input_ids", "labels", "position_ids"), (ids, labels, positions), strict=True
    )}  # fmt: skip
    model = trainer.model.eval()
    expected = trainer.compute_loss(model, dict(batch))
    expected.backward()
    # An example takes one position less here, because its last token is not an input.
    tokens, targets, learnt, places, bounds = [], [], [], [], [0]
    for number, example in enumerate(examples):
        tokens += [*example[:-1]]
        targets += [*example[1:]]
        learnt += [float(place >= 2 + number % 2) for place in range(1, len(example))]
        places += range(len(example) - 1)
        bounds.append(len(tokens))
    ours = built(opened, config)
    longest = max(after - before for before, after in itertools.pairwise(bounds))
    loss = ours(
        torch.tensor([tokens]), torch.tensor([targets]), loss_mask=torch.tensor([learnt]),
        position_ids=torch.tensor([places]), cu_seqlens=torch.tensor(bounds, dtype=torch.int32),
        max_seqlen=longest,
    )  # fmt: skip
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    compared(ours, trainer.model, opened)
