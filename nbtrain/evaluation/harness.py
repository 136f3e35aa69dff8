"""Tasks from lm-evaluation-harness for a run's model (extra `eval`; lm_eval is imported on first use).

    tasks = load_tasks(["hellaswag=val.jsonl", "my_task"], "my-tasks/")
    ask_harness(found, tasks, answers, num_fewshot=None, limit=None)

NAME=FILE is the harness's own task NAME with the JSON lines in FILE as its data, without the Hub. Other names
are searched in the folder of task files, then among the harness's own tasks.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, DataError, NbtrainError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.printing.progress import Progress
from nbtrain.base.run_directory.evaluation_files import Estimate, file_name
from nbtrain.base.text.amounts import counted
from nbtrain.base.text.nearest import nearest
from nbtrain.config.generation import Generation
from nbtrain.corpus.optional import missing
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.evaluation.encoding import fitted, prefix_of, tokens_of
from nbtrain.evaluation.evaluate import Evaluation
from nbtrain.evaluation.requests import Outcome, Score, ScoreRequest

logger = logging.getLogger(__name__)

# Maximum number of tokens in a generated answer, as in HFLM.
MAX_GEN_TOKENS = 256
# Name of the split that has the lines of a local file.
LOCAL = "local"


class Answers(Protocol):
    """The interface of the model that the harness evaluates: its tokenizer, scores and generated text."""

    tokenizer: Tokenizer
    positions: int

    @property
    def score(self) -> Score:
        """Function that computes log-probabilities of continuations (requests.py)."""

    def generate(self, requests: Iterable[dict[str, Any]]) -> Iterator[tuple[int, str]]:
        """Yield (number of the request, new text), for requests with the fields in config/generation.py."""


class ChatText(Protocol):
    """Converts a conversation to text with the model's chat template."""

    has_special_tokens: bool
    """Whether the text of a special token is encoded as that token."""
    takes_turns: bool
    """Whether few-shot examples may be earlier turns. Otherwise, they are part of the question's text."""

    def __call__(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the conversation as text.

        Without `add_generation_prompt`, the text ends with the last message, which the model continues.
        """


class HarnessTask(NamedTuple):
    """A task that the harness has loaded, including its data."""

    name: str
    loaded: Any
    """Object from lm_eval: a Task or a Group."""
    source: str
    source_sha256: str | None = None
    """SHA-256 of the local file that replaces the task's data; None if the task uses its own data."""

    def leaves(self) -> list[Any]:
        """Return lm_eval's Task objects: all tasks in a group and its subgroups, or the single task."""
        return self.loaded.get_all_tasks() if hasattr(self.loaded, "get_all_tasks") else [self.loaded]


def load_tasks(names: Sequence[str], include_path: Path | None = None) -> list[HarnessTask]:
    """Load tasks by their names.

    Raises DataError if lm_eval is not installed or cannot load a task, for example because it does not know
    the name. Raises ConfigError if `include_path` is not a folder, if NAME in NAME=FILE is not a single task
    that the harness knows, or if two tasks have the same name.
    """
    try:
        with _their_words():
            import lm_eval
            from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise missing("lm_eval", "harness", extra="eval") from error
    # lm_eval logs many messages about its progress, so only errors are shown.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    all_local = include_path is not None or all("=" in name for name in names)
    if include_path is not None and not include_path.is_dir():
        raise ConfigError(
            f"include_path = {include_path}: no such folder. Set it to the folder with your task files."
        )
    manager = TaskManager(
        include_defaults=not all_local,
        include_path=None if include_path is None else str(include_path),
    )
    found = []
    with tempfile.TemporaryDirectory() as folder, _their_words():
        for asked in names:
            name, _, file = asked.partition("=")
            task_file = _task_file(name, Path(file), Path(folder), include_path) if file else None
            try:
                loaded = manager.load([str(task_file) if task_file else name])
            except Exception as error:  # whatever the harness, datasets or a task's own code raises
                said = f"{type(error).__name__}: {error}"
                raise DataError(
                    f"{asked}: lm-evaluation-harness cannot load this task ({said}). Correct the task's "
                    "name, its YAML file or its data."
                ) from None
            # For a group, lm_eval also returns the groups inside it. Only the outermost group is evaluated,
            # because it includes their tasks.
            groups = loaded["groups"]
            several = {name: groups[name]} if name in groups else loaded["tasks"]
            source = Path(file).name if file else f"lm-eval {lm_eval.__version__}"
            sha256 = files.sha256_of(Path(file)) if file else None
            found += [HarnessTask(key, one, source, sha256) for key, one in several.items()]
    names = [task.name for task in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"{', '.join(twice)}: two evaluations have the same name, so the record of one would overwrite "
            "the record of the other. Run them in separate calls at different checkpoints, or combine their "
            "files."
        )
    return found


def _their_words() -> contextlib.AbstractContextManager[Any]:
    """Redirect the harness's output to stderr, because stdout is reserved for nbtrain's results."""
    return contextlib.redirect_stdout(sys.stderr)


def _task_file(name: str, file: Path, folder: Path, include_path: Path | None) -> Path:
    """Write a task file that defines the harness's task `name` with the local `file` as its data.

    Return the path of the task file, which is in `folder`. Raises DataError if `file` does not exist, and
    ConfigError if the harness has no such task, or if it is not a single task that a YAML file defines.
    """
    import lm_eval.tasks

    if not file.is_file():
        raise DataError(f"{file}: no such file.")
    [tasks, *_] = map(Path, lm_eval.tasks.__path__)
    entry = next(
        (
            found
            for place in (include_path, tasks)
            if place is not None and (found := _own_entry(name, place))
        ),
        None,
    )
    if entry is None:
        known = lm_eval.tasks.TaskManager().task_index
        raise ConfigError(
            f"{name}: lm-evaluation-harness has no task with this name.{nearest(name, known)} To use your "
            "own task files, put them in a folder and set include_path to it."
        )
    if (kind := entry.kind.name) != "TASK":
        what = {"GROUP": "a group of tasks", "TAG": "a tag of several tasks"}.get(kind)
        if what is None:
            raise ConfigError(
                f"{name} is a task written in Python, whose code decides which data it reads, but NAME=FILE "
                f"works only for tasks that a YAML file defines. Evaluate the task without a file: {name}."
            )
        raise ConfigError(
            f"{name} is {what}, but NAME=FILE works only for a single task. Choose one of its tasks, or omit "
            "the file."
        )
    path = folder / f"{name}.yaml"
    # Few-shot examples come from the same lines, unless the task has its own examples. The harness excludes
    # the question itself from its examples only in a test split, so the lines are used as the test split.
    brings_examples = "samples" in (entry.cfg.get("fewshot_config") or {})
    lines = {
        "include": str(entry.yaml_path),
        "custom_dataset": None,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {LOCAL: str(file.absolute())}},
        "training_split": None,
        "validation_split": None,
        "test_split": LOCAL,
        "fewshot_split": None if brings_examples else LOCAL,
    }
    # JSON is YAML.
    path.write_text(json.dumps(lines), encoding="utf-8")
    return path


