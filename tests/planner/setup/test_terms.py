"""Terms of an estimate: their sums, their paths, and the text of a product."""

import pytest

from nbtrain.planner.setup.terms import Term, below, product, scaled, total

WEIGHTS = Term("weights", 20.0, "bytes", "10 parameters x 2 bytes", "a paper")
MLP = Term("activations / MLP", 5.0, "bytes", "5", "a paper")
TERMS = [
    WEIGHTS,
    MLP,
    Term("activations", 1.0, "bytes", "1", "a paper"),
    Term("step", 3.0, "seconds", "3", ""),
]


def test_only_terms_of_one_unit_are_added():
    assert (total(TERMS, "bytes"), total(TERMS, "seconds"), total(TERMS, "FLOPs")) == (26, 3, 0)


def test_a_path_begins_with_a_whole_name():
    assert [term.value for term in below(TERMS, "activations")] == [5, 1]
    assert below(TERMS, "act") == []


def test_a_scaled_term_says_why():
    twice = scaled(WEIGHTS, 2, "copies")
    assert (twice.value, twice.formula) == (40, "(10 parameters x 2 bytes) x 2 copies")
    assert (twice.name, twice.unit, twice.source) == ("weights", "bytes", "a paper")


@pytest.mark.parametrize(
    ("factors", "text"),
    [
        (
            [(126_638_592, "parameters"), (2, "bytes"), (1 / 4, "ranks")],
            "126,638,592 parameters x 2 bytes / 4 ranks",
        ),
        ([(12, "layers"), (1, "ranks"), (0.4, "of them")], "12 layers x 0.4 of them"),
        ([(1, "layer"), (34.5, "bytes")], "1 layer x 34.5 bytes"),
    ],
)
def test_products_are_written_with_their_numbers(factors, text):
    assert product(*factors) == text
