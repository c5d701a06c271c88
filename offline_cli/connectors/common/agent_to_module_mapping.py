"""From columns by agent to columns by module; refuses agents of one module whose spaces differ, and modules of no agent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from gymnasium import spaces

from offline_cli.connectors.batch_items import is_filed
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes
from offline_cli.errors import BadPiece
from offline_cli.spaces import Space

__all__ = ["AgentToModuleMapping"]

ModuleSpecs = Mapping[Any, Any] | Collection[Any]


class AgentToModuleMapping(ConnectorV2):
    """`{column: {(episode, agent, module): items}}` becomes `{module: {column: items}}`, and Dict spaces go by module, too.

    Args:
        rl_module_specs: Ids of modules, or anything with `observation_space` and `action_space` (which may be None) by id.
        agent_to_module_mapping_fn: `fn(agent_id, episode)` gives a module's id. Batches follow the episodes' own mapping; this
            one is asked for spaces alone.
        as_learner_connector: All agents' items; otherwise only those of agents that have to act, and whose rows they are is
            noted in `shared_data["memorized_map_structure"]` (RLlib's name) for module-to-env.
    """

    whole_arrays = True

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        rl_module_specs: ModuleSpecs,
        agent_to_module_mapping_fn: Callable[..., Any],
        as_learner_connector: bool = False,
        **kwargs: Any,
    ) -> None:
        self._specs: Mapping[Any, Any] = (
            rl_module_specs if isinstance(rl_module_specs, Mapping) else dict.fromkeys(rl_module_specs)
        )
        self._mapping_fn = agent_to_module_mapping_fn
        self._as_learner_connector = as_learner_connector
        super().__init__(input_observation_space, input_action_space, **kwargs)

    # ---- spaces ----

    def recompute_output_observation_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """A Dict by module id. Raises SpaceMismatch where a module's space cannot be told."""
        return self._by_module(input_observation_space, "observation_space")

    def recompute_output_action_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """A Dict by module id. Raises SpaceMismatch where a module's space cannot be told."""
        return self._by_module(input_action_space, "action_space")

    def _by_module(self, space: Space, which: str) -> Space:
        if not isinstance(space, spaces.Dict):
            raise self.misfit(f"{which} {space}", "a Dict by agent", fix="leave the piece out where there is a single agent")
        if set(space.spaces) == set(self._specs):
            return space
        return spaces.Dict({module_id: self._of_module(module_id, space, which) for module_id in self._specs})

    def _of_module(self, module_id: Any, by_agent: spaces.Dict, which: str) -> Space:
        declared: Space | None = getattr(self._specs[module_id], which, None)
        if declared is not None:
            return declared
        every = list(by_agent.spaces.values())
        if every and all(space == every[0] for space in every):
            return every[0]
        found = {agent: space for agent, space in by_agent.spaces.items() if self._module_of(agent) == module_id}
        if not found:
            what = f"no agent among {list(by_agent.spaces)} that is mapped to module {module_id!r}"
            raise self.misfit(what, f"an {which} for it", fix=f"give the module's {which} in rl_module_specs")
        first = next(iter(found.values()))
        if any(space != first for space in found.values()):
            what = f"agents {list(found)} of module {module_id!r} with different spaces"
            raise self.misfit(what, f"one {which}", fix="map them to modules of their own")
        return first

    def _module_of(self, agent_id: Any) -> Any:
        from offline_cli.episodes.multi_agent.multi_agent_episode import (
            MultiAgentEpisode,
        )  # only mapping functions of Dict spaces need it

        return self._mapping_fn(agent_id, MultiAgentEpisode())

    # ---- batches ----

    def __call__(
        self,
        *,
        rl_module: Any = None,
        batch: Batch,
        episodes: Episodes,
        shared_data: dict[str, Any] | None = None,
        **_: Any,
    ) -> Batch:
        """The batch by module. Raises BadPiece for a column that is not filed by agent."""
        whole: Any = episodes  # multi-agent ones: others have no keys of three parts
        acting = None if self._as_learner_connector else {(e.id_, agent) for e in whole for agent in e.get_agents_to_act()}
        by_module: Batch = {}
        rows: dict[Any, list[tuple[Any, Any]]] | None = None
        for column, held in batch.items():
            if rl_module is not None and column in rl_module:  # a custom piece has filed something by module already
                by_module.setdefault(column, {}).update(held)
                continue
            mapped = self._map_column(column, held, by_module, acting)
            rows = mapped if rows is None else rows
        if shared_data is not None and not self._as_learner_connector:
            shared_data["memorized_map_structure"] = rows or {}
        return by_module

    @staticmethod
    def _map_column(
        column: str, held: Any, by_module: Batch, acting: set[tuple[Any, Any]] | None
    ) -> dict[Any, list[tuple[Any, Any]]]:
        """File one column by module; gives (episode, agent) of each of its items."""
        if held and not (is_filed(held) and all(len(key) == 3 for key in held)):
            what = f"column {column!r} is not filed by (episode, agent, module)"
            raise BadPiece(what, where="AgentToModuleMapping", fix="add items with add_batch_item(..., single_agent_episode)")
        rows: dict[Any, list[tuple[Any, Any]]] = {}
        for (episode_id, agent_id, module_id), items in held.items():
            if acting is None or (episode_id, agent_id) in acting:
                by_module.setdefault(module_id, {}).setdefault(column, []).extend(items)
                rows.setdefault(module_id, []).extend([(episode_id, agent_id)] * len(items))
        return rows
