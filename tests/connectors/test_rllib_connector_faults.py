"""What RLlib 2.60 gets wrong in connectors: each test shows the fault there, and that it is none here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import offline_cli.connectors as ours
from offline_cli import Columns, MultiAgentEpisode, SingleAgentEpisode
from offline_cli.connectors.connector_v2 import same_state
from offline_cli.errors import EpisodeKeyError, OfflineCliError, UnknownPiece
from offline_cli.modules import build_recurrent_module

pytestmark = pytest.mark.nightly
pytest.importorskip("ray", reason="RLlib comes with the extra [ray]")

OBS, ACT = spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(3)


@pytest.fixture(scope="module")
def theirs() -> Any:
    import ray.rllib.connectors.learner as learner
    from ray.rllib.connectors.common import flatten_observations, frame_stacking
    from ray.rllib.connectors.connector_pipeline_v2 import ConnectorPipelineV2
    from ray.rllib.connectors.connector_v2 import ConnectorV2
    from ray.rllib.connectors.env_to_module import mean_std_filter, prev_actions_prev_rewards
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    class Namespace:
        pass

    found = Namespace()
    classes = [ConnectorPipelineV2, ConnectorV2, MultiAgentEpisode, SingleAgentEpisode]
    classes += [flatten_observations.FlattenObservations, frame_stacking.FrameStacking, mean_std_filter.MeanStdFilter]
    classes += [prev_actions_prev_rewards.PrevActionsPrevRewards]
    for kind in [*classes, *(getattr(learner, name) for name in learner.__all__)]:
        setattr(found, kind.__name__, kind)
    return found


def counting(base: Any, name: str = "Counts") -> Any:
    """A piece of either kind that keeps a number, and adds up those of several runners."""

    def init(self: Any, number: int = 0, **kwargs: Any) -> None:
        base.__init__(self, **kwargs)
        self.number = number

    def call(self: Any, *, batch: Any, **_: Any) -> Any:
        return batch

    def get_state(self: Any, *_: Any, **__: Any) -> dict[str, Any]:
        return {"number": self.number} if self.number else {}

    def set_state(self: Any, state: Any) -> None:
        self.number = state["number"]

    def merge_states(self: Any, states: Any) -> dict[str, Any]:
        return {"number": sum(state["number"] for state in states), "merged by": name}

    members = {"__init__": init, "__call__": call, "get_state": get_state, "set_state": set_state, "merge_states": merge_states}
    return type(name, (base,), members)


def episode(kind: Any, steps: int, id_: str = "e", **options: Any) -> Any:
    rng = np.random.default_rng(steps)
    return kind(
        id_=id_,
        observations=[rng.uniform(-1, 1, 2).astype(np.float32) for _ in range(steps + 1)],
        observation_space=OBS,
        actions=[int(rng.integers(3)) for _ in range(steps)],
        action_space=ACT,
        rewards=[float(t) for t in range(steps)],
        len_lookback_buffer=0,
        **options,
    )


def their_batch(theirs: Any, pieces: Any, episodes: Any, module: Any = None) -> Any:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    config = AlgorithmConfig().framework("torch").learners(learner_connector=lambda obs, act: pieces)
    pipeline = config.build_learner_connector(OBS, ACT)
    return pipeline(rl_module=module, batch={}, episodes=episodes, shared_data={})


# ---- pipelines ----


def test_inserting_before_an_unknown_piece_puts_it_before_the_last_one_there_and_raises_here(theirs: Any) -> None:
    kind = counting(theirs.ConnectorV2)
    pipeline = theirs.ConnectorPipelineV2(connectors=[kind(1), kind(2)])
    pipeline.insert_before("NoSuchPiece", kind(3))
    assert [piece.number for piece in pipeline.connectors] == [1, 3, 2]
    pipeline.remove("NoSuchPiece")  # says so in the log

    mine = counting(ours.ConnectorV2)
    for method, arguments in (("insert_before", (mine(3),)), ("insert_after", (mine(3),)), ("remove", ())):
        with pytest.raises(UnknownPiece, match="NoSuchPiece"):
            getattr(ours.ConnectorPipelineV2(connectors=[mine(1), mine(2)]), method)("NoSuchPiece", *arguments)


def test_a_piece_cannot_be_asked_for_by_its_name_there(theirs: Any) -> None:
    with pytest.raises(AttributeError):
        theirs.ConnectorPipelineV2(connectors=[counting(theirs.ConnectorV2)(1)])["Counts"]
    piece = counting(ours.ConnectorV2)(1)
    assert ours.ConnectorPipelineV2(connectors=[piece])["Counts"] is piece


def test_two_pieces_of_one_class_share_one_state_there_and_keep_two_here(theirs: Any) -> None:
    there, here = counting(theirs.ConnectorV2), counting(ours.ConnectorV2)
    assert theirs.ConnectorPipelineV2(connectors=[there(1), there(2)]).get_state() == {"Counts": {"number": 2}}
    state = ours.ConnectorPipelineV2(connectors=[here(1), here(2)]).get_state()
    fresh = ours.ConnectorPipelineV2(connectors=[here(), here()])
    fresh.set_state(state)
    assert [piece.number for piece in fresh.connectors] == [1, 2]  # type: ignore[attr-defined]


def test_states_are_merged_by_the_wrong_piece_there_and_by_their_own_here(theirs: Any) -> None:
    def merged(base: Any, pipeline: Any) -> Any:
        pieces = [counting(base, "Empty")(0), counting(base, "Full")(4)]
        made = pipeline(connectors=pieces)
        return made.merge_states([made.get_state(), made.get_state()])

    assert merged(theirs.ConnectorV2, theirs.ConnectorPipelineV2) == {"Full": {"number": 8, "merged by": "Empty"}}
    assert merged(ours.ConnectorV2, ours.ConnectorPipelineV2) == {"Full": {"number": 8, "merged by": "Full"}}


def test_a_piece_that_says_nothing_of_merging_loses_its_state_there_and_says_so_here(theirs: Any) -> None:
    states = [{"number": 1}, {"number": 2}]
    assert type("Silent", (theirs.ConnectorV2,), {"__call__": None})().merge_states(states) == {}
    with pytest.raises(OfflineCliError, match="Silent keeps a state"):
        type("Silent", (ours.ConnectorV2,), {"__call__": None})().merge_states(states)


# ---- the filter ----


def filtered(piece: Any, kind: Any, rows: Any, start: Any = None, space: Any = OBS) -> Any:
    piece.input_observation_space = space
    if start is not None:
        piece.set_state(start)
    for row in rows:
        one = kind(observation_space=space)
        one.add_env_reset(row)
        piece(rl_module=None, batch={}, episodes=[one])
    return piece


def test_merged_filters_count_shared_observations_again_there_and_once_here(theirs: Any) -> None:
    """Two rounds of two runners. RLlib also takes means for what they are not; here every observation counts once."""
    shares = np.random.default_rng(0).normal(3, 2, (4, 50, 2)).astype(np.float32)

    def two_rounds(make: Any, kind: Any) -> Any:
        state = None
        for first, second in (shares[:2], shares[2:]):
            runners = [filtered(make(), kind, share, state) for share in (first, second)]
            centre = filtered(make(), kind, [], state)
            state = centre.merge_states([runner.get_state() for runner in runners])
        return state

    exact = shares.reshape(-1, 2).astype(np.float64)
    here = two_rounds(ours.MeanStdFilter, SingleAgentEpisode)["shared"]["obs"]
    assert here["count"] == len(exact)
    np.testing.assert_allclose(here["mean"], exact.mean(0), rtol=1e-12)
    np.testing.assert_allclose(here["m2"] / (len(exact) - 1), exact.var(0, ddof=1), rtol=1e-12)

    from ray.rllib.utils.filter import RunningStat

    stats = two_rounds(theirs.MeanStdFilter, theirs.SingleAgentEpisode)[None]["running_stats"][0]
    there = RunningStat.from_state(stats)
    assert there.n != len(exact) or not np.allclose(there.mean, exact.mean(0), rtol=1e-6)


def test_filtered_whole_numbers_are_cut_to_whole_numbers_there_and_become_floats_here(theirs: Any) -> None:
    space = spaces.Box(0, 255, (3,), np.int32)
    rows = np.random.default_rng(0).integers(0, 255, (20, 3)).astype(np.int32)
    last = []
    for make, kind in ((theirs.MeanStdFilter, theirs.SingleAgentEpisode), (ours.MeanStdFilter, SingleAgentEpisode)):
        piece = filtered(make(), kind, rows, space=space)
        one = kind(observation_space=space)
        one.add_env_reset(rows[0])
        piece(rl_module=None, batch={}, episodes=[one])
        last.append(one.get_observations(-1))
    there, here = last
    assert there.dtype == np.int32
    assert here.dtype == np.float32
    assert not np.array_equal(here, here.round())


def test_nested_observations_and_no_limit_break_the_filter_there_and_work_here(theirs: Any) -> None:
    nested = spaces.Dict({"arm": OBS, "door": ACT})
    nested.seed(0)
    with pytest.raises(TypeError, match="sequence of integers"):
        filtered(theirs.MeanStdFilter(), theirs.SingleAgentEpisode, [nested.sample()], space=nested)
    with pytest.raises(TypeError):
        filtered(theirs.MeanStdFilter(clip_by_value=None), theirs.SingleAgentEpisode, [])
    filtered(ours.MeanStdFilter(clip_by_value=None), SingleAgentEpisode, [nested.sample()], space=nested)


# ---- observations ----


def test_vectors_cannot_be_stacked_there_and_can_here(theirs: Any) -> None:
    with pytest.raises(AssertionError):
        theirs.FrameStacking(num_frames=2, as_learner_connector=True).input_observation_space = OBS
    piece = ours.FrameStacking(OBS, ACT, num_frames=2)
    assert piece.observation_space is not None
    assert piece.observation_space.shape == (4,)


def test_flattening_on_the_learner_s_side_breaks_there_and_works_here(theirs: Any) -> None:
    def piece(module: Any) -> Any:
        return module.FlattenObservations(as_learner_connector=True)

    with pytest.raises(ValueError, match="cannot reshape"):
        their_batch(theirs, piece(theirs), [episode(theirs.SingleAgentEpisode, 3).to_numpy()])
    pipeline = ours.learner_pipeline(OBS, ACT, custom=piece(ours))
    assert pipeline(episodes=[episode(SingleAgentEpisode, 3).to_numpy()])[Columns.OBS].shape == (3, 2)


def test_past_actions_are_for_discrete_spaces_there_and_for_all_here(theirs: Any) -> None:
    box = spaces.Box(-1, 1, (2,), np.float32)
    piece = theirs.PrevActionsPrevRewards()
    piece.input_action_space = box
    with pytest.raises(AttributeError):
        piece.input_observation_space = OBS
    space: Any = ours.PrevActionsPrevRewards(OBS, box, n_prev_actions=3).observation_space
    assert space["prev_n_actions"].shape == (6,)


def test_past_actions_do_not_fit_their_own_space_there_and_do_here(theirs: Any) -> None:
    for module, kind, fits in ((theirs, theirs.SingleAgentEpisode, False), (ours, SingleAgentEpisode, True)):
        piece = module.PrevActionsPrevRewards(n_prev_actions=2)
        piece.input_action_space = ACT
        piece.input_observation_space = OBS
        going_on = episode(kind, 3)
        piece(rl_module=None, batch={}, episodes=[going_on])
        shape = going_on.get_observations(-1)["prev_n_actions"].shape
        assert (shape == piece.observation_space["prev_n_actions"].shape) is fits


# ---- train batches ----


def test_episodes_lose_their_names_there_and_keep_them_here(theirs: Any) -> None:
    there, here = episode(theirs.SingleAgentEpisode, 2).to_numpy(), episode(SingleAgentEpisode, 2).to_numpy()
    their_batch(theirs, [], [there])
    ours.learner_pipeline(OBS, ACT)(episodes=[here])
    assert (there.id_, here.id_) == ("e_0", "e")


def test_every_call_lengthens_the_episodes_there_and_none_does_here(theirs: Any) -> None:
    there, here = episode(theirs.SingleAgentEpisode, 2).to_numpy(), episode(SingleAgentEpisode, 2).to_numpy()
    pipeline = ours.learner_pipeline(OBS, ACT, custom=ours.AddOneTsToEpisodesAndTruncate())
    for _ in range(2):
        their_batch(theirs, [theirs.AddOneTsToEpisodesAndTruncate()], [there])
        pipeline(episodes=[here])
    assert (len(there), len(here)) == (4, 2)


def one_item_per_episode(base: Any) -> Any:
    """The frame stacking of the documents: one observation per episode, on the learner's side, too."""

    class OnePerEpisode(base):  # type: ignore[misc]
        def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
            for one in self.single_agent_episode_iterator(episodes):
                self.add_batch_item(batch, "obs", one.get_observations(-1), one)
            return batch

    return OnePerEpisode()


