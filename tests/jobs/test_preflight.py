"""What stops a run on this machine, told with numbers, kind and fix; machines are described, not needed."""

import os
import re
import shlex
import shutil
from dataclasses import replace

import pytest

from nbtrain.config.load import load
from nbtrain.jobs import preflight as checks
from nbtrain.jobs.environment import Gpu, Machine
from nbtrain.jobs.preflight import preflight

GIB = 1 << 30
MACHINE = Machine(
    host="box",
    cores=2,
    cpu="CPU X",
    cpu_flags=frozenset({"avx2", "avx512_bf16"}),
    memory_bytes=16 * GIB,
    memory_available_bytes=12 * GIB,
    gpus=(),
)


def found(config, machine=MACHINE):
    return [(problem.kind, str(problem)) for problem in preflight(config, machine)]


def test_a_run_that_fits_has_no_problem(tiny):
    """Prepared data, a CPU, room: nothing to say."""
    assert preflight(tiny(), MACHINE) == []


def test_missing_gpus_are_counted(tiny):
    """A machine that does not suffice is a resource, with both numbers."""
    config = tiny(
        **{"resources.device": "gpu", "resources.gpus_per_node": 4, "parallel.data_parallel_size": 4}
    )
    [(kind, told)] = found(config)
    assert kind == "resource"
    assert told == (
        "override resources.gpus_per_node=4: the run needs 4 GPUs; box has 0. "
        "Use a machine that has them, a smaller layout, or resources.device=cpu for a trial."
    )
    assert found(config, replace(MACHINE, gpus=(Gpu("A100", 40 * GIB),) * 4)) == []


def test_hidden_gpus_are_explained(tiny, monkeypatch):
    """CUDA_VISIBLE_DEVICES is named where it may be the reason."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    [(_, told)] = found(tiny(**{"resources.device": "gpu"}))
    assert "box has 0 (CUDA_VISIBLE_DEVICES=)." in told


def test_what_the_release_cannot_do_is_named(repository):
    """Pipeline and tensor parallelism load and plan; launching says what is missing."""
    config = load(repository / "examples/megatron-gpt/training/gpt-13b-4xdp-4xpp-4xtp.yaml")
    told = [problem for problem in preflight(config, MACHINE)]
    unsupported = [str(problem) for problem in told if problem.kind == "unsupported"]
    assert len(unsupported) == 2
    assert "tensor parallelism is missing." in unsupported[0]
    assert "pipeline parallelism is missing." in unsupported[1]
    assert "resource" in {problem.kind for problem in told}


def test_a_ramp_is_trained(tiny):
    """Nothing is missing for it."""
    ramp = {"start_batch_size": 2, "batch_size_increment": 2, "ramp_samples": 30}
    assert found(tiny(**{"batch.rampup": ramp})) == []


def test_fp16_needs_the_instructions(tiny):
    """fp16 products on a CPU without them are refused, with the CPU's name."""
    [(kind, told)] = found(tiny(**{"precision.dtype": "fp16"}))
    assert kind == "resource"
    assert (
        "precision.dtype = fp16 on a CPU needs one of avx512_fp16, amx_fp16, fphp, asimdhp; CPU X has none"
        in told
    )
    assert found(tiny(**{"precision.dtype": "bf16"})) == []


def test_memory_is_estimated(tiny):
    """A model that cannot fit is told by parts before it is started."""
    config = tiny(**{"model.hidden_size": 4096, "model.num_layers": 24, "model.num_attention_heads": 32})
    told = next(message for kind, message in found(config) if "memory" in message)
    assert told.startswith("1 rank(s) on box will need about ")
    assert "there is 16.0 GiB (per rank: weights" in told


def test_a_disk_too_small_for_the_checkpoints(tiny, monkeypatch):
    """Free bytes, number and size of checkpoints stand in the message."""
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: usage._replace(free=3_000_000))
    [(kind, told)] = found(tiny())
    assert kind == "resource"
    assert told == (
        "output: the disk has 3.00 MB free, but 3 checkpoints of 0.61 MB (keep_last and the one being written) and "
        "logs need 0.07 GB. Free space, lower checkpoint.keep_last, or set NBTRAIN_OUTPUT to a larger disk."
    )


