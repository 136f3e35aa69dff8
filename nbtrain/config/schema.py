"""The schema of a run: frozen pydantic models, one per section, a docstring per field.

A run YAML holds what differs from the file that it `extends:`; the resolved config.yaml in the run directory
holds every field. Every default is defined once, here or in sections/. Derived values are properties, never
fields. A rule about one field is part of its type; a rule that involves several fields is a function in
rules/. Training length is counted in tokens, whichever unit the YAML uses. Names of fields that set a period
end in `_interval_steps`.
"""

import functools
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr

from nbtrain.base.topology import Topology
from nbtrain.config.batch_schedule import BatchSchedule, Rampup, StepSizes
from nbtrain.config.sections.backend_section import BackendConfig
from nbtrain.config.sections.data_section import DataConfig, TokenizerConfig
from nbtrain.config.sections.dpo_section import DpoConfig
from nbtrain.config.sections.fields import (
    CheckpointStep,
    ChunkTokens,
    ConfigModel,
    FractionBelowOne,
    LayerPattern,
    Layers,
    Name,
    PathText,
    PositiveRate,
    PositiveRatio,
    PositiveSmallCount,
    SequenceTokens,
    WideSeed,
    Width,
)
from nbtrain.config.sections.imported import ImportedFile
from nbtrain.config.sections.kubernetes_section import LabelKey, LabelValue
from nbtrain.config.sections.limits_section import LimitsConfig
from nbtrain.config.sections.lora_section import LoraConfig
from nbtrain.config.sections.markers import Architecture, Binds, OfRun, SameMathematics, WithoutEffect
from nbtrain.config.sections.notify_section import NotifyConfig
from nbtrain.config.sections.parallel_section import ParallelConfig, PrecisionConfig
from nbtrain.config.sections.resources_section import ResourcesConfig
from nbtrain.config.sections.schedule_section import (
    BatchConfig,
    LrScheduleConfig,
    OptimizerConfig,
    given_unit,
)
from nbtrain.config.sections.watch_section import (
    CheckpointConfig,
    EvaluationConfig,
    LoggingConfig,
    ProfileConfig,
    StabilityConfig,
)
from nbtrain.config.shape import Shape
from nbtrain.config.yaml_source import NotWritten, OverridePlace

SCHEMA_VERSION = 1


# Number of steps in mode: perf if batch.max_steps is not set. The first quarter of the steps is not timed
# (train/figures/throughput.py).
PERF_STEPS = 20


class RopeScalingConfig(ConfigModel):
    """RoPE scaling: smaller rotation angles, so that a pretrained model can be trained on longer sequences
    than before.
    """

    kind: Literal["linear", "llama3", "yarn"]
    """Scaling method. linear divides all rotation angles by `factor` (arXiv:2306.15595). llama3 and yarn
    divide only the angles of slowly rotating dimension pairs (Llama 3.1; arXiv:2309.00071).
    """
    factor: Annotated[float, Field(ge=1, le=1e6)]
    """Scaling factor: this run's sequence length divided by the sequence length of the earlier training."""
    original_max_position_embeddings: SequenceTokens | None = None
    """Sequence length of the earlier training, in tokens. Required with llama3 and yarn."""
    low_freq_factor: PositiveRatio = 1.0
    """llama3: number of rotations over the original sequence length. Dimension pairs that make fewer
    rotations have their angle divided by the full factor.
    """
    high_freq_factor: PositiveRatio = 4.0
    """llama3: number of rotations over the original sequence length. Dimension pairs that make more rotations
    keep their angle.
    """
    beta_fast: PositiveRatio = 32.0
    """yarn: number of rotations over the original sequence length. Dimension pairs that make more rotations
    keep their angle.
    """
    beta_slow: PositiveRatio = 1.0
    """yarn: number of rotations over the original sequence length. Dimension pairs that make fewer rotations
    have their angle divided by the full factor.
    """


_ROTATION = Architecture("positions rotate heads by different angles than in the earlier training")
_WINDOWS = Architecture("queries attend to different tokens than in the earlier training", compared="windows")
_POSITIONS = Architecture(counts=lambda weights: weights.position_embedding_type == "learned_absolute")
_QKV_BIAS = Architecture(counts=lambda weights: not weights.add_bias_linear)