def test_columns_of_different_lengths_are_a_batch_there_and_an_error_here(theirs: Any) -> None:
    batch = their_batch(theirs, one_item_per_episode(theirs.ConnectorV2), [episode(theirs.SingleAgentEpisode, 3).to_numpy()])
    assert (len(batch["obs"]), len(batch["rewards"])) == (1, 3)
    pipeline = ours.learner_pipeline(OBS, ACT, custom=one_item_per_episode(ours.ConnectorV2))
    with pytest.raises(OfflineCliError, match="columns of different lengths"):
        pipeline(episodes=[episode(SingleAgentEpisode, 3).to_numpy()])


def test_an_output_that_one_episode_lacks_makes_a_shorter_column_there_and_is_an_error_here(theirs: Any) -> None:
    def given(kind: Any) -> list[Any]:
        with_it = episode(kind, 2, "a", extra_model_outputs={"logp": [0.5, 0.25]})
        return [with_it.to_numpy(), episode(kind, 3, "b").to_numpy()]

    batch = their_batch(theirs, [], given(theirs.SingleAgentEpisode))
    assert (len(batch["logp"]), len(batch["obs"])) == (2, 5)
    with pytest.raises(EpisodeKeyError, match="no extra model output 'logp'"):
        ours.learner_pipeline(OBS, ACT)(episodes=given(SingleAgentEpisode))


