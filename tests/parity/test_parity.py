"""Every layout follows the fp32 curve of one process: a small set of cases that covers every two ways of
sharding a run.

`make parity` compares every combination (matrix.py, docs/evidence/parity.md). In these tests, every two kinds
of parallelism, every kind and every 16-bit format with every ZeRO stage, and every other choice occur in at
least one case (pairwise.py), and a few more layouts are added.

Both sides have the same initial weights, the same samples in each step, and no dropout (ranks draw different
numbers). The reference is plain torch, without DeepSpeed and without nbtrain's model (plain_gpt.py,
oracle.py). The tests compare the loss and gradient norm of every step, the loss of every validation, and at
the end each parameter's weight and Adam moments. Every gradient contributes to the moments, so a gradient
that is missing, doubled or summed over the wrong ranks shows under its parameter's name, even if Adam's
update and the total norm hide it. The vocabulary's padding differs between 1, 2, 4 and 8 tensor-parallel
ranks.

Tolerances. In fp32, sums are computed in another order, which changes the last bits: a loss of 6 has steps of
2^-21 = 4.8e-7; two of them were measured, four are allowed. 16-bit formats round each weight and activation
to 2^-9 (bf16) or 2^-12 (fp16) of itself. These errors are independent and average out over 512 tokens. The
measured deviations were 1.7e-4 of a loss, 4.6e-3 of a norm (which contains the rounding of each gradient
rather than their mean), and 2 % of a parameter's moments; the tests allow 1e-3, 1e-2 and 10 %. A wrong scale
or a missing gradient changes the loss by 1e-2 and the moments by 100 %.
"""

import itertools
import re

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from tests.parity.cases import Case, parity_cases
from tests.parity.pairwise import CHOICES, all_pairs, case_of, cover, covered, goes_together, wanted
from tests.parity.reshaping import reshape_cases, reshape_cases_bf16
from tests.parity.resuming import resume_cases
from tests.parity.runner import exceeds
from tests.train import launch

CASES = {
    case.name: case
    for case in (
        Case(zero=0),
        *cover(),
        Case(dp=4, zero=3, hpz=2),
        Case(dp=2, precision="fp16"),
        Case(tp=2, us=2, model="grouped"),
        Case(cp=2, zero=3, data="packed", model="all"),
        Case(pp=2, cp=2, data="documents", precision="bf16"),
    )
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_layout_follows_one_process(runner, name):
    found = runner.run(runner.parity(CASES[name]))
    assert not (more := exceeds(found, CASES[name])), more


@pytest.mark.slow
def test_the_reference_learns(runner):
    """The reference's loss falls by much more than any tolerance, with every kind of data."""
    for data in ("stream", "documents", "masked", "packed", "ramp"):
        losses = runner.reference(data).losses
        assert 6.1 < losses[0] < 6.3, data
        assert losses[-1] < losses[0] - 0.05, data


@pytest.mark.slow
def test_the_cover_holds_every_wanted_pair_that_may_be_trained(tmp_path):
    """The set of cases covers every wanted pair that can be trained and every choice; the configuration rules
    reject the pairs that all_pairs() lacks.
    """
    tiny = tmp_path / "tiny.yaml"
    tiny.write_text(launch.TINY)
    met = set()
    for case in cover():
        load(str(tiny), case.overrides)
        row = {key: (case.tp, case.sp) if key == "tensor" else getattr(case, key) for key in CHOICES}
        assert goes_together(row)
        met |= covered(row)
    assert not wanted() - met
    left_out = 0
    for (first, ones), (second, others) in itertools.combinations(CHOICES.items(), 2):
        for one, other in itertools.product(ones, others):
            row = {first: one, second: other}
            if frozenset(row.items()) in all_pairs():
                continue
            left_out += 1
            stages = [row["zero"]] if "zero" in row else CHOICES["zero"]
            for stage in stages:
                with pytest.raises(ConfigError, match=r"cannot be combined with|needs"):
                    load(str(tiny), case_of({**row, "zero": stage}).overrides)
    assert left_out


def test_names_of_cases_are_names_that_runs_may_have():
    names = [
        case.name for case in (*parity_cases(), *resume_cases(), *reshape_cases(), *reshape_cases_bf16())
    ]
    assert [name for name in names if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name)] == []
