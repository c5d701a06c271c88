"""SampleBatch recordings: by RLlib, in every dialect (the same two episodes, and counts of what was assumed), and broken."""

from __future__ import annotations

import base64
import gzip
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
from gymnasium import spaces

from offline_cli import convert, inspect
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode, UnsafeData
from offline_cli.formats.rllib import sample_batch
from offline_cli.formats.rllib.sample_batch import SampleBatchSource
from offline_cli.formats.source import SourceInfo
from offline_cli.storage.locations import open_location
from offline_cli.tally import OnError, Rejects, Tally

SAMPLES = Path(__file__).resolve().parent.parent / "testdata" / "sample_batch"
ROW = {"obs": [[0.5]], "new_obs": [[0.5]], "actions": [1], "rewards": [1.0], "terminateds": [True], "eps_id": [3], "t": [0]}


def read(*files: Path, **options: Any) -> tuple[EpisodeStream, dict[str, EpisodeBatch]]:
    """The stream, read to its end, and its episodes by id."""
    places = [open_location(file) for file in files]
    info = SourceInfo(format="sample-batch", location="test", **options)
    stream = read_episodes(opened=[SampleBatchSource(places, "test", info)])
    batch = EpisodeBatch.concat(list(stream))
    return stream, {name: batch.select([number]) for number, name in enumerate(batch.ids)}


def sample(*names: str, **options: Any) -> dict[str, EpisodeBatch]:
    return read(*(SAMPLES / name for name in names), **options)[1]


def fragments_of(file: Path, rejects: Rejects | None = None) -> list[EpisodeBatch]:
    source = SampleBatchSource([open_location(file)], "test")
    return [one.batch for one in source.fragments(Tally(), rejects or Rejects())]


# ---- recordings by RLlib ----


@pytest.mark.integration
@pytest.mark.parametrize(
    "folder",
    ["sample_batch_cartpole_lz4", "sample_batch_cartpole_plain", "sample_batch_pendulum_lz4", "sample_batch_pendulum_trunc"],
)
def test_rllibs_own_reader_gives_the_same_columns(real_data: Path, folder: str) -> None:
    pytest.importorskip("ray")
    from ray.rllib.offline.json_reader import from_json_data

    (file,) = (real_data / folder).iterdir()
    theirs = [from_json_data(json.loads(text), None).policy_batches["default_policy"] for text in file.read_text().splitlines()]
    batch = EpisodeBatch.concat(fragments_of(file))
    terminateds, truncateds = batch.step_flags()
    ours = {"obs": batch.acted_obs(), "new_obs": batch.next_obs(), "actions": batch.actions, "rewards": batch.rewards}
    ours |= {"terminateds": terminateds, "truncateds": truncateds, "t": batch.timesteps(), **batch.extra}
    for name, found in ours.items():
        wanted = np.concatenate([np.asarray(one[name]) for one in theirs])
        np.testing.assert_array_equal(found, wanted, err_msg=name)


# ---- dialects ----


TENTH = np.float32(0.1)
OBS = (
    TENTH * np.arange(8, dtype=np.float32).reshape(4, 2),
    TENTH * np.arange(10, dtype=np.float32).reshape(5, 2) + np.float32(1),
)
ACTIONS = ([0, 1, 1], [0, 0, 1, 0])
REWARDS = ([1.0, 0.5, 0.1], [1.0, 2.0, 3.0, 4.0])
LOGP = (-TENTH * np.arange(3, dtype=np.float32), -TENTH * np.arange(3, 7, dtype=np.float32))
"""Of the two episodes of tests/testdata/sample_batch/make.py."""


@dataclass
class Dialect:
    """A file, and where what it gives differs from the two episodes."""

    file: str
    assumed: dict[str, int] = field(default_factory=dict)  # beside the dtypes inferred and the dropped unroll_id
    ids: tuple[str, str] | None = ("7001", "7002")  # None: made up
    ends: tuple[list[bool], list[bool]] = ([True, False], [False, True])  # terminated, truncated
    rewards: tuple[list[float], list[float]] = REWARDS
    final_repeated: bool = False
    module: str | None = None
    stitched: int = 0
    also: tuple[str, ...] = ()  # further files
    extras: tuple[str, ...] = ("action_logp",)


