"""Loading a run YAML with overrides into a RunConfig: strictness, places, and every form of override."""

import functools
import re

import pytest

from nbtrain.base import files
from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import find, load, load_resolved, to_yaml
from nbtrain.config.load.changes import as_overrides
from nbtrain.config.names.keys import field_keys, free_form, unknown_keys
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.data_section import DataConfig
from nbtrain.config.yaml_source import DEFAULT_KINDS, Located


def message_of(run, overrides=None) -> str:
    with pytest.raises(ConfigError) as raised:
        load(run, overrides)
    return str(raised.value)


# --- strictness -----------------------------------------------------------------------------------

# text below the line `extends:`, message
REFUSED = {
    "a key in the wrong section": (
        "optimizer:\n  warmup_tokens: 3\n",
        "my-run.yaml:3: optimizer has no key `warmup_tokens`. Nearest: lr_schedule.lr_warmup_tokens.",
    ),
    "a key with a typing error": (
        "optimizer:\n  weight_decy: 1\n",
        "my-run.yaml:3: optimizer has no key `weight_decy`. Nearest: optimizer.weight_decay.",
    ),
    "a section with a typing error": (
        "modle:\n  num_layers: 3\n",
        "my-run.yaml:2: a run has no key `modle`. Nearest: model.",
    ),
    "a key that looks like none": ("qqq: 3\n", "my-run.yaml:2: a run has no key `qqq`."),
    "a section's key at the top": (
        "lr: 3\n",
        "my-run.yaml:2: a run has no key `lr`. Nearest: lr_schedule.lr.",
    ),
    "a key of a source": (
        "data:\n  sources:\n    - kind: text\n      path: x\n      paht: y\n",
        "my-run.yaml:6: data.sources.0 has no key `paht`. Nearest: path.",
    ),
    "a key of a blend": (
        "data:\n  blend:\n    - name: x\n      weigth: 1.0\n      weight: 1.0\n",
        "my-run.yaml:5: data.blend.0 has no key `weigth`. Nearest: weight.",
    ),
    "a blend without a weight": (
        "data:\n  blend:\n    - name: x\n",
        "my-run.yaml:4: data.blend.0.weight is missing; it has no default.",
    ),
    "a key of a mount": (
        "backend:\n  kubernetes:\n    mounts:\n      - claim: x\n        mount_path: /x\n"
        "        sub_pth: y\n",
        "my-run.yaml:7: backend.kubernetes.mounts.0 has no key `sub_pth`. Nearest: sub_path.",
    ),
    "a key of a toleration": (
        "backend:\n  kubernetes:\n    tolerations:\n      - key: x\n        efect: NoSchedule\n",
        "my-run.yaml:6: backend.kubernetes.tolerations.0 has no key `efect`. Nearest: effect.",
    ),
    "a key of a task": (
        "evaluation:\n  tasks:\n    - task: lambada\n      path: q.jsonl\n      limt: 3\n",
        "my-run.yaml:6: evaluation.tasks.0 has no key `limt`. Nearest: limit.",
    ),
    "a step that is none": (
        "init_step: 0\n",
        "my-run.yaml:2: init_step = 0: must be newest, best, or the number of a step, at least 1.",
    ),
    "a word for a step": (
        "init_step: newst\n",
        "my-run.yaml:2: init_step = newst: must be newest, best, or the number of a step, at "
        "least 1. Nearest: newest.",
    ),
    "no step": (
        "init_step: null\n",
        "my-run.yaml:2: init_step = null: must be newest, best, or the number of a step, at least 1.",
    ),
    "a path in a container": (
        "backend:\n  kubernetes:\n    mounts:\n      - claim: x\n        mount_path: a b\n",
        "my-run.yaml:6: backend.kubernetes.mounts.0.mount_path = a b: must be an absolute path without "
        "spaces, colons, commas or .., e.g. /data.",
    ),
    "an array of allocations": (
        "backend:\n  slurm:\n    array: 1-4\n",
        "my-run.yaml:4: backend.slurm.array = 1-4: must be FIRST-LAST%1, e.g. 1-4%1, so that one "
        "allocation runs after the other.",
    ),
    "a time with a unit": (
        "backend:\n  slurm:\n    time_limit_seconds: 2h\n",
        "my-run.yaml:4: backend.slurm.time_limit_seconds = 2h: must be a number of seconds, e.g. 7200.",
    ),
    "the name of a language": (
        "data:\n  split_sentences: klingon\n",
        "my-run.yaml:3: data.split_sentences = klingon: must be a language code of two or three "
        "lower-case letters, such as en, de or zh.",
    ),
    "the name of a Wikipedia": (
        "data:\n  sources:\n    - kind: wiki\n      language: English\n",
        "my-run.yaml:5: data.sources.0.language = English: must be the code of a Wikipedia as in its "
        "URL, such as en, simple or zh-yue.",
    ),
    "a day with dashes": (
        "data:\n  sources:\n    - kind: wiki\n      date: '2026-11-01'\n",
        "my-run.yaml:5: data.sources.0.date = '2026-11-01': must be the date of a dump (YYYYMMDD), or "
        "latest.",
    ),
    "what is no SHA-1": (
        "data:\n  sources:\n    - kind: wiki\n      sha1: abc\n",
        "my-run.yaml:5: data.sources.0.sha1 = abc: must be a SHA-1: 40 lower-case hexadecimal digits.",
    ),
    "text for a number": (
        "batch:\n  micro_batch_size: '4'\n",
        "my-run.yaml:3: batch.micro_batch_size = '4': must be a whole number.",
    ),
    "a flag for a number": (
        "batch:\n  micro_batch_size: true\n",
        "my-run.yaml:3: batch.micro_batch_size = true: must be a whole number.",
    ),
    "a fraction for a count": (
        "batch:\n  train_tokens: 1.5\n",
        "my-run.yaml:3: batch.train_tokens = 1.5: must be a whole number.",
    ),
    "a number for text": (
        "backend:\n  env:\n    A: 1\n",
        "my-run.yaml:4: backend.env.A = 1: must be text; write it in quotes.",
    ),
    "a number out of range": (
        "lr_schedule:\n  lr: -1\n",
        "my-run.yaml:3: lr_schedule.lr = -1: must be more than 0.",
    ),
    "no finite number": (
        "lr_schedule:\n  lr: .inf\n",
        "my-run.yaml:3: lr_schedule.lr = .inf: must be a finite number.",
    ),
    "a word that is none of the allowed": (
        "lr_schedule:\n  lr_decay_style: cosin\n",
        "my-run.yaml:3: lr_schedule.lr_decay_style = cosin: must be 'cosine', 'linear', 'constant', "
        "'inverse-square-root' or 'WSD'. Nearest: cosine.",
    ),
    "a value for a section": (
        "model: 4\n",
        "my-run.yaml:2: model = 4: must be a section: a mapping of keys.",
    ),
    "a word for the backend": (
        "backend: hosts\n",
        "my-run.yaml:2: backend = hosts: must be a section with a kind: write `backend: {kind: hosts}`.",
    ),
    "nothing for the backend": (
        "backend:\n",
        "my-run.yaml:2: backend = null: must be a section with a kind: write `backend: {kind: slurm}`.",
    ),
    "a key that is not a label": (
        "backend:\n  kubernetes:\n    node_selector: {a b: a}\n",
        "my-run.yaml:4: backend.kubernetes.node_selector has the key a b: must be at most 63 letters, "
        "digits, dots, dashes and underscores, and begin and end with a letter or digit. A domain may come "
        "before it: example.com/team.",
    ),
    "a mapping for a value": (
        "model:\n  num_layers: {a: 1}\n",
        "my-run.yaml:3: model.num_layers = {a: 1}: must be a whole number.",
    ),
    "a mapping for a list": (
        "data:\n  sources: {kind: mock}\n",
        "my-run.yaml:3: data.sources = {kind: mock}: must be a list.",
    ),
    "a word for a source": (
        "data:\n  sources: [jsonl]\n",
        "my-run.yaml:3: data.sources.0 = jsonl: must be a mapping with a kind, e.g. {kind: jsonl, path: "
        "texts.jsonl}.",
    ),
    "a source of no kind": (
        "data:\n  sources:\n    - {path: x}\n",
        "my-run.yaml:4: data.sources.0 has no `kind`; it must be one of python-docs, text, jsonl, parquet, "
        "hf-dataset, wikiextractor, wiki, tokens, prompt-completion, alpaca, chat, preference, mock.",
    ),
    "a source of an unknown kind": (
        "data:\n  sources:\n    - kind: txt\n",
        "my-run.yaml:4: data.sources.0.kind = txt: must be one of python-docs, text, jsonl, parquet, "
        "hf-dataset, wikiextractor, wiki, tokens, prompt-completion, alpaca, chat, preference, mock. "
        "Nearest: text.",
    ),
    "a source without its path": (
        "data:\n  sources:\n    - kind: text\n",
        "my-run.yaml:4: data.sources.0.path is missing; it has no default.",
    ),
    "an unknown backend": (
        "backend:\n  kind: ray\n",
        "my-run.yaml:3: backend.kind = ray: must be 'local', 'hosts', 'slurm' or 'kubernetes'.",
    ),
    "a name that cannot be a folder": (
        "name: ../GPT\n",
        "my-run.yaml:2: name = ../GPT: must be 1 to 53 lower case letters, digits and inner dashes, "
        "e.g. gpt-125m-2xdp.",
    ),
    "another version of the schema": ("schema_version: 2\n", "my-run.yaml:2: schema_version = 2: must be 1."),
}