def _own_file(name: str, tasks: Path) -> Path | None:
    """Return the file in the folder `tasks` that defines a task, group or tag; None if no file defines it."""
    entry = _own_entry(name, tasks)
    return None if entry is None else entry.yaml_path


def _own_entry(name: str, tasks: Path) -> Any:
    """Return the harness's index entry for a task name in the folder `tasks`; None if there is no entry.

    To index the whole folder, the harness would read all of its 14,000 files. Therefore only the subfolders
    whose files contain the name are indexed.
    """
    from lm_eval.tasks import TaskManager

    written = re.compile(rb"(?<![\w-])" + re.escape(name.encode()) + rb"(?![\w-])")
    folders = {path.parent for path in tasks.rglob("*.yaml") if written.search(path.read_bytes())}
    outermost = [folder for folder in folders if folders.isdisjoint(folder.parents)]
    # If several files in a folder define the same name, the harness uses the first file. If several folders
    # define the name, it uses the last folder.
    outermost.sort(key=lambda folder: f"{folder.as_posix()}/", reverse=True)
    manager = TaskManager(include_defaults=False, include_path=[str(folder) for folder in outermost])
    return manager.task_index.get(name)


def check_fewshot(tasks: Sequence[HarnessTask], num_fewshot: int | None) -> None:
    """Raise ConfigError that lists every task with too few examples for the few-shot prompts.

    A warning is logged for each task whose file fixes num_fewshot to 0.
    """
    problems = []
    for task in tasks:
        for leaf in task.leaves():
            own = leaf.get_config("num_fewshot")
            if num_fewshot and own == 0:
                logger.warning(
                    "%s: the task file fixes num_fewshot = 0, so the harness ignores the requested number.",
                    leaf.task_name,
                )
            shots = (num_fewshot if num_fewshot is not None and own != 0 else own) or 0
            sampler = getattr(leaf, "sampler", None)
            if not shots or sampler is None:
                continue
            is_same = leaf.get_config("fewshot_split") == leaf.get_config("test_split")
            has, most = len(sampler.fewshot_docs()), len(sampler.fewshot_docs()) - is_same
            if shots > most:
                without = ", one of which is the question itself" if is_same else ""
                words = f"num_fewshot = {shots} must be at most {most}: {task.source} has "
                words += f"{counted(has, 'example')}{without}."
                place = str(leaf.task_name)
                problems.append(Finding("error", "check_fewshot", "num_fewshot", place, words, cost=FATAL))
    refuse(problems, ConfigError)


