"""The process that loads a model once and answers requests as lines of JSON, tested in this process and as a
subprocess.
"""

import json
import queue
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError, ConfigError, DataError
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.checkpoint.pretrained import __main__ as gpu_side
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.exchange import export_model as exporting
from nbtrain.inference import generate
from nbtrain.inference.fit import Needed, cuts_of, fit
from nbtrain.inference.loaded import load
from nbtrain.inference.packed import pack
from tests.inference import made, saved
from tests.parallel.small import gpt_config

GREEDY = made.greedy(max_new_tokens=12).to_dict()


@pytest.fixture
def run(workspace):
    return saved.save_run()


def asked(run, **changes) -> dict:
    return {"run_dir": str(run.path), "step": None, **changes}


def answers_to(service, *commands) -> list[dict]:
    taken: queue.SimpleQueue = queue.SimpleQueue()
    for command in commands:
        taken.put({"kind": "generate", **GREEDY, **command})
    found = []
    talk = generate.answers(service.engine, taken)
    for message in talk:
        found += message["events"]
        if sum("end" in event or "error" in event for event in found) == len(commands):
            break
    taken.put(None)
    assert list(talk) == []
    return found


@pytest.mark.slow
def test_a_prompt_is_text_ids_or_pieces_that_are_encoded_one_by_one(run):
    """A prompt is a text, token ids, or pieces that are encoded separately. Only the invalid request is
    rejected; the others are answered.
    """
    service = generate.Service(asked(run, max_batch=3))
    ready = {"kind": "ready", "step": saved.STEP, "dtype": "fp32", "device": "CPU", "positions": 96}
    ready |= {"tensor_parallel_size": 1, "max_batch": 3, "vocab_size": 320, "eod": "<|endoftext|>"}
    assert service.ready == ready
    tokenizer = Tokenizer.load(tokenizer_dir("small"))
    # A merge crosses the boundary.
    text = max((tokenizer.decode([token]) for token in range(260, 320)), key=len)
    halves = [text[:1], text[1:]]
    ids = [int(token) for token in tokenizer.encode(text)]
    pieces = [int(token) for half in halves for token in tokenizer.encode(half)]
    assert ids != pieces
    found = answers_to(
        service,
        {"id": "text", "prompt": text},
        {"id": "ids", "prompt": ids},
        {"id": "pieces", "prompt": halves},
        {"id": "wrong", "prompt": [1000]},
        {"id": "long", "prompt": [1] * 90},
        {"id": "empty", "prompt": ""},
    )
    model = load(run).model
    tokens = {
        key: [token for event in found if event["id"] == key for token in event.get("tokens", [])]
        for key in ("text", "ids", "pieces", "empty")
    }
    assert tokens["text"] == tokens["ids"] == made.without_cache(model, ids, 12)
    assert tokens["pieces"] == made.without_cache(model, pieces, 12)
    # An empty prompt starts a document.
    assert tokens["empty"] == made.without_cache(model, [tokenizer.eod_id], 12)
    refused = {event["id"]: event["message"] for event in found if "error" in event}
    assert refused["wrong"] == "token id 1000 in the prompt must be from 0 to 319."
    assert refused["long"].startswith("the prompt has 90 tokens and the request is for 12 new tokens")


