"""Row groups that readers would refuse are cut; a row that they would refuse is written as it is; all others as before."""

from __future__ import annotations

import datetime
import hashlib
import io
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli.checking.repair import repair
from offline_cli.checking.validate import validate
from offline_cli.converting.convert import convert
from offline_cli.datasets import shard_sequence
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.row_groups import BlockCutter
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import MemoryLimitExceeded, UnsafeData
from offline_cli.files.locations import open_location
from offline_cli.parquet import row_group_cuts, safety, trust
from offline_cli.parquet.row_group_cuts import Cuts, Held, cuts_of, parquet_options
from offline_cli.parquet.safety import refuse_bomb
from offline_cli.tally import Tally

KIB = 1 << 10
IMAGE = spaces.Box(0, 255, (12, 12, 3), np.uint8)
WRITTEN_BEFORE = {  # by format, codec, and whether all pixels are black: sha256 of names and bytes in data/
    ("episodes", "zstd", False): "ca43ffc51267aea1",
    ("episodes", "zstd", True): "a9ec7d85cb8a43d4",
    ("episodes", "gzip", False): "669b69b1545d9e14",
    ("episodes", "gzip", True): "92849309425ef0f4",
    ("episodes", "none", False): "a305cf580506392c",
    ("episodes", "none", True): "f323ec0ce71ea0e6",
    ("columns", "zstd", False): "07464bada9eaa1a3",
    ("columns", "zstd", True): "8730745e60bafdee",
    ("columns", "gzip", False): "67049636ba5c8e66",
    ("columns", "gzip", True): "bf732df13d80a3f4",
    ("columns", "none", False): "eac744b542bffd35",
    ("columns", "none", True): "e2854a64fb047632",
}


def batch(*lengths: int, obs: Any = None, space: spaces.Box = IMAGE, first: int = 0, **more: Any) -> EpisodeBatch:
    starts = np.concatenate([[0], np.cumsum(lengths)])
    steps = int(starts[-1])
    shape = (steps + len(lengths), *space.shape)
    return EpisodeBatch(
        ids=tuple(f"e{first + number}" for number in range(len(lengths))),
        starts=starts,
        obs=np.zeros(shape, space.dtype) if obs is None else obs,
        actions=np.zeros(steps, np.int64),
        rewards=np.arange(steps, dtype=float),
        terminated=np.ones(len(lengths), np.bool_),
        truncated=np.zeros(len(lengths), np.bool_),
        observation_space=space,
        action_space=spaces.Discrete(2),
        **more,
    )


def writer(folder: Path, like: EpisodeBatch, **options: Any) -> DatasetWriter:
    given: dict[str, Any] = {"format": "episodes", "action_scale": "env", **options}
    found = {"observation_space": like.observation_space, "action_space": like.action_space}
    return DatasetWriter(open_location(folder), **found, **given)


def write(folder: Path, *batches: EpisodeBatch, **options: Any) -> None:
    with writer(folder, batches[0], **options) as opened:
        for part in batches:
            opened.write(part)
        opened.commit()


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((folder / "data").iterdir())}


def noise(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 255, shape, np.uint8)