def test_an_episode_without_a_step_breaks_sequences_there_and_is_left_out_here(theirs: Any) -> None:
    from ray.rllib.algorithms.bc.bc_catalog import BCCatalog
    from ray.rllib.algorithms.bc.torch.default_bc_torch_rl_module import DefaultBCTorchRLModule
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    config = vars(DefaultModelConfig(fcnet_hiddens=[4], use_lstm=True, lstm_cell_size=2, max_seq_len=4))
    spec = RLModuleSpec(
        module_class=DefaultBCTorchRLModule,
        observation_space=OBS,
        action_space=ACT,
        model_config=config,
        catalog_class=BCCatalog,
    )

    def given(kind: Any) -> list[Any]:
        empty = kind(id_="a", observation_space=OBS, action_space=ACT)
        empty.add_env_reset(np.zeros(2, np.float32))
        return [empty, episode(kind, 3, "b")]

    with pytest.raises(ValueError, match="Mismatch between `num_items`"):
        their_batch(theirs, [], given(theirs.SingleAgentEpisode), spec.build())
    module = build_recurrent_module(OBS, ACT, hidden=(4,), lstm_size=2, max_seq_len=4)
    here = ours.learner_pipeline(OBS, ACT)(rl_module=module, episodes=given(SingleAgentEpisode))
    assert here[Columns.LOSS_MASK].tolist() == [[True, True, True, False]]
    assert len(here[Columns.OBS]) == 1


