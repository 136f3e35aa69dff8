"""GGUF files: transformers and our own independent reader give the same logits."""

import json
import shutil

import pytest
import tokenizers
import torch
from tokenizers.processors import TemplateProcessing

from nbtrain.base.errors import CheckpointError, ConfigError
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.checkpoint.pretrained import __main__ as gpu_side
from nbtrain.checkpoint.pretrained import gguf_file
from nbtrain.checkpoint.pretrained.compare import compare
from nbtrain.checkpoint.pretrained.full_parameters import FullParameters
from nbtrain.checkpoint.pretrained.gguf_file import GGUFFile, name_of_words
from nbtrain.checkpoint.pretrained.plain_gguf import PlainGGUF
from nbtrain.checkpoint.weights.folder_weights import FolderWeights
from nbtrain.config.load import load
from nbtrain.corpus.tokenizer import training
from nbtrain.corpus.tokenizer.folder import adopt, save
from nbtrain.exchange import export_model as exporting
from nbtrain.pretrained.model import open_model
from tests.inference import saved
from tests.inference.made import beginning_tokenizer_in, tokenizer_in
from tests.pretrained import made
from tests.train import launch

pytestmark = pytest.mark.slow
TEXTS = ["the cat sat on the mat, it's the 3rd cat of 12345 cats\n\n  and   more " * 3]


def written(folder, tmp_path, dtype=torch.float32, **changes):
    """Write a GGUF file from a model folder; return the file, the model's weights and its run."""
    model = open_model(folder)
    source = tmp_path / "tiny.yaml"
    source.write_text(launch.TINY)
    fields = {f"model.{key}": value for key, value in model.described.fields.items()}
    config = load(str(source), {**fields, "tokenizer.vocab_size": model.described.vocab_size, **changes})
    save(training.train(TEXTS, 300), tmp_path / "tokenizer", None)
    shutil.copy(tmp_path / "tokenizer" / "tokenizer.json", folder / "tokenizer.json")
    weights = FullParameters(FolderWeights(model, model.described.vocab_size), dtype)
    path = tmp_path / "gguf" / "model.gguf"
    path.parent.mkdir(exist_ok=True)
    for done, total in GGUFFile(weights, config, folder).write(path):
        assert done <= total
    return path, weights, config


# Models that transformers can read; it does not read angles, Qwen3's head size or GPT-2's positions. The
# package gguf reads one token after another, four times: 50,257 would take ten seconds.
READ_BY_TRANSFORMERS = {
    "gpt2": {"n_positions": 1024},
    "llama": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "llama-tied": {},
    "llama-odd": {"vocab_size": 515},
    "mistral-full": {},
    "qwen2": {},
    "qwen3": {"head_dim": 128, "num_hidden_layers": 2},
}


