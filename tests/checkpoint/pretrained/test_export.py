"""Exported folders: transformers loads them and gives our logits and our greedy text, for any layout."""

import errno
import json
import os

import pytest
import torch

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError, ConfigError, DataError
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.checkpoint.pretrained import __main__ as gpu_side
from nbtrain.checkpoint.pretrained.plain import PlainModel
from nbtrain.checkpoint.weights.folder_weights import FolderWeights
from nbtrain.checkpoint.weights.model_weights import load_model_weights
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.load import load_resolved, to_yaml
from nbtrain.corpus.tokenizer.folder import read_manifest
from nbtrain.exchange import export_model as exporting
from nbtrain.exchange.export_model import default_place, export_model
from nbtrain.exchange.import_model import import_model
from nbtrain.jobs.request.initial_weights import read_initial_weights, record_initial
from nbtrain.model.gpt import build_model
from nbtrain.pretrained.model import open_model
from tests.dataset.dataset_maker import make_tokenizer
from tests.inference.made import without_cache
from tests.pretrained import made
from tests.train import launch
from tests.train.layouts import HALF, Place, layout

pytestmark = pytest.mark.slow

TEXTS = ["the cat sat on the mat and the dog sat on the log " * 3, "a text of other words, with numbers 123"]
PROMPT = "the cat sat"


@pytest.fixture(scope="module")
def place(tmp_path_factory, fork_server):
    """Create a place for runs whose dataset has a tokenizer."""
    pytest.importorskip("transformers")
    root = tmp_path_factory.mktemp("it's an export")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBTRAIN_WORKSPACE", str(root))
        patch.setenv("HF_HUB_OFFLINE", "1")
        launch.make_dataset(root / "data")
        tokenizer = make_tokenizer("test", TEXTS, 300)
        manifest = root / "data" / "dataset" / "test" / "manifest.json"
        files.write_json(manifest, {**files.read_json(manifest), "tokenizer_sha256": tokenizer.sha256})
        yield Place(root, root / "data", fork_server)


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    """Answer requests to the GPU side in this process, where torch is loaded already."""
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(place.root))
    monkeypatch.setattr(exporting, "stream", lambda module, request: gpu_side.answers(request))


def theirs_of(folder):
    """Load the model with transformers; assert that no tensors are missing or unexpected."""
    import transformers

    model, told = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
    return model.eval()


def ours_of(run, dtype=torch.float32, masters=False):
    """Return the run's model for text generation, in fp32."""
    config = load_resolved(run.config_yaml)
    model = build_model(config).eval()
    weights = load_model_weights(run.path, masters=masters, padded_vocab_size=config.padded_vocab_size)
    model.load_state_dict({name: weight.to(dtype).float() for name, weight in weights.items()})
    return model


EXPORTS = ["t2 p2 z1", "d2 z3 llama", "t2 z1 bf16 llama"]
MORE = ["z0", "d2 z2", "s2 z2 llama", "c2 z3 llama", "p2 z1 bf16", "d2 t2 z3 llama", "z1 fp16 llama"]


