"""Episodes side by side in slots, through pipelines: rows do not sway each other, and nothing of the caller's is written to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from offline_cli import Columns, ConnectorV2
from offline_cli.connectors.pipeline_spec import PipelineSpec, PlayPipelines, Setting
from offline_cli.connectors.slot_player import SPARE, SlotPlayer
from offline_cli.errors import BadConfig, UnknownPiece
from offline_cli.modules import build_module, build_recurrent_module
from offline_cli.modules.drawing import chance_size
from offline_cli.policies.piped_policy import PlaySpec

VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
CHOICES: Any = gym.spaces.Discrete(4)
SPACES = VECTOR, CHOICES
STACKED: dict[str, Any] = {
    "kind": "learner",
    "pieces": [{"name": "mean_std_filter"}, {"name": "frame_stacking", "num_frames": 2}],
}
MOMENTS: dict[str, Any] = {"count": 9, "mean": np.array([0.1, 0.2, 0.3]), "m2": np.array([4.0, 5.0, 6.0])}
LEARNED: dict[str, Any] = {"MeanStdFilter": {"shared": {"obs": MOMENTS}, "own": {}}}


def observed(episode: int, step: int) -> np.ndarray:
    return np.random.default_rng([episode, step]).uniform(-1, 1, 3).astype(np.float32)


def pipelines(file: Mapping[str, Any] | None = None, trained: PipelineSpec | None = None) -> PlayPipelines:
    found = PipelineSpec("env_to_module") if file is None else PipelineSpec.from_document(file, where="pipeline.toml")
    return PlaySpec(found, trained=trained).build(Setting(*SPACES))


def of_run(document: Mapping[str, Any] | None, state: Mapping[str, Any] | None = None) -> PipelineSpec:
    """As a run folder describes it."""
    return PipelineSpec.from_json({"document": document, "pieces": []}, state or {}, where="RUN", plugins=())


def play(player: SlotPlayer, slots: dict[int, int], steps: int) -> dict[int, list[Any]]:
    """Actions and inputs of their distribution by episode; `slots`: which episode plays where."""
    which, rewards, over = np.array([*slots]), np.ones(len(slots)), np.ones(len(slots), np.bool_)
    player.begin(which, seen_by(slots, 0), None, ids=[f"episode-{episode}" for episode in slots.values()])
    found: dict[int, list[Any]] = {episode: [] for episode in slots.values()}
    for step in range(1, steps + 1):
        acts = player.act()
        for slot, episode in slots.items():
            found[episode].append((int(acts.actions[slot]), acts.extra[Columns.ACTION_DIST_INPUTS][slot].tolist()))
        player.step(which, seen_by(slots, step), rewards, None, terminated=over if step == steps else None)
    return found


def seen_by(slots: dict[int, int], step: int) -> np.ndarray:
    return np.stack([observed(episode, step) for episode in slots.values()])


@pytest.mark.parametrize("memory", [False, True], ids=["without memory", "with memory"])
def test_an_episode_is_the_same_to_the_last_bit_whatever_plays_beside_it(memory: bool) -> None:
    trained = of_run(STACKED, LEARNED)
    seen: Any = pipelines(trained=trained).env_to_module.observation_space
    module: Any = build_module(seen, CHOICES, hidden=[16])
    if memory:
        module = build_recurrent_module(seen, CHOICES, hidden=[16], lstm_size=8, max_seq_len=4)
    beside = play(SlotPlayer(module, pipelines(trained=trained), SPACES, slots=5, rows=1), {0: 3, 2: 7, 4: 5}, 6)
    alone = play(SlotPlayer(module, pipelines(trained=trained), SPACES, slots=1, rows=1), {0: 7}, 6)
    assert beside[7] == alone[7]


def test_the_forward_pass_sees_blocks_of_one_size() -> None:
    module = build_module(*SPACES, hidden=[4])
    sizes: list[int] = []
    forward = module.forward_inference
    module.forward_inference = lambda batch: (sizes.append(len(batch[Columns.OBS])), forward(batch))[1]  # type: ignore[method-assign,func-returns-value]
    play(SlotPlayer(module, pipelines(), SPACES, slots=5, rows=2), {0: 0, 1: 1, 4: 4}, 2)
    assert sizes == [2, 2, 2, 2]


def test_slots_that_play_nothing_have_rows_of_zeros() -> None:
    player = SlotPlayer(build_module(*SPACES, hidden=[4]), pipelines(), SPACES, slots=3)
    player.begin(np.array([1]), observed(0, 0)[None], None, ids=["a"])
    acts = player.act()
    assert acts.actions.shape == acts.actions_for_env.shape == (3,)
    assert not acts.extra[Columns.ACTION_DIST_INPUTS][[0, 2]].any()
    assert acts.extra[Columns.ACTION_DIST_INPUTS][1].any()


def test_what_pieces_write_into_episodes_never_reaches_the_callers_arrays() -> None:
    player = SlotPlayer(
        build_module(*SPACES, hidden=[4]),
        pipelines({"kind": "learner", "pieces": [{"name": "mean_std_filter"}]}),
        SPACES,
        slots=1,
    )
    first, second = observed(0, 0), observed(0, 1)
    player.begin(np.array([0]), first[None], None, ids=["a"])
    player.act()
    player.step(np.array([0]), second[None], np.zeros(1), None)
    player.act()
    np.testing.assert_array_equal(first, observed(0, 0))
    np.testing.assert_array_equal(second, observed(0, 1))


class LooksBack(ConnectorV2):
    """Notes how many observations there are to look at."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seen: list[int] = []

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        self.seen += [episode.observations.len_incl_lookback() for episode in self.single_agent_episode_iterator(episodes)]
        return batch


