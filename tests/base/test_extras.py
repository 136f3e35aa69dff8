"""The pip command that installs the packages of an extra."""

import importlib.metadata

from nbtrain.base.extras import install_command


def test_command_names_packages_and_never_nbtrain():
    """The command never names nbtrain itself, because a package index could have another project of that
    name.
    """
    command = install_command("k8s")
    assert command.startswith("pip install 'kubernetes>=") and "nbtrain" not in command
    assert install_command("data").count("'") == 2 * 7


def test_from_sources_that_are_not_installed(monkeypatch):
    """If nbtrain is not installed, the extra's packages are read from the source tree."""

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert install_command("k8s") == "pip install -e '.[k8s]'"
