"""Fixtures that start cloud storage on loopback: moto (S3), gcp-storage-emulator (GCS), Azurite (Azure), each once per session.

All tests run with metadata look-ups off: without credentials the clients would ask 169.254.169.254 and public hosts. S3 and
Google's storage are on loopback from the start, where nobody answers: a client whose test has ended, and which still tries
again, must not turn to the public ones.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NOWHERE = "127.0.0.1:9"
LOOK_UPS_OFF = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ENDPOINT_URL": f"http://{NOWHERE}",
    "STORAGE_EMULATOR_HOST": f"http://{NOWHERE}",
    "NO_GCE_CHECK": "true",
    "GCE_METADATA_HOST": NOWHERE,
    "GCE_METADATA_IP": NOWHERE,
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # read when gcsfs is imported, which other tests may do first
    "AZURE_POD_IDENTITY_AUTHORITY_HOST": f"http://{NOWHERE}",
}
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": "SECRETTEST"}
ACCOUNT = "devstoreaccount1"
# The key that Azurite's own documentation publishes for its development account.
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
START_SECONDS = 60
# The emulator's backlog of 5 connections loses some of many parallel ones.
GCS_LAUNCHER = """
import http.server, sys
http.server.HTTPServer.request_queue_size = 1024
from gcp_storage_emulator.__main__ import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Cloud:
    """A storage server on loopback: how it is reached, by environment alone or by storage options."""

    scheme: str  # "s3" | "gs" | "az"
    port: int
    environment: Mapping[str, str]  # what clients need to find it, with credentials that it takes
    options: Mapping[str, Any] = field(default_factory=dict)  # the same as storage options

    def client(self, **options: Any) -> Any:
        """An fsspec filesystem of this server."""
        import fsspec

        return fsspec.filesystem(self.scheme, **{**self.options, **options})

    def bucket(self) -> str:
        """The URL of a new, empty bucket or container."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.client().mkdir(name)
        return f"{self.scheme}://{name}"

    def at(self, port: int) -> Cloud:
        """The same server, reached through another port of this machine, such as a proxy's."""
        return BUILDERS[self.scheme](port)


def s3_at(port: int) -> Cloud:
    """An S3 server at a port."""
    url = f"http://127.0.0.1:{port}"
    options = {"endpoint_url": url, "key": KEYS["AWS_ACCESS_KEY_ID"], "secret": KEYS["AWS_SECRET_ACCESS_KEY"]}
    return Cloud("s3", port, {**KEYS, "AWS_ENDPOINT_URL": url}, options)


def gcs_at(port: int) -> Cloud:
    """A GCS server at a port."""
    url = f"http://127.0.0.1:{port}"
    options = {"endpoint_url": url, "token": "anon", "project": "test"}
    return Cloud("gs", port, {"STORAGE_EMULATOR_HOST": url}, options)


def azure_at(port: int, key: str = ACCOUNT_KEY) -> Cloud:
    """An Azure server at a port."""
    url = f"http://127.0.0.1:{port}/{ACCOUNT}"
    text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};BlobEndpoint={url};"
    return Cloud("az", port, {"AZURE_STORAGE_CONNECTION_STRING": text}, {"connection_string": text})


BUILDERS: dict[str, Callable[[int], Cloud]] = {"s3": s3_at, "gs": gcs_at, "az": azure_at}


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[None]:
    """Within it, `command` runs, and listens at `port`."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **LOOK_UPS_OFF})
    try:
        wait_for_port(port, process, log)
        yield
    finally:
        process.kill()
        process.wait()


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once somebody listens at `port`; fails where `process` ends, or takes too long."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"{process.args} did not start: {log.read_text(errors='replace')[-2000:]}")


def needs(*packages: str) -> None:
    """Skip where a package is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'offline-cli[cloud-tests]'")


def azurite() -> list[str]:
    """The command that starts Azurite; skips where it, or node, is missing."""
    node = shutil.which("node") or shutil.which("node", path=str(Path(sys.executable).parent))
    folder = Path(os.environ.get("OFFLINE_CLI_AZURITE", REPOSITORY / ".venv" / "azurite"))
    script = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if node is None:
        pytest.skip("node is not installed, which Azurite runs on")
    if not script.is_file():
        pytest.skip(f"Azurite is not in {folder}: make nightly installs it there; OFFLINE_CLI_AZURITE names another folder")
    return [node, str(script)]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """moto; or the real server that OFFLINE_CLI_RADOSGW names, whose account has the same keys."""
    real = os.environ.get("OFFLINE_CLI_RADOSGW")
    if real is not None:
        yield s3_at(int(real.rpartition(":")[2]))
        return
    needs("moto", "flask", "s3fs")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, port, tmp_path_factory.mktemp("moto") / "log"):
        yield s3_at(port)


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """gcp-storage-emulator."""
    needs("gcp_storage_emulator", "gcsfs")
    port = free_port()
    command = [sys.executable, "-c", GCS_LAUNCHER, "start", "--host", "127.0.0.1", "--port", str(port), "--in-memory"]
    with running(command, port, tmp_path_factory.mktemp("gcs") / "log"):
        yield gcs_at(port)


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """Azurite."""
    needs("adlfs")
    port, folder = free_port(), tmp_path_factory.mktemp("azurite")
    where = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    command = [*azurite(), "--silent", *where, "--skipApiVersionCheck", "--disableTelemetry"]
    with running(command, port, folder / "log"):
        yield azure_at(port)


SERVERS = {"s3": "s3_server", "gs": "gcs_server", "az": "azure_server"}


NIGHTLY_GCS, NIGHTLY_AZURE = (pytest.param(scheme, marks=pytest.mark.nightly) for scheme in ("gs", "az"))
PROVIDERS = ["s3", NIGHTLY_GCS, NIGHTLY_AZURE]
with_gcs = pytest.mark.parametrize("cloud", ["s3", "gs", NIGHTLY_AZURE], indirect=True)
"""Of a test that takes `cloud`: CI runs it against Google's storage too."""


@pytest.fixture(params=PROVIDERS)
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """Each provider's server in turn, to be found by the environment of this process."""
    server: Cloud = request.getfixturevalue(SERVERS[request.param])
    with found_by_environment(server, monkeypatch):
        yield server


@pytest.fixture
def s3(s3_server: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """The S3 server, to be found by the environment of this process."""
    with found_by_environment(s3_server, monkeypatch):
        yield s3_server


@contextmanager
def found_by_environment(server: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within it, clients in this process find `server` without any option."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    forget_clients()
    try:
        yield
    finally:
        forget_clients()


def forget_clients() -> None:
    """Have later clients made anew: they are kept by their options, and environments differ."""
    import fsspec
    from fsspec.registry import _registry

    for kind in list(_registry.values()):
        if issubclass(kind, fsspec.AbstractFileSystem):
            kind.clear_instance_cache()


def pytest_configure(config: pytest.Config) -> None:
    os.environ.update(LOOK_UPS_OFF)
