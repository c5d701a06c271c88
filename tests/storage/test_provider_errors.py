"""What providers answer, in their own bodies from a stub on loopback, as errors that say what to do."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from cloud_servers import azure_at, gcs_at, s3_at
from provider_answers import ANSWERS, MISSING, Answer

from offline_cli.errors import StorageError, StorageNotFound
from offline_cli.storage.locations import Location, expand, open_location
from offline_cli.storage.staging import write_whole

NOBODY = 9  # a port of loopback that nobody listens at


def look(place: Location) -> None:
    place.exists()


def match(place: Location) -> None:
    expand(f"{place.url}/*.parquet", place.fs.storage_options)


def write(place: Location) -> None:
    write_whole(place, b"abc", folder=place)


def place_at(port: int, scheme: str, **options: Any) -> Location:
    if scheme == "az":
        pytest.importorskip("adlfs")
    cloud = {"s3": s3_at, "gs": gcs_at, "az": azure_at}[scheme](port)
    return open_location(f"{scheme}://bucket/D", {**cloud.options, "time_limit": 20, **options})


@pytest.mark.parametrize(
    ("answer", "request_"),
    zip([*ANSWERS, *MISSING], itertools.cycle([look, match, write]), strict=False),
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
@pytest.mark.integration
def test_a_providers_answer_is_told_in_words_that_say_what_to_do(answer: Answer, request_: Callable[[Location], None]) -> None:
    with answer.given() as port:
        place = place_at(port, answer.scheme)
        if answer in MISSING and request_ is look and answer.scheme != "s3":
            assert not place.exists(), "these say no more of a file than that it is not there"
            return
        with pytest.raises(StorageError, match=answer.what) as caught:
            request_(place)
    assert place.url in caught.value.where
    assert answer.fix in caught.value.fix
    assert isinstance(caught.value, StorageNotFound) == (answer in MISSING)


def test_s3_without_credentials_is_told_at_once() -> None:
    place = open_location("s3://bucket/D", {"endpoint_url": f"http://127.0.0.1:{NOBODY}"})
    with pytest.raises(StorageError, match="no credentials were found") as caught:
        place.exists()
    assert "AWS_ACCESS_KEY_ID" in caught.value.fix
    assert "anon=true" in caught.value.fix


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_server_that_cannot_be_reached_ends_with_the_time_limit(scheme: str) -> None:
    place, began = place_at(NOBODY, scheme, time_limit=2), time.monotonic()
    with pytest.raises(StorageError, match=r"cannot be reached|timed out after 2 s") as caught:
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