# Values that torch, numpy or DeepSpeed would refuse later, or that make no sense: {override: the rule after
# "must be"}
OUT_OF_RANGE = {
    "optimizer.adam_beta1=1": "less than 1",
    "optimizer.adam_beta2=1.0": "less than 1",
    "model.hidden_dropout=1": "less than 1",
    "model.attention_dropout=1": "less than 1",
    "data.seed=4294967296": "at most 4,294,967,295",
    "data.cleaning.near_dedup.seed=4294967296": "at most 4,294,967,295",
    "precision.fp16.loss_scale=1e10": "at most 4,294,967,296",
    "precision.fp16.initial_scale_power=33": "at most 32",
    "precision.fp16.min_loss_scale=0.5": "a whole number",
    "parallel.process_group_timeout_seconds=0.5": "at least 1",
    "parallel.process_group_timeout_seconds=1e15": "at most 2,592,000",
    "batch.global_batch_size=1e30": "at most 1,000,000",
    "batch.micro_batch_size=1e30": "at most 1,000,000",
    "data.num_workers=100000": "at most 1,024",
    "data.num_prepare_workers=100000": "at most 1,024",
    "data.cleaning.near_dedup.num_permutations=100000": "at most 10,000",
    "backend.heartbeat_timeout_seconds=0.001": "at least 2",
    "backend.heartbeat_timeout_seconds=1e10": "at most 31,536,000",
    "model.seq_length=99999999999999999999": "at most 100,000,000",
    "model.hidden_size=1e9": "at most 10,000,000",
    "model.num_layers=1e6": "at most 100,000",
    "model.seed=9223372036854775808": "at most 9,223,372,036,854,775,807",
    "tokenizer.vocab_size=2147483648": "at most 2,147,483,647",
    "batch.train_tokens=1e30": "at most 1,000,000,000,000,000",
    "lr_schedule.lr=1001": "at most 1,000",
    "parallel.data_parallel_size=1e7": "at most 1,000,000",
}


