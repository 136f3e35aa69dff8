"""A run that starts from another run, before launch: which checkpoint is used, and what is rejected."""

import json
import shutil

import numpy as np
import pytest

import nbtrain as nb
from nbtrain.base import files
from nbtrain.base.errors import CheckpointError, ConfigError, DataError, JobError, SubmitError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.config.load import load, load_resolved, to_yaml
from nbtrain.config.load.edits import with_overrides
from nbtrain.config.sections.dpo_section import DpoConfig
from nbtrain.corpus.tokenizer.folder import adopt, read_manifest
from nbtrain.dataset.of_run import open_dataset
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.dataset.samples.reference import description_of, keep_reference
from nbtrain.jobs.checks.existing_run import was_trained_with
from nbtrain.jobs.control.delete import delete
from nbtrain.jobs.request.initial_weights import (
    InitialWeights,
    problems_of_weights,
    read_initial_weights,
    read_weights_again,
    record_initial,
    refuse_other_weights,
    with_new_tokens,
)
from nbtrain.jobs.request.request import submitted_changes
from nbtrain.lab.form.draft import Draft
from nbtrain.pretrained.start import hashes_of, identity_of, open_start


@pytest.fixture
def base(tiny):
    """Create the run `tiny` with complete checkpoints at steps 4, 8 and 12; the one at step 8 is the best."""
    config = tiny()
    run = RunDir.named(config.name)
    run.path.mkdir(parents=True)
    record = {"schema_version": 1, "run_id": "1" * 32, "name": "tiny", "parent": None, "created_at": 0.0}
    files.write_json(run.run_json, record)
    files.write_text(run.config_yaml, to_yaml(config))
    tokenizer = read_manifest(tokenizer_dir("mock"))["sha256"]
    for step, loss in ((4, 5.0), (8, 4.0), (12, 4.5)):
        run.checkpoint(step).mkdir(parents=True)
        (run.checkpoint(step) / "weights").write_bytes(b"1234")
        manifest = {
            "schema_version": 2,
            "step": step,
            "files": {"weights": {"bytes": 4, "sha256": f"{step:064d}"}},
            "validation_loss": loss,
            "evaluated_step": step,
            "tokenizer_sha256": tokenizer,
        }
        files.write_json(run.checkpoint_manifest(step), manifest)
    return run


def starting(tiny, **overrides):
    return tiny(**{"name": "second", "init_from": "tiny", **overrides})


def said(config):
    return [str(problem) for problem in problems_of_weights(config, read_initial_weights(config))]


@pytest.mark.parametrize("wanted, step", [("newest", 12), ("best", 8), (4, 4)])
def test_which_checkpoint_is_meant(wanted, step, tiny, base):
    """The checkpoint is found by the name or the directory of the run, and later starts use the one that was
    recorded.
    """
    config = starting(tiny, init_step=wanted)
    assert said(config) == []
    start = open_start(config)
    assert (start.step, start.path) == (step, base.checkpoint(step))
    by_path = open_start(starting(tiny, init_from=str(base.path), init_step=wanted))
    assert (by_path.path, identity_of(by_path)) == (start.path, identity_of(start))
    run = RunDir.named("second")
    run.path.mkdir()
    origin = {"config": {}, "generation_config": {"eos_token_id": [1, 2]}, "tokenizer_sha256": "5" * 64}
    files.write_json(base.init_from_json, {"path": "models/chat", **origin})
    assert record_initial(run, config, read_initial_weights(config)) == []
    known = files.read_json(run.init_from_json)
    assert known["origin"] == origin
    assert (known["run"], known["run_id"], known["step"]) == ("tiny", "1" * 32, step)
    assert known["validation_loss"] == {4: 5.0, 8: 4.0, 12: 4.5}[step]
    # Another checkpoint becomes the best later.
    shutil.copytree(base.checkpoint(step), base.checkpoint(16))
    manifest = files.read_json(base.checkpoint_manifest(16))
    files.write_json(base.checkpoint_manifest(16), {**manifest, "validation_loss": 1.0, "evaluated_step": 16})
    assert open_start(config, run).step == step and identity_of(start) == known["sha256"]
    # A new validation does not change the identity of the weights.
    files.write_json(base.checkpoint_manifest(step), {**start.manifest, "validation_loss": 9.0})
    assert identity_of(open_start(config, run)) == known["sha256"]
    record_initial(run, tiny(name="second"), InitialWeights(begins=False))
    assert run.init_from_json.is_file()
    # Submitted without init_from before the first checkpoint.
    record_initial(run, tiny(name="second"), InitialWeights(begins=True))
    assert not run.init_from_json.exists()