class ModelConfig(ConfigModel):
    """Decoder-only transformer. The defaults are GPT-3's: learned positions, LayerNorm, GELU, biases and tied
    embeddings (arXiv:2005.14165, section 2.1).
    """

    architecture: Annotated[
        Literal["gpt3", "llama", "mistral", "qwen2", "qwen3", "smollm3"], SameMathematics()
    ] = "gpt3"
    """Model family, such as llama. It sets the fields of `model` in which families differ: norm, activation,
    positions, biases and so on. Fields set together with it, or in a YAML or override applied later, keep
    their values.
    """
    num_layers: Annotated[Layers, Architecture()]
    """Number of transformer blocks."""
    hidden_size: Annotated[Width, Architecture()]
    """Width of the residual stream."""
    num_attention_heads: Annotated[Width, Architecture()]
    """Number of attention heads. Unless kv_channels is set, hidden_size must be a multiple of this number."""
    num_query_groups: Annotated[Width | None, Architecture()] = None
    """Number of key and value heads (grouped-query attention, arXiv:2305.13245). Each of them is shared by
    the same number of consecutive query heads; 1 is multi-query attention. null means num_attention_heads: no
    sharing.
    """
    kv_channels: Annotated[Width | None, Architecture()] = None
    """Size of one attention head. null means hidden_size / num_attention_heads."""
    qk_layernorm: Annotated[bool, Architecture()] = False
    """Whether each head's queries and keys are normalized before the rotary positions are applied, as in
    Qwen3, with the type of norm that `normalization` selects. All heads of a layer share the weights of this
    norm.
    """
    window_size: Annotated[SequenceTokens | None, _WINDOWS] = None
    """Sliding-window size: the number of tokens that a query attends to, including its own
    (arXiv:2004.05150). null means no window: a query attends to all earlier tokens. Megatron's --window-size
    does not count the query's own token, so it is window_size - 1.
    """
    window_attn_skip_freq: Annotated[LayerPattern | None, _WINDOWS] = None
    """Layers that use the sliding window. With a number N, every N-th layer (N, 2 N, 3 N and so on, counted
    from 1) has no window. A list has one entry per layer: 1 with the window, 0 without it. null means that
    all layers use the window.
    """
    attn_logit_softcapping: Annotated[PositiveRatio | None, Architecture()] = None
    """Soft cap on the attention scores: each score becomes cap * tanh(score / cap), as in Gemma 2
    (arXiv:2408.00118). null means no cap.
    """
    final_logit_softcapping: Annotated[PositiveRatio | None, Architecture()] = None
    """Soft cap on the logits: each logit becomes cap * tanh(logit / cap), as in Gemma 2. null means no
    cap.
    """
    ffn_hidden_size: Annotated[Width | None, Architecture()] = None
    """Width of the MLP. null means 4 x hidden_size or, with swiglu, 8/3 x hidden_size rounded down to a
    multiple of 64 (at least 64), as in Megatron.
    """
    activation: Annotated[Literal["gelu", "swiglu", "squared_relu"], Architecture()] = "gelu"
    """Activation function of the MLP. gelu is the tanh approximation of GELU. swiglu is silu(gate) * up, with
    two input matrices, as in Llama (arXiv:2002.05202). squared_relu is relu(x)^2 (arXiv:2109.08668).
    """
    add_bias_linear: Annotated[bool, Architecture()] = True
    """Whether all linear layers of the transformer blocks have biases."""
    add_qkv_bias: Annotated[bool, _QKV_BIAS] = False
    """Whether the query, key and value projections have biases even if add_bias_linear is false, as in
    Qwen2.
    """
    seq_length: Annotated[SequenceTokens, Architecture("ignored")] = 2048
    """Sequence length: the number of tokens in one training sequence."""
    max_position_embeddings: Annotated[SequenceTokens | None, _POSITIONS] = None
    """Number of learned positions. With rope, the length in tokens of the longest text that generation can
    attend to. null means seq_length.
    """
    position_embedding_type: Annotated[Literal["learned_absolute", "rope"], Architecture()] = (
        "learned_absolute"
    )
    """Type of position embedding. learned_absolute adds a learned vector for each position; rope rotates
    queries and keys (rotary positions, arXiv:2104.09864), as in Llama.
    """
    rotary_base: Annotated[float, Field(gt=1, le=1e12), _ROTATION] = 10000.0
    """rope: base of the rotation angles (theta). The slowest dimension pair rotates about this many times
    slower than the fastest one.
    """
    rotary_percent: Annotated[float, Field(gt=0, le=1), Architecture()] = 1.0
    """rope: fraction of each head that is rotated, above 0 and at most 1."""
    rope_scaling: Annotated[RopeScalingConfig | None, _ROTATION] = None
    """rope: scaling of the rotation angles for sequences that are longer than in an earlier training. null
    means no scaling.
    """
    no_rope_freq: Annotated[LayerPattern | None, Architecture(compared="layers_without_rope")] = None
    """rope: layers without rotary positions (arXiv:2501.18795). With a number N, every N-th layer (N, 2 N, 3
    N and so on, counted from 1) has none. A list has one entry per layer: 1 without rotary positions, 0 with
    them. null means that all layers have rotary positions.
    """
    untie_embeddings_and_output_weights: Annotated[bool, Architecture()] = False
    """Whether the output layer has its own matrix, as in Llama, instead of sharing the word embedding's
    matrix.
    """
    make_vocab_size_divisible_by: Annotated[PositiveSmallCount, OfRun()] = 128
    """Padding of the vocabulary: its size is rounded up to a multiple of this number times
    tensor_parallel_size.
    """
    hidden_dropout: FractionBelowOne = 0.1
    """Dropout probability after the embedding, after the attention output and after the MLP."""
    attention_dropout: FractionBelowOne = 0.1
    """Dropout probability of the attention weights."""
    init_method_std: PositiveRate = 0.02
    """Standard deviation of the initial weights. For the projections into the residual stream, it is divided
    by sqrt(2 num_layers).
    """
    normalization: Annotated[Literal["LayerNorm", "RMSNorm"], Architecture()] = "LayerNorm"
    """Type of norm before attention, before the MLP and after the last layer. RMSNorm (arXiv:1910.07467) does
    not subtract the mean and has no bias, as in Llama.
    """
    norm_epsilon: Annotated[PositiveRate, Architecture()] = 1e-5
    """Epsilon that each norm adds to the variance (RMSNorm: to the mean square) before taking the square
    root.
    """
    attention_backend: Annotated[
        Literal["auto", "flash", "efficient", "math"], SameMathematics(), OfRun()
    ] = "auto"
    """Attention kernel of PyTorch's scaled_dot_product_attention. auto lets PyTorch choose."""
    cross_entropy_chunk_tokens: Annotated[ChunkTokens, SameMathematics(), OfRun()] = 1024
    """Number of tokens whose logits the fused linear and cross-entropy layer keeps in memory at one time. 0
    means all tokens.
    """
    compile: Annotated[bool, SameMathematics(), OfRun()] = False
    """Whether to compile the model with torch.compile. On a CPU, this requires a C++ compiler."""
    seed: Annotated[WideSeed, OfRun()] = 1234
    """Random seed for the initial weights and for dropout."""

    def resolved(self, name: str) -> Any:
        """Return the value of a field. If the field is null, return the value that null stands for."""
        return getattr(self, f"resolved_{name}", getattr(self, name))

    def recorded(self, name: str) -> Any:
        """Return resolved() as a JSON value: a section becomes a dict."""
        value = self.resolved(name)
        return value.model_dump() if isinstance(value, ConfigModel) else value

    @property
    def resolved_num_query_groups(self) -> int:
        return self.num_query_groups or self.num_attention_heads

    @property
    def resolved_kv_channels(self) -> int:
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def windows(self) -> list[int | None]:
        """Sliding-window size of each layer, in tokens; None for a layer without a window."""
        skips = self.window_attn_skip_freq
        with_window = (
            [bool(one) for one in skips]
            if isinstance(skips, list)
            else [skips is None or layer % skips != 0 for layer in range(1, self.num_layers + 1)]
        )
        return [self.window_size if has else None for has in with_window]

    @property
    def layers_without_rope(self) -> list[int]:
        """Indices of the layers without rotary positions, counted from 0.

        If the model does not use rope, these are all layers.
        """
        skips, layers = self.no_rope_freq, range(self.num_layers)
        if self.position_embedding_type != "rope":
            return list(layers)
        if isinstance(skips, list):
            return [layer for layer, without in enumerate(skips) if without]
        return [layer for layer in layers if skips and (layer + 1) % skips == 0]

    @property
    def rotary_size(self) -> int:
        """Number of elements of each head that rope rotates. Fractions are rounded down, as in Megatron."""
        return int(self.resolved_kv_channels * self.rotary_percent)

    @property
    def resolved_ffn_hidden_size(self) -> int:
        if self.ffn_hidden_size is None and self.activation == "swiglu":
            # As many parameters as two matrices of 4 h: int(4 h * 2/3 / 64) * 64 in Megatron's arguments.py.
            return max(8 * self.hidden_size // (3 * 64), 1) * 64
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def resolved_max_position_embeddings(self) -> int:
        return self.max_position_embeddings or self.seq_length


class RunConfig(ConfigModel):
    """Settings of one run: what it trains, on which data, how and where."""

    schema_version: Annotated[Literal[1], WithoutEffect()] = 1
    """Version of the configuration schema."""
    name: Annotated[Name, WithoutEffect()]
    """Name of the run, and of its folder in the output directory."""
    mode: Annotated[Literal["full", "perf", "eval"], WithoutEffect()] = "full"
    """Task of the run's next job. full trains the model. perf measures throughput over max_steps steps (20 if
    max_steps is null), without evaluation or checkpoints. eval measures the validation and test loss of the
    newest checkpoint; a resume after it trains again.
    """
    recipe: Annotated[Literal["gpt3", "modern"], WithoutEffect()] = "gpt3"
    """Named set of values for fields of `model`, `optimizer` and `lr_schedule` that work well together.
    Fields set together with it, or in a YAML or override applied later, keep their values.
    """
    imported_from: Annotated[list[ImportedFile], WithoutEffect()] = []
    """Files of other training programs that `nbtrain import` converted into this run YAML."""
    labels: Annotated[dict[LabelKey, LabelValue], WithoutEffect()] = {}
    """Labels for finding the run, e.g. {team: nlp}, in the format of Kubernetes labels. The run's page shows
    them, and `nbtrain runs --label team=nlp` filters by them. nbtrain also sets them on the run's Kubernetes
    objects and in the comment of its Slurm job.
    """
    init_from: Annotated[PathText | None, Binds()] = None
    """Source of the initial weights: another run, by name or directory; a Hugging Face folder with
    config.json and safetensors files; or a file written by `nbtrain export --to consolidated`. The weights
    are read at the first start. `nbtrain import-model` writes a run YAML with this field set. null
    initializes the weights at random.
    """
    init_step: Annotated[CheckpointStep, Binds()] = "newest"
    """Checkpoint to start from if init_from names a run: newest, best or the number of a step. best is the
    checkpoint with the lowest validation loss among those saved at a step with a validation.
    """
    lora: Annotated[LoraConfig | None, Binds()] = None
    """Adapters (LoRA or IA3) that are trained next to the frozen weights of init_from. null trains all
    weights.
    """
    dpo: Annotated[DpoConfig | None, Binds()] = None
    """Direct preference optimization: training on pairs of a chosen and a rejected answer (sources of kind:
    preference). null trains the model to predict the next token.
    """
    code: Annotated[PathText | None, Binds("code_sha256")] = None
    """Python file with functions of your own, such as loss() and scalars(), that the ranks call
    (docs/code.md). The path is relative to the folder of the YAML or, if the file is not there, to the
    workspace. The run directory keeps a copy, and a resume is refused if the file has changed. null uses
    nbtrain's own functions.
    """
    model: Annotated[ModelConfig, Binds()]
    """Architecture of the model."""
    tokenizer: TokenizerConfig
    """Tokenizer and vocabulary."""
    data: DataConfig
    """Dataset and the order of its samples."""
    batch: BatchConfig
    """Batch size and training length."""
    optimizer: OptimizerConfig = OptimizerConfig.model_construct()
    """Optimizer and its settings."""
    lr_schedule: LrScheduleConfig
    """Learning-rate schedule."""
    precision: PrecisionConfig = PrecisionConfig.model_construct()
    """Number formats of weights and activations."""
    parallel: Annotated[ParallelConfig, SameMathematics()] = ParallelConfig.model_construct()
    """Sharding of the model and the batch across the ranks."""
    checkpoint: Annotated[CheckpointConfig, WithoutEffect()] = CheckpointConfig.model_construct()
    """Schedule, location and retention of checkpoints."""
    evaluation: Annotated[EvaluationConfig, WithoutEffect()] = EvaluationConfig.model_construct()
    """Schedule of validation and tasks, and size of validation and test."""
    stability: StabilityConfig = StabilityConfig.model_construct()
    """Policies for steps with NaN, Inf or a loss spike."""
    logging: Annotated[LoggingConfig, WithoutEffect()] = LoggingConfig.model_construct()
    """Log lines and alerts."""
    profile: Annotated[ProfileConfig, WithoutEffect()] = ProfileConfig.model_construct()
    """Profiling with torch.profiler."""
    notify: Annotated[NotifyConfig, WithoutEffect()] = NotifyConfig.model_construct()
    """Command to run or URL to call when a job has ended."""
    limits: Annotated[LimitsConfig, WithoutEffect()] = LimitsConfig.model_construct()
    """Limits on GPU hours, money, energy, days, epochs and disk space. A run whose plan exceeds one of them
    is not submitted.
    """
    resources: Annotated[ResourcesConfig, WithoutEffect()] = ResourcesConfig.model_construct()
    """Machines and devices of the run."""
    backend: Annotated[BackendConfig, WithoutEffect()] = BackendConfig.model_construct()
    """Backend that runs the ranks, and restarts after failures."""

    # Where each dotted key was written ("file.yaml:12" or "override a.b=c"); set by load/.
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _run: str | None = PrivateAttr(default=None)

    def __eq__(self, other: object) -> bool:
        # Two runs are equal if all their values are equal. Where the values were written does not matter.
        where = {"imported_from"}
        return isinstance(other, RunConfig) and self.model_dump(exclude=where) == other.model_dump(
            exclude=where
        )

    def __hash__(self) -> int:
        return hash(self.name)

    def where(self, key: str) -> str:
        """Return the place that set a dotted key: "gpt.yaml:12", "override batch.x=1" or "default"."""
        inside = (place for known, place in self._origins.items() if known.startswith(f"{key}."))
        if key not in self._origins and (place := next(inside, None)) is not None:
            return place
        while key:
            if key in self._origins:
                return self._origins[key]
            key = key.rpartition(".")[0]
        return "default"

    def sets(self, key: str) -> bool:
        """Return whether a file or an override sets a dotted key or a key inside it."""
        return any(
            (known == key or known.startswith(f"{key}.")) and not isinstance(place, NotWritten)
            for known, place in self._origins.items()
        )

    @property
    def names_tokenizer(self) -> bool:
        """Whether the YAML or an override sets the run's tokenizer.

        Otherwise the run trains its own tokenizer, under the name of its dataset.
        """
        return not isinstance(self._origins.get("tokenizer.name"), NotWritten)

    @property
    def as_arguments(self) -> list[str]:
        """This configuration as command-line arguments: RUN and its overrides."""
        places = dict.fromkeys(self._origins.values())
        overridden = [place.argument for place in places if isinstance(place, OverridePlace)]
        return [self._run or self.name, *overridden]

    @property
    def all_labels(self) -> dict[str, str]:
        """All labels of the run: `labels` and, on Kubernetes, backend.kubernetes.labels."""
        return {
            **self.labels,
            **(self.backend.kubernetes.labels if self.backend.kind == "kubernetes" else {}),
        }

    @property
    def image(self) -> str | None:
        """Container image of the pods. None if the backend starts no containers."""
        if self.backend.kind != "kubernetes":
            return None
        return self.backend.kubernetes.image or self.resources.image

    @property
    def topology(self) -> Topology:
        return Topology(
            self.parallel.pipeline_parallel_size,
            self.parallel.data_axis_size,
            self.parallel.tensor_parallel_size,
        )

    @property
    def world_size(self) -> int:
        return self.topology.world_size

    @property
    def evaluation_samples(self) -> int:
        """Number of samples that one validation or test reads: eval_iters global batches."""
        return self.evaluation.eval_iters * self.batch.global_batch_size

    @property
    def has_perplexity(self) -> bool:
        """Whether the run's losses have a perplexity.

        A loss over tokens has a perplexity; a loss over preference pairs (dpo) does not.
        """
        return self.dpo is None

    @property
    def paid_gpus(self) -> int:
        """Number of GPUs that are paid for: all GPUs of the run's machines, with or without a rank. 0 on
        CPUs.
        """
        if self.resources.device == "cpu":
            return 0
        return max(self.world_size, self.resources.nodes * self.resources.gpus_per_node)

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks on each machine; at least one."""
        if self.resources.device == "gpu" and self.resources.gpus_per_node:
            return self.resources.gpus_per_node
        return max(self.world_size // self.resources.nodes, 1)

    @property
    def ranks_by_node(self) -> list[int]:
        """Number of ranks on each machine.

        If the ranks do not divide evenly, each of the first machines has one more rank.
        """
        nodes = self.resources.nodes
        return [self.world_size // nodes + (node < self.world_size % nodes) for node in range(nodes)]

    @property
    def zero_hpz_partition_size(self) -> int:
        """Number of ranks across which ZeRO++'s secondary parameters are sharded, with parallel.zero_hpz."""
        return self.parallel.zero_hpz_partition_size or self.ranks_per_node

    @property
    def padded_vocab_size(self) -> int:
        """Size of the padded vocabulary.

        tokenizer.vocab_size is rounded up to a multiple of make_vocab_size_divisible_by x
        tensor_parallel_size.
        """
        multiple = self.model.make_vocab_size_divisible_by * self.parallel.tensor_parallel_size
        return -(-self.tokenizer.vocab_size // multiple) * multiple

    @functools.cached_property
    def shape(self) -> Shape:
        """Sizes of the model, from which parameters, FLOPs and bytes are counted. The result is cached."""
        model = self.model
        # A window as long as the sequence hides no token.
        has_window = [window is not None and window < model.seq_length for window in model.windows]
        return Shape(
            num_layers=model.num_layers,
            hidden_size=model.hidden_size,
            num_attention_heads=model.num_attention_heads,
            ffn_hidden_size=model.resolved_ffn_hidden_size,
            padded_vocab_size=self.padded_vocab_size,
            seq_length=model.seq_length,
            num_query_groups=model.resolved_num_query_groups,
            kv_channels=model.resolved_kv_channels,
            learned_positions=0
            if model.position_embedding_type == "rope"
            else model.resolved_max_position_embeddings,
            gated=model.activation == "swiglu",
            rmsnorm=model.normalization == "RMSNorm",
            bias=model.add_bias_linear,
            add_qkv_bias=model.add_qkv_bias,
            qk_layernorm=model.qk_layernorm,
            window_layers=tuple(has_window) if any(has_window) else (),
            window_size=(model.window_size or 0) if any(has_window) else 0,
            attn_softcap=model.attn_logit_softcapping is not None,
            logit_softcap=model.final_logit_softcapping is not None,
            tied=not model.untie_embeddings_and_output_weights,
            hidden_dropout=model.hidden_dropout,
            attention_dropout=model.attention_dropout,
        )

    def __copy__(self) -> "RunConfig":
        # A copy may get other values, and its shape must be computed from them.
        copied = super().__copy__()
        copied.__dict__.pop("shape", None)
        return copied

    @property
    def accumulation_steps(self) -> int:
        """Number of micro-batches per rank and step, at the full batch size.

        It is exact only for a configuration that has passed rules/check.py.
        """
        return self.batch.global_batch_size // (
            self.batch.micro_batch_size * self.parallel.data_parallel_size
        )

    @property
    def tokens_per_step(self) -> int:
        return self.batch.global_batch_size * self.model.seq_length

    @property
    def batch_schedule(self) -> BatchSchedule:
        """Batch sizes of all steps, including the ramp-up."""
        return BatchSchedule(
            self.batch.global_batch_size, self.model.seq_length, self.train_tokens, self.ramp
        )

    @property
    def ramp(self) -> Rampup | StepSizes | None:
        """Ramp-up of the batch size. None if the batch size is constant."""
        if self.batch.step_batch_size_schedule is not None:
            return StepSizes.parse(self.batch.step_batch_size_schedule, self.model.seq_length)
        return Rampup(**self.batch.rampup.model_dump()) if self.batch.rampup else None

    def in_tokens(self, unit: str, amount: int) -> int:
        """Convert `amount` tokens, samples or steps from the start of the run to tokens."""
        if unit == "steps":
            sizes = BatchSchedule(self.batch.global_batch_size, self.model.seq_length, 1, self.ramp)
            return sizes.tokens_after(amount)
        return amount * self.model.seq_length if unit == "samples" else amount

    def _given_in_tokens(self, section: ConfigModel, stem: str) -> int | None:
        unit = given_unit(section, stem)
        return self.in_tokens(unit, getattr(section, f"{stem}_{unit}")) if unit else None

    @property
    def train_tokens(self) -> int:
        """Length of training in tokens, from batch.train_tokens, train_samples or train_steps.

        Raises ConfigError if none of the three is set.
        """
        return self.in_tokens(*self.batch.train_amount)

    @property
    def scheduled_steps(self) -> int:
        """Number of steps needed to reach train_tokens, rounded up, including the ramp-up."""
        return self.batch_schedule.total_steps

    @property
    def train_samples(self) -> int:
        """Number of sequences in scheduled_steps, for which the training order is computed."""
        return self.batch_schedule.total_samples

    @property
    def train_steps(self) -> int:
        """Number of steps of this run.

        It is the smallest of scheduled_steps, max_steps and, in mode: perf without max_steps, PERF_STEPS.
        """
        limit = self.batch.max_steps or (PERF_STEPS if self.mode == "perf" else self.scheduled_steps)
        return min(self.scheduled_steps, limit)

    @property
    def target_tokens(self) -> int:
        """Number of tokens that the run will have trained on when it ends: the goal of its progress bars.

        In a trial (batch.max_steps), it is less than train_tokens.
        """
        return min(self.batch_schedule.tokens_after(self.train_steps), self.train_tokens)

    @property
    def shortened_by(self) -> str:
        """Setting that makes train_steps less than scheduled_steps: "batch.max_steps" or "mode: perf".

        "" if the run is not shortened.
        """
        if self.train_steps == self.scheduled_steps:
            return ""
        return "batch.max_steps" if self.batch.max_steps else "mode: perf"

    @property
    def lr_warmup_tokens(self) -> int:
        """Length of the warm-up in tokens; 0 without a warm-up."""
        if (fraction := self.lr_schedule.lr_warmup_fraction) is not None:
            return int(fraction * self.lr_decay_tokens)
        return self._given_in_tokens(self.lr_schedule, "lr_warmup") or 0

    @property
    def lr_decay_tokens(self) -> int:
        """Number of tokens at which the decay ends. By default, the end of the run."""
        return self._given_in_tokens(self.lr_schedule, "lr_decay") or self.train_tokens

    @property
    def lr_wsd_decay_tokens(self) -> int | None:
        """Length of WSD's decay phase in tokens. None if lr_schedule does not set this length.

        A length in steps is converted at the full batch size.
        """
        schedule = self.lr_schedule
        if (fraction := schedule.lr_wsd_decay_fraction) is not None:
            return int(fraction * self.lr_decay_tokens)
        if (steps := schedule.lr_wsd_decay_steps) is not None:
            return steps * self.tokens_per_step
        return self._given_in_tokens(schedule, "lr_wsd_decay")
