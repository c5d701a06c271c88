"""The same episodes through RLlib's learner pipelines and through ours: equal batches, to the dtype.

Both get the same module of RLlib's. Episodes are whole, or cut into chunks with and without lookback buffer, as an env runner
does it; numpy'ized and not. Where RLlib cannot do it on the learner's side at all (flattening, filtering, adding past actions),
its env-to-module piece goes along step by step, and what it leaves in the episode is the measure. Without RLlib its answers are
the stored ones, and a module that says the same of itself stands in for its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rllib_answers import Answers, asked_nightly

from offline_cli import Columns, SingleAgentEpisode
from offline_cli import connectors as ours
from offline_cli.applying.learner_batches import learner_columns
from offline_cli.connectors import LearnerConnectorPipeline, learner_pipeline
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.modules.rl_module import RLModule
from offline_cli.trees import flatten, map_leaves

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGES = spaces.Box(0, 255, (4, 5, 1), np.uint8)
NESTED = spaces.Dict(
    {
        "pose": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
        "door": spaces.Discrete(3),
        "keys": spaces.MultiDiscrete([2, 3]),
        "lamp": spaces.MultiBinary(2),
    }
)
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "multi-discrete": spaces.MultiDiscrete([3, 2, 4]),
}
MAX_SEQ_LEN = 4
LENGTHS = (9, 1, 4, 6)
STATE = {"h": (1, 2), "c": (1, 2)}
CUTS = {"whole": None, "cut, lookback 1": 1, "cut, lookback 3": 3}
GAMMA, LAMBDA = 0.9, 0.8


class Values:
    """A value function to be mixed into a module: any will do, as long as both sides ask the same one."""

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> torch.Tensor:
        return batch[Columns.OBS].sum(-1) * 0.5 + 0.1


class StandIn(Values, RLModule):
    """What pipelines ask of RLlib's module."""

    def get_initial_state(self) -> dict[str, Any]:
        return {name: torch.zeros(shape) for name, shape in STATE.items()} if self.model_config["stateful"] else {}

    def is_stateful(self) -> bool:
        return bool(self.model_config["stateful"])


def theirs() -> Any:
    """RLlib's class of episodes."""
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode as Theirs

    return Theirs


@pytest.fixture(params=ACTIONS)
def action_space(request: pytest.FixtureRequest) -> spaces.Space[Any]:
    return ACTIONS[request.param]


