"""Writing and reading the records of evaluations; a damaged record is an error."""

import json

import pytest

from nbtrain.base.errors import RecordError
from nbtrain.base.run_directory.evaluation_files import (
    Estimate,
    EvaluationRecord,
    file_name,
    newest_evaluations,
)
from nbtrain.base.run_directory.rundir import RunDir

RECORD = EvaluationRecord(
    name="hellaswag",
    task="hellaswag",
    step=600,
    dtype="fp32",
    source="hellaswag.jsonl",
    source_sha256="0" * 64,
    split=None,
    limit=None,
    counts={"examples": 2},
    metrics={"acc": Estimate(0.5, 0.5), "acc_norm": Estimate(1.0, None)},
    groups={},
    seconds=1.5,
    created_at=2.0,
    version="0.1.0",
)


def test_a_record_is_read_as_it_was_written(tmp_path):
    run = RunDir(tmp_path)
    assert newest_evaluations(run) == {}
    RECORD.write(run)
    assert newest_evaluations(run) == {"hellaswag": RECORD}
    assert [path.name for path in (tmp_path / "evaluation" / "global_step600").iterdir()] == [
        "hellaswag.json"
    ]


def test_a_name_is_a_file_name():
    assert file_name("perplexity", "My Data/../x", "valid") == "perplexity-my-data-..-x-valid"
    assert file_name("...") == "unnamed"


@pytest.mark.parametrize(
    "change, said",
    [
        ({"schema_version": 2}, "schema_version = 2 must be 1: another version of nbtrain wrote the file."),
        ({"metrics": None}, "is not an evaluation record (AttributeError("),
        ({"more": 1}, "is not an evaluation record (TypeError("),
    ],
)
def test_a_damaged_record(tmp_path, change, said):
    run = RunDir(tmp_path)
    RECORD.write(run)
    path = RECORD.path(run)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(RecordError) as error:
        newest_evaluations(run)
    assert str(error.value).startswith(f"{path}: {said}")


def test_a_folder_that_takes_no_file(tmp_path):
    (tmp_path / "evaluation").write_text("in the way")
    with pytest.raises(RecordError, match="evaluation"):
        RECORD.write(RunDir(tmp_path))