@pytest.mark.parametrize("override", OUT_OF_RANGE)
def test_a_field_is_as_strict_as_who_reads_it(override):
    with pytest.raises(ConfigError) as caught:
        load("gpt-tiny", override, check=False)
    key = override.partition("=")[0]
    assert f": {key} = " in str(caught.value)
    assert str(caught.value).endswith(f": must be {OUT_OF_RANGE[override]}.")


def _open_ends(schema: dict) -> list[str]:
    """Return the branches of a field's JSON Schema that allow a number or text without an upper bound."""
    branches = schema.get("anyOf") or schema.get("oneOf") or [schema]
    found = []
    for branch in branches:
        values = [branch.get("items"), branch.get("additionalProperties")]
        for one in [branch, *(value for value in values if isinstance(value, dict))]:
            upper = "exclusiveMaximum" in one or "maximum" in one or "const" in one or "enum" in one
            if one.get("type") in ("integer", "number") and not upper:
                found.append(str(one))
            # A pattern without * or + limits the length, and so does a pattern for names.
            endless = "pattern" not in one or set("*+") & set(one["pattern"])
            if one.get("type") == "string" and endless and not {"maxLength", "enum", "const"} & one.keys():
                found.append(str(one))
    return found


def test_every_number_and_text_of_the_schema_has_an_upper_bound():
    """Every number and text has an upper bound, so that a held-down key or a pasted
    file is refused at its line.
    """
    schema = RunConfig.model_json_schema()
    models = {"RunConfig": schema, **schema["$defs"]}
    unbounded = {
        f"{name}.{field}": ends
        for name, model in models.items()
        for field, of in model.get("properties", {}).items()
        if (ends := _open_ends(of))
    }
    assert unbounded == {}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            f"tokenizer.eod_token={'x' * 100_000}",
            f"tokenizer.eod_token = {'x' * 77}...: has 100,000 characters; at most 256 are allowed.",
        ),
        (
            f"model.seq_length={'9' * 5_000}",
            f"override model.seq_length={'9' * 60}...: has 5,000 digits; a number may have at most 100.",
        ),
        (f"{'x' * 5_000}=3", f"override {'x' * 77}...=3: a run has no key `{'x' * 77}...`."),
        ("x" * 5_000, f"override '{'x' * 77}...': must be key=value, e.g. batch.micro_batch_size=4."),
        ({"model.seed": 10**5_000}, "model.seed = a number of more than 4,300 digits: must be at most"),
        (f"data.sources=[{{kind: {'x' * 5_000}}}]", f"data.sources.0.kind = {'x' * 77}...: must be one of"),
    ],
)
def test_a_long_value_is_cut_in_the_message(override, message):
    """A long value is truncated in the message, and its secrets are hidden."""
    said = message_of("gpt-tiny", override if isinstance(override, dict) else [override])
    assert message in said
    assert len(said) < 500


def test_a_run_of_a_name_that_no_file_system_takes_is_not_there():
    assert message_of("x" * 5_000).startswith(f"{'x' * 77}...: no such run YAML, here or in ")


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_value_is_reported_with_its_line(case, run_yaml):
    """A wrong value is reported with its place, the value, the rule, and the most
    similar name if there is one.
    """
    text, expected = REFUSED[case]
    assert message_of(run_yaml(text)) == expected


