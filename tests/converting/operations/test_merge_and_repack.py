"""`merge` and `repack`: all episodes of the sources as one dataset, in other files."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli.checking.validate import validate
from offline_cli.converting.convert import convert
from offline_cli.converting.operations.differences import diff
from offline_cli.converting.operations.merging import merge, repack
from offline_cli.converting.operations.splitting import split
from offline_cli.datasets.dataset import open_dataset
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.known_episodes import fingerprints
from offline_cli.errors import BadConfig, BadEpisode, SpaceMismatch, UsageError
from offline_cli.storage.locations import open_location

Make = Callable[..., EpisodeBatch]
Written = Callable[..., Path]


def whole(folder: Path) -> dict[str, bytes]:
    with open_dataset(folder).batches() as batches:
        return {batch.ids[e]: fingerprints(batch)[e] for batch in batches for e in range(len(batch))}


def items(folder: Path) -> dict[str, bytes]:
    tables = [pq.read_table(file, columns=["eps_id", "item"]) for file in sorted((folder / "data").iterdir())]
    return {name: item for table in tables for name, item in zip(*(c.to_pylist() for c in table.columns), strict=True)}


def test_parts_are_joined_in_their_order_without_what_comes_twice(written: Written, make_batch: Make, tmp_path: Path) -> None:
    batch = make_batch((3, 1, 5, 2))
    a, b = written("a", batch.select(slice(0, 3))), written("b", batch.select(slice(1, 4)), "columns")
    result = merge([a, b, a], tmp_path / "F")
    assert (result.episodes, result.steps, result.dropped, result.ids_changed) == (4, 11, 5, 0)
    assert list(whole(tmp_path / "F")) == list(batch.ids)
    assert diff(written("whole", batch), tmp_path / "F").equal
    assert validate(tmp_path / "F", deep=True).passed


def test_another_episode_of_an_id_is_refused_with_both_sources_and_the_way_out(
    written: Written, make_batch: Make, tmp_path: Path
) -> None:
    a, b = written("a", make_batch((3, 4))), written("b", make_batch((3, 4), seed=1))
    with pytest.raises(BadEpisode, match="episode-0") as caught:
        merge([a, b], tmp_path / "F")
    assert str(a) in caught.value.where
    assert str(b) in caught.value.where
    assert "--unique-ids" in caught.value.fix
    assert not (tmp_path / "F").exists()


def test_unique_ids_are_the_same_each_time_and_collide_with_none(written: Written, make_batch: Make, tmp_path: Path) -> None:
    one, other, third = (make_batch((3, 4), seed=seed) for seed in range(3))
    a = written("a", replace(one, ids=("x", "y")))
    b = written("b", replace(other, ids=("x", "x-2")))
    c = written(
        "c", EpisodeBatch.concat([replace(other, ids=("x", "z")).select([0]), replace(third, ids=("q", "x-3")).select([1])])
    )
    result = merge([a, b, c], tmp_path / "F", unique_ids=True)
    have = whole(tmp_path / "F")
    assert list(have) == ["x", "y", "x-2-2", "x-2", "x-3"]
    assert (result.ids_changed, result.dropped) == (2, 1)  # c's x is a copy of b's, and gets its id
    assert have["x-2-2"] == whole(b)["x"]
    merge([a, b, c], tmp_path / "G", unique_ids=True)
    assert items(tmp_path / "F") == items(tmp_path / "G")
    assert validate(tmp_path / "F", deep=True).passed


def test_other_spaces_and_scales_are_refused(written: Written, make_batch: Make, tmp_path: Path) -> None:
    box = spaces.Box(-1, 1, (2,), np.float32)
    a, b = written("a", make_batch((3,), action_space=box)), written("b", make_batch((3,), first_id=9))
    with pytest.raises(SpaceMismatch):
        merge([a, b], tmp_path / "F")
    c = written("c", make_batch((3,), first_id=9, action_space=box), action_scale="normalized")
    with pytest.raises(BadConfig):
        merge([a, c], tmp_path / "F")


def test_extra_outputs_are_all_kept_or_the_common_ones_or_none(written: Written, make_batch: Make, tmp_path: Path) -> None:
    a = written("a", make_batch((3, 4), extra={"logp": np.arange(7.0), "v": np.arange(7.0)}))
    b = written("b", make_batch((2,), first_id=10, extra={"logp": np.arange(2.0), "v": np.zeros((2, 3))}))
    with pytest.raises(BadEpisode, match=r"\bv\b"):
        merge([a, b], tmp_path / "F")
    result = merge([a, b], tmp_path / "common", extras="common")
    assert "v" in result.extras_left_out
    assert list(open_dataset(tmp_path / "common")[:1].extra) == ["logp"]
    merge([a, b], tmp_path / "none", extras="drop")
    assert not open_dataset(tmp_path / "none")[:1].extra
    for extras, names in (("common", 1), ("drop", 0)):
        convert([a, b], tmp_path / f"converted {extras}", extras=extras, to="columns")
        assert len(open_dataset(tmp_path / f"converted {extras}")[:1].extra) == names


# ---- repack ----


def test_columns_are_left_out_but_not_those_of_every_episode(written: Written, make_batch: Make, tmp_path: Path) -> None:
    batch = make_batch((3, 4), infos=[{"k": 1}] * 9, extra={"logp": np.arange(7.0), "v": np.arange(7.0)})
    a = written("a", batch, "columns")
    result = repack(a, tmp_path / "F", drop=["infos", "v"])
    assert result.dropped_columns == ("infos", "v")
    table = pq.read_table(next((tmp_path / "F" / "data").iterdir()))
    assert "logp" in table.column_names
    assert "v" not in table.column_names
    assert table["infos"].null_count == table["reset_infos"].null_count == len(table)
    with pytest.raises(UsageError, match="obs, rewards, w") as caught:
        repack(a, tmp_path / "G", drop=["obs", "rewards", "w"])
    assert "infos, logp, v" in caught.value.fix


def test_hashed_ids_are_sha_256_everywhere(written: Written, make_batch: Make, tmp_path: Path) -> None:
    batch = make_batch((3, 4), custom_data=({"source_id": "ann"}, {}), multi_agent_ids=("game", None))
    a = written("a", batch)
    assert repack(a, tmp_path / "F", hash_ids=True).ids_hashed
    with open_dataset(tmp_path / "F").batches() as batches:
        found = next(iter(batches))
    hashed = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("episode-0", "episode-1", "ann", "game")}
    assert found.ids == (hashed["episode-0"], hashed["episode-1"])
    assert found.multi_agent_ids == (hashed["game"], None)
    assert found.custom_data is not None
    assert found.custom_data[0] == {"source_id": hashed["ann"]}
    data = b"".join(file.read_bytes() for file in (tmp_path / "F" / "data").iterdir())
    assert b"ann" not in data
    assert list(whole(tmp_path / "F").values()) == list(whole(a).values())


@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_split_then_merge_equals_the_original(data: st.DataObject, make_batch: Make) -> None:
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=2, max_size=12), label="lengths")
    first = data.draw(st.integers(1, len(lengths) - 1), label="episodes of the first part")
    row_format = data.draw(st.sampled_from(["episodes", "columns"]), label="format")
    batch = make_batch(lengths, infos=[{"n": i} for i in range(sum(lengths) + len(lengths))])
    counts = {"train": first, "val": len(lengths) - first}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        spaces_ = {"observation_space": batch.observation_space, "action_space": batch.action_space}
        with DatasetWriter(open_location(root / "D"), format=row_format, **spaces_, action_scale="env") as writer:  # type: ignore[arg-type]
            writer.write(batch)
            writer.commit(episodes_lost=0)
        split(root / "D", root / "parts", counts=counts, seed=data.draw(st.integers(0, 9), label="seed"))
        result = merge([root / "parts" / name for name in counts], root / "F")
        assert (result.episodes, result.dropped) == (len(lengths), 0)
        compared = diff(root / "D", root / "F")
        assert (compared.equal, compared.missing, compared.changed) == (True, 0, 0)
        if row_format == "episodes":
            assert items(root / "F") == items(root / "D")
        one, other = (open_dataset(root / name).manifest for name in ("D", "F"))
        assert one.counts == other.counts
        assert one.statistics["return"]["quantiles"] == other.statistics["return"]["quantiles"]
