"""Every dialect of SampleBatch JSON, one line of the table each: the same two episodes, and a count of what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.rllib.sample_batch import SampleBatchSource
from offline_cli.formats.source import SourceInfo
from offline_cli.storage.locations import open_location
from offline_cli.tally import OnError, Rejects, Tally
from offline_cli.trees import map_leaves

SAMPLES = Path(__file__).resolve().parent.parent / "testdata" / "sample_batch"


@dataclass
class Episode:
    """One episode put together from its fragments."""

    obs: Any
    actions: Any
    rewards: NDArray[np.float64]
    terminated: bool
    truncated: bool
    extra: Mapping[str, Any]
    infos: list[Any] | None
    names: tuple[str | None, str | None, str | None] = (None, None, None)  # agent, module, multi-agent episode
    final_missing: bool = False


def read(*names: str, rejects: Rejects | None = None, **options: Any) -> tuple[dict[str, Episode], Tally]:
    tally = Tally()
    files = [open_location(SAMPLES / name) for name in names]
    source = SampleBatchSource(files, str(SAMPLES), SourceInfo(format="sample-batch", location=str(SAMPLES), **options))
    batches = [one.batch for one in source.fragments(tally, rejects or Rejects())]
    pieces: dict[str, list[tuple[EpisodeBatch, int]]] = {}
    for batch in batches:
        for entry in range(len(batch)):
            pieces.setdefault(batch.ids[entry], []).append((batch, entry))
    return {name: join(parts) for name, parts in pieces.items()}, tally


def join(parts: list[tuple[EpisodeBatch, int]]) -> Episode:
    ones = [batch.select([entry]) for batch, entry in parts]
    ones.sort(key=lambda one: 0 if one.t_started is None else int(one.t_started[0]))
    last = len(ones) - 1

    def obs(*leaves: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([leaf if i == last else leaf[:-1] for i, leaf in enumerate(leaves)])

    def steps(*leaves: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate(leaves)

    def name(names: tuple[str | None, ...] | None) -> str | None:
        return None if names is None else names[0]

    end = ones[-1]
    return Episode(
        obs=map_leaves(obs, *(one.obs for one in ones)),
        actions=map_leaves(steps, *(one.actions for one in ones)),
        rewards=np.concatenate([one.rewards for one in ones]),
        terminated=bool(end.terminated[0]),
        truncated=bool(end.truncated[0]),
        extra={key: map_leaves(steps, *(one.extra[key] for one in ones)) for key in end.extra},
        infos=None if end.infos is None else list(end.infos),
        names=(name(end.agent_ids), name(end.module_ids), name(end.multi_agent_ids)),
        final_missing=end.final_missing is not None and bool(end.final_missing[0]),
    )


def by_hand() -> dict[str, Episode]:
    """What `make.py` says in its first function."""
    tenth = np.float32(0.1)
    short = Episode(
        obs=tenth * np.arange(8, dtype=np.float32).reshape(4, 2),
        actions=np.array([0, 1, 1]),
        rewards=np.array([1.0, 0.5, 0.1]),
        terminated=True,
        truncated=False,
        extra={"action_logp": -tenth * np.arange(3, dtype=np.float32)},
        infos=None,
    )
    long = Episode(
        obs=tenth * np.arange(10, dtype=np.float32).reshape(5, 2) + np.float32(1),
        actions=np.array([0, 0, 1, 0]),
        rewards=np.array([1.0, 2.0, 3.0, 4.0]),
        terminated=False,
        truncated=True,
        extra={"action_logp": -tenth * np.arange(3, 7, dtype=np.float32)},
        infos=None,
    )
    return {"7001": short, "7002": long}


@dataclass
class Dialect:
    """A file, and where what it gives differs from the two episodes."""

    file: str
    assumed: dict[str, int] = field(default_factory=dict)  # beside the dtypes inferred and the dropped unroll_id
    ids: tuple[str, str] | None = ("7001", "7002")  # None: made up
    flags: tuple[tuple[bool, bool], tuple[bool, bool]] = ((True, False), (False, True))
    rewards: tuple[list[float], list[float]] | None = None
    final_repeated: bool = False
    module: str | None = None
    stitched: int = 0
    also: tuple[str, ...] = ()  # further files
    extras: tuple[str, ...] = ("action_logp",)


ENDED_BY_DONE = ((True, False), (True, False))
UNENDED = ((False, False), (False, False))
ZEROS = ([0.0] * 3, [0.0] * 4)

DIALECTS = [
    Dialect("sample_batch.json"),
    Dialect("multi_agent_batch.json", module="default_policy"),
    Dialect("without_type.json", {"missing-type": 1}),
    Dialect("wrapped_text.json", module="default_policy"),
    Dialect("packed_obs.json"),
    Dialect("packed_all.json"),
    Dialect("dones.json", {"dones-as-terminateds": 2}, flags=ENDED_BY_DONE),
    Dialect("without_flags.json", {"missing-end-flags": 1}, flags=UNENDED),
    Dialect("without_t.json", {"missing-t": 1}),
    Dialect("without_eps_id.json", {"missing-eps-id": 2}, ids=None, stitched=1),
    Dialect("without_eps_id_and_t.json", {"missing-eps-id": 2, "missing-t": 2}, ids=None, stitched=1),
    Dialect("without_new_obs.json", final_repeated=True),
    Dialect("without_rewards.json", {"missing-rewards": 7}, rewards=ZEROS),
    Dialect("recurrent.json", {"dropped-column": 3}, extras=("action_logp", "state_out_0")),
    Dialect("padded.json", {"dropped-column": 2, "padding-removed": 1}),
    Dialect("many_lines.json", module="default_policy", stitched=3),
    Dialect("row_by_row.json", stitched=5),
    Dialect("first_half.json", also=("second_half.json",), stitched=1),
    Dialect("second_half.json", also=("first_half.json",)),
    Dialect("previous.json", {"dropped-column": 3}),
    Dialect("previous_of_its_own.json", {"dropped-column": 2}),
    Dialect("notes.json", {"dropped-column": 4}),
    Dialect("gzipped.json.gz"),
    Dialect("zipped.zip", stitched=1),
]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.file)
def test_a_dialect_gives_the_two_episodes_and_counts_what_it_assumed(dialect: Dialect) -> None:
    episodes, tally = read(dialect.file, *dialect.also)
    ids = dialect.ids or tuple(sorted(episodes))
    assert sorted(episodes) == sorted(ids)
    for k, (name, wanted) in enumerate(zip(ids, by_hand().values(), strict=True)):
        found = episodes[name]
        obs = np.append(wanted.obs[:-1], wanted.obs[-2:-1], axis=0) if dialect.final_repeated else wanted.obs
        np.testing.assert_array_equal(found.obs, obs, strict=True)
        np.testing.assert_array_equal(found.actions, wanted.actions, strict=True)
        np.testing.assert_array_equal(found.rewards, dialect.rewards[k] if dialect.rewards else wanted.rewards)
        np.testing.assert_array_equal(found.extra["action_logp"], wanted.extra["action_logp"], strict=True)
        assert (found.terminated, found.truncated) == dialect.flags[k]
        assert found.names == (None, dialect.module, None)
        assert found.final_missing is dialect.final_repeated
        assert found.infos is None
        assert tuple(sorted(found.extra)) == dialect.extras
    counted = {key: times for key, times in tally.assumptions.items() if key != "dtype-inferred" and times}
    assert counted == {"dropped-column": 1, **dialect.assumed}
    assert tally.fragments_stitched == dialect.stitched


def test_nan_and_infinity_are_read_as_python_writes_them() -> None:
    episodes, _ = read("nan.json")
    np.testing.assert_array_equal(episodes["7001"].rewards, [1.0, np.nan, 0.1])
    assert episodes["7002"].rewards[-1] == np.inf


def test_a_null_among_numbers_is_nan_and_counted() -> None:
    episodes, tally = read("null.json")
    assert np.isnan(episodes["7001"].extra["action_logp"][0])
    assert tally.assumptions["null-as-nan"] == 1


@pytest.mark.parametrize("name", ["dict_by_part.json", "dict_by_row.json"])
def test_dict_observations_are_read_by_part_and_by_row(name: str) -> None:
    wanted = by_hand()["7002"].obs
    obs = read(name)[0]["7002"].obs
    assert list(obs) == ["a", "b"]
    np.testing.assert_array_equal(obs["a"], wanted, strict=True)
    np.testing.assert_array_equal(obs["b"], wanted[:, 0], strict=True)


TUPLE_SPACE = spaces.Tuple([spaces.Discrete(2), spaces.Box(-9, 9, (2,), np.float32)])


@pytest.mark.parametrize("space", [None, TUPLE_SPACE], ids=["space unknown", "space known"])
@pytest.mark.parametrize("name", ["tuple_by_part.json", "tuple_by_row.json"])
def test_tuple_actions_are_read_by_part_and_by_row(name: str, space: spaces.Tuple | None) -> None:
    actions = read(name, action_space=space)[0]["7001"].actions
    assert isinstance(actions, tuple)
    np.testing.assert_array_equal(actions[0], [0, 1, 1])
    np.testing.assert_array_equal(actions[1], by_hand()["7001"].obs[:-1] * np.float32(2), strict=True)


@pytest.mark.parametrize("name", ["two_agents.json", "two_agents_in_turns.json"])
def test_agents_of_one_episode_become_episodes_of_their_own(name: str) -> None:
    episodes, _ = read(name)
    assert list(episodes) == ["7000-default_policy-0", "7000-default_policy-1"]
    for found, wanted, agent in zip(episodes.values(), by_hand().values(), ("0", "1"), strict=True):
        np.testing.assert_array_equal(found.obs, wanted.obs, strict=True)
        assert found.names[0] == agent
        assert found.names[2] == "7000"


def test_each_policy_is_a_module_with_episodes_of_its_own() -> None:
    episodes, _ = read("two_policies.json")
    assert {name: episode.names for name, episode in episodes.items()} == {
        "7000-left-0": ("0", "left", "7000"),
        "7000-right-0": ("0", "right", "7000"),
    }


@pytest.mark.parametrize("name", ["without_eps_id.json", "without_eps_id_and_t.json"])
def test_made_up_ids_are_the_same_every_time_and_wherever_the_file_lies(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes((SAMPLES / name).read_bytes())
    copied = SampleBatchSource([open_location(tmp_path / name)], "copy").fragments(Tally(), Rejects())
    assert [name for one in copied for name in one.batch.ids] == list(read(name)[0])


def test_a_line_that_was_cut_is_set_aside_and_the_lines_after_it_are_read() -> None:
    rejects = Rejects(OnError.QUARANTINE)
    episodes, _ = read("cut_in_the_middle.json", rejects=rejects)
    assert list(episodes) == ["7001", "7002"]
    assert rejects.count == 1
    assert rejects.kept[0].where.endswith("cut_in_the_middle.json line 2")
    assert rejects.kept[0].raw == (SAMPLES / "cut_in_the_middle.json").read_bytes().split(b"\n")[1]
