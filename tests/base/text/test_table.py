"""Tables in aligned columns, and tables that are fitted to a narrow terminal."""

import pytest

from nbtrain.base.text.table import fitted

RUNS = [
    ("NAME", "STATE", "STEP", "LOSS", "CAUSE"),
    (
        "gpt-tiny",
        "SUCCEEDED",
        "400/400",
        "3.1",
        "all steps are trained and saved, and the test loss is 3.2",
    ),
    ("gpt-b", "FAILED", "12/400", "6.9", "rank 0 failed"),
]


def test_a_table_is_one_line_for_each_row_where_it_has_room():
    """A table has one line per row if the terminal is wide enough or if there is no terminal."""
    lines = fitted(RUNS)
    assert lines[0] == "NAME      STATE      STEP     LOSS  CAUSE"
    assert lines[2] == "gpt-b     FAILED     12/400   6.9   rank 0 failed"
    assert fitted(RUNS, width=max(map(len, lines))) == lines
    assert fitted([("a", "n"), ("b", "12")], right={1}) == ["a   n", "b  12"]


@pytest.mark.parametrize("width", range(20, 120, 7))
def test_a_fitted_table_keeps_to_its_width_and_loses_no_word(width):
    """A fitted table keeps to its width, unless a single word is longer, and omits no word."""
    lines = fitted(RUNS, width=width)
    longest = max(len(word) for row in RUNS for cell in row for word in cell.split())
    assert max(map(len, lines)) <= max(width, longest + len("gpt-tiny  "))
    words = " ".join(lines).split()
    for row in RUNS:
        for cell in row:
            for word in cell.split():
                assert word in words


def test_sentences_without_room_go_below_their_row():
    """Long sentences move below their row, and the other columns are unchanged."""
    assert fitted(RUNS, width=60) == [
        "NAME      STATE      STEP     LOSS",
        "    CAUSE",
        "gpt-tiny  SUCCEEDED  400/400  3.1",
        "    all steps are trained and saved, and the test loss is",
        "    3.2",
        "gpt-b     FAILED     12/400   6.9",
        "    rank 0 failed",
    ]
    # A row of `nbtrain doctor` that only continues the sentence above it makes no empty line.
    rows = [
        ("note", "devices", "no GPU, 2 cores"),
        ("", "", "-> gpt-tiny trains here, larger runs elsewhere"),
    ]
    assert fitted(rows, width=40) == [
        "note  devices",
        "    no GPU, 2 cores",
        "    -> gpt-tiny trains here, larger runs",
        "    elsewhere",
    ]


def test_the_widest_column_is_broken_first():
    rows = [("", "layout", "memory"), ("fused", "TP 2 x DP 8, SP, ZeRO 1, micro-batch 2", "74.2 GiB")]
    assert fitted(rows, width=40) == [
        "       layout                   memory",
        "fused  TP 2 x DP 8, SP, ZeRO    74.2 GiB",
        "       1, micro-batch 2",
    ]


def test_a_table_of_many_columns_is_divided():
    """A table with many columns is split into parts that begin with the first column."""
    rows = [("key", *(f"run-{number}" for number in range(8))), ("lr", *("0.00123" for _ in range(8)))]
    assert fitted(rows, range(1, 9), width=42) == [
        "key    run-0    run-1    run-2    run-3",
        "lr   0.00123  0.00123  0.00123  0.00123",
        "",
        "key    run-4    run-5    run-6    run-7",
        "lr   0.00123  0.00123  0.00123  0.00123",
    ]


def test_wide_characters_keep_the_columns_aligned():
    """A Chinese character takes two columns of a terminal, and a combining accent none."""
    rows = [("NAME", "NOTE"), ("唐诗", "12"), ("cafe\u0301", "7"), ("gpt-tiny", "345")]
    assert fitted(rows, right={1}) == [
        "NAME      NOTE",
        "唐诗        12",
        "cafe\u0301         7",
        "gpt-tiny   345",
    ]
    assert fitted([("run", "唐诗 三百首"), ("b", "x")], width=11) == ["run  唐诗", "     三百首", "b    x"]
