"""evaluation.tasks in every kind of layout, compared with the model of the checkpoint in one process."""

import math
import shutil
from pathlib import Path

import pytest
import torch

from nbtrain.base.run_directory.evaluation_files import EvaluationRecord, evaluation_files
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.checkpoint.weights.opened import open_checkpoint
from nbtrain.config.load import load_resolved
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.evaluation.of_run import tasks_of_run
from nbtrain.inference.loaded import fill, model_of
from nbtrain.monitor.metrics.metric_charts import metric_charts
from nbtrain.monitor.run.run_view import RunView
from tests.dataset.dataset_maker import make_tokenizer
from tests.evaluation import made
from tests.train import launch

pytestmark = pytest.mark.slow

LAYOUTS = {
    "one process": (1, {}),
    "tensor and sequence": (2, {"parallel.tensor_parallel_size": 2, "parallel.sequence_parallel": True}),
    "pipeline and ulysses with documents": (
        4,
        {
            "parallel.pipeline_parallel_size": 2,
            "parallel.ds_sequence_parallel_size": 2,
            "data.inter_document_masking": True,
            "data.reset_position_ids": True,
        },
    ),
    "tensor and ulysses": (4, {"parallel.tensor_parallel_size": 2, "parallel.ds_sequence_parallel_size": 2}),
    "zero 3": (2, {"parallel.data_parallel_size": 2, "parallel.zero_stage": 3}),
    "context and zero 3": (
        2,
        {
            "parallel.context_parallel_size": 2,
            "parallel.zero_stage": 3,
            "data.inter_document_masking": True,
            "data.reset_position_ids": True,
        },
    ),
}


@pytest.fixture(scope="module")
def home(data_home, tmp_path_factory) -> Path:
    """Return the data directory with a tokenizer that has the run's vocabulary."""
    home = tmp_path_factory.mktemp("with tokenizer") / "data"
    shutil.copytree(data_home, home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBTRAIN_DATA", str(home))
        make_tokenizer("test", made.texts(40), launch.VOCAB_SIZE)
    return home


def expected(run, step):
    """Return {name: {metric: value}} computed from the logits of the checkpoint."""
    config = load_resolved(run.config_yaml)
    model = model_of(config)
    fill(model, open_checkpoint(run, step))
    model.eval()
    size = Tokenizer.load(tokenizer_dir("test")).vocab_size
    found = {}
    for task in tasks_of_run(config):
        for number, (context, continuations) in enumerate(task.requests()):
            scored = []
            for continuation in continuations:
                whole = torch.tensor([[*context, *continuation]])
                with torch.inference_mode():
                    logits = model(whole[:, :-1])[0, len(context) - 1 :, : launch.VOCAB_SIZE].double()
                assert whole.max() < size
                own = logits.log_softmax(-1).gather(1, torch.tensor(continuation)[:, None])
                greedy = bool((logits.argmax(-1) == torch.tensor(continuation)).all())
                scored.append(type("Scored", (), {"logprobs": own[:, 0].tolist(), "is_greedy": greedy})())
            task.take(number, scored)
        found[task.name] = {name: one.value for name, one in task.outcome().metrics.items()}
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if "context" in name else ()) for name in LAYOUTS]
)
def test_scores_are_those_of_the_checkpoint(name, tmp_path, home, forked, monkeypatch):
    """The scores of each task format, at each requested step and the last one, equal those computed from the
    checkpoint's logits.
    """
    monkeypatch.setenv("NBTRAIN_DATA", str(home))
    ranks, layout = LAYOUTS[name]
    folder = tmp_path / "questions"
    folder.mkdir()
    tasks = [{"task": kind, "path": str(path)} for kind, path in made.files_in(folder).items()]
    overrides = {
        **layout,
        "batch.max_steps": 5,
        "evaluation.eval_interval_steps": 1,
        "evaluation.tasks_interval_steps": 2,
        "evaluation.tasks": tasks,
        "checkpoint.save_interval_steps": 2,
        "checkpoint.keep_last": 9,
        "tokenizer.name": "test",
    }
    run = launch.make_run(tmp_path, overrides, "asked")
    log = forked.train(run, ranks, home)
    records = [EvaluationRecord.read(path) for _, path in evaluation_files(run)]
    assert sorted({record.step for record in records}) == [2, 4, 5]
    for step in (2, 5):
        there = {record.name: record for record in records if record.step == step}
        for task, metrics in expected(run, step).items():
            for metric, value in metrics.items():
                said = there[task].metrics[metric]
                assert said.value == pytest.approx(value, rel=1e-4), (step, task, metric)
    if name != "one process":
        return
    # What the run's readers show of them.
    [perplexity] = [one for one in records if one.name == "lambada" and one.step == 5]
    view = RunView(run)
    curve = view.scalars("task/lambada perplexity")
    assert (curve.steps, curve.values[-1]) == (
        [2, 4, 5],
        pytest.approx(perplexity.metrics["perplexity"].value),
    )
    assert f"lambada acc {perplexity.metrics['acc']}" in log
    [*events] = [event for event in read_events(run.newest_job()) if event["kind"] == "tasks"]
    assert [event["step"] for event in events] == [2, 4, 5]
    assert math.isfinite(events[0]["seconds"]) and "hellaswag" in events[0]["message"]
    titles = {
        one["title"]: one["names"]
        for one in metric_charts([{"tag": t, "title": t} for t in view.scalar_names()])
    }
    assert "task/hellaswag acc_norm" in titles["Accuracy on tasks"]
    assert titles["Perplexity on tasks"] == ["task/lambada perplexity"]


def test_a_resume_does_not_ask_a_validated_step_again(tmp_path, home, forked, monkeypatch):
    """A run that stops after step 3 and resumes evaluates each step once, like an uninterrupted run."""
    monkeypatch.setenv("NBTRAIN_DATA", str(home))
    path = made.write_lines(tmp_path / "mmlu.jsonl", made.MMLU)
    overrides = {
        "batch.max_steps": 5,
        "evaluation.eval_interval_steps": 1,
        "evaluation.tasks": [{"task": "mmlu", "path": str(path), "limit": 2}],
    }
    run = launch.make_run(tmp_path, overrides, "cut")
    launch.order_faults(run, {"step": 3, "do": "kill", "rank": 0, "signal": 15})
    forked.train(run, 1, home)
    launch.new_job(run)
    forked.train(run, 1, home)
    asked = [
        event["step"]
        for job in run.job_ids()
        for event in read_events(run.job(job))
        if event["kind"] == "tasks"
    ]
    assert asked == [1, 2, 3, 4, 5]
    newest = EvaluationRecord.read(run.evaluation / "global_step5" / "mmlu.json")
    assert (newest.counts["examples"], newest.limit) == (2, 2)
