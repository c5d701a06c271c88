"""What goes wrong with cloud storage, by the command line: each mistake has its own clear error, and exit code 5."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cloud_servers import Cloud, azure_at

pytestmark = pytest.mark.integration

Call = Callable[..., tuple[int, dict[str, Any]]]
WRONG_KEY = "d3JvbmcgZXh0cmEgbG9uZyBrZXkgb2Ygc2l4dHkgZm91ciBieXRlcyBpbiBiYXNlIDY0ISEh"


def error_of(found: tuple[int, dict[str, Any]], code: str = "storage-error") -> dict[str, str]:
    """The error of a command that failed because of storage."""
    assert (found[0], found[1]["error"]["code"]) == (5, code), found
    error: dict[str, str] = found[1]["error"]
    return error


@pytest.mark.parametrize("path", ["D", "*.parquet"])
def test_a_missing_bucket_is_named_whether_or_not_its_url_is_a_pattern(cloud: Cloud, path: str, call: Call) -> None:
    url = f"{cloud.scheme}://no-such-bucket-here/{path}"
    error = error_of(call("inspect", url), "storage-not-found")
    assert "'no-such-bucket-here' does not exist" in error["what"]
    assert error["where"] == url


def test_writing_to_a_missing_bucket_names_it(cloud: Cloud, call: Call, tmp_path: Path) -> None:
    command = ("record", "CartPole-v1", "--policy", "random", "--episodes", "2", "--num-env-runners", "0")
    error = error_of(call(*command, "--out", f"{cloud.scheme}://no-such-bucket-here/D"), "storage-not-found")
    assert "'no-such-bucket-here' does not exist" in error["what"]


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["inspect", "validate", "evaluate"])
def test_a_wrong_key_is_told_as_one(command: str, azure_server: Cloud, call: Call) -> None:
    url = f"{azure_server.bucket()}/D"
    wrong = azure_at(azure_server.port, WRONG_KEY).options["connection_string"]
    env = ("--env", "CartPole-v1") if command == "evaluate" else ()
    error = error_of(call(command, url, *env, "--storage-option", f"connection_string={wrong}"))
    assert error["where"].startswith(url)
    assert WRONG_KEY not in str(error)


def test_endpoint_and_credentials_can_be_storage_options(s3_server: Cloud, call: Call) -> None:
    out = f"{s3_server.bucket()}/D"
    options = [word for name, value in s3_server.options.items() for word in ("--storage-option", f"{name}={value}")]
    command = ("record", "CartPole-v1", "--policy", "random", "--episodes", "2", "--num-env-runners", "0")
    code, told = call(*command, "--out", out, *options)
    assert code == 0, told
    assert s3_server.options["secret"] not in s3_server.client().cat_file(f"{out}/manifest.json").decode()
    assert call("inspect", out, *options, "--expect", "episodes=2")[0] == 0


def test_a_bucket_is_a_dataset_folder_too(cloud: Cloud, call: Call) -> None:
    out = cloud.bucket()
    command = ("record", "CartPole-v1", "--policy", "random", "--episodes", "2", "--num-env-runners", "0")
    code, told = call(*command, "--out", out)
    assert code == 0, told
    assert call("inspect", out, "--expect", "episodes=2")[0] == 0
