"""Faults on the way to a storage: passing ones are survived, lasting ones end in time, and --resume finishes the dataset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cloud_servers import PROVIDERS, REPOSITORY, Cloud
from fault_proxy import Fault, FaultProxy

from offline_cli.errors import StorageError
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import StagedFile, write_whole

pytestmark = pytest.mark.integration

MIB = 1 << 20
DATA = bytes(range(256)) * (4 << 10) * 20  # 20 MiB: three parts
LIMIT = 3.0
OPTION = ("--storage-option", f"time_limit={LIMIT}")
Call = Callable[..., tuple[int, dict[str, Any]]]
Run = Callable[..., tuple[int, dict[str, Any], float]]
SameDataset = Callable[[Path, str, Cloud], None]


def place_behind(proxy: FaultProxy, server: Cloud, name: str, **options: Any) -> Location:
    return open_location(f"{server.bucket()}/{name}", {**server.at(proxy.port).options, **options})


def upload(place: Location, data: bytes = DATA) -> None:
    """Write a file as shards are written: in pieces, and leaving nothing where it fails."""
    file = StagedFile(place, folder=place)
    try:
        for start in range(0, len(data), MIB):
            file.write(data[start : start + MIB])
        file.commit()
    except BaseException:
        file.discard()
        raise


@pytest.fixture(scope="module")
def run() -> Run:
    """Runs `offline-cli ARGS...` as a process: the exit code, the object on stdout, and the seconds until it ended."""

    def in_process(*args: Any) -> tuple[int, dict[str, Any], float]:
        words = [sys.executable, "-m", "offline_cli", *(str(arg) for arg in args), "--json", "--quiet"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))}
        began = time.monotonic()
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=120)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout), time.monotonic() - began

    return in_process


# ---- faults that pass ----

PASSING = {
    "delay": Fault("delay", after=MIB, times=10),
    "reset": Fault("reset", after=10 * MIB, times=1),
    "503": Fault("answer", after=10 * MIB, times=1),
    "500": Fault("answer", after=10 * MIB, times=1, status="500 Internal Server Error"),
}
# Azure's client waits 15 s before it tries again, and the emulator of Google's storage keeps half a chunk that was cut.
FAULTS = {"s3": ("delay", "reset", "503", "500"), "gs": ("delay", "503", "500"), "az": ("delay", "reset", "503")}
UPLOADS = [
    pytest.param(scheme, fault, marks=[pytest.mark.nightly] if scheme != "s3" else [])
    for scheme, faults in FAULTS.items()
    for fault in faults
]


@pytest.mark.parametrize(("server", "fault"), UPLOADS, indirect=["server"])
def test_an_upload_survives_a_fault_that_passes(server: Cloud, fault: str, proxy: FaultProxy) -> None:
    place = place_behind(proxy, server, "file")
    proxy.fault = PASSING[fault]
    upload(place)
    assert proxy.fired
    proxy.fault = None
    assert place.read_bytes() == DATA


# ---- faults that last ----

LASTING = {
    "reset": Fault("reset", since=b"-000002.parquet"),
    "503": Fault("answer", since=b"-000002.parquet"),
    "500": Fault("answer", since=b"-000002.parquet", status="500 Internal Server Error"),
    "slow": Fault("delay", since=b"-000002.parquet", seconds=2 * LIMIT),
    "stops reading": Fault("stall", since=b"-000002.parquet"),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local dataset of 40 episodes."""
    from offline_cli import record

    out = tmp_path_factory.mktemp("source") / "D"
    record("CartPole-v1", out, policy="random", episodes=40, num_env_runners=0)
    return out


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What convert makes of it in shards of 8 episodes."""
    from offline_cli import convert

    out = tmp_path_factory.mktemp("undisturbed") / "D"
    convert(source, str(out), max_rows_per_file=8)
    return out


@pytest.fixture(scope="module")
def start(source: Path, run: Run) -> float:
    """Seconds that a process takes to begin and to end, on a busy machine too."""
    return 15.0 + 2 * run("inspect", source)[2]


@pytest.mark.nightly
@pytest.mark.parametrize("server", PROVIDERS, indirect=True)
@pytest.mark.parametrize("fault", LASTING)
def test_a_fault_that_lasts_ends_convert_in_time_and_resume_finishes_it(
    server: Cloud,
    fault: str,
    proxy: FaultProxy,
    run: Run,
    call: Call,
    source: Path,
    undisturbed: Path,
    start: float,
    assert_same_dataset: SameDataset,
) -> None:
    out = f"{server.bucket()}/D"
    command = ("convert", source, "--out", out, "--max-rows-per-file", "8")
    proxy.fault = LASTING[fault]
    code, told, took = run(*command, *OPTION)
    assert (code, told["error"]["code"]) == (5, "storage-error"), told
    assert out in told["error"]["where"]
    assert took < 6 * LIMIT + start, "the request takes the limit, and so does each of the clean-ups after it"
    proxy.fault = None
    code, told = call(*command, "--resume")
    assert code == 0, told
    assert_same_dataset(undisturbed, out, server)


@pytest.mark.nightly
@pytest.mark.parametrize("server", PROVIDERS, indirect=True)
def test_reading_from_a_server_that_stops_sending_ends_in_time(server: Cloud, proxy: FaultProxy, call: Call) -> None:
    place = place_behind(proxy, server, "D/a.json")
    write_whole(place, b'{"type": "SampleBatch"}\n' * 100_000, folder=place)
    url = place.url.removesuffix("/a.json")
    proxy.fault, began = Fault("stall", after=MIB // 2, direction="down"), time.monotonic()
    code, told = call("inspect", url, *OPTION)
    assert (code, told["error"]["code"]) == (5, "storage-error"), told
    assert url in told["error"]["where"]
    assert f"{LIMIT:g} s" in told["error"]["what"]
    assert time.monotonic() - began < 4 * LIMIT


# ---- what failed uploads leave ----

NO_PARTS = {"s3": b"partNumber=", "gs": b"upload_id=", "az": b"comp=block"}


@pytest.mark.parametrize("server", PROVIDERS, indirect=True)
def test_an_upload_that_is_refused_half_way_leaves_nothing(server: Cloud, proxy: FaultProxy) -> None:
    place = place_behind(proxy, server, "D/data/file", time_limit=LIMIT)
    proxy.fault = Fault("answer", after=10 * MIB, only=NO_PARTS[server.scheme], status="403 Forbidden")
    with pytest.raises(StorageError):
        upload(place)
    assert proxy.fired
    proxy.fault = None
    folder = open_location(place.url.removesuffix("/data/file"), server.options)
    assert not folder.exists()
    if server.scheme == "s3":
        bucket, key, _ = folder.fs.split_path(folder.path)
        assert "Uploads" not in folder.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
