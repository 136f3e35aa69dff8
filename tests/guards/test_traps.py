"""One test for each way in which DeepSpeed trains wrongly, hangs or leaves ranks running, mostly silently.

Each test fails if nbtrain's guard against the trap is removed. "Seen" names the code change with which that
was observed, and "would" a consequence that was not tried. Where it is cheap the trap itself is shown too, as
a contrast: DeepSpeed alone, or ranks that train without the guard (unguarded.py). If a contrast fails one
day, DeepSpeed has been fixed, and the guard can be removed.
"""

import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.file_baton import FileBaton

from nbtrain.base.errors import ConfigError
from nbtrain.checkpoint import reshape
from nbtrain.config.deepspeed import deepspeed_config
from nbtrain.config.load import load
from nbtrain.jobs.backends.local import LocalLauncher
from nbtrain.model.gpt import GPT, GPTConfig
from nbtrain.model.names import canonical_name, optimizer_group
from nbtrain.parallel import stale_locks, startup
from nbtrain.parallel.groups import Group, ParallelGroups
from nbtrain.parallel.layout import ModelParallel
from nbtrain.train.build import deepspeed_units
from nbtrain.train.engine.optimizer import build_optimizer, parameter_groups
from tests.parity.cases import Case
from tests.parity.reshaping import chained
from tests.parity.runner import values
from tests.train import launch

REPOSITORY = Path(__file__).parents[2]
REPOSITORY = Path(__file__).parents[2]
STEPS = 2


@pytest.fixture(scope="session")
def facts(runner, tmp_path_factory) -> dict:
    """Return DeepSpeed's unguarded behaviour, measured in one launch."""
    folder = tmp_path_factory.mktemp("facts")
    ended = runner.server.run(
        1,
        "tests.guards.unguarded:facts",
        [str(folder / "facts.json")],
        sys_path=[REPOSITORY],
        log=folder / "{rank}.log",
        timeout_seconds=600,
    )
    assert ended.succeeded, ended.last_words(40)
    return json.loads((folder / "facts.json").read_text())


@pytest.fixture
def configuration(tmp_path):
    """Return a function that makes the RunConfig of a case; raises ConfigError if it is refused."""
    tiny = tmp_path / "tiny.yaml"
    tiny.write_text(launch.TINY)
    return lambda case, **more: load(str(tiny), {**case.overrides, **more})


def first_steps(runner, case: Case, guard: str | None = None) -> np.ndarray:
    """Return the distance of the first steps' [loss, norm] from one process; `guard` is disabled."""
    name = f"{case.name}-{(guard or 'guarded').replace(' ', '-').lower()}"
    run = runner.make_run(case, name, {"batch.max_steps": STEPS, "evaluation.eval_iters": 0})

    def job():
        if guard is None:
            yield from runner.train(run, case)
            return
        ended = yield runner.start(run, case.ranks, "tests.guards.unguarded:train", guard)
        assert ended.succeeded, ended.last_words(30)

    runner.run(job())
    reference = runner.reference(case.data)
    ours = values(run, range(1, STEPS + 1))
    theirs = reference.losses[:STEPS], reference.grad_norms[:STEPS]
    return np.array([np.abs(mine - other).max() for mine, other in zip(ours, theirs)])


@pytest.mark.slow
def test_t1_zero_0_with_16_bit_weights_is_refused(configuration, facts):
    """DeepSpeed steps the optimizer before the first step, so Adam's bias correction is one step ahead.

    ZeRO 0 with 16-bit weights is refused in config/rules/combinations.py, and again where DeepSpeed's keys
    are derived. Seen: without either, nothing is raised.
    """
    for precision in ("bf16", "fp16"):
        with pytest.raises(ConfigError, match="zero_stage = 0"):
            configuration(Case(zero=0, precision=precision))
        config = configuration(Case(zero=1, precision=precision))
        broken = config.model_copy(update={"parallel": config.parallel.model_copy(update={"zero_stage": 0})})
        with pytest.raises(ConfigError, match="zero_stage = 0"):
            deepspeed_config(broken)
    assert facts["adam_steps_before_training"] == {"0": 1.0, "1": 0.0}


@pytest.mark.slow
def test_t2_zero_0_tells_a_norm_and_clips_by_all_of_it(runner, configuration, facts):
    """The engine reports no norm at stage 0, so plain_engine.py computes it before the step.

    With a sharded model it would clip by the norm of one shard, which is refused.

    Seen: with `engine.get_global_grad_norm()` at all stages the trace has no norm.
    """
    assert facts["norms"] == {"0": False, "1": True}
    loss, norm = first_steps(runner, Case(zero=0))
    assert loss <= 2e-6 and norm <= 4e-6
    for case in (Case(zero=0, pp=2), Case(zero=0, tp=2)):
        with pytest.raises(ConfigError, match="clipped by the norm of one part"):
            configuration(case)