DIALECTS = [
    Dialect("sample_batch.json"),
    Dialect("multi_agent_batch.json", module="default_policy"),
    Dialect("without_type.json", {"missing-type": 1}),
    Dialect("wrapped_text.json", module="default_policy"),
    Dialect("packed_obs.json"),
    Dialect("packed_all.json"),
    Dialect("dones.json", {"dones-as-terminateds": 2}, ends=([True, True], [False, False])),
    Dialect("without_flags.json", {"missing-end-flags": 1, "unfinished-episode": 2}, ends=([False, False], [True, True])),
    Dialect("without_t.json", {"missing-t": 1}),
    Dialect("without_eps_id.json", {"missing-eps-id": 2}, ids=None, stitched=1),
    Dialect("without_eps_id_and_t.json", {"missing-eps-id": 2, "missing-t": 2}, ids=None, stitched=1),
    Dialect("without_new_obs.json", {"missing-final-observation": 2}, final_repeated=True),
    Dialect("without_rewards.json", {"missing-rewards": 7}, rewards=([0.0] * 3, [0.0] * 4)),
    Dialect("recurrent.json", {"dropped-column": 3}, extras=("action_logp", "state_out_0")),
    Dialect("padded.json", {"dropped-column": 2, "padding-removed": 1}),
    Dialect("many_lines.json", module="default_policy", stitched=3),
    Dialect("row_by_row.json", stitched=5),
    Dialect("first_half.json", also=("second_half.json",), stitched=1),
    Dialect("second_half.json", also=("first_half.json",), stitched=1),
    Dialect("previous.json", {"dropped-column": 3}),
    Dialect("previous_of_its_own.json", {"dropped-column": 2}),
    Dialect("notes.json", {"dropped-column": 4}),
    Dialect("gzipped.json.gz"),
    Dialect("zipped.zip", stitched=1),
]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.file)
def test_a_dialect_gives_the_two_episodes_and_counts_what_it_assumed(dialect: Dialect) -> None:
    stream, episodes = read(*(SAMPLES / name for name in (dialect.file, *dialect.also)))
    ids = dialect.ids or tuple(sorted(episodes))
    assert sorted(episodes) == sorted(ids)
    for number, name in enumerate(ids):
        found = episodes[name]
        obs = OBS[number]
        wanted = np.append(obs[:-1], obs[-2:-1], axis=0) if dialect.final_repeated else obs
        np.testing.assert_array_equal(found.obs, wanted, strict=True)
        np.testing.assert_array_equal(found.actions, np.array(ACTIONS[number]), strict=True)
        np.testing.assert_array_equal(found.rewards, dialect.rewards[number])
        np.testing.assert_array_equal(found.extra["action_logp"], LOGP[number], strict=True)
        assert [found.terminated[0], found.truncated[0]] == [ends[number] for ends in dialect.ends]
        assert found.module_ids == (None if dialect.module is None else (dialect.module,))
        assert (found.agent_ids, found.multi_agent_ids, found.infos) == (None, None, None)
        assert tuple(sorted(found.extra)) == dialect.extras
    counted = {key: times for key, times in stream.tally.assumptions.items() if key != "dtype-inferred" and times}
    assert counted == {"dropped-column": 1, **dialect.assumed}
    assert stream.tally.fragments_stitched == dialect.stitched


def test_nan_infinity_and_null_are_read_as_python_writes_them() -> None:
    episodes = sample("nan.json")
    np.testing.assert_array_equal(episodes["7001"].rewards, [1.0, np.nan, 0.1])
    assert episodes["7002"].rewards[-1] == np.inf
    stream, episodes = read(SAMPLES / "null.json")
    assert np.isnan(episodes["7001"].extra["action_logp"][0])
    assert stream.tally.assumptions["null-as-nan"] == 1


@pytest.mark.parametrize("name", ["dict_by_part.json", "dict_by_row.json"])
def test_dict_observations_are_read_by_part_and_by_row(name: str) -> None:
    obs: Any = sample(name)["7002"].obs
    assert list(obs) == ["a", "b"]
    np.testing.assert_array_equal(obs["a"], OBS[1], strict=True)
    np.testing.assert_array_equal(obs["b"], OBS[1][:, 0], strict=True)


TUPLE = spaces.Tuple([spaces.Discrete(2), spaces.Box(-9, 9, (2,), np.float32)])


