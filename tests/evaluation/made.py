"""Questions, data and a run with a small model for tests of evaluations."""

import json
import random
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import resolve, tokenizer_dir
from nbtrain.config.load import load_resolved
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.of_run import dataset_of
from tests.corpus import made as corpus
from tests.dataset.dataset_maker import make_dataset

SPLIT = {"data.split": "60,30,10"}
LAMBADA = [
    {"text": "The cat sat on the mat"},
    {"text": "She said that he was there, and \u201cso on\u201d, again"},
    {"text": "one two three two one two three"},
]
HELLASWAG = [
    {
        "ctx_a": "A man is sitting on a roof. [header] He",
        "ctx_b": "starts [title] pulling",
        "activity_label": "Roof shingle removal",
        "endings": [
            "up  roofing.",
            "[step] is using wrap to wrap a pair.",
            "is ripping tiles.",
            "holds a cube.",
        ],
        "label": "3",
    },
    {
        "ctx_a": "Two women in a child are shown in a canoe.",
        "ctx_b": "",
        "activity_label": "Canoeing",
        "endings": [
            "They row.",
            "Someone pulls them into the water, and they swim on.",
            "A dog barks.",
            "No.",
        ],
        "label": 1,
    },
]
MMLU = [
    {
        "question": " What is 2 + 2?",
        "subject": "abstract_algebra",
        "choices": ["1", "2", "3", "4"],
        "answer": 3,
    },
    {
        "question": "Which is odd?",
        "subject": "abstract_algebra",
        "choices": ["2", "4", "5", "8"],
        "answer": "C",
    },
    {"question": "What barks?", "subject": "zoology", "choices": ["dog", "cat"], "answer": "a"},
]
CHOICES = [
    {"context": "The sky is", "choices": ["blue", "of course green"], "answer": 0},
    {"context": "", "choices": ["yes", "no", "perhaps"], "answer": "2"},
]
QUESTIONS: dict[str, list[dict[str, Any]]] = {
    "lambada": LAMBADA,
    "hellaswag": HELLASWAG,
    "mmlu": MMLU,
    "multiple_choice": CHOICES,
}


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    """Write a JSON-lines file."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def files_in(folder: Path) -> dict[str, Path]:
    """Write a file of questions in each format; return the files by format."""
    return {kind: write_lines(folder / f"{kind}.jsonl", lines) for kind, lines in QUESTIONS.items()}


def texts(count: int, seed: int = 3) -> list[str]:
    """Return documents of one to a few hundred words."""
    chance = random.Random(seed)
    words = " ".join(text for script in ("latin", "han") for text in corpus.texts(script, 20)).split()
    return [" ".join(chance.choices(words, k=chance.randint(1, 90))) for _ in range(count)]


def run_of_pairs(name: str, stems: list[str]) -> RunDir:
    """Return a run with a checkpoint that blends the pairs of corpus/, which have no manifest."""
    from tests.inference import saved  # loads torch, which a test of questions alone does not need

    blend = [{"prefix": f"corpus/{stem}", "weight": 1} for stem in stems]
    run = saved.save_run(name, {**SPLIT, "data.sources": [], "data.blend": blend})
    config = load_resolved(run.config_yaml)
    for number, stem in enumerate(sorted(set(stems))):
        pair = DatasetFiles(resolve("corpus"), stem=stem)
        make_dataset(config, texts(20, seed=number), pair)
        pair.manifest_json.unlink()
    return run


def run_with_data(
    name: str = "talks", overrides: dict[str, Any] | None = None, learnt_from: list[int] | None = None
) -> RunDir:
    """Return a run with a checkpoint and 20 documents, 6 of them for validation."""
    from tests.inference import saved  # loads torch, which a test of questions alone does not need

    run = saved.save_run(name, {**SPLIT, **(overrides or {})})
    config = load_resolved(run.config_yaml)
    make_dataset(config, texts(20), learnt_from=learnt_from)
    manifest = dataset_of(config).manifest_json
    own = Tokenizer.load(tokenizer_dir(config.tokenizer.name)).sha256
    files.write_json(manifest, {**files.read_json(manifest), "tokenizer_sha256": own})
    return run