@pytest.mark.slow
def test_a_text_begins_as_with_transformers(workspace, monkeypatch):
    """The tokenizer's <s> is added before a text, as in transformers. Token ids and separate pieces, as in a
    chat, get no prefix.
    """
    transformers = pytest.importorskip("transformers")
    mine = made.beginning_tokenizer_in(tokenizer_dir("small"), workspace / "theirs")
    run = saved.save_run("begins", {"model.architecture": "llama"})
    monkeypatch.setattr(exporting, "stream", lambda module, request: gpu_side.answers(request))
    exporting.export_model(run, workspace / "exported", dtype="fp32")
    model = transformers.AutoModelForCausalLM.from_pretrained(workspace / "exported").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(workspace / "exported")

    def theirs(text: str, **how) -> str:
        asked = tokenizer(text, return_tensors="pt", **how)
        made_ids = model.generate(**asked, max_new_tokens=12, do_sample=False)[0]
        new_text = tokenizer.decode(made_ids[asked.input_ids.shape[1] :], skip_special_tokens=True)
        # An incomplete character is not returned here.
        return new_text.rstrip("\ufffd")

    text, plain = "One day", mine.encode("One day").tolist()
    begun = theirs(text)
    without = theirs(text, add_special_tokens=False)
    assert begun != without
    service = generate.Service(asked(run, max_batch=3))
    found = answers_to(
        service,
        *(
            {"id": key, "prompt": prompt, "ignore_eod": False, "echo": key == "echo", **more}
            for key, prompt, more in (
                ("text", text, {}),
                ("letters", "<s>One day", {}),
                ("empty", "", {}),
                ("echo", text, {"logprobs": 0}),
                ("pieces", [text], {}),
                ("ids", plain, {}),
            )
        ),
    )

    def ours(key: str) -> str:
        pieces = [event.get("text", "") for event in found if event["id"] == key]
        return "".join(pieces).rstrip("\ufffd")

    assert len(begun) > 3
    assert ours("text") == ours("letters") == ours("echo") == begun
    assert ours("empty") == theirs("")
    assert ours("pieces") == ours("ids") == without
    (shown,) = (event["prompt"] for event in found if "prompt" in event)
    assert shown.pop("offsets")[:2] == [0, 0]
    assert shown == {"text": text, "tokens": [319, *plain], "first": "<s>"}
    ends = {event["id"]: event["prompt_tokens"] for event in found if "end" in event}
    assert ends["text"] == ends["ids"] + 1 == len(plain) + 1


def test_what_stays_before_a_window(workspace):
    """The tokenizer's prefix stays in front when the window moves, whether the tokenizer added it or it was
    in the client's prompt.
    """
    tokenizer = made.beginning_tokenizer_in(tokenizer_dir("small"), workspace / "theirs")
    for prompt, kept, before_text in (
        ("One day", 1, 1),
        ("<s>One day", 1, 1),
        ([319, "One day"], 1, 0),
        ([319, 5, 6], 1, 0),
        (["One day"], 0, 0),
        ([5, 319], 0, 0),
    ):
        request = generate.request_of({"id": "a", "prompt": prompt, "max_new_tokens": 1}, tokenizer, 99)
        assert (request.kept, request.before_text) == (kept, before_text), prompt


@pytest.mark.slow
def test_a_text_ends_as_with_transformers(workspace, monkeypatch):
    """A text ends at any eos_token_id of the imported model folder, and the exported model lists the same
    ids.
    """
    transformers = pytest.importorskip("transformers")
    made.beginning_tokenizer_in(tokenizer_dir("small"), workspace / "theirs")
    run = saved.save_run("ends", {"model.architecture": "llama"})
    prompt, whole = [5, 17, 300], made.without_cache(load(run).model, [5, 17, 300], 12)
    ends = [whole[7], whole[4]]
    assert whole.index(ends[1]) == 4
    origin = {"family": "Llama", "sha256": "0" * 64, "config": {}}
    origin["generation_config"] = {"eos_token_id": ends, "pad_token_id": 0}
    origin["tokenizer_sha256"] = files.sha256_of(workspace / "theirs" / "tokenizer.json")
    files.write_json(run.init_from_json, {"schema_version": 1, **origin})
    monkeypatch.setattr(exporting, "stream", lambda module, request: gpu_side.answers(request))
    exporting.export_model(run, workspace / "exported", dtype="fp32")
    # The run's own end-of-document token, 0, is not in the folder; an end token is not used for padding.
    written = files.read_json(workspace / "exported" / "generation_config.json")
    assert written["eos_token_id"] == [*ends, 0] and written["pad_token_id"] not in (*ends, 0, None)
    model = transformers.AutoModelForCausalLM.from_pretrained(workspace / "exported").eval()
    theirs = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0].tolist()
    assert theirs[len(prompt) :] == whole[:5]
    service = generate.Service(asked(run, max_batch=3))
    same = {"prompt": prompt, "max_new_tokens": 12}
    found = answers_to(
        service, {"id": "ends", **same, "ignore_eod": False}, {"id": "continues", **same, "ignore_eod": True}
    )
    made_of = {
        key: [token for event in found if event["id"] == key for token in event.get("tokens", [])]
        for key in ("ends", "continues")
    }
    assert made_of == {"ends": whole[:4], "continues": whole}
    assert "stop" in {event.get("finish_reason") for event in found if event["id"] == "ends"}


