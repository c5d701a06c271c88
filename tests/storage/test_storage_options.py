"""Options of storage clients: known ones reach the client that takes them, others are refused by name."""

from __future__ import annotations

import logging

import pytest

from offline_cli.errors import UsageError
from offline_cli.storage.filesystems import quiet_clients
from offline_cli.storage.locations import open_location
from offline_cli.storage.providers import options_for


def test_a_misspelt_option_is_refused_with_those_that_there_are() -> None:
    pytest.importorskip("s3fs")
    with pytest.raises(UsageError, match="anno") as caught:
        open_location("s3://bucket/x", {"anno": True})
    assert "anon" in caught.value.fix


def test_an_error_about_an_option_repeats_no_password_of_a_place() -> None:
    with pytest.raises(UsageError) as caught:
        options_for("local", {"anon": True}, beside=["memory://me:hunter2@b"])
    assert "hunter2" not in str(caught.value)


def test_an_option_goes_only_to_the_places_that_take_it() -> None:
    pytest.importorskip("s3fs")
    assert options_for("local", {"anon": True}, beside=["s3://bucket/x"]) == {}
    assert options_for("s3://bucket/x", {"anon": True}, beside=["local"]) == {"anon": True}


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
