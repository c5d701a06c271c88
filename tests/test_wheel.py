"""The wheel holds all that the commands need, and works far from the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def no_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is found because it is installed, never because the caller's PYTHONPATH names the repository."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment with nothing but the wheel in it; its dependencies are borrowed from this one."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*build, str(REPOSITORY)], check=True, cwd=folder)
    (wheel,) = folder.glob("offline_cli-*.whl")
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
