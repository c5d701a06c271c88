"""Clients of storages are made once for the same options, and never without a time limit."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cloud_servers import forget_clients

from offline_cli.errors import StorageError
from offline_cli.files import clients
from offline_cli.files.locations import open_location


@pytest.fixture
def silent() -> Iterator[int]:
    """A port of loopback that takes connections, and never says anything."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield int(server.getsockname()[1])


def test_places_with_the_same_options_share_a_client_whatever_thread_opens_them() -> None:
    found: list[Any] = [open_location("s3://bucket/a", {"key": "x"}).fs]
    thread = threading.Thread(target=lambda: found.append(open_location("s3://other/b", {"key": "x"}).fs))
    thread.start()
    thread.join()
    assert found[0] is found[1]
    assert open_location("s3://bucket/a", {"key": "y"}).fs is not found[0]


def test_a_client_that_cannot_be_made_in_time_is_an_error_and_the_next_is_made_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = clients.url_to_fs
    monkeypatch.setattr(clients, "url_to_fs", lambda url, **options: threading.Event().wait())
    with pytest.raises(StorageError, match=r"opening the storage failed.*timed out after 1 s") as caught:
        open_location("s3://bucket/a", {"time_limit": 1})
    assert caught.value.where == "s3://bucket/a"
    monkeypatch.setattr(clients, "url_to_fs", real)
    assert open_location("s3://bucket/a", {"time_limit": 20}).path == "bucket/a"


@pytest.mark.nightly
@pytest.mark.integration
def test_google_without_credentials_or_network_ends_with_the_time_limit(silent: int) -> None:
    script = (
        "import os, sys\n"
        "os.environ.pop('NO_GCE_CHECK'), os.environ.pop('STORAGE_EMULATOR_HOST')\n"
        f"os.environ['GCE_METADATA_HOST'] = os.environ['GCE_METADATA_IP'] = '127.0.0.1:{silent}'\n"
        "from offline_cli.cli.app import main\n"
        "sys.argv = ['offline-cli', 'inspect', 'gs://bucket/D', '--json', '--storage-option', 'time_limit=7']\n"
        "main()\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    told = json.loads(done.stdout)
    assert (done.returncode, told["error"]["code"]) == (5, "storage-error"), done.stderr
    assert "GOOGLE_APPLICATION_CREDENTIALS" in told["error"]["fix"]
    assert done.stderr.startswith("gs://bucket/D: no answer for 5 s"), done.stderr
    assert time.monotonic() - began < 45, "gcsfs alone looks for three quarters of a minute"


@pytest.fixture(autouse=True)
def no_client_left() -> Iterator[None]:
    """Clients of these tests are of no use to others."""
    yield
    forget_clients()
