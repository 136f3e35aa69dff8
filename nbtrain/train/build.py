"""Builds everything that a trainer needs, in one fixed order.

build() and Built.load() do the following:

    refuse unsupported settings -> newest complete checkpoint -> data -> process groups -> model -> engine
    -> patches -> load the checkpoint
"""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.files.local_disk import LocalDisk
from nbtrain.checkpoint.live.live_run import LiveRun, TrainState
from nbtrain.checkpoint.load import load
from nbtrain.checkpoint.local_resume import Start, choose_start
from nbtrain.checkpoint.own_layer import own_layer
from nbtrain.checkpoint.rollbacks import pass_bad_samples, skipped_samples
from nbtrain.checkpoint.save import Saver
from nbtrain.checkpoint.user_code import UserCode, load_user_code, needs_trial
from nbtrain.checkpoint.weights.store import DTYPES
from nbtrain.config.arithmetic.stages import stage_layers
from nbtrain.config.deepspeed.ds_config import deepspeed_config
from nbtrain.config.own_blocks import know_own_block, write_own_block
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.samples.build import GPTDatasets, build_datasets, refuse_without_loss
from nbtrain.model.adapters import freeze
from nbtrain.model.attention import backend_problem
from nbtrain.model.custom_layer import LayerFunction
from nbtrain.model.gpt import build_model
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.gpt_pipe import build_pipeline, canonical_parameters
from nbtrain.model.initialization import Zeros
from nbtrain.parallel.compiler import leave_out_compiler
from nbtrain.parallel.groups import MegatronUnits, ParallelGroups
from nbtrain.parallel.layout import ModelParallel
from nbtrain.parallel.random import TensorParallelStream, seed_rank
from nbtrain.parallel.startup import World, quiet, wait_for_all
from nbtrain.train.code.own_dataset import own_datasets
from nbtrain.train.code.own_loss import OwnLoss
from nbtrain.train.code.trial import try_code
from nbtrain.train.code.trial_of_layer import count_block
from nbtrain.train.engine.clipping import clip_without_zero
from nbtrain.train.engine.engine import TrainEngine
from nbtrain.train.engine.optimizer import bind_optimizer, build_optimizer
from nbtrain.train.engine.patches import install_patches
from nbtrain.train.engine.pipeline_engine import PipelineEngine
from nbtrain.train.engine.plain_engine import PlainEngine
from nbtrain.train.health.attempt import find_job, this_attempt_number
from nbtrain.train.health.stability import StepGuard


@dataclass
class Built:
    """Everything that a trainer needs, as returned by build()."""

    run: RunDir
    events: EventWriter | None
    engine: TrainEngine
    datasets: GPTDatasets
    saver: Saver
    guard: StepGuard
    state: TrainState
    start: Start
    """Starting point of the run: a checkpoint or, if the run has none, the beginning."""
    code: UserCode | None = None
    """The user's Python file that `code` names; None without `code`."""
    own_loss: OwnLoss | None = None
    """The loss() function that the user's file defines; None if it defines none."""

    def load(self, beat: Callable[[], None] = lambda: None) -> None:
        """Load the checkpoint or, without one, the weights of `init_from`. All ranks call it together.

        With adapters, the weights of `init_from` are loaded in both cases. With `dpo`, the reference
        log-probabilities are read from disk or, if they are missing, computed with the weights that the run
        starts from.
        """
        start, live = self.start, self.saver.live
        is_fresh = start.manifest is None
        if live.config.init_from is not None and (is_fresh or live.config.lora is not None):
            # Imported here because it needs safetensors, which runs without `init_from` do not.
            from nbtrain.checkpoint.initial import load_initial

            load_initial(live, is_fresh)
        if live.config.dpo is not None:
            self._load_reference(is_fresh, beat)
        if start.manifest is not None:
            self.state = load(live, start.manifest, self.state.data, start.folder, start.source)
            self.guard.history.load_state_dict(self.state.stability)
            if start.rest is not None:
                self.saver.complete(**vars(start.rest))
        self.state.data = pass_bad_samples(self.run, self.state.data, self.events)

    def _load_reference(self, is_fresh: bool, beat: Callable[[], None]) -> None:
        from nbtrain.checkpoint.initial import load_initial
        from nbtrain.train.preference_reference import load_reference

        live = self.saver.live

        def load_start() -> None:
            # A fresh run has loaded these weights already. In a resumed run, load() then replaces them with
            # the checkpoint's.
            if not is_fresh:
                load_initial(live)

        splits = [self.datasets.train, self.datasets.valid, self.datasets.test]
        load_reference(live, self.engine, splits, load_start, beat)


