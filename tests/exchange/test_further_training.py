"""If transformers or TRL fine-tunes an exported model, it learns to stop, because the end token is in the
loss.
"""

import pytest
import torch

from nbtrain.checkpoint.pretrained import __main__ as gpu_side
from nbtrain.exchange import export_model as exporting
from tests.inference import saved

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    # Warnings that they raise about each other.
    pytest.mark.filterwarnings("ignore"),
]
TALK = [{"role": "user", "content": "How are you?"}, {"role": "assistant", "content": "Fine."}]
LONG = [
    *TALK,
    {"role": "user", "content": "And now, after a while?"},
    {"role": "assistant", "content": "Better."},
]
RECORDS = {
    "messages": [{"messages": TALK}, {"messages": LONG}],
    "prompt and completion": [{"prompt": talk[:-1], "completion": talk[-1:]} for talk in (TALK, LONG)],
    "text": [{"text": "One."}, {"text": "Two and some more."}],
    "texts": [{"prompt": "Q: 1\n", "completion": "one"}, {"prompt": "Q: 22\n", "completion": "twenty-two"}],
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Export a run that was trained on conversations, and return the folder."""
    pytest.importorskip("transformers")
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("further")
        patch.setenv("NBTRAIN_WORKSPACE", str(folder))
        patch.setattr(exporting, "stream", lambda module, request: gpu_side.answers(request))
        talks = {"model.seq_length": 256, "data.sources": [{"kind": "chat", "path": "talk.jsonl"}]}
        run = saved.save_run("talks", {"model.architecture": "llama", **talks}, std=0.05)
        exporting.export_model(run, folder / "model", dtype="fp32")
        yield folder / "model"


def opened(folder):
    """Return (the transformers model, its tokenizer)."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def trainer_of(folder, records, to, **settings):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    model, tokenizer = opened(folder)
    how = {"per_device_train_batch_size": 2, "report_to": "none", "use_cpu": True, "bf16": False}
    arguments = trl.SFTConfig(output_dir=str(to), **how, **settings)
    data = datasets.Dataset.from_list(records)
    return trl.SFTTrainer(model, args=arguments, train_dataset=data, processing_class=tokenizer)


@pytest.mark.parametrize("kind", RECORDS)
def test_the_end_is_in_the_loss_of_trl(kind, exported, tmp_path):
    """In TRL, the last token of each example is the end token, and it is in the loss; padding is not."""
    trainer = trainer_of(exported, RECORDS[kind], tmp_path)
    end, pad = trainer.processing_class.eos_token_id, trainer.processing_class.pad_token_id
    assert end != pad
    [batch] = trainer.get_train_dataloader()
    for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist()):
        learnt = [label for label in labels if label != -100]
        assert learnt[-1] == end and pad not in learnt
        assert learnt.count(end) == 1 == ids.count(end)


def test_the_end_is_in_the_loss_of_transformers(exported):
    import transformers

    _, tokenizer = opened(exported)
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    rows = [tokenizer.apply_chat_template(talk, tokenize=True, return_dict=True) for talk in (TALK, LONG)]
    for labels, row in zip(collate(rows)["labels"].tolist(), rows):
        assert [label for label in labels if label != -100] == row["input_ids"]
        assert row["input_ids"][-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("is_trl", [True, False], ids=["trl", "transformers"])
def test_a_model_that_is_trained_further_learns_to_stop(is_trl, exported, tmp_path):
    """After training on two conversations, the model ends each answer by itself, right after the last
    character.
    """
    import transformers

    settings = {"max_steps": 150, "learning_rate": 1e-2, "logging_steps": 150, "save_strategy": "no"}
    if is_trl:
        trainer = trainer_of(exported, RECORDS["messages"], tmp_path, **settings)
    else:
        model, tokenizer = opened(exported)
        rows = [tokenizer.apply_chat_template(talk, tokenize=True, return_dict=True) for talk in (TALK, LONG)]
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            use_cpu=True,
            report_to="none",
            per_device_train_batch_size=2,
            **settings,
        )
        collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
        trainer = transformers.Trainer(
            model, args=arguments, train_dataset=rows, data_collator=collate, processing_class=tokenizer
        )
    trainer.train()
    tokenizer, model = trainer.processing_class, trainer.model.eval()
    for talk in (TALK, LONG):
        prompt = tokenizer.apply_chat_template(
            talk[:-1], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            made = model.generate(**prompt, max_new_tokens=60, do_sample=False)[0]
        answer = made[prompt["input_ids"].shape[1] :]
        assert tokenizer.decode(answer) == talk[-1]["content"] + "\n" + tokenizer.eos_token