def test_chunks_of_one_multi_agent_episode_run_into_each_other_there_and_stay_apart_here(theirs: Any) -> None:
    def chunks(kind: Any) -> list[Any]:
        whole = kind("e", agent_to_module_mapping_fn=lambda *_, **__: "m")
        whole.add_env_reset(observations={"ann": np.zeros(2, np.float32)}, infos={})
        found = []
        for t in range(4):
            if t == 2:
                found.append(whole)
                whole = whole.cut()
            whole.add_env_step({"ann": np.full(2, t, np.float32)}, {"ann": t % 3}, {"ann": float(t)}, infos={})
        return [chunk.to_numpy() for chunk in [*found, whole]]

    def keys(adds: Any, given: list[Any]) -> int:
        return len(adds(as_learner_connector=True)(rl_module=None, batch={}, episodes=given)[Columns.OBS])

    from ray.rllib.connectors.common import AddObservationsFromEpisodesToBatch as Theirs

    assert keys(Theirs, chunks(theirs.MultiAgentEpisode)) == 1
    pipeline = ours.LearnerConnectorPipeline(connectors=[ours.AddObservationsFromEpisodesToBatch(as_learner_connector=True)])
    assert len(pipeline(episodes=chunks(MultiAgentEpisode))[Columns.OBS]) == 2


def test_a_state_travels_as_plain_values_and_arrays() -> None:
    """RLlib's filter keeps arrays as pickles in text."""
    state = filtered(ours.MeanStdFilter(), SingleAgentEpisode, np.ones((3, 2), np.float32)).get_state()
    part = state["own"]["obs"]
    assert {name: type(value) for name, value in part.items()} == {"count": int, "mean": np.ndarray, "m2": np.ndarray}
    assert same_state(state, state)
