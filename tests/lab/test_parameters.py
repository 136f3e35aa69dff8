"""Checks of the parameters that a notebook defines."""

from types import SimpleNamespace

import IPython
import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.lab.parameters import assigned_names, check_parameters, with_source

OWN = 'run: str = "gpt-tiny"  # a name\noverrides: str = ""'


def with_cells(monkeypatch, *cells: str) -> None:
    shell = SimpleNamespace(user_ns={"In": ["", *cells]})
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)


def test_names_are_read_from_the_cells_code():
    """Parameter names are read from plain and annotated assignments in the cell, not from comments."""
    assert assigned_names(OWN + "\nx = 1  # y = 2") == ["run", "overrides", "x"]


def test_injected_parameters_of_the_notebook_pass(monkeypatch):
    """The cell that papermill injects may set any parameter of the notebook."""
    with_cells(monkeypatch, OWN, '# Parameters\noverrides = "a=1"\n', "check_parameters()")
    check_parameters()


def test_an_unknown_parameter_is_an_error(monkeypatch):
    """An unknown parameter is rejected; the message has its name, the most similar one, and all existing
    ones.
    """
    with_cells(monkeypatch, OWN, '# Parameters\noverride = "a=1"\n', "check_parameters()")
    with pytest.raises(ConfigError) as error:
        check_parameters()
    assert (
        str(error.value)
        == "parameter override: unknown; the parameters of this notebook are run, overrides. "
        "Nearest: overrides."
    )


def test_a_source_as_overrides():
    """A data source given as a parameter becomes overrides that replace all sources and, if a name is given,
    name the dataset.
    """
    assert with_source("a.b=1 'c.d=x y'", "", "") == ["a.b=1", "c.d=x y"]
    assert with_source("", "{kind: jsonl, path: a b.jsonl}", "mine") == [
        "data.sources=[{kind: jsonl, path: a b.jsonl}]",
        "data.name=mine",
    ]
    assert with_source("", "{kind: wiki}", "") == ["data.sources=[{kind: wiki}]"]


@pytest.mark.parametrize(
    ("overrides", "source", "message"),
    [
        (
            "name=it's",
            "",
            'overrides "name=it\'s": cannot be split into key=value pairs: No closing quotation.',
        ),
        ("name", "", "override 'name': must be key=value, e.g. batch.micro_batch_size=4."),
        (5, "", "overrides 5 (int): overrides must be "),
        ({"name": "x"}, "{kind: [", "override 'data.sources=[{kind: []': not YAML: "),
    ],
)
def test_what_cannot_be_read_beside_a_source_is_refused_as_without_one(overrides, source, message):
    """Invalid overrides are rejected without a traceback, with or without a source, from a user or a
    notebook.
    """
    with pytest.raises(ConfigError) as caught:
        with_source(overrides, source, "mine")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("overrides", [{"name": "x"}, "name=x", ["name=x"], iter(["name=x"]), None])
def test_overrides_in_every_form_take_a_source(overrides):
    """Overrides in every form can be combined with a source, its name and its settings."""
    found = load("gpt-tiny", with_source(overrides, "{kind: wiki, language: simple}", "mine"), check=False)
    assert found.name == ("gpt-tiny" if overrides is None else "x")
    assert (found.data.name, found.tokenizer.name) == ("mine", "mine")
    assert [source.kind for source in found.data.sources] == ["wiki"]


@pytest.mark.parametrize(
    "injected, message",
    [
        ('force = "maybe"', "parameter force = 'maybe': must be true or false."),
        ("force = True", None),
        ("run = 125", "parameter run = 125: must be text (with papermill: -r name value)."),
        ("rate = 1", None),
        ("steps = 1.5", "parameter steps = 1.5: must be a whole number."),
        ("prompts = ['Return']", None),
        (
            "prompts = 'Return'",
            """parameter prompts = 'Return': must be a list, e.g. ["a", "b"] """
            """(with papermill: -y '{name: ["a", "b"]}').""",
        ),
        (
            "tasks = ['lambada']",
            """parameter tasks = ['lambada']: must be a mapping, e.g. {"a": "b"} """
            """(with papermill: -y '{name: {"a": "b"}}').""",
        ),
    ],
)
def test_values_have_the_type_of_their_parameter(monkeypatch, injected, message):
    """A value must have the type of its parameter. Otherwise "no" would count as true, and a text would be
    split into a list of characters.
    """
    own = (
        'run: str = "x"\nforce: bool = False\nrate: float = 0.5\nsteps: int = 3\n'
        'prompts: list = ["a"]\ntasks: dict = {}'
    )
    namespace = {}
    exec(f"{own}\n{injected}", namespace)
    shell = SimpleNamespace(user_ns={**namespace, "In": ["", own, f"# Parameters\n{injected}"]})
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    if message is None:
        check_parameters()
        return
    with pytest.raises(ConfigError) as caught:
        check_parameters()
    assert str(caught.value) == message
