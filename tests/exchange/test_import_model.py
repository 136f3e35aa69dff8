"""The command `nbtrain import-model`: the run's YAML, its tokenizer, and folders that are rejected with
nothing written.
"""

import errno
import json
import os
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError, ConfigError, DataError, RecordError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli.__main__ import main
from nbtrain.config.load import load
from nbtrain.corpus.tokenizer.exported import write_tokenizer
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.exchange.import_model import FETCHED, NOT_FETCHED, find_tokenizer, import_model
from nbtrain.jobs.request.initial_weights import problems_of_weights, read_initial_weights
from nbtrain.pretrained.model import open_model
from nbtrain.pretrained.start import open_start
from tests.pretrained.small import write_small_folder

TEMPLATE = "{% for message in messages %}{{ message['content'] }}</s>{% endfor %}"


def write_tokenizer_files(folder: Path, entries: int = 20) -> None:
    """Write a tokenizer whose tokens are whole words, as transformers does, with a chat template and an added
    token.
    """
    import tokenizers
    from tokenizers import models, pre_tokenizers

    words = ["<unk>", "</s>", *(f"w{number}" for number in range(entries - 3))]
    vocabulary = {word: number for number, word in enumerate(words)}
    built = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    built.add_special_tokens(["</s>", "<|tool|>"])
    # Settings of inference: removed for training, and exported again.
    built.enable_truncation(4)
    built.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": {"content": "</s>"}, "bos_token": None, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


@pytest.fixture
def folder(workspace, monkeypatch):
    """Create a complete model folder in the workspace, which becomes the current folder."""
    monkeypatch.chdir(workspace)
    folder = workspace / "models" / "small"
    write_small_folder(folder)
    write_tokenizer_files(folder)
    generation = {"eos_token_id": [1, 19], "temperature": 0.7}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_a_run_is_made_of_a_folder(folder, workspace):
    """The YAML for an imported folder loads as a run; the weights stay in the folder."""
    imported = import_model("models/small", "mine")
    assert imported.path == workspace / "mine.yaml"
    config = load("mine.yaml")
    assert config == imported.config
    assert (
        config.init_from == "models/small"
        and config.name == config.tokenizer.name == config.data.name == "mine"
    )
    assert (config.tokenizer.vocab_size, config.tokenizer.eod_token) == (20, "</s>")
    model = config.model
    assert (model.num_layers, model.hidden_size, model.seq_length) == (2, 8, 16)
    assert (model.normalization, model.norm_epsilon, model.activation) == ("RMSNorm", 1e-6, "swiglu")
    assert model.untie_embeddings_and_output_weights and model.position_embedding_type == "rope"
    assert (
        (workspace / "mine.yaml")
        .read_text()
        .startswith("# Created by `nbtrain import-model` from models/small")
    )
    assert list(problems_of_weights(config, read_initial_weights(config))) == []
    assert "mine.yaml: Llama, 1.45k parameters, from models/small; tokenizer data/tokenizer/mine." in str(
        imported
    )


def test_a_folder_in_the_root_of_the_workspace_is_not_the_name_of_a_run(folder, workspace):
    """A model folder at the top of the workspace is written as ./small, so that it is not read as the name of
    a run.
    """
    folder.rename(workspace / "small")
    config = import_model("small", "small").config
    assert config.init_from == load("small.yaml").init_from == "./small"
    run = RunDir.named("small")
    run.path.mkdir(parents=True)
    files.write_json(run.run_json, {"name": "small"})
    assert open_start(config, run).path == workspace / "small"
    # A bare name, as a user may write it.
    assert open_start(load(config, {"init_from": "small"}), run).path == workspace / "small"
    other = import_model("small", "other").config
    assert open_start(other).path == workspace / "small"
    with pytest.raises(
        CheckpointError, match=r"^small is both a run and the path small\. Set init_from to output/small "
    ):
        open_start(load(other, {"init_from": "small"}))


