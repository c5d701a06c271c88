"""Batches are written to, by pieces and by learners: episodes, other columns and other batches must not notice."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import combinations, cycle
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from offline_cli import Columns, ConnectorV2, SingleAgentEpisode
from offline_cli import connectors as pieces
from offline_cli.connectors import env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from offline_cli.connectors.batch_items import Items
from offline_cli.connectors.pipeline_player import PipelinePlayer, RecordedActions
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.modules import build_module, build_recurrent_module

OBSERVATIONS = spaces.Dict({"pose": spaces.Box(-1, 1, (2,)), "door": spaces.MultiDiscrete([2, 3])})
ACTIONS = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (1,))])
VECTOR = spaces.Box(-1, 1, (2,), np.float32)


def recording(space: Any = OBSERVATIONS) -> EpisodeBatch:
    rng = np.random.default_rng(0)
    pose = rng.uniform(-1, 1, (8, 2)).astype(np.float32)
    return EpisodeBatch(
        ids=("a", "b", "c"),
        starts=np.array([0, 3, 4, 5]),
        obs=pose if space is VECTOR else {"pose": pose, "door": rng.integers(0, 2, (8, 2))},
        actions=(rng.integers(0, 2, 5), rng.uniform(-1, 1, (5, 1)).astype(np.float32)),
        rewards=np.arange(1.0, 6.0),
        terminated=np.array([True, False, False]),
        truncated=np.array([False, True, True]),
        extra={"action_logp": rng.normal(size=5), "vf": rng.normal(size=(5, 2)).astype(np.float32)},
        infos=[{"seen": [row], "where": np.array([row])} for row in range(8)],
        observation_space=space,
        action_space=ACTIONS,
    )


def stepped(whole: SingleAgentEpisode) -> SingleAgentEpisode:
    """The same as lists of steps."""
    spaces_ = {"observation_space": whole.observation_space, "action_space": ACTIONS}
    episode = SingleAgentEpisode(id_=whole.id_, **spaces_)
    episode.add_env_reset(whole.get_observations(0), whole.get_infos(0))
    for t in range(len(whole)):
        extra = {name: whole.get_extra_model_outputs(name, t) for name in whole.extra_model_outputs}
        seen = copy.deepcopy(whole.get_observations(t + 1))
        episode.add_env_step(seen, whole.get_actions(t), 1.0, whole.get_infos(t + 1), extra_model_outputs=extra)
    return episode


FORMS: dict[str, Callable[[EpisodeBatch], Any]] = {
    "an EpisodeBatch": lambda batch: batch,
    "numpy'ized episodes": list,
    "one numpy'ized episode": lambda batch: [batch[0]],
    "episodes of lists": lambda batch: list(map(stepped, batch)),
}
LEARNER: dict[str, Sequence[Callable[[], ConnectorV2]]] = {
    "defaults": [],
    "infos and next observations": [
        pieces.AddInfosFromEpisodesToTrainBatch,
        pieces.AddNextObservationsFromEpisodesToTrainBatch,
    ],
    "n-step returns": [
        lambda: pieces.NStepReturns(n_step=1, gamma=0.9),
        lambda: pieces.ComputeReturnsToGo(gamma=0.9),
    ],
    "one more step, clipped": [pieces.AddOneTsToEpisodesAndTruncate, lambda: pieces.ClipRewards(bound=0.5)],
    "past actions, flattened": [
        lambda: pieces.PrevActionsPrevRewards(as_learner_connector=True),
        lambda: pieces.FlattenObservations(as_learner_connector=True),
        lambda: pieces.FrameStacking(num_frames=1, as_learner_connector=True),
    ],
    "filtered": [lambda: pieces.MeanStdFilter(as_learner_connector=True)],
}


def scribble(value: Any) -> None:
    """Write over everything that can be written to."""
    if isinstance(value, dict):
        for part in value.values():
            scribble(part)
        value["scribbled"] = -99
    elif isinstance(value, (list, tuple)):
        for part in value:
            scribble(part)
        if isinstance(value, list):
            value.append(-99)
    elif isinstance(value, Items):
        scribble(value.tree)
    elif isinstance(value, torch.Tensor):
        value.fill_(1 if value.dtype == torch.bool else 99)
    elif isinstance(value, np.ndarray) and value.flags.writeable:
        value[...] = 99


def remembered(episodes: Any) -> list[dict[str, Any]]:
    return [copy.deepcopy(episode.get_state()) for episode in episodes]


def check_unchanged(episodes: Any, before: list[dict[str, Any]]) -> None:
    for one, other in zip(remembered(episodes), before, strict=True):
        np.testing.assert_equal(one, other)


@pytest.mark.parametrize(("custom", "stateful", "form"), list(zip(LEARNER, cycle([False, True]), cycle(FORMS), strict=False)))
def test_scribbling_over_a_train_batch_after_any_piece_changes_no_episode(custom: str, stateful: bool, form: str) -> None:
    batch = recording()
    module = build_recurrent_module(OBSERVATIONS, spaces.Discrete(2), memory_size=2) if stateful else None
    for last in range(20):
        episodes = FORMS[form](batch)
        before = remembered(episodes)
        pipeline = learner_pipeline(OBSERVATIONS, ACTIONS, custom=[make() for make in LEARNER[custom]])
        if last >= len(pipeline):
            return
        for number, (_, columns, _left) in enumerate(pipeline.stepwise(rl_module=module, episodes=episodes)):
            if number == last:
                scribble(columns)
                break
        check_unchanged(episodes, before)
    pytest.fail("a pipeline of more pieces than were looked at")


def arrays_of(value: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(value, dict):
        return [array for part in value.values() for array in arrays_of(part)]
    if isinstance(value, (list, tuple)):
        return [array for part in value for array in arrays_of(part)]
    if isinstance(value, torch.Tensor):
        return [value.numpy()]
    return [value] if isinstance(value, np.ndarray) else []


@pytest.mark.parametrize("form", FORMS)
def test_no_two_columns_and_no_two_batches_share_memory(form: str) -> None:
    custom = [pieces.AddInfosFromEpisodesToTrainBatch(), pieces.AddNextObservationsFromEpisodesToTrainBatch()]
    pipeline = learner_pipeline(OBSERVATIONS, ACTIONS, custom=custom)
    episodes = FORMS[form](recording())
    arrays = [array for _ in range(2) for array in arrays_of(pipeline(rl_module=None, episodes=episodes))]
    assert len(arrays) >= 18
    assert not any(np.shares_memory(one, other) for one, other in combinations(arrays, 2))


def begun(space: Any, count: int = 3) -> list[SingleAgentEpisode]:
    """Episodes of two steps that go on."""
    episodes = []
    for number in range(count):
        episode = SingleAgentEpisode(id_=f"e{number}", observation_space=space, action_space=ACTIONS)
        seen = [{"pose": np.full(2, t / 9, np.float32), "door": np.array([0, t])} for t in range(3)]
        episode.add_env_reset(seen[0] if space is OBSERVATIONS else seen[0]["pose"])
        for t in (1, 2):
            extra = {Columns.STATE_OUT: {"h": np.full(2, t, np.float32), "c": np.full(2, t, np.float32)}}
            episode.add_env_step(
                seen[t] if space is OBSERVATIONS else seen[t]["pose"],
                (1, np.full(1, 0.5, np.float32)),
                1.0,
                extra_model_outputs=extra,
            )
        episodes.append(episode)
    return episodes


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_what_an_environment_writes_into_its_actions_is_not_recorded(normalize: bool, clip: bool) -> None:
    box = spaces.Box(-1, 1, (2,), np.float32)
    module = build_module(VECTOR, box, action_scale="normalized")
    beside = (
        env_to_module_pipeline(VECTOR, box),
        module_to_env_pipeline(VECTOR, box, normalize_actions=normalize, clip_actions=clip),
    )
    acts = PipelinePlayer(module, *beside).act(begun(VECTOR))
    recorded, taken = RecordedActions(box)(acts.actions, acts.actions_for_env)
    kept = [np.array(acts.actions), recorded.copy()]
    scribble([taken, acts.actions_for_env])
    np.testing.assert_array_equal([acts.actions, recorded], kept)
