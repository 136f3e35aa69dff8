"""PATCHES, the list of everything in DeepSpeed that nbtrain replaces; train/build.py installs the patches.

A row without `install` works by inheritance, or is called where it is needed, in the file `where`. After
an update of DeepSpeed, check each row: if its test passes without the row, remove the row.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nbtrain.checkpoint.save import Saver
from nbtrain.train.engine.run_ahead import let_run_ahead, may_run_ahead
from nbtrain.train.health.stability import StepGuard


@dataclass(frozen=True)
class Patch:
    """A replaced part of DeepSpeed."""

    replaces: str
    reason: str
    test: str
    """Test that fails without the patch, as file::function."""
    where: str
    """File that holds the replacement."""
    install: Callable[[Saver, StepGuard], None] | None = None
    version: str = "0.19.8"
    """Newest version of DeepSpeed that is known to need the patch."""


def install_patches(saver: Saver, guard: StepGuard) -> None:
    """Install the rows of PATCHES that have `install`, in order, in the engine of `saver` and `guard`."""
    for patch in PATCHES:
        if patch.install is not None:
            patch.install(saver, guard)


def _write_our_way(saver: Saver, guard: StepGuard) -> None:
    engine = saver.live.engine
    engine.checkpoint_engine = saver.writer


def _run_ahead(saver: Saver, guard: StepGuard) -> None:
    if guard.config.resources.device == "gpu" and may_run_ahead(guard.config):
        let_run_ahead(saver.live.engine)


PATCHES = (
    Patch(
        "DeepSpeedEngine.checkpoint_engine",
        "DeepSpeed's writers compute no hashes, leave partial files under their final names, "
        "and cannot write in the background on CPU",
        "tests/checkpoint/test_async_save.py::test_a_run_that_saves_in_the_background_is_the_same_run",
        "nbtrain/checkpoint/files/writer.py",
        _write_our_way,
    ),
    Patch(
        "DeepSpeedEngine._take_model_step",
        "DeepSpeed has no hook between the last backward pass and the optimizer, "
        "where a bad step can still be skipped",
        "tests/train/health/test_stability.py::test_skip_acts_before_the_weights_move",
        "nbtrain/train/health/stability.py",
        lambda saver, guard: guard.install(),
    ),
    Patch(
        "DeepSpeedEngine.clip_fp32_gradients",
        "without ZeRO, DeepSpeed clips by the norm of a part of the model, and reports no norm",
        "tests/train/engine/test_clipping.py::test_the_norm_is_that_of_the_whole_model",
        "nbtrain/train/engine/clipping.py",
    ),
    Patch(
        "DeepSpeedZeroOptimizer.step, BF16_Optimizer.step",
        "both optimizers wait for the device in every step to check a norm that StepGuard checks later",
        "tests/train/engine/test_run_ahead.py::test_a_step_takes_no_number_from_the_device",
        "nbtrain/train/engine/run_ahead.py",
        _run_ahead,
    ),
    Patch(
        "PipelineEngine._INSTRUCTION_MAP",
        "the pipeline's own timers wait for the device; replaced during a step",
        "tests/train/engine/test_pipeline_engine.py::test_the_bubble_is_distinguished_from_the_work",
        "nbtrain/train/engine/pipeline_engine.py",
    ),
    Patch(
        "PipelineModule.get_tied_weights_and_groups",
        "with fp16 weights and ZeRO 1 the function sums `grad`, which is None, so that tied copies drift "
        "apart",
        "tests/parallel/test_tied_gradient.py::test_the_accumulated_gradient_is_the_one_that_is_summed",
        "nbtrain/parallel/pipeline.py",
    ),
    Patch(
        "PipelineModule._synchronize_tied_weights",
        "the function overwrites a leaf of the graph in place, so autograd warns in the first backward pass",
        "tests/parallel/test_pipeline.py::test_on_four_ranks",
        "nbtrain/parallel/pipeline.py",
    ),
    Patch(
        "PipelineModule._partition_layers",
        "the function builds every layer on every rank to count parameters; nbtrain sets the stages itself",
        "tests/parallel/test_pipeline.py::test_on_four_ranks",
        "nbtrain/parallel/pipeline.py",
    ),
    Patch(
        "ZeRO's sums after a skipped step: DeepSpeedZeroOptimizer.averaged_gradients",
        "with 16-bit weights and CPU offload the sums keep the NaN or Inf of an overflow for all later steps",
        "tests/train/health/test_stability.py::test_a_bad_step_leaves_no_trace",
        "nbtrain/train/health/discard.py",
    ),
    Patch(
        "DeepSpeedZeroOptimizer.gradient_accumulation_steps",
        "ZeRO keeps a copy of the number that set_train_batch_size does not change",
        "tests/train/test_rampup.py::test_the_batch_of_a_step_reaches_the_engine_and_its_optimizer",
        "nbtrain/train/engine/optimizer.py",
    ),
    Patch(
        "DeepSpeedEngine.save_non_zero_checkpoint",
        "with ZeRO 0 only rank 0 writes, but each node's own disk needs a copy; set during such a save",
        "tests/checkpoint/test_local_checkpoints.py::test_with_zero_0_one_node_is_enough",
        "nbtrain/checkpoint/local_save.py",
    ),
    Patch(
        "deepspeed.runtime.compiler.compile",
        "to check whether an optimizer is its own Muon, DeepSpeed imports and compiles its Muon, "
        "which loads torch's compiler; replaced during that import",
        "tests/parallel/test_compiler.py::test_steps_load_no_compiler_which_can_be_loaded_later",
        "nbtrain/parallel/compiler.py",
    ),
    Patch(
        "deepspeed.ops.__compatible_ops__",
        "on CPU, every call of init_distributed would build a shared-memory all-reduce that training never "
        "calls",
        "tests/guards/test_traps.py::test_t13_a_rank_on_cpu_compiles_nothing_to_start",
        "nbtrain/parallel/startup.py",
    ),
)