def test_a_name_that_is_no_run(tiny, base, workspace):
    assert said(starting(tiny, init_from="tinny")) == [
        "override init_from=tinny: init_from: there is no run tinny in output, and no folder tinny. Train "
        "that run first, or choose another run (`nbtrain runs` lists them)."
    ]
    (workspace / "tiny").mkdir()
    assert said(starting(tiny)) == [
        "override init_from=tiny: init_from: tiny is both a run and the path tiny. Set init_from to "
        "output/tiny for the run, or to ./tiny for the path."
    ]
    assert said(starting(tiny, init_from="output/tiny")) == []


def test_check_looks_at_the_weights_that_are_there(tiny, base, workspace):
    """Check compares the weights if they exist; it is not an error if the other run has not been trained
    yet.
    """
    assert nb.check(starting(tiny)).works
    wrong = nb.check(starting(tiny, init_step=5))
    (finding,) = [entry for entry in wrong.findings if entry.key == "init_from"]
    assert (finding.level, finding.rule, wrong.works) == ("error", "initial_weights_fit", False)
    assert finding.message.endswith(
        "there is no such checkpoint. The run has checkpoints of these steps: 4, 8, 12."
    )
    later = nb.check(starting(tiny, init_from="tinny"))
    (finding,) = [entry for entry in later.findings if entry.key == "init_from"]
    assert (finding.level, later.works) == ("warning", True) and "Train that run first" in finding.message
    address = nb.check(starting(tiny, init_from="hf://a/b"))
    assert not address.works
    assert said(starting(tiny, init_from="hf://a/b")) == [
        "override init_from=hf://a/b: init_from: hf://a/b is an address, but init_from must be a run or a "
        "folder. For a model on the Hub (hf://ORGANISATION/MODEL), run `nbtrain import-model hf://a/b "
        "NAME`, which downloads the model and writes a run YAML that starts from it."
    ]


def test_a_run_does_not_start_from_itself(tiny, base, workspace):
    shutil.copytree(base.path, workspace / "output" / "second")
    shutil.rmtree(workspace / "output" / "second" / "model")
    assert said(starting(tiny, init_from="second")) == [
        "override init_from=second: init_from: output/second is this run itself, which resumes from its "
        "own checkpoints. To start a new training from it, give the new run another name."
    ]


def test_a_run_without_a_checkpoint_to_start_from(tiny, base):
    assert said(starting(tiny, init_step=5)) == [
        "override init_from=tiny: init_from: output/tiny/model/global_step5: there is no such checkpoint. "
        "The run has checkpoints of these steps: 4, 8, 12."
    ]
    for step in (4, 8, 12):
        manifest = files.read_json(base.checkpoint_manifest(step))
        files.write_json(base.checkpoint_manifest(step), {**manifest, "evaluated_step": step - 1})
    (words,) = said(starting(tiny, init_step="best"))
    assert words.startswith(
        "override init_from=tiny: init_from: output/tiny: the best checkpoint is not known"
    )
    assert words.endswith("Set init_step: newest.")
    for step in (4, 8, 12):
        (base.checkpoint(step) / "weights").write_bytes(b"12")
    (words,) = said(starting(tiny))
    assert words.startswith(
        "override init_from=tiny: init_from: output/tiny has no complete checkpoint; global_"
    )
    assert words.endswith("Train the run first, or use another run.")
    with pytest.raises(CheckpointError, match=r"global_step8: .*weights"):
        open_start(starting(tiny, init_step=8))


@pytest.mark.parametrize("word", ["latest", "0", "1.5"])
def test_a_step_that_is_none(word, tiny, base):
    with pytest.raises(ConfigError, match="init_step"):
        starting(tiny, init_step=json.loads(word) if word[0].isdigit() else word)