def test_all_problems_of_a_file_are_reported_at_once(run_yaml):
    """Unknown keys and wrong values in file and overrides are reported in one error."""
    path = run_yaml("foo: 1\nbatch:\n  micro_batch_size: x\n")
    assert message_of(path, ["batch.bar=2", "model.num_layers=0"]).splitlines() == [
        "override batch.bar=2: batch has no key `bar`.",
        "my-run.yaml:2: a run has no key `foo`.",
        "override model.num_layers=0: model.num_layers = 0: must be at least 1.",
        "my-run.yaml:4: batch.micro_batch_size = x: must be a whole number.",
    ]


def test_a_run_without_its_sections_names_what_is_missing(run_yaml):
    """Missing sections that have no default are listed in the schema's order."""
    assert message_of(run_yaml("name: x\n", base=None)).splitlines() == [
        f"my-run.yaml: {section} is missing; it has no default."
        for section in ("model", "tokenizer", "data", "batch", "lr_schedule")
    ]


def test_the_same_word_in_another_section_is_the_nearest():
    """For a key that belongs to another section, the message suggests that section."""
    located = Located({"model": {"zero_stage": 1}}, {"model.zero_stage": "a.yaml:2"})
    [finding] = unknown_keys(located)
    assert str(finding) == "a.yaml:2: model has no key `zero_stage`. Nearest: parallel.zero_stage."


# --- extends --------------------------------------------------------------------------------------


def test_a_child_wins_and_keeps_what_it_does_not_say(run_yaml):
    """A child file's mappings are merged with its parent's; values and lists are
    replaced, and null removes.
    """
    base = load("gpt-tiny")
    text = "name: mine\nmodel:\n  num_layers: 2\ndata:\n  sources: [{kind: mock}]\n"
    config = load(run_yaml(text))
    assert (config.name, config.model.num_layers, config.model.hidden_size) == (
        "mine",
        2,
        base.model.hidden_size,
    )
    assert [source.kind for source in config.data.sources] == ["mock"]
    ramp = (
        "batch:\n  global_batch_size: 32\n"
        "  rampup: {start_batch_size: 16, batch_size_increment: 16, ramp_samples: 9}\n"
    )
    grandparent = run_yaml(ramp, name="ramp.yaml")
    child = grandparent.with_name("child.yaml")
    child.write_text("extends: ramp.yaml\nbatch:\n  rampup: null\n")
    assert load(grandparent).batch.rampup.ramp_samples == 9
    assert load(child).batch.rampup is None


def test_several_parents_apply_in_order(run_yaml):
    """The last parent in the list wins over the others."""
    first = run_yaml("optimizer: {clip_grad: 2, weight_decay: 3}\n", base=None, name="first.yaml")
    run_yaml("optimizer: {clip_grad: 4}\n", base=None, name="second.yaml")
    child = first.with_name("child.yaml")
    tiny = find("gpt-tiny")
    child.write_text(f"extends: [{tiny}, first.yaml, second.yaml]\n")
    config = load(child)
    assert (config.optimizer.clip_grad, config.optimizer.weight_decay) == (4, 3)
    assert config.where("optimizer.clip_grad") == "second.yaml:1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("extends: nope.yaml\n", "my-run.yaml:1: extends 'nope.yaml': no such file in {folder}."),
        ("extends: 3\n", "my-run.yaml:1: extends must be a file name or a list of file names."),
        ("extends: [a.yaml, 3]\n", "my-run.yaml:1: extends must be a file name or a list of file names."),
        (
            "extends: /\n",
            "my-run.yaml:1: extends /: is a folder, not a run YAML. Specify the path of a run YAML.",
        ),
        ("extends: my-run.yaml\n", "my-run.yaml: `extends` forms a cycle: my-run.yaml -> my-run.yaml."),
    ],
)
def test_a_bad_extends_is_reported(text, expected, run_yaml, tmp_path):
    """A missing parent, an `extends` that is not a file name, and a cycle are reported."""
    assert message_of(run_yaml(text, base=None)) == expected.format(folder=tmp_path)


def test_a_circle_over_two_folders_is_reported(tmp_path):
    """A cycle through two folders is reported, although .. makes every path in it different."""
    for own, other in (("a/x", "../b/y"), ("b/y", "../a/x")):
        path = tmp_path / f"{own}.yaml"
        path.parent.mkdir()
        path.write_text(f"extends: {other}.yaml\n")
    expected = "x.yaml: `extends` forms a cycle: x.yaml -> y.yaml -> x.yaml."
    assert message_of(tmp_path / "a" / "x.yaml") == expected


def test_a_name_with_a_dot_is_extended(run_yaml):
    """`extends: my-1.5b` means my-1.5b.yaml, as on the command line, unless a file has exactly that name."""
    parent = run_yaml("name: my-parent\n", name="my-1.5b.yaml")
    child = run_yaml("extends: my-1.5b\n", base=None, name="child.yaml")
    assert load(child).name == "my-parent"
    parent.rename(parent.with_name("my-1.5b"))
    assert load(child).name == "my-parent"
    parent.with_name("my-1.5b").unlink()
    assert message_of(child).startswith("child.yaml:1: extends my-1.5b: no such run YAML, here or in ")


