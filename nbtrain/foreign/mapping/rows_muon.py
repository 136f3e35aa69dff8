"""Rows of the mapping: Muon, which Megatron-LM has had since 2025 and Megatron-DeepSpeed lacks.

Muon's settings match NVIDIA's emerging optimizers, with nesterov off and momentum 0.9 by default. That
package calls the coefficients of nbtrain's Newton-Schulz iteration `simple`.
"""

from nbtrain.foreign.mapping.conversion import Reading, Writing
from nbtrain.foreign.mapping.rows_model import Row

COEFFICIENTS = "simple"
# {field: name of the value in the program's parser (dest)}
SAME = {
    "optimizer.muon_momentum": "muon_momentum",
    "optimizer.muon_nesterov": "muon_nesterov",
    "optimizer.muon_num_ns_steps": "muon_num_ns_steps",
    "optimizer.muon_scale_mode": "muon_scale_mode",
    "optimizer.muon_extra_scale_factor": "muon_extra_scale_factor",
}
# {name of the value in the program's parser (dest): (what nbtrain does, the field to override, message)}
FIXED = {
    "muon_coefficient_type": (
        COEFFICIENTS,
        "optimizer.muon_num_ns_steps",
        "these Newton-Schulz coefficients differ from nbtrain's",
    ),
    "muon_tp_mode": (
        "duplicated",
        "optimizer.type",
        "the program would orthogonalize parts of matrices instead of whole matrices",
    ),
    "muon_split_qkv": (
        True,
        "optimizer.type",
        "the program would orthogonalize queries, keys and values as one matrix",
    ),
    "muon_scalar_optimizer": (
        "adam",
        "optimizer.type",
        "the program would update the other parameters with an optimizer other than AdamW",
    ),
}


def _read(source: Reading) -> None:
    kind, place = source.value("optimizer"), source.place("optimizer")
    if kind in (None, "adam"):
        return
    if kind not in ("muon", "dist_muon"):
        source.fail(
            "optimizer.type",
            place,
            f"--optimizer {kind}: only adam and muon can be imported. Set one of them.",
        )
        return
    source.set("optimizer.type", "Muon", "optimizer")
    for key, dest in SAME.items():
        source.set(key, source.value(dest), dest)
    for dest, (own, key, words) in FIXED.items():
        # distributed and duplicated compute the same update in different ways.
        if (value := source.value(dest)) not in (own, "distributed"):
            flag = source.table.by_dest[dest][0].flags[0]
            where = source.place(dest)
            source.fail(
                key,
                where,
                f"{flag} {value}: {words}. To use nbtrain's {own}, add {key}=... to the command.",
            )


def _write(target: Writing) -> None:
    optimizer = target.config.optimizer
    if optimizer.type != "Muon":
        return
    if not target.has("muon_momentum"):
        target.cannot("optimizer.type", "has no Muon: it trains all parameters with Adam")
        return
    target.add("optimizer", "muon")
    for key, dest in SAME.items():
        value = getattr(optimizer, key.partition(".")[2])
        if value is not False:
            target.add(dest, value)
    target.add("muon_coefficient_type", COEFFICIENTS)
    if optimizer.muon_lr not in (None, target.config.lr_schedule.lr):
        target.cannot("optimizer.muon_lr", "uses the same learning rate for matrices and other parameters")


MUON_ROWS = (
    Row(("optimizer.type", "optimizer.muon_lr", *SAME), ("optimizer", *SAME.values(), *FIXED), _read, _write),
)
