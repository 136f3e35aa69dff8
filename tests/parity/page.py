"""Text of docs/evidence/parity.md: the tables with the results of `make parity`."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from tests.parity.cases import GLOBAL_BATCH, MODEL, STEPS, TOLERANCES
from tests.parity.reshaping import AT
from tests.parity.resuming import INTERVAL
from tests.parity.resuming import STEPS as RESUME_STEPS

Record = dict[str, Any]
WIDTH = 110

HEAD = """# Every layout against one process

`make parity` (tests/parity/matrix.py) writes this page; it is not edited by hand. `make test` runs a part
of it: pairs of settings instead of all combinations (tests/parity/test_parity.py, test_resuming.py,
test_reshaping.py).
"""

HEAD_ULYSSES = """# Ulysses with tensor and pipeline parallelism, against one process

`make parity PARITY_ARGS=--ulysses` (tests/parity/matrix.py) writes this page; it is not edited by hand. In
these layouts, ranks share each sequence by Ulysses, and the model by tensor parallelism, by pipeline
parallelism or by both. `make parity` runs them too, for [every layout against one process](parity.md).
"""

HEAD_CONTEXT = """# Context parallelism, against one process

`make parity PARITY_ARGS=--context` (tests/parity/matrix.py) writes this page; it is not edited by hand. In
these layouts, ranks share each sequence by context parallelism: each gathers the keys and values of the whole
sequence. `make parity` runs them too, for [every layout against one process](parity.md).
"""

MISSING = """
This page has {there} of {wanted} results. The command runs the others when it is called again.
"""

MODEL_AND_NAMES = """
The model has {num_layers} layers, hidden size {hidden_size}, {num_attention_heads} heads, sequences of
{seq_length} tokens and a vocabulary of 500 tokens, whose padding differs for each number of
tensor-parallel ranks. A step has {batch} sequences, in several micro-batches on every rank.

The name of a run gives the sizes of data (`dp`), tensor (`tp`), pipeline (`pp`), Ulysses (`us`) and context
(`cp`) parallelism, Megatron sequence parallelism (`sp`) and the ZeRO stage (`z`), followed by the
settings that differ from the default: fp32, one stream of tokens, no recomputation, no offloading.
"""

PARITY = """
## One process