def refuse_unsupported(config: RunConfig) -> None:
    """Raise ConfigError, which names the field, for settings that this rank's software or machine does not
    support.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    missing = compiler is None or shutil.which(compiler) is None
    if config.model.compile and config.resources.device == "cpu" and missing:
        raise ConfigError(
            f"{config.where('model.compile')}: model.compile = true needs a C++ compiler on CPU, and neither "
            "$CXX nor g++ nor clang++ was found. Install one (Debian: apt-get install g++), or set compile: "
            "false."
        )


def _refuse_format(config: RunConfig) -> None:
    from deepspeed.accelerator import get_accelerator

    accelerator, dtype = get_accelerator(), config.precision.dtype
    bf16, fp16 = accelerator.is_bf16_supported(), accelerator.is_fp16_supported()
    usable = ["fp32", *(["bf16"] if bf16 else []), *(["fp16"] if fp16 else [])]
    if dtype not in usable:
        raise ConfigError(
            f"{config.where('precision.dtype')}: precision.dtype = {dtype} is not supported by DeepSpeed on "
            f"this {accelerator.device_name()}. Set precision.dtype to {' or '.join(usable)}."
        )


def refuse_backend(config: RunConfig, world: World) -> None:
    """Raise ConfigError if the configured attention backend does not support this device."""
    model, data = config.model, config.data
    problem = backend_problem(
        world.device,
        DTYPES[config.precision.dtype],
        model.attention_backend,
        model.attention_dropout,
        documents=data.isolates_documents,
        head_size=model.resolved_kv_channels,
        grouped=model.resolved_num_query_groups < model.num_attention_heads,
        window=model.window_size,
        later=config.parallel.context_parallel_size > 1,
    )
    if problem is not None:
        raise ConfigError(
            f"{config.where('model.attention_backend')}: model.attention_backend = {model.attention_backend} "
            f"cannot be used on {world.device.type} with {config.precision.dtype} here: {problem} Set "
            "attention_backend: auto."
        )


def build(
    config: RunConfig, run: RunDir, world: World, events: EventWriter | None, trains: bool | None = None
) -> Built:
    """Build data, model and engine; load() comes next. All ranks call it together.

    `trains` says whether the process resumes from the run's checkpoint and saves new ones. None means yes in
    mode: full, otherwise no.
    """
    if world.size != config.world_size:
        parallel = config.parallel
        raise ConfigError(
            f"the run needs pipeline({parallel.pipeline_parallel_size}) * "
            f"data({parallel.data_parallel_size}) * Ulysses({parallel.ds_sequence_parallel_size}) * "
            f"context({parallel.context_parallel_size}) * "
            f"tensor({parallel.tensor_parallel_size}) = {config.world_size} ranks, but {world.size} were "
            "started."
        )
    _refuse_format(config)
    refuse_backend(config, world)
    code = load_user_code(run, config)
    if code is not None and needs_trial(run):
        try_code(config, code)
    if code is not None and code.defines("layer"):
        block = count_block(config, code)
        if world.rank == 0:
            write_own_block(config, code.sha256, block)
        know_own_block(config, block)
    job_id, attempt = find_job(run).job_id, this_attempt_number()
    disk = None
    trains = config.mode == "full" if trains is None else trains
    if config.checkpoint.local_dir is not None and config.mode != "perf":
        disk = LocalDisk(config, run, world, job_id, attempt)
    start = choose_start(run, world, events, disk, job_id, attempt, trains)
    manifest = start.manifest
    index_samples = manifest["data_state"]["index_samples"] if manifest else None
    datasets = _build_data(config, index_samples, skipped_samples(run, manifest), world, code)
    sharing, timeout = config.parallel.sequence_ranks, config.parallel.process_group_timeout_seconds
    groups = ParallelGroups.create(config.topology, sharing, timeout)
    stream = _tensor_parallel_stream(config, groups)
    own_loss = None
    if code is not None and code.defines("loss"):
        own_loss = OwnLoss(code, datasets.names)
        # The user's loss() returns a sum, which is divided by the number of tokens in the step's masks, so
        # every batch needs a mask.
        datasets = dataclasses.replace(datasets, is_masked=True)
    engine = build_engine(config, groups, stream, own_loss, own_layer(code))
    tokenizer, train = datasets.manifest.tokenizer_sha256, datasets.train
    live = LiveRun(run, config, engine.deepspeed, world, tokenizer, events, train, stream, attempt)
    live.code_sha256 = code.sha256 if code is not None else None
    # Pipeline stages and data-parallel ranks draw different dropout; tensor-parallel ranks draw the same for
    # activations that all of them hold.
    seed_rank(config.model.seed, world.rank // config.parallel.tensor_parallel_size)
    guard, saver = (
        StepGuard(config, engine.deepspeed, world, events, run),
        Saver(live, disk if trains else None),
    )
    install_patches(saver, guard)
    state = TrainState(0, datasets.state)
    return Built(run, events, engine, datasets, saver, guard, state, start, code, own_loss)


def _tensor_parallel_stream(config: RunConfig, groups: ParallelGroups) -> TensorParallelStream | None:
    tensor = groups.tensor_model_parallel
    if tensor.size == 1:
        return None
    pipeline, data, _ = config.topology.coordinate(dist.get_rank())
    place = pipeline * config.parallel.data_axis_size + data
    return TensorParallelStream(config.model.seed, place, tensor.rank)


def build_engine(
    config: RunConfig,
    groups: ParallelGroups,
    stream: TensorParallelStream | None,
    own_loss: OwnLoss | None = None,
    layer_function: LayerFunction | None = None,
) -> TrainEngine:
    """Build the model, its optimizer and DeepSpeed's engine. `own_loss` and `layer_function` come from the
    user's file.

    All ranks call it together.
    """
    import deepspeed

    if not config.model.compile:
        leave_out_compiler()
    parallel, derived = config.parallel, deepspeed_config(config)
    # Sequences are shared by either Ulysses or context parallelism; the group of the unused kind has one
    # rank.
    shared, alone = groups.sequence_parallel, groups.alone
    ulysses, context = (alone, shared) if parallel.context_parallel_size > 1 else (shared, alone)
    tensor = groups.tensor_model_parallel
    layout = ModelParallel(tensor, parallel.sequence_parallel, ulysses, context, stream)
    is_piped = parallel.pipeline_parallel_size > 1
    # Weights that are about to be replaced by loaded ones need no random initialization and no copy in host
    # memory.
    init = None if config.init_from is None else _zeros(config)
    model: Any
    # A pipeline creates its process groups from its topology.
    units = None if is_piped else deepspeed_units(groups)
    if is_piped:
        stages = stage_layers(config)
        of_user = (own_loss, layer_function)
        model = build_pipeline(GPTConfig.of(config), layout, config.topology, stages, init, *of_user)
    else:
        # The context surrounds the model's construction: ZeRO 3 shards a parameter as soon as its module is
        # created.
        axis = groups.sequence_data_parallel.process_group
        cut_at_once = (
            deepspeed.zero.Init(data_parallel_group=axis, config_dict_or_path=derived, mpu=units)
            if parallel.zero_stage == 3
            else contextlib.nullcontext()
        )
        with cut_at_once:
            model = build_model(config, layout, init, layer_function)
        model.loss_function = own_loss
        if layer_function is not None:
            for layer in model.layers:
                # A user's block may use a weight outside the module that owns the weight, so ZeRO 3 must
                # gather all weights of the block together.
                deepspeed.utils.set_z3_leaf_module(layer, True)
    if config.lora is not None:
        freeze(canonical_parameters(model))
    if config.model.compile:
        for layer in model.layers:
            layer.compile()
    with quiet():
        engine, optimizer, _, _ = deepspeed.initialize(
            model=model,
            optimizer=build_optimizer(canonical_parameters(model), config),
            config=derived,
            mpu=units,
            dist_init_required=False,
        )
    bind_optimizer(engine, groups)
    clip_without_zero(engine, groups)
    engine.train()
    kind = PipelineEngine if is_piped else PlainEngine
    return kind(engine, optimizer, groups, parallel.zero_stage)


def _zeros(config: RunConfig) -> Zeros:
    import deepspeed

    dtype = "fp32" if config.precision.autocast else config.precision.dtype
    device = deepspeed.accelerator.get_accelerator().current_device_name()
    return Zeros(config.model.seed, device, DTYPES[dtype])


def deepspeed_units(groups: ParallelGroups) -> MegatronUnits | None:
    """Return the process groups for DeepSpeed; None if it can create them itself.

    Ranks that share sequences are passed as data-parallel ranks: each has the gradient of its own tokens, and
    DeepSpeed must average over all of them. (If DeepSpeed knows about Ulysses ranks, its stages 1 and 2 scale
    gradients differently from its stage 3.)
    """
    if groups.tensor_model_parallel.size * groups.sequence_parallel.size == 1:
        return None
    axis, alone = groups.sequence_data_parallel, groups.alone
    return MegatronUnits(dataclasses.replace(groups, data_parallel=axis, sequence_parallel=alone))


def _build_data(
    config: RunConfig, index_samples: int | None, skipped: int, world: World, code: UserCode | None
) -> GPTDatasets:
    # Rank 0 fills the index cache and the others read it.
    if world.rank != 0:
        wait_for_all()
    if code is not None and code.defines("dataset"):
        datasets = own_datasets(config, code, index_samples, skipped)
    else:
        datasets = build_datasets(config, index_samples, skipped)
    if world.rank == 0:
        wait_for_all()
    if index_samples is None:
        # A new run may have been started manually, without the checks of `nbtrain submit`. A resumed run
        # needs no check: it has already trained on some of the samples.
        refuse_without_loss(config, datasets)
    return datasets
