"""docs/parity.md: the tables of what `make parity` has found."""

from collections.abc import Iterable, Sequence
from typing import Any

from tests.parity.cases import GLOBAL_BATCH, MODEL, SEQ_LENGTH, STEPS, TOLERANCES
from tests.parity.reshaping import AT, LOSS_TOLERANCE
from tests.parity.resuming import INTERVAL
from tests.parity.resuming import STEPS as RESUME_STEPS

Record = dict[str, Any]

HEAD = """# Every layout against one process

`make parity` (tests/parity/matrix.py) writes this page; nobody edits it. The tests run a part: a pairwise \
cover in place of
the whole product (tests/parity/test_parity.py, test_resuming.py, test_reshaping.py).

{stamp}

The model has {layers} layers of {hidden}, {heads} heads, a vocabulary of 500 whose padding differs for \
each number of tensor-parallel
ranks, and sequences of {length}; a step is {batch} sequences, cut into several micro batches on every \
rank. Names: `dp` data,
`tp` tensor, `sp` Megatron sequence, `pp` pipeline, `us` Ulysses parallelism with their sizes, `z` the ZeRO \
stage, then whatever
differs from the plain run (fp32, one stream of tokens, nothing recomputed, nothing offloaded).
"""

PARITY = """
## One process

{steps} steps against a plain PyTorch loop of one process in fp32 around another model \
(tests/parity/plain_gpt.py, oracle.py:
torch's AdamW, no DeepSpeed, nothing of nbtrain's model). The columns are the largest deviations: of the \
loss and the gradient
norm of any step, of the validation loss, of any weight at the end, and of any parameter's moments at the \
end relative to their
norm. Every gradient has contributed to the moments, so the backward pass is compared parameter by parameter.

Allowed: {tolerances}.
"""

AUTOTP = """
## DeepSpeed's own tensor parallelism

DeepSpeed's AutoTP cuts the plain model's linear layers with its own code. Compared: the losses and gradient \
norms of {steps} steps.
"""

RESUME = """
## Interrupted

{steps} steps with dropout, a checkpoint every {interval}, interrupted three times and resumed each time, \
against a straight run. Every
loss and gradient norm that any of the jobs reported equals the straight run's bit for bit, and so does the \
SHA-256 of every
parameter's weight, master, moments and step in the last checkpoint. After each resume the certificate says \
bit-exact, and from
which step. The interrupted rank, step and file are drawn from the case's name.
"""

RESHAPE = """
## Reshaped

A checkpoint of step {at}, written by the layout at the left and loaded by the layout above, which first \
saves what it has loaded
and then trains {more} steps more. {number} pairs: in all of them the masters, the moments, the weights and \
Adam's step of every
parameter are byte-equal after reshaping (fp32 and bf16). The tables show the largest deviation of the loss \
in the steps after the load.
"""


def text(results: dict[str, list[Record]], stamp: str) -> str:
    """The whole page."""
    parts = [
        HEAD.format(
            stamp=stamp,
            layers=MODEL["num_layers"],
            hidden=MODEL["hidden_size"],
            heads=MODEL["num_attention_heads"],
            length=SEQ_LENGTH,
            batch=GLOBAL_BATCH,
        ),
        PARITY.format(steps=STEPS, tolerances=_tolerances()),
        _summary(results["parity"]),
        _parity(results["parity"]),
        AUTOTP.format(steps=STEPS),
        _table(
            ("layout", "loss", "gradient norm"),
            ((_code(record["name"]), *_numbers(record, "loss", "grad_norm")) for record in results["autotp"]),
        ),
        RESUME.format(steps=RESUME_STEPS, interval=INTERVAL),
        _table(
            ("layout", "ranks", "interruptions", "steps compared", "parameters compared"),
            (_resume(record) for record in results["resume"]),
        ),
        RESHAPE.format(at=AT, more=STEPS - AT, number=len(results["reshape"])),
        *(
            _reshape(
                [record for record in results["reshape"] if record.get("precision") == precision], precision
            )
            for precision in LOSS_TOLERANCE
        ),
        _failures([record for records in results.values() for record in records if not record["ok"]]),
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts if part).replace("\n\n\n", "\n\n")


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
            "its mean",
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


def _resume(record: Record) -> tuple[str, ...]:
    if "found" not in record:
        return (_code(record["name"]), "", "FAILED", "", "")
    found = record["found"]
    told = "; ".join(found["interruptions"])
    return (_code(record["name"]), str(record["ranks"]), told, str(found["steps"]), str(found["tensors"]))


def _reshape(records: Sequence[Record], precision: str) -> str:
    names = list(dict.fromkeys(record["from"] for record in records))
    found = {(record["from"], record["to"]): record["found"]["loss"] for record in records}
    rows = [(_code(origin), *(_number(found.get((origin, target))) for target in names)) for origin in names]
    title = f"\n{precision}, against {'one process' if precision == 'fp32' else 'the run that wrote it'}:\n\n"
    return title + _table(("", *map(_code, names)), rows) if names else ""


def _failures(records: Sequence[Record]) -> str:
    if not records:
        return ""
    said = (
        f"- {record['table']} {_code(record['name'])}: {record['error'].splitlines()[0]}"
        for record in records
    )
    return "\n## FAILED\n\n" + "\n".join(said)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _numbers(record: Record, *keys: str) -> list[str]:
    return [_number(record["found"][key]) if "found" in record else "FAILED" for key in keys]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _code(name: str) -> str:
    return f"`{name}`" if name else ""