@pytest.mark.slow
def test_t3_cut_parameters_say_so(runner):
    """DeepSpeed counts an unmarked parameter in the norm on one tensor rank only.

    Every parameter whose shape differs between one and two ranks is marked. Contrast: without the marks a run
    reports a norm that is too small, and no other error.
    """
    config = GPTConfig(2, 16, 4, 64, 32, 8)
    whole = dict(GPT(config).named_parameters())
    part = dict(GPT(config, ModelParallel(Group((0, 1), 0))).named_parameters())
    cut = {name for name, parameter in part.items() if parameter.shape != whole[name].shape}
    assert len(cut) == 1 + 2 * 6
    assert cut == {name for name, value in part.items() if getattr(value, "tensor_model_parallel", False)}
    _, norm = first_steps(runner, Case(tp=2), "marks")
    assert norm > 0.05


@pytest.mark.slow
def test_t4_decay_goes_by_name(facts):
    """Inside zero.Init every parameter has one dimension and no element, so dim() puts all into no_decay.

    Seen: with `parameter.dim() > 1` in parameter_groups `decay` is empty.
    """
    matrices = 2 + 2 * 4
    assert facts["matrices_inside_zero_init"] == {
        "by dim": 0,
        "decay": matrices,
        "decay of matrices": matrices,
        "no_decay of matrices": 0,
    }


def test_t5_every_rank_has_two_groups(configuration):
    """ZeRO makes one collective per group over the pipeline: a stage with fewer of them hangs the others.

    Every rank has two groups, and no stage is without a block, so none of them is empty. Seen: if the empty
    group is omitted, parameter_groups returns one group.
    """
    embedding = [("word_embeddings.weight", torch.nn.Parameter(torch.zeros(2, 2)))]
    groups = parameter_groups(embedding, 0.1)
    assert [group["name"] for group in groups] == ["decay", "no_decay"]
    assert [len(group["params"]) for group in groups] == [1, 0]
    # With Muon a stage in the middle has no embedding: decayed and other parameters are one group.
    groups = parameter_groups(embedding, 0.1, muon=True)
    assert [group["name"] for group in groups] == ["matrices", "others"]
    block = GPT(GPTConfig(1, 16, 4, 64, 32, 8)).layers[0].named_parameters()
    assert {optimizer_group(canonical_name(f"2.{name}", 1)) for name, _ in block} == {"decay", "no_decay"}
    with pytest.raises(ConfigError, match="each stage holds at least one layer"):
        configuration(Case(pp=8))
    with pytest.raises(ConfigError, match="pipeline_stage_layers"):
        configuration(Case(pp=3), **{"parallel.pipeline_stage_layers": [0, 2, 2]})


@pytest.mark.slow
def test_t6_a_pipeline_sends_whole_activations(runner, configuration):
    """DeepSpeed splits the activations it sends over tensor ranks, as if all of them held the same.

    With sequence parallelism they do not.

    Contrast: with DeepSpeed's defaults the run trains on, and its loss is different.
    """
    case = Case(tp=2, pp=2, sp=True)
    derived = deepspeed_config(configuration(case))["pipeline"]
    assert derived["pipe_partitioned"] is False and derived["grad_partitioned"] is False
    with pytest.raises(ConfigError, match="pipeline"):
        configuration(case, **{"parallel.deepspeed_extra": {"pipeline": {"pipe_partitioned": True}}})
    guarded, unguarded = first_steps(runner, case), first_steps(runner, case, "whole activations")
    assert guarded[0] <= 2e-6 and guarded[1] <= 4e-6
    assert unguarded.max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("zero", [1, 3])
def test_t7_deepspeed_is_not_told_of_ulysses(runner, zero):
    """If DeepSpeed knows of Ulysses, its stages scale gradients differently, which only clipping shows.

    The gradients of stages 0 to 2 and of stage 3 then differ by the number of Ulysses ranks, which the update
    hides. Without that knowledge a Ulysses rank is a data-parallel rank, and every stage takes the mean: the
    norms equal the norms of one process, with the same loss on both sides of the seam between the stages.
    """
    loss, norm = first_steps(runner, Case(us=2, zero=zero))
    assert loss <= 2e-6 and norm <= 4e-6


