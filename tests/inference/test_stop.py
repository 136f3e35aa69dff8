"""Stop strings are found wherever a streamed text is split."""

import random

import pytest

from nbtrain.inference.stop import StopStrings


def pieces(text: str, cuts: list[int]) -> list[str]:
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)])]


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one\n\ntwo", ["\n\n"], "one"),
        ("aabaac", ["aac"], "aab"),
        ("aaab", ["aab"], "a"),
        ("Observe:", ["serve", "Observe:"], "Ob"),
        ("no end", ["ended"], "no end"),
        ("abc", ["bc", "b"], "a"),
        ("x<|user|>", ["<|user|>", "<|assistant|>"], "x"),
    ],
)
def test_nothing_of_a_stop_string_comes_out(text, stops, expected):
    """However the text is split, everything before the stop string is returned exactly once, and no part of
    the stop string is returned.
    """
    chance = random.Random(1)
    for _ in range(200):
        cuts = sorted(chance.sample(range(len(text) + 1), chance.randint(0, len(text))))
        held, given = StopStrings(stops), ""
        for piece in pieces(text, cuts):
            given += held.add(piece)
            assert expected.startswith(given)
            if held.found is not None:
                break
        else:
            given += held.held_back()
        assert given == expected
        assert (held.found is not None) == (expected != text)


def test_of_two_that_end_together_the_longer_is_named():
    held = StopStrings(["b", "ab"])
    assert held.add("xabcd") == "x" and held.found == "ab"


def test_text_is_held_back_only_while_a_stop_string_may_follow():
    held = StopStrings(["stop"])
    assert [held.add(piece) for piece in ("it st", "aye", " sto", "r")] == ["it ", "staye", " ", "stor"]
