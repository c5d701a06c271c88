"""What installed packages have registered is read once, and anew when something is installed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from offline_cli import plugins


def test_files_of_installed_packages_are_read_once(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    install("my-books", {"readers": {"books": "books:Reader"}})
    assert plugins.is_registered(plugins.READERS, "books")
    monkeypatch.setattr(plugins, "entry_points", lambda: pytest.fail("read again"))
    assert plugins.is_registered(plugins.READERS, "books")
    assert not plugins.is_registered(plugins.SINKS, "books")


def test_a_package_installed_meanwhile_is_seen(install: Callable[..., None]) -> None:
    install("my-books", {"readers": {"books": "books:Reader"}})
    assert not plugins.is_registered(plugins.READERS, "notes")
    install("my-notes", {"readers": {"notes": "notes:Reader"}})
    assert plugins.is_registered(plugins.READERS, "notes")
