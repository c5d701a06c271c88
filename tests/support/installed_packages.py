"""Packages that register something under entry points, as pip would leave them: a module and a dist-info folder on the path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

PLUGIN = Path(__file__).resolve().parents[1] / "plugins" / "cloning"
LOG_BOOKS = PLUGIN.parent / "log_books"
Install = Callable[..., None]


def register(site: Path, package: str, entries: Mapping[str, Mapping[str, str]], **modules: str) -> None:
    """Put into the folder `site` a package that registers `entries`, by group and name; `modules`: their code by name."""
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"[offline_cli.{group}]\n" + "".join(f"{k} = {v}\n" for k, v in of.items()) for group, of in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for name, code in modules.items():
        (site / f"{name}.py").write_text(code)


@pytest.fixture
def valued_cloning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of tests/plugins/cloning is installed, and nothing of it has been imported."""
    monkeypatch.syspath_prepend(PLUGIN)
    for name in [name for name in sys.modules if name.partition(".")[0] == "valued_cloning"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def log_books(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package of tests/plugins/log_books is installed, and nothing of it has been imported; its folder."""
    monkeypatch.syspath_prepend(LOG_BOOKS)
    for name in [name for name in sys.modules if name.partition(".")[0] == "log_books"]:
        monkeypatch.delitem(sys.modules, name)
    return LOG_BOOKS


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package made for the test: see `register`."""
    monkeypatch.syspath_prepend(tmp_path / "site")

    def installed(package: str, entries: Mapping[str, Mapping[str, str]], **modules: str) -> None:
        register(tmp_path / "site", package, entries, **modules)
        for name in modules:
            monkeypatch.delitem(sys.modules, name, raising=False)

    return installed
