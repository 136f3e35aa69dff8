"""Requests of lm-evaluation-harness are converted for the engine; tested without the harness."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
import yaml

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, DataError
from nbtrain.base.extras import install_command
from nbtrain.base.run_directory.evaluation_files import Estimate
from nbtrain.config.load import load
from nbtrain.corpus.sources.chat_jinja import chat_jinja
from nbtrain.corpus.tokenizer.folder import KEPT
from nbtrain.evaluation import harness
from nbtrain.evaluation.requests import Scored
from nbtrain.serving.chat import ChatText
from tests.inference.made import beginning_tokenizer_in, tokenizer_in


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizer_in(tmp_path_factory.mktemp("tokenizer"))


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(DataError) as refused:
        harness.load_tasks(["hellaswag"])
    assert str(refused.value) == (
        "harness needs the package lm_eval, which is not installed. Install it with "
        f"`{install_command('eval')}`."
    )


@pytest.fixture
def fake_harness(monkeypatch, tmp_path):
    """Create a folder for task files, and a fake harness that indexes it; `asked` records what it loads."""
    fake, tasks = ModuleType("lm_eval"), ModuleType("lm_eval.tasks")
    tasks.__path__ = [str(tmp_path / "tasks")]

    class TaskManager:
        asked: ClassVar = []
        loaded: ClassVar = {"tasks": {"one": "Task one"}, "groups": {}}

        def __init__(self, include_path=None, include_defaults=True):
            """Index task files like the harness: if a name occurs twice, the last folder and
            its first file count.
            """
            paths = [include_path] if isinstance(include_path, str) else include_path or []
            self.task_index = {}
            for folder in [*(tasks.__path__ if include_defaults else []), *paths]:
                found = {}
                for path in sorted(Path(folder).rglob("*.yaml")):
                    read = yaml.safe_load(path.read_text())
                    kind = "GROUP" if "group" in read else "PY_TASK" if "class" in read else "TASK"
                    entry = SimpleNamespace(yaml_path=path, cfg=read, kind=SimpleNamespace(name=kind))
                    if name := read.get("group") or read.get("task"):
                        found.setdefault(name, entry)
                self.task_index |= found

        def load(self, names):
            self.asked.extend(json.loads(Path(name).read_text()) if "/" in name else name for name in names)
            return self.loaded

    fake.tasks, fake.__version__, tasks.TaskManager = tasks, "0", TaskManager
    monkeypatch.setitem(sys.modules, "lm_eval", fake)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", tasks)
    return tmp_path / "tasks", TaskManager


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("hellaswag", "a/hellaswag.yaml"),
        ("winogrande", "winogrande/a.yaml"),
        ("wic", "wic/default.yaml"),
        ("mmlu_abstract_algebra", "mmlu/default/algebra.yaml"),
        ("prost", "prost/deep/corypaik_prost.yaml"),
        ("in-a-flow", "flow.yaml"),
    ],
)
def test_the_task_file_of_a_name(fake_harness, name, found):
    """The file of a task is found in the harness's index, however its YAML is written."""
    folder, manager = fake_harness
    for path, line in {
        "a/hellaswag.yaml": "task: hellaswag",
        "a/other.yaml": "task: hellaswag",
        "b/hellaswag.yaml": "include: ../a/hellaswag.yaml",
        "c/winogrande.yaml": "task: winogrande_de",
        "winogrande/default.yaml": "test_split: test\ntask: winogrande",
        "winogrande/a.yaml": "task: winogrande",
        "wic/default.yaml": 'task: "wic" # words in context',
        "mmlu/default/algebra.yaml": '"task": "mmlu_abstract_algebra"\n"dataset_name": "algebra"',
        "mmlu/default/group.yaml": "group: mmlu_stem\ntask:\n  - mmlu_abstract_algebra",
        "prost/deep/corypaik_prost.yaml": "fewshot_config: {samples: [{}]}\ntask:\n  prost",
        "prost/group.yaml": "group: prosts\ntask: [prost]",
        "flow.yaml": "{'task': in-a-flow, test_split: test}",
        "squad.yaml": "task: squadv2\nclass: Squad",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"{line}\n")
    lines = folder / "lines.jsonl"
    lines.write_text("{}\n")
    [loaded] = harness.load_tasks([f"{name}={lines}"])
    assert loaded == ("one", "Task one", "lines.jsonl", files.sha256_of(lines))
    asked = manager.asked[0]
    assert asked["include"] == str(folder / found)
    # The harness excludes the question itself only for a test split; a task's own examples stay.
    assert (asked["test_split"], asked["fewshot_split"]) == ("local", None if name == "prost" else "local")
    with pytest.raises(ConfigError, match=r"^helaswag: .* no task with this name\. Nearest: hellaswag\."):
        harness.load_tasks([f"helaswag={lines}"])
    with pytest.raises(ConfigError, match="mmlu_stem is a group of tasks"):
        harness.load_tasks([f"mmlu_stem={lines}"])
    with pytest.raises(ConfigError, match=r"squadv2 is a task written in Python.* a file: squadv2\."):
        harness.load_tasks([f"squadv2={lines}"])
    with pytest.raises(ConfigError, match="one: two evaluations have the same name"):
        harness.load_tasks([f"{name}={lines}"] * 2)