def test_another_model_is_refused_with_the_key(tiny, base):
    assert said(starting(tiny, **{"model.norm_epsilon": 1e-6})) == [
        "override model.norm_epsilon=1.0e-06: model.norm_epsilon is 1.0e-06 in the run and 1.0e-05 in tiny: "
        "the weights do not fit. To inherit the model section of that run, set `extends: "
        "output/tiny/config.yaml`."
    ]


def test_another_tokenizer_is_refused_with_the_token(tiny, base, tiny_data, workspace, monkeypatch):
    """A different tokenizer is rejected with the first token that differs; tokens that were added at the end
    are accepted.
    """
    shutil.copytree(tiny_data, workspace / "data")
    monkeypatch.setenv("NBTRAIN_DATA", str(workspace / "data"))
    source = workspace / "changed" / "tokenizer.json"
    source.parent.mkdir()
    document = json.loads((tokenizer_dir("mock") / "tokenizer.json").read_text())
    size = read_manifest(tokenizer_dir("mock"))["vocab_size"]
    document["added_tokens"].append({**document["added_tokens"][0], "id": size, "content": "<|user|>"})
    source.write_text(json.dumps(document))
    adopt(source, "<|endoftext|>", tokenizer_dir("longer"))
    assert said(starting(tiny, **{"tokenizer.name": "longer", "tokenizer.vocab_size": size + 1})) == []
    vocabulary = document["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    source.write_text(json.dumps(document))
    adopt(source, "<|endoftext|>", tokenizer_dir("turned"))
    assert said(starting(tiny, **{"tokenizer.name": "turned"})) == [
        f"override tokenizer.name=turned: tokenizer.name = turned: the token 'A' has the id "
        f"{vocabulary['B']} in data/tokenizer/mock/tokenizer.json, but has the id {vocabulary['A']} in "
        "data/tokenizer/turned. The run's token ids would "
        "stand for other text than when the weights were trained. Set tokenizer.name to the tokenizer of the "
        "weights, or to one that has all its tokens with the same ids."
    ]
    # The tokenizer that the weights were trained with is gone.
    manifest = files.read_json(base.checkpoint_manifest(12))
    files.write_json(base.checkpoint_manifest(12), {**manifest, "tokenizer_sha256": "5" * 64})
    (words,) = said(starting(tiny))
    assert "555555555555..., but the SHA-256 of data/tokenizer/mock" in words


@pytest.mark.parametrize("named", ["tiny", "output/tiny"])
def test_the_run_that_another_starts_from_is_deleted_once_that_has_all_of_its_weights(tiny, base, named):
    """The other run can be deleted once the run that starts from it has a complete checkpoint."""
    run = RunDir.named("second")
    run.path.mkdir()
    files.write_json(run.run_json, {"schema_version": 1, "run_id": "id", "name": "second"})
    files.write_text(run.config_yaml, to_yaml(starting(tiny, init_from=named)))
    refused = rf"output/second/config\.yaml: starts from {named}, and has no complete checkpoint yet\n"
    with pytest.raises(JobError, match=refused):
        delete(base)
    shutil.copytree(base.checkpoint(4), run.checkpoint(4))
    manifest = run.checkpoint_manifest(4).read_bytes()
    run.checkpoint_manifest(4).unlink()
    with pytest.raises(JobError, match=refused):
        delete(base)
    run.checkpoint_manifest(4).write_bytes(manifest)
    delete(base)
    assert not base.path.exists() and run.exists()


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ("lora", r"which it reads at every start because its checkpoints contain only adapters \(lora\)"),
        ("dpo", r"which is the reference model of its preference training \(dpo\)"),
    ],
)
def test_a_run_that_is_read_at_every_start_is_not_deleted(tiny, base, section, why):
    """A run that provides the base of adapters or the reference for preferences cannot be deleted, because
    its weights are read at every start.
    """
    run = RunDir.named("second")
    run.path.mkdir()
    files.write_json(run.run_json, {"schema_version": 1, "run_id": "id", "name": "second"})
    text = to_yaml(starting(tiny))
    assert f"{section}: null\n" in text
    files.write_text(run.config_yaml, text.replace(f"{section}: null\n", f"{section}: {{}}\n"))
    shutil.copytree(base.checkpoint(4), run.checkpoint(4))
    with pytest.raises(JobError, match=rf"output/second/config\.yaml: starts from tiny, {why}\n"):
        delete(base)


