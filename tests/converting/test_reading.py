"""Sources as one stream: spaces, scales, and what contradicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli import write_dataset
from offline_cli.converting.convert import convert
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.environments import spaces_of_env
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadEpisode, SpaceMismatch
from offline_cli.storage.locations import open_location


def episode_columns(name: str, steps: int = 3, *, dim: int = 4, action: Any = 1, **more: Any) -> dict[str, Any]:
    t = np.arange(steps + 1, dtype=np.float32)
    obs = np.repeat(t[:, None], dim, axis=1)
    return {
        "eps_id": [name] * steps,
        "t": np.arange(steps),
        "obs": obs[:-1].tolist(),
        "new_obs": obs[1:].tolist(),
        "actions": [action] * steps,
        "rewards": np.ones(steps),
        "terminateds": np.arange(steps) == steps - 1,
        "truncateds": np.zeros(steps, np.bool_),
        **more,
    }


def recording(folder: Path, *episodes: dict[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for number, columns in enumerate(episodes):
        table = pa.table(columns)
        if pa.types.is_list(table["obs"].type):
            field = pa.field("obs", pa.list_(pa.float32()))
            table = table.set_column(2, field, table["obs"].cast(field.type))
            table = table.set_column(3, "new_obs", table["new_obs"].cast(field.type))
        pq.write_table(table, folder / f"{number}.parquet")
    return str(folder)


def read(source: Any, **options: Any) -> tuple[EpisodeStream, EpisodeBatch]:
    stream = read_episodes(source, **options)
    return stream, EpisodeBatch.concat(list(stream))


@pytest.mark.parametrize("keep", [0, 400, 10_000])
def test_inference_loses_no_episode_whatever_it_can_hold(keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers first: a space follows from their values, and then, from decimals, it does not any more."""
    monkeypatch.setattr("offline_cli.converting.reading.KEEP", keep)
    monkeypatch.setattr("offline_cli.formats.parquet_files.ROWS", 3)
    files = [episode_columns(name, action=1 if name in "ab" else 0.5) for name in "abcdef"]
    stream, batch = read(recording(tmp_path / "r", *files))
    assert sorted(batch.ids) == list("abcdef")
    assert stream.action_space.shape == ()
    assert stream.tally.rows_in == 18


def test_spaces_of_an_environment_are_taken_where_the_source_has_none(tmp_path: Path) -> None:
    stream, batch = read(recording(tmp_path / "r", episode_columns("a")), env="CartPole-v1")
    assert not stream.spaces_inferred
    assert stream.environment is not None
    assert stream.environment.id == "CartPole-v1"
    assert batch.actions.dtype == np.int64
    assert batch.action_space == spaces.Discrete(2)


def test_the_environment_decides_where_only_the_action_spaces_differ(
    tmp_path: Path, random_batch: Callable[..., EpisodeBatch]
) -> None:
    observation, action = spaces_of_env("CartPole-v1")
    folders = []
    for number, declared in enumerate((action, spaces.Discrete(3))):
        batch = random_batch(observation, action, seed=number)
        batch = replace(batch, ids=tuple(f"{number}-{name}" for name in batch.ids), action_space=declared)
        place = open_location(str(tmp_path / f"D{number}"))
        write_dataset(batch, place, format="episodes", observation_space=observation, action_space=declared, action_scale="env")
        folders.append(place.path)
    with pytest.raises(SpaceMismatch):
        read(folders)
    stream, batch = read(folders, env="CartPole-v1")
    assert (stream.action_space, len(batch)) == (action, 6)


def test_fragments_and_duplicates_are_found_across_sources(tmp_path: Path) -> None:
    whole = episode_columns("a", 4)
    first = {name: value[:2] for name, value in whole.items()}
    second = {name: value[2:] for name, value in whole.items()}
    sources = [recording(tmp_path / "1", first), recording(tmp_path / "2", second), recording(tmp_path / "3", whole)]
    stream, batch = read(sources)
    assert batch.ids == ("a",)
    assert batch.num_steps == 4
    assert (stream.tally.fragments_stitched, stream.tally.duplicates_dropped) == (1, 1)


def test_episodes_of_two_structures_are_refused(tmp_path: Path) -> None:
    source = recording(tmp_path / "r", episode_columns("a"), episode_columns("b", logp=[0.5] * 3))
    with pytest.raises(BadEpisode, match="logp"):
        read(source)


