"""One test for each way in which DeepSpeed trains wrongly, hangs or leaves ranks
running, mostly without an error.

Each test fails if nbtrain's guard against the trap is removed. "Seen" describes the code change for which
that failure was observed. Where it is cheap, the test also shows the trap itself, as a "contrast": DeepSpeed
alone, or ranks that train without the guard (unguarded.py). If a contrast stops failing, DeepSpeed has been
fixed, and the guard can be removed.
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
from nbtrain.config.deepspeed.ds_config import deepspeed_config
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
    """Measure DeepSpeed's behaviour without nbtrain's guards, in one launch."""
    folder = tmp_path_factory.mktemp("facts")
    ended = runner.server.run(
        1,
        "tests.guards.unguarded:facts",
        [str(folder / "facts.json")],
        sys_path=[REPOSITORY],
        log=folder / "{rank}.log",
        timeout_seconds=600,
    )
    assert ended.succeeded, ended.last_output(40)
    return json.loads((folder / "facts.json").read_text())


@pytest.fixture
def configuration(tmp_path):
    """Return a function that makes the RunConfig of a case; it raises ConfigError if
    the rules refuse the case.
    """
    tiny = tmp_path / "tiny.yaml"
    tiny.write_text(launch.TINY)
    return lambda case, **more: load(str(tiny), {**case.overrides, **more})


def first_steps(runner, case: Case, guard: str | None = None) -> np.ndarray:
    """Return how far loss and gradient norm of the first steps are from one process; `guard` is disabled."""
    name = f"{case.name}-{(guard or 'guarded').replace(' ', '-').lower()}"
    run = runner.make_run(case, name, {"batch.max_steps": STEPS, "evaluation.eval_iters": 0})

    def job():
        if guard is None:
            yield from runner.train(run, case)
            return
        ended = yield runner.start(run, case.ranks, "tests.guards.unguarded:train", guard)
        assert ended.succeeded, ended.last_output(30)

    runner.run(job())
    reference = runner.reference(case.data)
    ours = values(run, range(1, STEPS + 1))
    theirs = reference.losses[:STEPS], reference.grad_norms[:STEPS]
    return np.array([np.abs(mine - other).max() for mine, other in zip(ours, theirs)])


@pytest.mark.slow
def test_t1_zero_0_with_16_bit_weights_is_refused(configuration, facts):
    """ZeRO 0 with 16-bit weights is refused, because DeepSpeed's Adam would start one step ahead.

    DeepSpeed steps the optimizer before the first step, which makes the bias correction wrong. The
    combination is refused in config/rules/combinations.py, and again where DeepSpeed's configuration is
    derived. Seen: without both, no error is raised.
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
def test_t2_zero_0_tells_a_norm_and_clips_by_all_of_it(runner, facts):
    """With ZeRO 0 nbtrain computes the gradient norm itself, because DeepSpeed reports none, and in a
    pipeline clips by the norm of one stage.

    clipping.py computes it before the step, over all ranks of the model. Seen: without it, the trace has no
    norm, and the loss of two stages deviates by 3.4e-3.
    """
    assert facts["norms"] == {"0": False, "1": True}
    for case in (Case(zero=0), Case(zero=0, pp=2)):
        loss, norm = first_steps(runner, case)
        assert loss <= 2e-6 and norm <= 4e-6, case.name