@pytest.mark.parametrize(("lookback", "most"), [(None, 2 * SPARE + 1), (3, SPARE + 3)])
def test_pieces_look_back_on_the_whole_episode_or_on_a_bounded_part(lookback: int | None, most: int) -> None:
    piece, both = LooksBack(), pipelines()
    both.env_to_module.prepend(piece)
    player = SlotPlayer(build_module(*SPACES, hidden=[4]), both, SPACES, slots=1, lookback=lookback)
    play(player, {0: 0}, 2 * SPARE)
    assert max(piece.seen) == most
    assert min(piece.seen[4:]) >= 4


def test_what_a_filter_learned_in_training_is_played_with_and_stays_as_it_is() -> None:
    both = pipelines(trained=of_run(STACKED, LEARNED))
    seen: Any = both.env_to_module.observation_space
    rows: list[Any] = []

    class Spy(ConnectorV2):
        def __call__(self, *, batch: Any, **_: Any) -> Any:
            rows.append(batch[Columns.OBS].clone())
            return batch

    both.env_to_module.append(Spy())
    player = SlotPlayer(build_module(seen, CHOICES, hidden=[4]), both, SPACES, slots=1)
    player.begin(np.array([0]), observed(0, 0)[None], None, ids=["a"])
    player.act()
    wanted = (observed(0, 0) - MOMENTS["mean"]) / (np.sqrt(MOMENTS["m2"] / 8) + 1e-6)
    np.testing.assert_allclose(rows[0][0].numpy().reshape(-1)[-3:], wanted, rtol=1e-5)
    assert both.get_state()["env_to_module"]["MeanStdFilter"]["shared"]["obs"]["count"] == 9
    assert not both.get_state()["env_to_module"]["MeanStdFilter"]["own"]


def test_a_run_that_was_trained_with_other_code_wants_its_file_named_again() -> None:
    document = {"kind": "learner", "pieces": [{"use": "os:system"}]}
    with pytest.raises(BadConfig, match="code is only imported where your own file") as raised:
        pipelines(trained=of_run(document))
    assert raised.value.fix is not None
    assert "--env-to-module" in raised.value.fix


def test_a_filter_that_has_learned_nothing_in_training_is_refused() -> None:
    with pytest.raises(BadConfig, match="piece MeanStdFilter has learned nothing in training"):
        pipelines({"kind": "env_to_module", "pieces": [{"name": "mean_std_filter"}]}, of_run({"kind": "learner"}))


def test_a_file_of_the_users_takes_the_trained_state_of_its_pieces() -> None:
    file = {"kind": "env_to_module", "pieces": [{"name": "mean_std_filter"}]}
    state = pipelines(file, of_run({"kind": "learner"}, LEARNED)).get_state()
    assert state["env_to_module"]["MeanStdFilter"]["shared"]["obs"]["count"] == 9


def test_a_trained_state_that_no_piece_takes_is_an_error() -> None:
    file = {"kind": "env_to_module", "pieces": [{"name": "frame_stacking", "num_frames": 2}]}
    with pytest.raises(UnknownPiece, match="MeanStdFilter"):
        pipelines(file, of_run({"kind": "learner"}, LEARNED))


def test_what_a_filter_learned_finds_its_piece_in_a_learners_file_too() -> None:
    file = {"kind": "learner", "pieces": [{"name": "frame_stacking", "num_frames": 2}]}
    with pytest.raises(UnknownPiece, match="MeanStdFilter"):
        pipelines(file, of_run({"kind": "learner"}, LEARNED))
    with pytest.raises(UnknownPiece, match="MeanStdFilter"):
        pipelines(trained=of_run(file, LEARNED))


def test_what_a_filter_in_a_nested_pipeline_learned_is_not_left_out_beside_a_flat_one() -> None:
    file = {"kind": "env_to_module", "pieces": [{"name": "mean_std_filter"}]}
    with pytest.raises(UnknownPiece, match="ConnectorPipelineV2"):
        pipelines(file, of_run(None, {"ConnectorPipelineV2": LEARNED}))


@pytest.mark.parametrize("draw", ["chance", "generator"])
def test_exploring_follows_from_chance_or_a_generator(draw: str) -> None:
    module = build_module(*SPACES, hidden=[4])

    def drawn() -> list[int]:
        player = SlotPlayer(module, pipelines(), SPACES, slots=8, explore=True)
        player.begin(np.arange(8), np.stack([observed(slot, 0) for slot in range(8)]), None, ids=list(map(str, range(8))))
        given: dict[str, Callable[[], Any]] = {
            "chance": lambda: torch.rand(8, chance_size(module.action_head), generator=torch.Generator().manual_seed(1)),
            "generator": lambda: torch.Generator().manual_seed(1),
        }
        return [int(action) for action in player.act(**{draw: given[draw]()}).actions]

    assert drawn() == drawn()
    assert len(set(drawn())) > 1