@pytest.fixture(params=[True, False], ids=["stateful", "stateless"])
def stateful(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def module_of(answers: Answers, action_space: spaces.Space[Any], *, stateful: bool) -> Any:
    """A mapping of one module that has values, as learners hold it: RLlib's own where RLlib is asked."""
    if answers.live:
        return their_module(action_space, stateful=stateful)
    config = {"max_seq_len": MAX_SEQ_LEN, "stateful": stateful}
    return {"default_policy": StandIn(OBSERVATIONS, action_space, model_config=config)}


def their_module(action_space: spaces.Space[Any], *, stateful: bool) -> Any:
    from ray.rllib.algorithms.bc.bc_catalog import BCCatalog
    from ray.rllib.algorithms.bc.torch.default_bc_torch_rl_module import DefaultBCTorchRLModule
    from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    config = DefaultModelConfig(fcnet_hiddens=[4], use_lstm=stateful, lstm_cell_size=2, max_seq_len=MAX_SEQ_LEN)
    one = RLModuleSpec(
        module_class=type("Module", (Values, DefaultBCTorchRLModule, ValueFunctionAPI), {}),
        observation_space=OBSERVATIONS,
        action_space=action_space,
        model_config=vars(config),
        catalog_class=BCCatalog,
    )
    return MultiRLModuleSpec(rl_module_specs={"default_policy": one}).build()


def their_pipeline(observation_space: Any, action_space: Any, custom: Callable[..., Any] | None = None) -> Any:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    config = AlgorithmConfig().framework("torch").learners(learner_connector=custom)
    return config.build_learner_connector(observation_space, action_space)


def played(
    kind: Any,
    action_space: Any,
    observation_space: Any = OBSERVATIONS,
    *,
    states: bool = False,
    lookback: int | None = None,
    arrays: bool = True,
    along: Callable[[Any], None] | None = None,
) -> list[Any]:
    """Episodes of a few lengths, terminated, truncated or going on, the same for every class that `kind` is.

    With `lookback`, cut after every third step; `along` is called with the episode after each reset and step.
    """
    episodes = []
    for number, steps in enumerate(LENGTHS):
        rng = np.random.default_rng(number)
        observation_space.seed(number)
        action_space.seed(number)
        episode = kind(id_=f"e{number}", observation_space=observation_space, action_space=action_space)
        episode.add_env_reset(observation_space.sample(), {"number": 0})
        for t in range(steps):
            if along is not None:
                along(episode)
            if lookback is not None and t and t % 3 == 0:
                episodes.append(episode)
                episode = episode.cut(len_lookback_buffer=lookback)
            extra: dict[str, Any] = {"action_logp": np.float32(rng.normal())}
            if states:
                extra[Columns.STATE_OUT] = {name: rng.normal(size=shape).astype(np.float32) for name, shape in STATE.items()}
            episode.add_env_step(
                observation_space.sample(),
                action_space.sample(),
                float(rng.normal()),
                {"number": t + 1},
                terminated=number == 0 and t == steps - 1,
                truncated=number == 1 and t == steps - 1,
                extra_model_outputs=extra,
            )
        if along is not None:
            along(episode)
        episodes.append(episode)
    return [episode.to_numpy() for episode in episodes] if arrays else episodes


def assert_same(found: Any, wanted: Any, *, exact: bool = True) -> None:
    assert list(found) == list(wanted)
    mine, other = dict(flatten(found)), dict(flatten(wanted))
    assert mine.keys() == other.keys()
    for path, leaf in other.items():
        if isinstance(leaf, list):
            assert mine[path] == leaf, path
        else:
            assert (mine[path].dtype, mine[path].shape) == (leaf.dtype, leaf.shape), path
            assert torch.allclose(mine[path].double(), leaf.double(), rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6), (
                path
            )


def batches(
    answers: Answers, module: Any, custom: Any, own: Any, observation_space: Any = OBSERVATIONS, **episodes: Any
) -> tuple[Any, Any]:
    """What RLlib's pipeline makes of the episodes, and ours."""
    action_space = episodes["action_space"]

    def asked() -> Any:
        pipeline = their_pipeline(observation_space, action_space, custom)
        given = played(theirs(), observation_space=observation_space, **episodes)
        return pipeline(rl_module=module, batch={}, episodes=given, shared_data={})

    wanted = answers(asked)
    mine = learner_pipeline(observation_space, action_space, custom=own)
    given = played(SingleAgentEpisode, observation_space=observation_space, **episodes)
    return mine(rl_module=module, episodes=given, shared_data={}), wanted


@pytest.mark.parametrize(
    ("action_space", "stateful", "lookback", "arrays"),
    [
        pytest.param("discrete", True, None, True, id="discrete-stateful-whole-arrays"),
        pytest.param("discrete", False, 1, False, id="discrete-stateless-cut, lookback 1-lists"),
        pytest.param("box", True, 3, False, id="box-stateful-cut, lookback 3-lists"),
        pytest.param("box", False, None, True, id="box-stateless-whole-arrays"),
        pytest.param("multi-discrete", True, 1, True, id="multi-discrete-stateful-cut, lookback 1-arrays"),
        pytest.param("multi-discrete", False, 3, False, id="multi-discrete-stateless-cut, lookback 3-lists"),
    ],
    indirect=["action_space", "stateful"],
)
def test_the_default_pipelines_give_equal_batches(
    answers: Answers, action_space: Any, stateful: bool, lookback: int | None, arrays: bool
) -> None:
    module = module_of(answers, action_space, stateful=stateful)
    given = {"action_space": action_space, "states": stateful, "lookback": lookback, "arrays": arrays}
    found, wanted = batches(answers, module, None, None, **given)
    assert_same(found, wanted)


@asked_nightly
def test_chunks_without_lookback_give_equal_batches_where_states_are_not_asked_for(answers: Answers, action_space: Any) -> None:
    module = module_of(answers, action_space, stateful=False)
    assert_same(*batches(answers, module, None, None, action_space=action_space, lookback=0))


@asked_nightly
def test_a_single_module_gives_a_flat_batch_in_both(answers: Answers, action_space: Any, stateful: bool) -> None:
    module = module_of(answers, action_space, stateful=stateful)["default_policy"]
    found, wanted = batches(answers, module, None, None, action_space=action_space, states=stateful)
    assert Columns.OBS in found
    assert_same(found, wanted)


@asked_nightly
@pytest.mark.parametrize("lookback", CUTS.values(), ids=CUTS)
def test_next_observations_and_infos_are_equal(
    answers: Answers, action_space: Any, stateful: bool, lookback: int | None
) -> None:
    module = module_of(answers, action_space, stateful=stateful)
    names = ("AddNextObservationsFromEpisodesToTrainBatch", "AddInfosFromEpisodesToTrainBatch")

    def after_observations(pipeline: Any, pieces: list[Any]) -> Any:
        for piece in pieces:
            pipeline.insert_after("AddObservationsFromEpisodesToBatch", piece)
        return pipeline

    def asked() -> Any:
        from ray.rllib.connectors import learner

        pipeline = after_observations(their_pipeline(OBSERVATIONS, action_space), [getattr(learner, name)() for name in names])
        return pipeline(rl_module=module, batch={}, episodes=played(theirs(), action_space, **given), shared_data={})

    given = {"states": stateful, "lookback": lookback}
    wanted = answers(asked)
    mine = after_observations(learner_pipeline(OBSERVATIONS, action_space), [getattr(ours, name)() for name in names])
    found = mine(rl_module=module, episodes=played(SingleAgentEpisode, action_space, **given))
    assert_same(found, wanted)


@asked_nightly
def test_sequences_that_training_learns_from_are_those_of_rllib(answers: Answers, action_space: Any) -> None:
    """Value targets too; what pads is masked, and choices there are ones that exist."""

    def asked() -> Any:
        from ray.rllib.connectors.learner import AddOneTsToEpisodesAndTruncate, GeneralAdvantageEstimation

        pipeline = their_pipeline(OBSERVATIONS, action_space, lambda obs, act: AddOneTsToEpisodesAndTruncate())
        pipeline.append(GeneralAdvantageEstimation(gamma=GAMMA, lambda_=LAMBDA))
        return pipeline(rl_module=module, batch={}, episodes=played(theirs(), action_space), shared_data={})

    module = module_of(answers, action_space, stateful=True)
    wanted = answers(asked)["default_policy"]
    pipeline = learner_pipeline(OBSERVATIONS, action_space)
    pipeline.prepend(ours.AddOneTsToEpisodesAndTruncate())
    pipeline.append(ours.GeneralAdvantageEstimation(gamma=GAMMA, lambda_=LAMBDA))
    episodes = EpisodeBatch.from_episodes(played(SingleAgentEpisode, action_space))
    asked_for = (Columns.OBS, Columns.ACTIONS, Columns.VALUE_TARGETS)
    stand_in = StandIn(OBSERVATIONS, action_space, model_config={"max_seq_len": MAX_SEQ_LEN, "stateful": True})
    spaces_of = (OBSERVATIONS, action_space)
    found = learner_columns(pipeline, episodes, spaces_of, where="test", asked=asked_for, rl_module=stand_in)
    kept = wanted[Columns.LOSS_MASK].any(1)  # a sequence of the artificial step alone teaches nothing
    mask = wanted[Columns.LOSS_MASK][kept]
    assert torch.equal(found[Columns.LOSS_MASK], mask)
    assert int(mask.sum()) == sum(LENGTHS)
    for name in asked_for:
        assert torch.allclose(found[name][mask].double(), wanted[name][kept][mask].double(), rtol=1e-5, atol=1e-6), name


@asked_nightly
@pytest.mark.parametrize("lookback", [None, 0, 3])
def test_returns_to_go_are_equal(answers: Answers, lookback: int | None) -> None:
    def their_piece(*_: Any) -> Any:
        import scipy.signal  # noqa: F401  # RLlib's piece forgets to import it
        from ray.rllib.connectors.learner import ComputeReturnsToGo

        return ComputeReturnsToGo(gamma=GAMMA)

    space = ACTIONS["discrete"]
    found, wanted = batches(
        answers,
        module_of(answers, space, stateful=False),
        their_piece,
        lambda obs, act: ours.ComputeReturnsToGo(gamma=GAMMA),
        action_space=space,
        lookback=lookback,
    )
    one, other = found["default_policy"], wanted["default_policy"]
    # RLlib files this column under other ids than all columns after it, and so puts it first.
    assert_same({name: one[name] for name in sorted(one)}, {name: other[name] for name in sorted(other)}, exact=False)


@asked_nightly
@pytest.mark.parametrize("lookback", CUTS.values(), ids=CUTS)
def test_advantages_and_value_targets_are_equal(
    answers: Answers, action_space: Any, stateful: bool, lookback: int | None
) -> None:
    def asked() -> Any:
        from ray.rllib.connectors.learner import AddOneTsToEpisodesAndTruncate, GeneralAdvantageEstimation

        pipeline = their_pipeline(OBSERVATIONS, action_space, lambda obs, act: AddOneTsToEpisodesAndTruncate())
        pipeline.append(GeneralAdvantageEstimation(gamma=GAMMA, lambda_=LAMBDA))
        return pipeline(rl_module=module, batch={}, episodes=played(theirs(), action_space, **given), shared_data={})

    module = module_of(answers, action_space, stateful=stateful)
    given = {"states": stateful, "lookback": lookback}
    wanted = answers(asked)
    mine = learner_pipeline(OBSERVATIONS, action_space, custom=lambda obs, act: ours.AddOneTsToEpisodesAndTruncate())
    mine.append(ours.GeneralAdvantageEstimation(gamma=GAMMA, lambda_=LAMBDA))
    assert_same(mine(rl_module=module, episodes=played(SingleAgentEpisode, action_space, **given)), wanted, exact=False)
    if lookback is None:
        whole = EpisodeBatch.from_episodes(played(SingleAgentEpisode, action_space, **given))
        assert_same(mine(rl_module=module, episodes=whole), wanted, exact=False)


@asked_nightly
@pytest.mark.parametrize("lookback", [None, 0, 3])
@pytest.mark.parametrize("stateful", [False])
def test_stacked_frames_are_equal(answers: Answers, stateful: bool, lookback: int | None) -> None:
    def their_piece(*_: Any) -> Any:
        from ray.rllib.connectors.common.frame_stacking import FrameStacking

        return FrameStacking(num_frames=4, as_learner_connector=True)

    space = ACTIONS["discrete"]
    found, wanted = batches(
        answers,
        module_of(answers, space, stateful=stateful),
        their_piece,
        lambda obs, act: ours.FrameStacking(num_frames=4, as_learner_connector=True),
        observation_space=IMAGES,
        action_space=space,
        lookback=lookback,
    )
    assert_same(found, wanted)


# ---- pieces that RLlib has beside the environment only ----


def beside_the_environment(piece: Any, observation_space: Any, action_space: Any) -> Callable[[Any], None]:
    """What RLlib's piece does to an episode after each reset and step."""
    piece.input_action_space = action_space
    piece.input_observation_space = observation_space

    def along(episode: Any) -> None:
        piece(rl_module=None, batch={}, episodes=[episode], explore=False, shared_data={})

    return along


def in_the_learner(piece: Any, observation_space: Any, action_space: Any, episodes: Any) -> Any:
    pipeline = LearnerConnectorPipeline(observation_space, action_space, connectors=[piece])
    pipeline.append(ours.AddObservationsFromEpisodesToBatch(as_learner_connector=True))
    pipeline.append(ours.BatchIndividualItems())
    return pipeline(episodes=episodes)[Columns.OBS]


def left_in_episodes(episodes: list[Any]) -> Any:
    """All observations that were acted on, as RLlib's piece left them."""
    parts = [[episode.get_observations(t) for t in range(len(episode))] for episode in episodes]
    return map_leaves(lambda *leaves: np.stack(leaves), *[item for part in parts for item in part])


def assert_close(found: Any, wanted: Any, **tolerance: float) -> None:
    mine, other = dict(flatten(found)), dict(flatten(wanted))
    assert mine.keys() == other.keys()
    for path, leaf in other.items():
        np.testing.assert_allclose(mine[path], leaf.reshape(mine[path].shape), err_msg=path, **tolerance)


@asked_nightly
@pytest.mark.parametrize("arrays", [True, False], ids=["arrays", "lists"])
def test_flattened_observations_are_equal(answers: Answers, arrays: bool) -> None:
    def asked() -> Any:
        from ray.rllib.connectors.common.flatten_observations import FlattenObservations

        along = beside_the_environment(FlattenObservations(), NESTED, space)
        return left_in_episodes(played(theirs(), space, NESTED, arrays=False, along=along))

    space = ACTIONS["discrete"]
    wanted = answers(asked)
    given = played(SingleAgentEpisode, space, NESTED, arrays=arrays)
    found = in_the_learner(ours.FlattenObservations(as_learner_connector=True), NESTED, space, given)
    assert found.dtype == np.float32
    assert_close(found, wanted, rtol=0)


@asked_nightly
@pytest.mark.parametrize("counts", [(1, 1), (3, 2)])
@pytest.mark.parametrize("lookback", [None, 3])
def test_past_actions_and_rewards_are_equal(answers: Answers, counts: tuple[int, int], lookback: int | None) -> None:
    def asked() -> Any:
        from ray.rllib.connectors.env_to_module.prev_actions_prev_rewards import PrevActionsPrevRewards

        along = beside_the_environment(PrevActionsPrevRewards(**options), OBSERVATIONS, space)
        return left_in_episodes(played(theirs(), space, arrays=False, lookback=lookback, along=along))

    space = ACTIONS["discrete"]  # RLlib's piece knows no other
    options = {"n_prev_actions": counts[0], "n_prev_rewards": counts[1]}
    wanted = answers(asked)
    given = played(SingleAgentEpisode, space, lookback=lookback)
    found = in_the_learner(ours.PrevActionsPrevRewards(as_learner_connector=True, **options), OBSERVATIONS, space, given)
    # RLlib gives (n, size) where its own space says (n * size,).
    assert_close(found, wanted, rtol=1e-6)
    assert found["prev_n_actions"].shape[1:] == (counts[0] * 4,)


def test_a_filter_beside_the_environment_counts_and_changes_as_rllib_does(answers: Answers) -> None:
    def asked() -> Any:
        their_piece = new_filter()
        along = beside_the_environment(their_piece, OBSERVATIONS, space)
        seen = left_in_episodes(played(theirs(), space, arrays=False, along=along))
        stats = their_piece._filters[None].running_stats
        return seen, {"n": stats.n, "mean": stats.mean, "m2": stats.sum_sq_diff_array}

    space, piece = ACTIONS["discrete"], ours.MeanStdFilter()
    wanted, stats = answers(asked)
    mine = played(SingleAgentEpisode, space, arrays=False, along=beside_the_environment(piece, OBSERVATIONS, space))
    assert_close(left_in_episodes(mine), wanted, rtol=1e-4, atol=1e-5)  # RLlib rounds variances to float32
    own = piece.get_state()["obs"]
    assert own["count"] == stats["n"]
    np.testing.assert_allclose(own["mean"], stats["mean"], rtol=1e-12)
    np.testing.assert_allclose(own["m2"], stats["m2"], rtol=1e-12)


def new_filter(**options: Any) -> Any:
    """RLlib's filter."""
    from ray.rllib.connectors.env_to_module.mean_std_filter import MeanStdFilter

    return MeanStdFilter(**options)


@asked_nightly
def test_stacking_beside_the_environment_is_equal(answers: Answers) -> None:
    def stacked(kind: Any, piece: Any) -> Any:
        seen: list[Any] = []

        def along(episode: Any) -> None:
            seen.extend(piece(rl_module=None, batch={}, episodes=[episode])[Columns.OBS].popitem()[1])

        played(kind, ACTIONS["discrete"], IMAGES, arrays=False, lookback=3, along=along)
        return np.stack(seen)

    def asked() -> Any:
        from ray.rllib.connectors.common.frame_stacking import FrameStacking

        return stacked(theirs(), FrameStacking(num_frames=3))

    wanted = answers(asked)
    found = stacked(SingleAgentEpisode, ours.FrameStacking(num_frames=3))
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
