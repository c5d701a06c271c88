"""Episodes side by side in slots, through pipelines: rows do not sway each other, and nothing of the caller's is written to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from offline_cli import Columns, ConnectorV2
from offline_cli.connectors.pipeline_spec import PipelineSpec, PlayPipelines, Setting
from offline_cli.connectors.slot_player import SlotPlayer
from offline_cli.errors import BadConfig, UnknownPiece
from offline_cli.modules import build_module
from offline_cli.policies.play_spec import PlaySpec

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