def test_extends_takes_the_model_of_the_run(tiny, base, workspace):
    (workspace / "second.yaml").write_text(
        "extends: output/tiny/config.yaml\nname: second\ninit_from: tiny\ninit_step: best\n"
    )
    config = load(workspace / "second.yaml")
    assert config.model == tiny().model and config.init_step == "best"
    assert list(problems_of_weights(config, read_initial_weights(config))) == []


def test_a_run_with_adapters_needs_the_weights_at_every_start(tiny, base):
    """A run with adapters reads the checkpoint recorded at its first submission at every start; if it is
    missing or has changed, the message names it.
    """
    config = starting(tiny, **{"lora.rank": 2})
    run = RunDir.named("second")
    run.path.mkdir()
    record_initial(run, config, read_initial_weights(config))
    shutil.copytree(base.checkpoint(4), run.checkpoint(4))
    shutil.copytree(base.checkpoint(4), base.checkpoint(16))
    assert said(config) == [] and open_start(config, run).step == 12
    record = files.read_json(run.init_from_json)
    record_initial(run, config, read_initial_weights(config))
    assert files.read_json(run.init_from_json) == record
    manifest = files.read_json(base.checkpoint_manifest(12))
    other = {"weights": {"bytes": 4, "sha256": "f" * 64}}
    files.write_json(base.checkpoint_manifest(12), {**manifest, "files": other})
    (problem,) = said(config)
    assert "init_from: output/tiny/model/global_step12 has changed since the run was submitted" in problem
    assert "Restore the old files" in problem
    files.write_json(base.checkpoint_manifest(12), manifest)
    shutil.rmtree(base.checkpoint(12))
    assert said(config)[0].startswith(
        "override init_from=tiny: init_from: output/tiny/model/global_step12: there is no such checkpoint."
    )
    assert said(starting(tiny)) == []


def test_preferences_need_their_weights_again_if_the_reference_is_gone(
    tiny, base, tiny_data, workspace, monkeypatch
):
    """A run with dpo and a checkpoint reads its start only if the reference is not in the index cache."""
    shutil.copytree(tiny_data, workspace / "data")
    monkeypatch.setenv("NBTRAIN_DATA", str(workspace / "data"))
    config = starting(tiny).model_copy(update={"dpo": DpoConfig()})
    run, opened = RunDir.named("second"), open_dataset(config)
    run.path.mkdir()
    record_initial(run, config, read_initial_weights(config))
    shutil.copytree(base.checkpoint(4), run.checkpoint(4))
    sha256 = files.read_json(run.init_from_json)["sha256"]
    assert read_initial_weights(config).start.step == 12
    shutil.rmtree(base.checkpoint(12))
    (problem,) = said(config)
    assert "output/tiny/model/global_step12: there is no such checkpoint." in problem
    assert "to compute the reference log-probabilities of its preference pairs (dpo)" in problem
    description = description_of(config, opened.manifest.dataset_sha256, sha256)
    keep_reference(opened.files.index_cache, description, np.zeros((2, 2), np.float32))
    assert said(config) == [] and read_initial_weights(config).start is None


