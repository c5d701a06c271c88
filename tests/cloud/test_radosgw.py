"""Keys that are wrong, on a real S3 server that checks them: Ceph's radosgw, which `make nightly` starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from cloud_servers import KEYS, Cloud

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif("OFFLINE_CLI_RADOSGW" not in os.environ, reason="no server that checks keys: .ci/radosgw starts one"),
]

Call = Callable[..., tuple[int, dict[str, Any]]]
RIGHT = {"key": KEYS["AWS_ACCESS_KEY_ID"], "secret": KEYS["AWS_SECRET_ACCESS_KEY"]}
WRONG = {
    "no such key": {**RIGHT, "key": "AKIDNOBODY"},
    "wrong secret": {**RIGHT, "secret": "WRONG"},
    "no credentials": {},
    "anonymous": {"anon": "true"},
}


def words(server: Cloud, options: dict[str, str]) -> list[str]:
    """Storage options for the command line."""
    given = {"endpoint_url": server.options["endpoint_url"], **options}
    return [word for name, value in given.items() for word in ("--storage-option", f"{name}={value}")]


@pytest.mark.parametrize("case", WRONG)
def test_reading_with_keys_that_are_wrong_is_refused_by_the_place(case: str, s3_server: Cloud, call: Call) -> None:
    url = f"{s3_server.bucket()}/D"
    code, told = call("inspect", url, *words(s3_server, WRONG[case]))
    assert (code, told["error"]["code"]) == (5, "storage-error"), told
    assert told["error"]["where"] == url


@pytest.mark.parametrize("case", WRONG)
def test_writing_with_keys_that_are_wrong_leaves_nothing(case: str, s3_server: Cloud, call: Call) -> None:
    bucket = s3_server.bucket()
    command = ("record", "CartPole-v1", "--policy", "random", "--episodes", "2", "--num-env-runners", "0")
    code, told = call(*command, "--out", f"{bucket}/D", *words(s3_server, WRONG[case]))
    assert (code, told["error"]["code"]) == (5, "storage-error"), told
    assert not s3_server.client(skip_instance_cache=True).find(bucket)
