"""What reads holds files, threads and processes no longer than its owner has it, and is harmless where nobody ends it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import half_read
import pytest

from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.errors import OfflineCliError
from offline_cli.formats.sample_batch.files import lines_of
from offline_cli.formats.tables import TableOptions
from offline_cli.scopes import Scope
from offline_cli.tally import Rejects

FDS = Path("/proc/self/fd")
STREAMS = ["episodes", "columns", "packed/D/data", "rllib", "lines", *(f"tables/{name}" for name in half_read.TABLES.values())]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind."""
    folder = tmp_path_factory.mktemp("data")
    half_read.make(folder)
    return folder


def stream_of(data: Path, source: str, **said: int) -> EpisodeStream:
    tables = TableOptions(str(data / "map.toml"), memory_limit=4 << 30) if source.startswith("tables") else None
    return read_episodes(str(data / source), tables=tables, **said)  # type: ignore[arg-type]


def held(data: Path) -> set[object]:
    """The files of these, temporary ones too, and the threads that this process has. Those of other tests may end meanwhile."""
    names = {file.name: os.readlink(file) for file in FDS.iterdir() if file.is_symlink()} if FDS.exists() else {}
    files = {(number, name) for number, name in names.items() if name.startswith(str(data)) or name.endswith("(deleted)")}
    return {*files, *threading.enumerate()}


def test_readers_that_are_left_half_read_hang_nothing_when_another_thread_collects_them(data: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, half_read.__file__, str(data)], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["threads"] == ["MainThread"]


@pytest.mark.parametrize("source", STREAMS)
class TestAStreamOfEpisodes:
    def test_that_is_left_halfway_closes_at_the_end_of_its_block(self, data: Path, source: str) -> None:
        before = held(data)
        with stream_of(data, source) as stream:
            batches = iter(stream)
            next(batches)
        assert held(data) <= before
        del batches

    def test_that_is_left_by_an_error_closes(self, data: Path, source: str) -> None:
        before = held(data)
        with pytest.raises(KeyboardInterrupt) as caught, stream_of(data, source) as stream:
            for _ in stream:
                raise KeyboardInterrupt
        assert held(data) <= before
        assert caught.tb is not None  # which keeps every frame alive

    def test_that_ends_at_its_limit_closes(self, data: Path, source: str) -> None:
        before = held(data)
        stream = stream_of(data, source, limit=1)
        assert sum(map(len, stream)) == 1
        assert held(data) <= before


@pytest.mark.skipif(not FDS.exists(), reason="needs /proc to see open files")
def test_rows_set_aside_are_closed_where_no_stream_of_their_source_can_be_made(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("offline_cli.tally.KEPT_ROWS", 1)
    (tmp_path / "m.toml").write_text('[columns]\neps_id = "e"\nobs = ["x"]\nactions = "a"\n')
    (tmp_path / "bad.csv").write_text("e,x,a\n" + "short\n" * 5 + "1,0.5,1\n")
    before = held(data)
    with pytest.raises(OfflineCliError) as caught:
        said = {"on_error": "quarantine", "tables": TableOptions(str(tmp_path / "m.toml")), "env": "CartPole-v1"}
        read_episodes(str(tmp_path / "bad.csv"), **said)  # type: ignore[arg-type]
    assert held(data) <= before
    assert caught.tb is not None


def test_lines_that_are_left_half_read_are_closed_by_their_scope_alone(tmp_path: Path) -> None:
    (tmp_path / "lines.json").write_text('{"a": 1}\n' * 100)
    opened: list[IO[bytes]] = []

    class Kept:
        url, path = "lines.json", tmp_path / "lines.json"

        def open(self) -> IO[bytes]:
            opened.append(self.path.open("rb", buffering=0))
            return opened[0]

    with Scope() as scope:
        lines = lines_of(Kept(), Rejects(), scope)  # type: ignore[arg-type]
        next(lines)
        del lines
        gc.collect()
        assert not opened[0].closed
    assert opened[0].closed


@pytest.mark.parametrize("source", STREAMS)
def test_sources_are_closed_where_no_stream_of_them_can_be_made(data: Path, source: str) -> None:
    before = held(data)
    with pytest.raises(OfflineCliError) as caught:
        stream_of(data, source, env="CartPole-v1")  # type: ignore[arg-type]
    assert held(data) <= before
    assert caught.tb is not None
