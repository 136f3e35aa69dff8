"""The files of the JupyterLab extension: the committed bundle is built from the sources and contains no name
of a machine.

Only the last test, which builds the bundle, needs node.
"""

import json
import re
import tomllib

import jsonschema
import pytest

from nbtrain.base.version import PACKAGE, __version__
from nbtrain.lab.labextension import build

REPOSITORY = PACKAGE.parent
REBUILD = "lab/labextension or lab/ui has changed: run `make labextension` and commit prebuilt/"


def read(name: str) -> dict:
    return json.loads((build.HERE / name).read_text(encoding="utf-8"))


def test_the_bundle_is_that_of_the_sources():
    """The hash in built_from.json is the hash of the current sources."""
    assert read("prebuilt/nbtrain/built_from.json")["sources"] == build.sha256_of(build.sources()), REBUILD


def test_the_bundle_is_whole():
    """No file of the bundle was changed or lost, and none is left over from another build."""
    assert read("prebuilt/nbtrain/built_from.json") == build.record_of(build.PREBUILT), REBUILD
    loaded = read("prebuilt/nbtrain/package.json")["jupyterlab"]["_build"]
    assert loaded["extension"] == "./extension"
    assert (build.PREBUILT / loaded["load"]).is_file()


def test_a_changed_source_is_noticed(tmp_path, monkeypatch):
    """The hash depends on file names and contents, so that a changed source is detected."""
    files = {"src/a.ts": tmp_path / "a.ts", "src/b.ts": tmp_path / "b.ts"}
    for path in files.values():
        path.write_text("same")
    before = build.sha256_of(files)
    assert build.sha256_of({"src/a.ts": files["src/a.ts"], "src/c.ts": files["src/b.ts"]}) != before
    files["src/b.ts"].write_text("other")
    assert build.sha256_of(files) != before


def test_sources_are_those_of_the_user_interface_too():
    """If a view of the user interface changes, the bundle counts as out of date."""
    names = set(build.sources())
    assert {
        "labextension/src/index.ts",
        "labextension/yarn.lock",
        "ui/host/server.js",
        "ui/elements/style.js",
    } <= names
    assert not any("prebuilt" in name or "node_modules" in name for name in names)


def test_the_lock_file_names_no_registry():
    """The lock file contains no registry address, so that a mirror that one developer uses is not used by
    everyone.
    """
    text = (build.HERE / "yarn.lock").read_text(encoding="utf-8")
    assert not re.search(r"https?:|__archiveUrl|\bregistry\.", text)
    assert text.count("resolution:") > 100


def test_the_bundle_names_no_folder_of_the_machine_that_built_it():
    for path in build.files_below(build.PREBUILT).values():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\.cache/labextension|node_modules/|/home/|/root/", text), path


def test_package_json_is_what_jupyterlab_reads():
    """package.json contains nbtrain's version and the bundle's folder, and accepts JupyterLab 4.4."""
    package = read("package.json")
    assert package["name"] == "nbtrain"
    assert package["version"] == __version__
    assert package["jupyterlab"]["outputDir"] == "prebuilt/nbtrain"
    shared = package["jupyterlab"]["sharedPackages"]
    ours = {
        name: range_ for name, range_ in package["dependencies"].items() if name.startswith("@jupyterlab/")
    }
    assert {name: one["requiredVersion"] for name, one in shared.items()} == ours
    assert ours["@jupyterlab/application"] == "^4.4.0"


def test_the_wheel_gets_it_once():
    """The wheel contains the bundle once, as shared data for JupyterLab, without its sources and without a
    second bundle.
    """
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert "nbtrain/lab/labextension" in wheel["exclude"]
    assert (
        wheel["shared-data"]["nbtrain/lab/labextension/prebuilt/nbtrain"]
        == "share/jupyter/labextensions/nbtrain"
    )


def test_the_settings_are_a_schema_and_its_defaults_hold():
    """The settings file is a valid JSON schema whose defaults are valid, and every command in a menu
    exists.
    """
    schema = read("schema/plugin.json")
    jsonschema.Draft7Validator.check_schema(schema)
    defaults = {name: one["default"] for name, one in schema["properties"].items()}
    jsonschema.validate(defaults, schema)
    commands = set(re.findall(r'"command": "([^"]+)"', (build.HERE / "schema/plugin.json").read_text()))
    names = (build.HERE / "src/names.ts").read_text(encoding="utf-8")
    assert commands <= set(re.findall(r'"(nbtrain:[\w-]+)"', names))


@pytest.mark.soak
def test_a_build_elsewhere_gives_the_same_bytes(tmp_path):
    """Building in another folder gives the same bytes. The build needs node and npm's registry and takes 2
    minutes, mostly for downloads.
    """
    import shutil

    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    build.build(tmp_path / "cache", tmp_path / "bundle")
    assert build.record_of(tmp_path / "bundle") == build.record_of(build.PREBUILT)