def test_t7_what_deepspeed_is_told():
    """DeepSpeed gets 4 data-parallel ranks and no sequence-parallel ones.

    Seen: with the groups passed on unchanged, the answers are 2 and 2.
    """
    pairs = {"tensor_model_parallel": (0,), "pipeline_model_parallel": (0,), "model_parallel": (0,)}
    pairs |= {"data_parallel": (0, 2), "sequence_parallel": (0, 1), "sequence_data_parallel": (0, 1, 2, 3)}
    pairs |= {"tensor_and_data_parallel": (0, 1, 2, 3)}
    units = deepspeed_units(ParallelGroups(**{kind: Group(ranks, 0) for kind, ranks in pairs.items()}))
    assert units is not None
    assert (units.get_data_parallel_world_size(), units.get_sequence_parallel_world_size()) == (4, 1)


@pytest.mark.slow
def test_t8_zero_3_is_reshaped_with_steps_and_decay_of_its_own(runner):
    """DeepSpeed's universal checkpoint mixes up steps and decay under ZeRO 3; reshape.py does not.

    It shares one step among all parameters, which Adam counts up once for each, gives all groups the first
    one's decay, and cannot convert between stages 1 and 3.

    The curve continues from stage 1 to 3 and back, byte-equal at each load, with Adam's step in place
    (asserted by `chained`). Contrast: torch's AdamW with a shared step.
    """
    found = runner.run(chained(runner, [Case(), Case(zero=3), Case(zero=2)], name="t8"))
    assert found.loss <= 1e-5
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = torch.optim.AdamW([{"params": parameters, "name": "decay"}])
    group = optimizer.param_groups[0]
    for parameter in parameters:
        reshape._moments(optimizer, group, parameter, 5.0)
        parameter.grad = torch.ones(2)
    optimizer.step()
    assert [float(optimizer.state[parameter]["step"]) for parameter in parameters] == [6.0] * 3
    shared = optimizer.state[parameters[0]]["step"]
    for parameter in parameters:
        optimizer.state[parameter]["step"] = shared
    optimizer.step()
    assert float(shared) == 9.0


class Started(Exception):
    """Raised with the arguments of subprocess.Popen."""


@pytest.fixture
def started(runner, monkeypatch, tmp_path):
    """Return (command, options) of the first process of each of a job's two attempts."""
    run = launch.make_run(tmp_path, {"parallel.data_parallel_size": 2})
    calls = []

    def start(command, **options):
        calls.append((command, options))
        raise Started

    monkeypatch.setattr(subprocess, "Popen", start)
    config = load(str(tmp_path / "tiny.yaml"), {"parallel.data_parallel_size": 2})
    launcher = LocalLauncher(run.newest_job(), ["-m", "nbtrain.train"])
    for number in (0, 1):
        with pytest.raises(Started):
            launcher.launch(config, number)
    return calls


@pytest.mark.slow
def test_t9_ranks_are_torchruns_in_a_session_of_their_own(started):
    """DeepSpeed's launcher leaves ranks training when it is stopped, and may return 0 when it failed.

    tests/jobs/supervisor/test_supervise.py tests that no process is left. Seen: with another module than
    torchrun's, or in the supervisor's session, this fails. On several hosts DeepSpeed's launcher starts the
    node agents, which start torchrun, and it is never asked to stop
    (tests/jobs/backends/test_hosts_cluster.py).
    """
    for command, options in started:
        assert command[1:3] == ["-m", "torch.distributed.run"]
        assert options["start_new_session"] is True
    launchers = [
        path
        for path in (REPOSITORY / "nbtrain").rglob("*.py")
        if path.parent.name != "hosts"
        and ("deepspeed.launcher" in (text := path.read_text()) or '"deepspeed", "--' in text)
    ]
    assert launchers == []


@pytest.mark.slow
def test_t10_a_restart_is_a_new_torchrun_on_a_new_port(started):
    """The restarts of torchrun itself meet stale addresses in gloo.

    Seen: with --max-restarts 1, or a fixed port, this fails.
    """
    ports = set()
    for command, _ in started:
        assert command[command.index("--max-restarts") + 1] == "0"
        ports.add(command[command.index("--master-port") + 1])
    assert len(ports) == 2


