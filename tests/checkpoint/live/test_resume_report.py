"""Resume reports, which state how exactly a resumed run continues."""

import os

import numpy as np
import pytest
import torch

from nbtrain.base.run_directory.records import ResumeCertificate
from nbtrain.checkpoint.live import resume_report
from nbtrain.checkpoint.live.describe import layout
from nbtrain.config.load import load
from nbtrain.config.names.keys import field_keys
from nbtrain.dataset.samples.sample import Sample
from nbtrain.dataset.samples.state import DataState

CPU = torch.device("cpu")
STATE = DataState(7, "969,30,1", "exact", "d" * 64, 100, consumed_samples=8)


class Counting:
    """A dataset of 20 samples; sample n contains n, n + 1, ..."""

    def __init__(self, shift: int = 0):
        self.shift = shift

    def sample(self, position: int) -> Sample:
        if position >= 20:
            raise IndexError(position)
        tokens = np.arange(position, position + 5) + self.shift
        return Sample(tokens[:-1], tokens[1:])


def manifest(config, **changes):
    return {
        "step": 2,
        "layout": layout(config),
        "settings": resume_report.settings(config),
        **resume_report.conditions(CPU),
        "next_batch_sha256": "a" * 64,
        **changes,
    }


def certified(saved, config, next_batch="a" * 64, reseeded=False) -> ResumeCertificate:
    return resume_report.certify(saved, config, layout(config), CPU, next_batch, reseeded)


def test_nothing_has_changed():
    config = load("gpt-tiny")
    made = certified(manifest(config), config)
    assert (made.kind, made.reasons, made.step) == ("bit-exact", [], 2)
    assert str(made) == "resume from step 2 is bit-exact, next batch aaaaaaaaaaaa"


def test_what_no_number_depends_on_may_change():
    saved = manifest(load("gpt-tiny"))
    config = load(
        "gpt-tiny",
        {
            "checkpoint.save_interval_steps": 3,
            "logging.log_interval_steps": 7,
            "batch.max_steps": 12,
            "data.num_workers": 3,
            "backend.max_restarts": 9,
        },
    )
    assert certified(saved, config).kind == "bit-exact"


@pytest.mark.parametrize(
    "overrides, reason",
    [
        ({"parallel.zero_stage": 2}, "parallel.zero_stage: "),
        ({"batch.micro_batch_size": 1}, "batch.micro_batch_size: "),
        ({"model.compile": True}, "model.compile: False -> True"),
    ],
)
def test_the_same_mathematics_computed_otherwise_keeps_the_data(overrides, reason):
    before = load("gpt-tiny", check=False)
    made = certified(manifest(before), load("gpt-tiny", overrides, check=False))
    assert made.kind == "data-exact"
    assert any(stated.startswith(reason) for stated in made.reasons)


def test_versions_and_device_keep_the_data():
    config = load("gpt-tiny")
    versions = {**resume_report.software(), "torch": "2.0.0", "python": "3.9.1"}
    saved = manifest(config, versions=versions, device={"kind": "gpu", "name": "A100"})
    made = certified(saved, config)
    assert made.kind == "data-exact"
    assert f"version of torch: 2.0.0 -> {torch.__version__}" in made.reasons
    assert "device kind: gpu -> cpu" in made.reasons
    assert not any("python" in reason for reason in made.reasons)


def test_code_processor_and_variables_keep_the_data_as_in_the_certificate():
    """The report does not say bit-exact if the run's certificate would list a difference."""
    config, now = load("gpt-tiny"), resume_report.conditions(CPU)
    flags = [*now["device"]["vector_flags"], "amx_fp8"]
    saved = manifest(
        config,
        nbtrain_sha256="c" * 64,
        device={**now["device"], "model": "CPU X", "vector_flags": flags},
        variables={**now["variables"], "MKL_CBWR": "AVX2"},
    )
    made = certified(saved, config)
    assert made.kind == "data-exact"
    assert made.reasons == [
        f"files of nbtrain: SHA-256 cccccccccccc -> {now['nbtrain_sha256'][:12]}",
        f"device model: CPU X -> {now['device']['model']}",
        "device vector flags: amx_fp8 -> none",
        "environment variable MKL_CBWR: AVX2 -> none",
    ]