@pytest.mark.slow
def test_t3_cut_parameters_say_so(runner):
    """Every parameter that tensor ranks shard is marked, so that DeepSpeed includes
    all its shards in the norm.

    DeepSpeed counts an unmarked parameter on one tensor rank only. The marked parameters are those whose
    shape differs between one and two ranks. Contrast: without the marks a run reports a norm that is too
    small, and no other error.
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
    """Weight decay is assigned by parameter name, because inside zero.Init no parameter looks like a matrix.

    There every parameter has one dimension and no elements, so a rule by dim() puts all of them into
    no_decay. Seen: with `parameter.dim() > 1` in parameter_groups, `decay` is empty.
    """
    matrices = 2 + 2 * 4
    assert facts["matrices_inside_zero_init"] == {
        "by dim": 0,
        "decay": matrices,
        "decay of matrices": matrices,
        "no_decay of matrices": 0,
    }


def test_t5_every_rank_has_two_groups(configuration):
    """Every rank has both parameter groups, because ZeRO runs one collective per
    group over the whole pipeline.

    A stage with fewer groups would hang the others. No stage is without a block, so neither group is empty.
    Seen: if an empty group is omitted, parameter_groups returns one group.
    """
    embedding = [("word_embeddings.weight", torch.nn.Parameter(torch.zeros(2, 2)))]
    groups = parameter_groups(embedding, 0.1)
    assert [group["name"] for group in groups] == ["decay", "no_decay"]
    assert [len(group["params"]) for group in groups] == [1, 0]
    # With Muon, decayed and other parameters are one group, because a middle stage has no embedding.
    groups = parameter_groups(embedding, 0.1, muon=True)
    assert [group["name"] for group in groups] == ["matrices", "others"]
    block = GPT(GPTConfig(1, 16, 4, 64, 32, 8)).layers[0].named_parameters()
    assert {optimizer_group(canonical_name(f"2.{name}", 1)) for name, _ in block} == {"decay", "no_decay"}
    with pytest.raises(ConfigError, match="each stage needs at least one layer"):
        configuration(Case(pp=8))
    with pytest.raises(ConfigError, match="pipeline_stage_layers"):
        configuration(Case(pp=3), **{"parallel.pipeline_stage_layers": [0, 2, 2]})


@pytest.mark.slow
def test_t6_a_pipeline_sends_whole_activations(runner, configuration):
    """A pipeline sends whole activations, because DeepSpeed would split them as if
    all tensor ranks had the same.

    With sequence parallelism, tensor ranks have different activations. Contrast: with DeepSpeed's defaults
    the run trains without an error, and its loss is different.
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
    """DeepSpeed does not know about Ulysses, so gradients have the right scale in every ZeRO stage.

    If DeepSpeed knows, the gradients of stages 0 to 2 and of stage 3 differ by the number of Ulysses ranks;
    Adam hides that in the update, and only clipping shows it. Otherwise a Ulysses rank counts as a
    data-parallel rank, every stage takes the mean, and loss and norm equal those of one process.
    """
    loss, norm = first_steps(runner, Case(us=2, zero=zero))
    assert loss <= 2e-6 and norm <= 4e-6


def test_t7_what_deepspeed_is_told():
    """DeepSpeed is given 4 data-parallel ranks and no sequence-parallel ranks.

    Seen: if the groups are passed on unchanged, the numbers are 2 and 2.
    """
    pairs = {"tensor_model_parallel": (0,), "pipeline_model_parallel": (0,), "model_parallel": (0,)}
    pairs |= {"data_parallel": (0, 2), "sequence_parallel": (0, 1), "sequence_data_parallel": (0, 1, 2, 3)}
    pairs |= {"tensor_and_data_parallel": (0, 1, 2, 3), "alone": (0,)}
    units = deepspeed_units(ParallelGroups(**{kind: Group(ranks, 0) for kind, ranks in pairs.items()}))
    assert units is not None
    assert (units.get_data_parallel_world_size(), units.get_sequence_parallel_world_size()) == (4, 1)


@pytest.mark.slow
def test_t8_zero_3_is_reshaped_with_steps_and_decay_of_its_own(runner):
    """A ZeRO 3 checkpoint is reshaped with the right steps and weight decay, which
    DeepSpeed's converter mixes up.

    DeepSpeed's universal checkpoint shares one step among all parameters, which Adam then increments once for
    each; it gives all groups the first group's decay, and cannot convert between stages 1 and 3. Here a run
    continues from stage 1 to 3 and back, byte-equal at each load and with Adam's correct step (asserted by
    `chained`). Contrast: torch's AdamW with a shared step.
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
    """Raised with the arguments of subprocess.Popen instead of starting the process."""


@pytest.fixture
def started(runner, monkeypatch, tmp_path):
    """Return (command, options) of the first process that each of a job's two attempts starts."""
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
def test_t9_ranks_are_started_by_the_own_launcher_in_its_own_session(started):
    """Ranks are started by nbtrain's launcher in a session of its own, not by DeepSpeed's launcher.

    DeepSpeed's launcher leaves ranks training when it is stopped, and may return 0 after a failure.
    tests/jobs/supervisor/test_supervise.py checks that no process is left. Seen: the test fails with another
    module, or in the supervisor's session. On several hosts DeepSpeed's launcher starts the node agents,
    which start the ranks, and it is never asked to stop them (tests/jobs/backends/test_hosts_cluster.py).
    """
    for command, options in started:
        assert command[1:3] == ["-m", "nbtrain.jobs.node.rank_launcher"]
        assert options["start_new_session"] is True
    launchers = [
        path
        for path in (REPOSITORY / "nbtrain").rglob("*.py")
        if path.parent.name != "hosts"
        and ("deepspeed.launcher" in (text := path.read_text()) or '"deepspeed", "--' in text)
    ]
    assert launchers == []


