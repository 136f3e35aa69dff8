"""Explanation of a memory estimate: the formula of every part with its numbers, and its source.

The Terms of a part add up to the part, and all Terms add up to the estimate (a test asserts both).
"""

from nbtrain.base.text.amounts import counted
from nbtrain.config.arithmetic.four_bits import four_bit_bytes
from nbtrain.planner.memory import activations, buffers
from nbtrain.planner.memory.estimate import PARTS, decided, fullest_stage, nvme_buffers, snapshot, stage_parts
from nbtrain.planner.memory.stage import Stage, stage_of
from nbtrain.planner.memory.states import (
    adapter_tensors,
    dequantized_bytes,
    is_bf16_optimizer,
    states,
    weight_element,
)
from nbtrain.planner.setup.engines import ENGINES, habits_of
from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.setup.terms import Term, product

KORTHIKANTI = "arXiv:2205.05198, section 4.1"
ZERO = "arXiv:1910.02054, section 5"
DEEPSPEED = "DeepSpeed 0.19.8"

# The tensors that each kind of activation stands for.
KINDS = {
    "norms": "inputs and statistics of the two norms",
    "attention": "input, query, key, value, output, log-sum-exp",
    "mlp": "input, the activation's input and output, and the adapters' activations",
    "dropout_masks": "masks of both branches and of the embedding",
    "scores": "softmax, mask and dropped-out softmax for every pair of positions",
    "layer_inputs": "the input of each recomputed group of layers",
    "ends": "token ids and the final norm's input",
}


def explain(setup: Setup, stage: int | None = None) -> list[Term]:
    """Return the Terms of a pipeline stage's device memory.

    `stage` is the stage's index; None means the fullest stage.
    """
    setup = decided(setup)
    found = fullest_stage(setup)[0] if stage is None else stage_of(setup, stage)
    parts = stage_parts(setup, found.number)
    terms = [
        *_states(setup, found, parts),
        *_activations(setup, found, parts["activations"]),
        *_buffers(setup, found, parts),
    ]
    order = {part: place for place, part in enumerate(PARTS)}
    return sorted((term for term in terms if term.value), key=lambda term: order[term.name.split(" / ")[0]])


def _states(setup: Setup, stage: Stage, parts: dict[str, int]) -> list[Term]:
    count, ranks, zero = stage.elements, setup.zero_size, setup.zero_stage
    element = weight_element(setup) if setup.engine == "nbtrain" else habits_of(setup.engine).weights
    if setup.adapter_sizes:
        return _states_with_adapters(setup, stage, parts)
    has_masters = parts["master_copy"] > 0
    cut = {
        "weights": zero == 3,
        "gradients": zero >= 2,
        "master_copy": zero >= 1,
        "optimizer": zero >= 1,
    }
    each = {
        "weights": (element, "bytes"),
        "gradients": (6 if is_bf16_optimizer(setup) else 4, "bytes (fp32 sums)"),
        "master_copy": (4 if has_masters else 0, "bytes (fp32)"),
        "optimizer": (8, "bytes (two fp32 moments)"),
    }
    terms = []
    for part, (size, words) in each.items():
        divided = (1 / ranks, "ranks") if cut[part] else (1, "")
        formula = product((count, "parameters per rank"), (size, words), divided)
        rest = parts[part] - size * count / (ranks if cut[part] else 1)
        if setup.engine != "nbtrain":
            title = ENGINES[setup.engine].title
            formula = f"{count:,} parameters per rank, stored as in {title}, ZeRO {zero} over {ranks} ranks"
        elif abs(rest) >= 0.5:
            formula += f" {'+' if rest > 0 else '-'} {abs(rest):,.0f}: {_rest(setup, part)}"
        terms.append(Term(part, parts[part], "bytes", formula, ZERO))
    return terms


def _states_with_adapters(setup: Setup, stage: Stage, parts: dict[str, int]) -> list[Term]:
    trained = sum(size * copies for size, copies in adapter_tensors(setup, stage))
    ranks = f"ZeRO {setup.zero_stage} over {setup.zero_size} ranks, including padding"
    held = ""
    if setup.load_in_4bit:
        bits = 8 * four_bit_bytes(1 << 20, setup.double_quant) / (1 << 20)
        held = f", {stage.blocks:,} of them in 4 bits ({bits:.3f} bits including quantization constants),"
    whole = f"{stage.elements:,} frozen parameters{held} and {trained:,} adapter parameters"
    return [
        Term(part, parts[part], "bytes", f"{whole if part == 'weights' else words}, {ranks}", ZERO)
        for part, words in {
            "weights": "",
            "gradients": f"fp32 gradient sums for {trained:,} adapter parameters",
            "master_copy": f"fp32 master copy of {trained:,} adapter parameters",
            "optimizer": f"two fp32 moments for {trained:,} adapter parameters",
        }.items()
    ]


