"""A provider that does not answer, and one whose client is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
from cloud_servers import azure_at, gcs_at, s3_at

from offline_cli.errors import StorageError
from offline_cli.storage.locations import Location, open_location

NOBODY = 9  # a port of loopback that nobody listens at


def place_at(port: int, scheme: str, **options: Any) -> Location:
    if scheme == "az":
        pytest.importorskip("adlfs")
    cloud = {"s3": s3_at, "gs": gcs_at, "az": azure_at}[scheme](port)
    return open_location(f"{scheme}://bucket/D", {**cloud.options, "time_limit": 20, **options})


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_server_that_cannot_be_reached_ends_with_the_time_limit(scheme: str) -> None:
    place, began = place_at(NOBODY, scheme, time_limit=2), time.monotonic()
    with pytest.raises(StorageError) as caught:
        place.exists()
    assert time.monotonic() - began < 10
    assert caught.value.where == place.url


def test_the_azure_client_is_an_extra_that_the_error_names() -> None:
    script = (
        "import sys\n"
        "sys.modules['adlfs'] = None\n"
        "from offline_cli.cli.app import main\n"
        "sys.argv = ['offline-cli', 'inspect', 'az://container/D', '--json']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    told = json.loads(done.stdout)
    assert (done.returncode, told["error"]["code"]) == (6, "missing-package")
    assert told["error"]["fix"] == "pip install 'offline-cli[azure]'"
