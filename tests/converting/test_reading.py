"""Sources as one stream: spaces, scales, and what contradicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli.converting.convert import convert
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.environments import spaces_of_env
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, BadEpisode, NoData, SpaceMismatch, UnknownEnvironment, UsageError
from offline_cli.files.locations import open_location
from offline_cli.spaces import same_space


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


def test_spaces_are_inferred_from_all_the_data_and_marked(tmp_path: Path) -> None:
    stream, _ = read(recording(tmp_path / "r", episode_columns("a", action=0), episode_columns("b", action=4)))
    assert stream.spaces_inferred
    assert stream.action_space == spaces.Discrete(5)
    assert stream.observation_space.shape == (4,)


def test_inference_reads_twice_what_is_too_large_to_hold_and_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.converting.whole_episodes.KEEP", 0)
    source = recording(tmp_path / "r", episode_columns("a", action=0), episode_columns("b", action=4))
    stream, batch = read(source)
    assert stream.action_space == spaces.Discrete(5)
    assert sorted(batch.ids) == ["a", "b"]
    assert stream.tally.rows_in == 6


@pytest.mark.parametrize("keep", [0, 200, 400, 10_000])
def test_inference_loses_no_episode_whatever_it_can_hold(keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers first: a space follows from their values, and then, from decimals, it does not any more."""
    monkeypatch.setattr("offline_cli.converting.whole_episodes.KEEP", keep)
    monkeypatch.setattr("offline_cli.formats.parquet_files.ROWS", 3)
    files = [episode_columns(name, action=1 if name in "ab" else 0.5) for name in "abcdef"]
    stream, batch = read(recording(tmp_path / "r", *files))
    assert sorted(batch.ids) == list("abcdef")
    assert stream.action_space.shape == ()
    assert stream.tally.rows_in == 18


@pytest.mark.parametrize("kind", [{"obs": [[0.0]] * 3, "new_obs": [[0.0]] * 3}, {"action": [0.5]}])
def test_two_kinds_of_recording_have_no_space_in_common(kind: dict[str, Any], tmp_path: Path) -> None:
    folders = [recording(tmp_path / "r", episode_columns("a")), recording(tmp_path / "s", episode_columns("b", **kind))]
    with pytest.raises(BadEpisode, match="two kinds of episodes") as caught:
        read(folders)
    assert caught.value.where == "episodes a and b"


def test_spaces_of_an_environment_are_taken_where_the_source_has_none(tmp_path: Path) -> None:
    stream, batch = read(recording(tmp_path / "r", episode_columns("a")), env="CartPole-v1")
    assert not stream.spaces_inferred
    assert stream.environment_id == "CartPole-v1"
    assert batch.actions.dtype == np.int64
    assert batch.action_space == spaces.Discrete(2)


def test_an_unknown_environment_is_refused_with_near_matches(tmp_path: Path) -> None:
    with pytest.raises(UnknownEnvironment) as caught:
        read_episodes(recording(tmp_path / "r", episode_columns("a")), env="CartPool-v1")
    assert "CartPole-v1" in caught.value.fix


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        (episode_columns("a", dim=3), r"observations has values of shape \(3,\), not \(4,\)"),
        (episode_columns("a", action=2), "actions holds 2, which is not a category"),
        (episode_columns("a", action=[0.5]), r"actions has values of shape \(1,\)"),
    ],
)
def test_an_environment_that_does_not_fit_the_data_is_refused_with_both_shapes(
    columns: dict[str, Any], what: str, tmp_path: Path
) -> None:
    with pytest.raises(SpaceMismatch, match=what) as caught:
        read(recording(tmp_path / "r", columns), env="CartPole-v1")
    assert "--env CartPole-v1 says" in caught.value.what
    assert "the data is" in caught.value.what


def test_an_environment_must_fit_the_data_even_where_the_source_declares_its_spaces(real_data: Path) -> None:
    with pytest.raises(SpaceMismatch, match=r"values of shape \(16,\), not \(4,\)"):
        read_episodes(str(real_data / "rllib_episodes_frozenlake"), env="CartPole-v1")


