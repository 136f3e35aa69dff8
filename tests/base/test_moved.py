"""Old names of modules: an import hands on what moved, with one sentence; so does `python -m`."""

import importlib
import re
import subprocess
import sys
import warnings

import pytest


@pytest.mark.parametrize(
    ("old", "name", "new"),
    [
        ("nbtrain.notebook_parameters", "check_parameters", "nbtrain.lab.parameters"),
        ("nbtrain.data.baselines", "baselines", "nbtrain.dataset.look.baselines"),
        ("nbtrain.data.sources.base", "open_source", "nbtrain.corpus.sources.base"),
        ("nbtrain.rundir", "JobRecord", "nbtrain.base.records"),
        ("nbtrain.rundir", "RunDir", "nbtrain.base.rundir"),
        ("nbtrain.server", "_jupyter_server_extension_points", "nbtrain.lab.server"),
    ],
)
def test_an_old_import_hands_on_the_new_definition(old, name, new, monkeypatch):
    for module in [key for key in sys.modules if key.split(".")[:2] == old.split(".")[:2]]:
        monkeypatch.delitem(sys.modules, module)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        handed_on = getattr(importlib.import_module(old), name)
    assert any(
        re.fullmatch(rf"{old} is now nbtrain\.[\w.]+: change the import.*\.", str(one.message))
        for one in said
    )
    assert handed_on is getattr(importlib.import_module(new), name)


OLD_NOTEBOOKS = {
    "from nbtrain.api import launch": None,
    "from nbtrain.notebook_parameters import check_parameters, with_source": (
        "nbtrain.notebook_parameters is now nbtrain.lab.parameters: change the import, or call "
        "nb.check_parameters and nb.load(run, overrides, source, dataset)."
    ),
    "from nbtrain.data.baselines import baselines": (
        "nbtrain.data.baselines is now nbtrain.dataset.look.baselines: change the import, or call "
        "nb.baselines."
    ),
    "from nbtrain.data.inspect import verify": (
        "nbtrain.data.inspect is now nbtrain.dataset.look.inspect: change the import, or call nb.verify."
    ),
    "from nbtrain.planner.picture import plan_picture": None,
    "from nbtrain.config.deepspeed import deepspeed_config": None,
    "from nbtrain.monitor.pictures import scalars_table, training_curves": None,
}
"""Every import of nbtrain's modules in the six notebooks that `nbtrain init` copied before the modules moved.
"""


@pytest.mark.parametrize(("line", "sentence"), OLD_NOTEBOOKS.items())
def test_imports_of_old_notebooks_work_and_say_at_most_one_sentence(line, sentence, monkeypatch):
    for module in [key for key in sys.modules if key.split(".")[1:2] in (["data"], ["notebook_parameters"])]:
        monkeypatch.delitem(sys.modules, module)
    found = {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        exec(line, found)
    assert [(one.category, str(one.message)) for one in said] == (
        [(FutureWarning, sentence)] if sentence else []
    )
    names = [name.strip() for name in line.partition(" import ")[2].split(",")]
    assert all(callable(found[name]) for name in names)


def test_names_that_never_were():
    """No module and no definition is invented."""
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'nbtrain\.nothing'"):
        importlib.import_module("nbtrain.nothing")
    with pytest.warns(FutureWarning):
        module = importlib.import_module("nbtrain.amounts")
    with pytest.raises(
        AttributeError, match=r"module 'nbtrain\.amounts', now nbtrain\.base\.amounts, has no"
    ):
        module.nothing  # noqa: B018


def test_the_old_api_module():
    """`from nbtrain.api import ...` reads verbs and Run where they are now."""
    from nbtrain.api import Run, submit
    from nbtrain.api.run import Run as NewRun
    from nbtrain.api.verbs import submit as new_submit

    assert (Run, submit) == (NewRun, new_submit)


@pytest.mark.slow
def test_an_old_entry_runs(tmp_path):
    """`python -m OLD` says in one line what it is called now, and runs that."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "nbtrain.jobs.rank_wrapper"], capture_output=True, text=True
    )
    first, usage = done.stderr.splitlines()
    assert (
        first == "python -m nbtrain.jobs.rank_wrapper is now python -m nbtrain.jobs.supervisor.rank_wrapper"
    )
    assert usage.startswith("usage: python -m nbtrain.jobs.supervisor.rank_wrapper COMMAND")
