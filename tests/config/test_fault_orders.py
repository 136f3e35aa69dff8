"""Parsing NBTRAIN_FAULTS."""

import json

import pytest

from nbtrain.config.fault_orders import KINDS, read_orders


def test_orders_are_read():
    """Each kind of fault is parsed with its fields."""
    orders = [{"step": 6, "do": kind, "rank": 1, "attempt": 0} for kind in KINDS]
    for order, field, value in ((1, "factor", 2.5), (3, "signal", 11), (6, "message", "boom")):
        orders[order][field] = value
    assert read_orders(json.dumps(orders)) == orders
    assert read_orders("[]") == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "garbage",
            "is not JSON (Expecting value: line 1 column 1 (char 0)); it must be a list of orders such as",
        ),
        ('{"step": 6, "do": "nan"}', "instead of a list; it must be a list of orders such as"),
        ('["nan"]', 'order 0 ("nan"): must be an object such as {"step": 6, "do": "nan"}'),
        ('[{"do": "nan"}]', "must set step"),
        ("[{}]", "must set step and do"),
        ('[{"step": 1, "do": "nan"}, {"step": 1, "do": "explode"}]', "order 1 ({"),
        ('[{"step": 1, "do": "explode"}]', "do must be one of nan, spike, weights, kill"),
        ('[{"step": 1, "do": ["nan"]}]', "do must be one of"),
        ('[{"step": "6", "do": "nan"}]', "step must be a whole number of at least 0"),
        ('[{"step": 6, "do": "nan", "rank": -1}]', "rank must be a whole number of at least 0"),
        ('[{"step": 6, "do": "nan", "attempt": true}]', "attempt must be a whole number"),
        ('[{"step": 6, "do": "raise"}]', "with do: raise, an order must set message"),
        (
            '[{"step": 6, "do": "nan", "message": "x"}]',
            "cannot set message; with do: nan, an order can set rank, attempt, step, do",
        ),
        ('[{"step": 6, "do": "spike", "factor": "9"}]', "factor must be a number"),
        ('[{"step": 6, "do": "kill", "signal": 900}]', "signal must be a signal number"),
    ],
)
def test_what_is_no_order_is_refused_with_the_reason(text, reason):
    with pytest.raises(ValueError) as caught:
        read_orders(text)
    assert reason in str(caught.value)
