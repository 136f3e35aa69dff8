"""DeepSpeed's universal format: independent of the source's layout, and loadable by DeepSpeed."""

import json
import sys

import pytest
import torch

from nbtrain.base.errors import CheckpointError
from nbtrain.checkpoint import universal
from nbtrain.checkpoint.weights.model_weights import load_model_weights
from nbtrain.checkpoint.weights.store import CheckpointStore
from nbtrain.config.load import load_resolved
from nbtrain.model.gpt import build_model
from tests.train import launch
from tests.train.layouts import HALF, assert_same, layout

pytestmark = pytest.mark.slow


def written(run, to) -> list[dict]:
    return list(universal.answers({"run_dir": str(run.path), "step": None, "to": str(to)}))


@pytest.mark.parametrize(
    "source, target",
    [
        ("d2 z3", "d2 z1"),
        ("t2 z1", "z2"),
        ("z1 bf16", "d2 z2 bf16"),
        ("t2 z1 llama", "z2 llama"),
        ("t2 z1 muon", "d2 z2 muon"),
    ],
)
def test_deepspeed_reads_what_is_written_of_any_layout(place, source, target):
    """DeepSpeed loads masters, moments and steps bit for bit from the universal form of any layout.

    Vocabulary rows without a token are filled with 0.
    """
    saved = place.source(source)
    to = place.root / f"{source} {target}" / "universal" / "global_step2"
    answers = written(saved, to)
    assert [answer["kind"] for answer in answers[-2:]] == ["progress", "end"]
    assert answers[-2]["done"] == answers[-2]["total"]
    assert (to.parent / "latest_universal").read_text() == to.name
    ranks, overrides = layout(target)
    run = launch.make_run(place.root, overrides, f"read-{source}-{target}".replace(" ", "-"))
    assert_same(saved.checkpoint(HALF), place.resave(run, ranks, to), launch.VOCAB_SIZE)


def convert(*arguments: str) -> None:
    """Run DeepSpeed's converter as its command line does, in a process that has DeepSpeed loaded."""
    from deepspeed.checkpoint import ds_to_universal

    sys.argv = ["ds_to_universal", *arguments]
    ds_to_universal.main(ds_to_universal.parse_arguments())


@pytest.mark.parametrize("source", ["t2 z1 llama", "p2 t2 z1"])
def test_deepspeeds_own_converter_writes_the_same(place, source):
    """ds_to_universal accepts a checkpoint and writes the same masters and moments, bit for bit."""
    saved, to, theirs = place.source(source), place.root / f"{source} own", place.root / f"{source} theirs"
    workers = ["--num_extract_workers", "1", "--num_merge_workers", "1"]
    folders = ["--input_folder", str(saved.checkpoint(HALF)), "--output_folder", str(theirs)]
    ended = place.server.run(
        1,
        "tests.checkpoint.test_universal:convert",
        [*folders, *workers],
        log=place.root / f"{source} {{rank}}.log",
        sys_path=[launch.REPOSITORY],
        timeout_seconds=launch.TIMEOUT_SECONDS,
    )
    assert ended.succeeded, ended.last_output(40)
    written(saved, to)
    tensors = [path for path in theirs.glob("zero/*/*.pt") if path.stem in ("fp32", "exp_avg", "exp_avg_sq")]
    assert len(tensors) == 3 * len(CheckpointStore(saved.checkpoint(HALF)).parameters)
    for path in tensors:
        own = torch.load(to / path.relative_to(theirs), weights_only=True)["param"]
        assert torch.equal(torch.load(path, weights_only=True)["param"], own), path


def test_its_files_hold_whole_tensors_without_padding(place):
    """The files contain whole tensors without padding; names that DeepSpeed uses in a
    pipeline are links to them.
    """
    saved = place.source("t2 z1")
    to = place.root / "files" / "global_step2"
    end = written(saved, to)[-1]
    assert end["parameters"] == 28 and end["step"] == HALF
    store = CheckpointStore(saved.checkpoint(HALF))
    for name in store.parameters:
        for state in store.parameters[name].states:
            entry = torch.load(to / "zero" / name / f"{state}.pt", weights_only=True)
            rows = launch.VOCAB_SIZE if name == "word_embeddings.weight" else None
            assert torch.equal(entry["param"], store.full(name, state)[:rows]), (name, state)
            # Only the requested files are written.
            assert (to / "zero" / name / f"{state}.pt").stat().st_size < entry["param"].nbytes + 4096
        assert torch.load(to / "zero" / name / "step.pt", weights_only=True) == HALF
    assert (to / "zero" / "tied_modules.word_embeddings.weight" / "fp32.pt").exists()
    assert (to / "zero" / "2.mlp.dense_h_to_4h.bias").resolve().name == "layers.0.mlp.dense_h_to_4h.bias"


def test_a_vocabulary_that_is_not_tied_has_two_matrices_without_padding(place):
    """An untied vocabulary on a pipeline has two matrices without padding, from
    which text can be generated.
    """
    saved = place.source("p2 t2 z1 llama")
    to = place.root / "untied" / "global_step2"
    written(saved, to)
    folder = to / "zero"
    for piped, name in (("0.weight", "word_embeddings.weight"), ("5.weight", "output_layer.weight")):
        assert (folder / piped).resolve() == folder / name
        whole = torch.load(folder / name / "fp32.pt", weights_only=True)["param"]
        assert whole.shape == (launch.VOCAB_SIZE, 32)
    assert (folder / "2.mlp.dense_h_to_4h.gate_weight").resolve().name.startswith("layers.0.mlp.")
    assert not (folder / "tied_modules.word_embeddings.weight").exists()
    config = load_resolved(saved.config_yaml)
    model = build_model(config)
    model.load_state_dict(load_model_weights(saved.path, padded_vocab_size=config.padded_vocab_size))
    with torch.no_grad():
        logits = model(torch.tensor([[1, 2, 3]]))[..., : launch.VOCAB_SIZE]
    assert logits.isfinite().all() and float(logits.std()) > 0


def test_a_folder_that_is_there_and_a_disk_that_is_full_are_refused(place, monkeypatch):
    saved = place.source("t2 z1")
    to = place.root / "there"
    to.mkdir()
    with pytest.raises(CheckpointError, match="there already exists"):
        written(saved, to)
    monkeypatch.setattr(universal.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(CheckpointError, match=r"needs 16\.5 MiB, but only 1000 B is free\. .*--to"):
        written(saved, place.root / "new")
    assert not (place.root / "new").exists()


def test_its_errors_are_answered_as_json(place, capsys, monkeypatch):
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"run_dir": str(place.root / "none")})))
    assert universal.main() == 4
    answer = json.loads(capsys.readouterr().out)
    assert answer["kind"] == "error" and answer["error"] == "CheckpointError"