def test_an_output_that_cannot_be_written(tiny, monkeypatch):
    """No right to write: told before anything starts. (access() is asked, because root may write anywhere.)"""
    monkeypatch.setattr(checks.os, "access", lambda path, mode: False)
    [(kind, told)] = found(tiny())
    assert kind == "error"
    assert told.startswith("output/tiny cannot be written: ")


def test_an_output_root_that_is_a_file(tiny, workspace):
    """NBTRAIN_OUTPUT names a file."""
    (workspace / "output").write_text("a file")
    [(kind, told)] = found(tiny())
    assert (kind, told) == ("error", "output is a file, not a folder. Set NBTRAIN_OUTPUT to a folder.")


@pytest.fixture
def own_data(tiny_data, tmp_path, monkeypatch):
    """A copy of the data home that may be damaged; ask for it after `tiny`."""
    folder = tmp_path / "data"
    shutil.copytree(tiny_data, folder)
    monkeypatch.setenv("NBTRAIN_DATA", str(folder))
    return folder


def test_compile_without_a_compiler(tiny, monkeypatch):
    """Refused before a job starts; $CXX counts where it is set."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(checks.shutil, "which", lambda name: None)
    [(kind, told)] = found(tiny(**{"model.compile": True}))
    assert (kind, told) == (
        "error",
        "override model.compile=true: model.compile = true needs a C++ compiler on CPU, and neither $CXX nor g++ nor "
        "clang++ was found. Install one (Debian: apt-get install g++), or set model.compile=false.",
    )
    monkeypatch.setattr(checks.shutil, "which", lambda name: name if name == "/opt/c++" else None)
    monkeypatch.setenv("CXX", "/opt/c++")
    assert found(tiny(**{"model.compile": True})) == []


def test_missing_data(tiny, own_data):
    """Nothing prepared: both halves are told, with the command."""
    config = tiny(**{"batch.max_steps": 3})
    shutil.rmtree(own_data / "dataset")
    shutil.rmtree(own_data / "tokenizer")
    told = found(config)
    assert [kind for kind, _ in told] == ["data", "data"]
    assert "the tokenizer is not ready" in told[0][1]
    assert "text_document.bin: no such file." in told[1][1]
    [command] = re.findall(r"`nbtrain prepare ([^`]*)` makes what is missing\.$", told[1][1])
    run, *overrides = shlex.split(command)
    assert load(run, overrides) == config


def test_a_truncated_bin(tiny, own_data):
    """A .bin shorter than its index counts."""
    config = tiny()
    path = own_data / "dataset/mock/text_document.bin"
    size = path.stat().st_size
    os.truncate(path, size - 10)
    [(kind, told)] = found(config)
    assert kind == "data"
    assert "text_document.bin: truncated:" in told
    assert "10 bytes are missing" in told


def test_a_vocabulary_smaller_than_the_data(tiny, own_data):
    """Ids above the model's vocabulary would index outside the embedding."""
    config = tiny(**{"tokenizer.vocab_size": 300})
    told = found(config)
    assert any("tokenizer.vocab_size = 300" in message for _, message in told)


def test_a_vocabulary_larger_than_the_dtype(tiny, own_data):
    """uint16 tokens cannot hold a vocabulary of 70,000."""
    config = tiny(**{"tokenizer.vocab_size": 70_000})
    [(kind, told)] = found(config)
    assert kind == "data"
    assert "uint16 holds at most 65,535" in told


def test_another_tokenizer_than_the_data(tiny, own_data):
    """Data encoded with one tokenizer and a run that names another: ids would mean other text."""
    import json

    config = tiny()
    manifest = own_data / "dataset/mock/manifest.json"
    value = json.loads(manifest.read_text())
    value["tokenizer_sha256"] = "f" * 64
    manifest.write_text(json.dumps(value))
    [(kind, told)] = found(config)
    assert kind == "error"
    assert told.startswith("dataset mock was encoded with the tokenizer ffffffffffff..., but ")