def test_new_rows_are_trained_beside_adapters_unless_said_otherwise(tiny, base):
    """The rows of new tokens are trained together with adapters by default; a run that has a checkpoint keeps
    its setting.
    """
    rows = base_rows(base)
    grown = {"tokenizer.vocab_size": rows + 3}
    new = [rows, rows + 1, rows + 2]

    def ids(**more):
        return with_new_tokens(starting(tiny, **more)).lora.trainable_token_indices

    assert ids(**{"lora.rank": 2}, **grown) == new
    assert ids(**{"lora.rank": 2}) is None
    assert ids(**{"lora.trainable_token_indices": []}, **grown) == []
    assert ids(**{"lora.trainable_token_indices": [7]}, **grown) == [7]
    assert ids(**{"lora.kind": "ia3"}, **grown) is None
    assert ids(**{"lora.rank": 2, "init_from": "nowhere"}, **grown) is None
    assert with_new_tokens(starting(tiny, **grown)).lora is None
    run = RunDir.named("second")
    run.path.mkdir()
    # A run from before null meant the new rows.
    files.write_text(run.config_yaml, to_yaml(starting(tiny, **{"lora.rank": 2}, **grown)))
    assert ids(**{"lora.rank": 2}, **grown) == new
    shutil.copytree(base.checkpoint(4), run.checkpoint(4))
    assert ids(**{"lora.rank": 2}, **grown) is None
    files.write_text(
        run.config_yaml, to_yaml(starting(tiny, **{"lora.trainable_token_indices": [9]}, **grown))
    )
    assert ids(**{"lora.rank": 2}, **grown) == [9]


def test_new_rows_that_were_filled_in_are_no_difference(tiny, base):
    """A run that was submitted with its new rows filled in has the settings of its file, which omits them."""
    rows = base_rows(base)
    config = starting(tiny, **{"tokenizer.vocab_size": rows + 2, "lora.rank": 2})
    run = RunDir.named("second")
    run.path.mkdir()
    files.write_text(run.config_yaml, to_yaml(with_new_tokens(config)))
    before = load_resolved(run.config_yaml)
    assert before.lora.trainable_token_indices == [rows, rows + 1]
    assert submitted_changes(before, config) == [] and was_trained_with(run, config)
    other = with_overrides(config, {"lora.trainable_token_indices": [7]})
    assert [change.key for change in submitted_changes(before, other)] == ["lora.trainable_token_indices"]
    assert not was_trained_with(run, other)


def test_plan_and_form_count_the_new_rows(tiny, base):
    """The plan and the form include the rows of new tokens, as in the run that is submitted."""
    rows = base_rows(base)
    grown = {"tokenizer.vocab_size": rows + 3, "lora.rank": 2}
    none = nb.plan(starting(tiny, **grown, **{"lora.trainable_token_indices": []}))
    config = starting(tiny, **grown)
    planned, held = nb.plan(config).memory, Draft("tiny.yaml", config.as_arguments[1:]).assess().plan.memory
    moments = 3 * config.model.hidden_size * 8
    assert planned.parts["optimizer"] == none.memory.parts["optimizer"] + moments
    assert held.parts == planned.parts


@pytest.mark.parametrize(
    "more, said_",
    [
        ({}, ""),
        (
            {"lora.kind": "ia3"},
            " 0 of the 2 new rows are trained with the adapters (lora.trainable_token_indices).",
        ),
        ({"lora.rank": 2}, " All 2 new rows are trained with the adapters (lora.trainable_token_indices)."),
        (
            {"lora.trainable_token_indices": [3]},
            " 0 of the 2 new rows are trained with the adapters (lora.trainable_token_indices).",
        ),
    ],
)
def test_a_note_says_which_new_rows_are_trained(more, said_, tiny, base):
    rows = base_rows(base)
    run = RunDir.named("second")
    run.path.mkdir()
    config = with_new_tokens(starting(tiny, **{"tokenizer.vocab_size": rows + 2}, **more))
    assert record_initial(run, config, read_initial_weights(config)) == [
        f"init_from: the vocabulary grows from {rows} to {rows + 2} entries (tokenizer.vocab_size): each "
        f"new row is the mean of the old rows.{said_}"
    ]


def test_a_folder_without_adapters_is_refused(tiny, base, workspace):
    config = starting(tiny, **{"lora.init_from": "adapters"})
    (workspace / "adapters").mkdir()
    assert said(config) == [
        "override lora.init_from=adapters: lora.init_from: adapters has no adapter_config.json, so it is "
        "not an adapter folder that peft has written."
    ]
    settings = {"peft_type": "IA3", "bias": "none"}
    files.write_json(workspace / "adapters" / "adapter_config.json", settings)
    (workspace / "adapters" / "adapter_model.safetensors").write_bytes(b"1")
    assert said(config) == [
        "override lora.init_from=adapters: lora.init_from: adapters: peft_type is 'IA3', but the run's "
        "lora.kind is lora. Set lora.kind: ia3."
    ]