def test_what_is_taken_or_refused_is_said_before_the_step():
    """A request is accepted or rejected before the next step runs. A step may take a second, and the header
    of a streamed response would have to wait for it.
    """
    steps: list[int] = []

    def step() -> list[dict]:
        steps.append(1)
        return [{"id": "a", "end": True}]

    engine = SimpleNamespace(running=[], waiting=[], is_idle=False, score=lambda request: None, step=step)
    commands: queue.SimpleQueue = queue.SimpleQueue()
    commands.put({"kind": "score", "id": "a", "context": [1], "continuations": [[2]]})
    talk = generate.answers(engine, commands)
    assert next(talk)["events"] == [{"id": "a", "accepted": True}] and not steps
    assert next(talk)["events"] == [{"id": "a", "end": True}] and steps == [1]


def test_a_torn_checkpoint_is_passed_over_with_its_reason(run):
    saved.damage(run, 20)
    service = generate.Service(asked(run))
    (note,) = service.notes
    assert note.startswith("checkpoint global_step20 is not used: mp_rank_00_model_states.pt does not have")
    with pytest.raises(CheckpointError, match="global_step20"):
        generate.Service(asked(run, step=20))


def test_another_tokenizer_is_refused(run):
    """A tokenizer that differs from the one used in training is rejected, because its ids would stand for
    other text.
    """
    path = run.checkpoint_manifest(saved.STEP)
    files.write_json(path, {**files.read_json(path), "tokenizer_sha256": "a" * 64})
    with pytest.raises(DataError, match=r"but this run was trained with aaaaaaaaaaaa\.\.\., so ids"):
        load(run)