def test_plain_json_numbers_get_the_dtypes_of_the_environment(real_data: Path) -> None:
    stream, batch = read(str(real_data / "sample_batch_cartpole_plain"), env="CartPole-v1")
    assert (batch.obs.dtype, batch.actions.dtype) == (np.float32, np.int64)
    assert not stream.spaces_inferred


def test_sources_that_declare_different_spaces_need_the_environment(real_data: Path) -> None:
    both = [str(real_data / "rllib_episodes_cartpole_lstm"), str(real_data / "rllib_episodes_frozenlake")]
    with pytest.raises(SpaceMismatch, match="Box") as caught:
        read(both)
    assert "--env" in caught.value.fix


def test_the_environment_decides_where_only_the_action_spaces_differ(
    tmp_path: Path, random_batch: Callable[..., EpisodeBatch]
) -> None:
    observation, action = spaces_of_env("CartPole-v1")
    folders = []
    for number, declared in enumerate((action, spaces.Discrete(3))):
        batch = random_batch(observation, action, seed=number)
        batch = replace(batch, ids=tuple(f"{number}-{name}" for name in batch.ids), action_space=declared)
        place = open_location(str(tmp_path / f"D{number}"))
        with DatasetWriter(
            place, format="episodes", observation_space=observation, action_space=declared, action_scale="env"
        ) as writer:
            writer.write(batch)
            writer.commit()
        folders.append(place.path)
    with pytest.raises(SpaceMismatch, match="two action spaces"):
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


def test_two_different_episodes_with_one_id_name_both_files(tmp_path: Path) -> None:
    sources = [recording(tmp_path / "1", episode_columns("0")), recording(tmp_path / "2", episode_columns("0", 2))]
    with pytest.raises(BadEpisode, match="two different episodes have the id 0") as caught:
        read(sources)
    assert caught.value.where == f"{sources[0]}/0.parquet row 0 and {sources[1]}/0.parquet row 0"


def test_episodes_of_two_structures_are_refused(tmp_path: Path) -> None:
    source = recording(tmp_path / "r", episode_columns("a"), episode_columns("b", logp=[0.5] * 3))
    with pytest.raises(BadEpisode, match="logp"):
        read(source)


def test_discrete_actions_have_one_scale_only(tmp_path: Path) -> None:
    assert read(recording(tmp_path / "r", episode_columns("a")))[0].action_scale == "env"


@pytest.mark.parametrize("said", [None, "env", "normalized"])
def test_box_actions_of_rllib_have_the_scale_that_is_said_or_an_unknown_one(said: str | None, tmp_path: Path) -> None:
    source = recording(tmp_path / "r", episode_columns("a", action=[0.5]))
    assert read(source, action_scale=said)[0].action_scale == (said or "unknown")


def test_a_manifest_that_says_the_scale_is_not_overruled(tmp_path: Path) -> None:
    convert(recording(tmp_path / "r", episode_columns("a", action=[0.5])), str(tmp_path / "D"), action_scale="env")
    assert read(str(tmp_path / "D"))[0].action_scale == "env"
    with pytest.raises(UsageError, match="the source says env"):
        read_episodes(str(tmp_path / "D"), action_scale="normalized")


def test_sources_of_different_scales_are_refused(tmp_path: Path) -> None:
    raw = recording(tmp_path / "r", episode_columns("a", action=[0.5]))
    convert(recording(tmp_path / "s", episode_columns("b", action=[0.5])), str(tmp_path / "D"), action_scale="env")
    with pytest.raises(BadConfig, match="env and unknown"):
        read_episodes([raw, str(tmp_path / "D")])


def test_a_source_without_a_row_has_no_episodes(tmp_path: Path) -> None:
    source = recording(tmp_path / "r", {name: value[:0] for name, value in episode_columns("a").items()})
    with pytest.raises(NoData, match="no episode"):
        read_episodes(source)


