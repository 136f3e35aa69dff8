"""A built wheel, installed in another environment, is complete."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from nbtrain.cli.init import LEFT_OUT

ROOT = Path(__file__).parent.parent.parent
GIVEN = ("torch", "deepspeed", "ipywidgets", "jupyterlab", "tensorboard", "matplotlib", "papermill")


def test_the_given_packages_are_plain_dependencies():
    """Packages that the notebooks need are plain dependencies, not in an extra, and
    constraints.txt pins each.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [requirement.split(">")[0].split("=")[0] for requirement in project["dependencies"]]
    pinned = [line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()]
    for package in GIVEN:
        assert package in named
        assert package in pinned
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()


def test_an_index_page_gets_its_links_from_one_setting(tmp_path):
    """Links of README.md stay relative unless the address is set; then all become absolute."""
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    readme, project = (ROOT / "README.md").read_text(), (ROOT / "pyproject.toml").read_text()
    (tmp_path / "README.md").write_text(readme)
    version = tmp_path / "nbtrain" / "base" / "version.py"
    version.parent.mkdir(parents=True)
    version.write_text((ROOT / "nbtrain" / "base" / "version.py").read_text())
    setting = "replacement = '\\1"
    assert project.count(setting) == 1

    def page(pyproject: str) -> str:
        (tmp_path / "pyproject.toml").write_text(pyproject)
        return ProjectMetadata(str(tmp_path), PluginManager()).core.readme

    assert page(project) == readme
    published = page(project.replace(setting, f"{setting}https://example.com/files/"))
    links = re.findall(r"\]\(([^)]*)\)|(?:src|srcset)=\"([^\"]*)\"", published)
    assert len(links) > 20
    assert all(re.match(r"https://|#", link or source) for link, source in links)


@pytest.mark.slow
def test_a_wheel_carries_everything(tmp_path):
    """A wheel has the package, the command, the server's entry point, and the
    notebooks and examples for `init`.
    """
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        ROOT,
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("nbtrain-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("etc/jupyter/jupyter_server_config.d/nbtrain.json") for name in names)
    assert "nbtrain/lab/ui/run/panel.js" in names
    bundles = [name for name in names if "remoteEntry." in name]
    assert len(bundles) == 1 and "/data/share/jupyter/labextensions/nbtrain/static/" in bundles[0]
    assert not any(name.startswith("nbtrain/lab/labextension/") for name in names)
    entries = next(name for name in names if name.endswith("entry_points.txt"))
    assert b"jupyter_serverproxy_servers" in zipfile.ZipFile(wheel).read(entries)

    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # The folder takes precedence over the editable installation that the tests use.
    environment = {**os.environ, "PYTHONPATH": str(site)}
    environment.pop("NBTRAIN_WORKSPACE", None)

    def nbtrain(*arguments: str) -> str:
        command = [sys.executable, "-P", "-m", "nbtrain.cli", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    code = "import nbtrain; print(nbtrain.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert where.stdout.startswith(str(site))
    assert ": valid" in nbtrain("check", "gpt-13b-4xdp-4xpp")
    nbtrain("init", "mine")
    shipped = {path.name for path in (tmp_path / "mine" / "notebooks").glob("*.ipynb")}
    assert shipped == {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    # Files that init excludes from a clone are not in the wheel either.
    assert not [name for name in names if "/docs/evidence/" in name]
    shipped = {path.name for path in (tmp_path / "mine" / "docs").iterdir()}
    assert shipped == {path.name for path in (ROOT / "docs").iterdir()} - set(LEFT_OUT)
    assert (tmp_path / "mine" / "README.md").is_file()
    trained = tmp_path / "mine" / "examples" / "megatron-gpt" / "training" / "gpt-tiny.yaml"
    assert ": valid" in nbtrain("check", str(trained))