def test_t11_a_rank_leaves_behind_a_barrier(monkeypatch):
    """Without barrier and destroy gloo's threads abort one exit in three, after a good run.

    Seen: without either call in startup.finish, the list differs. The trainer ends with startup.finish.
    """
    calls = []
    monkeypatch.setattr(startup.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(startup.dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(startup.dist, "get_backend", lambda: "gloo")
    for name in ("barrier", "destroy_process_group"):
        monkeypatch.setattr(startup.dist, name, lambda name=name: calls.append(name))
    startup.finish()
    assert calls == ["barrier", "destroy_process_group"]
    assert "startup.finish()" in (REPOSITORY / "nbtrain" / "train" / "__main__.py").read_text()


def test_t12_a_lock_that_nobody_holds_is_removed(tmp_path, monkeypatch):
    """A killed build leaves its lock, and a process that needs the op waits for it indefinitely.

    Seen: without remove_stale_locks the second builder cannot take the lock. A lock that is held, or new,
    stays.
    """
    held, left, new = (tmp_path / "py311_cpu" / name / "lock" for name in ("held", "left", "new"))
    for lock in (held, left, new):
        lock.parent.mkdir(parents=True)
    builder = FileBaton(str(held))
    assert builder.try_acquire()
    for lock in (left, new):
        killed = FileBaton(str(lock))
        assert killed.try_acquire()
        os.close(killed.fd)
    for lock in (held, left):
        os.utime(lock, (time.time() - 60,) * 2)
    assert not FileBaton(str(left)).try_acquire()
    monkeypatch.setattr(stale_locks, "_file_system", lambda path: "nfs4")
    assert stale_locks.remove_stale_locks(tmp_path) == []
    monkeypatch.setattr(stale_locks, "_file_system", lambda path: "ext4")
    assert stale_locks.remove_stale_locks(tmp_path) == [left]
    assert FileBaton(str(left)).try_acquire()
    builder.release()


def test_t12_ranks_look_for_locks_before_they_join(monkeypatch, tmp_path):
    """The first rank of a machine looks for locks in torch's own cache folder.

    Seen: without the call nothing is removed.
    """
    from torch.utils.cpp_extension import get_default_build_root

    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    assert str(stale_locks.extensions_root()) == get_default_build_root()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    lock = tmp_path / "async_io" / "lock"
    lock.parent.mkdir()
    lock.touch()
    os.utime(lock, (time.time() - 7200,) * 2)
    import deepspeed

    def joins(**options):
        raise Started

    monkeypatch.setattr(startup, "prepare_deepspeed", lambda device: None)
    monkeypatch.setattr(deepspeed, "init_distributed", joins)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    with pytest.raises(Started):
        startup.start("cpu", 1)
    assert not lock.exists()


@pytest.mark.slow
def test_t13_a_rank_on_cpu_compiles_nothing_to_start(runner, tmp_path):
    """DeepSpeed would build its shared-memory all-reduce at every first start.

    That takes half a minute, and crashes without a compiler.

    Seen: with an unchanged `__compatible_ops__` the op is in the table.
    """
    ended = runner.server.run(
        1,
        "tests.guards.unguarded:compiled_ops",
        [str(tmp_path / "answer")],
        sys_path=[REPOSITORY],
        log=tmp_path / "{rank}.log",
        environment={"TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")},
        timeout_seconds=600,
    )
    assert ended.succeeded, ended.last_words(40)
    table, built = json.loads((tmp_path / "answer").read_text())
    assert not table.get("deepspeed_shm_comm") and built == []


def test_t14_the_optimizer_is_torchs(configuration):
    """Setting `optimizer: AdamW` in DeepSpeed's configuration selects an op that is compiled at first use.

    Its key is never derived, and is refused in deepspeed_extra. Seen: without its entry in DECIDED_ELSEWHERE,
    it passes.
    """
    for case in (Case(), Case(zero=3, offload="both"), Case(pp=2), Case(precision="bf16")):
        derived = deepspeed_config(configuration(case))
        assert "optimizer" not in derived
        assert derived["zero_force_ds_cpu_optimizer"] is False
    with pytest.raises(ConfigError, match="sets optimizer, which optimizer decides"):
        configuration(Case(), **{"parallel.deepspeed_extra": {"optimizer": {"type": "AdamW"}}})
    model = torch.nn.Linear(2, 2)
    named = [("layers.0.mlp.dense_h_to_4h.weight", model.weight)]
    assert type(build_optimizer(named, configuration(Case()))) is torch.optim.AdamW


@pytest.mark.slow
def test_t15_a_pipeline_recomputes_blocks_alone(runner, configuration, facts):
    """DeepSpeed recomputes the embedding too, whose input has no gradient, so the loss has none either.

    Its own recomputation is off, and the pipeline recomputes its repeated layers itself, not reentrant. Seen:
    with `use_reentrant=True` in model/recompute.py and the embedding among the `repeated` layers the first
    backward fails; each alone is harmless. Contrast: DeepSpeed alone.
    """
    assert "loss must be a scalar tensor" in facts["pipeline_recomputes_its_embedding"]
    case = Case(pp=2, recompute="full")
    assert deepspeed_config(configuration(case))["pipeline"]["activation_checkpoint_interval"] == 0
    loss, norm = first_steps(runner, case)
    assert loss <= 2e-6 and norm <= 4e-6
