"""Instruction tuning: gpt-tiny is pretrained, LoRA teaches it a format, and held-out questions are asked.

The model is the same merged, unmerged, exported, and opened in peft. Half of gpt-tiny's tokens are enough
here.
"""

import json
import operator
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import nbtrain as nb
from nbtrain.api.run import open_run
from nbtrain.base import files
from nbtrain.checkpoint.weights.opened import open_checkpoint
from nbtrain.config.load import load_resolved
from nbtrain.dataset.views.baselines import baselines
from nbtrain.inference.loaded import load
from nbtrain.model.gpt import GPT
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.names import is_adapter
from nbtrain.serving.resident import RESIDENT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    # Called in transformers by peft.
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
]
BASE, ADAPTED = "gpt-tiny", "types"
SHORTER = (
    "data.sources=[{kind: python-docs, max_bytes: 2_000_000}]",
    "batch.train_tokens=409_600",
    "lr_schedule.lr_warmup_tokens=40_960",
    "checkpoint.save_interval_steps=200",
    "evaluation.eval_interval_steps=100",
    "evaluation.eval_iters=1",
)
FINETUNING = """
extends: gpt-tiny
name: types
init_from: gpt-tiny
lora: {rank: 8, alpha: 16}
data:
  name: types
  sources: [{kind: prompt-completion, path: types.jsonl}]
  packing: best_fit
  split: 90,10,0
batch: {micro_batch_size: 4, global_batch_size: 4, train_tokens: 163_840}
optimizer: {type: AdamW}
lr_schedule: {lr: 5e-3, min_lr: 5e-4, lr_warmup_tokens: 10_240}
checkpoint: {save_interval_steps: 160}
evaluation: {eval_interval_steps: 80, eval_iters: 1}
"""
TRAINED, HELD_OUT = 800, 60
MAX_NEW_TOKENS = 12
FIRST = ("code", "data", "file", "host", "item", "key", "line", "list", "mode", "name", "path", "user")
SECOND = ("body", "count", "field", "index", "label", "size", "state", "text", "time", "type", "word")


def examples() -> list[dict[str, str]]:
    """Return questions about the type of a literal, with answers; without repetition and always the same."""
    drawn = random.Random(1234)
    literals = {
        "int": lambda: f"{drawn.randrange(10, 1000)}",
        "float": lambda: f"{drawn.randrange(10, 1000)}.{drawn.randrange(10)}",
        "list": lambda: f"[{drawn.randrange(10, 1000)}, {drawn.randrange(10, 1000)}]",
        "str": lambda: f'"{drawn.choice(FIRST)}_{drawn.choice(SECOND)}_{drawn.choice(SECOND)}"',
    }
    answers: dict[str, str] = {}
    while len(answers) < TRAINED + HELD_OUT:
        name = drawn.choice(list(literals))
        answers[f"What is the type of {literals[name]()}?\n"] = f"Its type is {name}."
    return [{"prompt": question, "completion": answer} for question, answer in answers.items()]


EXAMPLES = examples()
ASKED = EXAMPLES[TRAINED:]
PROMPTS = [example["prompt"] for example in ASKED]


def nbtrain(folder: Path, *words: str) -> str:
    """Run an nbtrain command and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "nbtrain.cli", *words], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Create a workspace with both trained runs and three exports: base, merged model, adapters."""
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("instructions")
        patch.setenv("NBTRAIN_WORKSPACE", str(folder))
        patch.setenv("NBTRAIN_QUEUE", str(folder / "queue"))
        lines = [f"{json.dumps(one)}\n" for one in EXAMPLES[:TRAINED]]
        files.write_text(folder / "types.jsonl", "".join(lines))
        files.write_text(folder / "types.yaml", FINETUNING)
        for words in ((BASE, *SHORTER), ("types.yaml",)):
            nbtrain(folder, "prepare", *words)
            nbtrain(folder, "submit", "--wait", *words)
        nbtrain(folder, "export", BASE, "base")
        nbtrain(folder, "export", ADAPTED, "merged")
        nbtrain(folder, "export", ADAPTED, "adapters", "--to", "peft")
        yield folder
        RESIDENT.close()


def answers_here(run: str) -> list[str]:
    """Return the text that a run generates after each prompt."""
    texts = nb.generate(run, PROMPTS, MAX_NEW_TOKENS, temperature=0)
    return [text.new_text for text in texts]


@pytest.fixture(scope="module")
def answers(folder):
    return answers_here(ADAPTED)


@pytest.fixture(scope="module")
def token_ids(folder):
    """Return the token ids of each prompt together with its answer."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "merged")
    return [tokenizer(one["prompt"] + one["completion"], return_tensors="pt").input_ids for one in ASKED]


def logits_of(model, token_ids) -> torch.Tensor:
    """Return the logits at every token of all texts, as one table."""
    with torch.no_grad():
        found = [model(ids) for ids in token_ids]
    return torch.cat([getattr(each, "logits", each)[0] for each in found])


@pytest.fixture(scope="module")
def logits(folder, token_ids):
    """Return the logits of the merged model with which the run generates."""
    loaded = load(open_run(ADAPTED).directory)
    return logits_of(loaded.model, token_ids)


def assert_close(found, expected):
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def answers_of_transformers(model, folder) -> list[str]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "merged")
    said = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        whole = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            pad_token_id=tokenizer.eos_token_id,
        )
        said.append(tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True))
    return said


def test_the_form_is_followed(answers):
    """Nine tenths of the held-out answers are exactly right and end; the base model's are not."""
    assert not {example["prompt"] for example in EXAMPLES[:TRAINED]} & set(PROMPTS)
    assert len(Counter(example["completion"] for example in ASKED)) == 4
    base = open_run(BASE)
    assert base.summary()["last_validation_loss"] < baselines(base.config).unigram_entropy_nats - 0.3
    right = [example["completion"] for example in ASKED]
    found = sum(map(operator.eq, answers, right)) / HELD_OUT
    before = sum(map(operator.contains, answers_here(BASE), right)) / HELD_OUT
    print(f"exact match on {HELD_OUT} held-out prompts: {found:.3f}; anywhere in the base's: {before:.3f}")
    assert found >= 0.9
    assert before <= 0.1


def test_merged_is_unmerged(folder, logits, token_ids, answers):
    """The model with separate adapters, the merged model, and the merged export in
    transformers have equal logits.
    """
    import transformers

    run = open_run(ADAPTED)
    config = load_resolved(run.directory.config_yaml)
    store = open_checkpoint(run.directory, run.summary()["checkpoint_step"])
    unmerged = GPT(GPTConfig.of(config)).eval()
    with torch.no_grad():
        for name, parameter in unmerged.named_parameters():
            source = store.adapters if is_adapter(name) else store.base
            shape = source.parameters[name].shape
            parameter[: shape[0]] = source.read(name, "fp32").view(shape)
    assert_close(logits_of(unmerged, token_ids), logits)
    exported = transformers.AutoModelForCausalLM.from_pretrained(folder / "merged").eval()
    assert_close(logits_of(exported, token_ids), logits)
    assert answers_of_transformers(exported, folder) == answers


def test_peft_opens_the_adapters(folder, logits, token_ids, answers):
    """peft opens the adapters on the exported base with the same logits; without
    adapters they differ widely.
    """
    import peft
    import transformers

    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base").eval()
    plain = logits_of(base, token_ids)
    adapted = peft.PeftModel.from_pretrained(base, folder / "adapters").eval()
    assert_close(logits_of(adapted, token_ids), logits)
    assert answers_of_transformers(adapted, folder) == answers
    assert (plain - logits).abs().max() > 1