@pytest.mark.parametrize("space", [None, TUPLE], ids=["space unknown", "space known"])
@pytest.mark.parametrize("name", ["tuple_by_part.json", "tuple_by_row.json"])
def test_tuple_actions_are_read_by_part_and_by_row(name: str, space: spaces.Tuple | None) -> None:
    actions = sample(name, action_space=space)["7001"].actions
    assert isinstance(actions, tuple)
    np.testing.assert_array_equal(actions[0], [0, 1, 1])
    np.testing.assert_array_equal(actions[1], OBS[0][:-1] * np.float32(2), strict=True)


@pytest.mark.parametrize(
    ("name", "ids", "agents"),
    [
        ("two_agents.json", ["7000-default_policy-0", "7000-default_policy-1"], ["0", "1"]),
        ("two_agents_in_turns.json", ["7000-default_policy-0", "7000-default_policy-1"], ["0", "1"]),
        ("two_policies.json", ["7000-left-0", "7000-right-0"], ["0", "0"]),
    ],
)
def test_each_agent_and_policy_of_an_episode_has_episodes_of_its_own(name: str, ids: list[str], agents: list[str]) -> None:
    episodes = sample(name)
    assert sorted(episodes) == ids
    assert [episodes[id_].agent_ids for id_ in ids] == [(agent,) for agent in agents]
    assert {episodes[id_].multi_agent_ids for id_ in ids} == {("7000",)}
    np.testing.assert_array_equal(episodes[ids[0]].obs, OBS[0], strict=True)
    np.testing.assert_array_equal(episodes[ids[1]].obs, OBS[1], strict=True)


@pytest.mark.parametrize("name", ["without_eps_id.json", "without_eps_id_and_t.json"])
def test_made_up_ids_are_the_same_every_time_and_wherever_the_file_lies(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes((SAMPLES / name).read_bytes())
    assert list(read(tmp_path / name)[1]) == list(sample(name))


# ---- broken lines and files ----


def written(folder: Path, *lines: dict[str, Any] | str) -> Path:
    path = folder / "recording.json"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def line(**changes: Any) -> dict[str, Any]:
    changed = {"type": "SampleBatch", **ROW, **changes}
    return {name: value for name, value in changed.items() if value is not ...}


def packed(value: Any) -> str:
    return base64.b64encode(lz4.frame.compress(pickle.dumps(value))).decode()


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ('{"type": "SampleBatch", "obs": [[1.0', BadData),
        ('{"value": 3}', BadData),
        ({"type": "Other", "obs": []}, BadData),
        ({"type": "MultiAgentBatch", "count": 1}, BadData),
        (line(obs=...), BadEpisode),
        (line(actions=[1, 2]), BadEpisode),
        (line(infos=[]), BadEpisode),
        (line(obs=[["a"]]), BadEpisode),
        (line(rewards=[[1.0, 2.0]]), BadEpisode),
        (line(dones=[float("nan")]), BadEpisode),
        (line(eps_id=[None]), BadEpisode),
        (line(t=[0.5]), BadEpisode),
        (line(new_obs=[[1.0, 2.0]]), BadEpisode),
        (line(obs=packed(np.zeros((1, 1)))[:-9]), BadEpisode),
        (line(obs=packed(print)), UnsafeData),
        (line(infos=packed([print])), UnsafeData),
        (line(obs=packed(np.array([None]))), UnsafeData),
    ],
)
def test_a_bad_line_is_refused_by_file_and_line(bad: Any, error: type[BadData], tmp_path: Path) -> None:
    path = written(tmp_path, line(), bad)
    with pytest.raises(error) as caught:
        fragments_of(path)
    assert caught.value.where.startswith(f"{path} line 2")


def test_a_line_that_was_cut_is_set_aside_and_the_lines_after_it_are_read() -> None:
    rejects = Rejects(OnError.QUARANTINE)
    batches = fragments_of(SAMPLES / "cut_in_the_middle.json", rejects)
    assert [name for batch in batches for name in batch.ids] == ["7001", "7002"]
    assert [reject.where.endswith("cut_in_the_middle.json line 2") for reject in rejects.kept] == [True]
    assert rejects.kept[0].raw == (SAMPLES / "cut_in_the_middle.json").read_bytes().split(b"\n")[1]


