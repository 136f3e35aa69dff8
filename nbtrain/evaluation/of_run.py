"""The tasks on which a run's model is evaluated during training, from the files in `evaluation.tasks`."""

from collections.abc import Iterator
from pathlib import Path

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display, resolve, tokenizer_dir
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.watch_section import TaskConfig
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.evaluation.formats import read_questions
from nbtrain.evaluation.questions import Questions


def tasks_of_run(config: RunConfig) -> list[Questions]:
    """Return the tasks in `evaluation.tasks`. Raises DataError for a missing tokenizer or an invalid file."""
    if not config.evaluation.tasks:
        return []
    tokenizer = Tokenizer.load(tokenizer_dir(config.tokenizer.name))
    positions = config.model.seq_length
    return [
        Questions(task.task, resolve(task.path), tokenizer, positions, task.limit)
        for task in config.evaluation.tasks
    ]


def task_problems(config: RunConfig, tokenizer: Tokenizer | None) -> Iterator[tuple[str, str, str]]:
    """Yield (field, problem, fix) for each problem in `evaluation.tasks`.

    With a tokenizer, the questions are also encoded. Without one, only the lines are checked, because a
    missing tokenizer is reported elsewhere.
    """
    names: dict[str, int] = {}
    for number, task in enumerate(config.evaluation.tasks):
        key, path = f"evaluation.tasks.{number}", resolve(task.path)
        try:
            count = len(read_questions(task.task, path))
            if tokenizer is not None:
                asked = Questions(task.task, path, tokenizer, config.model.seq_length, task.limit)
                # Encoding reports choices that the tokenizer merges with the end of the context.
                for _ in asked.requests():
                    pass
                first = names.setdefault(asked.name, number)
                if first != number:
                    yield (
                        f"{key}.path",
                        f"would give its result the same name ({asked.name}) as evaluation.tasks.{first}",
                        "Rename one of the files, or remove one entry.",
                    )
        except DataError as error:
            yield f"{key}.path", f"is not a file with {task.task} questions: {error}", _fix(task, path)
            continue
        if task.limit is not None and task.limit > count:
            yield (
                f"{key}.limit",
                f"= {task.limit:,} is more than the {count:,} questions in {display(path)}",
                f"Set limit to {count} or less, or remove it to use all questions.",
            )


def _fix(task: TaskConfig, path: Path) -> str:
    if not path.is_file():
        return "Correct the path (relative paths start at the workspace), or remove the entry."
    return f"Correct the file. docs/evaluation.md lists the fields of {task.task} questions."