@pytest.mark.parametrize(
    "words", [*EXPORTS, *(pytest.param(words, marks=pytest.mark.soak) for words in MORE)]
)
def test_transformers_gives_our_logits_and_our_text(words, place, tmp_path):
    """From a checkpoint of any layout, transformers gives our logits and our greedy text.

    The export has no padding rows.
    """
    run, folder = place.source(words), tmp_path / "exported"
    exported = export_model(run, folder)
    theirs, ours = theirs_of(folder), ours_of(run)
    assert theirs.config.vocab_size == launch.VOCAB_SIZE and exported.step == HALF
    assert theirs.dtype == CheckpointStore(run.checkpoint(HALF)).dtype
    theirs = theirs.float()
    tokens = torch.randint(launch.VOCAB_SIZE, (2, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found, expected = theirs(tokens).logits, ours(tokens)[..., : launch.VOCAB_SIZE]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer(PROMPT, return_tensors="pt").input_ids
    greedy = without_cache(ours, prompt[0].tolist(), 12)
    greedy = greedy[: greedy.index(0)] if 0 in greedy else greedy
    generated = theirs.generate(prompt, max_new_tokens=12, do_sample=False)[0, prompt.shape[1] :].tolist()
    assert generated[: len(greedy)] == greedy
    assert tokenizer.decode(greedy) == make_tokenizer("test", TEXTS).decode(greedy)


def test_masters_are_exported_in_fp32(place, tmp_path):
    """`dtype` selects whether a bf16 run exports its fp32 masters or its bf16 weights."""
    run = place.source("t2 z1 bf16 llama")
    exported = export_model(run, tmp_path / "masters", dtype="fp32", max_shard_bytes=100_000)
    theirs = theirs_of(tmp_path / "masters")
    assert theirs.dtype == torch.float32 and exported.dtype == "fp32"
    assert len(list((tmp_path / "masters").glob("model-*.safetensors"))) > 1
    tokens = torch.randint(launch.VOCAB_SIZE, (2, 32), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = ours_of(run, masters=True)(tokens)[..., : launch.VOCAB_SIZE]
        torch.testing.assert_close(theirs(tokens).logits, expected, rtol=1e-5, atol=1e-5)


def test_the_folder_says_what_it_is(place, tmp_path):
    """The exported folder has every file that readers look for, except a license,
    which the user must choose.
    """
    run, folder = place.source("d2 z3 llama"), tmp_path / "exported"
    export_model(run, folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": config["rope_theta"]}
    assert config["rope_scaling"] is None and config["tie_word_embeddings"] is False
    assert config["dtype"] == config["torch_dtype"] == "float32"
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    pad = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"][tokenizer["pad_token"]]
    assert config["eos_token_id"] == config["bos_token_id"] == 0 != config["pad_token_id"] == pad
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": pad}
    assert json.loads((folder / "generation_config.json").read_text()) == ids
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert tokenizer["eos_token"] == "<|endoftext|>" and tokenizer["model_max_length"] == 32
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n") and "\n# license: choose one" in card
    for words in ("| tokens | 512 |", "| steps | 2 of 2 |", "| layout | 2 ranks: data 2, ZeRO 3 |"):
        assert words in card
    assert str(place.root) not in card
    gpt2 = place.source("t2 p2 z1")
    export_model(gpt2, tmp_path / "gpt2")
    config = json.loads((tmp_path / "gpt2" / "config.json").read_text())
    assert config["n_ctx"] == config["n_positions"] == 32 and config["tie_word_embeddings"] is True


def test_the_gpu_side_writes_it_as_a_process(place, tmp_path, monkeypatch):
    """An export runs in a separate process; its error has the original message, and it leaves no files."""
    from nbtrain.jobs.gpu_side import stream

    monkeypatch.setattr(exporting, "stream", stream)
    run = place.source("d2 z3 llama")
    with pytest.raises(CheckpointError, match="there is no such checkpoint"):
        export_model(run, tmp_path / "exported", step=77)
    assert list(tmp_path.iterdir()) == []
    exported = export_model(run, tmp_path / "exported")
    assert exported.difference < 1e-5 and "logits differ from the run's by at most" in str(exported)


def _wrong_config(**changes):
    """Return a patch with which PlainModel reads other values from config.json."""
    plain = PlainModel.__init__

    def spoiled(self, folder):
        plain(self, folder)
        for key, value in changes.items():
            place = self.config["rope_parameters"] if key == "rope_theta" else self.config
            place[key] = value

    return "__init__", spoiled


def _swapped(one, other):
    """Return a patch with which PlainModel swaps two tensors."""
    get = PlainModel.get

    def spoiled(self, name):
        return get(self, name.replace(one, other) if one in name else name.replace(other, one))

    return "get", spoiled


WRONG = {
    "epsilon": lambda: _wrong_config(rms_norm_eps=1e-5),
    "angles": lambda: _wrong_config(rope_theta=100.0),
    "gate": lambda: _swapped("mlp.gate_proj", "mlp.up_proj"),
    "packed": lambda: _swapped("self_attn.q_proj", "self_attn.k_proj"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_was_written_wrong_is_not_kept(what, place, tmp_path, monkeypatch):
    """An export with wrong tensors is detected by its logits and removed."""
    run = place.source("d2 z3 llama")
    monkeypatch.setattr(PlainModel, *WRONG[what]())
    with pytest.raises(CheckpointError, match=r"the logits of the written model differ .*they diverge at"):
        export_model(run, tmp_path / "exported")
    assert list(tmp_path.iterdir()) == []


REFUSED = [
    (
        {"model.activation": "squared_relu"},
        "model.activation = squared_relu is not supported by any Hugging Face architecture that",
    ),
    (
        {"model.rotary_percent": 0.5},
        "model.rotary_percent = 0.5 is not supported by any Hugging Face architecture that nbtrain writes",
    ),
    (
        {"model.normalization": "LayerNorm"},
        "model.normalization = LayerNorm is not supported by any Hugging Face architecture",
    ),
]


@pytest.mark.parametrize("changes, said", REFUSED, ids=[next(iter(changes)) for changes, _ in REFUSED])
def test_a_model_that_no_family_has_is_refused(changes, said, place, tmp_path):
    """A model outside every supported family is refused before writing, with the
    field, its value and the fix.
    """
    run = launch.make_run(tmp_path, {**layout("z1 llama")[1], **changes})
    with pytest.raises(ConfigError) as refused:
        export_model(run, tmp_path / "exported")
    assert said in str(refused.value) and "--to consolidated, which supports every model" in str(
        refused.value
    )
    assert not (tmp_path / "exported").exists()


def test_nothing_is_written_over(place, tmp_path):
    run = place.source("d2 z3 llama")
    folder = tmp_path / "exported"
    folder.mkdir()
    (folder / "mine").write_text("x")
    with pytest.raises(CheckpointError, match="already exists, and it is not overwritten"):
        export_model(run, folder)
    assert [path.name for path in folder.iterdir()] == ["mine"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="cannot be written: "):
        export_model(run, tmp_path / "file" / "folder")


def test_an_export_that_names_no_place_goes_into_its_run(workspace):
    """An export without a destination goes to a folder of its run named by step and target."""
    run = RunDir.named("mine")
    assert default_place(run, "hf", 10) == run.export / "step10-hf"
    assert default_place(run, "gguf", 9) == run.export / "step9.gguf"


@pytest.mark.parametrize("code, kind", [(errno.ENOSPC, CheckpointError), (errno.EIO, OSError)])
def test_a_disk_that_gets_full_meanwhile(code, kind, place, tmp_path, monkeypatch):
    """A full disk is reported in one sentence, while an unexpected error keeps its traceback."""

    def fails(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    monkeypatch.setattr(gpu_side, "write_consolidated", fails)
    run = place.source("d2 z3 llama")
    request = {"target": "consolidated", "run_dir": str(run.path), "step": newest_checkpoint_step(run)}
    with pytest.raises(kind) as refused:
        list(gpu_side.answers({**request, "dtype": "fp32", "to": str(tmp_path / "disk" / ".x.tmp")}))
    if kind is CheckpointError:
        said = str(refused.value)
        assert said.startswith(
            "disk: No space left on device, after the export had begun. Free up space, or "
        )


def test_what_a_killed_export_left_is_removed(place, tmp_path):
    """Files of a killed export are removed; a running export holds its folder's lock and is left alone."""
    (tmp_path / ".exported.dead.tmp").mkdir()
    export_model(place.source("d2 z3 llama"), tmp_path / "exported")
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]


def test_another_tokenizer_is_refused(place, tmp_path):
    run = place.source("d2 z3 llama")
    config = load_resolved(run.config_yaml)
    make_tokenizer("other", ["quite another text"])
    changed = config.model_copy(update={"tokenizer": config.tokenizer.model_copy(update={"name": "other"})})
    before = run.config_yaml.read_text()
    files.write_text(run.config_yaml, to_yaml(changed))
    try:
        with pytest.raises(DataError, match="but this run was trained with"):
            export_model(run, tmp_path / "exported")
    finally:
        files.write_text(run.config_yaml, before)
    assert list(tmp_path.iterdir()) == []


def folder_of_transformers(folder, kind, dtype):
    """Write a model and its tokenizer as save_pretrained does, with a chat template and an added token."""
    import transformers

    made.write_model(folder, kind, dtype)
    source = make_tokenizer("test", TEXTS).directory / "tokenizer.json"
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(source), eos_token="<|endoftext|>", pad_token="<|pad|>", model_max_length=40
    )
    tokenizer.add_tokens(["<|tool|>"], special_tokens=True)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("words", ["bf16 z1", "bf16 t2 z1"])
def test_a_round_trip_changes_nothing(words, place, tmp_path, monkeypatch):
    """A model that is imported, saved without a step and exported is unchanged in every tensor and file.

    config.json is written anew with the same meaning, and README.md describes the run.
    """
    monkeypatch.chdir(tmp_path)
    folder = folder_of_transformers(tmp_path / "theirs", "qwen3", torch.bfloat16)
    name = f"trip-{words.replace(' ', '-')}"
    imported = import_model(folder, name, path=tmp_path / "trip.yaml")
    assert (
        imported.config.precision.dtype == "bf16" and imported.config.tokenizer.eod_token == "<|endoftext|>"
    )
    ranks, overrides = layout(words)
    own = {key: value for key, value in overrides.items() if not key.startswith("model.")}
    run = launch.make_run(
        tmp_path,
        {**own, "data.name": "test", "resources.device": "cpu", "model.seq_length": 32, "name": name},
        name,
        str(tmp_path / "trip.yaml"),
    )
    config = load_resolved(run.config_yaml)
    assert record_initial(run, config, read_initial_weights(config)) == []
    exported = export_model(run)
    assert exported.step == 0 and exported.dtype == "bf16" and exported.path == run.export / "step0-hf"
    exported.path.rename(tmp_path / "before")
    # The dataset was made with another tokenizer, which no step reads.
    saved = place.resave(run, ranks, step=0)
    saved.parent.rename(run.model)
    manifest = run.checkpoint_manifest(0)
    kept = read_manifest(tokenizer_dir(name))
    files.write_json(manifest, {**files.read_json(manifest), "tokenizer_sha256": kept["sha256"]})
    export_model(run, tmp_path / "after", step=None)
    for made_folder in ("before", "after"):
        written = {path.name for path in (tmp_path / made_folder).iterdir()}
        given = {path.name for path in folder.iterdir()}
        assert written == given | {"README.md"}
        for file in given - {"config.json"}:
            assert (tmp_path / made_folder / file).read_bytes() == (folder / file).read_bytes(), file
    theirs, ours = (json.loads((one / "config.json").read_text()) for one in (folder, tmp_path / "after"))
    anew = {
        "architectures",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "max_window_layers",
        "rope_theta",
    }
    differing = {key for key in theirs if ours.get(key) != theirs[key]} - anew
    assert differing <= {"initializer_range"}, differing


def test_one_file_by_our_names_of_a_model_that_no_family_has(place, tmp_path, monkeypatch):
    """A model outside every family is exported as one file with nbtrain's names, from
    which other runs can start.
    """
    run = place.source("d2 z3 squared")
    export_model(run, tmp_path / "own.safetensors", "consolidated")
    assert [path.name for path in tmp_path.iterdir()] == ["own.safetensors"]
    model = open_model(tmp_path / "own.safetensors")
    assert model.title == "nbtrain" and model.described.fields["activation"] == "squared_relu"
    read = FolderWeights(model, launch.VOCAB_SIZE)
    weights = load_model_weights(run.path, unpadded=True, masters=True)
    for name, weight in weights.items():
        assert torch.equal(read.read(name).view(weight.shape), weight), name
    monkeypatch.chdir(tmp_path)
    again = import_model("own.safetensors", "again", {"tokenizer.name": "test"})
    assert again.config.model.activation == "squared_relu"
    with pytest.raises(ConfigError, match=r"writes a single file, whose name must end in \.safetensors"):
        export_model(run, tmp_path / "folder", "consolidated")


def test_gguf_of_a_run(place, tmp_path):
    """A GGUF export writes one file and compares its logits with the run's."""
    exported = export_model(place.source("t2 z1 bf16 llama"), tmp_path / "own.gguf", "gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["own.gguf"] and exported.difference < 1e-5