def test_your_own_task_files_go_before_the_harness_s(fake_harness, tmp_path):
    folder, manager = fake_harness
    lines, mine = tmp_path / "lines.jsonl", tmp_path / "mine"
    lines.write_text("{}\n")
    for place in (folder, mine):
        place.mkdir()
        (place / "own.yaml").write_text("task: own\n")
    harness.load_tasks([f"own={lines}"], mine)
    assert manager.asked[0]["include"] == str(mine / "own.yaml")


def leaf(name: str, examples: int, **settings) -> SimpleNamespace:
    """Return a task in the form in which the harness loads it."""
    sampler = SimpleNamespace(fewshot_docs=lambda: [{}] * examples)
    return SimpleNamespace(task_name=name, get_config=settings.get, sampler=sampler)


def test_more_examples_than_there_are(caplog):
    """More few-shot examples than there are is an error before loading; the
    question itself does not count.
    """
    same = {"fewshot_split": "local", "test_split": "local"}
    for task, shots, most in (
        (leaf("a", 8, **same), 8, 7),
        (leaf("a", 8, fewshot_split="dev", test_split="test"), 9, 8),
        (leaf("a", 3, num_fewshot=5, **same), None, 2),
    ):
        asked = [harness.HarnessTask("a", task, "a.jsonl")]
        with pytest.raises(
            ConfigError, match=f"num_fewshot = {shots or 5} must be at most {most}: a.jsonl has"
        ):
            harness.check_fewshot(asked, shots)
        harness.check_fewshot(asked, most)
    fixed = harness.HarnessTask("a", leaf("a", 1, num_fewshot=0, **same), "a.jsonl")
    harness.check_fewshot([fixed], 5)
    assert "fixes num_fewshot = 0" in caplog.text


def test_a_group_of_groups_is_asked_once(fake_harness, monkeypatch):
    """A group that contains groups is loaded once, by its outermost name."""
    groups = {name: f"Group {name}" for name in ("mmlu", "mmlu_stem", "mmlu_other")}
    _, manager = fake_harness
    monkeypatch.setattr(manager, "loaded", {"tasks": {"mmlu_anatomy": "Task"}, "groups": groups})
    assert harness.load_tasks(["mmlu"]) == [("mmlu", "Group mmlu", "lm-eval 0", None)]