def test_a_name_that_extends_nothing_has_its_place_and_the_nearest(run_yaml):
    said = message_of(run_yaml("extends: gpt-tny\n", base=None))
    assert said.startswith("my-run.yaml:1: extends gpt-tny: no such run YAML")
    assert " Nearest: gpt-tiny, gpt3-tiny. There are " in said


def test_a_replaced_list_forgets_its_old_lines(run_yaml):
    """A problem in a list that the child replaced is never reported in the parent's file."""
    parent = run_yaml("data:\n  sources:\n    - kind: text\n      path: x\n", name="parent.yaml")
    child = parent.with_name("child.yaml")
    child.write_text("extends: parent.yaml\ndata:\n  sources:\n    - kind: text\n")
    assert message_of(child) == "child.yaml:4: data.sources.0.path is missing; it has no default."


# --- overrides ------------------------------------------------------------------------------------


def test_every_spelling_of_an_override_is_the_same_run():
    """Overrides as CLI words, one string, flow mappings, dotted or nested dicts, or
    from a loaded run are equivalent.
    """
    words = [
        "batch.micro_batch_size=4",
        "batch.global_batch_size=8",
        "lr_schedule.lr=1e-3",
        "data.sources=[{kind: mock}]",
    ]
    spellings = [
        words,
        "batch.micro_batch_size=4 batch.global_batch_size=8 lr_schedule.lr=1e-3 'data.sources=[{kind: "
        "mock}]'",
        ["batch={micro_batch_size: 4, global_batch_size: 8}", *words[2:]],
        {
            "batch.micro_batch_size": 4,
            "batch.global_batch_size": 8,
            "lr_schedule.lr": 1e-3,
            "data.sources": ({"kind": "mock"},),
        },
        {
            "batch": {"micro_batch_size": 4, "global_batch_size": 8},
            "lr_schedule": {"lr": 1e-3},
            "data": {"sources": [{"kind": "mock"}]},
        },
    ]
    first, *others = [load("gpt-tiny", overrides) for overrides in spellings]
    assert (first.batch.micro_batch_size, first.lr_schedule.lr) == (4, 1e-3)
    for config in [*others, load(load("gpt-tiny"), words)]:
        assert config == first
        assert config.where("batch.micro_batch_size") == "override batch.micro_batch_size=4"


def test_an_entry_of_a_list_is_overridden_by_its_number(run_yaml):
    """An override of a list entry keeps the entry's other fields; an index beyond the list is an error."""
    path = run_yaml("data:\n  sources:\n    - {kind: mock, seed: 5}\n    - {kind: text, path: a}\n")
    config = load(path, ["data.sources.1.path=b", "data.sources.0.num_documents=7"])
    mock, text = config.data.sources
    assert (mock.seed, mock.num_documents, text.path) == (5, 7, "b")
    assert load(config, {"data": {"sources": {"1": {"path": "c"}}}}).data.sources[1].path == "c"
    expected = "override data.sources.2.path=x: data.sources = {'2': {path: x}}: must be a list."
    assert message_of(path, ["data.sources.2.path=x"]) == expected
    typed = message_of(path, ["data.sources[1].path=b"])
    assert typed == (
        "override data.sources[1].path=b: data has no key `sources[1]`. Nearest: data.sources.1.path."
    )
    wrong = "override data.sources.0.seed=x: data.sources.0.seed = x: must be a whole number."
    assert message_of(path, ["data.sources.0.seed=x"]) == wrong


@pytest.mark.parametrize("overrides", [None, [], {}, ""])
def test_no_override_changes_nothing(overrides):
    """Every form of empty overrides changes nothing."""
    assert load("gpt-tiny", overrides) == load("gpt-tiny")


def test_a_run_names_the_arguments_that_make_it_again():
    """as_arguments repeats the run's name and the last value of each override;
    loading them gives an equal run.
    """
    config = load(
        "gpt-tiny", ["batch.max_steps=3", "name=trial", "data.sources=[{kind: mock, num_documents: 9}]"]
    )
    config = load(config, {"batch.max_steps": 7})
    run, *overrides = config.as_arguments
    assert run == "gpt-tiny"
    assert sorted(override.partition("=")[0] for override in overrides) == [
        "batch.max_steps",
        "data.sources",
        "name",
    ]
    assert load(run, overrides) == config


def test_a_long_override_is_whole_among_the_arguments():
    """A long override is truncated in messages but complete in as_arguments."""
    path = "/corpora/" + "very/" * 20 + "long.jsonl"
    config = load("gpt-tiny", [f"data.sources=[{{kind: jsonl, path: {path}}}]"])
    assert config.where("data.sources").endswith("...") and len(config.where("data.sources")) < 110
    assert config.as_arguments == ["gpt-tiny", f"data.sources=[{{kind: jsonl, path: {path}}}]"]
    assert load(*config.as_arguments[:1], config.as_arguments[1:]) == config