def test_weights_in_bf16(run):
    """With bf16 weights, the logits are close to those in fp32 but not equal to them."""
    wide, narrow = load(run).model, load(run, dtype="bf16").model
    tokens = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        expected, found = wide(tokens), narrow(tokens)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.1 * float(expected.std()))
    events = answers_to(generate.Service(asked(run, dtype="bf16")), {"id": "a", "prompt": "The"})
    assert events[-1]["new_tokens"] == 12


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_packed_weights_give_the_same_logits(activation):
    """Packed weights give the same logits for one row, a few rows and many rows."""
    packed, plain = made.model(activation=activation), made.model(activation=activation)
    assert pack(packed), "weights were not packed"
    for shape in ((1, 1), (1, 5), (3, 40)):
        tokens = torch.randint(320, shape, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            torch.testing.assert_close(packed(tokens), plain(tokens), rtol=1e-4, atol=1e-4)


def test_how_many_gpus_and_texts_at_once():
    """A model uses the fewest GPUs that can hold its weights and one text, and then as many texts at a time
    as fit.
    """
    gigabyte = 1 << 30
    needs = Needed(weights=30 * gigabyte, slot=gigabyte, groups=8)
    assert fit(needs, [80 * gigabyte] * 4, [1, 2, 4], most_slots=64) == (1, 42)
    assert fit(needs, [24 * gigabyte] * 4, [1, 2, 4], most_slots=64) == (2, 13)
    assert fit(needs, [24 * gigabyte] * 4, [1, 4], slots=20) == (4, 20)
    with pytest.raises(ConfigError) as error:
        fit(needs, [24 * gigabyte] * 2, [1, 2], slots=64)
    assert str(error.value) == (
        "the model needs 30.0 GiB of memory, plus 1.0 GiB for each of 64 texts, but the free memory of the "
        "devices is only 24.0 GiB and 24.0 GiB. "
        "Request fewer texts at once, stop other programs that use the memory, or use a machine with more "
        "memory."
    )
    # Ranks that share a key and value head have a copy of it each.
    for groups, texts in ((4, 56), (2, 28), (1, 14)):
        needs = Needed(weights=30 * gigabyte, slot=gigabyte, groups=groups)
        assert fit(needs, [24 * gigabyte] * 4, [4], most_slots=64) == (4, texts)
    assert cuts_of(gpt_config(num_query_groups=2, ffn_hidden_size=24), 8) == [1, 2, 4]
    # (4 + 2) heads of 6 are 36 rows, which 4 divides, but not (4 + 2) heads of 5.
    multi_query = {"num_query_groups": 1, "ffn_hidden_size": 24}
    assert cuts_of(gpt_config(**multi_query, kv_channels=6), 8) == [1, 2, 4]
    assert cuts_of(gpt_config(**multi_query, kv_channels=5), 8) == [1, 2]
    assert cuts_of(gpt_config(num_attention_heads=6, num_query_groups=3, ffn_hidden_size=24), 8) == [1, 3, 6]


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(generate, "free_memory", lambda: [80 << 30] * 4)
    with pytest.raises(ConfigError) as error:
        generate._ranks_and_slots(None, None, "bf16", 96, {"tensor_parallel_size": 8})
    assert str(error.value) == "tensor_parallel_size = 8: this machine has only 4 GPUs."


def test_a_model_that_cannot_be_cut_is_refused(run):
    from nbtrain.parallel.groups import Group

    with pytest.raises(ConfigError, match=r"tensor_parallel_size = 3: .* cannot be sharded across 3"):
        load(run, group=Group((0, 1, 2)))


@pytest.mark.slow
def test_the_process_and_its_ranks(run):
    """Two ranks return the same log-probabilities as one, to 1e-5, and both end when the first rank's stdin
    is closed.

    tests/serving/test_openai.py covers a process without other ranks.
    """
    ranks = 2
    process = subprocess.Popen(
        [sys.executable, "-m", "nbtrain.inference"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    prompt = [9, 200, 31, 4]
    request = {"kind": "generate", "id": "a", "prompt": prompt, **GREEDY, "logprobs": 5, "echo": True}
    more = {**request, "id": "b", "logprobs": None, "echo": False, "num_beams": 3}
    known = {"kind": "score", "id": "c", "context": prompt, "continuations": [[7, 8, 9], [11]]}
    lines = [asked(run, tensor_parallel_size=ranks, threads=1), request, more, known]
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
    process.stdin.flush()
    ready = json.loads(process.stdout.readline())
    assert (ready["kind"], ready["tensor_parallel_size"]) == ("ready", ranks)
    events: list[dict] = []
    while sum("end" in event for event in events) < 3:
        events += json.loads(process.stdout.readline())["events"]
    with process:
        process.stdin.close()
        assert process.wait(120) == 0
    scored = [event for event in events if event["id"] == "c" and "index" in event]
    events = [event for event in events if event["id"] != "c"]
    entries = [entry for event in events for entry in event.get("prompt_logprobs", [])]
    entries += [entry for event in events for entry in event.get("logprobs", [])]
    model = load(run).model
    tokens = [*prompt, *made.without_cache(model, prompt, 12)]
    with torch.inference_mode():
        expected = model(torch.tensor([tokens]))[0].log_softmax(-1)
    assert [entry["id"] for entry in entries] == tokens[1:]
    for place, entry in enumerate(entries):
        for one in [entry, *entry["top"]]:
            assert one["logprob"] == pytest.approx(float(expected[place, one["id"]]), abs=1e-5)
    assert [event["id"] for event in events if "score" in event] == ["b"]
    for event, continuation in zip(scored, known["continuations"], strict=True):
        with torch.inference_mode():
            whole = model(torch.tensor([[*prompt, *continuation]]))[0].log_softmax(-1)
        wanted = [float(whole[len(prompt) - 1 + place, token]) for place, token in enumerate(continuation)]
        assert event["logprobs"] == pytest.approx(wanted, abs=1e-5) and event["greedy"] is False