def test_choices_of_one_context_are_asked_together():
    """Choices for the same context are scored together, and answers are returned in
    the order of the requests.
    """
    asked = []

    def score(questions):
        asked.extend(questions)
        for number in reversed(range(len(asked))):
            yield number, [Scored([-float(one[0]), -1.0], one[0] == 5) for one in asked[number].continuations]

    pairs = [([1, 2], [5]), ([1, 2], [6]), ([3], [7]), ([1, 2], [8])]
    found = harness.scored_pairs(pairs, SimpleNamespace(positions=8, score=score))
    assert [(one.context, one.continuations) for one in asked] == [
        ([1, 2], [[5], [6]]),
        ([3], [[7]]),
        ([1, 2], [[8]]),
    ]
    assert found == [(-6.0, True), (-7.0, False), (-8.0, False), (-9.0, False)]


def test_a_request_for_text(tokenizer):
    """The prompt is truncated on the left to leave room for the new tokens."""
    how = {"until": ["\n"], "max_gen_toks": 20, "do_sample": False, "temperature": 0.7}
    request = harness._generation("a text " * 40, how, tokenizer, 96, 48)
    assert (request["max_new_tokens"], request["temperature"], request["stop"]) == (20, 0.0, ("\n",))
    assert request["prompt"] == tokenizer.encode("a text " * 40).tolist()[-76:]
    assert how == {"until": ["\n"], "max_gen_toks": 20, "do_sample": False, "temperature": 0.7}
    sampled = harness._generation("", {"do_sample": True, "top_p": 0.5, "until": "x"}, tokenizer, 96, 48)
    assert (sampled["max_new_tokens"], sampled["temperature"], sampled["top_p"]) == (48, 1.0, 0.5)
    assert sampled["prompt"] == [tokenizer.eod_id] and sampled["stop"] == ("x",)
    for wrong, said in (
        ({"max_gen_toks": 96}, "max_gen_toks = 96 must be from 1 to 95, because the model has 96 positions."),
        ({"num_beams": 3}, "generation_kwargs: nbtrain does not support num_beams."),
    ):
        with pytest.raises(ConfigError) as refused:
            harness._generation("a", wrong, tokenizer, 96, 48)
        assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("how", "temperature"),
    [
        ({}, 0.0),
        ({"temperature": 0.0}, 0.0),
        ({"temperature": 0.7}, 0.7),
        ({"do_sample": False, "temperature": 0.7}, 0.0),
        ({"do_sample": True, "temperature": 0.7}, 0.7),
    ],
)
def test_draws_as_with_the_harness(tokenizer, how, temperature):
    """Sampling is enabled if a request sets only a temperature, as in lm_eval's normalize_gen_kwargs."""
    assert harness._generation("a", how, tokenizer, 96, 48)["temperature"] == temperature


def test_a_text_begins_as_with_the_harness(tokenizer, tmp_path):
    """A text gets <s> at its beginning if the tokenizer adds it and the text has
    none; an empty context is <s>.
    """
    for text in ("", "a text", "<|endoftext|>a"):
        assert harness.tokens_of(tokenizer, text) == tokenizer.encode(text).tolist()
    assert harness.prefix_of(tokenizer) == tokenizer.eod_id
    begins = beginning_tokenizer_in(tmp_path / "mine", tmp_path / "theirs")
    plain = begins.encode("a text").tolist()
    assert harness.prefix_of(begins) == begins.bos_id == 319
    assert harness.tokens_of(begins, "a text") == harness.tokens_of(begins, "<s>a text") == [319, *plain]
    assert harness.tokens_of(begins, "a text", add_special_tokens=False) == plain
    assert harness.tokens_of(begins, "<s>a text", add_special_tokens=True) == [319, 319, *plain]
    assert harness.tokens_of(begins, "a text<|endoftext|>") == [319, *plain, begins.eod_id]
    for text, prompt in (("a text", [319, *plain]), ("", [319])):
        assert harness._generation(text, {}, begins, 96, 48)["prompt"] == prompt


