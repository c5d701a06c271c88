"""The wheel holds all that the commands need, and works far from the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

from offline_cli import __version__

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def no_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is found because it is installed, never because the caller's PYTHONPATH names the repository."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what `python -m build` makes: an sdist, and a wheel of it."""
    folder = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    subprocess.run(words, check=True, cwd=folder, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment with nothing but the wheel in it; its dependencies are borrowed from this one."""
    folder = tmp_path_factory.mktemp("wheel")
    (wheel,) = built.glob("offline_cli-*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], check=True, capture_output=True, text=True
    )
    # A folder named in a .pth file adds its packages and not its own .pth files: the editable install here stays unseen.
    (Path(site.stdout.strip()) / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", str(wheel)]
    subprocess.run(pip, check=True, cwd=folder, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    return python.parent


def test_the_package_comes_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = "import offline_cli; print(offline_cli.__file__)"
    done = subprocess.run([installed / "python", "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert str(installed.parent) in done.stdout


def test_schemas_ship_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = "import offline_cli, os; print(*os.listdir(os.path.dirname(offline_cli.__file__) + '/schemas'))"
    done = subprocess.run([installed / "python", "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) == {file.name for file in (REPOSITORY / "schemas").iterdir()}


def test_the_installed_command_converts_and_inspects_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    source = REPOSITORY / "sample_data" / "rllib_cartpole_expert"
    command = [installed / "offline-cli", "convert", str(source), "--out", "D", "--json", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["episodes"] == 20
    command = [installed / "offline-cli", "inspect", "D", "--json"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert json.loads(shown.stdout)["format"] == "episodes"


def test_the_distributions_pass_the_checks_of_the_package_index(built: Path) -> None:
    files = sorted(built.iterdir())
    assert [file.name for file in files] == [f"offline_cli-{__version__}-py3-none-any.whl", f"offline_cli-{__version__}.tar.gz"]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True, capture_output=True)


def test_the_sdist_holds_sources_and_nothing_that_was_built(built: Path) -> None:
    with tarfile.open(built / f"offline_cli-{__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "docs/index.md", "sample_data/demo.sh", "schemas/config.v1.json"} <= names
    assert [name for name in names if name.startswith(("docs/_build", "docs/reference/commands", ".venv", "out/"))] == []


def test_the_demo_runs_with_the_installed_package(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    path = f"{installed}{os.pathsep}{os.environ['PATH']}"
    demo = ["sh", str(REPOSITORY / "sample_data" / "demo.sh"), "demo"]
    done = subprocess.run(demo, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "docs/tutorial.md" in done.stdout.splitlines()[-1]