def ask_harness(
    found: Evaluation,
    tasks: Sequence[HarnessTask],
    answers: Answers,
    num_fewshot: int | None,
    limit: int | None,
    chat: ChatText | None = None,
) -> None:
    """Run the harness, and write each result as soon as it is complete.

    With `chat`, prompts are conversations in the model's chat template. Raises DataError if the harness
    cannot run a task.
    """
    with _their_words():
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager

    # The tasks are already loaded. Without a manager, the harness would index all its built-in tasks.
    manager = TaskManager(include_defaults=False)
    for task in tasks:
        started = time.time()
        try:
            with _their_words():
                results = simple_evaluate(
                    harness_model(answers, chat),
                    tasks=[task.loaded],
                    num_fewshot=num_fewshot,
                    limit=limit,
                    task_manager=manager,
                    **(
                        {"apply_chat_template": True, "fewshot_as_multiturn": chat.takes_turns}
                        if chat
                        else {}
                    ),
                )
        except NbtrainError:
            raise
        except Exception as error:  # whatever the harness or a task's own code raises
            said = f"{type(error).__name__}: {error}"
            raise DataError(f"{task.name}: lm-evaluation-harness cannot run this task ({said}).") from None
        assert results is not None
        own = results.get("groups", {}).get(task.name) or results["results"][task.name]
        samples = [one["effective"] for one in results["n-samples"].values()]
        shots = _shots(results["n-shot"], [leaf.task_name for leaf in task.leaves()])
        kind = ["harness"] if chat is None else ["harness-chat"]
        found.keep(
            Outcome({"examples": sum(samples)}, _metrics(own), {}),
            started,
            name=file_name(*kind, task.name, *([f"{shots}-shot"] if shots else [])),
            task=f"lm-eval: {task.name}{'' if chat is None else ', as a chat'}",
            source=task.source,
            source_sha256=task.source_sha256 or _asked_sha256(results["samples"]),
            split=None,
            limit=limit,
            num_fewshot=shots,
        )


def _shots(of_each: Mapping[str, int], leaves: Sequence[str]) -> int | None:
    """Return the number of few-shot examples; None if the tasks in a group have different numbers.

    `of_each` is {task name: number}, and `leaves` are the names of the tasks in the group.
    """
    counts = {int(of_each.get(name) or 0) for name in leaves}
    return counts.pop() if len(counts) == 1 else None


