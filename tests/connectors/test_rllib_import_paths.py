"""Code written for RLlib runs after its import line is changed: the paths and names are RLlib's."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from offline_cli import SingleAgentEpisode
from offline_cli.connectors import FrameStacking, MeanStdFilter, learner_pipeline
from offline_cli.connectors.env_to_module.observation_preprocessor import ObservationPreprocessor
from offline_cli.errors import BadPiece

VECTOR, CHOICES = gym.spaces.Box(-1.0, 1.0, (3,), np.float32), gym.spaces.Discrete(2)


def test_the_shorthands_of_frame_stacking_know_their_side() -> None:
    from offline_cli.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
    from offline_cli.connectors.learner.frame_stacking import FrameStackingLearner

    learner = learner_pipeline(VECTOR, CHOICES, custom=[FrameStackingLearner(num_frames=2)])
    assert learner.observation_space == gym.spaces.Box(-1.0, 1.0, (6,), np.float32)
    assert isinstance(FrameStackingEnvToModule(num_frames=2), FrameStacking)


def test_a_package_gives_pieces_of_every_kind_by_name() -> None:
    from offline_cli.connectors.learner import MeanStdFilter as ByLearner

    assert ByLearner is MeanStdFilter
    with pytest.raises(ImportError, match="MeanStdFiltre"):
        importlib.import_module("offline_cli.connectors.learner.MeanStdFiltre")


def test_a_preprocessor_that_comes_too_late_is_refused() -> None:
    class Half(ObservationPreprocessor):
        def preprocess(self, observation: Any) -> Any:
            return observation / 2

    late = [FrameStacking(num_frames=2, as_learner_connector=True), Half(as_learner_connector=True)]
    seen = [np.zeros(VECTOR.shape, np.float32)] * 2
    episode = SingleAgentEpisode(observations=seen, actions=[0], rewards=[1.0], len_lookback_buffer=0)
    with pytest.raises(BadPiece) as caught:
        learner_pipeline(VECTOR, CHOICES, custom=late)(episodes=[episode])
    assert "piece Half" in caught.value.where
