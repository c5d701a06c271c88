"""An S3 server on loopback to measure against: Ceph's radosgw where `.ci/radosgw` has started one, else moto."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Missing, versions

__all__ = ["Server", "server", "uploaded"]

KEY, SECRET, REGION = "AKIDTEST", "SECRETTEST", "us-east-1"  # those that `.ci/radosgw` gives its user; moto takes any
PATIENCE = 60.0  # seconds for moto to start


@dataclass(frozen=True, slots=True)
class Server:
    """How it is reached."""

    name: str
    url: str

    @property
    def environment(self) -> Mapping[str, str]:
        """This process's variables, and those that have a client find this server alone."""
        return {
            **os.environ,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def client(self) -> Any:
        """An fsspec filesystem of this server."""
        import fsspec

        about = {"region_name": REGION}
        return fsspec.filesystem("s3", key=KEY, secret=SECRET, endpoint_url=self.url, client_kwargs=about)


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """Within it, a server. Raises Missing where there is none to have."""
    there = os.environ.get("OFFLINE_CLI_RADOSGW")
    if there is not None:
        yield Server("Ceph radosgw", f"http://{there}")
        return
    if importlib.util.find_spec("moto") is None:
        raise Missing("no S3 server: install moto[server], or put .ci/radosgw before the command")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield Server(versions("moto"), f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise Missing(f"moto did not start within {PATIENCE:.0f} s")


def uploaded(folder: Path, place: Server, bucket: str) -> str:
    """The URL of a copy of `folder` in a bucket of its own."""
    client, url = place.client(), f"s3://{bucket}/{folder.name}"
    client.call_s3("create_bucket", Bucket=bucket)  # mkdir would name the region, which us-east-1 refuses
    for path in folder.rglob("*"):
        if path.is_file():
            client.put_file(str(path), f"{url}/{path.relative_to(folder).as_posix()}")
    return url
