"""What does it cost to train from S3? Rivals: the same training from a local disk; a bare parallel download of the same bytes.

All are timed from the start of the process to its end. The server is the one at OFFLINE_CLI_RADOSGW (`.ci/radosgw python -m
benchmarks.run train_from_s3`), else moto. No server: no rows.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from gymnasium import spaces

from benchmarks.harness import Row
from benchmarks.slow_link import slow_link
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.storage.locations import open_location
from offline_cli.storage.writer import DatasetWriter

STEPS, LENGTH = 400_000, 500
LINK = 20e6  # bytes a second
RUNS = int(os.environ.get("OFFLINE_CLI_BENCH_RUNS", "5"))
TRAIN = ("--epochs", os.environ.get("OFFLINE_CLI_BENCH_EPOCHS", "20"), "--device", "cpu", "--quiet", "--json")
CLIENT = {
    "AWS_ACCESS_KEY_ID": "AKIDTEST",
    "AWS_SECRET_ACCESS_KEY": "SECRETTEST",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
READ = """
import sys, offline_cli
print(sum(batch.num_steps for batch in offline_cli.open_dataset(sys.argv[1]).batches()))
"""
DOWNLOAD = """
import sys, fsspec
fs = fsspec.filesystem("s3")
files = [(path, size) for path, size in ((path, fs.size(path)) for path in fs.find(sys.argv[1])) if size]
parts = [(path, at, min(at + (8 << 20), size)) for path, size in files for at in range(0, size, 8 << 20)]
print(sum(map(len, fs.cat_ranges(*map(list, zip(*parts)), batch_size=8))))
"""


def rows() -> list[Row]:
    if "OFFLINE_CLI_RADOSGW" not in os.environ and importlib.util.find_spec("moto") is None:
        return []
    with tempfile.TemporaryDirectory() as scratch, _server() as (name, port):
        os.environ.update({**CLIENT, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"})
        local, url = Path(scratch) / "D", f"s3://bench-{uuid.uuid4().hex[:8]}/D"
        _record(local)
        _upload(local, url)
        size = sum(path.stat().st_size for path in local.rglob("*") if path.is_file()) / 1e6
        text = f"{size:.0f} MB, {STEPS:,} steps of 64 float32, from {name} on loopback"
        return [_warm(local, url, Path(scratch), text), _cold(url, size, text), _behind_a_link(url, size, text, port)]


def _warm(local: Path, url: str, scratch: Path, text: str) -> Row:
    kept = scratch / "cache"
    _train(url, scratch, kept)  # fills the cache
    pairs = [(_train(str(local), scratch), _train(url, scratch, kept)) for _ in range(RUNS)]
    here, warm = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(there / ours for there, ours in pairs)
    return Row(f"train-bc on {text}, warm cache", "runs/s", 1 / warm, 1 / here, ratio, "the same from a local disk",
               f"the training; {here:.1f} s and {warm:.1f} s", RUNS)  # fmt: skip


def _cold(url: str, size: float, text: str) -> Row:
    pairs = [tuple(_seconds([sys.executable, "-c", code, url]) for code in (READ, DOWNLOAD)) for _ in range(RUNS)]
    ours, bare = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(download / read for read, download in pairs)
    return Row(f"read {text}, no cache, to batches of episodes", "MB/s", size / ours, size / bare, ratio,
               "a bare parallel download", "the server; both include starting Python and loading s3fs", RUNS)  # fmt: skip


def _behind_a_link(url: str, size: float, text: str, port: int) -> Row:
    with slow_link(port, LINK) as way:
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{way}"
        row = _cold(url, size, f"{text} behind a link of {LINK / 1e6:.0f} MB/s")
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
    return row


def _train(source: str, scratch: Path, cache: Path | None = None) -> float:
    out = scratch / f"run-{uuid.uuid4().hex}"
    command = [sys.executable, "-m", "offline_cli", "train-bc", source, "--out", str(out), *TRAIN]
    taken = _seconds(command if cache is None else [*command, "--cache", str(cache)])
    shutil.rmtree(out)
    return taken


def _seconds(command: list[str]) -> float:
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    taken, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{taken:.2f} s, {worked:.2f} s of them by processors: {' '.join(command[3:])[:80]}", file=sys.stderr, flush=True)
    return taken


def _record(folder: Path) -> None:
    rng, number = np.random.default_rng(0), STEPS // LENGTH
    batch = EpisodeBatch(
        ids=tuple(f"{i:032x}" for i in range(number)),
        starts=np.arange(number + 1) * LENGTH,
        obs=rng.normal(size=(STEPS + number, 64)).astype(np.float32),
        actions=rng.integers(0, 4, STEPS),
        rewards=np.ones(STEPS),
        terminated=np.ones(number, bool),
        truncated=np.zeros(number, bool),
    )
    box, choices = spaces.Box(-np.inf, np.inf, (64,), np.float32), spaces.Discrete(4)
    place = open_location(folder)
    with DatasetWriter(place, format="episodes", observation_space=box, action_space=choices, action_scale="env") as writer:
        writer.write(batch)
        writer.commit()


def _upload(folder: Path, url: str) -> None:
    import fsspec

    client = fsspec.filesystem("s3")
    client.mkdir(url.partition("://")[2].partition("/")[0])
    for path in folder.rglob("*"):
        if path.is_file():
            client.put_file(str(path), f"{url}/{path.relative_to(folder).as_posix()}")


@contextmanager
def _server() -> Iterator[tuple[str, int]]:
    """A server's name and its port on loopback."""
    real = os.environ.get("OFFLINE_CLI_RADOSGW")
    if real is not None:
        yield "Ceph radosgw", int(real.rpartition(":")[2])
        return
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield "moto", port
    finally:
        process.kill()
        process.wait()