def test_variables_are_those_that_choose_algorithms_without_secrets(monkeypatch):
    """They are read once in a process."""
    for name in [name for name in os.environ if name.startswith(resume_report.VARIABLES)]:
        monkeypatch.delenv(name)
    given = {"NCCL_ALGO": "Ring", "MKL_CBWR": "AVX2", "NCCL_AUTH_TOKEN": "s3cret", "OMP_PLACES": "cores"}
    given |= {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    resume_report._of_this_process.cache_clear()
    try:
        assert resume_report.conditions(CPU)["variables"] == {"MKL_CBWR": "AVX2", "NCCL_ALGO": "Ring"}
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        assert len(resume_report.conditions(CPU)["variables"]) == 2
    finally:
        resume_report._of_this_process.cache_clear()


def test_a_manifest_that_lacks_code_and_processor_differs_in_none_of_them():
    """Checkpoints of an older version have the versions, and the kind, name and threads of the device."""
    config = load("gpt-tiny")
    saved = manifest(config)
    saved["device"] = {key: saved["device"][key] for key in ("kind", "name", "threads")}
    del saved["nbtrain_sha256"], saved["variables"]
    assert certified(saved, config).kind == "bit-exact"


def test_another_training_is_changed_and_says_how():
    saved = manifest(load("gpt-tiny"))
    made = certified(saved, load("gpt-tiny", {"lr_schedule.lr": 0.5, "parallel.zero_stage": 2}))
    assert made.kind == "changed"
    assert made.reasons[0].startswith("lr_schedule.lr: ") and made.reasons[0].endswith(" -> 0.5")
    assert made.reasons[1].startswith("parallel.zero_stage: ")


def test_another_next_batch_is_changed():
    config = load("gpt-tiny")
    made = certified(manifest(config), config, next_batch="b" * 64)
    assert (made.kind, made.reasons) == (
        "changed",
        ["the next batch differs from the one that the checkpoint recorded"],
    )


def test_a_new_seed_of_dropout_is_stated_if_there_is_dropout():
    config = load("gpt-tiny", {"model.hidden_dropout": 0.1})
    assert certified(manifest(config), config, reseeded=True).kind == "data-exact"
    config = load("gpt-tiny", {"model.hidden_dropout": 0.0, "model.attention_dropout": 0.0})
    assert certified(manifest(config), config, reseeded=True).kind == "bit-exact"


def test_a_next_batch_that_no_hash_stands_for_is_not_claimed():
    """If the checkpoint has no hash of the next batch, the report does not call the batch equal."""
    config = load("gpt-tiny")
    made = certified(manifest(config, next_batch_sha256=None), config)
    assert made.kind == "data-exact"
    assert "the checkpoint does not record which batch came next" in made.reasons


def test_a_layout_is_named_in_the_words_of_the_yaml():
    """Layout changes are reported by their YAML keys; a derived value, such as a stage's layers, only if no
    key changed.
    """
    plain = layout(load("gpt-tiny"))
    piped = {**plain, "pipeline_parallel_size": 2, "stage_layers": [2, 2]}
    shared = {**plain, "zero_stage": 3, "sub_group_size": 10**9, "offload_param": "cpu"}
    assert resume_report.layout_words(piped, shared) == [
        "parallel.pipeline_parallel_size: 2 -> 1",
        "parallel.zero_stage: 0 -> 3",
        "parallel.offload_param.device: none -> cpu",
    ]
    uneven = {**piped, "stage_layers": [3, 1]}
    assert resume_report.layout_words(piped, uneven) == ["parallel.pipeline_stage_layers: [2, 2] -> [3, 1]"]
    smaller = {**shared, "sub_group_size": 10**6}
    assert resume_report.layout_words(shared, smaller) == ["parallel.sub_group_size: 1000000000 -> 1000000"]
    assert resume_report.layout_words(plain, plain) == []
    shared = {**plain, "context_parallel_size": 2}
    assert resume_report.layout_words(shared, plain) == ["parallel.context_parallel_size: 2 -> 1"]


def test_every_part_of_a_layout_has_a_key_of_the_yaml():
    everything = {
        "parallel.pipeline_parallel_size": 2,
        "parallel.zero_stage": 3,
        "parallel.offload_param.device": "cpu",
        "parallel.offload_optimizer.device": "cpu",
    }
    found = layout(load("gpt-tiny", everything, check=False))
    assert set(resume_report.LAYOUT_KEYS) == set(found)
    assert set(resume_report.LAYOUT_KEYS.values()) <= set(field_keys())


def test_the_hash_is_of_positions_and_tokens():
    """The hash is equal for equal batches; another size, position, order or token changes it."""
    first = resume_report.next_batch_sha256(Counting(), STATE, 4)
    assert first == resume_report.next_batch_sha256(Counting(), STATE, 4)
    others = [
        resume_report.next_batch_sha256(Counting(), STATE, 5),
        resume_report.next_batch_sha256(Counting(), STATE.advanced(1), 4),
        resume_report.next_batch_sha256(Counting(), STATE.skipping(9, 11), 4),
        resume_report.next_batch_sha256(Counting(1), STATE, 4),
    ]
    assert len({first, *others}) == 5 and None not in others


def test_after_the_end_of_the_order_there_is_no_next_batch():
    assert resume_report.next_batch_sha256(Counting(), STATE.advanced(10), 4) is None


def test_the_record_is_read_as_it_was_written(tmp_path):
    made = ResumeCertificate("changed", ["lr"], 3, None, 1.5)
    made.write(tmp_path / "resume.json")
    assert ResumeCertificate.read(tmp_path / "resume.json") == made
    assert ResumeCertificate.read(tmp_path / "no.json") is None


def test_a_layout_that_changed_alone_is_not_bit_exact():
    """A resume with other pipeline stages under the same YAML is not reported as bit-exact."""
    config = load("gpt-tiny")
    made = certified(manifest(config, layout={**layout(config), "stage_layers": [2, 2]}), config)
    assert made.kind == "data-exact" and "stage_layers" in " ".join(made.reasons)
