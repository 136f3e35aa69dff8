"""YAML with line numbers: accepted and refused input, and never a traceback."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtrain.base.errors import ConfigError
from nbtrain.config import yaml_source
from nbtrain.config.load import load
from nbtrain.config.yaml_source import (
    Located,
    MisleadingValue,
    parse_value,
    parse_yaml,
    read_yaml,
    show,
    to_text,
)
from tests.fuzzing import num_cases


def test_every_key_knows_its_line():
    """Nested keys and list items have line numbers, in block and flow style."""
    located = parse_yaml("a: 1\nb:\n  c: {d: 2,\n    e: 3}\n  f:\n    - g: 4\n    - 5\n", "x.yaml")
    assert located.value == {"a": 1, "b": {"c": {"d": 2, "e": 3}, "f": [{"g": 4}, 5]}}
    places = {key: int(place.rpartition(":")[2]) for key, place in located.origins.items()}
    assert places == {
        "a": 1,
        "b": 2,
        "b.c": 3,
        "b.c.d": 3,
        "b.c.e": 4,
        "b.f": 5,
        "b.f.0": 6,
        "b.f.0.g": 6,
        "b.f.1": 7,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("6e-4", 6e-4),
        ("2.5e9", 2.5e9),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("8_000", 8000),
        ("'6e-4'", "6e-4"),
        ("949,50,1", "949,50,1"),
    ],
)
def test_numbers_are_read_as_people_write_them(text, value):
    """6e-4 is read as a number, and a quoted value as text."""
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "x.yaml: the file is empty; a run YAML is a mapping with at least `extends:`."),
        ("- 1", "x.yaml:1: a run YAML is a mapping of sections."),
        ("a: 1\na: 2", "x.yaml:2: a is written twice; keep one."),
        ("b:\n  a: 1\n  a: 2", "x.yaml:3: b.a is written twice; keep one."),
        ("1: 3", "x.yaml:1: the key 1 must be text."),
        ("[1]: 3", "x.yaml:1: the key ? must be text."),
        ("a: [1\nb", "x.yaml:2: not YAML: expected ',' or ']', but got '<stream end>'."),
        (
            "a: &x {b: *x}",
            "x.yaml:1: not YAML: anchors and aliases are not supported; use `extends:` to share settings.",
        ),
        ("a: !!str 5", "x.yaml:1: not YAML: tags such as !!str are not supported; remove the tag."),
        ("a: 1\nb: ! [5]", "x.yaml:2: not YAML: tags such as ! are not supported; remove the tag."),
        (
            "a: 1\nno: 1",
            "x.yaml:2: the key no: YAML reads this as false. Write false, or 'no' with the quotes for text.",
        ),
        (
            "a: !!python/object:os.system x",
            "x.yaml:1: not YAML: tags such as !!python/object:os.system are not supported; remove the tag.",
        ),
        ("[" * 2000, "x.yaml: not a run YAML: nested too deeply."),
        ("a: 1\n---\nb: 2", "x.yaml:2: not YAML: but found another document."),
    ],
)
def test_what_is_no_run_yaml_is_reported_with_its_line(text, expected):
    """Each invalid file is reported in one sentence with its line."""
    with pytest.raises(ConfigError) as raised:
        parse_yaml(text, "x.yaml")
    assert str(raised.value) == expected


MISLEADING = {
    "1:30": "YAML reads this as 90, a number in base 60. Write 90, or '1:30' with the quotes for text.",
    "-1:30": "YAML reads this as -90, a number in base 60. Write -90, or '-1:30' with the quotes for text.",
    "1:30.5": "YAML reads this as 90.5, a number in base 60. Write 90.5, or '1:30.5' with the quotes for "
    "text.",
    "010": "YAML reads this as 8, an octal number. Write 8 or 10, or '010' with the quotes for text.",
    "-0_17": "YAML reads this as -15, an octal number. Write -15 or -17, or '-0_17' with the quotes for "
    "text.",
    "0o10": "YAML 1.1 reads this as text and YAML 1.2 as 8, an octal number. Write 8, or '0o10' with the "
    "quotes for text.",
    "0b11": "YAML reads this as 3, a binary number. Write 3, or '0b11' with the quotes for text.",
    "yes": "YAML reads this as true. Write true, or 'yes' with the quotes for text.",
    "On": "YAML reads this as true. Write true, or 'On' with the quotes for text.",
    "NO": "YAML reads this as false. Write false, or 'NO' with the quotes for text.",
    "off": "YAML reads this as false. Write false, or 'off' with the quotes for text.",
    "2024-01-01": "YAML reads this as a date, which no field accepts. Write '2024-01-01' with the quotes for "
    "text.",
    "2024-13-45": "YAML reads this as a date, which no field accepts. Write '2024-13-45' with the quotes for "
    "text.",
    "=": "YAML 1.1 reads this as a default value, which no field accepts. Write '=' with the "
    "quotes for text.",
    "<<": "YAML 1.1 reads this as a merge of mappings, which is not supported: use `extends:` "
    "instead. Write "
    "'<<' with the quotes for text.",
    "9" * 101: "has 101 digits; a number may have at most 100.",
}


@pytest.mark.parametrize("key", ["=", "<<"])
def test_a_key_that_yaml_1_1_reads_as_its_own_is_refused(key):
    """Keys that YAML 1.1 converts to other values, such as on, are refused in files
    and overrides unless quoted.
    """
    with pytest.raises(ConfigError) as raised:
        parse_yaml(f"a:\n  {key}: {{b: 1}}", "x.yaml")
    assert str(raised.value) == f"x.yaml:2: the key {key}: {MISLEADING[key]}"
    with pytest.raises(MisleadingValue) as refused:
        parse_value(f"{{a: 1, {key}: {{b: 1}}}}")
    assert (str(refused.value), refused.value.text) == (MISLEADING[key], key)
    assert parse_yaml(f"'{key}': 1", "x.yaml").value == parse_value(f"{{'{key}': 1}}") == {key: 1}


@pytest.mark.parametrize("text", MISLEADING)
def test_what_yaml_reads_as_something_else_is_refused(text):
    """A value that YAML reads as something unexpected is refused with its line and key,
    also in overrides and lists.
    """
    with pytest.raises(ConfigError) as raised:
        parse_yaml(f"a:\n  b: [1, {text}]", "x.yaml")
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    assert str(raised.value) == f"x.yaml:2: a.b.1 = {shown}: {MISLEADING[text]}"
    with pytest.raises(MisleadingValue) as refused:
        parse_value(text)
    assert (str(refused.value), refused.value.text) == (MISLEADING[text], text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("TRUE", True),
        ("0", 0),
        ("-0", 0),
        ("07", 7),
        ("0x1F", 31),
        ("'yes'", "yes"),
        ("y", "y"),
        ("00:30", "00:30"),
        ("9" * 100, 10**100 - 1),
        ("~", None),
    ],
)
def test_what_reads_as_it_looks_is_read(text, value):
    """true and false, quoted text, and numbers that all YAML readers read alike are accepted."""
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_files_that_cannot_be_read_are_reported(tmp_path):
    """A missing file, a folder, invalid UTF-8 and a control character are reported."""
    for name, content in (("latin.yaml", b"a: \xff"), ("nul.yaml", b"a: \x00")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(
            ConfigError, match=r"cannot be read: .*UTF-8|nul\.yaml: not YAML: unacceptable character"
        ):
            read_yaml(tmp_path / name)
    with pytest.raises(ConfigError, match=r"missing\.yaml: no such file\.$"):
        read_yaml(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path)


@settings(max_examples=num_cases(200), deadline=None)
@given(st.text(alphabet=st.sampled_from("ab:-{}[]&*!|>'\"%@#, \n\t01.e?~"), max_size=40))
def test_any_text_is_read_or_refused_in_one_sentence(text):
    """Every input is either read as a value or raises ConfigError."""
    try:
        located = parse_yaml(text, "x.yaml")
    except ConfigError as error:
        assert str(error).startswith("x.yaml")
    else:
        assert isinstance(located.value, dict)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=num_cases(150), deadline=None)
@given(st.dictionaries(st.text(max_size=5), plain, min_size=1, max_size=3))
def test_what_is_written_is_read_back(value):
    """to_text and parse_yaml are inverse functions, also for text that looks like a number."""
    assert parse_yaml(to_text(value), "x.yaml").value == value


def nodes(node: yaml.Node | None) -> Any:
    """Return kind, tag, line and value of nodes."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return node and (node.tag, node.start_mark.line, node.value)
    inner = (
        [(nodes(key), nodes(value)) for key, value in node.value]
        if isinstance(node, yaml.MappingNode)
        else [nodes(item) for item in node.value]
    )
    return (node.tag, node.start_mark.line, inner)


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")
@settings(max_examples=num_cases(150), deadline=None)
@given(
    st.lists(st.sampled_from([*"ab:-'\"# \n01._,~<=", "a: ", "- ", "\n  ", "{}", "[]", "1e3", "yes", "---"]))
)
def test_libyaml_reads_what_it_is_given_as_pyyaml_does(words):
    text = "".join(words)
    if yaml_source._NOT_QUICK.search(text):
        return
    try:
        found = nodes(yaml_source._QUICK_LOADER(text).get_single_node())
    except yaml.YAMLError:
        return  # PyYAML reads it then
    assert found == nodes(yaml_source._Loader(text).get_single_node())


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")
def test_libyaml_reads_and_writes_resolved_runs_as_pyyaml_does(monkeypatch):
    """libyaml reads and writes the examples exactly as PyYAML does."""
    for path in sorted(
        (Path(__file__).parents[2] / "examples" / "megatron-gpt" / "training").glob("gpt-1*.yaml")
    ):
        value = load(path).model_dump()
        text = to_text(value)
        assert not yaml_source._NOT_QUICK.search(text), path.name
        assert nodes(yaml_source._QUICK_LOADER(text).get_single_node()) == nodes(
            yaml_source._Loader(text).get_single_node()
        )
        with monkeypatch.context() as patch:
            patch.setattr(yaml_source, "_QUICK_DUMPER", None)
            assert to_text(value) == text


def test_the_place_of_a_key_is_its_own_or_the_nearest():
    """A key's place is its own line if known, else the line of a key inside it, else
    of the section around it.
    """
    located = Located({}, {"a": "f:1", "b.c.d": "f:3"})
    assert [located.where(key) for key in ("a", "a.x.y", "b.c", "b", "q")] == [
        "f:1",
        "f:1",
        "f:3",
        "f:3",
        None,
    ]


def test_values_are_shown_in_one_short_line():
    """Values are shown in one short line, written as in a run YAML."""
    shown = [show(value) for value in (True, None, 6e-4, "a", "1", [1, {"a": None}], "x" * 100)]
    assert shown == ["true", "null", "0.0006", "a", "'1'", "[1, {a: null}]", "x" * 77 + "..."]
