"""Frame stacking, flattening, past actions and rewards: on both sides, in whole arrays and episode by episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli import Columns, SingleAgentEpisode
from offline_cli.connectors import (
    AddNextObservationsFromEpisodesToTrainBatch,
    ConnectorV2,
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    PrevActionsPrevRewards,
    learner_pipeline,
)
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import SpaceMismatch
from offline_cli.spaces import leaf_spaces
from offline_cli.trees import flatten

VECTOR = spaces.Box(-99, 99, (2,), np.float32)
NESTED = spaces.Dict(
    {
        "door": spaces.Discrete(3, start=1),
        "arm": spaces.Tuple([VECTOR, spaces.MultiDiscrete([2, 2])]),
        "lamp": spaces.MultiBinary(2),
    }
)
MOVES = spaces.Dict({"go": spaces.Discrete(2), "aim": spaces.Box(-1, 1, (2,), np.float32)})


def played(observations: Any, actions: Any, *lengths: int) -> list[SingleAgentEpisode]:
    """Episodes of steps drawn from the spaces, the same ones each time."""
    observations.seed(0)
    actions.seed(0)
    episodes = []
    for number, steps in enumerate(lengths):
        episode = SingleAgentEpisode(f"e{number}", observation_space=observations, action_space=actions)
        episode.add_env_reset(observations.sample())
        for t in range(steps):
            episode.add_env_step(observations.sample(), actions.sample(), float(10 * number + t))
        episodes.append(episode)
    return episodes


def numbered(*lengths: int) -> list[SingleAgentEpisode]:
    """Vectors [i, -i] that count on over all episodes from 1."""
    episodes, i = [], 0
    for number, steps in enumerate(lengths):
        rows = [np.array([i + k + 1, -(i + k + 1)], np.float32) for k in range(steps + 1)]
        i += steps + 1
        episodes.append(
            SingleAgentEpisode(
                f"e{number}",
                observations=rows,
                observation_space=VECTOR,
                actions=[k % 2 for k in range(steps)],
                action_space=spaces.Discrete(2),
                rewards=[float(k) for k in range(steps)],
                len_lookback_buffer=0,
            )
        )
    return episodes


def so_far(episode: SingleAgentEpisode, t: int) -> SingleAgentEpisode:
    """The episode as it was when it had t steps."""
    return SingleAgentEpisode(
        observations=list(episode.get_observations(slice(0, t + 1))),
        observation_space=episode.observation_space,
        actions=list(episode.get_actions(slice(0, t))),
        action_space=episode.action_space,
        rewards=list(episode.get_rewards(slice(0, t))),
        len_lookback_buffer=0,
    )


def train_obs(pieces: list[ConnectorV2], episodes: Any, observations: Any, actions: Any = None) -> Any:
    return learner_pipeline(observations, actions or spaces.Discrete(2), custom=pieces)(episodes=episodes)[Columns.OBS]


def equal(one: Any, two: Any) -> None:
    left, right = dict(flatten(one)), dict(flatten(two))
    assert left.keys() == right.keys()
    for path in left:
        np.testing.assert_array_equal(left[path], right[path], err_msg=path)


def fits(rows: Any, space: Any) -> bool:
    shapes = {path: tuple(leaf.shape[1:]) for path, leaf in flatten(rows)}
    return shapes == {path: tuple(leaf.shape or ()) for path, leaf in leaf_spaces(space).items()}


# ---- frame stacking ----


def test_vectors_are_put_end_to_end_the_oldest_first_after_zeros() -> None:
    rows = train_obs([FrameStacking(num_frames=3, as_learner_connector=True)], numbered(3, 1), VECTOR)
    assert rows.tolist() == [[0, 0, 0, 0, 1, -1], [0, 0, 1, -1, 2, -2], [1, -1, 2, -2, 3, -3], [0, 0, 0, 0, 5, -5]]


@pytest.mark.parametrize("shape", [(), (2,), (4, 5, 1), (4, 5, 3), (2, 3)])
@pytest.mark.parametrize("form", ["lists", "arrays", "batch"])
def test_both_sides_stack_alike_and_as_the_space_says(shape: tuple[int, ...], form: str) -> None:
    space = spaces.Dict({"camera": spaces.Box(0, 255, shape, np.uint8), "arm": VECTOR})
    beside = []
    piece = FrameStacking(space, spaces.Discrete(2), num_frames=4)
    for episode in played(space, spaces.Discrete(2), 6, 1):
        for t in range(len(episode)):
            (items,) = piece(batch={}, episodes=[so_far(episode, t)])[Columns.OBS].values()
            beside += items
    given: Any = played(space, spaces.Discrete(2), 6, 1)
    given = given if form == "lists" else [episode.to_numpy() for episode in given]
    given = EpisodeBatch.from_episodes(given) if form == "batch" else given
    rows = train_obs([FrameStacking(num_frames=4, as_learner_connector=True)], given, space)
    assert fits(rows, piece.observation_space)
    equal(rows, {key: np.stack([item[key] for item in beside]) for key in ("arm", "camera")})
    assert piece.observation_space is not None
    assert all(piece.observation_space.contains(item) for item in beside)


# ---- flattening ----


@pytest.mark.parametrize("form", ["lists", "arrays", "batch"])
def test_nested_observations_become_one_vector_by_sorted_key(form: str) -> None:
    given: Any = played(NESTED, spaces.Discrete(2), 3, 2)
    raw = [episode.get_observations(t) for episode in given for t in range(len(episode))]
    given = given if form == "lists" else [episode.to_numpy() for episode in given]
    given = EpisodeBatch.from_episodes(given) if form == "batch" else given
    rows = train_obs([FlattenObservations(as_learner_connector=True)], given, NESTED)
    hot = np.eye(3, dtype=np.float32)
    pairs = np.eye(2, dtype=np.float32)
    wanted = [np.concatenate([o["arm"][0], *pairs[o["arm"][1]], hot[o["door"] - 1], o["lamp"].astype(np.float32)]) for o in raw]
    np.testing.assert_array_equal(rows, np.stack(wanted))


def test_keys_can_be_left_out_and_unknown_ones_are_refused() -> None:
    piece = FlattenObservations(NESTED, spaces.Discrete(2), keys_to_remove=["arm"], as_learner_connector=True)
    assert piece.observation_space == spaces.Box(-np.inf, np.inf, (5,), np.float32)
    with pytest.raises(SpaceMismatch, match="leg"):
        FlattenObservations(NESTED, spaces.Discrete(2), keys_to_remove=["leg"])
    with pytest.raises(SpaceMismatch):
        FlattenObservations(VECTOR, spaces.Discrete(2), keys_to_remove=["leg"])


def test_beside_an_environment_the_last_observation_is_written_over() -> None:
    (episode,) = played(NESTED, spaces.Discrete(2), 1)
    piece = FlattenObservations(NESTED, spaces.Discrete(2))
    before = episode.get_observations(0)
    assert piece(batch={}, episodes=[episode]) == {}
    assert episode.get_observations(-1).shape == (11,)
    assert episode.get_observations(0) is before
    assert episode.observation_space == piece.observation_space


# ---- past actions and rewards ----


@pytest.mark.parametrize("form", ["lists", "arrays", "batch"])
@pytest.mark.parametrize("actions", [spaces.Discrete(3, start=5), VECTOR, spaces.MultiDiscrete([2, 3]), MOVES])
def test_both_sides_add_the_same_past(actions: Any, form: str) -> None:
    options = {"n_prev_actions": 2, "n_prev_rewards": 3}
    piece = PrevActionsPrevRewards(VECTOR, actions, **options)
    beside = []
    for episode in played(VECTOR, actions, 4, 2):
        for t in range(len(episode)):
            seen = so_far(episode, t)
            piece(batch={}, episodes=[seen])
            beside.append(seen.get_observations(-1))
    given: Any = played(VECTOR, actions, 4, 2)
    given = given if form == "lists" else [episode.to_numpy() for episode in given]
    given = EpisodeBatch.from_episodes(given) if form == "batch" else given
    rows = train_obs([PrevActionsPrevRewards(as_learner_connector=True, **options)], given, VECTOR, actions)
    assert fits(rows, piece.observation_space)
    equal(rows, {key: np.stack([item[key] for item in beside]) for key in rows})


# ---- several pieces ----


@pytest.mark.parametrize("form", ["arrays", "batch"])
def test_pieces_after_each_other_see_each_other_s_observations(form: str) -> None:
    given: Any = [episode.to_numpy() for episode in played(NESTED, spaces.Discrete(3), 4, 3)]
    raw = [episode.get_observations(slice(0, len(episode))) for episode in given]
    given = EpisodeBatch.from_episodes(given) if form == "batch" else given
    pieces = [
        PrevActionsPrevRewards(as_learner_connector=True),
        FlattenObservations(as_learner_connector=True),
        MeanStdFilter(as_learner_connector=True),
        AddNextObservationsFromEpisodesToTrainBatch(),
        FrameStacking(num_frames=2, as_learner_connector=True),
    ]
    pipeline = learner_pipeline(NESTED, spaces.Discrete(3), custom=pieces)
    batch = pipeline(episodes=given)
    assert pipeline.observation_space is not None
    assert fits(batch[Columns.OBS], pipeline.observation_space)
    size = (pipeline.observation_space.shape or ())[0] // 2
    newest = batch[Columns.OBS][:, size:]
    assert batch[Columns.OBS][1, :size].tolist() == newest[0].tolist()
    assert batch[Columns.NEXT_OBS][0].tolist() == newest[1].tolist()
    assert np.allclose(newest.mean(0), 0, atol=1e-5)
    assert raw[0]["door"].dtype.kind == "i"


def test_agents_have_their_observations_changed_by_their_own_space() -> None:
    by_agent = spaces.Dict({"ann": spaces.Discrete(3), "bob": VECTOR})
    piece = FlattenObservations(by_agent, None, multi_agent=True)
    ann = SingleAgentEpisode(agent_id="ann", module_id="m", observation_space=by_agent["ann"])
    bob = SingleAgentEpisode(agent_id="bob", module_id="m", observation_space=by_agent["bob"])
    ann.add_env_reset(2)
    bob.add_env_reset(np.array([1.0, 2.0], np.float32))
    piece(batch={}, episodes=[ann, bob])
    assert ann.get_observations(-1).tolist() == [0, 0, 1]
    assert bob.get_observations(-1).tolist() == [1, 2]
    assert piece.observation_space["bob"].shape == (2,)  # type: ignore[index]