DOTTED = {
    "labels": {"example.com/team": "a"},
    "parallel.deepspeed_extra": {"data_types.x": 1, "nested": {"a.b": [2]}},
    "backend.env": {"OMP_NUM_THREADS": "4", "a.b": "1e3"},
    "backend.kubernetes.extra_resources": {"rdma.example.com/hca": 2},
    "backend.kubernetes.node_selector": {"nvidia.com/gpu.product": "A100"},
    "backend.kubernetes.labels": {"kueue.x-k8s.io/queue-name": "team.a"},
    "backend.kubernetes.annotations": {"sidecar.istio.io/inject": "false"},
}


@pytest.mark.parametrize("key", free_form())
def test_a_name_in_a_mapping_may_hold_dots(key):
    """A name with dots inside a mapping can be overridden, also in the command that messages suggest."""
    before, names = load("gpt-tiny"), DOTTED[key]
    nested = functools.reduce(lambda inner, part: {part: inner}, reversed(key.split(".")), names)
    config = load(before, {key: names}, check=False)
    assert functools.reduce(getattr, key.split("."), config) == names
    spellings = [nested, as_overrides(before, config)]
    if key != "parallel.deepspeed_extra":  # dots separate the levels of a JSON
        spellings.append([f"{key}.{name}={value}" for name, value in names.items()])
    for overrides in spellings:
        assert load(before, overrides, check=False) == config


def test_a_number_for_text_needs_no_quotes_in_a_shell():
    """A shell removes quotes, so a number is accepted for a text field and kept as it was typed."""
    config = load(
        "gpt-tiny", ["backend.env.NCCL_P2P_DISABLE=1", "backend.env.A=1_0.50", "backend.env.B= true"]
    )
    assert config.backend.env == {"NCCL_P2P_DISABLE": "1", "A": "1_0.50", "B": "true"}
    expected = "override backend.kubernetes.extra_resources.a/b=x: backend.kubernetes.extra_resources.a/b = x"
    assert message_of("gpt-tiny", "backend.kubernetes.extra_resources.a/b=x").startswith(expected)


def test_the_later_of_two_overrides_wins():
    """The last of two overrides of the same key wins, as usual on a command line."""
    assert load("gpt-tiny", ["model.seed=1", "model.seed=2"]).model.seed == 2
    assert load("gpt-tiny", ["labels={team: a, room: b}", "labels={team: c}"]).labels == {"team": "c"}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["batch.micro_batch_size"],
            "override 'batch.micro_batch_size': must be key=value, e.g. batch.micro_batch_size=4.",
        ),
        (["=4"], "override '=4': must be key=value, e.g. batch.micro_batch_size=4."),
        (["a..b=4"], "override 'a..b=4': must be key=value, e.g. batch.micro_batch_size=4."),
        (["a=[1"], "override 'a=[1': not YAML: expected ',' or ']', but got '<stream end>'."),
        (
            ["batch={max_steps: 1, max_steps: 2}"],
            "override 'batch={max_steps: 1, max_steps: 2}': not YAML: max_steps is written twice; keep one.",
        ),
        ("a='b", 'overrides "a=\'b": cannot be split into key=value pairs: No closing quotation.'),
        (
            ["batch=1", "batch.max_steps=2"],
            "override batch.max_steps=2: batch is overridden too. Remove one of the two overrides.",
        ),
        (
            ["batch.max_steps=2", "batch=1"],
            "override batch=1: keys inside batch are overridden too. Remove this override or the others.",
        ),
        (["extends=x.yaml"], "override extends=x.yaml: a run has no key `extends`."),
        (
            ["model.num_layers.foo=3"],
            "override model.num_layers.foo=3: model.num_layers = {foo: 3}: must be a whole number.",
        ),
        (
            {"lr_schedule": {"lr": object}},
            "override lr_schedule.lr=<class 'object'>: lr_schedule.lr = <class 'object'>: must be a number.",
        ),
    ],
)
def test_a_bad_override_is_reported(overrides, expected):
    """The message quotes the override and describes the error."""
    assert message_of("gpt-tiny", overrides) == expected


SECRET = "http://me:s3cret@127.0.0.1:9/?key=s3cret"


@pytest.mark.parametrize(
    "overrides",
    [
        [f"data.sources=[{{kind: wiki, mirror: '{SECRET}', max_articles: x}}]"],
        {"data": {"sources": [{"kind": "wiki", "mirror": SECRET, "max_articles": "x"}]}},
        ["data.sources.0.mirror=me:s3cret@127.0.0.1"],
        [f"data.sources={SECRET}"],
        [f"data.seed={SECRET}"],
        [f"data.sources=[{{mirror: '{SECRET}'"],
        [SECRET.replace("=", "")],
        f"data.sources='{SECRET}",
        [[SECRET]],
    ],
)
def test_no_password_of_an_address_is_reported(overrides):
    """A password in an address is hidden in every message, in whatever form the override is written."""
    said = message_of("gpt-tiny", overrides)
    assert "s3cret" not in said and "***" in said


