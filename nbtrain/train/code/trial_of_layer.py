"""Tests the blocks of a user's layer() before a run starts.

    count_block        builds every block in the run's size and for its tensor-parallel ranks, without
                       memory: checks that all shapes can be divided, and counts the parameters
    try_layer          builds a two-layer model: checks that initial values are the same every time, that
                       tokens and sequences are processed independently except in attention, that no state
                       but the parameters changes, and that recomputation can repeat all random numbers
    check_gradients    checks that a gradient reaches every parameter

The two-layer model is narrower than the run's, so a block must read its widths from `config`.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch

from nbtrain.base.errors import CodeError
from nbtrain.checkpoint.own_layer import OwnLayer
from nbtrain.checkpoint.user_code import UserCode
from nbtrain.config.schema import RunConfig
from nbtrain.config.shape import OwnBlock
from nbtrain.model.custom_layer import build_layer
from nbtrain.model.gpt import GPT
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.initialization import Initializer
from nbtrain.model.names import DECAY, NO_DECAY, optimizer_group
from nbtrain.parallel.groups import Group
from nbtrain.parallel.layout import WHOLE, ModelParallel
from nbtrain.parallel.random import get_state
from nbtrain.parallel.tensor import partition_dim

TOKENS = 8
# The two passes add products in different orders, so equal results differ slightly. If a token sees a
# different context, its logits differ by more than this.
TOLERANCE = 1e-3


class _Sizes(Initializer):
    """An Initializer whose parameters have a shape but no memory."""

    def normal(
        self, name: str, *shape: int, residual: bool = False, std: float | None = None
    ) -> torch.nn.Parameter:
        return self.zeros(*shape)

    def zeros(self, *shape: int) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.empty(shape, device="meta"))

    def ones(self, *shape: int) -> torch.nn.Parameter:
        return self.zeros(*shape)

    def filled(self, value: float, *shape: int) -> torch.nn.Parameter:
        return self.zeros(*shape)


class _Noted(Initializer):
    """An Initializer that keeps a copy of every tensor that it creates."""

    def __init__(self, config: GPTConfig):
        super().__init__(config.seed, config.init_method_std, config.num_layers)
        self.made: dict[int, torch.Tensor] = {}

    def normal(self, *arguments, **options) -> torch.nn.Parameter:
        return self._noted(super().normal(*arguments, **options))

    def zeros(self, *shape: int) -> torch.nn.Parameter:
        return self._noted(super().zeros(*shape))

    def ones(self, *shape: int) -> torch.nn.Parameter:
        return self._noted(super().ones(*shape))

    def filled(self, value: float, *shape: int) -> torch.nn.Parameter:
        return self._noted(super().filled(value, *shape))

    def _noted(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        self.made[id(parameter)] = parameter.detach().clone()
        return parameter


def count_block(config: RunConfig, code: UserCode) -> OwnBlock:
    """Return the parameter counts of the run's largest block. Raises CodeError for a block that the run's
    layout cannot divide.
    """
    settings, layer = GPTConfig.of(config), OwnLayer(code)
    size = config.parallel.tensor_parallel_size
    parallel = ModelParallel(Group(tuple(range(size))), config.parallel.sequence_parallel)
    init = _Sizes(settings.seed, settings.init_method_std, settings.num_layers)
    found = []
    for index in range(settings.num_layers):
        block = build_layer(index, settings, init, parallel, layer)
        if config.parallel.pipeline_parallel_size > 1:
            _check_groups(code, index, block)
        found.append(_counted(block, size))
    return replace(
        max(found, key=lambda block: block.on_rank(size)),
        largest_sharded=max(block.largest_sharded for block in found),
        largest_whole=max(block.largest_whole for block in found),
    )


def _counted(block: torch.nn.Module, size: int) -> OwnBlock:
    sharded: list[tuple[int, int]] = []
    whole: list[tuple[int, int]] = []
    for parameter in block.parameters():
        is_sharded = partition_dim(parameter) is not None
        entry = (parameter.numel() * (size if is_sharded else 1), parameter.dim())
        (sharded if is_sharded else whole).append(entry)
    return OwnBlock(
        sharded=sum(count for count, _ in sharded),
        whole=sum(count for count, _ in whole),
        sharded_matrices=sum(count for count, dimensions in sharded if dimensions == 2),
        whole_matrices=sum(count for count, dimensions in whole if dimensions == 2),
        largest_sharded=max((count for count, _ in sharded), default=0),
        largest_whole=max((count for count, _ in whole), default=0),
        tensors=len(sharded) + len(whole),
    )


def _check_groups(code: UserCode, index: int, block: torch.nn.Module) -> None:
    """Raise CodeError unless a block has parameters with weight decay and parameters without it: the
    optimizer of each pipeline stage needs both.
    """
    groups = {
        optimizer_group(f"layers.{index}.{name}", dimensions=parameter.dim())
        for name, parameter in block.named_parameters()
    }
    words = {DECAY: "matrix", NO_DECAY: "vector, such as the weight of a norm"}
    if missing := words.keys() - groups:
        needs = words[missing.pop()]
        raise code.error(
            "layer",
            f"block {index} has no {needs}; with parallel.pipeline_parallel_size > 1, the optimizer needs "
            "one in every stage",
            "Add one, or set pipeline_parallel_size: 1.",
        )


def try_layer(settings: GPTConfig, code: UserCode, is_bf16: bool) -> GPT:
    """Build the two-layer trial model and check its blocks. Raises CodeError for the first problem."""
    layer = OwnLayer(code)
    init = _Noted(settings)
    with _narrow(settings):
        model = GPT(settings, WHOLE, init, layer)
        again = GPT(settings, WHOLE, None, layer)
    others = dict(again.named_parameters())
    for name, parameter in model.named_parameters():
        if name not in others or others[name].shape != parameter.shape:
            raise code.error(
                "layer",
                f"when the model is built a second time, {name} is missing or has another shape",
                "Build the same block for the same config and index.",
            )
        made = init.made.get(id(parameter))
        if made is None or not torch.equal(parameter, made) or not torch.equal(parameter, others[name]):
            raise code.error(
                "layer",
                f"the initial values of {name} were changed after `parts` created it, or differ each time "
                "the model is built. Ranks that hold shards of it would start with different values",
                "Let `parts` set the initial values: std=... for random values, std=0.0 for zeros, "
                "value=... for another constant.",
            )
    if is_bf16:
        # In bf16, a different order of additions would change the results visibly.
        again = again.float()
    _try_training_pass(code, settings, again)
    _try_tokens(code, settings, again)
    return model


def _tokens(settings: GPTConfig) -> torch.Tensor:
    return torch.randint(settings.vocab_size or settings.padded_vocab_size, (2, TOKENS))


def _try_training_pass(code: UserCode, settings: GPTConfig, model: GPT) -> None:
    """Check that a training pass changes no tensors other than parameters, and draws random numbers only with
    torch.
    """
    tokens, before = _tokens(settings), _state_of(model)
    drawn = get_state()
    with torch.no_grad(), _narrow(settings):
        model(tokens)
    after = _state_of(model)
    for place, value in before.items():
        if place in after and not torch.equal(value, after[place]):
            raise code.error(
                "layer",
                f"forward() changes layers.{place}, which is not a parameter: checkpoints do not contain it, "
                "so a resumed run would continue with different values",
                "Compute it from x and the parameters.",
            )
    if any(get_state()[name] != drawn[name] for name in ("python", "numpy")):
        raise code.error(
            "layer",
            "forward() draws random numbers from `random` or NumPy, but activation recomputation can "
            "repeat only torch's random numbers",
            "Draw them with torch, for example torch.rand(()).",
        )


def _state_of(model: GPT) -> dict[str, torch.Tensor]:
    """Return {path: copy} of every tensor in the blocks that is not a parameter."""
    return {
        f"{place}.{name}": value.clone()
        for place, module in model.layers.named_modules()
        for name, value in (*module._buffers.items(), *vars(module).items())
        if isinstance(value, torch.Tensor)
    }


def _try_tokens(code: UserCode, settings: GPTConfig, model: GPT) -> None:
    """Raise CodeError unless these passes agree:

    - all tokens at once, and in two chunks that share a KV cache, as in generation
    - a document alone, and packed after another document
    - two sequences together, and one at a time
    - the same pass twice
    """
    model.eval()
    tokens = _tokens(settings)
    half = TOKENS // 2
    with torch.no_grad(), _narrow(settings):
        # Larger matrices, so that attending to other tokens changes the result measurably.
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(10.0)
        whole, cache = model(tokens), model.new_cache(2)
        pieces = [model(tokens[:, :half], cache=cache), model(tokens[:, half:], cache=cache)]
        again = torch.arange(half).repeat(2).expand_as(tokens)
        ends = torch.arange(0, 2 * TOKENS + 1, half, dtype=torch.int32)
        packed = model(tokens, position_ids=again, cu_seqlens=ends, max_seqlen=half)[:, half:]
        alone = model(tokens[:, half:])
        second, single = model(tokens), [model(one) for one in tokens.split(1)]
    apart = "Process each sequence independently of the others."
    context = (
        "Pass the whole context to self.attention(x, **context), and process each token independently "
        "elsewhere."
    )
    for one, other, where, fix in (
        (whole, second, "at each call in evaluation mode", "Draw random numbers only if self.training."),
        (whole, torch.cat(single), "if other sequences are in the micro batch", apart),
        (whole, torch.cat(pieces, 1), "if a sequence is processed in two chunks, as in generation", context),
        (alone, packed, "if another document is before it in the sequence, as in packed samples", context),
    ):
        one, other = one[..., : settings.vocab_size].float(), other[..., : settings.vocab_size].float()
        difference = (one - other).abs().max() / one.abs().max().clamp(min=1e-6)
        # Results that are not finite are reported by the training step of the trial.
        if one.isfinite().all() and not float(difference) <= TOLERANCE:
            raise code.error("layer", f"a block returns different results {where}", fix)


@contextlib.contextmanager
def _narrow(settings: GPTConfig) -> Iterator[None]:
    """Add the sizes of the two-layer model to the message of an error raised by the user's block."""
    try:
        yield
    except CodeError as error:
        if not isinstance(error.__cause__, RuntimeError):
            raise
        cause, line, trace = str(error).partition("\n")
        sizes = f"hidden_size {settings.hidden_size} and ffn_hidden_size {settings.ffn_hidden_size}"
        said = f"The trial model has {sizes}: a block must read its widths from config."
        raise CodeError(f"{cause} {said}{line}{trace}") from error


def check_gradients(code: UserCode, model: GPT) -> None:
    """Raise CodeError for a parameter of a block that no gradient has reached."""
    for name, parameter in model.layers.named_parameters():
        if parameter.grad is None:
            raise code.error(
                "layer",
                f"no gradient reaches layers.{name}",
                "Use it in forward(), without .detach() or torch.no_grad(), or do not create it.",
            )
