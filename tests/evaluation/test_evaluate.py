"""nb.evaluate and `nbtrain evaluate`, compared with transformers on the exported model."""

import json
import math

import numpy as np
import pytest
import torch

import nbtrain as nb
from nbtrain.base.errors import ConfigError, DataError
from nbtrain.base.run_directory.evaluation_files import newest_evaluations
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.checkpoint.pretrained import __main__ as gpu_side
from nbtrain.cli.__main__ import main
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.evaluation.encoding import encode_pair, fitted
from nbtrain.evaluation.formats import read_questions
from nbtrain.exchange import export_model as exporting
from nbtrain.serving.resident import RESIDENT
from tests.evaluation import made
from tests.evaluation.test_perplexity import documents
from tests.inference import saved

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Create a run with data; its model stays loaded for all tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("evaluated workspace")
        patch.setenv("NBTRAIN_WORKSPACE", str(folder))
        patch.setenv("NBTRAIN_QUEUE", str(folder / "queue"))
        yield made.run_with_data()
        RESIDENT.close()


@pytest.fixture(scope="module")
def theirs(run, tmp_path_factory):
    """Return the exported model as loaded by transformers."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("export") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "stream", lambda module, request: gpu_side.answers(request))
        nb.export(run.path, folder, dtype="fp32")
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def logprobs_of(model, context, continuation):
    """Return the log-probabilities of tokens in transformers, and whether each token is the greedy choice."""
    whole = torch.tensor([[*context, *continuation]])
    with torch.inference_mode():
        logits = model(whole[:, :-1]).logits[0, len(context) - 1 :].double()
    ids = torch.tensor(continuation)
    return logits.log_softmax(-1).gather(1, ids[:, None])[:, 0], bool((logits.argmax(-1) == ids).all())


def test_perplexity_is_that_of_transformers(run, theirs, capsys):
    """The perplexity of a checkpoint equals transformers' on the same tokens."""
    found = nb.evaluate(run.path, split="all")
    tokens = np.concatenate(documents(run, "all")).tolist()
    nats = torch.cat(
        [
            logprobs_of(theirs, tokens[at : at + 1], tokens[at + 1 : at + 97])[0]
            for at in range(0, len(tokens) - 1, 96)
        ]
    )
    [record] = found.values()
    assert record.counts["tokens"] == len(nats)
    assert record.metrics["loss"].value == pytest.approx(-float(nats.mean()), abs=1e-5)
    assert record.metrics["perplexity"].value == pytest.approx(math.exp(-float(nats.mean())), rel=1e-5)
    # The bar shows a rate and an end.
    assert "perplexity-small-all: " in capsys.readouterr().err
    assert newest_evaluations(run)["perplexity-small-all"] == record
    assert "perplexity-small-all" in repr(found) and "bits_per_byte" in found._repr_html_()


def test_scores_are_those_of_transformers(run, theirs, tmp_path):
    """Scores of all question formats equal transformers', and the model is loaded only once."""
    files = made.files_in(tmp_path)
    found = nb.evaluate(run.path, tasks=files)
    assert list(found) == ["lambada", "hellaswag", "mmlu", "multiple-choice"]
    tokenizer = Tokenizer.load(tokenizer_dir("small"))
    for kind, path in files.items():
        right, right_norm, nats = [], [], []
        for question in read_questions(kind, path):
            sums = []
            for choice in question.choices:
                pair = fitted(*encode_pair(tokenizer, question.context, choice), 96)
                logprobs, greedy = logprobs_of(theirs, *pair)
                sums.append(float(logprobs.sum()))
            by_length = [one / length for one, length in zip(sums, question.lengths)]
            right.append(greedy if kind == "lambada" else int(np.argmax(sums)) == question.gold)
            right_norm.append(int(np.argmax(by_length)) == question.gold)
            nats.append(-sums[0])
        metrics = found[kind.replace("_", "-")].metrics
        assert metrics["acc"].value == np.mean(right)
        if kind == "lambada":
            assert metrics["perplexity"].value == pytest.approx(math.exp(np.mean(nats)), rel=1e-4)
        else:
            assert metrics["acc_norm"].value == np.mean(right_norm)


def test_the_command_line(run, tmp_path, capsys):
    """The CLI prints a table, or the same records as JSON; mistakes are reported before a model is loaded."""
    files = made.files_in(tmp_path)
    assert main(["evaluate", str(run.path), "--task", f"mmlu={files['mmlu']}", "--limit", "2", "--json"]) == 0
    [record] = json.loads(capsys.readouterr().out).values()
    assert record["limit"] == 2 and record["counts"]["examples"] == 2 and record["step"] == saved.STEP
    assert main(["evaluate", str(run.path), "--data", "small", "--split", "test"]) == 0
    said = capsys.readouterr().out
    assert "talks, step 7" in said and "perplexity-small-test" in said
    assert (
        main(["evaluate", str(run.path), "--task", f"lambada={files['lambada']}", "--follow", "--json"]) == 0
    )
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["lambada"]["step"] == saved.STEP
    assert main(["evaluate", str(run.path), "--follow", "--step", "7"]) == 2
    assert "step = 7: follow = True evaluates each new checkpoint; omit step." in capsys.readouterr().err
    files["mmlu"].write_text('{"question": "?"}\n')
    engine = RESIDENT.engine
    assert engine is not None
    for words, code, error in (
        (["--task", "mmlu"], 2, "--task mmlu must be FORMAT=FILE, such as hellaswag=hellaswag_val.jsonl."),
        (
            ["--task", f"mmlu={files['mmlu']}"],
            3,
            f"{files['mmlu']}:1: the field choices is missing; the object has the fields question.",
        ),
        (["--data", "nowhere"], 3, "there is no dataset with this name in data/dataset, and no nowhere.idx."),
        (["--limit", "0"], 2, "limit = 0 must be at least 1, or None for no limit."),
    ):
        assert main(["evaluate", str(run.path), *words]) == code
        assert error in capsys.readouterr().err
    assert RESIDENT.engine is engine


def test_what_is_refused_in_python(run):
    for asked, kind, said in (
        (
            {"tasks": ["a.jsonl"]},
            ConfigError,
            "tasks = ['a.jsonl'] (list) must be a mapping from formats to files",
        ),
        ({"tasks": {"mmlu": 3}}, ConfigError, "tasks = 3 (int) must be the path of a JSON Lines file"),
        (
            {"data": ["small", "small"]},
            ConfigError,
            "perplexity-small-valid: two evaluations have the same name, so one record would replace the "
            "other. Name each dataset once, and rename files of questions that have the same name.",
        ),
        ({"tasks": {"mmlu": "none.jsonl"}}, DataError, "cannot be read (No such file or directory)."),
    ):
        for follow in (False, True):
            # Checked before a checkpoint is searched.
            with pytest.raises(kind) as refused:
                nb.evaluate(run.path, follow=follow, **asked)
            assert said in str(refused.value)


def test_a_blend_of_megatrons_own_files(run):
    """A blend of two pairs in one folder, one of them used twice, gives a record for
    each pair's validation split.
    """
    mixed = made.run_of_pairs("mixed", ["web_text_document", "news_text_document", "web_text_document"])
    found = nb.evaluate(mixed.path)
    assert [record.source for record in found.values()] == [
        "corpus/web_text_document",
        "corpus/news_text_document",
    ]
    assert all(record.split == "valid" and record.counts["tokens"] for record in found.values())
    [own] = nb.evaluate(mixed.path, data="corpus/web_text_document").values()
    first = next(iter(found.values()))
    assert (own.name, own.split, own.counts) == (first.name, "valid", first.counts)