def test_the_tokenizer_is_kept_as_it_was(folder, workspace):
    """The tokenizer is stored without inference settings for training, and an export restores its original
    files.
    """
    import_model("models/small", "mine")
    kept = workspace / "data" / "tokenizer" / "mine"
    tokenizer = Tokenizer.load(kept)
    assert tokenizer.eod_id == 1 and len(tokenizer.encode("w1 w2 w3 w4 w5 w6")) == 6
    out = workspace / "out"
    out.mkdir()
    ids = write_tokenizer(kept, out, 16, 20)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()
    # Except for the padding token, which the folder does not name.
    settings = [json.loads((place / "tokenizer_config.json").read_text()) for place in (folder, out)]
    assert settings[1] == {**settings[0], "pad_token": "<unk>"}
    assert ids == {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": tokenizer.manifest["unknown_id"]}
    # A second run of the same model: the tokenizer of this name exists already, and is the same.
    import_model("models/small", "mine", path="again.yaml")


def test_overrides_and_the_run_that_it_is_put_on(folder, workspace):
    """If a base run is given, the model comes from the folder, and all other settings come from the base
    run.
    """
    (workspace / "base.yaml").write_text(
        "name: base\nmodel: {num_layers: 9, hidden_size: 72, num_attention_heads: 9, rotary_percent: 0.5,"
        " position_embedding_type: rope, compile: true}\n"
        "tokenizer: {name: other, vocab_size: 999}\n"
        "data: {name: texts, sources: [{kind: mock}]}\n"
        "batch: {micro_batch_size: 2, global_batch_size: 4, train_tokens: 1e6}\n"
        "lr_schedule: {lr: 1e-4}\nparallel: {zero_stage: 1}\nresources: {device: cpu}\n"
    )
    imported = import_model(
        "models/small", "mine", ["model.seq_length=8", "batch.train_tokens=2e6"], onto="base.yaml"
    )
    config = load("mine.yaml")
    assert config == imported.config
    assert config.data.sources == load("base.yaml").data.sources and config.data.name == "mine"
    assert (config.batch.train_tokens, config.batch.micro_batch_size) == (2_000_000, 2)
    assert config.model.compile and config.model.rotary_percent == 1.0 and config.model.num_layers == 2
    assert config.model.seq_length == 8 and config.parallel.zero_stage == 1


@pytest.mark.parametrize("ids, kept", [("[3, 4]", None), ("[]", []), ("null", None)])
def test_adapters_are_of_the_run_and_their_tokens_of_its_model(folder, workspace, ids, kept):
    """The adapter settings of the base run are kept, except its token ids, which stand for other tokens in
    this model.
    """
    (workspace / "base.yaml").write_text(
        "name: base\ninit_from: other\nmodel: {num_layers: 1, hidden_size: 8, num_attention_heads: 2}\n"
        "tokenizer: {name: other, vocab_size: 5}\n"
        f"lora: {{rank: 4, init_from: adapters, trainable_token_indices: {ids}}}\n"
        "data: {name: texts, sources: [{kind: mock}]}\n"
        "batch: {micro_batch_size: 2, global_batch_size: 4, train_tokens: 1e6}\n"
        "lr_schedule: {lr: 1e-4}\nresources: {device: cpu}\n"
    )
    imported = import_model("models/small", "mine", onto="base.yaml")
    lora = load("mine.yaml").lora
    assert lora == imported.config.lora
    assert (lora.rank, lora.init_from, lora.trainable_token_indices) == (4, None, kept)
    own = ["lora.trainable_token_indices=[5]", "lora.init_from=mine"]
    given = import_model("models/small", "own", own, onto="base.yaml").config.lora
    assert (given.trainable_token_indices, given.init_from) == ([5], "mine")


def test_another_size_of_the_vocabulary_is_reported(folder):
    """A different vocabulary size is reported: larger if there are new tokens, smaller if there are rows
    without a token.
    """
    larger = import_model("models/small", "larger", ["tokenizer.vocab_size=24"])
    assert larger.notes[-1] == (
        "the vocabulary grows from 20 to 24 entries (tokenizer.vocab_size): each new row is the mean "
        "of the old rows."
    )
    write_tokenizer_files(folder, 12)
    smaller = import_model("models/small", "smaller", ["tokenizer.vocab_size=12"])
    assert smaller.notes[-1] == (
        "the vocabulary shrinks from 20 to 12 entries (tokenizer.vocab_size): the last 8 rows are dropped."
    )
    with pytest.raises(ConfigError) as refused:
        import_model("models/small", "few", ["tokenizer.vocab_size=11"])
    assert str(refused.value) == (
        "tokenizer.vocab_size = 11 is too small: the tokenizer in models/small has ids up to 11, and each "
        "id needs its own embedding row. Set tokenizer.vocab_size to 12 or more, or use another tokenizer "
        "(tokenizer.path=...)."
    )
    # Rows that the tokenizer does not name stay.
    assert import_model("models/small", "same").config.tokenizer.vocab_size == 20


def test_a_field_that_the_weights_do_not_have_is_refused(folder, workspace):
    before = tree(workspace)
    for override, words in (
        ("norm_epsilon=1e-5", "norm_epsilon is 1.0e-05 in the run and 1.0e-06 in models/small"),
        ("rotary_percent=0.5", "rotary_percent is 0.5 in the run and 1.0 in models/small"),
    ):
        with pytest.raises(ConfigError) as refused:
            import_model("models/small", "mine", [f"model.{override}"])
        assert f"model.{words}" in str(refused.value)
    assert tree(workspace) == before
    imported = import_model("models/small", "mine", ["model.rotary_base=5e5"])
    assert (
        "model.rotary_base is 500000.0 in the run and 10000.0 in models/small: positions rotate"
        in imported.notes[0]
    )


def spoil_weights(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = np.inf
    save_file(tensors, folder / "model.safetensors")


BAD = {
    "a tokenizer of another vocabulary": (
        lambda folder: write_tokenizer_files(folder, 40),
        DataError,
        "models/small: the tokenizer has ids up to 39, but the model has only 20 embedding rows, so this "
        "is another model's tokenizer. Replace it with the model's own tokenizer (tokenizer.path=...).",
    ),
    "a tokenizer_config.json of nothing": (
        lambda folder: (folder / "tokenizer_config.json").write_text("[" * 100_000),
        RecordError,
        "tokenizer_config.json:1: not JSON: objects and lists are nested too deeply",
    ),
    "a tokenizer_config.json of another encoding": (
        lambda folder: (folder / "tokenizer_config.json").write_bytes(b'{"eos_token": "\xe9"}'),
        RecordError,
        "tokenizer_config.json:1: not JSON: byte 16 is not UTF-8",
    ),
    "ids that are not numbers": (
        lambda folder: (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": "x"}}}'),
        DataError,
        "models/small/tokenizer.json: the id of 'a' is \"x\"; an id must be a whole number of at least 0. ",
    ),
    "two files of another model than GPT-2": (
        lambda folder: (
            (folder / "tokenizer.json").rename(folder / "vocab.json"),
            (folder / "merges.txt").write_text(""),
            (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}'),
        ),
        DataError,
        "models/small: vocab.json and merges.txt without a tokenizer.json are read as GPT-2's, but ",
    ),
    "a tokenizer.json of nothing": (
        lambda folder: (folder / "tokenizer.json").write_text('{"model": 3}'),
        DataError,
        "models/small/tokenizer.json: the file is not a tokenizer.json of HF tokenizers. Copy or download it "
        "again.",
    ),
    "a tokenizer without an end": (
        lambda folder: (
            (folder / "tokenizer_config.json").unlink(),
            (folder / "generation_config.json").unlink(),
        ),
        DataError,
        "lacks the end-of-document token <|endoftext|>. Set tokenizer.eod_token to one of these "
        "tokens: </s>.",
    ),
    "NaN weights": (spoil_weights, CheckpointError, "model.norm.weight contains NaN or Inf"),
    "half a download": (
        lambda folder: os.truncate(folder / "model.safetensors", 3000),
        CheckpointError,
        "is truncated: the file has 2.9 KiB",
    ),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        CheckpointError,
        "models/small contains no safetensors files. Download the folder again.",
    ),
    "another architecture": (
        lambda folder: (folder / "config.json").write_text('{"model_type": "mamba"}'),
        CheckpointError,
        "model_type = mamba is not supported",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_writes_nothing(what, folder, workspace):
    spoil, kind, said = BAD[what]
    spoil(folder)
    before = tree(workspace)
    with pytest.raises(kind) as refused:
        import_model("models/small", "mine")
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert tree(workspace) == before


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("tokenizer.vocab_size=abc", "tokenizer.vocab_size = abc: must be a whole number."),
        ("tokenizer.vocab_size=[1]", "tokenizer.vocab_size = [1]: must be a whole number."),
        ("tokenizer.vocab_size=-5", "tokenizer.vocab_size = -5: must be at least 1."),
        ("tokenizer=5", "tokenizer = 5: must be a section: a mapping of keys."),
        ("tokenizer=[1]", "tokenizer = [1]: must be a section: a mapping of keys."),
        ("tokenizer=null", "tokenizer = null: must be a section: a mapping of keys."),
        ("tokenizer.name=5", "tokenizer.name = 5: must be text; write it in quotes."),
        ("tokenizer.path=5", "tokenizer.path = 5: must be text; write it in quotes."),
        ("tokenizer.sise=5", "tokenizer has no key `sise`."),
    ],
)
def test_overrides_of_the_tokenizer_are_refused_as_in_check(folder, workspace, override, said):
    """Invalid overrides of the tokenizer are rejected with the same message as in `nbtrain check`."""
    before = tree(workspace)
    with pytest.raises(ConfigError) as refused:
        import_model("models/small", "mine", [override])
    assert str(refused.value).startswith(f"override {override}: {said}")
    with pytest.raises(ConfigError) as checked:
        load("gpt-tiny", [override])
    assert str(refused.value) == str(checked.value)
    assert tree(workspace) == before


@pytest.mark.parametrize(
    ("ids", "found"), [([[1]], None), ({"a": 1}, None), (True, None), ([[1], "x", 1], "</s>"), (1, "</s>")]
)
def test_ends_of_a_text_that_are_no_ids(folder, ids, found):
    """The end token is the first valid id in eos_token_id; values that are not ids are ignored."""
    files.write_json(folder / "tokenizer_config.json", {})
    files.write_json(folder / "generation_config.json", {"eos_token_id": ids})
    assert find_tokenizer(open_model(folder), {}).eod_token == found


def test_another_tokenizer_of_the_name_is_not_replaced(folder, workspace):
    import_model("models/small", "mine")
    write_tokenizer_files(folder, 15)
    with pytest.raises(DataError, match="holds another tokenizer"):
        import_model("models/small", "mine", path="again.yaml")
    assert not (workspace / "again.yaml").exists()


def test_a_yaml_that_cannot_be_written_leaves_no_tokenizer(folder, workspace, monkeypatch):
    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_output", full)
    before = tree(workspace)
    with pytest.raises(ConfigError) as refused:
        import_model("models/small", "mine")
    assert str(refused.value) == (
        f"{workspace / 'mine.yaml'} cannot be written (No space left on device). Free up space, or name a "
        "file on another disk."
    )
    assert tree(workspace) == before


def test_paths_and_names(folder, workspace):
    with pytest.raises(ConfigError, match="must be 1 to 53 lower case letters"):
        import_model("models/small", "My Run")
    import_model("models/small", "mine")
    with pytest.raises(ConfigError, match=r"mine.yaml already exists. Name another file"):
        import_model("models/small", "mine")
    import_model("models/small", "mine", overwrite=True)
    with pytest.raises(ConfigError, match=r"is not a folder\. Choose a path in a folder that exists"):
        import_model("models/small", "mine", path="nowhere/mine.yaml")
    with pytest.raises(ConfigError, match=r"a run YAML must end in \.yaml or \.yml"):
        import_model("models/small", "mine", path="mine.txt")
    with pytest.raises(CheckpointError, match=r"config\.json is a file\. Pass the folder"):
        import_model("models/small/config.json", "mine", path="x.yaml")


@pytest.mark.parametrize(("override", "word"), [("name=other", "NAME"), ("init_from=other", "DIR")])
def test_the_words_of_the_call_are_not_overridden(folder, workspace, override, word):
    """Overrides of fields that the command's arguments set are rejected, because the YAML would then name
    another model.
    """
    before = tree(workspace)
    with pytest.raises(ConfigError) as refused:
        import_model("models/small", "mine", [override])
    assert str(refused.value) == (
        f"override {override}: {override.partition('=')[0]} is set by the argument {word}, so it cannot be "
        f"overridden. Remove the override, or change {word}."
    )
    assert tree(workspace) == before


def test_a_folder_without_a_tokenizer(folder, workspace):
    """A folder without a tokenizer can be imported for data that consists of token ids; for text, a tokenizer
    must be named.
    """
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    imported = import_model("models/small", "mine")
    assert "models/small contains no tokenizer. Set tokenizer.name or" in imported.notes[-1]
    assert not (workspace / "data").exists()


def test_only_what_is_named_is_fetched(folder, workspace, monkeypatch):
    """A model is downloaded from the Hub only if its hf:// address is given, and pickles are never
    downloaded.
    """
    with pytest.raises(CheckpointError) as refused:
        import_model("someone/small", "mine")
    assert str(refused.value) == (
        "someone/small: no such folder. If this is a model on the Hub, pass hf://someone/small to download "
        "it with huggingface_hub."
    )
    with pytest.raises(
        CheckpointError,
        match=r"^x{77}\.\.\.: cannot be read: File name too long\. Pass the path of a model folder\.$",
    ):
        import_model("x" * 5000, "mine")
    for address in ("hf://small", "hf:someone/small", "https://huggingface.co/someone/small"):
        with pytest.raises(ConfigError) as wrong:
            import_model(address, "mine")
        assert str(wrong.value) == (
            f"{address} is not an address from which a model can be downloaded. For a model on the Hub, "
            "use hf://ORGANISATION/MODEL or hf://ORGANISATION/MODEL@REVISION. For any other model, pass "
            "its folder."
        )
    asked = {}

    def snapshot_download(model, revision, allow_patterns, ignore_patterns, local_dir):
        asked.update(model=model, revision=revision, allow=allow_patterns, ignore=ignore_patterns)
        local_dir.mkdir(parents=True)
        for path in folder.iterdir():
            (local_dir / path.name).write_bytes(path.read_bytes())

    library = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    imported = import_model("hf://someone/small@v2", "mine")
    assert (asked["model"], asked["revision"]) == ("someone/small", "v2")
    assert (asked["allow"], asked["ignore"]) == (FETCHED, NOT_FETCHED)
    assert imported.config.init_from == "data/model/someone--small@v2"
    assert import_model("hf://someone/small", "newest").config.init_from == "data/model/someone--small"

    def fails(*arguments, **settings):
        raise OSError("503 Server Error\nlong words")

    library.snapshot_download = fails
    with pytest.raises(
        CheckpointError, match="hf://someone/other: huggingface_hub could not download it: 503 Server Er"
    ):
        import_model("hf://someone/other", "other")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="huggingface_hub, which downloads models, is not installed"):
        import_model("hf://someone/other", "other")


def test_a_repository_of_pickles_alone(workspace, monkeypatch):
    """A repository that has only pickles is rejected, and none of its weights are downloaded."""

    def fetched(model, revision, local_dir, **patterns):
        local_dir.mkdir(parents=True, exist_ok=True)
        (local_dir / "config.json").write_text("{}")

    library = types.SimpleNamespace(snapshot_download=fetched)
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    with pytest.raises(CheckpointError) as refused:
        import_model("hf://someone/old@v1", "mine")
    assert str(refused.value) == (
        "hf://someone/old: the repository has no safetensors file in its top folder (consolidated* is not "
        "used). Pickles (.bin, .pt) are not downloaded, because they can run code when they are loaded. "
        "Choose a repository with safetensors files, or, if you trust this one, convert it with "
        "transformers: AutoModelForCausalLM"
        ".from_pretrained(...).save_pretrained(FOLDER), and import FOLDER."
    )


def test_half_a_fetch_is_not_taken_for_the_whole(folder, workspace, monkeypatch):
    """An interrupted download is completed before its folder is used; the commit must be given explicitly."""
    kept = workspace / "data" / "model" / "someone--small"
    asked = []

    def interrupted(model, revision, local_dir, **patterns):
        local_dir.mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            shutil.copy(folder / name, local_dir)
        raise KeyboardInterrupt

    def unreachable(model, revision=None):
        raise OSError("no network")

    def fetched(model, revision, local_dir, **patterns):
        asked.append(revision)
        shutil.copytree(folder, local_dir, dirs_exist_ok=True)

    library = types.SimpleNamespace(
        snapshot_download=interrupted, HfApi=lambda: types.SimpleNamespace(model_info=unreachable)
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    with pytest.raises(KeyboardInterrupt):
        import_model("hf://someone/small", "mine")
    library.snapshot_download = fetched
    with pytest.raises(
        CheckpointError, match="hf://someone/small: huggingface_hub could not download it: no net"
    ):
        import_model("hf://someone/small", "mine")
    assert asked == []
    info = types.SimpleNamespace(sha="0" * 40)
    library.HfApi = lambda: types.SimpleNamespace(model_info=lambda model, revision: info)
    import_model("hf://someone/small", "mine")
    # Once complete, it is used without the Hub too.
    import_model("hf://someone/small", "again")
    assert asked == ["0" * 40, None] and [path.name for path in kept.parent.iterdir()] == [kept.name]


def test_what_is_fetched_from_the_hub():
    """With our file patterns, huggingface_hub downloads no pickles, and the weights only once."""
    utils = pytest.importorskip("huggingface_hub.utils")
    wanted = {
        *("config.json", "generation_config.json", "model-00001-of-00002.safetensors", "tokenizer.json"),
        *("model.safetensors.index.json", "chat_template.jinja", "merges.txt", "tokenizer.model"),
    }
    others = {
        *("consolidated.safetensors", "pytorch_model.bin", "original/consolidated.00.pth", "README.md"),
        *("original/params.json", "onnx/model.onnx", "onnx/config.json", "runs/model.safetensors"),
    }
    found = utils.filter_repo_objects(wanted | others, allow_patterns=FETCHED, ignore_patterns=NOT_FETCHED)
    assert {*found} == wanted


def test_a_tokenizer_with_other_ids_is_refused(folder, workspace):
    """A tokenizer whose ids differ from those that the weights were trained with is rejected, and nothing is
    written.
    """
    shutil.copytree(folder, workspace / "models" / "second")
    path = workspace / "models" / "second" / "tokenizer.json"
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    first, last = list(vocab)[4], list(vocab)[5]
    vocab[first], vocab[last] = vocab[last], vocab[first]
    path.write_text(json.dumps(content))
    import_model("models/second", "second")
    with pytest.raises(
        ConfigError, match=r"tokenizer\.name = second: .*token ids would stand for other text"
    ) as refused:
        import_model("models/small", "third", {"tokenizer.name": "second"})
    assert str(refused.value).endswith(
        "Use a tokenizer with the same ids, or remove tokenizer.name to use the model folder's tokenizer."
    )
    assert not (workspace / "third.yaml").exists()


def test_a_run_that_does_not_fit_is_refused_before_launch(folder, workspace):
    """If a user edits the YAML so that it no longer fits the model, the run is rejected before launch."""
    config = import_model("models/small", "mine").config
    other = load(config, {"model.num_layers": 3})
    said = [str(problem) for problem in problems_of_weights(other, read_initial_weights(other))]
    assert (
        len(said) == 1
        and "model.num_layers is 3 in the run and 2 in models/small: the weights do not" in said[0]
    )
    (folder / "model.safetensors").unlink()
    said = [str(problem) for problem in problems_of_weights(config, read_initial_weights(config))]
    assert len(said) == 1 and "init_from: models/small contains no safetensors files." in said[0]
    nvme = {"parallel.zero_stage": 3, "parallel.offload_optimizer.device": "nvme"}
    with pytest.raises(
        ConfigError, match=r"cannot be loaded into state on NVMe\. Set offload_optimizer\.device: cpu"
    ):
        load(
            config,
            {**nvme, "parallel.offload_optimizer.nvme_path": "/nvme", "parallel.data_parallel_size": 1},
        )


def test_on_the_command_line(folder, workspace, capsys):
    assert main(["import-model", "models/small", "mine", "model.seq_length=8", "-o", "other.yaml"]) == 0
    assert "other.yaml: Llama, 1.45k parameters, from models/small" in capsys.readouterr().out
    assert main(["check", "other.yaml"]) in (0, 2)
    capsys.readouterr()
    assert main(["import-model", "models/none", "mine"]) == 4
    assert "CheckpointError: models/none: no such folder." in capsys.readouterr().err
    files.write_text(workspace / "mine.yaml", "x")
    assert main(["import-model", "models/small", "mine"]) == 2
