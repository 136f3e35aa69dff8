"""The function nb.evaluate: evaluates a checkpoint on prepared data and on questions."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from nbtrain.api.arguments import existing_path, misused, text, whole_or_none
from nbtrain.api.follow import each_checkpoint
from nbtrain.api.generate import loading_of
from nbtrain.api.run import RunLike, open_run
from nbtrain.base.errors import ConfigError, RecordError
from nbtrain.base.files import not_allowed
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.config.schema import RunConfig

if TYPE_CHECKING:
    from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
    from nbtrain.dataset.files import DatasetFiles
    from nbtrain.evaluation.evaluate import Evaluation
    from nbtrain.evaluation.requests import Scored, ScoreRequest, Task
    from nbtrain.serving.chat import ChatTemplate
    from nbtrain.serving.engine_process import EngineProcess

PathLike = str | Path
# Requests sent per slot of the engine: the extra ones wait there, so that a free slot is filled at once.
ASKED_FOR_EACH_SLOT = 2


@overload
def evaluate(run: RunLike, *, follow: Literal[True], **how: Any) -> "Iterator[Evaluation]": ...


@overload
def evaluate(run: RunLike, *arguments: Any, **how: Any) -> "Evaluation": ...


def evaluate(  # type: ignore[misc]  # the overloads omit options that affect no type
    run: RunLike,
    data: str | Sequence[str] | None = None,
    tasks: Mapping[str, PathLike | Sequence[PathLike]] | None = None,
    split: str | None = None,
    limit: int | None = None,
    step: int | None = None,
    *,
    harness: str | Sequence[str] = (),
    include_path: PathLike | None = None,
    num_fewshot: int | None = None,
    apply_chat_template: bool = False,
    judge_questions: PathLike | None = None,
    judge_url: str = "",
    judge_model: str = "",
    judge_token_env: str = "",
    dtype: str = "auto",
    tensor_parallel_size: int | None = None,
    follow: bool = False,
) -> "Evaluation | Iterator[Evaluation]":
    """Evaluate a checkpoint: perplexity on prepared data, and scores on files of questions.

    `step` selects a checkpoint; the default is the newest. Without `data`, `tasks`, `harness` and
    `judge_questions`, the run's own validation data is used. `data` is one or several datasets, each given by
    its name or the prefix of its .bin/.idx pair. `split` is "valid", "test", "train" (by the run's
    data.split) or "all"; the default is "valid" for the run's own data and "all" for other data. `tasks` maps
    a format (lambada, hellaswag, mmlu or multiple_choice) to one or several JSON Lines files
    (docs/evaluation.md). With `limit`, only the first windows or questions are used.

    `harness` names lm-evaluation-harness tasks (this needs the extra `eval`): NAME=FILE runs a task on a
    local JSON Lines file, `include_path` is a folder with your own task files, and `num_fewshot` is the
    number of examples in each prompt. With `apply_chat_template`, harness questions are asked in a chat, with
    the examples as earlier turns. `judge_questions` is a file of open questions in MT-bench format. The model
    `judge_model` at `judge_url`, which speaks OpenAI's API, rates the answers. Its token is read from the
    environment variable NBTRAIN_JUDGE_TOKEN, or from the variable that `judge_token_env` names.

    Everything is checked before the model is loaded. Results include standard errors, are written to
    evaluation/ in the run's directory, and are included in nb.compare; a cell shows a table. With `follow`,
    the result is an iterator that yields an evaluation of each checkpoint that the run saves, until the run
    ends.
    """
    prepared = partial(
        _prepared,
        run,
        data=data,
        tasks=tasks,
        split=split,
        limit=limit,
        harness=harness,
        include_path=include_path,
        num_fewshot=num_fewshot,
        apply_chat_template=apply_chat_template,
        judge_questions=judge_questions,
        judge_url=judge_url,
        judge_model=judge_model,
        judge_token_env=judge_token_env,
        dtype=dtype,
        tensor_parallel_size=tensor_parallel_size,
    )
    if not follow:
        return prepared(step)()
    if step is not None:
        raise ConfigError(f"step = {step}: follow = True evaluates each new checkpoint; omit step.")
    # Report an error now, not at the first checkpoint.
    prepared(None)
    return each_checkpoint(open_run(run).directory, lambda newest: prepared(newest)())


def _prepared(
    run: RunLike,
    step: int | None,
    *,
    data: str | Sequence[str] | None,
    tasks: Mapping[str, PathLike | Sequence[PathLike]] | None,
    split: str | None,
    limit: int | None,
    harness: str | Sequence[str],
    include_path: PathLike | None,
    num_fewshot: int | None,
    apply_chat_template: bool,
    judge_questions: PathLike | None,
    judge_url: str,
    judge_model: str,
    judge_token_env: str,
    dtype: str,
    tensor_parallel_size: int | None,
) -> "Callable[[], Evaluation]":
    """Validate the request, then return a function that runs the model."""
    from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
    from nbtrain.evaluation.evaluate import Evaluation, ask
    from nbtrain.evaluation.harness import ask_harness, check_fewshot, load_tasks
    from nbtrain.evaluation.judge import TOKEN_VARIABLE, Judge, JudgedQuestions, judged_record
    from nbtrain.serving.chat import ChatText, template_of
    from nbtrain.serving.resident import RESIDENT

    opened = open_run(run)
    config, directory = opened.config, opened.directory
    first = whole_or_none("limit", limit, "no limit")
    if first is not None and first < 1:
        raise ConfigError(f"limit = {first} must be at least 1, or None for no limit.")
    shots = whole_or_none("num_fewshot", num_fewshot, "each task's own number")
    loading = loading_of(opened, step, dtype, tensor_parallel_size)
    tokenizer = Tokenizer.load(tokenizer_dir(config.tokenizer.name))
    names = [harness] if isinstance(harness, str) else [text("harness", name) for name in harness]
    wanted = (
        _tasks(config, tokenizer, data, tasks, split, first)
        if data or tasks or not (names or judge_questions)
        else []
    )
    folder = None if include_path is None else existing_path(include_path)
    chat = None
    if apply_chat_template:
        if not names:
            raise ConfigError(
                "apply_chat_template only affects lm-evaluation-harness tasks: name a task with harness, or "
                "omit apply_chat_template."
            )
        chat = ChatText(config, tokenizer.directory, tokenizer.eod_token)
    if shots is not None and shots < 0:
        raise ConfigError(f"num_fewshot = {shots} must be at least 0, or None for each task's own number.")
    harness_tasks = load_tasks([_on_path(name) for name in names], folder) if names else []
    check_fewshot(harness_tasks, shots)
    template = template_of(config, None, tokenizer.directory, tokenizer.eod_token)
    judged = judge = None
    if judge_questions is not None:
        judge = Judge(text("judge_url", judge_url), judge_model, judge_token_env or TOKEN_VARIABLE)
        judged = JudgedQuestions(_file(judge_questions), first)
        _refuse_without_template(template)
    try:
        directory.evaluation.mkdir(exist_ok=True)
    except OSError as error:
        raise RecordError(f"{not_allowed(error)}.") from None

    def answer() -> "Evaluation":
        with RESIDENT.used(loading) as engine:
            answers = _Engine(engine, tokenizer, config.model.seq_length, template)
            found = Evaluation(directory, engine.ready["step"], engine.ready["dtype"])
            ask(found, wanted, answers.score)
            if harness_tasks:
                ask_harness(found, harness_tasks, answers, shots, first, chat)
            if judged:
                started = time.time()
                judged.answer(answers)
        # The judge does not need the model, so this runs after the model was released.
        if judged and judge:
            beside = directory.evaluation / f"global_step{found.step}" / f"{judged.name}.jsonl"
            judged.write_answers(beside)
            try:
                outcome = judged.judge(judge)
            finally:
                # Also write the answers that were rated before the judge failed.
                judged.write_answers(beside)
            found.keep(outcome, started, **judged_record(judged, judge))
        return found

    return answer


class _Engine:
    """Sends the evaluations' requests to the resident model."""

    def __init__(
        self, engine: "EngineProcess", tokenizer: "Tokenizer", positions: int, template: "ChatTemplate"
    ):
        self.tokenizer, self.positions, self._engine = tokenizer, positions, engine
        self._template = template
        self._most = ASKED_FOR_EACH_SLOT * engine.ready["max_batch"]

    def score(self, asked: "Iterable[ScoreRequest]") -> "Iterator[tuple[int, list[Scored]]]":
        """Yield (index of the request, scores of its continuations) for each request, in any order."""
        from nbtrain.evaluation.requests import Scored

        requests = ({"kind": "score", **request._asdict()} for request in asked)
        found: dict[int, list[Scored]] = {}
        for number, event in self._engine.each(requests, self._most):
            if "end" in event:
                yield number, found.pop(number)
            elif "logprobs" in event:
                found.setdefault(number, []).append(Scored(event["logprobs"], event["greedy"]))

    def generate(self, requests: Iterable[dict[str, Any]]) -> Iterator[tuple[int, str]]:
        """Yield (index of the request, new text) for each request, in any order."""
        pieces: dict[int, list[str]] = {}
        for number, event in self._engine.each(requests, self._most):
            if "end" in event:
                yield number, "".join(pieces.pop(number, ()))
            elif "text" in event:
                pieces.setdefault(number, []).append(event["text"])

    def chat(
        self, conversations: list[list[dict[str, str]]], most_new_tokens: int
    ) -> Iterator[tuple[int, str]]:
        """Yield (index of the conversation, next answer) for each conversation, in any order.

        The answers are decoded greedily. A conversation that is too long loses its beginning.
        """
        from nbtrain.config.generation import Generation
        from nbtrain.serving.refusals import Refusal

        try:
            prompts = [self._template.prompt(messages) for messages in conversations]
        except Refusal as refusal:
            raise ConfigError(refusal.message) from None
        requests = [
            {
                **Generation(temperature=0.0, stop=prompt.stop).to_dict(),
                "prompt": prompt.pieces,
                # With None, a long prompt would leave hardly any positions for the answer.
                "max_new_tokens": most_new_tokens,
                "slides": True,
            }
            for prompt in prompts
        ]
        for number, said in self.generate(requests):
            yield number, said.removesuffix(prompts[number].suffix).strip()


