"""Files of questions: prompts as in lm-evaluation-harness, and errors about invalid lines."""

import json
import re
from typing import get_args

import pytest

from nbtrain.base.errors import ConfigError, DataError
from nbtrain.config.sections.watch_section import TaskConfig
from nbtrain.evaluation.formats import FORMATS, Question, read_questions
from tests.evaluation import made


def test_prompts(tmp_path):
    """Prompts are identical to the harness's."""
    files = made.files_in(tmp_path)
    found = {kind: read_questions(kind, path) for kind, path in files.items()}
    assert found["lambada"][0] == Question("The cat sat on the", [" mat"], [3], 0)
    first, second = found["hellaswag"]
    # capitalize() lower-cases the other letters; a heading's mark and two spaces become one space.
    assert first.context == "Roof shingle removal: A man is sitting on a roof. He Starts. pulling"
    assert first.choices[:2] == [" up roofing.", "  is using wrap to wrap a pair."]
    assert (first.gold, second.gold) == (3, 1)
    assert second.context == "Canoeing: Two women in a child are shown in a canoe."
    question = found["mmlu"][0]
    assert question.context == (
        "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
        "What is 2 + 2?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:"
    )
    assert question == Question(question.context, [" A", " B", " C", " D"], [1] * 4, 3, "abstract_algebra")
    assert [one.gold for one in found["mmlu"]] == [3, 2, 0]
    assert found["multiple_choice"][1] == Question("", [" yes", " no", " perhaps"], [3, 2, 7], 2)


@pytest.mark.parametrize(
    "kind, line, said",
    [
        ("lambada", '{"text" 3}', "not JSON (Expecting ':' delimiter, column 9)."),
        pytest.param(
            "lambada", '{"text": %s}' % ("9" * 4301), "text must be a string, but is a number.", id="long"
        ),
        ("lambada", "[1]", "not an object but a list; each line must hold one object, not an array."),
        ("lambada", '{"text": true}', "text must be a string, but is true or false."),
        ("lambada", '{"txt": "a b"}', "the field text is missing; the object has the fields txt."),
        ("lambada", '{"text": 3}', "text must be a string, but is a number."),
        ("lambada", '{"text": "word"}', 'text = "word" must be words with one space before the last word.'),
        (
            "lambada",
            '{"text": "ends in "}',
            'text = "ends in " must be words with one space before the last word.',
        ),
        ("hellaswag", {"endings": "a"}, "endings must be a list of non-empty strings."),
        ("hellaswag", {"endings": ["a", ""]}, "endings must be a list of non-empty strings."),
        ("hellaswag", {"endings": ["a"]}, "endings has 1 entries, but must have 2 to 26."),
        ("hellaswag", {"label": ""}, 'label = "" must be 0 to 3.'),
        ("hellaswag", {"label": 4}, "label = 4 must be 0 to 3."),
        ("hellaswag", {"label": True}, "label = true must be 0 to 3."),
        ("mmlu", {"answer": "E"}, 'answer = "E" must be 0 to 3, or A to D.'),
        ("mmlu", {"answer": ""}, 'answer = "" must be 0 to 3, or A to D.'),
        ("multiple_choice", {"answer": "A"}, 'answer = "A" must be 0 to 1.'),
    ],
)
def test_a_bad_line_is_named(tmp_path, kind, line, said):
    """An invalid line is reported with its number, empty lines included."""
    good = made.QUESTIONS[kind][0]
    bad = json.dumps({**good, **line}) if isinstance(line, dict) else line
    path = tmp_path / "asked.jsonl"
    path.write_text(f"{json.dumps(good)}\n\n{bad}\n")
    with pytest.raises(DataError, match=re.escape(f"{path}:3: {said}")) as error:
        # All lines are checked, whatever the limit.
        read_questions(kind, path, limit=1)
    assert str(error.value) == f"{path}:3: {said}"


def test_a_line_that_is_nested_too_deeply(tmp_path):
    path = tmp_path / "asked.jsonl"
    path.write_text("[" * 200_000)
    with pytest.raises(
        DataError, match=rf"^{re.escape(str(path))}:1: not JSON \(.+\); each line must hold one "
    ):
        read_questions("lambada", path)


def test_a_file_that_windows_wrote(tmp_path):
    """A byte order mark, lines that end with CR LF, and numbers of any length in other fields are read."""
    path = tmp_path / "asked.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a b", "id": %s}\r\n\r\n{"text": "c d"}\r\n' % (b"9" * 4301))
    assert [question.choices for question in read_questions("lambada", path)] == [[" b"], [" d"]]


def test_other_files(tmp_path):
    """A file that is not text, missing or empty is refused."""
    path = tmp_path / "asked.jsonl"
    path.write_bytes(b'{"text": "a b"}\n{"text": "\xff"}\n')
    for content, said in (
        (b'{"text": "a b"}\n{"text": "\xff"}\n', f"{path}:2: not UTF-8 (byte 0xff)."),
        (b"\n", f"{path} contains no lines."),
        (None, f"{path}: cannot be read (No such file or directory)."),
    ):
        path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
        with pytest.raises(DataError) as error:
            read_questions("lambada", path)
        assert str(error.value) == said
    with pytest.raises(ConfigError) as refused:
        read_questions("helaswag", path)
    assert str(refused.value) == (
        f"helaswag is not a task. The tasks are {', '.join(FORMATS)}. Nearest: hellaswag."
    )


def test_every_format_can_be_asked_while_a_run_trains():
    """evaluation.tasks supports the same formats as files of questions, so all can be
    evaluated during training.
    """
    assert get_args(TaskConfig.model_fields["task"].annotation) == tuple(FORMATS)
