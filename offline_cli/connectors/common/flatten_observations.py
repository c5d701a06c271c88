"""Nested observations as one vector; refuses to remove keys from what has none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from offline_cli.connectors.common.flat_rows import flat_rows, flat_size
from offline_cli.connectors.common.observation_transform import ObservationTransform
from offline_cli.spaces import Space
from offline_cli.trees import Tree

__all__ = ["FlattenObservations"]


class FlattenObservations(ObservationTransform):
    """(size,) float32: Dict leaves by sorted key, Discrete and MultiDiscrete one-hot, everything else as it is.

    Args:
        keys_to_remove: Keys of a Dict space that are left out; with several agents, of those whose space is a Dict.
        agent_ids: With `multi_agent`, the agents whose observations are flattened; None: all of them.
        multi_agent, as_learner_connector: As in ObservationTransform.
    """

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        multi_agent: bool = False,
        agent_ids: Collection[Any] | None = None,
        as_learner_connector: bool = False,
        keys_to_remove: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self._removed = list(keys_to_remove or ())
        self._agent_ids = agent_ids
        super().__init__(
            input_observation_space,
            input_action_space,
            multi_agent=multi_agent,
            as_learner_connector=as_learner_connector,
            **kwargs,
        )

    def recompute_output_observation_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """Box(size,). Raises SpaceMismatch where keys are to be removed and there are none such."""
        flat = super().recompute_output_observation_space(input_observation_space, input_action_space)
        if not self._multi_agent or self._agent_ids is None or not isinstance(flat, spaces.Dict):
            return flat
        before: Any = input_observation_space
        return spaces.Dict({agent: flat[agent] if agent in self._agent_ids else before[agent] for agent in flat.spaces})

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """Box(size,) of one agent."""
        size = flat_size(self._kept_space(observations))
        self.check_size((size,))
        return spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def transform(self, rows: Tree, space: Space, agent_id: Any) -> Tree:
        """(N, size)."""
        if self._multi_agent and self._agent_ids is not None and agent_id not in self._agent_ids:
            return rows
        kept = self._kept_space(space)
        if kept is not space:
            rows = {key: rows[key] for key in kept.spaces}
        return flat_rows(rows, kept)

    def _kept_space(self, space: Space) -> Any:
        if not self._removed:
            return space
        if not isinstance(space, spaces.Dict):
            if self._multi_agent:
                return space
            raise self.misfit(
                f"observations of {space}", f"a Dict to remove {self._removed} from", fix="leave keys_to_remove out"
            )
        missing = [key for key in self._removed if key not in space.spaces]
        if missing and not self._multi_agent:
            raise self.misfit(f"observations with the keys {list(space.spaces)}", f"the keys {missing} to remove")
        return spaces.Dict({key: part for key, part in space.spaces.items() if key not in self._removed})