def test_adapters_that_changed_are_refused_for_a_repetition(tiny, base, workspace):
    """A run that repeats another begins with the weights and the adapters that were recorded."""
    path = workspace / "adapters" / "adapter_model.safetensors"
    path.parent.mkdir()
    path.write_bytes(b"first")
    config = starting(tiny, lora={"rank": 2, "init_from": "adapters"})
    recorded = hashes_of(open_start(config), config)
    refuse_other_weights(config, recorded)
    with pytest.raises(CheckpointError, match="global_step12 has changed since the run was submitted"):
        refuse_other_weights(config, {**recorded, "sha256": "0" * 64})
    path.write_bytes(b"second")
    with pytest.raises(CheckpointError, match=r"adapter_model.safetensors is gone or has"):
        refuse_other_weights(config, recorded)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"adapter_model.safetensors is gone or has"):
        refuse_other_weights(config, recorded)


def test_tokens_added_for_a_chat(tiny, base, tiny_data, workspace, monkeypatch):
    """Tokens that are added for a chat become new rows; they are listed in the note and the record, and the
    data contains their ids.
    """
    shutil.copytree(tiny_data, workspace / "data")
    monkeypatch.setenv("NBTRAIN_DATA", str(workspace / "data"))
    known = read_manifest(tokenizer_dir("mock"))
    said_of = {"role": "user", "content": "What is {}?"}, {"role": "assistant", "content": "A dict."}
    (workspace / "chat.jsonl").write_text(json.dumps({"messages": said_of}) + "\n")
    size, marks = known["vocab_size"], ["<|user|>", "<|assistant|>"]
    settings = {
        "tokenizer.name": "chat",
        "tokenizer.path": "data/tokenizer/mock",
        "tokenizer.added_tokens": marks,
        "data.name": "chat",
        "data.sources": [{"kind": "chat", "path": "chat.jsonl"}],
        "data.packing": "best_fit",
        "data.split": "1,0,0",
        "evaluation.eval_iters": 0,
    }
    wrong = starting(tiny, **{**settings, "tokenizer.vocab_size": size})
    with pytest.raises(DataError, match=f"Set tokenizer.vocab_size to {size + 2}"):
        prepare(wrong)
    config = starting(tiny, **{**settings, "tokenizer.vocab_size": size + 2})
    prepare(config)
    prepare(config)
    assert read_manifest(tokenizer_dir("chat"))["added_tokens"] == marks
    ids = open_dataset(config).indexed.get(0).tolist()
    assert [token_id for token_id in ids if token_id >= size] == [size, size + 1] and ids[0] == size
    assert said(config) == []
    with pytest.raises(
        DataError, match=r"but other runs may refer to it\. Give tokenizer\.name another value"
    ):
        prepare(starting(tiny, **{**settings, "tokenizer.name": "mock", "tokenizer.vocab_size": size + 2}))
    assert read_manifest(tokenizer_dir("mock")) == known
    run = RunDir.named("second")
    run.path.mkdir()
    assert record_initial(run, config, read_initial_weights(config)) == [
        f"init_from: the vocabulary grows from {base_rows(base)} to {size + 2} entries "
        "(tokenizer.vocab_size): each new row is the mean of the old rows."
    ]
    assert files.read_json(run.init_from_json)["vocabulary"] == {"before": base_rows(base), "now": size + 2}


def base_rows(base):
    return load(base.config_yaml).tokenizer.vocab_size


def test_a_checkpoint_that_is_removed_before_the_job_is_written_is_chosen_again(tiny, base):
    """Under the run's lock, another checkpoint is chosen if there is one; else the submission is refused."""
    config = starting(tiny)
    weights = read_initial_weights(config)
    assert read_weights_again(config, weights) is weights
    shutil.rmtree(base.checkpoint(12))
    assert read_weights_again(config, weights).start.step == 8
    pinned = starting(tiny, init_step=12)
    with pytest.raises(SubmitError, match=r"step 12 of tiny was removed while .* submitted: .* steps: 4, 8"):
        read_weights_again(pinned, weights)
