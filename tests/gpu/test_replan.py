"""Today's plans next to measured values, and rows that are marked old."""

from tests.gpu import memory, page, replan
from tests.gpu.steps import BY_NAME, PAGE

GPU = "NVIDIA H200"
ROWS = page.read(PAGE.with_name("gpu.json"))[f"1 x {GPU}"].rows


def test_todays_plan_of_each_measured_memory_is_within_the_limit():
    """States, allocated bytes and the driver's count of all measured runs, by today's plan."""
    assert len(ROWS["memory"]) >= 3
    for row in ROWS["memory"].values():
        values = replan.today("memory", row, GPU)
        assert list(values) == ["states, planned", "allocated, planned", "of the device, planned"], row[
            "name"
        ]
        for column, value in values.items():
            off = float(value.partition("(")[2].rstrip("%)")) / 100
            assert abs(off) <= (0.01 if "device" not in column else memory.ALLOWED), (row["name"], column)


def test_todays_plan_of_the_measured_speed():
    row = ROWS["speed"]["125m, nbtrain"]
    planned = float(replan.today("speed", row, GPU)["planned"].partition(" ")[0].replace(",", ""))
    assert abs(planned / 380_831 - 1) < 0.05


def test_what_has_changed_is_about_rows_that_are_there():
    """An entry whose row was measured again would be a claim about nothing."""
    keys = {(step, name, row["key"]) for step, rows in ROWS.items() for name, row in rows.items()}
    assert set(replan.SINCE) <= keys


def test_a_new_row_is_not_old():
    """A row with today's plan and another key has neither the mark nor a note, and shows one number."""
    row = ROWS["memory"]["125m as its YAML says"]
    new = {**row, "key": "new", "values": {**row["values"], **replan.today("memory", row, GPU)}}
    assert replan.is_old("memory", row, GPU) and not replan.is_old("memory", new, GPU)
    assert replan.since("memory", new) == ""
    step = BY_NAME["memory"]
    table = page._table(step, {new["name"]: new}, GPU)
    assert "(old)" not in table and " then" not in table
    old = page._table(step, {row["name"]: row}, GPU)
    assert "| 125m as its YAML says (old) | 1.72 | 1.71 (-0.4%) today, 2.12 (+23.8%) then |" in old


def test_cases_that_were_not_run_have_a_prediction():
    """1.3B's speed and the other kinds of recomputation are planned before they are measured."""
    left = replan.not_run("speed", ROWS["speed"], GPU)
    assert [words.partition(": ")[0] for words in left] == [
        "1.3b, nbtrain",
        "125m, nbtrain, compiled",
        "1.3b, nbtrain, compiled",
    ]
    assert all(words.endswith(" tokens/s") for words in left)
    memories = replan.not_run("memory", ROWS["memory"], GPU)
    assert len(memories) + len(ROWS["memory"]) == len(list(memory.wanted(on_gpu=True)))
    assert replan.not_run("flash", {}, GPU) == replan.not_run("speed", {}, "Made GPU") == []


def test_unknown_cases_and_gpus_keep_their_recorded_plan():
    row = ROWS["memory"]["125m as its YAML says"]
    assert replan.today("memory", {**row, "name": "a removed case"}, GPU) == {}
    assert replan.today("memory", row, "Made GPU") == {}
    assert replan.today("flash", row, GPU) == {}
