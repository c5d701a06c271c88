"""The same through S3: every reader in files of several blocks, thousands of small files, and every command; at most 50 MB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cloud_servers import Cloud
from growth import assert_grows_in_proportion
from made_recordings import READERS, Written, assert_same_episodes, read, without
from spoiling import spoil_cells, spoil_lines

pytestmark = pytest.mark.nightly
Write = Callable[..., Written]
Told = Callable[..., dict[str, Any]]
Memory = Callable[..., tuple[dict[str, Any], int]]
Put = Callable[[Path], str]
MANY_FILES = 200  # a server on loopback takes some milliseconds for each request
MIB = 1 << 20
TABLES = ("csv", "jsonl", "arrow", "rllib-columns")


@pytest.fixture
def put(s3: Cloud) -> Put:
    """A function that copies a folder to a new bucket and gives its URL there."""

    def copy(folder: Path) -> str:
        url = f"{s3.bucket()}/{folder.name}"
        s3.client().put(f"{folder}/", f"{url}/", recursive=True)
        return url

    return copy


def counted(*sources: Any, **said: Any) -> Any:
    return read(*sources, **said)[1]


@pytest.mark.parametrize("kind", READERS)
def test_recordings_of_several_blocks_are_read_from_s3_as_from_a_local_path(kind: str, written: Write, put: Put) -> None:
    source = written(kind, 400, 200)
    there = Written(kind, put(source.path), source.batch)  # type: ignore[arg-type]
    found, counts, _ = read(there)
    assert_same_episodes(found, source.batch)
    assert counts == counted(source)


@pytest.mark.parametrize("kind", ["csv", "rllib-columns", "sample-batch", "columns"])
def test_hundreds_of_files_are_read_from_s3_as_from_a_local_path(kind: str, written: Write, put: Put) -> None:
    source = written(kind, MANY_FILES, 3, files=MANY_FILES, block_rows=3)
    found, counts, _ = read(put(source.path))
    assert_same_episodes(found, source.batch)
    assert counts == counted(source)


def test_two_thousand_files_are_read_from_s3(written: Write, put: Put, told: Told) -> None:
    source = written("rllib-columns", 2000, 3, files=2000, block_rows=3)
    assert told("inspect", put(source.path)).items() >= {"episodes": 2000, "steps": 6000}.items()


@pytest.mark.parametrize("kind", ["csv", "rllib-columns", "columns"])
def test_a_recording_on_s3_takes_no_more_memory_than_a_local_one(
    kind: str, written: Write, put: Put, memory_of: Memory, tmp_path: Path
) -> None:
    source = written(kind, 70, 5000, dims=8)
    there = Written(kind, put(source.path), source.batch)  # type: ignore[arg-type]
    peaks = []
    for name, place in (("local", source), ("s3", there)):
        result, peak = memory_of("convert", *place.arguments, "--out", tmp_path / name)
        assert (result["episodes"], result["steps"]) == (70, 350_000)
        peaks.append(peak)
    assert peaks[1] <= peaks[0] + 128 * MIB, [
        f"{peak / MIB:.0f} MiB" for peak in peaks
    ]  # the client, and what is asked for ahead


@pytest.mark.parametrize("kind", ["csv", "rllib-columns", "columns"])
def test_twice_as_many_episodes_on_s3_take_twice_as_long(kind: str, written: Write, put: Put) -> None:
    half, full = (Written(kind, put(written(kind, count).path), written(kind, count).batch) for count in (20_000, 40_000))  # type: ignore[arg-type]
    read(half, keep=False)
    assert_grows_in_proportion(lambda: read(half, keep=False), lambda: read(full, keep=False))


@pytest.mark.parametrize("kind", TABLES)
def test_bad_values_cost_their_own_episodes_on_s3_too(
    kind: str, written: Write, put: Put, small_blocks: None, tmp_path: Path
) -> None:
    source = written(kind, 13, 5, block_rows=16)
    folder = tmp_path / kind
    folder.mkdir()
    (file,) = source.path.iterdir()
    (folder / file.name).write_bytes(file.read_bytes())
    rows = (0, 15, 16, 31, 33, 48, 64)
    spoil_cells(folder / file.name, rows, block_rows=16)
    found, counts, _ = read(put(folder), on_error="skip")
    lost = {row // 5 for row in rows}
    assert_same_episodes(found, without(source.batch, lost))
    assert (counts.rows_in, counts.set_aside) == (65, 5 * len(lost))


def test_broken_lines_cost_their_own_episodes_on_s3_too(written: Write, put: Put, tmp_path: Path) -> None:
    source = written("sample-batch", 300, 20, block_rows=20)
    (file,) = source.path.iterdir()
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / file.name).write_bytes(file.read_bytes())
    spoil_lines(tmp_path / "lines" / file.name, [0, 150, 299])
    found, counts, _ = read(put(tmp_path / "lines"), on_error="skip")
    assert_same_episodes(found, without(source.batch, {0, 150, 299}))
    assert (counts.rows_in, counts.set_aside) == (300, 3)


@pytest.mark.parametrize("kinds", [("csv", "sample-batch"), ("episodes", "rllib-packed", "jsonl")], ids="+".join)
def test_sources_on_s3_and_here_are_counted_together(kinds: tuple[str, ...], written: Write, put: Put) -> None:
    sources = [written(kind, 50, 4, first=1000 * number) for number, kind in enumerate(kinds)]
    alone = [counted(source) for source in sources]
    together = counted(put(sources[0].path), *(source.path for source in sources[1:]))
    assert together == sum(alone[1:], alone[0])


@pytest.mark.usefixtures("sized_envs")
def test_every_command_takes_twenty_thousand_episodes_from_s3_and_writes_there(
    written: Write, put: Put, told: Told, tmp_path: Path
) -> None:
    url = put(written("rllib-columns", 20_000).path)
    counts = {"episodes": 20_000, "steps": 40_000}
    out = f"{url}-out"
    assert told("convert", url, "--out", out).items() >= counts.items()
    assert told("inspect", out).items() >= counts.items()
    assert told("validate", out, "--deep").items() >= {"passed": True, **counts}.items()
    (tmp_path / "pipeline.toml").write_text('kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n', encoding="utf-8")
    assert told("apply", out, "--pipeline", tmp_path / "pipeline.toml", "--out", f"{url}-batches").items() >= counts.items()
    training = ("--updates", 5, "--batch-size", 64, "--device", "cpu")
    assert told("train-bc", out, "--out", f"{url}-run", *training).items() >= counts.items()
    assert told("evaluate", f"{url}-run", "--env", "sizes_env:SizedShort-v0", "--episodes", 100)["episodes"] == 100
    record = ("record", "sizes_env:SizedShort-v0", "--policy", f"{url}-run", "--episodes", 1000)
    assert told(*record, "--out", f"{url}-recorded")["episodes"] == 1000
