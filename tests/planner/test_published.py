"""Published cases as planner setups, with the parameters, FLOPs, layouts and units of their sources."""

from dataclasses import replace

import pytest

from nbtrain.config.arithmetic.flops import model_flops
from nbtrain.config.arithmetic.parameters import count_layers
from nbtrain.planner.setup.engines import ENGINES, FITTED_NETWORKS
from nbtrain.planner.time.rates import rates_of_setup
from nbtrain.planner.time.step import estimate_step
from tests.benchmarks import published
from tests.benchmarks.published import Published

if not published.CASES.is_file():
    pytest.skip("no ../shared/reference/planner next to the repository", allow_module_level=True)

CASES = published.load_cases()


def ids(wrong: list[Published]) -> list[str]:
    return [case.id for case in wrong]


def test_no_case_is_left_out():
    """All 216 cases are read. Two of them are series of 6 and 10 points; 206 cases and the 16 points give a
    speed.
    """
    assert len(CASES) == 216 - 2 + 16
    assert len({case.id for case in CASES}) == len(CASES)
    assert sum(case.step_seconds is not None for case in CASES) == 206 + 16
    assert sum(not case.fits for case in CASES) == 9


def test_flops_are_those_of_the_file():
    """The planner's formula gives the FLOPs of every case exactly."""
    assert all(model_flops(c.setup.shape) == c.raw["derived"]["model_flops_per_token"] for c in CASES)


def test_parameters_are_those_of_the_sources():
    """For the 30 sources that state it, the number of parameters is exact."""
    given = [case for case in CASES if "params_given" in case.raw]
    assert len(given) == 30
    counted = [count_layers(c.setup.shape, c.setup.shape.num_layers, True, True, 1).total for c in given]
    assert counted == [case.raw["params_given"] for case in given]


def test_layouts_use_all_gpus_and_whole_batches():
    """World size, accumulation steps and layers are as stated in the source; where they are not stated, they
    divide evenly.
    """
    assert not ids([c for c in CASES if c.setup.world_size != c.raw["gpus"]["count"]])
    batch = [(c, c.setup.micro_batch_size * c.setup.data_parallel_size) for c in CASES]
    assert not ids([c for c, one in batch if c.setup.global_batch_size % one])
    stated = [(c, c.raw["batch"].get("accumulation")) for c in CASES]
    assert not ids([c for c, steps in stated if steps and steps != c.setup.accumulation_steps])
    assert not ids([c for c in CASES if sum(c.setup.layers_by_stage) != c.setup.shape.num_layers])


def test_seconds_are_those_computed_by_the_reference():
    """31 times equal the reference's, which are computed from TFLOP/s with recomputation counted as in the
    source.
    """
    computed = [case for case in CASES if case.raw.get("step_s_computed")]
    assert len(computed) == 31
    for case in computed:
        assert case.step_seconds == pytest.approx(case.raw["step_s_computed"], rel=1.5e-3), case.id


def test_every_program_is_known():
    """The engine of each source is in the registry, and both the training half and the test half have
    sources.
    """
    assert {source.engine for source in published.SOURCES} <= set(ENGINES)
    assert {source.half for source in published.SOURCES} == {"train", "test"}
    assert all(name == engine.name for name, engine in ENGINES.items())


@pytest.mark.parametrize(
    ("fabric", "per_node", "gigabytes"),
    [
        ("8x HDR InfiniBand (200 Gb/s) per node", 8, 200),
        ("Omni-Path 4x100Gb/s per node", 4, 50),
        ("400 Gb/s EFA per GPU", 8, 400),
        ("8x EDR", 16, 100),
        ("NVSwitch 2.4 TB/s, 8 x 100 Gb/s InfiniBand", 16, 100),
        ("25 GbE", 8, 3.125),
        ("3.2 Tb/s EFA", 8, 400),
        ("Slingshot 11 (4 x 200 Gb/s)", 4, 100),
        ("NVL72 domain", 4, None),
        (None, 8, None),
    ],
)
def test_a_fabric_is_read_as_cards_of_a_machine_or_of_a_gpu(fabric, per_node, gigabytes):
    found = published.fabric_of_case({"fabric": fabric, "per_node": per_node})
    assert found == (None if gigabytes is None else gigabytes * 1e9)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"note": "ZeRO++"}, (True, 16, True)),
        ({"note": "hpZ 8 and qwZ"}, (True, 8, False)),
        ({"parallel": {"zero": 3, "qgz": True}}, (False, 1, True)),
        ({"id": "zeropp-18b-baseline"}, (False, 1, False)),
        ({"id": "zeropp-18b-zero3"}, (False, 1, False)),
        ({"id": "zeropp-18b-64v100"}, (True, 16, True)),
        ({"note": "ZeRO++", "parallel": {"zero": 1}}, (False, 1, False)),
    ],
)
def test_zeropp_is_read_from_the_layout_or_from_the_words(changes, expected):
    case = {"id": "18b", "parallel": {"zero": 3}, "gpus": {"per_node": 16}, **changes}
    found = published.zeropp_of_case(case)
    assert (found["quantized_weights"], found["hpz_size"], found["quantized_gradients"]) == expected