{steps} steps of every run are compared with a plain PyTorch loop in one process, in fp32, with a second
implementation of the model (tests/parity/plain_gpt.py, oracle.py: torch's AdamW, without DeepSpeed and
without nbtrain's model). The columns are the largest deviations: of the loss and the gradient norm at any
step, of the validation loss, of any weight at the end, and of any parameter's moments at the end,
relative to their norm. Since every gradient contributes to the moments, they compare the backward pass
for each parameter. "weight (mean)" is the mean deviation over the weights of the worst parameter.

Allowed: {tolerances}.
"""

AUTOTP = """
## DeepSpeed's own tensor parallelism

DeepSpeed's AutoTP shards the linear layers of the plain model with its own code. The losses and gradient
norms of {steps} steps are compared with nbtrain's.
"""

RESUME = """
## Interrupted

Runs of {steps} steps with dropout and a checkpoint every {interval} steps were interrupted three times,
resumed each time, and compared with a run without interruption. Every loss and gradient norm that any of
the jobs reported equals that of the uninterrupted run, bit for bit. So does the SHA-256 of every
parameter's weight, master weight, moments and Adam step in the last checkpoint. The report of each resume
says bit-exact and names the right step. The interrupted rank, step and file are drawn from the name of
the run.
"""

RESHAPE = """
## Reshaped

The layout of the row writes a checkpoint at step {at}. The layout of the column loads it, saves what it
has loaded before it trains, and then trains {more} more steps. In all {number} pairs, the master weights,
moments, weights and Adam step of every parameter are the same bytes after reshaping. The tables show the
largest deviation of the loss in the steps after loading.
"""


def text(head: str, results: dict[str, list[Record]], stamp: str, wanted: int) -> str:
    """Return the text of the whole page; sections without results are omitted.

    `wanted` is the number of results of a complete page.
    """
    records, autotp, resumed = results["reshape"], results["autotp"], results["resume"]
    there = sum(map(len, results.values()))
    parts = [
        head,
        _wrapped(MISSING, there=there, wanted=wanted) if there < wanted else "",
        # On one line, because the check for a stale page searches for it.
        stamp,
        _wrapped(MODEL_AND_NAMES, batch=GLOBAL_BATCH, **MODEL),
        _wrapped(PARITY, steps=STEPS, tolerances=_tolerances()),
        _summary(results["parity"]),
        _parity(results["parity"]),
        _wrapped(AUTOTP, steps=STEPS) if autotp else "",
        _autotp(autotp) if autotp else "",
        _wrapped(RESUME, steps=RESUME_STEPS, interval=INTERVAL) if resumed else "",
        _resumed(resumed) if resumed else "",
        _wrapped(RESHAPE, at=AT, more=STEPS - AT, number=len(records)) if records else "",
        *(
            _reshape([record for record in records if record.get("kind") == kind], kind)
            for kind in dict.fromkeys(record.get("kind", "") for record in records)
        ),
        _failures([record for table in results.values() for record in table if not record["ok"]]),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _wrapped(text: str, **values: Any) -> str:
    """Fill in the fields of `text` and wrap its paragraphs at the page's width."""
    paragraphs = text.format(**values).strip("\n").split("\n\n")
    return "\n\n".join(textwrap.fill(part, WIDTH, break_on_hyphens=False) for part in paragraphs)


def _tolerances() -> str:
    kinds = {"fp32": TOLERANCES["fp32"], "16-bit formats": TOLERANCES["bf16"]}
    return "; ".join(
        f"{kind}: loss {allowed.loss:g}, norm {allowed.grad_norm:g}, validation {allowed.validation_loss:g}, "
        f"weight {allowed.weights:g}, moments {allowed.exp_avg:g}"
        for kind, allowed in kinds.items()
    )


def _summary(records: Sequence[Record]) -> str:
    rows = []
    for precision in TOLERANCES:
        found = [record["found"] for record in records if record.get("precision") == precision]
        if found:
            worst = {key: max(entry[key] for entry in found) for key in found[0]}
            rows.append((precision, str(len(found)), *_numbers({"found": worst}, *worst)))
    return _table(
        (
            "precision",
            "runs",
            "loss",
            "gradient norm",
            "validation",
            "weight",
            "weight (mean)",
            "exp_avg",
            "exp_avg_sq",
        ),
        rows,
    )


def _parity(records: Sequence[Record]) -> str:
    return _table(
        ("run", "ranks", "loss", "gradient norm", "validation", "weight", "exp_avg", "exp_avg_sq"),
        (
            (
                _code(record["name"]),
                str(record.get("ranks", "")),
                *_numbers(record, "loss", "grad_norm", "validation_loss", "weights", "exp_avg", "exp_avg_sq"),
            )
            for record in records
        ),
    )


def _autotp(records: Sequence[Record]) -> str:
    rows = ((_code(record["name"]), *_numbers(record, "loss", "grad_norm")) for record in records)
    return _table(("layout", "loss", "gradient norm"), rows)


def _resumed(records: Sequence[Record]) -> str:
    head = ("layout", "ranks", "interruptions", "steps compared", "parameters compared")
    return _table(head, map(_resume, records))


def _resume(record: Record) -> tuple[str, ...]:
    if "found" not in record:
        return (_code(record["name"]), "", "FAILED", "", "")
    found = record["found"]
    interruptions = "; ".join(found["interruptions"])
    compared = str(found["steps"]), str(found["tensors"])
    return (_code(record["name"]), str(record["ranks"]), interruptions, *compared)


def _reshape(records: Sequence[Record], kind: str) -> str:
    origins = list(dict.fromkeys(record["from"] for record in records))
    names = list(dict.fromkeys([*origins, *(record["to"] for record in records)]))
    found = {(record["from"], record["to"]): record["found"]["loss"] for record in records}
    rows = [
        (_code(origin), *(_number(found.get((origin, target))) for target in names)) for origin in origins
    ]
    reference = "one process" if kind.startswith("fp32") else "the run that wrote the checkpoint"
    return f"{kind}, compared with {reference}:\n\n" + _table(("", *map(_code, names)), rows) if names else ""


def _failures(records: Sequence[Record]) -> str:
    if not records:
        return ""
    lines = (
        f"- {record['table']} {_code(record['name'])}: {record['error'].splitlines()[0]}"
        for record in records
    )
    return "## FAILED\n\n" + "\n".join(lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _numbers(record: Record, *keys: str) -> list[str]:
    return [_number(record["found"][key]) if "found" in record else "FAILED" for key in keys]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _code(name: str) -> str:
    return f"`{name}`" if name else ""