def test_the_place_of_an_override_has_no_password():
    """The place of an override, in messages and suggested commands, has no password."""
    config = load("gpt-tiny", [f"data.sources=[{{kind: wiki, mirror: '{SECRET}'}}]"])
    assert config.data.sources[0].mirror == SECRET
    place = "override data.sources=[{kind: wiki, mirror: 'http://***@127.0.0.1:9/?key=***'}]"
    assert config.where("data.sources") == place
    assert config.as_arguments == ["gpt-tiny", place.removeprefix("override ")]


# --- finding and resolving ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("", "no run is specified. Specify the path of a run YAML, or a name such as gpt-tiny."),
        ("gpt-tinny", "Nearest: gpt-tiny, gpt3-tiny. There are "),
        (".", ".: is a folder, not a run YAML. Specify the path of a run YAML."),
        ("/dev/null", "/dev/null: is not a regular file. Specify the path of a run YAML."),
        ("mine-tvo", "Nearest: mine-two, mine-one. There are "),
        (
            "batch.max_steps=2",
            "batch.max_steps=2: is an override, but a run must come before it, as in `gpt-",
        ),
        ("name=", "name=: is an override, but a run must come before it, as in `gpt-tiny name=`."),
    ],
)
def test_a_run_that_is_not_there_names_the_near_ones(workspace, run, expected):
    """For an unknown run, up to three similar examples and runs are suggested; an
    override is not mistaken for one.
    """
    for name in ("mine-one", "mine-two"):
        RunDir.named(name).path.mkdir(parents=True)
        files.write_json(RunDir.named(name).run_json, {"name": name})
    assert expected in message_of(run)


def test_a_run_that_is_like_no_other_counts_those_that_are_there(workspace):
    """If no name is similar, only the number of runs is given, because a list would hide the message."""
    RunDir.named("mine").path.mkdir(parents=True)
    files.write_json(RunDir.named("mine").run_json, {"name": "mine"})
    (said,) = re.findall(r" There are .*", message_of("/nowhere/zzz.yaml"))
    counted = r" There are \d+ examples, such as gpt-tiny, and 1 run, which `nbtrain runs` lists\."
    assert re.fullmatch(counted, said)


@pytest.mark.parametrize("key", ["name", "data.name", "tokenizer.name"])
def test_an_empty_name_is_refused_with_its_rule(key):
    """`name=` means null in YAML, so the message gives the rule for names and an example."""
    assert message_of("gpt-tiny", [f"{key}="]) == (
        f"override {key}=: {key} is empty: a name must be 1 to 53 lower case letters, digits and inner "
        f"dashes. Set a name, e.g. {key}=my-run, or omit {key} to keep the YAML's value."
    )


def test_a_submitted_run_is_found_by_its_name(workspace):
    """A submitted run is found by its name through its config.yaml, so that `nbtrain plan NAME` works."""
    submitted = load("gpt-tiny", ["name=mine", "batch.max_steps=7"])
    folder = RunDir.named("mine").path
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(submitted))
    assert load("mine") == submitted
    assert load("mine", ["batch.max_steps=8"]).batch.max_steps == 8


def test_a_run_is_found_by_name_by_path_and_from_the_workspace(workspace, monkeypatch, run_yaml):
    """A path relative to the working directory wins over one in the workspace, and
    both win over the examples.
    """
    mine = workspace / "examples" / "megatron-gpt" / "training" / "gpt-tiny.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text(f"extends: {find(run_yaml(''))}\nname: mine\n")
    monkeypatch.chdir(workspace)
    assert load("gpt-tiny").name == "mine"
    assert load("examples/megatron-gpt/training/gpt-tiny.yaml").name == "mine"
    assert load(mine).name == "mine"
    here = workspace / "below"
    here.mkdir()
    (here / "gpt-tiny.yaml").write_text(f"extends: {mine}\nname: here\n")
    monkeypatch.chdir(here)
    assert load("gpt-tiny").name == "here"


def test_a_resolved_file_must_say_everything(tmp_path):
    """A missing or unknown field in config.yaml is an error, because nbtrain always writes it in full."""
    text = to_yaml(load("gpt-tiny"))
    path = tmp_path / "config.yaml"
    path.write_text(text.replace("  clip_grad: 1.0\n", ""))
    with pytest.raises(ConfigError, match=r"lacks 1 field, beginning with optimizer\.clip_grad"):
        load_resolved(path)
    path.write_text(text + "foo: 1\n")
    with pytest.raises(ConfigError, match="a run has no key `foo`"):
        load_resolved(path)


def test_a_run_without_its_resolved_file(tmp_path):
    """A folder with only run.json is refused; the message names the missing file and the fix."""
    with pytest.raises(
        ConfigError,
        match=r"config\.yaml: no such file\. `nbtrain submit` writes this file.* submit the run again",
    ):
        load_resolved(tmp_path / "config.yaml")


def test_text_that_looks_like_a_number_survives_the_round_trip(tmp_path):
    """Values of env are text and stay text in config.yaml."""
    odd = {
        "A": "6e-4",
        "B": "1_000",
        "C": "on",
        "D": "0x1F",
        "E": "",
        "F": "a: b # c",
        "G": "null",
        "H": "1:30",
        "I": "0o10",
        "J": "010",
        "K": "2024-01-01",
    }
    config = load("gpt-tiny", {"backend.env": odd})
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert load_resolved(path).backend.env == odd


