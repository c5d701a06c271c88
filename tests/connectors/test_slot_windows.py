"""Our pieces on arrays of slots give what they give through episodes, bit for bit, alone and among pieces of a user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli import Columns, ConnectorV2
from offline_cli.connectors import (
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    OneHot,
    PrevActionsPrevRewards,
    WriteObservationsToEpisodes,
)
from offline_cli.connectors.common.batch_columns import AddObservationsFromEpisodesToBatch
from offline_cli.connectors.common.observation_transform import ObservationTransform
from offline_cli.connectors.connector_v2 import takes_slots
from offline_cli.connectors.pipeline_spec import PlayPipelines, Setting
from offline_cli.connectors.slot_player import SlotPlayer
from offline_cli.modules import build_module, build_recurrent_module
from offline_cli.modules.drawing import chance_size
from offline_cli.policies.piped_policy import PlaySpec
from offline_cli.trees import flatten, map_leaves

SLOTS = 4
VECTOR: Any = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
COUNT: Any = gym.spaces.Discrete(5, start=2)
IMAGE: Any = gym.spaces.Box(0, 255, (3, 2, 1), np.uint8)
NESTED: Any = gym.spaces.Dict({"place": VECTOR, "kind": gym.spaces.Discrete(4), "pair": gym.spaces.Tuple([IMAGE, VECTOR])})
ACTIONS: list[Any] = [gym.spaces.Discrete(3, start=5), gym.spaces.Box(-2.0, 3.0, (2,), np.float32)]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Networks this small only lose by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Looking(ConnectorV2):
    """Notes what it sees of the episodes and of the batch."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seen: list[Any] = []

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            told = {"obs": episode.get_observations(-1), "rewards": np.asarray(episode.get_rewards())}
            self.seen.append((episode.id_, len(episode), [(path, np.array(leaf)) for path, leaf in flatten(told)]))
        self.seen.append(sorted((name, type(held).__name__) for name, held in batch.items()))
        return batch


class Halving(Looking):
    """Writes over the latest observation, and over the reward before it."""

    def __call__(self, *, batch: Any, episodes: Any, **call: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            changed = map_leaves(
                lambda leaf: leaf // 2 if np.asarray(leaf).dtype.kind in "iu" else leaf / 2, episode.get_observations(-1)
            )
            if not isinstance(self.input_observation_space, gym.spaces.Discrete):
                episode.set_observations(at_indices=-1, new_data=changed)
            if len(episode):
                episode.set_rewards(at_indices=-1, new_data=7.0)
        return super().__call__(batch=batch, episodes=episodes, **call)


class Adding(ConnectorV2):
    """Adds a column of its own to the batch."""

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "age", np.float32(len(episode)), episode)
        return batch


class Backwards(ConnectorV2):
    """Fills obs, the last episode first."""

    fills_obs = True

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in reversed(list(self.single_agent_episode_iterator(episodes))):
            self.add_batch_item(batch, Columns.OBS, episode.get_observations(-1), episode)
        return batch


class Doubling(ObservationTransform):
    """A user's own transform, written for whole arrays."""

    def transformed_space(self, observations: Any, actions: Any) -> Any:
        return gym.spaces.Box(-np.inf, np.inf, observations.shape, np.float32)

    def transform(self, rows: Any, space: Any, agent_id: Any) -> Any:
        return (rows * 2).astype(np.float32)


class Peeking(MeanStdFilter):
    """One of ours whose call is somebody's own."""

    def __call__(self, *, batch: Any, episodes: Any, **call: Any) -> Any:
        assert isinstance(episodes, list)
        return super().__call__(batch=batch, episodes=episodes, **call)


ORDERS: dict[str, tuple[Any, Callable[[], list[ConnectorV2]]]] = {
    "nothing": (VECTOR, list),
    "filter, stack": (VECTOR, lambda: [MeanStdFilter(), FrameStacking(num_frames=3)]),
    "stack of images": (IMAGE, lambda: [FrameStacking(num_frames=2), Looking()]),
    "images, filtered": (IMAGE, lambda: [MeanStdFilter(), FrameStacking(num_frames=4)]),
    "one-hot": (COUNT, lambda: [OneHot(), FrameStacking(num_frames=2)]),
    "before": (VECTOR, lambda: [PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=3), FlattenObservations()]),
    "before, stacked": (COUNT, lambda: [PrevActionsPrevRewards(), FlattenObservations(), FrameStacking(num_frames=3)]),
    "nested": (NESTED, lambda: [MeanStdFilter(), FlattenObservations(), FrameStacking(num_frames=2)]),
    "nested, before": (
        NESTED,
        lambda: [FlattenObservations(), MeanStdFilter(), PrevActionsPrevRewards(), FlattenObservations()],
    ),
    "looking first": (VECTOR, lambda: [Looking(), MeanStdFilter(), FrameStacking(num_frames=3)]),
    "looking in between": (VECTOR, lambda: [MeanStdFilter(), Looking(), FrameStacking(num_frames=3), Looking()]),
    "looking among nested": (NESTED, lambda: [Looking(), FlattenObservations(), Looking(), FrameStacking(num_frames=2)]),
    "writing first": (VECTOR, lambda: [Halving(), MeanStdFilter(), FrameStacking(num_frames=3)]),
    "writing images": (IMAGE, lambda: [Halving(), FrameStacking(num_frames=2)]),
    "writing last": (
        VECTOR,
        lambda: [MeanStdFilter(), PrevActionsPrevRewards(n_prev_rewards=2), FlattenObservations(), Halving()],
    ),
    "adding": (VECTOR, lambda: [Adding(), MeanStdFilter(), FrameStacking(num_frames=2), Looking()]),
    "in another order": (VECTOR, lambda: [MeanStdFilter(), Backwards()]),
    "somebody's transform": (VECTOR, lambda: [Doubling(), FrameStacking(num_frames=2)]),
    "somebody's filter": (VECTOR, lambda: [Peeking(), FrameStacking(num_frames=2)]),
    "written back": (VECTOR, lambda: [MeanStdFilter(), AddObservationsFromEpisodesToBatch(), WriteObservationsToEpisodes()]),
}


