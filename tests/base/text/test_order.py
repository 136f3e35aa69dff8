"""The sort order of names in lists."""

from nbtrain.base.text.order import natural


def test_names_with_numbers_stand_in_the_order_of_the_numbers() -> None:
    names = ["set-10", "set-2", "loss/web", "set-1", "gpt-1.3b", "gpt-13b", "set", "2", "10"]
    expected = ["2", "10", "gpt-1.3b", "gpt-13b", "loss/web", "set", "set-1", "set-2", "set-10"]
    assert sorted(names, key=natural) == expected