def test_equal_runs_are_equal_wherever_their_values_were_written(tmp_path):
    """Runs with equal values are equal, wherever the values were written."""
    path = tmp_path / "copy.yaml"
    path.write_text(to_yaml(load("gpt-tiny")))
    assert load(path) == load("gpt-tiny")
    assert load(path) != load("gpt-tiny", ["model.seed=1"])
    assert RunConfig.model_validate(load("gpt-tiny").model_dump()) == load("gpt-tiny")


def test_extends_takes_a_name_as_the_command_line_does(run_yaml):
    """`extends: gpt-tiny` means the example of that name."""
    assert load(run_yaml("extends: gpt-tiny\nname: mine\n", base=None)).model == load("gpt-tiny").model


def test_what_is_no_path_is_refused():
    """Python objects of a wrong type also get a message."""
    with pytest.raises(ConfigError) as error:
        load(None)
    assert str(error.value) == "run = None must be the path of a run YAML, or a name such as gpt-tiny."


@pytest.mark.parametrize(
    ("given", "switches"),
    [
        ("nccl", ["nccl"]),
        ("[nccl, anomaly]", ["nccl", "anomaly"]),
        ("[]", []),
        ("nccl, anomaly", ["nccl", "anomaly"]),
    ],
)
def test_debug_is_one_switch_or_several(given, switches):
    """debug accepts one switch or several, on the command line and in YAML."""
    assert load("gpt-tiny", [f"backend.debug={given}"]).backend.debug == switches


def test_an_unknown_switch_is_refused():
    """An unknown debug switch is refused with the list of switches."""
    with pytest.raises(ConfigError, match=r"backend\.debug.*anomal.*nccl.*anomaly"):
        load("gpt-tiny", ["backend.debug=[anomal]"])


def test_another_backend_keeps_the_rest_of_its_section(run_yaml):
    """Changing backend.kind keeps the common fields and the settings of the new kind."""
    path = run_yaml("backend:\n  max_restarts: 7\n  env: {MINE: '1'}\n  slurm: {partition: gpu}\n")
    backend = load(path, ["backend.kind=slurm"]).backend
    assert (backend.kind, backend.max_restarts, backend.env) == ("slurm", 7, {"MINE": "1"})
    assert backend.slurm.partition == "gpu"


def test_a_kind_that_is_the_default_changes_nothing(run_yaml) -> None:
    """A backend without `kind` has the default kind, so setting that kind keeps the other keys."""
    path = run_yaml("init_from: base\nlora: {rank: 8, init_from: a}\ndata: {workers: {num_workers: 3}}\n")
    config = load(path, "lora.kind=lora data.workers.kind=local", check=False)
    assert (config.lora.rank, config.lora.init_from, config.data.workers.num_workers) == (8, "a", 3)
    assert load(path, "lora.kind=ia3", check=False).lora.rank == 16
    kinds = {key: model.model_fields.get("kind") for key, model in field_keys().items() if model}
    given = {key: info.default for key, info in kinds.items() if info and not info.is_required()}
    # The sections of all backends are kept.
    del given["backend"]
    assert given == DEFAULT_KINDS


def test_messages_say_which_config_yaml_is_meant(workspace):
    """Messages give a config.yaml by its path, because every run has one, and other YAMLs by their name."""
    path = workspace / "output" / "mine" / "config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(to_yaml(load("gpt-tiny")).replace("zero_stage: 0", "zero_stage: 7"))
    (workspace / "sub").mkdir()
    (workspace / "sub" / "other.yaml").write_text("extends: ../output/mine/config.yaml\nname: other\n")
    for call in (
        lambda: load(path),
        lambda: load_resolved(path),
        lambda: load(workspace / "sub" / "other.yaml"),
    ):
        with pytest.raises(ConfigError, match=r"^output/mine/config\.yaml:\d+: parallel\.zero_stage = 7: "):
            call()
    (workspace / "sub" / "other.yaml").write_text("extends: gpt-tiny\nparallel: {zero_stage: 7}\n")
    with pytest.raises(ConfigError, match=r"^other\.yaml:2: parallel\.zero_stage = 7: "):
        load(workspace / "sub" / "other.yaml")


def test_packing_follows_the_sources():
    """Fine-tuning examples are packed by default; plain text and token ids form a stream."""

    def packing(kind, **data):
        return DataConfig(name="x", sources=[{"kind": kind, "path": "x"}], **data).resolved_packing

    tuning = ("chat", "preference", "alpaca", "prompt-completion")
    assert {packing(kind) for kind in tuning} == {"best_fit"}
    assert {packing(kind) for kind in ("jsonl", "tokens", "text")} == {"stream"}
    labelled = [{"kind": "tokens", "path": "x", "labels_key": "labels"}]
    assert DataConfig(name="x", sources=labelled).resolved_packing == "best_fit"
    assert (packing("chat", packing="stream"), packing("jsonl", packing="best_fit")) == ("stream", "best_fit")
