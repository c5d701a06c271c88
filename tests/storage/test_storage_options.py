"""Options of storage clients."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from offline_cli.errors import UsageError
from offline_cli.storage.filesystems import quiet_clients
from offline_cli.storage.locations import open_location


def test_an_option_goes_to_clients_alone(tmp_path: Path) -> None:
    assert open_location(tmp_path, {"anon": True}) == open_location(tmp_path)


def test_an_option_that_a_client_refuses_late_is_a_usage_error() -> None:
    def connect() -> None:
        raise TypeError("Session.__init__() got an unexpected keyword argument 'profil'")

    with pytest.raises(UsageError, match="profil"):
        open_location("s3://bucket/x", {"anon": True}).ask("looking it up", connect)


def test_clients_write_no_log_on_stderr(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    quiet_clients()
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logging.getLogger("gcsfs").error("a traceback")
    assert capfd.readouterr().err == ""