def test_under_skip_a_damaged_file_is_counted_and_the_others_are_read(tmp_path: Path) -> None:
    source = recording(tmp_path / "r", *(episode_columns(name) for name in "abc"))
    path = tmp_path / "r" / "1.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadData, match="not a whole Parquet file"):
        read(source)
    stream, batch = read(source, on_error="skip")
    assert batch.ids == ("a", "c")
    assert stream.rejects.count == 1


def test_our_own_dataset_reads_as_it_was_written(tmp_path: Path) -> None:
    source = recording(tmp_path / "r", episode_columns("a", note=[1.5, 2.5, 3.5]), episode_columns("b", 2, note=[1.0, 2.0]))
    _, want = read(source)
    for to in ("episodes", "columns"):
        convert(source, str(tmp_path / to), to=to)
        stream, have = read(str(tmp_path / to))
        assert have.ids == want.ids
        np.testing.assert_array_equal(have.obs, want.obs)
        np.testing.assert_array_equal(have.extra["note"], want.extra["note"])
        assert same_space(stream.action_space, want.action_space)
        assert stream.formats == [to]


@pytest.mark.parametrize("to", ["episodes", "columns"])
def test_the_data_folder_of_our_own_dataset_reads_without_its_manifest(to: str, real_data: Path, tmp_path: Path) -> None:
    source = str(real_data / "rllib_episodes_frozenlake")
    _, want = read(source)
    convert(source, str(tmp_path / "D"), to=to)
    _, have = read(str(tmp_path / "D" / "data"))
    assert have.ids == want.ids
    np.testing.assert_array_equal(have.obs, want.obs)
    assert have.infos == want.infos


@pytest.mark.parametrize(
    ("folder", "episodes", "steps", "terminated", "truncated", "rewards"),
    [
        ("rllib_episodes_cartpole_expert", 100, 46184, 15, 85, 46184),
        ("rllib_episodes_cartpole_lstm", 20, 485, 20, 0, 485),
        ("rllib_episodes_dict_flattened", 12, 132, 12, 0, 113.1429),
        ("rllib_episodes_frozenlake", 40, 306, 40, 0, 1),
        ("rllib_episodes_pendulum", 8, 1600, 0, 8, -13284.1756),
        ("rllib_columns_cartpole_expert", 50, 23844, 5, 45, 23844),
        ("rllib_columns_cartpole_plain", 30, 591, 30, 0, 591),
        ("rllib_columns_dict_flattened", 12, 132, 12, 0, 113.1429),
        ("rllib_columns_pendulum_plain", 4, 800, 0, 4, -4989.1438),
        ("sample_batch_cartpole_lz4", 163, 4000, 162, 1, 4000),
        ("sample_batch_cartpole_plain", 176, 4383, 176, 0, 4383),
        ("sample_batch_pendulum_lz4", 10, 2000, 0, 10, -13916.787),
        ("sample_batch_pendulum_trunc", 10, 2000, 0, 10, -11001.647),
    ],
)
def test_recordings_of_rllib_have_the_counts_that_their_own_reader_gives(
    folder: str, episodes: int, steps: int, terminated: int, truncated: int, rewards: float, real_data: Path
) -> None:
    stream, batch = read(str(real_data / folder))
    assert len(set(batch.ids)) == len(batch) == episodes
    assert batch.num_steps == steps
    assert (batch.terminated.sum(), batch.truncated.sum()) == (terminated, truncated)
    assert batch.rewards.sum() == pytest.approx(rewards, abs=1e-3)
    assert stream.tally.duplicates_dropped == (25 if folder == "rllib_columns_cartpole_expert" else 0)
    assert stream.tally.assumptions["unfinished-episode"] == (1 if folder == "sample_batch_cartpole_lz4" else 0)
    assert stream.tally.assumptions["broken-chain"] == 0


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