def _rest(setup: Setup, part: str) -> str:
    """Return the reason why a part of the states is not its parameters times the bytes per parameter."""
    if part == "weights" and setup.autocast:
        return "autocast's 16-bit copies of the matrices, and padding"
    if part == "weights" and setup.hpz_size > 1:
        return f"hpZ's second copy, sharded across {setup.hpz_size} ranks"
    if part == "optimizer" and setup.muon_steps:
        return "Muon has one moment per matrix; step counts; padding of the flat buffers"
    if part == "optimizer":
        return "step counts, and padding of the flat buffers"
    if setup.offload_optimizer != "none" or setup.offload_param != "none":
        return "in host memory or on NVMe"
    return "padding of the flat buffers"


def _activations(setup: Setup, stage: Stage, whole: int) -> list[Term]:
    micro_batches = activations.in_flight(setup, stage.number)
    kept = activations.kept(setup, stage)
    live = activations.live(setup, stage)
    tokens, hidden = setup.tokens_per_micro_batch, setup.shape.hidden_size
    terms = []
    for kind, size in zip(kept._fields, kept):
        each = size / (tokens * hidden * micro_batches)
        flying = f"{micro_batches:g} micro {'batch' if micro_batches == 1 else 'batches'} in flight"
        formula = (
            f"{tokens:,} tokens x {hidden:,} hidden x {each:,.4g} bytes in {stage.layers} layers "
            f"({KINDS[kind]}) x {flying}"
        )
        terms.append(Term(f"activations / {kind.replace('_', ' ')}", size, "bytes", formula, KORTHIKANTI))
    # The estimate is in whole bytes, so a rounding difference may remain.
    again = whole - sum(term.value for term in terms)
    words = f"{live:,.0f} bytes are allocated again while layers are recomputed" if live else "rounding"
    return [*terms, Term("activations / recomputed", again, "bytes", words, f"{KORTHIKANTI} and 5")]


def _buffers(setup: Setup, stage: Stage, parts: dict[str, int]) -> list[Term]:
    shape, tokens = setup.shape, setup.tokens_per_micro_batch
    vocabulary = shape.padded_vocab_size // setup.tensor_parallel_size
    chunk = min(setup.logits_chunk_tokens or tokens, tokens)
    own = setup.engine == "nbtrain"
    if own:
        logits = (
            f"a chunk of {chunk:,} tokens x {vocabulary:,} ids, and the hidden states with their gradient"
        )
        # Adapters leave the embeddings unchanged.
        if not setup.adapter_sizes:
            logits += f", and the fp32 gradient of the {vocabulary:,} x {shape.hidden_size:,} embeddings"
    else:
        size = habits_of(setup.engine).logits
        logits = product((tokens, "tokens"), (vocabulary, "ids"), (size, "bytes"))
        if waits := buffers.loss_gradients(setup, stage):
            logits += f", or {waits:,} bytes for the tied output layer's gradient, which autograd holds"
    if beside := buffers.logits_bytes(setup, stage) - parts["logits"]:
        logits += f"; minus {beside:,} bytes that recomputation reuses, counted in activations / recomputed"
    bucket = setup.reduce_bucket_elements
    stream = activations.stream_bytes(setup)
    allocated = sum(parts.values()) - parts["runtime"] - parts["reserve"]
    whole = dequantized_bytes(setup)
    made = f", {whole:,} bytes for a matrix restored from 4 bits" if whole else ""
    on_host = nvme_buffers(setup, stage) if not setup.on_gpu else 0
    copied = snapshot(setup, states(setup, stage)) if not setup.on_gpu else 0
    sources = {
        "logits": (logits, "nbtrain/parallel/cross_entropy.py" if own else habits_of(setup.engine).source),
        "communication": (
            f"buckets of {bucket:,} elements; with ZeRO 3, also up to {setup.max_live_elements:,} gathered "
            "parameters",
            f"{DEEPSPEED}, stage_1_and_2.py and stage3.py",
        ),
        "pipeline": (
            f"{stream:,} bytes x {parts['pipeline'] / max(stream, 1):g} sent outputs and receive buffers",
            "arXiv:2104.04473, section 2.2",
        ),
        "workspace": (
            f"the MLP's inner gradients and the gradient of its input{made}, or the step's flat gradient"
            + (f"; {on_host:,} bytes of NVMe buffers" if on_host else "")
            + (f"; {copied:,} bytes for the copy that is saved in the background" if copied else ""),
            f"{DEEPSPEED}, stage_1_and_2.py",
        ),
        "runtime": (
            f"CUDA context and NCCL for {counted(setup.world_size, 'rank')}"
            if setup.on_gpu
            else "a CPU process",
            "measured: planner/memory/buffers.py",
        ),
        "reserve": (
            product((allocated, "allocated bytes"), (buffers.RESERVE_FRACTION, "(lost to fragmentation)")),
            "fitted: planner/memory/buffers.py",
        ),
    }
    return [Term(part, parts[part], "bytes", formula, source) for part, (formula, source) in sources.items()]
