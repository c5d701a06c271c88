"""Connector pieces that pipeline files of tests name with `use`, most of them with a fault."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from offline_cli import Columns, ConnectorV2
from offline_cli.connectors.common.flattening import ObservationTransform


class Scaled(ObservationTransform):
    """Observations times a factor."""

    def __init__(self, *args: Any, factor: float = 2.0, **kwargs: Any) -> None:
        self.factor = factor
        super().__init__(*args, **kwargs)

    def transformed_space(self, observations: Any, actions: Any) -> Any:
        return gym.spaces.Box(-np.inf, np.inf, observations.shape, observations.dtype)

    def transform(self, rows: Any, space: Any, agent_id: Any) -> Any:
        with np.errstate(over="ignore"):
            return rows * np.float32(self.factor)


class RaisesOn(ConnectorV2):
    """Raises for an episode that is `steps` steps old and whose id ends with `ending`."""

    def __init__(self, *args: Any, steps: int = 0, ending: str = "", as_learner_connector: bool = False, **kwargs: Any) -> None:
        self.steps, self.ending, self.learns = steps, ending, as_learner_connector
        super().__init__(*args, **kwargs)

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            if not self.learns and len(episode) == self.steps and episode.id_.endswith(self.ending):
                raise RuntimeError("the lens is dirty")
        return batch


class LearnerRaises(ConnectorV2):
    """Raises on recorded data."""

    def __call__(self, **_: Any) -> Any:
        raise ZeroDivisionError("no rewards")


class Lies(ConnectorV2):
    """Beside an environment its observations have one number less than it announces."""

    def __init__(self, *args: Any, as_learner_connector: bool = False, **kwargs: Any) -> None:
        self.learns = as_learner_connector
        super().__init__(*args, **kwargs)

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in [] if self.learns else self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, Columns.OBS, episode.get_observations(-1)[:-1], episode)
        return batch


class Bolder(ConnectorV2):
    """For module-to-env: turns the two choices around."""

    def __call__(self, *, batch: Any, **_: Any) -> Any:
        batch[Columns.ACTION_DIST_INPUTS] = -batch[Columns.ACTION_DIST_INPUTS]
        return batch