def pipelines(observations: Any, actions: Any, pieces: list[ConnectorV2], after: list[ConnectorV2]) -> PlayPipelines:
    return PlaySpec.of(pieces, after).build(Setting(observations, actions))


def played(
    observations: Any, actions: Any, make: Any, *, memory: bool, explore: bool, lookback: int | None, seed: int, objects: bool
) -> list[Any]:
    """All that comes of a player: actions, model outputs, states of pieces, what pieces that look have seen."""
    rng = np.random.default_rng(seed)
    observations.seed(seed)
    pieces, after = make(), [Looking()] if seed % 2 else []
    both = pipelines(observations, actions, pieces, after)
    seen: Any = both.env_to_module.observation_space
    if isinstance(seen, gym.spaces.Discrete):
        seen = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    if memory:
        module: Any = build_recurrent_module(seen, actions, hidden=[8], lstm_size=4, max_seq_len=4, action_scale="normalized")
    else:
        module = build_module(seen, actions, hidden=[8], action_scale="normalized")
    player = SlotPlayer(
        module, both, (observations, actions), slots=SLOTS, explore=explore, lookback=lookback, through_episodes=objects
    )
    found: list[Any] = []
    number, playing = 0, np.zeros(SLOTS, bool)
    for step in range(160 if lookback is not None and seed % 5 == 0 else 24):
        free = np.flatnonzero(~playing)
        begins = free[rng.random(len(free)) < 0.7] if playing.any() else free
        if len(begins):
            ids = [f"episode-{number + i}" for i in range(len(begins))]
            player.begin(begins, rows(observations, len(begins)), None, ids=ids)
            number, playing[begins] = number + len(begins), True
        chance = torch.as_tensor(rng.random((SLOTS, chance_size(module.action_head)))).float() if explore else None
        acts = player.act(chance=chance)
        told = {"actions": acts.actions, "for_env": acts.actions_for_env, **acts.extra}
        found += [(step, path, leaf[playing].copy()) for path, leaf in flatten(told)]
        ends = playing & (rng.random(SLOTS) < 0.15)
        for slots, flags in ((np.flatnonzero(ends), np.ones(int(ends.sum()), bool)), (np.flatnonzero(playing & ~ends), None)):
            if len(slots):
                player.step(slots, rows(observations, len(slots)), rng.normal(size=len(slots)), None, terminated=flags)
        playing &= ~ends
    found.append(both.get_state())
    found += [piece.seen for piece in [*pieces, *after] if isinstance(piece, Looking)]
    return found


def rows(space: Any, count: int) -> Any:
    return map_leaves(lambda *leaves: np.stack(leaves), *[space.sample() for _ in range(count)])


def assert_equal(one: Any, other: Any, path: str = "") -> None:
    if isinstance(one, dict):
        assert list(one) == list(other), path
        for key in one:
            assert_equal(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for index, pair in enumerate(zip(one, other, strict=True)):
            assert_equal(*pair, f"{path}.{index}")
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), path
        np.testing.assert_array_equal(one, other, err_msg=path)
    else:
        assert one == other, path


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=4, deadline=None)
@given(
    action=st.integers(0, 1),
    memory=st.booleans(),
    explore=st.booleans(),
    lookback=st.sampled_from([None, 4]),
    seed=st.integers(0, 10_000),
)
def test_arrays_give_what_episodes_give(
    order: str, action: int, memory: bool, explore: bool, lookback: int | None, seed: int
) -> None:
    observations, make = ORDERS[order]
    options: dict[str, Any] = {"memory": memory, "explore": explore, "lookback": lookback, "seed": seed}
    arrays, objects = (played(observations, ACTIONS[action], make, **options, objects=objects) for objects in (False, True))
    assert_equal(arrays, objects)


@pytest.mark.parametrize("order", ORDERS)
def test_so_they_do_where_episodes_are_cut_and_windows_moved_on_the_way(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline_cli.connectors.slot_player.SPARE", 2)
    monkeypatch.setattr("offline_cli.connectors.slot_windows.SPARE", 2)
    observations, make = ORDERS[order]
    options: dict[str, Any] = {"memory": True, "explore": True, "lookback": 4, "seed": 3}
    arrays, objects = (played(observations, ACTIONS[1], make, **options, objects=objects) for objects in (False, True))
    assert_equal(arrays, objects)


def test_only_pieces_whose_call_is_ours_work_on_slots() -> None:
    assert all(map(takes_slots, (MeanStdFilter(), FrameStacking(), OneHot(), Doubling(), PrevActionsPrevRewards())))
    assert not any(map(takes_slots, (Looking(), Peeking(), WriteObservationsToEpisodes(), MeanStdFilter(multi_agent=True))))


def test_no_episodes_are_made_for_pieces_of_ours() -> None:
    make = ORDERS["filter, stack"][1]
    player = SlotPlayer(
        build_module(gym.spaces.Box(-np.inf, np.inf, (9,), np.float32), ACTIONS[0], hidden=[4]),
        pipelines(VECTOR, ACTIONS[0], make(), []),
        (VECTOR, ACTIONS[0]),
        slots=2,
    )
    player.begin(np.arange(2), rows(VECTOR, 2), None, ids=["a", "b"])
    player.act()
    assert player._episodes == [None, None]