@pytest.mark.slow
def test_t10_a_restart_is_a_new_launcher_on_a_new_port(started):
    """A restart starts all processes again, on a new port: with torchrun's restarts, gloo finds stale
    addresses.

    Seen: the test fails with a fixed port.
    """
    assert len({options["env"]["MASTER_PORT"] for _, options in started}) == 2


def test_t11_a_rank_leaves_behind_a_barrier(monkeypatch):
    """A rank ends with a barrier and destroys its process group.

    Without these, gloo's threads abort one exit in three after a successful run. Seen: the test fails without
    either call in startup.finish, with which the trainer ends.
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
    """A lock that no process holds is removed before training.

    A killed build leaves its lock, and a process that needs the op would wait for it indefinitely. A lock
    that is held, or new, is kept. Seen: without remove_stale_locks, the second builder cannot take the lock.
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
    monkeypatch.setattr(stale_locks, "file_system_of", lambda path: "nfs4")
    assert stale_locks.remove_stale_locks(tmp_path) == []
    monkeypatch.setattr(stale_locks, "file_system_of", lambda path: "ext4")
    assert stale_locks.remove_stale_locks(tmp_path) == [left]
    assert FileBaton(str(left)).try_acquire()
    builder.release()


def test_t12_ranks_look_for_locks_before_they_join(monkeypatch, tmp_path):
    """The first rank on a machine looks for stale locks in torch's own cache folder.

    Seen: without the call, no lock is removed.
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
    """A rank on CPU starts without compiling DeepSpeed's shared-memory all-reduce.

    The build at every first start takes half a minute, and crashes without a compiler. Seen: with an
    unchanged `__compatible_ops__`, the op is in the table.
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
    assert ended.succeeded, ended.last_output(40)
    table, built = json.loads((tmp_path / "answer").read_text())
    assert not table.get("deepspeed_shm_comm") and built == []


def test_t14_the_optimizer_is_torchs(configuration):
    """The optimizer is torch's, because `optimizer: AdamW` in DeepSpeed's configuration
    selects an op that is compiled.

    nbtrain never sets that key, and refuses it in deepspeed_extra. Seen: without its entry in
    DECIDED_ELSEWHERE, the key is accepted.
    """
    for case in (Case(), Case(zero=3, offload="both"), Case(pp=2), Case(precision="bf16")):
        derived = deepspeed_config(configuration(case))
        assert "optimizer" not in derived
        assert derived["zero_force_ds_cpu_optimizer"] is False
    with pytest.raises(
        ConfigError, match="sets optimizer, but nbtrain controls that key through the setting optimizer"
    ):
        configuration(Case(), **{"parallel.deepspeed_extra": {"optimizer": {"type": "AdamW"}}})
    model = torch.nn.Linear(2, 2)
    named = [("layers.0.mlp.dense_h_to_4h.weight", model.weight)]
    assert type(build_optimizer(named, configuration(Case()))) is torch.optim.AdamW


@pytest.mark.slow
def test_t15_a_pipeline_recomputes_blocks_alone(runner, configuration, facts):
    """A pipeline recomputes only its blocks, because DeepSpeed would also recompute the embedding.

    The embedding's input has no gradient, so the loss would have none either. DeepSpeed's own recomputation
    is off; the pipeline recomputes its repeated layers itself, without reentrant autograd. Seen: with
    `use_reentrant=True` in model/recompute.py and the embedding among the `repeated` layers, the first
    backward pass fails; either change alone is harmless. Contrast: DeepSpeed alone.
    """
    assert "loss must be a scalar tensor" in facts["pipeline_recomputes_its_embedding"]
    case = Case(pp=2, recompute="full")
    assert deepspeed_config(configuration(case))["pipeline"]["activation_checkpoint_interval"] == 0
    loss, norm = first_steps(runner, case)
    assert loss <= 2e-6 and norm <= 4e-6