@pytest.mark.slow
def test_a_chat_begins_with_what_its_template_writes(tmp_path):
    """Special tokens are tokens in the model's own template, and plain text in the
    template of the run's data.
    """
    tokenizer = beginning_tokenizer_in(tmp_path / "mine", tmp_path / "theirs")
    settings = tmp_path / "mine" / KEPT / "tokenizer_config.json"
    template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}"
        "{% endif %}[{{ m.role }}] {{ m.content | trim }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}[bot]{% endif %}"
    )
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": template}))
    question, prefix = {"role": "user", "content": "a text"}, {"role": "assistant", "content": " So "}

    def chat_of(source):
        config = load("gpt-tiny", {"data.sources": [source]}, check=False)
        return ChatText(config, tokenizer.directory, tokenizer.eod_token)

    conversations = {"kind": "chat", "path": "x"}
    theirs, own = chat_of({"kind": "mock"}), chat_of(conversations)
    (own_source,) = load("gpt-tiny", {"data.sources": [conversations]}, check=False).data.sources
    assert (theirs.has_special_tokens, own.has_special_tokens) == (True, False)
    text = theirs([{"role": "system", "content": "s"}, question])
    assert text == "<s>[user] a text<|endoftext|>[bot]"
    ends = [tokenizer.bos_id, tokenizer.eod_id]
    ids = harness.tokens_with(theirs, tokenizer, text)
    assert [one for one in ids if one in ends] == ends and ids[0] == tokenizer.bos_id
    chats = pytest.importorskip("transformers.utils.chat_template_utils")
    how = {"add_generation_prompt": False, "continue_final_message": True}
    for chat, source in ((theirs, template), (own, chat_jinja(own_source, "<eod>"))):
        tokens = {"bos_token": "<s>", "eos_token": "<|endoftext|>"}
        (text,), _ = chats.render_jinja_template(
            [[question, dict(prefix)]], chat_template=source, **how, **tokens
        )
        assert chat([question, prefix], add_generation_prompt=False) == text
    text = own([{"role": "system", "content": "s"}, question])
    assert text == "<|system|>\ns\n<|user|>\na text\n<|assistant|>\n"
    assert harness.tokens_with(own, tokenizer, text) == tokenizer.encode(text).tolist()
    assert own([question, prefix], add_generation_prompt=False).endswith("<|assistant|>\n So ")
    with pytest.raises(ConfigError, match="must be one of"):
        own([{"role": "stranger", "content": "a"}])
    for prompt in (True, False):
        with pytest.raises(ConfigError, match="the chat template rejects these messages: no"):
            theirs([{"role": "system", "content": "alone"}], add_generation_prompt=prompt)
    assert own.takes_turns and theirs.takes_turns
    single = chat_of({"kind": "alpaca", "path": "x"})
    assert not single.takes_turns and "a text" in single([{"role": "system", "content": "s"}, question])
    # A started answer follows the question.
    assert single([question, prefix], add_generation_prompt=False) == single([question]) + " So "
    with pytest.raises(ConfigError, match="send one message with the role user"):
        single([question, prefix, question])
    settings.write_text(json.dumps({"chat_template": "{% if %}"}))
    with pytest.raises(
        ConfigError, match=r"this run has no chat template: .* the chat template is not valid Jinja"
    ):
        chat_of({"kind": "mock"})
    settings.unlink()
    with pytest.raises(
        ConfigError, match=r"this run has no chat template: its data\.sources contain no conversations"
    ):
        chat_of({"kind": "mock"})


def test_metrics_and_their_filters():
    """Metrics keep the names of their filters, and values that are not numbers are omitted."""
    result = {"alias": "x", "acc,none": 0.5, "acc_stderr,none": 0.1, "sample_len": 3}
    result |= {"exact_match,strict": 1, "exact_match_stderr,strict": "N/A"}
    assert harness._metrics(result) == {
        "acc": Estimate(0.5, 0.1),
        "exact_match (strict)": Estimate(1.0, None),
    }