@pytest.mark.parametrize("kind", READ_BY_TRANSFORMERS)
def test_transformers_reads_it_back(kind, tmp_path):
    """transformers reads the file and gives the same logits within 1e-5 and the same token ids."""
    transformers = pytest.importorskip("transformers")
    theirs = made.make_model(kind, **READ_BY_TRANSFORMERS[kind])
    theirs.save_pretrained(tmp_path / "m")
    path, weights, config = written(tmp_path / "m", tmp_path)
    assert list(compare(PlainGGUF(path), weights, config))[-1] < 1e-5
    read = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name).eval()
    tokens = torch.randint(300, (2, 36), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(read(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ours = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "m" / "tokenizer.json"))
    assert tokenizer(TEXTS[0]).input_ids == ours(TEXTS[0]).input_ids


OTHERS = ["gpt2-untied", "llama-biases", "llama-linear", "llama-llama3", "llama-yarn", "qwen3", "smollm3"]


@pytest.mark.parametrize("kind", OTHERS)
def test_the_file_is_the_model_as_llama_cpp_reads_it(kind, tmp_path):
    """Models that transformers cannot read from GGUF have the same logits in our
    reader of llama.cpp's keys.
    """
    pytest.importorskip("transformers")
    made.write_model(tmp_path / "m", kind)
    path, weights, config = written(tmp_path / "m", tmp_path)
    assert list(compare(PlainGGUF(path), weights, config))[-1] < 1e-5
    for dtype in (torch.bfloat16, torch.float16):
        path.unlink()
        path, weights, config = written(tmp_path / "m", tmp_path, dtype)
        assert list(compare(PlainGGUF(path), weights, config))[-1] < 1e-5
        kinds = {tensor.tensor_type.name for tensor in PlainGGUF(path).raw.values()}
        assert kinds == {"F32", {torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]}


def test_rows_in_another_order_are_noticed(tmp_path, monkeypatch):
    """Rows in another order than llama.cpp's rotary pairs have the same shape, and
    are detected by the logits.
    """
    pytest.importorskip("transformers")
    made.write_model(tmp_path / "m", "llama")
    monkeypatch.setattr(gguf_file, "neighbours", lambda rows, heads: rows)
    path, weights, config = written(tmp_path / "m", tmp_path)
    with pytest.raises(CheckpointError, match="they diverge at layer 0"):
        list(compare(PlainGGUF(path), weights, config))


def test_what_llama_cpp_has_not_is_refused(tmp_path, monkeypatch):
    """A model that llama.cpp does not support is refused before anything is written, with llama.cpp's name
    for the cause.
    """
    pytest.importorskip("transformers")
    for kind, said in (
        ("mistral", "model.window_size = 5 is smaller than max_position_embeddings"),
        (
            "smollm3-pattern",
            "llama.cpp omits rotary positions in every fourth layer of SmolLM3, and this run",
        ),
    ):
        made.write_model(tmp_path / kind, kind)
        with pytest.raises(ConfigError, match=said):
            written(tmp_path / kind, tmp_path)
    made.make_model("smollm3", attention_bias=True, mlp_bias=True).save_pretrained(tmp_path / "biases")
    with pytest.raises(ConfigError, match=r"add_bias_linear = true: llama\.cpp's SmolLM3 has no biases"):
        written(tmp_path / "biases", tmp_path)
    made.write_model(tmp_path / "m", "llama")
    document = json.loads((tmp_path / "tokenizer" / "tokenizer.json").read_text())
    for change in (
        {"pre_tokenizer": {"type": "Metaspace"}},
        {"model": {**document["model"], "byte_fallback": True}},
        {"pre_tokenizer": {**document["pre_tokenizer"], "add_prefix_space": True}},
    ):
        (tmp_path / "m" / "tokenizer.json").write_text(json.dumps({**document, **change}))
        with pytest.raises(ConfigError, match=r"convert the folder with llama\.cpp's convert_hf_to_gguf\.py"):
            gguf_file.read_tokenizer(tmp_path / "m", 503)
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(ConfigError, match="gguf writes this format and is not installed: pip install"):
        written(tmp_path / "m", tmp_path)


@pytest.mark.parametrize(
    ("frame", "named", "expected"),
    [
        ("<s> $A", "<s>", (True, 319)),
        ("<s> $A", None, (True, 319)),
        ("<s> $A", "<|endoftext|>", (False, 0)),
        ("<s> <s> $A", "<s>", (False, 319)),
        ("$A <s>", "<s>", (False, 319)),
    ],
)
def test_the_bos_is_put_before_a_text_if_the_tokenizer_puts_it(
    frame, named, expected, workspace, monkeypatch
):
    """The file tells llama.cpp to prepend BOS only if the tokenizer adds exactly one
    such token before a text.
    """
    folder = workspace / "theirs"
    beginning_tokenizer_in(workspace / "mine", folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single=frame, special_tokens=[("<s>", 319)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": named}))
    adopt(folder, "<|endoftext|>", tokenizer_dir("small"))
    assert keys_of_export(workspace, monkeypatch) == expected


def test_no_bos_is_put_before_a_text_by_a_tokenizer_trained_here(workspace, monkeypatch):
    tokenizer_in(tokenizer_dir("small"))
    assert keys_of_export(workspace, monkeypatch) == (False, 0)


def keys_of_export(workspace, monkeypatch):
    """Return (add_bos_token, bos_token_id) of a Llama with the tokenizer `small`."""
    monkeypatch.setattr(exporting, "stream", lambda module, request: gpu_side.answers(request))
    run = saved.save_run("llama", {"model.architecture": "llama"})
    exporting.export_model(run, workspace / "own.gguf", "gguf")
    fields = PlainGGUF(workspace / "own.gguf").fields
    return tuple(fields[f"tokenizer.ggml.{key}"] for key in ("add_bos_token", "bos_token_id"))


LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def test_rules_for_words_have_llama_cpp_s_names():
    """A pre-tokenizer gets llama.cpp's name only if its patterns match exactly."""

    def split(pattern):
        steps = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]
        return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}

    assert name_of_words(split(LLAMA_3)) == "llama-bpe"
    assert name_of_words(split(LLAMA_3.replace("{1,3}", ""))) == "qwen2"
    assert name_of_words(split(LLAMA_3.replace("{1,3}", "{1,2}"))) is None
    digits = [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    ]
    assert name_of_words({"pre_tokenizer": {"type": "Sequence", "pretokenizers": digits}}) == "smollm"
    assert name_of_words({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}) == "gpt-2"
    assert name_of_words({"pre_tokenizer": {"type": "Whitespace"}}) is None
    assert name_of_words({}) is None


def test_a_tokenizer_that_normalizes_says_so(workspace, monkeypatch):
    """llama.cpp skips normalizers, so one that changes few texts gets a note, and others are refused."""
    folder = workspace / "theirs"
    beginning_tokenizer_in(workspace / "mine", folder)
    file = folder / "tokenizer.json"
    document = json.loads(file.read_text())

    def normalizing(*kinds):
        steps = [{"type": kind} for kind in kinds]
        normalizer = {"type": "Sequence", "normalizers": steps}
        file.write_text(json.dumps({**document, "normalizer": normalizer if steps[1:] else steps[0]}))

    for kinds in (["NFC"], ["NFC", "NFKC"]):
        normalizing(*kinds)
        assert gguf_file.read_tokenizer(folder, 320)["normalizers"] == kinds
    for kinds in (["NFC", "Lowercase"], ["Prepend"]):
        normalizing(*kinds)
        with pytest.raises(
            ConfigError, match=rf"normalizes a text before splitting it into words \({kinds[-1]}\)"
        ):
            gguf_file.read_tokenizer(folder, 320)
    normalizing("NFC")
    adopt(folder, "<|endoftext|>", tokenizer_dir("small"))
    monkeypatch.setattr(exporting, "stream", lambda module, request: gpu_side.answers(request))
    run = saved.save_run("llama", {"model.architecture": "llama"})
    [note] = exporting.export_model(run, workspace / "own.gguf", "gguf").notes
    assert note.startswith("The tokenizer normalizes texts (NFC), but llama.cpp does not")


def test_tokenizers_of_other_forms(tmp_path):
    """Older tokenizer files, without a model type or with lists of templates, can be read."""
    tokenizer_in(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    expected = gguf_file.read_tokenizer(tmp_path, 320)
    del document["model"]["type"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert gguf_file.read_tokenizer(tmp_path, 320) == expected
    named = [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert gguf_file.read_tokenizer(tmp_path, 320)["chat_template"] == "d"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xe9")
    with pytest.raises(
        ConfigError, match=r"--to gguf: the tokenizer's chat template cannot be read: 'utf-8'"
    ):
        gguf_file.read_tokenizer(tmp_path, 320)