@pytest.mark.parametrize("said", [None, "env", "normalized"])
def test_box_actions_of_rllib_have_the_scale_that_is_said_or_an_unknown_one(said: str | None, tmp_path: Path) -> None:
    source = recording(tmp_path / "r", episode_columns("a", action=[0.5]))
    assert read(source, action_scale=said)[0].action_scale == (said or "unknown")


def test_sources_of_different_scales_are_refused(tmp_path: Path) -> None:
    raw = recording(tmp_path / "r", episode_columns("a", action=[0.5]))
    convert(recording(tmp_path / "s", episode_columns("b", action=[0.5])), str(tmp_path / "D"), action_scale="env")
    with pytest.raises(BadConfig):
        read_episodes([raw, str(tmp_path / "D")])


@pytest.mark.integration
def test_every_step_of_packed_columns_equals_what_rllibs_own_unpacking_gives(real_data: Path) -> None:
    compression = pytest.importorskip("ray.rllib.utils.compression", reason="needs the extra [ray]")
    _, batch = read(str(real_data / "rllib_columns_cartpole_expert"))
    mine = {name: batch.select([e]) for e, name in enumerate(batch.ids)}
    rows: dict[str, list[dict[str, Any]]] = {}
    for file in sorted((real_data / "rllib_columns_cartpole_expert").rglob("*.parquet")):
        for row in pq.ParquetFile(file).read().to_pylist():
            rows.setdefault(row["eps_id"], []).append(row)
    assert rows.keys() == mine.keys()
    for name, theirs in rows.items():
        own = mine[name]
        once = theirs[: own.num_steps]
        assert len(theirs) in (own.num_steps, 2 * own.num_steps)
        np.testing.assert_array_equal(own.acted_obs(), np.stack([compression.unpack(row["obs"]) for row in once]))
        np.testing.assert_array_equal(own.next_obs(), np.stack([compression.unpack(row["new_obs"]) for row in once]))
        for column, values in (("actions", own.actions), ("rewards", own.rewards), *own.extra.items()):
            np.testing.assert_array_equal(values, np.array([row[column] for row in once], values.dtype))
        assert (bool(own.terminated[0]), bool(own.truncated[0])) == (once[-1]["terminateds"], once[-1]["truncateds"])


# ---- what is inferred is true of all the data ----


def flat_table(folder: Path, dtype: Any, **more: Any) -> str:
    """A folder with three episodes of two steps as a plain table; 0.1 is no float32."""
    folder.mkdir()
    values, t = np.full(6, 0.1, dtype), np.arange(6)
    columns = {"eps_id": t // 2, "obs": values, "actions": values, "terminateds": t % 2 == 1}
    pq.write_table(pa.table({**columns, **more}), folder / "a.parquet")
    return str(folder)


def typed(dtype: Any) -> dict[str, Any]:
    """Columns of one episode whose numbers have that dtype, the extra one too; 0.1 is no float32."""
    values = np.full(3, 0.1, dtype)
    return {"obs": values, "new_obs": values, "actions": values, "action_logp": values}


@pytest.mark.parametrize(("keep", "first"), [(0, np.float32), (1 << 20, np.int64)])
def test_a_later_file_of_wider_numbers_widens_the_space_whatever_can_be_held(
    first: Any, keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.converting.reading.KEEP", keep)
    monkeypatch.setattr("offline_cli.formats.parquet_files.ROWS", 3)
    files = [episode_columns("a", **typed(first)), episode_columns("b", **typed(np.float64))]
    stream, batch = read(recording(tmp_path / "r", *files))
    assert stream.observation_space.dtype == stream.action_space.dtype == np.float64
    assert {leaf.dtype for leaf in (batch.obs, batch.actions, batch.extra["action_logp"])} == {np.dtype(np.float64)}
    assert batch.obs[batch.obs_starts[1]] == 0.1


def test_datasets_whose_extra_outputs_differ_in_dtype_or_name_are_joined_or_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    extras = {"float": {"score": np.full(6, 0.1, np.float32)}, "double": {"score": np.full(6, 0.1)}, "none": {}}
    for name, extra in extras.items():
        convert(flat_table(tmp_path / f"{name}.table", np.float32, **extra), tmp_path / name, from_="table")
    found = convert([tmp_path / "float", tmp_path / "double"], tmp_path / "both")
    assert found.episodes > 1
    _, batch = read(tmp_path / "both")
    assert batch.extra["score"].dtype == np.float64
    with pytest.raises(BadEpisode, match="score"):
        convert([tmp_path / "float", tmp_path / "none"], tmp_path / "all", max_rows_per_file=1)
    assert not (tmp_path / "all").exists()
