"""`publish` to S3 and Google Cloud Storage: the copy that a folder gets, unfinished until its manifest comes, and resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cloud_servers import NIGHTLY_AZURE, Cloud, with_gcs
from fault_proxy import Fault, FaultProxy
from requests_made import Requests

from offline_cli import write_dataset
from offline_cli.storage.locations import open_location
from offline_cli.storage.staging import open_uploads

pytestmark = pytest.mark.integration

Call = Callable[..., tuple[int, dict[str, Any]]]
Told = Callable[..., dict[str, Any]]


@pytest.fixture
def dataset(tmp_path: Path, make_batch: Any) -> Path:
    """A local dataset of three shards."""
    write_dataset(make_batch((4, 2, 6)), tmp_path / "D", format="episodes", max_rows_per_file=1)
    return tmp_path / "D"


def files_of(url: str, cloud: Cloud) -> dict[str, bytes]:
    """What is there, by path, without the card."""
    place = open_location(url, cloud.options)
    found = {one.path.removeprefix(place.path).lstrip("/"): one.read_bytes() for one in place.files()}
    found.pop("README.md", None)
    return found


def files_here(dataset: Path) -> dict[str, bytes]:
    found = {str(one.relative_to(dataset)): one.read_bytes() for one in dataset.rglob("*") if one.is_file()}
    found.pop("README.md", None)
    return found


@with_gcs
def test_a_copy_in_a_bucket_is_the_dataset_byte_by_byte(cloud: Cloud, dataset: Path, told: Told) -> None:
    url = f"{cloud.bucket()}/shared/D"
    assert told("publish", dataset, "--to", url, "--license", "mit", "--dry-run")["new_shards"] == 3
    assert not open_location(url, cloud.options).exists()

    result = told("publish", dataset, "--to", url, "--license", "mit")

    assert (result["to"], result["shards"], result["new_shards"], result["license"]) == (url, 3, 3, "mit")
    assert files_of(url, cloud) == files_here(dataset)
    assert b"license: mit\n" in open_location(f"{url}/README.md", cloud.options).read_bytes()
    assert told("diff", url, dataset)["equal"]


def test_the_manifest_is_the_last_file_that_a_bucket_gets(s3: Cloud, dataset: Path, told: Told, requests: Requests) -> None:
    told("publish", dataset, "--to", f"{s3.bucket()}/D")

    assert [key for method, key in requests.calls if method == "put_object"][-1] == "D/manifest.json"


@pytest.mark.parametrize("server", ["s3", "gs", NIGHTLY_AZURE], indirect=True)
def test_a_broken_copy_in_a_bucket_is_unfinished_and_continues(
    server: Cloud, proxy: FaultProxy, dataset: Path, call: Call, told: Told
) -> None:
    url, shards = f"{server.bucket()}/D", sorted(one.name for one in (dataset / "data").iterdir())
    proxy.fault = Fault("answer", since=shards[1].encode())

    code, error = call("publish", dataset, "--to", url, "--storage-option", "time_limit=3")

    assert (code, error["error"]["code"]) == (5, "storage-error")
    proxy.fault = None
    assert {one for one in files_of(url, server) if one.endswith(".parquet")} == {f"data/{shards[0]}"}
    assert call("inspect", url)[1]["error"]["code"] == "uncommitted"
    assert call("publish", dataset, "--to", url)[1]["error"]["code"] == "output-exists"

    assert told("publish", dataset, "--to", url, "--resume")["new_shards"] == 2
    assert files_of(url, server) == files_here(dataset)
    assert told("validate", url)["passed"]
    assert not open_uploads(open_location(url, server.options))
