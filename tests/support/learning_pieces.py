"""Pieces of a user's own that learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from offline_cli import ConnectorV2
from offline_cli.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor


class Largest(ConnectorV2):
    """Divides observations by the largest number so far."""

    per_episode: ClassVar[bool] = True

    def __init__(self, as_learner_connector: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.at, self.top = (None if as_learner_connector else -1), 0.0

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            seen = np.asarray(episode.get_observations(self.at))
            if not self.frozen:
                self.top = max(self.top, float(np.abs(seen).max()))
            episode.set_observations(new_data=(seen / max(self.top, 1e-6)).astype(np.float32), at_indices=self.at)
        return batch

    def get_state(self) -> dict[str, Any]:
        return {"top": self.top}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.top = state["top"]


class Centred(SingleAgentObservationPreprocessor):
    """Subtracts the mean so far, which every observation moves on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.count, self.mean = 0, np.zeros(3)

    def preprocess(self, observation: Any) -> Any:
        if not self.frozen:
            self.count += 1
            self.mean = self.mean + (observation - self.mean) / self.count
        return (observation - self.mean).astype(np.float32)

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.count, self.mean = state["count"], np.array(state["mean"])


class Median(ConnectorV2):
    """Needs all observations at once."""

    def __init__(self, as_learner_connector: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.at, self.middle = (None if as_learner_connector else -1), np.zeros(3)

    def __call__(self, *, batch: Any, episodes: Any, **_: Any) -> Any:
        every = list(self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False))
        if not self.frozen:
            self.middle = np.median(np.concatenate([np.asarray(one.get_observations(self.at)) for one in every]), 0)
        for one in every:
            seen = np.asarray(one.get_observations(self.at))
            one.set_observations(new_data=(seen - self.middle).astype(np.float32), at_indices=self.at)
        return batch

    def get_state(self) -> dict[str, Any]:
        return {"middle": self.middle}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.middle = np.array(state["middle"])
