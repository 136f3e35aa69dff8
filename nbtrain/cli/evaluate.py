"""`nbtrain evaluate`: its options and output."""

import argparse
import json
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.cli import completers
from nbtrain.cli.output import show
from nbtrain.cli.serve import add_loading
from nbtrain.cli.verbs import add_json, complete, run_verb


def add_verbs(under: Any) -> None:
    """Add the verb `nbtrain evaluate` to `under`, the subparsers of nbtrain."""
    parser = run_verb(
        under,
        "evaluate",
        evaluate,
        "By default, measures perplexity and bits per byte on the run's own validation data. The results are "
        "stored with the run.",
        "nbtrain evaluate gpt-tiny\n"
        "nbtrain evaluate gpt-125m --task hellaswag=hellaswag_val.jsonl --limit 500",
    )
    text = (
        "Measure perplexity on this dataset, given by its name or the prefix of its .bin/.idx pair. May be "
        "repeated. Without --data, --task, --harness and --judge-questions, the run's own data is used."
    )
    data = parser.add_argument("--data", action="append", metavar="DATASET", help=text)
    complete(data, completers.datasets)
    text = "Split of the dataset to use. Default: `valid` for the run's own data, `all` for other data."
    parser.add_argument("--split", choices=("train", "valid", "test", "all"), help=text)
    text = (
        "Ask the questions in a JSON Lines file. FORMAT is lambada, hellaswag, mmlu or multiple_choice. May "
        "be repeated."
    )
    parser.add_argument("--task", action="append", default=[], metavar="FORMAT=FILE", help=text)
    text = (
        "Run an lm-evaluation-harness task (needs the extra `eval`); with =FILE, on a local JSON Lines file. "
        "May be repeated."
    )
    parser.add_argument("--harness", action="append", default=[], metavar="NAME[=FILE]", help=text)
    parser.add_argument(
        "--include-path", metavar="DIR", help="Folder with your own task files for --harness."
    )
    text = "Number of solved examples before each --harness question. Default: the number in the task's file."
    parser.add_argument("--num-fewshot", type=int, metavar="COUNT", help=text)
    text = "Format each --harness question as a chat, with the chat template of the run or of its model."
    parser.add_argument("--apply-chat-template", action="store_true", help=text)
    text = (
        "Ask the open questions in FILE, which has MT-bench's format. Another model, the judge, rates the "
        "run's answers (--judge-url, --judge-model)."
    )
    parser.add_argument("--judge-questions", metavar="FILE", help=text)
    text = "Base URL of the judge's API, without /chat/completions."
    parser.add_argument("--judge-url", default="", metavar="URL", help=text)
    text = "Name of the judge's model on its server."
    parser.add_argument("--judge-model", default="", metavar="NAME", help=text)
    text = "Environment variable that holds the API token for the judge. Default: NBTRAIN_JUDGE_TOKEN."
    parser.add_argument("--judge-token-env", default="", metavar="VARIABLE", help=text)
    text = "Use only the first COUNT windows of each dataset and the first COUNT questions of each task."
    parser.add_argument("--limit", type=int, metavar="COUNT", help=text)
    text = "Evaluate each checkpoint that the run saves, until the run ends."
    parser.add_argument("--follow", action="store_true", help=text)
    add_loading(parser)
    add_json(parser, "Print the stored records as one JSON object.")


def evaluate(options: argparse.Namespace) -> None:
    """Evaluate one checkpoint of a run, or each checkpoint that the run saves."""
    from dataclasses import asdict

    from nbtrain.api import verbs as api

    tasks: dict[str, list[str]] = {}
    for task in options.task:
        kind, equals, file = task.partition("=")
        if not equals or not file:
            raise ConfigError(f"--task {task} must be FORMAT=FILE, such as hellaswag=hellaswag_val.jsonl.")
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
            show(found, flush=True)