def _asked_sha256(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return a SHA-256 over lm_eval's hashes of every question, prompt and answer.

    `samples` is {task name: samples}, as lm_eval returns them.
    """
    digest = hashlib.sha256()
    for name in sorted(samples):
        digest.update(f"{name}\n".encode())
        for sample in samples[name]:
            parts = ("doc_hash", "prompt_hash", "target_hash")
            digest.update("".join(str(sample.get(part)) for part in parts).encode())
    return digest.hexdigest()


def _metrics(result: dict[str, Any]) -> dict[str, Estimate]:
    """Return {metric: estimate} from the harness's keys, such as "acc,none" and "acc_stderr,none".

    The second part of a key is the name of a filter. It is added to the metric's name if it is not "none".
    """
    found = {}
    for key, value in result.items():
        metric, comma, kept = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        stderr = result.get(f"{metric}_stderr,{kept}")
        name = metric if kept == "none" else f"{metric} ({kept})"
        found[name] = Estimate(float(value), float(stderr) if isinstance(stderr, int | float) else None)
    return found


def harness_model(answers: Answers, chat: ChatText | None = None) -> Any:
    """Return the model as an lm_eval.api.model.TemplateLM, through which the harness uses it."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    tokenizer, positions = answers.tokenizer, answers.positions

    class Model(TemplateLM):
        eot_token_id = tokenizer.eod_id
        prefix_token_id = prefix_of(tokenizer)
        max_length = positions
        max_gen_toks = min(MAX_GEN_TOKENS, positions // 2)
        tokenizer_name = str(tokenizer.directory)

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            return tokens_with(chat, tokenizer, string, add_special_tokens)

        def apply_chat_template(
            self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
        ) -> str:
            assert chat is not None
            return chat(chat_history, add_generation_prompt)

        def chat_template(self, chat_template: bool | str = False) -> str:
            # The harness only records this text.
            return "" if chat is None else chat([{"role": "user", "content": "{content}"}])

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
            pairs = [(context, continuation) for _, context, continuation in requests]
            return scored_pairs(pairs, answers)

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
            pairs, ends = [], [0]
            for request in requests:
                windows = get_rolling_token_windows(
                    tokens_of(tokenizer, request.args[0]), self.prefix_token_id, positions, context_len=1
                )
                pairs += [make_disjoint_window(window) for window in windows]
                ends.append(len(pairs))
            scores = [logprob for logprob, _ in scored_pairs(pairs, answers)]
            return [sum(scores[first:last]) for first, last in itertools.pairwise(ends)]

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            asked = [
                _generation(context, how, tokenizer, positions, self.max_gen_toks, chat)
                for context, how in (request.args[:2] for request in requests)
            ]
            texts = [""] * len(asked)
            with Progress("generate", len(asked), "texts") as bar:
                for number, text in answers.generate(asked):
                    texts[number] = text
                    bar.update()
            return texts

    return Model()


def tokens_with(
    chat: ChatText | None, tokenizer: Tokenizer, text: str, add_special_tokens: bool | None = None
) -> list[int]:
    """Return the token ids of a text, which is a chat in the model's chat template if `chat` is given.

    Without `chat`, the text is encoded by tokens_of(). A chat is encoded without the tokenizer's prefix,
    because the chat template includes the prefix.
    """
    if chat is None:
        return tokens_of(tokenizer, text, add_special_tokens)
    return tokenizer.encode_with_special(text) if chat.has_special_tokens else tokenizer.encode(text).tolist()


def scored_pairs(pairs: list[tuple[list[int], list[int]]], answers: Answers) -> list[tuple[float, bool]]:
    """Return (log-probability of the continuation, whether all its tokens are the most likely) for each pair.

    A pair is (tokens of the context, tokens of the continuation).
    """
    cut = [fitted(context, continuation, answers.positions) for context, continuation in pairs]
    # Consecutive pairs with the same context, such as the choices of a question, become one request.
    together = [list(group) for _, group in itertools.groupby(range(len(cut)), lambda number: cut[number][0])]
    found: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
    with Progress("score", len(pairs), "choices") as bar:
        asked = (ScoreRequest(cut[group[0]][0], [cut[number][1] for number in group]) for group in together)
        for place, scored in answers.score(asked):
            for number, one in zip(together[place], scored, strict=True):
                found[number] = (sum(one.logprobs), one.is_greedy)
            bar.update(len(scored))
    return found


def _generation(
    context: str,
    how: dict[str, Any],
    tokenizer: Tokenizer,
    positions: int,
    default_tokens: int,
    chat: ChatText | None = None,
) -> dict[str, Any]:
    """Convert a generation request of the harness to the fields of a request to nbtrain's inference engine.

    `context` is the prompt, `how` has the harness's generation_kwargs, and `default_tokens` is the number of
    new tokens if `how` sets no maximum. Raises ConfigError for unknown settings, and for a maximum length
    that the model does not support.
    """
    how = dict(how)
    until = how.pop("until", None) or []
    names = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
    most = next((value for name in names if (value := how.pop(name, None)) is not None), default_tokens)
    if not 0 < most < positions:
        raise ConfigError(
            f"max_gen_toks = {most} must be from 1 to {positions - 1:,}, because the model has {positions:,} "
            "positions. Set generation_kwargs.max_gen_toks in the task file."
        )
    given, samples = how.pop("temperature", None), how.pop("do_sample", None)
    # As in lm_eval.models.utils.normalize_gen_kwargs, a temperature alone turns sampling on.
    samples = bool(given) if samples is None else samples
    temperature = float(1.0 if given is None else given) if samples else 0.0
    known: dict[str, Any] = {
        name: how.pop(name) for name in ("top_p", "top_k", "min_p", "repetition_penalty") if name in how
    }
    if how:
        raise ConfigError(
            f"generation_kwargs: nbtrain does not support {', '.join(how)}. Remove unsupported settings from "
            "generation_kwargs in the task file."
        )
    tokens = tokens_with(chat, tokenizer, context) or [tokenizer.eod_id]
    stops = tuple([until] if isinstance(until, str) else until)
    generation = Generation.of(
        {"max_new_tokens": int(most), "temperature": temperature, "top_k": 0, "stop": stops, **known}
    )
    return {**generation.to_dict(), "prompt": tokens[-(positions - most) :]}
