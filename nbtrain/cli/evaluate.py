"""The verb evaluate: options and output."""

import argparse
import json
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.cli.verbs import run_verb

DTYPES = ("auto", "fp32", "bf16", "fp16")


def add_verbs(under: Any) -> None:
    """evaluate."""
    one = run_verb(under, "evaluate", evaluate, "Perplexity and scores of a run's newest checkpoint.")
    text = (
        "a dataset's name or the prefix of a .bin/.idx; several times; default, without --task: the run's own"
    )
    one.add_argument("--data", action="append", metavar="DATASET", help=text)
    text = "valid, test, train or all; default: valid of the run's own data, all of other data"
    one.add_argument("--split", choices=("train", "valid", "test", "all"), help=text)
    text = "lambada, hellaswag, mmlu or multiple_choice, and a file of JSON lines; several times"
    one.add_argument("--task", action="append", default=[], metavar="FORMAT=FILE", help=text)
    text = "a task of lm-evaluation-harness; NAME=FILE: on local JSON lines; several times (extra `eval`)"
    one.add_argument("--harness", action="append", default=[], metavar="NAME[=FILE]", help=text)
    one.add_argument("--include-path", metavar="DIR", help="task files of yours for --harness")
    one.add_argument(
        "--num-fewshot", type=int, metavar="COUNT", help="examples before each question of --harness"
    )
    text = "ask the tasks of --harness in a chat, in the template of the run or of its model"
    one.add_argument("--apply-chat-template", action="store_true", help=text)
    text = "open questions as MT-bench has them, whose answers a judge rates"
    one.add_argument("--judge-questions", metavar="FILE", help=text)
    text = "of the judge: what comes before /chat/completions"
    one.add_argument("--judge-url", default="", metavar="URL", help=text)
    one.add_argument("--judge-model", default="", metavar="NAME", help="of the judge, as its server calls it")
    text = "environment variable with the judge's token (default NBTRAIN_JUDGE_TOKEN)"
    one.add_argument("--judge-token-env", default="", metavar="VARIABLE", help=text)
    one.add_argument("--limit", type=int, metavar="COUNT", help="the first windows or questions only")
    one.add_argument("--step", type=int, help="of this checkpoint instead of the newest")
    text = "evaluate each checkpoint that the run saves, until the run ends"
    one.add_argument("--follow", action="store_true", help=text)
    one.add_argument("--dtype", choices=DTYPES, default="auto", help="auto: fp32 on a CPU")
    text = "processes that share the model; default: as few GPUs as hold it"
    one.add_argument("--tensor-parallel-size", type=int, metavar="RANKS", help=text)
    one.add_argument("--json", action="store_true", help="the records that are written, as one JSON object")


def evaluate(options: argparse.Namespace) -> None:
    from dataclasses import asdict

    from nbtrain.api import verbs as api

    tasks: dict[str, list[str]] = {}
    for asked in options.task:
        kind, equals, file = asked.partition("=")
        if not equals or not file:
            raise ConfigError(f"--task {asked} must be FORMAT=FILE, such as hellaswag=hellaswag_val.jsonl.")
        tasks.setdefault(kind, []).append(file)
    names = (
        "split",
        "limit",
        "step",
        "harness",
        "include_path",
        "num_fewshot",
        "apply_chat_template",
        "judge_questions",
        "judge_url",
        "judge_model",
        "judge_token_env",
        "dtype",
        "tensor_parallel_size",
    )
    how = {name: getattr(options, name) for name in names}
    how |= {"data": options.data, "tasks": tasks}
    several = api.evaluate(options.run, follow=True, **how) if options.follow else None
    for found in several or [api.evaluate(options.run, **how)]:
        if options.json:
            records = {name: asdict(record) for name, record in found.items()}
            print(json.dumps(records, indent=None if options.follow else 2), flush=True)
        else:
            print(found, flush=True)