def zipped(data: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as members:
        members.writestr("recording.json", data)
    return archive.getvalue()


@pytest.mark.parametrize("stored", [bytes, gzip.compress, zipped])
def test_a_byte_order_mark_before_the_first_line_is_passed_over(stored: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "recording.json"
    path.write_bytes(stored(b"\xef\xbb\xbf" + json.dumps(line()).encode()))
    assert inspect(str(path)).format == "sample-batch"
    assert [batch.ids for batch in fragments_of(path)] == [("3",)]


def test_a_line_longer_than_the_limit_is_refused_and_the_next_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_cli.formats.rllib.json_lines.MAX_LINE_BYTES", 300)
    rejects = Rejects(OnError.QUARANTINE)
    (batch,) = fragments_of(written(tmp_path, line(note="x" * 1000), line(eps_id=[9])), rejects)
    assert batch.ids == ("9",)
    assert (rejects.kept[0].code, rejects.kept[0].where) == ("unsafe-data", f"{tmp_path / 'recording.json'} line 1")


# ---- many lines ----


def test_a_value_that_float32_cannot_hold_makes_the_column_float64_in_all_lines_read_together(tmp_path: Path) -> None:
    (batch,) = fragments_of(written(tmp_path, line(eps_id=[1]), line(obs=[[0.1]], eps_id=[2])))
    assert batch.obs.dtype == np.float64


KNOWN = {"observation_space": spaces.Box(-np.inf, np.inf, (1,), np.float32), "action_space": spaces.Discrete(2)}


def test_decimals_take_the_dtype_of_a_known_space(tmp_path: Path) -> None:
    stream, found = read(written(tmp_path, line(obs=[[0.1]])), **KNOWN)
    np.testing.assert_array_equal(found["3"].obs, np.float32([[0.1], [0.5]]), strict=True)
    assert "dtype-inferred" not in stream.tally.assumptions


@pytest.mark.parametrize("column", ["obs", "new_obs"])
def test_a_value_too_large_for_the_dtype_of_a_known_space_is_refused_by_its_column_and_row(column: str, tmp_path: Path) -> None:
    steps = {"obs": [[0.1], [0.2]], "new_obs": [[0.2], [0.3]], "actions": [0, 1], "rewards": [1.0] * 2, "t": [0, 1]}
    steps |= {"terminateds": [False, True], "eps_id": [4, 4]}
    wrong = line(**steps | {column: [steps[column][0], [1e39]]})
    path = written(tmp_path, line(obs=[[0.1]]), wrong)
    with pytest.raises(BadEpisode) as caught:
        read(path, **KNOWN)
    assert caught.value.what == f"column {column} holds 1e+39, too large for the float32 of its space"
    assert (caught.value.code, caught.value.where) == ("bad-episode", f"{path} line 2 row 1")


@pytest.mark.parametrize("typed", ["obs", "new_obs"])
def test_observations_are_rounded_alike_where_one_of_their_columns_is_packed(typed: str, tmp_path: Path) -> None:
    steps: dict[str, Any] = {"obs": [[0.1], [0.2]], "new_obs": [[0.2], [0.3]], "actions": [0, 1], "rewards": [1.0] * 2}
    steps |= {"t": [0, 1], "terminateds": [False, True], "eps_id": [4, 4]}
    stream, found = read(written(tmp_path, line(**steps | {typed: packed(np.array(steps[typed]))})), **KNOWN)
    np.testing.assert_array_equal(found["4"].obs, np.float32([[0.1], [0.2], [0.3]]), strict=True)
    assert "broken-chain" not in stream.tally.assumptions


def test_dones_at_the_time_limit_of_the_environment_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def episode(name: int, steps: int) -> dict[str, Any]:
        obs, ends = [[0.5] * 4] * steps, [False] * (steps - 1) + [True]
        whole = {"obs": obs, "new_obs": obs, "actions": [0] * steps, "rewards": [1.0] * steps}
        return line(**whole, dones=ends, terminateds=..., eps_id=[name] * steps, t=list(range(steps)))

    file = written(tmp_path, episode(1, 500), episode(2, 20), episode(3, 500))
    found = convert(file, tmp_path / "D", env="CartPole-v1")
    assert found.assumptions == {"dones-as-terminateds": 3}
    assert [record.args for record in caplog.records] == [(2, 500, "CartPole-v1")]


def test_lines_of_one_step_without_id_and_timestep_are_joined_where_they_chain(tmp_path: Path) -> None:
    steps = [line(obs=[[i]], new_obs=[[i + 1]], terminateds=[i == 2], eps_id=..., t=...) for i in (0.5, 1.5, 2)]
    assert [batch.lengths.tolist() for batch in fragments_of(written(tmp_path, *steps))] == [[2, 1]]


# ---- lines without ids, and agents that take turns ----


def without_id(first: int, *, ended: bool = False, **columns: Any) -> dict[str, Any]:
    """A line of two steps from obs `first` on; `...` leaves out a column."""
    given = {"obs": [[first], [first + 1]], "new_obs": [[first + 1], [first + 2]], "t": [first, first + 1]}
    given |= {"actions": [0, 1], "rewards": [1.0, 1.0], "terminateds": [False, ended], "eps_id": ...}
    return line(**(given | columns))


@pytest.mark.parametrize("proof", ["t", "new_obs", None])
@pytest.mark.parametrize("block_bytes", [0, 1 << 20])
@pytest.mark.parametrize("extra", [{}, {"action_logp": [0.5, 0.5]}], ids=["one form", "two forms"])
def test_an_episode_without_id_goes_on_over_blocks_and_lines_of_other_columns(
    proof: str | None, block_bytes: int, extra: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_batch, "BLOCK_BYTES", block_bytes)
    left_out: dict[str, Any] = {name: ... for name in ("t", "new_obs") if name != proof}
    lines = [without_id(0, **left_out), without_id(2, **left_out, **extra), without_id(4, ended=True, **left_out)]
    file = written(tmp_path, *lines, without_id(0, ended=True, **left_out))
    tally = Tally()
    found = [one.batch for one in SampleBatchSource([open_location(file)], "test").fragments(tally, Rejects())]
    lengths: dict[str, int] = {}
    for batch in found:
        for name, length in zip(batch.ids, batch.lengths.tolist(), strict=True):
            lengths[name] = lengths.get(name, 0) + length
    assert list(lengths.values()) == [6, 2]
    assert tally.assumptions["missing-eps-id"] == 2
    if not extra:
        assert sorted(batch.lengths.tolist()[0] for batch in read(file)[1].values()) == [2, 6]


@pytest.mark.parametrize("block_bytes", [0, 1 << 20])
@pytest.mark.parametrize(
    ("columns", "start", "lengths"),
    [
        ({"t": ..., "new_obs": ...}, 2, [2, 2]),
        ({"new_obs": ...}, 2, [4]),
        ({"new_obs": ...}, 0, [2, 2]),
        ({"t": ...}, 2, [4]),
        ({"t": ...}, 50, [2, 2]),
    ],
)
def test_an_episode_without_id_goes_on_in_the_next_file_only_where_it_shows(
    columns: dict[str, Any], start: int, lengths: list[int], block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_batch, "BLOCK_BYTES", block_bytes)
    files = []
    for name, steps in (("a", without_id(0, **columns)), ("b", without_id(start, ended=True, **columns))):
        (tmp_path / name).mkdir()
        files.append(written(tmp_path / name, steps))
    assert [batch.lengths.tolist()[0] for batch in read(*files)[1].values()] == lengths


@pytest.mark.parametrize("t", [[0, 0, 1, 1], ...])
def test_agents_that_take_turns_in_a_line_are_brought_together(t: Any, tmp_path: Path) -> None:
    columns = {"eps_id": [3] * 4, "agent_index": [0, 1, 0, 1], "t": t, "infos": [{"row": row} for row in range(4)]}
    columns |= {"obs": [[0], [10], [1], [11]], "new_obs": [[1], [11], [2], [12]], "actions": [0, 1, 2, 3], "rewards": [1.0] * 4}
    turns = line(**columns, terminateds=[False, False, True, True])
    stream, episodes = read(written(tmp_path, turns))
    assert {name: batch.actions.tolist() for name, batch in episodes.items()} == {
        "3-default_policy-0": [0, 2],
        "3-default_policy-1": [1, 3],
    }
    assert [[info.get("row") for info in batch.infos or ()] for batch in episodes.values()] == [[None, 0, 2], [None, 1, 3]]
    assert (stream.tally.fragments_stitched, stream.tally.assumptions["rows-brought-together"]) == (0, 4)