def test_nanotron_gives_the_first_stages_more_than_their_share():
    """80 blocks and an output layer of 1.1 blocks are cut into 16 stages. A stage ends with the block that
    exceeds its share, so that the first one has 6 blocks instead of 5.
    """
    shape = next(case for case in CASES if case.id == "nanotron-80b-8nodes").setup.shape
    layers = published._nanotron_stages(shape, 16)
    assert layers[:3] == (6, 5, 5) and sum(layers) == 80 and len(layers) == 16


def test_runs_outside_the_cases_are_read_in_the_same_form():
    """126 runs of 11 sources, none of which is a case."""
    outside = published.load_outside()
    assert len(outside) == 126 == len({case.id for case in outside} - {case.id for case in CASES})
    assert not ids([case for case in outside if case.setup.world_size != case.raw["gpus"]["count"]])


@pytest.mark.parametrize(
    ("changes", "engine", "device"),
    [
        ({"id": "new-1", "source": "a blog on NeMo"}, "megatron-bridge", "H100"),
        ({"id": "new-2", "source": "a Megatron-LM run"}, "megatron-core", "H800"),
        ({"id": "new-3", "source": "FSDP on one node"}, "torchtitan", "A800-80GB"),
        ({"id": "new-4", "source": "a paper"}, "megatron-deepspeed", "MI300X"),
    ],
)
def test_a_case_of_another_source_is_read_by_its_text(changes, engine, device):
    """For a case from an unknown source, the program is chosen by keywords in the source's text, the device
    by the closest name, and the half is "test".
    """
    kinds = {"H100": "H100-SXM-80GB", "H800": "H800-SXM-80GB", "A800-80GB": "A800-SXM4-80GB"}
    raw = next(case.raw for case in CASES if case.id == "mpt-7b-s2048-8xh100-80gb-amp-bf16")
    case = {**raw, "note": "", **changes, "gpus": {**raw["gpus"], "kind": kinds.get(device, device)}}
    source = published.source_of(case)
    assert (source.engine, source.half) == (engine, "test")
    found = published.setup_of_case(case, source)
    assert found.device is not None and found.device.name == device


def test_the_share_that_deepspeeds_zero_reaches(monkeypatch):
    """The runs in which DeepSpeed's ZeRO waits for the network need the share; their networks are named."""
    programs = {name: ENGINES[name] for name in ("megatron-deepspeed", "gpt-neox")}
    shares = {engine.zero_share for engine in (*programs.values(), ENGINES["nbtrain"])}
    timed = [case for case in CASES if case.step_seconds and case.setup.engine in programs]
    steps = [(case, estimate_step(case.setup)) for case in timed if case.setup.nodes > 1]
    waiting = [case for case, step in steps if step.data > 0.02 * step.seconds]
    rates = [rates_of_setup(case.setup) for case in waiting]
    networks = [found.across.bytes_per_second / found.network_reached for found in rates]
    assert (min(networks), max(networks)) == pytest.approx(FITTED_NETWORKS)

    def planned_within(share: float) -> int:
        for name, engine in programs.items():
            monkeypatch.setitem(ENGINES, name, replace(engine, zero_share=share))
        times = [estimate_step(case.setup).seconds / case.step_seconds for case in waiting]
        return sum(0.8 <= ratio <= 1.2 for ratio in times)

    (fitted,) = {planned_within(share) for share in shares}
    assert fitted >= 0.8 * len(waiting)
    assert max(planned_within(0.1), planned_within(0.6), planned_within(1.0)) < fitted