@pytest.mark.parametrize("keep", [0, 100, 1 << 20])
@pytest.mark.parametrize("first", [np.float32, np.int64])
def test_a_later_file_of_wider_numbers_widens_the_space_whatever_can_be_held(
    first: Any, keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.converting.whole_episodes.KEEP", keep)
    monkeypatch.setattr("offline_cli.formats.parquet_files.ROWS", 3)
    files = [episode_columns("a", **typed(first)), episode_columns("b", **typed(np.float64))]
    stream, batch = read(recording(tmp_path / "r", *files))
    assert stream.observation_space.dtype == stream.action_space.dtype == np.float64
    assert {leaf.dtype for leaf in (batch.obs, batch.actions, batch.extra["action_logp"])} == {np.dtype(np.float64)}
    assert batch.obs[batch.obs_starts[1]] == 0.1


@pytest.mark.parametrize("keep", [0, 100, 1 << 20])
def test_a_later_source_of_wider_numbers_widens_the_space_whatever_can_be_held(
    keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.converting.whole_episodes.KEEP", keep)
    logp = {"action_logp": np.full(6, 0.1, np.float32)}
    one = flat_table(tmp_path / "one", np.float32, **logp)
    other = flat_table(tmp_path / "other", np.float64, action_logp=np.full(6, 0.1))
    stream, batch = read([one, other], from_="table")
    assert stream.observation_space.dtype == stream.action_space.dtype == np.float64
    assert (batch.obs.dtype, batch.extra["action_logp"].dtype) == (np.float64, np.float64)
    assert stream.tally.rows_in == 12


@pytest.mark.parametrize("keep", [0, 1 << 20])
@pytest.mark.parametrize("more", [{"obs": [[0.1, 0.2]] * 6}, {"score": np.zeros(6)}])
def test_a_later_source_that_no_dataset_can_hold_too_is_refused_before_anything_is_read(
    more: dict[str, Any], keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.converting.whole_episodes.KEEP", keep)
    sources = [flat_table(tmp_path / "one", np.float64), flat_table(tmp_path / "two", np.float64, **more)]
    with pytest.raises(BadEpisode, match="two kinds of episodes") as caught:
        read_episodes(sources, from_="table")
    assert caught.value.fix.endswith("convert the two kinds of recording into two datasets")
    assert ("--extras common" in caught.value.fix) == ("score" in more)


@pytest.mark.parametrize("keep", [0, 1 << 20])
def test_plain_numbers_that_become_wider_after_the_lines_that_are_looked_at_first_are_read_all_the_same(
    keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.converting.whole_episodes.KEEP", keep)
    monkeypatch.setattr("offline_cli.formats.sample_batch.blocks.LOOKAHEAD_BYTES", 0)
    lines = [
        {
            "type": "SampleBatch",
            "eps_id": [number],
            "obs": [[value]],
            "new_obs": [[value]],
            "actions": [value],
            "rewards": [1.0],
        }
        | {"terminateds": [True], "truncateds": [False], "score": [value]}
        for number, value in enumerate([1, 0.5, 0.1, 0.25])
    ]
    (tmp_path / "a.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    stream, batch = read(str(tmp_path / "a.json"))
    assert stream.observation_space.dtype == stream.action_space.dtype == np.float64
    assert batch.extra["score"].tolist() == [1.0, 0.5, 0.1, 0.25]


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
    with pytest.raises(BadEpisode, match="two kinds of episodes: extra score is number of shape"):
        convert([tmp_path / "float", tmp_path / "none"], tmp_path / "all", max_rows_per_file=1)
    assert not (tmp_path / "all").exists()


def test_recordings_whose_later_source_declares_another_space_are_refused_before_anything_is_written(
    real_data: Path, tmp_path: Path
) -> None:
    sources = [str(real_data / name) for name in ("rllib_episodes_cartpole_expert", "rllib_episodes_frozenlake")]
    with pytest.raises(SpaceMismatch, match="two observation spaces"):
        read_episodes(sources)