def items(*values: bytes) -> pa.Table:
    return pa.table({"item": pa.array(values, pa.binary())})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may unfold to anything is 64 KiB, not MiB, and what packs twenty times as well as it should is a bomb."""
    monkeypatch.setattr(safety, "MAX_BYTES", 64 * KIB)
    monkeypatch.setattr(safety, "MAX_RATIO", 20)
    monkeypatch.setattr(safety, "SMALL", KIB)


@pytest.mark.skipif(pa.__version__ != "26.0.1", reason="Arrow's own name and version stand in each file")
@pytest.mark.parametrize(("format", "codec", "black"), WRITTEN_BEFORE)
def test_shards_within_the_bound_keep_their_bytes(format: str, codec: str, black: bool, tmp_path: Path) -> None:
    made = batch(*[700] * 6, obs=None if black else noise(6 * 701, 12, 12, 3))
    write(tmp_path, made, format=format, compression=codec, max_rows_per_file=4 if format == "episodes" else 2800)
    digest = hashlib.sha256(b"".join(name.encode() + data for name, data in files(tmp_path).items()))
    assert digest.hexdigest()[:16] == WRITTEN_BEFORE[format, codec, black]


@pytest.mark.parametrize("format", ["episodes", "columns"])
def test_frames_of_noise_keep_their_bytes_whatever_the_bound(
    format: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = batch(300, 300, obs=noise(602, 12, 12, 3))
    write(tmp_path / "large", made, format=format)
    monkeypatch.setattr(safety, "MAX_BYTES", 64 * KIB)
    write(tmp_path / "small", made, format=format)
    assert files(tmp_path / "large") == files(tmp_path / "small")


STILL = b"".join([np.random.default_rng(0).bytes(8 * KIB)] * 250)  # a picture that stays


@pytest.mark.parametrize(
    ("table", "codec", "wanted"),
    [
        (items(bytes(2000 * KIB)), "zstd", Cuts((1,), is_plain=True)),
        (items(bytes(2000 * KIB)), "lz4", Cuts((1,), is_plain=True)),  # twenty is less than it reaches
        (items(STILL), "zstd", Cuts((1,), is_plain=True)),
        (items(STILL), "brotli", Cuts((1,), is_plain=True)),
        (items(STILL), "none", Cuts((1,), is_plain=False)),
        (items(np.random.default_rng(0).bytes(2000 * KIB)), "zstd", Cuts((1,), is_plain=False)),
        (items(*[bytes(10 * KIB)] * 5), "zstd", Cuts((5,), is_plain=False)),
        (items(*[bytes(40 * KIB)] * 5), "zstd", Cuts((1,) * 5, is_plain=True)),
        (items(b"", bytes(2000 * KIB), b""), "zstd", Cuts((1, 1, 1), is_plain=True)),
        (pa.table({"obs": np.random.default_rng(0).random(1 << 15)}), "zstd", Cuts((1 << 15,), is_plain=False)),
        (items(), "zstd", Cuts((0,), is_plain=False)),
    ],
    ids=["zeros", "zeros, lz4", "still", "still, brotli", "still, none", "noise", "small ones", "large ones", "between",
         "random numbers", "nothing"],
)  # fmt: skip
def test_only_what_readers_refuse_is_cut_and_only_what_cannot_be_cut_is_plain(
    table: pa.Table, codec: str, wanted: Cuts, small: None
) -> None:
    assert cuts_of(table, codec) == wanted


@pytest.mark.parametrize("column", [np.zeros(1 << 15), ["x" * 1000] * 300], ids=["numbers", "texts"])
def test_a_table_of_small_cells_is_cut_into_row_groups_that_make_it_no_bomb(column: Any, small: None) -> None:
    table = pa.table({"column": column})
    cuts = cuts_of(table, "zstd")
    assert cuts is not None
    assert not cuts.is_plain
    assert 1 < len(cuts.rows) < 200
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, **parquet_options(table.schema, "zstd", is_plain=False)) as parquet:
        for first, count in zip(np.cumsum([0, *cuts.rows]).tolist(), cuts.rows, strict=False):
            parquet.write_table(table.slice(first, count))
    refuse_bomb(lambda: nullcontext(sink), pq.read_metadata(sink), lambda: len(sink.getvalue()), where="test")


def test_a_table_that_would_make_a_bomb_of_a_shard_belongs_into_another(small: None) -> None:
    table = items(bytes(40 * KIB))
    assert cuts_of(table, "zstd") == Cuts((1,))
    assert cuts_of(table, "zstd", Held(40 * KIB, 1 * KIB, lambda: 1 * KIB)) is None
    assert cuts_of(table, "zstd", Held(40 * KIB, 1 * KIB, lambda: 5 * KIB)) == Cuts((1,))


def test_the_ratio_of_lz4_needs_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety, "MAX_BYTES", 64 * KIB)
    monkeypatch.setattr(row_group_cuts, "_size", lambda *_: pytest.fail("it was written"))
    assert cuts_of(items(bytes(2000 * KIB)), "lz4") == Cuts((1,), is_plain=False)


def test_an_episode_in_which_nothing_moves_is_read_back_from_a_shard_of_its_own(small: None, tmp_path: Path) -> None:
    batches = [batch(2), batch(30_000, first=1), batch(2, first=2)]  # the long one is larger than a block
    write(tmp_path, *batches)
    found = EpisodeBatch.concat(list(Dataset.open(tmp_path).batches()))
    assert found.ids == ("e0", "e1", "e2")
    np.testing.assert_array_equal(found.obs, EpisodeBatch.concat(batches).obs)
    packed = [pq.read_metadata(file).row_group(0).column(0).compression for file in sorted((tmp_path / "data").iterdir())]
    assert packed == ["ZSTD", "UNCOMPRESSED", "ZSTD"]


# ---- the same files after a stop ----


def streams() -> Iterator[list[int]]:
    """Lengths of episodes: 900 black frames are a bomb here."""
    yield [2, 2, 900, 2, 2, 2, 900, 900, 2]
    yield [900, 2, 2, 2, 2, 2]
    yield [2, 2, 2, 2, 900]


@pytest.mark.parametrize("lengths", list(streams()))
@pytest.mark.parametrize("max_rows", [2, 3, None])
@pytest.mark.parametrize("block", [8 << 20, 4 * KIB], ids=["large blocks", "small blocks"])
def test_a_writing_that_is_resumed_cuts_shards_as_if_it_had_never_stopped(
    lengths: list[int], max_rows: int | None, block: int, small: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(BlockCutter.__init__.__kwdefaults__, "block_bytes", block)
    batches = [batch(length, first=number) for number, length in enumerate(lengths)]
    write(tmp_path / "whole", *batches, max_rows_per_file=max_rows)
    for stop in range(1, len(batches)):
        folder = tmp_path / f"stopped-{stop}"
        with pytest.raises(KeyboardInterrupt), writer(folder, batches[0], max_rows_per_file=max_rows) as opened:
            for part in batches[: stop + 1]:
                opened.write(part)
            raise KeyboardInterrupt
        with writer(folder, batches[0], max_rows_per_file=max_rows, resume=folder.exists()) as opened:
            for part in batches:
                if part.ids[0] not in opened.ids_written:
                    opened.write(part)
            opened.commit()
        assert files(folder) == files(tmp_path / "whole")


def test_what_is_written_a_second_time_is_counted_once(small: None, tmp_path: Path) -> None:
    tally = Tally()
    infos: list[dict[str, Any]] = [{"when": datetime.date(2020, 1, 1)}] + [{}] * 900
    write(tmp_path, batch(2), replace(batch(900, first=1), infos=infos), tally=tally)
    assert sum(tally.assumptions.values()) == 1


def test_a_plain_shard_that_gets_columns_at_the_end_stays_plain(small: None, tmp_path: Path) -> None:
    wide = spaces.Box(0, 255, (100_000,), np.uint8)
    still, moving = batch(2, space=wide), batch(2, space=wide, first=1, infos=[{"lives": 3}] * 3)
    write(tmp_path, still, moving, format="columns")
    first = pq.read_metadata(next(iter(sorted((tmp_path / "data").iterdir())))).row_group(0)
    assert {first.column(number).compression for number in range(first.num_columns)} == {"UNCOMPRESSED"}
    assert validate(str(tmp_path), deep=True).passed


# ---- shards of writers that did not know the bound ----


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A dataset that is a bomb by its ratio."""
    with monkeypatch.context() as before:
        before.setattr(shard_sequence, "cuts_of", lambda table, *_: Cuts((table.num_rows,)))
        write(tmp_path / "old", batch(900))
    monkeypatch.setattr(safety, "MAX_BYTES", 64 * KIB)
    monkeypatch.setattr(safety, "MAX_RATIO", 20)
    return tmp_path / "old"