def _refuse_without_template(template: "ChatTemplate") -> None:
    """Raise ConfigError if a run has no template for conversations."""
    from nbtrain.serving.chat import NoTemplate

    if isinstance(template, NoTemplate):
        raise ConfigError(f"judge_questions need a model with a chat template: {template.refusal}")


def _tasks(
    config: RunConfig,
    tokenizer: "Tokenizer",
    data: str | Sequence[str] | None,
    tasks: Mapping[str, PathLike | Sequence[PathLike]] | None,
    split: str | None,
    limit: int | None,
) -> "list[Task]":
    from nbtrain.dataset.of_run import find_dataset
    from nbtrain.evaluation.perplexity import Perplexity
    from nbtrain.evaluation.questions import Questions

    wanted: list[Task] = []
    if tasks is not None and not isinstance(tasks, Mapping):
        raise misused(
            "tasks", tasks, 'a mapping from formats to files, e.g. {"hellaswag": "hellaswag_val.jsonl"}'
        )
    if data is not None or not tasks:
        own = _own_data(config)
        names = [data] if isinstance(data, str) else list(data or ())
        prefixes = [dataset.prefix for dataset in own]
        for found in own if data is None else [find_dataset(text("data", name)) for name in names]:
            is_own = found.prefix in prefixes
            where = split if split is not None else "valid" if is_own else "all"
            wanted.append(Perplexity(config, tokenizer, found, where, is_own, limit))
    for kind, several in (tasks or {}).items():
        for path in several if isinstance(several, list | tuple) else [several]:
            wanted.append(Questions(kind, _file(path), tokenizer, config.model.seq_length, limit))
    names = [task.name for task in wanted]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"{', '.join(twice)}: two evaluations have the same name, so one record would replace the other. "
            "Name each dataset once, and rename files of questions that have the same name."
        )
    return wanted


def _own_data(config: RunConfig) -> "list[DatasetFiles]":
    """Return the .bin/.idx pairs that a run trains on."""
    from nbtrain.dataset.blend import BlendFiles
    from nbtrain.dataset.of_run import dataset_of

    dataset = dataset_of(config)
    if not isinstance(dataset, BlendFiles):
        return [dataset]
    # A blend may list the same pair twice, each time with its own weight.
    return list({entry.files.prefix: entry.files for entry in dataset.entries}.values())


def _file(path: Any) -> Path:
    if not isinstance(path, str | Path):
        raise misused("a file of tasks", path, "the path of a JSON Lines file")
    return existing_path(path)


def _on_path(name: str) -> str:
    """Return the task with FILE as an absolute path if it is NAME=FILE; return NAME unchanged."""
    task, equals, file = name.partition("=")
    return f"{task}={existing_path(file)}" if equals else task
