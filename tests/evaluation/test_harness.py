"""Tasks of lm-evaluation-harness: scores are those of the harness's own way to the exported model."""

import json
import math
from pathlib import Path

import pytest
import yaml

import nbtrain as nb
from nbtrain.base.errors import ConfigError, DataError
from nbtrain.checkpoint.pretrained import __main__ as gpu_side
from nbtrain.jobs import export_model as exporting
from nbtrain.serving.resident import RESIDENT
from tests.evaluation import made

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    # Theirs, about each other.
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
    ),
]
GENERATE = {
    "task": "say",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "{{text}}",
    "doc_to_target": "{{text}}",
    "generation_kwargs": {"until": ["."], "max_gen_toks": 12, "do_sample": False},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
ROLLING = {
    "task": "words",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{text}}",
    "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """(run, exported folder, folder of files and tasks)."""
    pytest.importorskip("lm_eval")
    pytest.importorskip("transformers")
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("harness workspace")
        patch.setenv("NBTRAIN_WORKSPACE", str(folder))
        patch.setenv("NBTRAIN_QUEUE", str(folder / "queue"))
        for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            patch.setenv(variable, "1")
        patch.setenv("HF_HOME", str(folder / "hub"))
        run = made.run_with_data()
        with pytest.MonkeyPatch.context() as here:
            here.setattr(exporting, "stream", lambda module, request: gpu_side.answers(request))
            nb.export(run.path, folder / "model", dtype="fp32")
        files = made.files_in(folder)
        tasks = folder / "tasks"
        tasks.mkdir()
        texts = made.write_lines(folder / "texts.jsonl", [{"text": text} for text in made.texts(6)])
        for task, file in ((GENERATE, files["lambada"]), (ROLLING, texts)):
            task = {**task, "dataset_kwargs": {"data_files": {"test": str(file)}}}
            (tasks / f"{task['task']}.yaml").write_text(yaml.safe_dump(task))
        yield run, folder / "model", folder
        RESIDENT.close()


def theirs(model, tasks, include_path, **how):
    """What the harness finds with its own HFLM."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    return simple_evaluate(
        HFLM(pretrained=str(model), device="cpu", dtype="float32", batch_size=1),
        tasks=tasks,
        task_manager=TaskManager(include_defaults=False, include_path=str(include_path)),
        **how,
    )


def test_scores_are_those_of_the_harness_with_transformers(place):
    """Its own files of lambada_openai and hellaswag, on local lines; text and whole documents too."""
    run, model, folder = place
    asked = [f"lambada_openai={folder / 'lambada.jsonl'}", f"hellaswag={folder / 'hellaswag.jsonl'}"]
    mine = nb.evaluate(run.path, harness=asked)
    mine |= nb.evaluate(run.path, harness=["say", "words"], include_path=folder / "tasks")
    own = folder / "own"
    own.mkdir()
    import lm_eval.tasks

    for name, path, split in (
        ("lambada_openai", "lambada", "test"),
        ("hellaswag", "hellaswag", "validation"),
    ):
        [yaml_file] = [one for base in lm_eval.tasks.__path__ for one in Path(base).rglob(f"{name}.yaml")]
        lines = {"include": str(yaml_file), "dataset_path": "json", "dataset_name": None}
        lines["training_split"] = None
        lines["dataset_kwargs"] = {"data_files": {split: str(folder / f"{path}.jsonl")}}
        (own / f"{name}.yaml").write_text(json.dumps(lines))
    found = theirs(model, ["lambada_openai", "hellaswag"], own)["results"]
    found |= theirs(model, ["say", "words"], folder / "tasks")["results"]
    for task, metrics in (
        ("lambada_openai", ["acc", "perplexity"]),
        ("hellaswag", ["acc", "acc_norm"]),
        ("say", ["exact_match"]),
        ("words", ["word_perplexity", "bits_per_byte"]),
    ):
        for metric in metrics:
            ours = mine[f"harness-{task.replace('_', '-')}"].metrics[metric].value
            assert ours == pytest.approx(found[task][f"{metric},none"], rel=1e-4), (task, metric)
            assert math.isfinite(ours)


def test_log_probabilities_and_texts_are_those_of_the_harness(place):
    """Of every single choice, to 1e-4; and the generated texts, cut at the same place."""
    run, model, folder = place
    samples = theirs(model, ["say", "words"], folder / "tasks")["samples"]
    from nbtrain.api import evaluate as api
    from nbtrain.evaluation import harness

    taken = {}
    plain = harness.harness_model

    def watched(answers):
        one = plain(answers)
        texts, rolling = one.generate_until, one.loglikelihood_rolling
        one.generate_until = lambda requests, **how: taken.setdefault("say", texts(requests, **how))
        one.loglikelihood_rolling = lambda requests, **how: taken.setdefault(
            "words", rolling(requests, **how)
        )
        return one

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness, "harness_model", watched)
        api.evaluate(run.path, harness=["say", "words"], include_path=folder / "tasks")
    said = [sample["resps"][0][0] for sample in samples["say"]]
    assert taken["say"] == said and any(said)
    rolled = [sample["resps"][0] for sample in samples["words"]]
    rolled = [one[0] if isinstance(one, list | tuple) else one for one in rolled]
    assert taken["words"] == pytest.approx(rolled, abs=1e-3)


def test_examples_before_the_question(place):
    """They come from the same file, without the question itself."""
    run, _, folder = place
    asked = f"hellaswag={folder / 'hellaswag.jsonl'}"
    found = nb.evaluate(run.path, harness=asked, num_fewshot=1, limit=1)
    record = found["harness-hellaswag"]
    assert record.counts == {"examples": 1} and record.limit == 1
    assert record.source == "hellaswag.jsonl" and len(record.source_sha256) == 64


def test_what_is_refused(place, tmp_path):
    run, _, folder = place
    for asked, kind, said in (
        ({"harness": "hellaswag=none.jsonl"}, DataError, "none.jsonl: no such file."),
        (
            {"harness": f"helaswag={folder / 'hellaswag.jsonl'}"},
            ConfigError,
            "helaswag: lm-evaluation-harness has no task file of this name.",
        ),
        (
            {"harness": "nothing", "include_path": folder / "tasks"},
            DataError,
            "nothing: lm-evaluation-harness cannot",
        ),
        ({"harness": "say", "include_path": tmp_path / "none"}, ConfigError, "none: no such folder."),
    ):
        with pytest.raises(kind) as refused:
            nb.evaluate(run.path, **asked)
        assert said in str(refused.value)