def test_a_shard_that_is_the_manifest_s_own_is_read_however_well_it_packs(old: Path, tmp_path: Path) -> None:
    assert sum(found.num_steps for found in Dataset.open(old).batches()) == 900
    assert validate(str(old), deep=True).passed
    convert(str(old), tmp_path / "copy")
    assert repair(str(old)).changed is False


def test_without_a_manifest_it_is_a_bomb(old: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsafeData, match="unfold to at least"):
        convert(str(old / "data"), tmp_path / "copy")


def test_a_manifest_whose_sha256_is_not_true_is_not_trusted(old: Path) -> None:
    text = (old / "manifest.json").read_text()
    (shard,) = Dataset.open(old).manifest.shards
    (old / "manifest.json").write_text(text.replace(shard.sha256, "0" * 64))
    with pytest.raises(UnsafeData, match="unfold to at least"):
        list(Dataset.open(old).batches())


def test_trust_ends_at_the_memory_limit(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MemoryLimitExceeded, match="raise `memory_limit`") as error:
        list(Dataset.open(old).batches(memory_limit=900 * KIB))  # twice what it unfolds to
    assert error.value.exit_code == 6
    assert not [found for found in Dataset.open(old).batches(memory_limit=1500 * KIB) if not len(found)]


def test_a_shard_of_many_row_groups_beyond_the_bound_is_compared_with_its_manifest_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(shard_sequence, "cuts_of", lambda table, *_: Cuts((table.num_rows // 3,) * 3))
        write(tmp_path, batch(*[900] * 3))
    monkeypatch.setattr(safety, "MAX_BYTES", 64 * KIB)
    monkeypatch.setattr(safety, "MAX_RATIO", 20)
    compared = []
    through = trust._sha256
    monkeypatch.setattr(trust, "_sha256", lambda content: compared.append(content) or through(content))
    monkeypatch.setattr(trust, "fingerprint", lambda location: compared.append(location))
    assert sum(found.num_steps for found in Dataset.open(tmp_path).batches()) == 2700
    assert len(compared) == 1
